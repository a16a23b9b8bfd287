"""Mirror of the API's objects, read change by change from its store: no cache, and none of the decoding under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from embedded_kube.storage.store import Store, StoreChange
from gpu_scheduler.k8s.objects import Json
from tests.worlds.gangs import GANG

ENDED = ("Succeeded", "Failed")
GPU = "nvidia.com/gpu"
QUEUES = "queues.gpu-scheduler.io"
MANY = 1 << 30
"""The limit of a queue that has none."""


@dataclass(slots=True)
class PodState:
    """A pod as it is in the API."""

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
    charged: str = ""
    """The queue that its bind recorded."""
    stopped: bool = False
    """The kubelet has stopped its containers."""

    @property
    def claimed_node(self) -> str:
        """The node that it is bound to, or that another scheduler has nominated for it."""
        return self.node or self.nominated

    @property
    def charge(self) -> int:
        """What it is charged to its queue, in thousandths of a GPU."""
        return self.milli or 1000 * (self.gpus or len(self.devices))

    @property
    def live(self) -> bool:
        """Whether it has containers, or may have some later."""
        return self.phase not in ENDED

    @property
    def counts(self) -> bool:
        """Whether it counts towards the minimum of its gang."""
        return self.phase == "Succeeded" or (bool(self.node) and self.live and not self.deleting)


@dataclass(slots=True)
class NodeState:
    """A node as it is in the API, with the history of its GPU counts."""

    raw: Json
    name: str
    ready: bool
    gpus: int
    capacity: int
    assigns: bool
    was_degraded: bool = False
    """It has been absent, not ready, or short of one of its GPUs at some time."""
    history: list[tuple[float, int]] = field(default_factory=list)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """Its GPU capacity over time, broken devices included."""


@dataclass(slots=True)
class QueueState:
    """A queue as it is in the API: how many GPUs it may use, has as its quota, and its parent, over time."""

    raw: Json
    name: str
    limits: list[tuple[float, int]] = field(default_factory=list)
    """A closed queue may use none."""
    quotas: list[tuple[float, int]] = field(default_factory=list)
    parents: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The leader Lease: its holder, its epoch, what is committed in it, and when this epoch began."""

    holder: str = ""
    epoch: int = 0
    committed: Mapping[str, str] = field(default_factory=dict)
    since: float = 0.0


class ApiMirror:
    """Pods by uid, nodes by name and the leader Lease, as of the latest write."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.pods: dict[str, PodState] = {}
        self.past: dict[str, PodState] = {}
        """Deleted pods, in their last state."""
        self.nodes: dict[str, NodeState] = {}
        self.queues: dict[str, QueueState] = {}
        self.lease = LeaseState()
        self.lease_handlers: list[Callable[[LeaseState, LeaseState], None]] = []
        """Called after every change of the Lease, with the old and the new state."""
        self.first_commits: dict[str, float] = {}
        """When each leader committed for the first time; by then its caches had synced."""
        self.pod_handlers: list[Callable[[PodState | None, PodState | None], None]] = []
        """Called after every change of a pod, with the old and the new state."""
        self.commit_handlers: list[Callable[[dict[str, str]], None]] = []
        """Called with what is newly committed."""
        self.clock = clock
        self._store = store
        self._revision = 0
        self._changes = {
            name: store.subscribe(name) for name in ("pods", "nodes", QUEUES, "leases.coordination.k8s.io")
        }

    @property
    def behind(self) -> bool:
        """Whether the store has changes that the mirror has not read."""
        return self._store.revision != self._revision

    def catch_up(self) -> None:
        """Reads the changes since the last call, and calls the handlers."""
        if not self.behind:
            return
        self._revision = self._store.revision
        changes: list[tuple[int, str, StoreChange]] = []
        for resource, subscription in self._changes.items():
            while subscription.pending:
                change = subscription.pending.popleft()
                changes.append((change.entry.revision, resource, change))
        changes.sort(key=lambda found: found[0])
        for _, resource, change in changes:
            if resource == "pods":
                self._take_pod(change)
            elif resource == "nodes":
                self._take_node(change)
            elif resource == QUEUES:
                self._take_queue(change)
            elif change.entry.name == "gpu-scheduler":
                self._take_lease(change)

    def _take_pod(self, change: StoreChange) -> None:
        found = read_pod(change.entry.object())
        old = self.pods.get(found.uid)
        if change.kind == "DELETED":
            self.past[found.uid] = self.pods.pop(found.uid, found)
            now = None
        else:
            found.bound_at = (
                old.bound_at if old is not None and old.claimed_node else self.clock() if found.claimed_node else 0.0
            )
            self.pods[found.uid] = now = found
        for on_change in self.pod_handlers:
            on_change(old, now)

    def _take_node(self, change: StoreChange) -> None:
        found = read_node(change.entry.object())
        old = self.nodes.get(found.name)
        # A node that comes back keeps its history: pods of its earlier life may still be there.
        found.history, found.sizes = (old.history, old.sizes) if old is not None else ([], [])
        gone = change.kind == "DELETED"
        shrunk = old is not None and (old.was_degraded or found.capacity < old.capacity)
        found.was_degraded = gone or not found.ready or found.gpus < found.capacity or shrunk
        if not found.history or found.history[-1][1] != found.gpus or gone:
            found.history.append((self.clock(), 0 if gone else found.gpus))
        found.sizes.append((self.clock(), 0 if gone else found.capacity))
        found.ready = found.ready and not gone
        self.nodes[found.name] = found

    def _take_queue(self, change: StoreChange) -> None:
        raw = change.entry.object()
        name, spec = raw["metadata"]["name"], raw.get("spec") or {}
        queue = self.queues.setdefault(name, QueueState(raw, name))
        queue.raw = raw
        quota, limit = (
            int((spec.get(field) or {}).get(GPU, absent)) for field, absent in (("quota", 0), ("limit", MANY))
        )
        if spec.get("borrowing") is False:
            limit = min(limit, quota)
        queue.limits.append((self.clock(), 0 if spec.get("closed") else limit))
        queue.quotas.append((self.clock(), quota))
        parent = str(spec.get("parent") or "")
        if not queue.parents or queue.parents[-1][1] != parent:
            queue.parents.append((self.clock(), parent))

    def path(self, queue: str) -> tuple[str, ...]:
        """A queue and its parents; a cycle ends where it begins again."""
        names = [queue]
        while queue in self.queues:
            queue = self.queues[queue].parents[-1][1]
            if queue not in self.queues or queue in names:
                break
            names.append(queue)
        return tuple(names)

    def moved_since(self, since: float) -> bool:
        """Whether a queue got another parent since then; its first one does not count."""
        return any(queue.parents[-1][0] > since for queue in self.queues.values() if len(queue.parents) > 1)

    def _take_lease(self, change: StoreChange) -> None:
        lease = change.entry.object()
        annotations = lease["metadata"].get("annotations") or {}
        text = annotations.get("gpu-scheduler.io/committed", "")
        epoch = int(annotations.get("gpu-scheduler.io/epoch", "0"))
        holder = lease.get("spec", {}).get("holderIdentity", "")
        since = self.lease.since if epoch == self.lease.epoch else self.clock()
        found = LeaseState(holder, epoch, msgspec.json.decode(text) if text else {}, since)
        before, self.lease = self.lease, LeaseState() if change.kind == "DELETED" else found
        for on_change in self.lease_handlers:
            on_change(before, self.lease)
        new = {name: uid for name, uid in self.committed.items() if before.committed.get(name) != uid}
        if new:
            for on_commit in self.commit_handlers:
                on_commit(new)
            self.first_commits.setdefault(holder, self.clock())

    @property
    def committed(self) -> Mapping[str, str]:
        """The names and uids of the committed Placements."""
        return self.lease.committed


def read_pod(raw: Json) -> PodState:
    """Decodes a pod."""
    meta, spec = raw["metadata"], raw["spec"]
    annotations = meta.get("annotations") or {}
    devices = annotations.get("gpu-scheduler.io/devices", "")
    limits = [container.get("resources", {}).get("limits") or {} for container in spec["containers"]]
    return PodState(
        raw,
        meta["uid"],
        meta["namespace"],
        meta["name"],
        (meta.get("labels") or {}).get(GANG, ""),
        spec.get("schedulerName", ""),
        spec.get("nodeName", ""),
        raw.get("status", {}).get("phase", "Pending"),
        "deletionTimestamp" in meta,
        tuple(int(number) for number in devices.split(",")) if devices else (),
        sum(int(limit.get(GPU, 0)) for limit in limits),
        int(annotations.get("gpu-scheduler.io/gpu-milli", 0)),
        annotations.get("gpu-scheduling-map", ""),
        attempt=int(annotations.get("gpu-scheduler.io/attempt", 0)),
        nominated=raw.get("status", {}).get("nominatedNodeName", ""),
        charged=annotations.get("gpu-scheduler.io/charged-queue", ""),
    )


def read_node(raw: Json) -> NodeState:
    """Decodes a node."""
    status = raw.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return NodeState(
        raw,
        raw["metadata"]["name"],
        conditions.get("Ready") == "True",
        int((status.get("allocatable") or {}).get(GPU, 0)),
        int((status.get("capacity") or {}).get(GPU, 0)),
        (raw["metadata"].get("labels") or {}).get("gpu-scheduler.io/assigns-devices") == "true",
    )


def most_since(history: Sequence[tuple[float, int]], since: float) -> int:
    """The highest value at any time since then."""
    return max(_values_since(history, since), default=0)


def least_since(history: Sequence[tuple[float, int]], since: float) -> int:
    """The lowest value at any time since then."""
    return min(_values_since(history, since), default=0)


def _values_since(history: Sequence[tuple[float, int]], since: float) -> list[int]:
    before = [count for at, count in history if at <= since]
    return [*before[-1:], *(count for at, count in history if at > since)]
