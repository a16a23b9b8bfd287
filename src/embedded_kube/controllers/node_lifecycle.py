"""Node lifecycle controller: marks silent nodes Unknown, sets taints, and sets their pods to not ready."""

from __future__ import annotations

import time
from functools import partial

from embedded_kube.controllers.machinery.conditions import condition, find_condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, ControllerContext, object_key
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.objects import Key, NodeLeaseView, NodeView, PodView, TaintView
from embedded_kube.controllers.workloads.pod_control import slow_start_batch
from embedded_kube.errors import StatusError
from embedded_kube.registry.timestamps import timestamp
from gpu_scheduler.k8s.objects import Json

LEASE_NAMESPACE = "kube-node-lease"
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_PRESSURES = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
_MANAGED_TAINTS = {NOT_READY, UNREACHABLE, UNSCHEDULABLE, *_PRESSURES.values()}
_NODE_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


def wanted_taints(node: NodeView) -> set[tuple[str, str]]:
    """Returns the taints (key, effect) that follow from a node's conditions."""
    wanted: set[tuple[str, str]] = set()
    if node.ready != "True":
        key = UNREACHABLE if node.ready == "Unknown" else NOT_READY
        wanted.add((key, "NoSchedule"))
        # A node without a Ready condition has no pods to evict.
        if node.ready:
            wanted.add((key, "NoExecute"))
    if node.unschedulable:
        wanted.add((UNSCHEDULABLE, "NoSchedule"))
    wanted |= {(key, "NoSchedule") for name, key in _PRESSURES.items() if node.conditions.get(name) == "True"}
    return wanted


def plan_taints(node: NodeView) -> tuple[list[TaintView], list[TaintView]]:
    """Returns the taints to add to a node and to remove; other taints are left alone."""
    present = {(taint.key, taint.effect): taint for taint in node.taints}
    wanted = wanted_taints(node)
    add = [TaintView(key, effect) for key, effect in sorted(wanted - present.keys())]
    remove = [taint for name, taint in present.items() if taint.key in _MANAGED_TAINTS and name not in wanted]
    return add, remove


def mark_unknown(found: Json) -> Json | None:
    """Sets a node's conditions to Unknown; None if they are already."""
    status = found.setdefault("status", {})
    if find_condition(status, "Ready").get("status") == "Unknown":
        return None
    for kind in _NODE_CONDITIONS:
        if find_condition(status, kind):
            new = condition(kind, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        else:
            new = condition(kind, "Unknown", "NodeStatusNeverUpdated", "Kubelet never posted node status.")
        heartbeat = find_condition(status, kind).get("lastHeartbeatTime")
        set_condition(status, {**new, **({"lastHeartbeatTime": heartbeat} if heartbeat else {})})
    return found


class NodeLifecycleController(Controller[Key]):
    """Monitors the heartbeats of nodes."""

    name = "node-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._nodes = self.informers.nodes
        self._last_seen: dict[str, tuple[str, float]] = {}
        self.enqueue_on_change(self._nodes, object_key)
        self.cache_syncs += [self.informers.pods, self.informers.leases]
        self._nodes.add_event_handler(self._node_changed)
        self.informers.leases.add_event_handler(self._lease_changed)

    @property
    def period(self) -> float:
        return self.settings.node_check

    async def prepare(self) -> None:
        # After a restart every node gets its full grace period.
        now = time.monotonic()
        self._last_seen = {name: (sign, now) for name, (sign, _) in self._last_seen.items()}

    def _node_changed(self, _: NodeView | None, after: NodeView | None) -> None:
        if after is not None:
            self._on_heartbeat(after.meta.name, f"node {after.heartbeat} {after.meta.uid}")

    def _lease_changed(self, _: NodeLeaseView | None, after: NodeLeaseView | None) -> None:
        if after is not None and after.meta.namespace == LEASE_NAMESPACE:
            self._on_heartbeat(after.meta.name, f"lease {after.renewed}")

    def _on_heartbeat(self, name: str, sign: str) -> None:
        """Records when a heartbeat changed, by the controller's clock: a node's clock may be wrong."""
        kind = sign.split(" ", 1)[0]
        known = self._last_seen.get(f"{kind}/{name}")
        if known is None or known[0] != sign:
            self._last_seen[f"{kind}/{name}"] = (sign, time.monotonic())

    def _last_heartbeat(self, name: str) -> float:
        return max(self._last_seen.get(f"{kind}/{name}", ("", 0.0))[1] for kind in ("node", "lease"))

    async def tick(self) -> None:
        now = time.monotonic()
        for node in self._nodes:
            if node.ready != "Unknown" and now - self._last_heartbeat(node.meta.name) > self.settings.node_grace:
                await self.context.edit("nodes", node, mark_unknown, "status")
                about = InvolvedObject("v1", "Node", node.meta)
                self.event(about, "NodeNotReady", f"Node {node.meta.name} status is now: NodeNotReady")

    async def reconcile(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        if node is None:
            for kind in ("node", "lease"):
                self._last_seen.pop(f"{kind}/{key[1]}", None)
            return None
        add, remove = plan_taints(node)
        if add or remove:
            await self.context.edit("nodes", node, partial(_taint, add=add, remove=remove))
        if node.ready in ("False", "Unknown"):
            pods = [pod for pod in self.informers.pods_of_node.get(node.meta.name) if pod.ready]
            await slow_start_batch([partial(self._set_not_ready, pod) for pod in pods])
        return None

    async def _set_not_ready(self, pod: PodView) -> None:
        try:
            await self.context.edit("pods", pod, _not_ready, "status")
        except StatusError as error:
            if error.code != 404:
                raise
        self.warning(InvolvedObject("v1", "Pod", pod.meta), "NodeNotReady", "Node is not ready")


def _taint(found: Json, add: list[TaintView], remove: list[TaintView]) -> Json:
    spec = found.setdefault("spec", {})
    unwanted = {(taint.key, taint.effect) for taint in (*add, *remove)}
    taints = [one for one in spec.get("taints") or () if (one["key"], one.get("effect", "")) not in unwanted]
    taints += [{"key": taint.key, "effect": taint.effect, "timeAdded": timestamp()} for taint in add]
    spec.pop("taints", None)
    if taints:
        spec["taints"] = taints
    return found


def _not_ready(found: Json) -> Json | None:
    status = found.setdefault("status", {})
    ready = find_condition(status, "Ready")
    if ready.get("status") != "True":
        return None
    kept = {name: text for name, text in ready.items() if name not in ("lastTransitionTime", "lastProbeTime")}
    set_condition(status, {**kept, "status": "False"})
    return found
