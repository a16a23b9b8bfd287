"""Pod garbage collector: deletes pods on missing nodes, surplus terminated pods, and old Events."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from embedded_kube.controllers.machinery.conditions import condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, ControllerContext
from embedded_kube.controllers.machinery.objects import Key, NodeView, PodView
from embedded_kube.controllers.node_lifecycle import LEASE_NAMESPACE
from embedded_kube.controllers.workloads.pod_control import slow_start_batch
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def pick_terminated(pods: Iterable[PodView], keep: int) -> list[PodView]:
    """Returns the oldest terminated pods beyond the number to keep."""
    ended = [pod for pod in pods if pod.ended and not pod.meta.deleting]
    surplus = max(0, len(ended) - keep)
    return sorted(ended, key=lambda pod: (pod.meta.created, pod.meta.key))[:surplus] if surplus else []


class PodGarbageCollector(Controller[Key]):
    """Deletes orphaned and surplus terminated pods, and expired Events.

    A key ("", name) stands for the pods of a node; ("", "") for deleted pods without a node.
    """

    name = "pod-garbage-collector"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._nodes = self.informers.nodes
        self._pods = self.informers.pods
        self._unscheduled = self._pods.index(_unscheduled_deleting)
        self._missing_since: dict[str, float] = {}
        self._ended: dict[Key, PodView] = {}
        self.cache_syncs += [self._nodes, self._pods, self.informers.events, self.informers.leases]
        self._nodes.add_event_handler(self._node_changed)
        self._pods.add_event_handler(self._pod_changed)

    @property
    def period(self) -> float:
        return self.settings.cleanup_period

    def _node_changed(self, before: NodeView | None, after: NodeView | None) -> None:
        if after is None and before is not None:
            self.queue.add(before.meta.key)
        elif after is not None:
            self._missing_since.pop(after.meta.name, None)
            if any(taint.key == OUT_OF_SERVICE for taint in after.taints):
                self.queue.add(after.meta.key)

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        if after is None:
            if before is not None:
                self._ended.pop(before.meta.key, None)
            return
        if after.ended:
            self._ended[after.meta.key] = after
        else:
            self._ended.pop(after.meta.key, None)
        if after.node and self._nodes.get(("", after.node)) is None:
            self.queue.add(("", after.node))
        elif after.meta.deleting and not after.node:
            self.queue.add(("", ""))

    async def reconcile(self, key: Key) -> float | None:
        name = key[1]
        if not name:
            # A pod without a node has no kubelet that would remove it.
            await self._fail_all(self._unscheduled.get(""), "PodGC: pod has no node")
            return None
        node = self._nodes.get(key)
        pods = self.informers.pods_of_node.get(name)
        if node is not None:
            if node.ready != "True" and any(taint.key == OUT_OF_SERVICE for taint in node.taints):
                deleting = [pod for pod in pods if pod.meta.deleting]
                await self._fail_all(deleting, "PodGC: node is out of service")
            return None
        if not pods:
            self._missing_since.pop(name, None)
            await self._delete_lease(name)
            return None
        since = self._missing_since.setdefault(name, time.monotonic())
        left = since + self.settings.orphan_grace - time.monotonic()
        if left > 0:
            return left
        try:
            await self.context.client.get("nodes", "", name)
        except StatusError as error:
            if error.code != 404:
                raise
            await self._fail_all(pods, "PodGC: node no longer exists")
            await self._delete_lease(name)
        return None

    async def tick(self) -> None:
        for pod in pick_terminated(self._ended.values(), self.settings.terminated_pods):
            await self.context.delete("pods", pod, grace=0)
        limit = time.time() - self.settings.event_ttl
        old = [event for event in self.informers.events if event.last < limit]
        await slow_start_batch([partial(self.context.delete, "events", event) for event in old])

    async def _delete_lease(self, name: str) -> None:
        lease = self.informers.leases.get((LEASE_NAMESPACE, name))
        if lease is not None and not lease.meta.owners:
            await self.context.delete("leases.coordination.k8s.io", lease)

    async def _fail_all(self, pods: Iterable[PodView], why: str) -> None:
        await slow_start_batch([partial(self._fail, pod, why) for pod in pods])

    async def _fail(self, pod: PodView, why: str) -> None:
        """Sets phase Failed, which its controller counts, and deletes the pod with grace period 0."""
        try:
            if not pod.ended:
                await self.context.edit("pods", pod, partial(_failed, why=why), "status")
            await self.context.delete("pods", pod, grace=0)
        except StatusError as error:
            if error.code not in (404, 409):
                raise


def _unscheduled_deleting(pod: PodView) -> tuple[str, ...]:
    return ("",) if pod.meta.deleting and not pod.node and not pod.ended else ()


def _failed(found: Json, why: str) -> Json:
    status = found.setdefault("status", {})
    status["phase"] = "Failed"
    set_condition(status, condition("DisruptionTarget", True, "DeletionByPodGC", why))
    return found
