"""Taint eviction controller: deletes pods that do not tolerate their node's NoExecute taints, or no longer."""

from __future__ import annotations

import time
from collections.abc import Iterable

from embedded_kube.controllers.machinery.conditions import condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, ControllerContext
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.objects import Key, NodeView, PodView, TaintView, TolerationView, seconds
from gpu_scheduler.k8s.objects import Json


def tolerates(toleration: TolerationView, taint: TaintView) -> bool:
    """Whether a toleration matches a taint."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def eviction_time(pod: PodView, taints: Iterable[TaintView]) -> float | None:
    """Returns when a pod is evicted because of its node's NoExecute taints: 0 for at once, None for never."""
    times: list[float] = []
    for taint in taints:
        matching = [toleration for toleration in pod.tolerations if tolerates(toleration, taint)]
        if not matching:
            return 0.0
        since = max(seconds(taint.added), pod.meta.created)
        times += [since + max(0, one.seconds) for one in matching if one.seconds is not None]
    return min(times, default=None)


class TaintEvictionController(Controller[Key]):
    """Evicts pods because of NoExecute taints."""

    name = "taint-eviction-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._nodes = self.informers.nodes
        self._pods = self.informers.pods
        self._scheduled: set[Key] = set()
        self.cache_syncs += [self._nodes, self._pods]
        self._nodes.add_event_handler(self._node_changed)
        self._pods.add_event_handler(self._pod_changed)

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        if after is not None and _no_execute_taints(before) != _no_execute_taints(after):
            for pod in self.informers.pods_of_node.get(after.meta.name):
                self.queue.add(pod.meta.key)

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        if after is None or not after.node or (before is not None and before.node == after.node):
            return
        if _no_execute_taints(self._nodes.get(("", after.node))):
            self.queue.add(after.meta.key)

    async def reconcile(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None or not pod.active:
            self._scheduled.discard(key)
            return None
        due = eviction_time(pod, _no_execute_taints(self._nodes.get(("", pod.node))))
        if due is None:
            if key in self._scheduled:
                self._scheduled.discard(key)
                self._record(pod, f"Cancelling deletion of Pod {key[0]}/{key[1]}")
            return None
        left = due - time.time()
        if left > 0:
            self._scheduled.add(key)
            return left
        self._scheduled.discard(key)
        self._record(pod, f"Marking for deletion Pod {key[0]}/{key[1]}")
        await self.context.edit("pods", pod, _mark_disrupted, "status")
        await self.context.delete("pods", pod)
        return None

    def _record(self, pod: PodView, message: str) -> None:
        self.event(InvolvedObject("v1", "Pod", pod.meta), "TaintManagerEviction", message)


def _no_execute_taints(node: NodeView | None) -> tuple[TaintView, ...]:
    return tuple(taint for taint in node.taints if taint.effect == "NoExecute") if node is not None else ()


def _mark_disrupted(found: Json) -> Json:
    text = "Taint manager: deleting due to NoExecute taint"
    set_condition(found.setdefault("status", {}), condition("DisruptionTarget", True, "DeletionByTaintManager", text))
    return found
