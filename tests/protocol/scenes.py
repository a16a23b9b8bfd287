"""The scenes of the crash points: a gang of eight starts, is restarted, or preempts another."""

from __future__ import annotations

from typing import Any

import msgspec

from gpu_scheduler.k8s.objects import Json
from tests.worlds.server import ApiServer, Reply, Request

SYSTEM = "gpu-scheduler-system"
HOME = "default"
GPU = "nvidia.com/gpu"
LEASES = "leases.coordination.k8s.io"
PLACEMENTS = "placements.gpu-scheduler.io"
NODES = ("n0", "n1")
CARDS = 4
"""GPUs of a node."""


def make_node(name: str) -> Json:
    """Builds a node whose GPUs we assign."""
    resources = {"cpu": "64", "memory": "256Gi", "pods": "64", GPU: str(CARDS)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": {"gpu-scheduler.io/assigns-devices": "true"}}, "status": status}


def make_pod(gang: str, number: int, size: int, gpus: int, **more: Any) -> Json:
    """Builds a member of a gang that needs all its members."""
    annotations = {"gpu-scheduler.io/gang": gang, "gpu-scheduler.io/gang-min": str(size), **more.pop("annotations", {})}
    meta = {"name": f"{gang}-{number}", "namespace": HOME, "annotations": annotations, **more.pop("metadata", {})}
    container = {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}
    return {"metadata": meta, "spec": {"schedulerName": "gpu-scheduler", "containers": [container], **more}}


def place_of(pod: Json) -> tuple[str, str]:
    """The node of a pod, and its recorded devices."""
    annotations = pod["metadata"].get("annotations") or {}
    return pod["spec"].get("nodeName", ""), annotations.get("gpu-scheduler.io/devices", "")


def _end(pod: Json) -> None:
    pod["status"]["phase"] = "Failed"


class Scene:
    """Eight GPUs, two gangs that each need all of them, and pods that our scheduler must not touch."""

    def __init__(self) -> None:
        self.breaches: list[str] = []
        self.sizes = {"train": 8, "zeal": 2}
        self._places: dict[str, tuple[str, str]] = {}
        self._untouchable: dict[str, str] = {}

    # -- what happens

    def begin(self, server: ApiServer) -> None:
        """Creates the initial objects."""
        for name in NODES:
            server.create("nodes", make_node(name))
        foreign = make_pod("stranger", 0, 1, 1, schedulerName="default-scheduler")
        # A gang does not extend beyond its namespace: this pod lacks its peers, and waits.
        abroad = make_pod("train", 8, 8, 1, metadata={"namespace": "kube-system"})
        for pod in (foreign, abroad):
            made = server.create("pods", pod)
            self._untouchable[made["metadata"]["uid"]] = made["metadata"]["name"]
        self.make_gangs(server)

    def make_gangs(self, server: ApiServer) -> None:
        """Creates the pods of the gangs."""
        for number in range(8):
            server.create("pods", make_pod("train", number, 8, 1))
        for number in range(2):
            server.create("pods", make_pod("zeal", number, 2, CARDS))

    def tick(self, server: ApiServer) -> None:
        """Acts as kubelets and controllers: deleted pods end, and are removed."""
        for pod in server.all("pods"):
            if "deletionTimestamp" in pod["metadata"]:
                server.edit("pods", pod, _end, "status")
                server.delete("pods", pod, grace=0)

    # -- checks

    def check(self, server: ApiServer, request: Request, reply: Reply) -> None:
        """Checks S1, S3, S4 and S5 after a request, and that binds and deletes were committed."""
        if request.method == "GET" or reply.status >= 300:
            return
        used: set[tuple[str, str]] = set()
        for pod in server.all("pods"):
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            node, devices = place = place_of(pod)
            if uid in self._untouchable and (node or devices or "deletionTimestamp" in pod["metadata"]):
                self.breaches.append(f"S4 or S5: {name} is touched")
            if not node:
                continue
            if self._places.setdefault(uid, place) != place:
                self.breaches.append(f"S3: {name} was at {self._places[uid]} and is at {place}")
            cards = devices.split(",")
            wanted = pod["spec"]["containers"][0]["resources"]["limits"][GPU]
            if len(set(cards)) != int(wanted) or not all(card.isdecimal() and int(card) < CARDS for card in cards):
                self.breaches.append(f'S3: {name} asked for {wanted} GPUs and has "{devices}"')
            for card in cards:
                if (node, card) in used:
                    self.breaches.append(f"S1: GPU {card} of {node} is used twice")
                used.add((node, card))
        self._check_committed(server, request)

    def _check_committed(self, server: ApiServer, request: Request) -> None:
        named = committed(server)
        parts = request.path.split("/")
        if parts[-1] in ("binding", "eviction") or (request.method == "DELETE" and parts[-2] == "pods"):
            specs = [p["spec"] for p in server.all(PLACEMENTS) if p["metadata"]["name"] in named]
            name = parts[-1] if request.method == "DELETE" else parts[-2]
            kind = "binds" if parts[-1] == "binding" else "deletes"
            if not any(entry["name"] == name for spec in specs for entry in spec.get(kind) or ()):
                self.breaches.append(f"{request.method} {request.path} was not committed")
        if request.method == "DELETE" and parts[-2] == "placements" and parts[-1] in named:
            self.breaches.append(f"Placement {parts[-1]} is deleted while the Lease names it")

    def find_problem(self, server: ApiServer) -> str:
        """What is wrong with the final state, or nothing."""
        bound = self.count_bound(server)
        for gang, size in self.sizes.items():
            if bound.get(gang, 0) not in (0, size):
                return f"S2: {gang} has {bound[gang]} of {size}"
        return self.find_wrong_end(bound) or self.find_left_over(server)

    def find_wrong_end(self, bound: dict[str, int]) -> str:
        """What is wrong with the outcome, where S2 holds."""
        return "" if bound in ({"train": 8}, {"zeal": 2}) else f"L1: no gang has all GPUs: {bound}"

    def find_left_over(self, server: ApiServer) -> str:
        """What is left of commits."""
        names = [found["metadata"]["name"] for found in server.all(PLACEMENTS)]
        return f"left: the Lease names {committed(server)}, there are {names}" if names or committed(server) else ""

    def count_bound(self, server: ApiServer) -> dict[str, int]:
        """How many members of each gang are bound and not being deleted."""
        counts: dict[str, int] = {}
        for pod in server.all("pods"):
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                gang = pod["metadata"]["annotations"]["gpu-scheduler.io/gang"]
                counts[gang] = counts.get(gang, 0) + 1
        return counts


class Start(Scene):
    """A gang of eight starts, and another gang that needs the same GPUs waits."""


class Restart(Scene):
    """A gang of eight has lost a member and is restarted as a whole: its pods are recreated."""

    def make_gangs(self, server: ApiServer) -> None:
        """Seven members run, the eighth is recreated already."""
        for number in range(8):
            self._make(server, number, bound=number > 0)

    def tick(self, server: ApiServer) -> None:
        """Also acts as a controller: recreates missing members."""
        super().tick(server)
        there = {pod["metadata"]["name"] for pod in server.all("pods")}
        for number in range(8):
            if f"train-{number}" not in there:
                self._make(server, number, bound=False)

    def _make(self, server: ApiServer, number: int, *, bound: bool) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "train", "controller": True}
        annotations = {"gpu-scheduler.io/on-member-lost": "restart"}
        if bound:
            annotations["gpu-scheduler.io/devices"] = str(number % CARDS)
        where = {"nodeName": NODES[number // CARDS]} if bound else {}
        pod = make_pod("train", number, 8, 1, annotations=annotations, metadata={"ownerReferences": [owner]}, **where)
        server.create("pods", pod)

    def find_wrong_end(self, bound: dict[str, int]) -> str:
        """All eight must run."""
        return "" if bound == {"train": 8} else f"L1: train has {bound}"


class Preempt(Scene):
    """A gang of eight preempts another of lower priority, which is not recreated."""

    def make_gangs(self, server: ApiServer) -> None:
        """The other gang runs at the start."""
        server.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 9})
        for number, node in enumerate(NODES):
            devices = {"gpu-scheduler.io/devices": ",".join(map(str, range(CARDS)))}
            server.create("pods", make_pod("zeal", number, 2, CARDS, annotations=devices, nodeName=node))
        for number in range(8):
            server.create("pods", make_pod("train", number, 8, 1, priorityClassName="high"))

    def find_wrong_end(self, bound: dict[str, int]) -> str:
        """The gang of high priority must run alone."""
        return "" if bound == {"train": 8} else f"L1: train should run alone, but there are {bound}"


SCENES: dict[str, type[Scene]] = {"start": Start, "restart": Restart, "preempt": Preempt}


def committed(server: ApiServer) -> dict[str, str]:
    """The Placements that the Lease names."""
    lease = server.get(LEASES, SYSTEM, "gpu-scheduler")
    text = ((lease or {}).get("metadata", {}).get("annotations") or {}).get("gpu-scheduler.io/committed", "")
    found: dict[str, str] = msgspec.json.decode(text) if text else {}
    return found
