"""DaemonSet controller: one pod on every eligible node.

Left out: maxSurge (an old pod is always gone before its replacement is created) and the backoff of failed pods.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import (
    Controller,
    ControllerContext,
    controller_key,
    is_terminating_namespace,
    object_key,
)
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.hashes import short_hash
from embedded_kube.controllers.machinery.objects import (
    FullObject,
    Key,
    NodeView,
    PodView,
    TolerationView,
    read_toleration,
)
from embedded_kube.controllers.taint_eviction import tolerates
from embedded_kube.controllers.workloads.controller_ref import ControllerRefManager, owner_reference
from embedded_kube.controllers.workloads.pod_control import pod_from_template, slow_start_batch
from embedded_kube.controllers.workloads.revisions import RevisionHistory, TemplateRevision
from embedded_kube.controllers.workloads.rollout import scaled_value
from embedded_kube.controllers.workloads.statefulset_plan import REVISION_LABEL
from embedded_kube.errors import StatusError
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json

DAEMONSETS = "daemonsets.apps"
_DAEMON_TOLERATIONS = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
"""Tolerations that the pods of every DaemonSet get."""


class DaemonGoal(NamedTuple):
    """Desired state: nodes that need a pod, nodes where pods may stay, and how many pods may be unavailable."""

    nodes: frozenset[str]
    may_stay: frozenset[str]
    update: str
    unavailable: int = 1
    on_delete: bool = False
    minimum_ready: float = 0.0


class DaemonPlan(NamedTuple):
    """Nodes that need a pod, and pods to delete."""

    create: tuple[str, ...]
    delete: tuple[PodView, ...]


def may_run(template: Json, node: NodeView) -> tuple[bool, bool]:
    """Returns whether a pod of this template may be placed on a node, and whether it may stay there."""
    spec = template.get("spec") or {}
    selector = spec.get("nodeSelector") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms")
    fits = selector.items() <= node.meta.labels.items() and (not terms or any(_selects(term, node) for term in terms))
    tolerations = [read_toleration(one) for one in spec.get("tolerations") or ()]
    tolerations += [TolerationView(key, "Exists", "", effect) for key, effect in _DAEMON_TOLERATIONS]
    untolerated = [taint for taint in node.taints if not any(tolerates(one, taint) for one in tolerations)]
    may_place = fits and not any(taint.effect in ("NoSchedule", "NoExecute") for taint in untolerated)
    return may_place, fits and not any(taint.effect == "NoExecute" for taint in untolerated)


def _selects(term: Json, node: NodeView) -> bool:
    fields = {"matchExpressions": term.get("matchFields")}
    return matches(term, node.meta.labels) and matches(fields, {"metadata.name": node.meta.name})


def plan_daemons(goal: DaemonGoal, pods: Mapping[str, list[PodView]], now: float) -> DaemonPlan:
    """Plans the creations and deletions that bring the pods, by node, to the goal."""
    create, delete, old = [], [], []
    missing = 0
    for name in sorted(goal.nodes | pods.keys()):
        here = sorted(pods.get(name, ()), key=lambda pod: (pod.meta.created, pod.meta.name))
        alive = [pod for pod in here if pod.active]
        delete += [pod for pod in here if pod.ended and not pod.meta.deleting]
        delete += alive[1:] if name in goal.may_stay else alive
        if name not in goal.nodes:
            continue
        first = alive[0] if alive else None
        if first is None:
            missing += 1
            # The replacement has the same name, so it waits until the old pod is gone.
            if not here:
                create.append(name)
        elif first.meta.labels.get(REVISION_LABEL) != goal.update:
            old.append(first)
        elif not first.available(goal.minimum_ready, now):
            missing += 1
    if not goal.on_delete:
        delete += _outdated(old, goal, missing, now)
    return DaemonPlan(tuple(create), tuple(delete))


def _outdated(old: list[PodView], goal: DaemonGoal, missing: int, now: float) -> list[PodView]:
    """Returns the old pods to replace now: unavailable ones, and as many available ones as maxUnavailable allows."""
    unavailable = [pod for pod in old if not pod.available(goal.minimum_ready, now)]
    available = [pod for pod in old if pod not in unavailable]
    return unavailable + available[: max(0, goal.unavailable - missing - len(unavailable))]


def daemon_status(found: FullObject, goal: DaemonGoal, pods: Mapping[str, list[PodView]], now: float) -> Json:
    """Returns the status of a DaemonSet."""
    alive = {name: [pod for pod in here if pod.active] for name, here in pods.items()}
    placed = [alive[name][0] for name in goal.nodes if alive.get(name)]
    available = sum(pod.available(goal.minimum_ready, now) for pod in placed)
    status = {
        "currentNumberScheduled": len(placed),
        "numberMisscheduled": sum(1 for name, here in alive.items() if here and name not in goal.nodes),
        "desiredNumberScheduled": len(goal.nodes),
        "numberReady": sum(pod.ready for pod in placed),
        "observedGeneration": found.meta.generation,
    }
    more = {
        "updatedNumberScheduled": sum(pod.meta.labels.get(REVISION_LABEL) == goal.update for pod in placed),
        "numberAvailable": available,
        "numberUnavailable": len(goal.nodes) - available,
    }
    return {**status, **{name: value for name, value in more.items() if value}}


def daemon_pod(found: FullObject, revision: TemplateRevision, node: str) -> Json:
    """Returns the pod for a node."""
    reference = owner_reference("apps/v1", "DaemonSet", found)
    pod = pod_from_template(revision.template, found.meta.namespace, reference)
    pod["metadata"]["name"] = pod_name(found, node)
    pod["metadata"]["generateName"] = f"{found.meta.name}-"
    pod["metadata"].setdefault("labels", {})[REVISION_LABEL] = revision.name
    spec = pod["spec"]
    spec["tolerations"] = [
        *(spec.get("tolerations") or ()),
        *({"key": key, "operator": "Exists", "effect": effect} for key, effect in _DAEMON_TOLERATIONS),
    ]
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [here]}
    return pod


def pod_name(found: FullObject, node: str) -> str:
    """Returns the pod name for a node. It is derived from the node, so that no node gets two pods."""
    return f"{found.meta.name}-{short_hash(found.meta.uid, node)}"


class DaemonSetController(Controller[Key]):
    """Reconciles DaemonSets."""

    name = "daemonset-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._sets = self.informers.full(DAEMONSETS)
        self._history = RevisionHistory(context, "DaemonSet")
        self._nodes = self.informers.nodes
        self.cache_syncs += [self._history.informer, self._nodes]
        self.enqueue_on_change(self._sets, object_key)
        self.enqueue_on_change(self.informers.pods, partial(controller_key, kind="DaemonSet", group="apps"))
        self._nodes.add_event_handler(self._node_changed)

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        if before is None or after is None or _scheduling_fields(before) != _scheduling_fields(after):
            for found in self._sets:
                # One reconcile for nodes that change at the same time.
                self.queue.add_after(found.meta.key, 0.05)

    async def reconcile(self, key: Key) -> float | None:
        found = self._sets.get(key)
        if found is None or found.meta.deleting:
            return None
        update = await self._history.latest(found)
        goal = self._goal(found, update)
        now = time.time()
        failure: StatusError | None = None
        manager = ControllerRefManager(
            self.context, "pods", DAEMONSETS, found, owner_reference("apps/v1", "DaemonSet", found)
        )
        await manager.claim(self.informers.pods_of_controller.get(found.meta.uid), ())
        try:
            await self._apply(found, update, plan_daemons(goal, self._by_node(found), now))
        except StatusError as error:
            failure = error
        pods = self._by_node(found)
        status = daemon_status(found, goal, pods, now)
        if status != found.status:
            await self.context.set_status(DAEMONSETS, found, status)
        in_use = {pod.meta.labels.get(REVISION_LABEL, "") for here in pods.values() for pod in here}
        await self._history.truncate(found, {update.name, *in_use})
        if failure is not None and not is_terminating_namespace(failure):
            raise failure
        waits = [goal.minimum_ready - now + pod.ready_since for here in pods.values() for pod in here if pod.ready]
        return min((wait + 0.1 for wait in waits if wait > 0), default=None)

    def _goal(self, found: FullObject, update: TemplateRevision) -> DaemonGoal:
        eligibility = [
            (node.meta.name, may_run(update.template, node)) for node in self._nodes if not node.meta.deleting
        ]
        nodes = frozenset(name for name, (may_place, _) in eligibility if may_place)
        strategy = found.spec.get("updateStrategy") or {}
        rolling = strategy.get("rollingUpdate") or {}
        return DaemonGoal(
            nodes=nodes,
            may_stay=nodes | {name for name, (_, may_stay) in eligibility if may_stay},
            update=update.name,
            unavailable=max(1, scaled_value(rolling.get("maxUnavailable", 1), len(nodes), up=True)),
            on_delete=strategy.get("type") == "OnDelete",
            minimum_ready=found.spec.get("minReadySeconds") or 0,
        )

    def _by_node(self, found: FullObject) -> dict[str, list[PodView]]:
        names = {pod_name(found, node.meta.name): node.meta.name for node in self._nodes}
        by_node: dict[str, list[PodView]] = {}
        for pod in self.informers.pods_of_controller.get(found.meta.uid):
            by_node.setdefault(pod.node or names.get(pod.meta.name, ""), []).append(pod)
        return by_node

    async def _apply(self, found: FullObject, update: TemplateRevision, plan: DaemonPlan) -> None:
        about = InvolvedObject("apps/v1", "DaemonSet", found.meta)
        await slow_start_batch([partial(self._delete, pod, about) for pod in _unique(plan.delete)])
        await slow_start_batch([partial(self._create, found, update, node, about) for node in plan.create])

    async def _create(self, found: FullObject, update: TemplateRevision, node: str, about: InvolvedObject) -> None:
        await self.create_pod(daemon_pod(found, update, node), about)

    async def _delete(self, pod: PodView, about: InvolvedObject) -> None:
        await self.context.delete("pods", pod)
        self.event(about, "SuccessfulDelete", f"Deleted pod: {pod.meta.name}")


def _unique(pods: Iterable[PodView]) -> list[PodView]:
    return list({pod.meta.uid: pod for pod in pods}.values())


def _scheduling_fields(node: NodeView) -> tuple[object, ...]:
    return node.meta.labels, [(taint.key, taint.effect, taint.value) for taint in node.taints]
