"""ReplicaSets: as many pods of a template as are wanted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from embedded_kube.controllers.machinery.conditions import condition, drop_condition, set_condition
from embedded_kube.controllers.machinery.controller import (
    Controller,
    Shared,
    controlled_key,
    copy_json,
    is_terminating_namespace,
    own_key,
)
from embedded_kube.controllers.machinery.objects import Key, Pod, Whole
from embedded_kube.controllers.machinery.recorder import About
from embedded_kube.controllers.workloads.claims import Claim, owner_reference
from embedded_kube.controllers.workloads.podsets import (
    BURST,
    give_random_name,
    in_batches,
    pick_victims,
    pod_from_template,
)
from embedded_kube.errors import ApiError
from embedded_kube.storage.labels import matches
from embedded_kube.storage.store import Json

REPLICASETS = "replicasets.apps"


class ReplicaPlan(NamedTuple):
    """How many pods to make, and which to delete."""

    create: int
    delete: tuple[Pod, ...]


def plan_replicas(wanted: int, pods: Iterable[Pod]) -> ReplicaPlan:
    """What brings a set of pods to the wanted number."""
    active = [pod for pod in pods if pod.active]
    missing = wanted - len(active)
    if missing >= 0:
        return ReplicaPlan(min(missing, BURST), ())
    return ReplicaPlan(0, tuple(pick_victims(active, min(-missing, BURST))))


def count_replicas(found: Whole, pods: Iterable[Pod], now: float) -> tuple[Json, float | None]:
    """The counters of a status, and when to look again because a pod will have been ready long enough."""
    minimum = found.spec.get("minReadySeconds") or 0
    labels = (found.spec.get("template") or {}).get("metadata", {}).get("labels") or {}
    every = [pod for pod in pods if not pod.ended]
    active = [pod for pod in every if not pod.meta.deleting]
    ready = [pod for pod in active if pod.ready]
    available = [pod for pod in ready if pod.available(minimum, now)]
    labelled = [pod for pod in active if all(pod.meta.labels.get(name) == value for name, value in labels.items())]
    waiting = [minimum - (now - pod.ready_since) for pod in ready if not pod.available(minimum, now)]
    counters = {
        "replicas": len(active),
        "fullyLabeledReplicas": len(labelled),
        "readyReplicas": len(ready),
        "availableReplicas": len(available),
        "terminatingReplicas": len(every) - len(active),
    }
    shown = {name: value for name, value in counters.items() if value or name in ("replicas", "terminatingReplicas")}
    return shown, min(waiting) + 0.1 if waiting else None


class ReplicaSets(Controller[Key]):
    """Keeps the pods of every ReplicaSet."""

    name = "replicaset-controller"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._sets = self.informers.whole(REPLICASETS)
        self._by_namespace = self._sets.index(lambda found: (found.meta.namespace,))
        self.follow(self._sets, own_key)
        self.needs.append(self.informers.pods)
        self.informers.pods.handle(self._pod_changed)

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        for pod in (before, after):
            if pod is None:
                continue
            key = controlled_key(pod, "ReplicaSet", "apps")
            if key is not None:
                owner = pod.meta.controller
                # A large set is looked at less often, because each look costs more.
                size = self.informers.pods_of_controller.count(owner.uid) if owner is not None else 0
                self.queue.add_after(key, size / 20_000)
            elif pod.meta.controller is None:
                for found in self._by_namespace.get(pod.meta.namespace):
                    if matches(found.spec.get("selector"), pod.meta.labels):
                        self.queue.add(found.meta.key)

    async def reconcile(self, key: Key) -> float | None:
        found = self._sets.get(key)
        if found is None:
            return None
        reference = owner_reference("apps/v1", "ReplicaSet", found)
        claim = Claim(self.shared, "pods", REPLICASETS, found, reference)
        owned = self.informers.pods_of_controller.get(found.meta.uid)
        pods = await claim.settle(owned, self.informers.loose_pods.get(key[0]), lambda pod: not pod.ended)
        failure: ApiError | None = None
        if not found.meta.deleting:
            try:
                await self._act(found, reference, plan_replicas(found.spec.get("replicas", 1), pods))
            except ApiError as error:
                failure = error
        again = await self._report(found, failure)
        if failure is not None and not is_terminating_namespace(failure):
            raise failure
        return again

    async def _act(self, found: Whole, reference: Json, plan: ReplicaPlan) -> None:
        about = About("apps/v1", "ReplicaSet", found.meta)
        await in_batches([partial(self._create, found, reference, about)] * plan.create)
        await in_batches([partial(self._delete, pod, about) for pod in plan.delete])

    async def _create(self, found: Whole, reference: Json, about: About) -> None:
        pod = pod_from_template(found.spec.get("template") or {}, found.meta.namespace, reference)
        give_random_name(self.shared, pod, f"{found.meta.name}-")
        await self.create_pod(pod, about)

    async def _delete(self, pod: Pod, about: About) -> None:
        try:
            await self.shared.delete("pods", pod)
        except ApiError as error:
            self.warn(about, "FailedDelete", f"Error deleting: {error.message}")
            raise
        self.normal(about, "SuccessfulDelete", f"Deleted pod: {pod.meta.name}")

    async def _report(self, found: Whole, failure: ApiError | None) -> float | None:
        pods = self.informers.pods_of_controller.get(found.meta.uid)
        counters, again = count_replicas(found, pods, time.time())
        status: Json = {**counters, "observedGeneration": found.meta.generation}
        if found.status.get("conditions"):
            status["conditions"] = copy_json(found.status)["conditions"]
        if failure is not None:
            kind = "FailedCreate" if found.spec.get("replicas", 1) > counters["replicas"] else "FailedDelete"
            set_condition(status, condition("ReplicaFailure", True, kind, failure.message))
        else:
            drop_condition(status, "ReplicaFailure")
        if status != found.status:
            await self.shared.set_status(REPLICASETS, found, status)
        return again
