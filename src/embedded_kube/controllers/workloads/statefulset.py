"""StatefulSet controller: pods with ordinals, stable names and their own volume claims."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial

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
from embedded_kube.controllers.workloads.pod_control import pod_from_template, slow_start_batch
from embedded_kube.controllers.workloads.revisions import RevisionHistory, TemplateRevision
from embedded_kube.controllers.workloads.statefulset_plan import (
    REVISION_LABEL,
    CreateReplica,
    DeleteReplica,
    StatefulSetGoal,
    plan_statefulset,
)
from embedded_kube.errors import StatusError
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json

STATEFULSETS = "statefulsets.apps"
CLAIMS = "persistentvolumeclaims"


def read_goal(found: FullObject, current: str, update: str) -> StatefulSetGoal:
    """Reads the goal from a StatefulSet's spec."""
    spec = found.spec
    strategy = spec.get("updateStrategy") or {}
    return StatefulSetGoal(
        replicas=spec.get("replicas", 1),
        start=(spec.get("ordinals") or {}).get("start", 0),
        parallel=spec.get("podManagementPolicy") == "Parallel",
        partition=(strategy.get("rollingUpdate") or {}).get("partition") or 0,
        on_delete=strategy.get("type") == "OnDelete",
        current=current,
        update=update,
        minimum_ready=spec.get("minReadySeconds") or 0,
    )


def ordinal_of(name: str, pod: str) -> int | None:
    """Returns the ordinal of a pod; None if the name does not belong to the StatefulSet."""
    found = re.fullmatch(re.escape(name) + r"-(\d+)", pod)
    return int(found[1]) if found is not None else None


def ordinal_pod(found: FullObject, revision: TemplateRevision, ordinal: int) -> Json:
    """Returns the pod of an ordinal."""
    reference = owner_reference("apps/v1", "StatefulSet", found)
    pod = pod_from_template(revision.template, found.meta.namespace, reference)
    name = f"{found.meta.name}-{ordinal}"
    pod["metadata"]["name"] = name
    pod["metadata"].setdefault("labels", {}).update(
        {
            "statefulset.kubernetes.io/pod-name": name,
            "apps.kubernetes.io/pod-index": str(ordinal),
            REVISION_LABEL: revision.name,
        }
    )
    pod["spec"]["hostname"] = name
    if found.spec.get("serviceName"):
        pod["spec"]["subdomain"] = found.spec["serviceName"]
    templates = found.spec.get("volumeClaimTemplates") or ()
    if templates:
        claimed = {template["metadata"]["name"] for template in templates}
        kept = [volume for volume in pod["spec"].get("volumes") or () if volume["name"] not in claimed]
        pod["spec"]["volumes"] = kept + [
            {"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}} for claim in sorted(claimed)
        ]
    return pod


def statefulset_status(found: FullObject, goal: StatefulSetGoal, pods: Mapping[int, PodView], now: float) -> Json:
    """Returns the status: counters, and the current revision."""
    every = [pod for pod in pods.values() if not pod.ended]
    alive = [pod for pod in every if not pod.meta.deleting]
    ready = [pod for pod in every if pod.phase == "Running" and pod.ready]
    updated = sum(pod.meta.labels.get(REVISION_LABEL) == goal.update for pod in alive)
    current = goal.current
    if not goal.on_delete and updated == goal.replicas == len(ready):
        current = goal.update
    status = {
        "replicas": len(every),
        "readyReplicas": len(ready),
        "currentReplicas": sum(pod.meta.labels.get(REVISION_LABEL) == current for pod in alive),
        "updatedReplicas": updated,
    }
    return {
        **{name: value for name, value in status.items() if value or name == "replicas"},
        "availableReplicas": sum(pod.available(goal.minimum_ready, now) for pod in ready),
        "currentRevision": current,
        "updateRevision": goal.update,
        "observedGeneration": found.meta.generation,
        "collisionCount": found.status.get("collisionCount", 0),
    }


class StatefulSetController(Controller[Key]):
    """Reconciles StatefulSets."""

    name = "statefulset-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._sets = self.informers.full(STATEFULSETS)
        self._by_namespace = self._sets.index(lambda found: (found.meta.namespace,))
        self._claims = self.informers.full(CLAIMS)
        self._history = RevisionHistory(context, "StatefulSet")
        self.cache_syncs += [self._claims, self._history.informer]
        self.enqueue_on_change(self._sets, object_key)
        self.enqueue_on_change(self.informers.pods, partial(controller_key, kind="StatefulSet", group="apps"))
        self.informers.pods.add_event_handler(self._orphan_pod_changed)

    def _orphan_pod_changed(self, _: PodView | None, after: PodView | None) -> None:
        if after is not None and after.meta.controller is None:
            for found in self._by_namespace.get(after.meta.namespace):
                if matches(found.spec.get("selector"), after.meta.labels):
                    self.queue.add(found.meta.key)

    async def reconcile(self, key: Key) -> float | None:
        found = self._sets.get(key)
        if found is None:
            return None
        pods = await self._pods(found)
        if found.meta.deleting:
            return None
        update = await self._history.latest(found)
        current = self._history.find(found, found.status.get("currentRevision", "")) or update
        goal = read_goal(found, current.name, update.name)
        failure: StatusError | None = None
        now = time.time()
        try:
            templates = {current.name: current, update.name: update}
            await slow_start_batch(
                [partial(self._apply, found, action, templates) for action in plan_statefulset(goal, pods, now)]
            )
        except StatusError as error:
            failure = error
        pods = dict(self._by_ordinal(found))
        status = statefulset_status(found, goal, pods, now)
        if status != found.status:
            await self.context.set_status(STATEFULSETS, found, status)
        in_use = {pod.meta.labels.get(REVISION_LABEL, "") for pod in pods.values()}
        await self._history.truncate(found, {status["currentRevision"], update.name, *in_use})
        if failure is not None and not is_terminating_namespace(failure):
            raise failure
        waits = [goal.minimum_ready - now + pod.ready_since for pod in pods.values() if pod.ready]
        return min((wait + 0.1 for wait in waits if wait > 0), default=None)

    async def _pods(self, found: FullObject) -> dict[int, PodView]:
        reference = owner_reference("apps/v1", "StatefulSet", found)
        manager = ControllerRefManager(self.context, "pods", STATEFULSETS, found, reference)
        owned = self.informers.pods_of_controller.get(found.meta.uid)
        orphans = self.informers.orphan_pods.get(found.meta.namespace)
        await manager.claim(owned, orphans, lambda pod: ordinal_of(found.meta.name, pod.meta.name) is not None)
        return dict(self._by_ordinal(found))

    def _by_ordinal(self, found: FullObject) -> list[tuple[int, PodView]]:
        pods = self.informers.pods_of_controller.get(found.meta.uid)
        ordinals = ((ordinal_of(found.meta.name, pod.meta.name), pod) for pod in pods)
        return [(ordinal, pod) for ordinal, pod in ordinals if ordinal is not None]

    async def _apply(
        self, found: FullObject, action: CreateReplica | DeleteReplica, revisions: Mapping[str, TemplateRevision]
    ) -> None:
        about = InvolvedObject("apps/v1", "StatefulSet", found.meta)
        kind, name = "StatefulSet", found.meta.name
        if isinstance(action, CreateReplica):
            pod = f"{name}-{action.ordinal}"
            try:
                await self._create_claims(found, action.ordinal, about)
                await self.context.create("pods", ordinal_pod(found, revisions[action.revision], action.ordinal))
            except StatusError as error:
                if not is_terminating_namespace(error):
                    text = f"create Pod {pod} in {kind} {name} failed error: {error.message}"
                    self.warning(about, "FailedCreate", text)
                raise
            self.event(about, "SuccessfulCreate", f"create Pod {pod} in {kind} {name} successful")
            return
        pod = action.pod.meta.name
        if action.ended:
            self.warning(about, "RecreatingFailedPod", f"{kind} {name} is recreating failed Pod {pod}")
        await self.context.delete("pods", action.pod)
        self.event(about, "SuccessfulDelete", f"delete Pod {pod} in {kind} {name} successful")

    async def _create_claims(self, found: FullObject, ordinal: int, about: InvolvedObject) -> None:
        labels = (found.spec.get("selector") or {}).get("matchLabels") or {}
        pod = f"{found.meta.name}-{ordinal}"
        for template in found.spec.get("volumeClaimTemplates") or ():
            meta = template["metadata"]
            name = f"{meta['name']}-{pod}"
            if self._claims.get((found.meta.namespace, name)) is not None:
                continue
            made = copy_json({name: template[name] for name in ("spec",) if name in template})
            made["metadata"] = {
                "name": name,
                "namespace": found.meta.namespace,
                "labels": {**(meta.get("labels") or {}), **labels},
                "annotations": dict(meta.get("annotations") or {}),
            }
            try:
                await self.context.create(CLAIMS, made)
            except StatusError as error:
                if error.reason != "AlreadyExists":
                    raise
            text = f"create Claim {name} Pod {pod} in StatefulSet {found.meta.name} success"
            self.event(about, "SuccessfulCreate", text)
