"""What the API really has, read change by change from its store: nobody's cache, and none of our own decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from embedded_kube.storage.store import Change, Json, Store
from tests.worlds.gangs import GANG

ENDED = ("Succeeded", "Failed")
GPU = "nvidia.com/gpu"


@dataclass(slots=True)
class Seen:
    """A pod as it is."""

    raw: Json
    uid: str
    namespace: str
    name: str
    gang: str
    scheduler: str
    node: str
    phase: str
    deleting: bool
    devices: tuple[int, ...]
    gpus: int
    milli: int
    device_map: str
    bound_at: float = 0.0
    attempt: int = 0
    nominated: str = ""
    stopped: bool = False
    """Its kubelet has ended its containers."""

    @property
    def place(self) -> str:
        """The node that it is on, or that another scheduler is making room for it on."""
        return self.node or self.nominated

    @property
    def live(self) -> bool:
        """Whether it has, or may soon have, containers."""
        return self.phase not in ENDED

    @property
    def works(self) -> bool:
        """Whether it counts towards its gang's minimum."""
        return self.phase == "Succeeded" or (bool(self.node) and self.live and not self.deleting)


@dataclass(slots=True)
class Machine:
    """A node as it is, and the most GPUs that it has had lately."""

    raw: Json
    name: str
    ready: bool
    gpus: int
    capacity: int
    assigns: bool
    flawed: bool = False
    """It has been away, not ready, or without one of its GPUs."""
    history: list[tuple[float, int]] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """How many GPUs it has had since when, whether they worked or not."""


@dataclass(frozen=True, slots=True)
class Reign:
    """The Lease as it is: who leads, how often it was taken, what will be carried out, and when it was last taken."""

    holder: str = ""
    epoch: int = 0
    committed: Mapping[str, str] = field(default_factory=dict)
    since: float = 0.0


class Truth:
    """Pods by uid, nodes by name and the leader Lease, always as of the latest write."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.pods: dict[str, Seen] = {}
        self.past: dict[str, Seen] = {}
        """Pods that are gone, as they were last."""
        self.nodes: dict[str, Machine] = {}
        self.reign = Reign()
        self.on_swap: list[Callable[[Reign, Reign], None]] = []
        """StatusMessage of every change of the Lease: as it was, as it is."""
        self.first_commits: dict[str, float] = {}
        """When each leader has first committed something: by then it had seen everything."""
        self.on_pod: list[Callable[[Seen | None, Seen | None], None]] = []
        """StatusMessage of every change of a pod: as it was, as it is."""
        self.on_commit: list[Callable[[dict[str, str]], None]] = []
        """StatusMessage of what is newly committed."""
        self.clock = clock
        self._store = store
        self._revision = 0
        self._queues = {name: store.subscribe(name) for name in ("pods", "nodes", "leases.coordination.k8s.io")}

    @property
    def behind(self) -> bool:
        """Whether something was written since it last took everything in."""
        return self._store.revision != self._revision

    def catch_up(self) -> None:
        """Takes in what was written since."""
        if not self.behind:
            return
        self._revision = self._store.revision
        changes: list[tuple[int, str, Change]] = []
        for resource, queue in self._queues.items():
            while queue.pending:
                change = queue.pending.popleft()
                changes.append((change.entry.revision, resource, change))
        changes.sort(key=lambda found: found[0])
        for _, resource, change in changes:
            if resource == "pods":
                self._take_pod(change)
            elif resource == "nodes":
                self._take_node(change)
            elif change.entry.name == "gpu-scheduler":
                self._take_lease(change)

    def _take_pod(self, change: Change) -> None:
        found = read_pod(change.entry.object())
        old = self.pods.get(found.uid)
        if change.kind == "DELETED":
            self.past[found.uid] = self.pods.pop(found.uid, found)
            now = None
        else:
            found.bound_at = old.bound_at if old is not None and old.place else self.clock() if found.place else 0.0
            self.pods[found.uid] = now = found
        for look in self.on_pod:
            look(old, now)

    def _take_node(self, change: Change) -> None:
        found = read_node(change.entry.object())
        old = self.nodes.get(found.name)
        # A node that comes back is the same place: old pods may still be there.
        found.history, found.sizes = (old.history, old.sizes) if old is not None else ([], [])
        gone = change.kind == "DELETED"
        shrunk = old is not None and (old.flawed or found.capacity < old.capacity)
        found.flawed = gone or not found.ready or found.gpus < found.capacity or shrunk
        if not found.history or found.history[-1][1] != found.gpus or gone:
            found.history.append((self.clock(), 0 if gone else found.gpus))
        found.sizes.append((self.clock(), 0 if gone else found.capacity))
        found.ready = found.ready and not gone
        self.nodes[found.name] = found

    def _take_lease(self, change: Change) -> None:
        lease = change.entry.object()
        notes = lease["metadata"].get("annotations") or {}
        text = notes.get("gpu-scheduler.io/committed", "")
        epoch = int(notes.get("gpu-scheduler.io/epoch", "0"))
        holder = lease.get("spec", {}).get("holderIdentity", "")
        since = self.reign.since if epoch == self.reign.epoch else self.clock()
        found = Reign(holder, epoch, msgspec.json.decode(text) if text else {}, since)
        before, self.reign = self.reign, Reign() if change.kind == "DELETED" else found
        for see in self.on_swap:
            see(before, self.reign)
        new = {name: uid for name, uid in self.committed.items() if before.committed.get(name) != uid}
        if new:
            for look in self.on_commit:
                look(new)
            self.first_commits.setdefault(holder, self.clock())

    @property
    def committed(self) -> Mapping[str, str]:
        """The names and uids of what will be carried out."""
        return self.reign.committed


def read_pod(raw: Json) -> Seen:
    """A pod from its JSON."""
    meta, spec = raw["metadata"], raw["spec"]
    notes = meta.get("annotations") or {}
    devices = notes.get("gpu-scheduler.io/devices", "")
    limits = [container.get("resources", {}).get("limits") or {} for container in spec["containers"]]
    return Seen(
        raw,
        meta["uid"],
        meta["namespace"],
        meta["name"],
        (meta.get("labels") or {}).get(GANG, ""),
        spec.get("schedulerName", ""),
        spec.get("nodeName", ""),
        raw.get("status", {}).get("phase", "Pending"),
        "deletionTimestamp" in meta,
        tuple(int(word) for word in devices.split(",")) if devices else (),
        sum(int(limit.get(GPU, 0)) for limit in limits),
        int(notes.get("gpu-scheduler.io/gpu-milli", 0)),
        notes.get("gpu-scheduling-map", ""),
        attempt=int(notes.get("gpu-scheduler.io/attempt", 0)),
        nominated=raw.get("status", {}).get("nominatedNodeName", ""),
    )


def read_node(raw: Json) -> Machine:
    """A node from its JSON."""
    status = raw.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return Machine(
        raw,
        raw["metadata"]["name"],
        conditions.get("Ready") == "True",
        int((status.get("allocatable") or {}).get(GPU, 0)),
        int((status.get("capacity") or {}).get(GPU, 0)),
        (raw["metadata"].get("labels") or {}).get("gpu-scheduler.io/assigns-devices") == "true",
    )


def find_most(history: Sequence[tuple[float, int]], since: float) -> int:
    """The most that there was at any time since then."""
    before = [count for at, count in history if at <= since]
    return max([*before[-1:], *(count for at, count in history if at > since)], default=0)
