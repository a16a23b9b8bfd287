"""The nodes of a world, and what a cluster's controllers do about them: pods start, work, end, and die with nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from embedded_kube.storage.store import Json
from tests.worlds.gangs import Gang
from tests.worlds.server import ApiServer
from tests.worlds.truth import GPU, Machine, Seen, Truth

LOST_AFTER = 5.0
"""A silent node is called not ready after so many seconds."""

EVICT_AFTER = 15.0
"""The pods of a silent node are deleted after so many seconds; nobody there hears of it."""

LATER = 0.7
"""How much longer each member works than the one before it, in seconds."""

COLLECT_AFTER = 10.0
"""The pods of a node that was deleted are gone after so many seconds."""


class Nodes:
    """All kubelets and the node controller: a look at everything now and then."""

    def __init__(self, server: ApiServer, truth: Truth, gangs: Mapping[str, Gang]) -> None:
        self._server = server
        self._truth = truth
        self._gangs = gangs
        self.silent: dict[str, float] = {}
        """Nodes that do nothing, and since when."""
        self._missing: dict[str, float] = {}

    def add(self, name: str, gpus: int, assigns: bool) -> None:
        """A node that works."""
        labels = {"kubernetes.io/hostname": name}
        if assigns:
            labels["gpu-scheduler.io/assigns-devices"] = "true"
        room = {"cpu": "64", "memory": "256Gi", "pods": "64", GPU: str(gpus)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        self._server.create("nodes", {"metadata": {"name": name, "labels": labels}, "status": status})

    def look(self, now: float, passed: float) -> None:
        """Does what is due. `passed` is the time since the last look."""
        for name, since in self.silent.items():
            if now - since > LOST_AFTER:
                self.say_ready(name, False)
        working: dict[str, int] = {}
        for pod in list(self._truth.pods.values()):
            if pod.node:
                self._attend(pod, now)
            if pod.phase == "Succeeded" or (pod.phase == "Running" and not pod.deleting and self._answers(pod.node)):
                working[pod.gang] = working.get(pod.gang, 0) + 1
        for label, count in working.items():
            gang = self._gangs.get(label)
            if gang is None:
                continue
            gang.whole = gang.whole or count >= gang.minimum
            # A job gets on only while enough of it runs: half a gang would wait for ever. One that may shrink goes on
            # with fewer, once all have met.
            if count >= (1 if gang.on_lost == "shrink" and gang.whole else gang.minimum):
                gang.worked += passed

    def say_ready(self, name: str, ready: bool) -> None:
        """Sets a node's condition."""
        node = self._truth.nodes.get(name)
        if node is None or node.ready == ready:
            return

        def change(found: Json) -> None:
            found["status"]["conditions"] = [{"type": "Ready", "status": "True" if ready else "Unknown", "reason": "-"}]

        self._edit("nodes", node.raw, change, "status")

    def set_gpus(self, name: str, healthy: int) -> None:
        """The first devices of a node break, or are whole again."""
        node = self._truth.nodes.get(name)
        if node is None:
            return
        healthy = min(healthy, node.capacity)
        broken = ",".join(str(index) for index in range(node.capacity - healthy))

        def mark(found: Json) -> None:
            found["metadata"].setdefault("annotations", {})["gpu-scheduler.io/unhealthy-devices"] = broken

        def count(found: Json) -> None:
            found["status"]["allocatable"][GPU] = str(healthy)

        self._edit("nodes", node.raw, mark)
        self._edit("nodes", node.raw, count, "status")

    def wake(self, name: str) -> None:
        """A silent node speaks again."""
        if self.silent.pop(name, None) is not None:
            self.say_ready(name, True)

    def restore(self, name: str, gpus: int) -> None:
        """A node is as it was in the beginning."""
        self.say_ready(name, True)
        self.resize(name, gpus)

    def resize(self, name: str, gpus: int) -> None:
        """A node has so many GPUs from now on, and all of them work."""
        node = self._truth.nodes.get(name)
        if node is not None and node.capacity != gpus:

            def count(found: Json) -> None:
                found["status"]["capacity"][GPU] = str(gpus)

            self._edit("nodes", node.raw, count, "status")
        self.set_gpus(name, gpus)

    # -- pods

    def _answers(self, name: str) -> bool:
        return name not in self.silent and self._server.store.get("nodes", "", name) is not None

    def _attend(self, pod: Seen, now: float) -> None:
        if not self._answers(pod.node):
            self._bury(pod, now)
            return
        self._missing.pop(pod.uid, None)
        if pod.deleting:
            pod.stopped = True
            self._delete(pod, grace=0)
        elif pod.phase == "Pending":
            self._start(pod)
        elif pod.phase == "Running":
            gang = self._gangs.get(pod.gang)
            # Members end one after the other, as those of a real job do.
            if gang is not None and gang.worked >= gang.duration + LATER * int(pod.name.rpartition("-")[2]):
                self._say(pod, "Succeeded")

    def _start(self, pod: Seen) -> None:
        """What a kubelet does with a pod that is new to it: it runs, unless there is no room."""
        node = self._truth.nodes[pod.node]
        held = sum(other.gpus for other in self._truth.pods.values() if self._holds(other, node))
        if pod.gpus and held + pod.gpus > node.gpus:
            self._say(pod, "Failed", f"OutOf{GPU}")
        else:
            self._say(pod, "Running")

    def _holds(self, pod: Seen, node: Machine) -> bool:
        return pod.node == node.name and pod.phase == "Running"

    def _bury(self, pod: Seen, now: float) -> None:
        """What the cluster does with pods whose node is silent or gone."""
        since = self._missing.setdefault(pod.uid, now)
        exists = self._server.store.get("nodes", "", pod.node) is not None
        if not exists and now - since > COLLECT_AFTER:
            self._delete(pod, grace=0)
        elif exists and now - since > EVICT_AFTER and not pod.deleting:
            self._delete(pod, grace=None)

    def _say(self, pod: Seen, phase: str, reason: str = "") -> None:
        def change(found: Json) -> None:
            found["status"]["phase"] = phase
            if reason:
                found["status"]["reason"] = reason

        self._edit("pods", pod.raw, change, "status")

    def _edit(self, resource: str, found: Json, change: Callable[[Json], object], subresource: str = "") -> None:
        self._server.attempt(self._server.edit, resource, found, change, subresource)
        self._truth.catch_up()

    def _delete(self, pod: Seen, grace: int | None) -> None:
        self._server.attempt(self._server.delete, "pods", pod.raw, grace)
