"""NoExecute taints: pods that do not bear them leave, the others stay as long as they said."""

from __future__ import annotations

import time
from collections.abc import Iterable

from embedded_kube.controllers.machinery.conditions import condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, Shared
from embedded_kube.controllers.machinery.objects import Key, Node, Pod, Taint, Toleration, seconds
from embedded_kube.controllers.machinery.recorder import About
from embedded_kube.storage.store import Json


def bears(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration is about a taint."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def evict_at(pod: Pod, taints: Iterable[Taint]) -> float | None:
    """When a pod must leave because of its node's NoExecute taints: 0 for at once, None for never."""
    moments: list[float] = []
    for taint in taints:
        borne = [toleration for toleration in pod.tolerations if bears(toleration, taint)]
        if not borne:
            return 0.0
        since = max(seconds(taint.added), pod.meta.created)
        moments += [since + max(0, one.seconds) for one in borne if one.seconds is not None]
    return min(moments, default=None)


class TaintEviction(Controller[Key]):
    """Deletes pods that a taint drives from their node."""

    name = "taint-eviction-controller"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._nodes = self.informers.nodes
        self._pods = self.informers.pods
        self._scheduled: set[Key] = set()
        self.needs += [self._nodes, self._pods]
        self._nodes.handle(self._node_changed)
        self._pods.handle(self._pod_changed)

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        if after is not None and _driving(before) != _driving(after):
            for pod in self.informers.pods_of_node.get(after.meta.name):
                self.queue.add(pod.meta.key)

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        if after is None or not after.node or (before is not None and before.node == after.node):
            return
        if _driving(self._nodes.get(("", after.node))):
            self.queue.add(after.meta.key)

    async def reconcile(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None or not pod.active:
            self._scheduled.discard(key)
            return None
        moment = evict_at(pod, _driving(self._nodes.get(("", pod.node))))
        if moment is None:
            if key in self._scheduled:
                self._scheduled.discard(key)
                self._tell(pod, f"Cancelling deletion of Pod {key[0]}/{key[1]}")
            return None
        left = moment - time.time()
        if left > 0:
            self._scheduled.add(key)
            return left
        self._scheduled.discard(key)
        self._tell(pod, f"Marking for deletion Pod {key[0]}/{key[1]}")
        await self.shared.edit("pods", pod, _disrupted, "status")
        await self.shared.delete("pods", pod)
        return None

    def _tell(self, pod: Pod, message: str) -> None:
        self.normal(About("v1", "Pod", pod.meta), "TaintManagerEviction", message)


def _driving(node: Node | None) -> tuple[Taint, ...]:
    return tuple(taint for taint in node.taints if taint.effect == "NoExecute") if node is not None else ()


def _disrupted(found: Json) -> Json:
    text = "Taint manager: deleting due to NoExecute taint"
    set_condition(found.setdefault("status", {}), condition("DisruptionTarget", True, "DeletionByTaintManager", text))
    return found
