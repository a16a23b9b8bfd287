"""The nodes of a world: kubelets, the node controller and pod garbage collection."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import GPU, ApiMirror, NodeState, PodState
from tests.worlds.gangs import Gang
from tests.worlds.server import ApiServer

LOST_AFTER = 5.0
"""A node that does not respond becomes not ready after this many seconds."""

EVICT_AFTER = 15.0
"""The pods of a node that does not respond are deleted after this many seconds; their kubelet does not see it."""

MEMBER_STAGGER = 0.7
"""How much longer each member runs than the one before it, in seconds."""

COLLECT_AFTER = 10.0
"""The pods of a deleted node are removed after this many seconds."""


class Nodes:
    """All kubelets and the node controller, advanced by `tick`."""

    def __init__(self, server: ApiServer, mirror: ApiMirror, gangs: Mapping[str, Gang]) -> None:
        self._server = server
        self._mirror = mirror
        self._gangs = gangs
        self.silent: dict[str, float] = {}
        """Nodes that do not respond, and since when."""
        self._missing: dict[str, float] = {}

    def add(self, name: str, gpus: int, assigns: bool) -> None:
        """Adds a ready node."""
        labels = {"kubernetes.io/hostname": name}
        if assigns:
            labels["gpu-scheduler.io/assigns-devices"] = "true"
        resources = {"cpu": "64", "memory": "256Gi", "pods": "64", GPU: str(gpus)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        self._server.create("nodes", {"metadata": {"name": name, "labels": labels}, "status": status})

    def tick(self, now: float, passed: float) -> None:
        """Does what is due. `passed` is the time since the last tick."""
        for name, since in self.silent.items():
            if now - since > LOST_AFTER:
                self.set_ready(name, False)
        running: dict[str, int] = {}
        for pod in list(self._mirror.pods.values()):
            if pod.node:
                self._run_pod(pod, now)
            if pod.phase == "Succeeded" or (
                pod.phase == "Running" and not pod.deleting and self._is_responding(pod.node)
            ):
                running[pod.gang] = running.get(pod.gang, 0) + 1
        for label, count in running.items():
            gang = self._gangs.get(label)
            if gang is None:
                continue
            gang.minimum_reached = gang.minimum_reached or count >= gang.minimum
            # A job makes progress only while its minimum runs. A gang that may shrink goes on with fewer once its
            # minimum has run.
            if count >= (1 if gang.on_lost == "shrink" and gang.minimum_reached else gang.minimum):
                gang.progress += passed

    def set_ready(self, name: str, ready: bool) -> None:
        """Sets the Ready condition of a node."""
        node = self._mirror.nodes.get(name)
        if node is None or node.ready == ready:
            return

        def change(found: Json) -> None:
            found["status"]["conditions"] = [{"type": "Ready", "status": "True" if ready else "Unknown", "reason": "-"}]

        self._edit("nodes", node.raw, change, "status")

    def set_gpus(self, name: str, healthy: int) -> None:
        """Sets how many devices of a node are healthy; the first ones break first."""
        node = self._mirror.nodes.get(name)
        if node is None:
            return
        healthy = min(healthy, node.capacity)
        broken = ",".join(str(index) for index in range(node.capacity - healthy))

        def set_annotation(found: Json) -> None:
            found["metadata"].setdefault("annotations", {})["gpu-scheduler.io/unhealthy-devices"] = broken

        def count(found: Json) -> None:
            found["status"]["allocatable"][GPU] = str(healthy)

        self._edit("nodes", node.raw, set_annotation)
        self._edit("nodes", node.raw, count, "status")

    def wake(self, name: str) -> None:
        """Lets a node respond again."""
        if self.silent.pop(name, None) is not None:
            self.set_ready(name, True)

    def restore(self, name: str, gpus: int) -> None:
        """Undoes every fault of a node."""
        self.set_ready(name, True)
        self.resize(name, gpus)

    def resize(self, name: str, gpus: int) -> None:
        """Sets the number of GPUs of a node, all of them healthy."""
        node = self._mirror.nodes.get(name)
        if node is not None and node.capacity != gpus:

            def count(found: Json) -> None:
                found["status"]["capacity"][GPU] = str(gpus)

            self._edit("nodes", node.raw, count, "status")
        self.set_gpus(name, gpus)

    # -- pods

    def _is_responding(self, name: str) -> bool:
        return name not in self.silent and self._server.store.get("nodes", "", name) is not None

    def _run_pod(self, pod: PodState, now: float) -> None:
        if not self._is_responding(pod.node):
            self._collect(pod, now)
            return
        self._missing.pop(pod.uid, None)
        if pod.deleting:
            pod.stopped = True
            self._delete(pod, grace=0)
        elif pod.phase == "Pending":
            self._start(pod)
        elif pod.phase == "Running":
            gang = self._gangs.get(pod.gang)
            # Members finish one after the other, as those of a real job do.
            if gang is not None and gang.progress >= gang.duration + MEMBER_STAGGER * int(pod.name.rpartition("-")[2]):
                self._set_phase(pod, "Succeeded")

    def _start(self, pod: PodState) -> None:
        """Starts a pod as a kubelet does, or rejects it if the node lacks GPUs."""
        node = self._mirror.nodes[pod.node]
        held = sum(other.gpus for other in self._mirror.pods.values() if self._holds(other, node))
        if pod.gpus and held + pod.gpus > node.gpus:
            self._set_phase(pod, "Failed", f"OutOf{GPU}")
        else:
            self._set_phase(pod, "Running")

    def _holds(self, pod: PodState, node: NodeState) -> bool:
        return pod.node == node.name and pod.phase == "Running"

    def _collect(self, pod: PodState, now: float) -> None:
        """Deletes pods whose node does not respond or does not exist."""
        since = self._missing.setdefault(pod.uid, now)
        exists = self._server.store.get("nodes", "", pod.node) is not None
        if not exists and now - since > COLLECT_AFTER:
            self._delete(pod, grace=0)
        elif exists and now - since > EVICT_AFTER and not pod.deleting:
            self._delete(pod, grace=None)

    def _set_phase(self, pod: PodState, phase: str, reason: str = "") -> None:
        def change(found: Json) -> None:
            found["status"]["phase"] = phase
            if phase == "Running":
                found["status"]["startTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time()))
            if reason:
                found["status"]["reason"] = reason

        self._edit("pods", pod.raw, change, "status")

    def _edit(self, resource: str, found: Json, change: Callable[[Json], object], subresource: str = "") -> None:
        self._server.attempt(self._server.edit, resource, found, change, subresource)
        self._mirror.catch_up()

    def _delete(self, pod: PodState, grace: int | None) -> None:
        self._server.attempt(self._server.delete, "pods", pod.raw, grace)
