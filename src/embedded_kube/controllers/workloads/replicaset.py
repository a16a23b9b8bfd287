"""ReplicaSet controller: keeps the desired number of pods of a template."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from embedded_kube.controllers.machinery.conditions import condition, drop_condition, set_condition
from embedded_kube.controllers.machinery.controller import (
    Controller,
    ControllerContext,
    controller_key,
    copy_json,
    is_terminating_namespace,
    object_key,
)
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.objects import FullObject, Key, PodView
from embedded_kube.controllers.workloads.controller_ref import ControllerRefManager, owner_reference
from embedded_kube.controllers.workloads.pod_control import (
    BURST,
    pick_victims,
    pod_from_template,
    set_random_name,
    slow_start_batch,
)
from embedded_kube.errors import StatusError
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json

REPLICASETS = "replicasets.apps"


class ReplicaPlan(NamedTuple):
    """How many pods to create, and which to delete."""

    create: int
    delete: tuple[PodView, ...]


def plan_replicas(wanted: int, pods: Iterable[PodView]) -> ReplicaPlan:
    """Plans the creations and deletions that reach the desired number."""
    active = [pod for pod in pods if pod.active]
    missing = wanted - len(active)
    if missing >= 0:
        return ReplicaPlan(min(missing, BURST), ())
    return ReplicaPlan(0, tuple(pick_victims(active, min(-missing, BURST))))


def count_replicas(found: FullObject, pods: Iterable[PodView], now: float) -> tuple[Json, float | None]:
    """Returns the counters of a status, and the seconds until the next pod becomes available."""
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


class ReplicaSetController(Controller[Key]):
    """Reconciles ReplicaSets."""

    name = "replicaset-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._sets = self.informers.full(REPLICASETS)
        self._by_namespace = self._sets.index(lambda found: (found.meta.namespace,))
        self.enqueue_on_change(self._sets, object_key)
        self.cache_syncs.append(self.informers.pods)
        self.informers.pods.add_event_handler(self._pod_changed)

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        for pod in (before, after):
            if pod is None:
                continue
            key = controller_key(pod, "ReplicaSet", "apps")
            if key is not None:
                owner = pod.meta.controller
                # A large set is reconciled less often, because each reconcile costs more.
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
        manager = ControllerRefManager(self.context, "pods", REPLICASETS, found, reference)
        owned = self.informers.pods_of_controller.get(found.meta.uid)
        pods = await manager.claim(owned, self.informers.orphan_pods.get(key[0]), lambda pod: not pod.ended)
        failure: StatusError | None = None
        if not found.meta.deleting:
            try:
                await self._apply(found, reference, plan_replicas(found.spec.get("replicas", 1), pods))
            except StatusError as error:
                failure = error
        again = await self._report(found, failure)
        if failure is not None and not is_terminating_namespace(failure):
            raise failure
        return again

    async def _apply(self, found: FullObject, reference: Json, plan: ReplicaPlan) -> None:
        about = InvolvedObject("apps/v1", "ReplicaSet", found.meta)
        await slow_start_batch([partial(self._create, found, reference, about)] * plan.create)
        await slow_start_batch([partial(self._delete, pod, about) for pod in plan.delete])

    async def _create(self, found: FullObject, reference: Json, about: InvolvedObject) -> None:
        pod = pod_from_template(found.spec.get("template") or {}, found.meta.namespace, reference)
        set_random_name(self.context, pod, f"{found.meta.name}-")
        await self.create_pod(pod, about)

    async def _delete(self, pod: PodView, about: InvolvedObject) -> None:
        try:
            await self.context.delete("pods", pod)
        except StatusError as error:
            self.warning(about, "FailedDelete", f"Error deleting: {error.message}")
            raise
        self.event(about, "SuccessfulDelete", f"Deleted pod: {pod.meta.name}")

    async def _report(self, found: FullObject, failure: StatusError | None) -> float | None:
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
            await self.context.set_status(REPLICASETS, found, status)
        return again
