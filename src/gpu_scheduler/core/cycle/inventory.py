"""Inventory: what members, nodes and queues are doing, as values that a table or a page can show.

What only a dry run has decided is left out: it has not happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from gpu_scheduler.core.cluster.cluster import Usage
from gpu_scheduler.core.cycle.holders import GangName
from gpu_scheduler.core.cycle.report import Reporter
from gpu_scheduler.core.cycle.victims import lost_work_of
from gpu_scheduler.core.events import DeleteCause, Quarantined
from gpu_scheduler.core.lifecycle import GangRecord, Phase
from gpu_scheduler.core.model import GangKey, Node, Pod, PodPhase, Queue
from gpu_scheduler.core.queueing.quota import charge_of
from gpu_scheduler.core.state import State


@dataclass(frozen=True, slots=True)
class GangSummary:
    """A gang that is known, its pods and its queue, without what takes time to work out."""

    name: GangName
    pods: tuple[Pod, ...]
    queue: str

    @property
    def key(self) -> GangKey:
        """The gang's key."""
        return self.name.key


def gang_summaries(state: State) -> list[GangSummary]:
    """Every gang that is known."""
    return [
        GangSummary(GangName.of(state, key), tuple(record.members.values()), state.queue_of(record))
        for key, record in state.records.items()
    ]


class MemberState(Enum):
    """What a member is doing."""

    WAITING = "waiting"
    GATED = "gated"
    BINDING = "being bound"
    STARTING = "starting"
    RUNNING = "running"
    EVICTING = "to be deleted"
    DELETING = "being deleted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A member with its node and devices, as seen or as committed; `cause` is why it is to be deleted."""

    pod: Pod
    state: MemberState
    node: str
    devices: tuple[int, ...]
    cause: DeleteCause | None = None
    eviction_refused: bool = False


def member_reports(state: State, key: GangKey) -> list[MemberReport]:
    """The members of a gang, by role and index."""
    record = state.records.get(key)
    pods = record.members.values() if record is not None else ()
    return [_member(state, pod) for pod in sorted(pods, key=lambda pod: (pod.role, pod.index, pod.name))]


def _member(state: State, pod: Pod) -> MemberReport:
    node, devices = pod.node or "", pod.devices or ()
    usage = state.cluster.usage.get(pod.uid)
    if state.ledger.committed.get(pod.uid) and usage is not None:  # committed, not yet seen there
        node, devices = usage.node, usage.devices
    delete = state.ledger.deletes.get(pod.uid)
    committed = delete is not None and state.ledger.is_committed(delete.sequence)
    cause = delete.delete.cause if delete is not None and committed else None
    refused = cause is not None and pod.uid not in state.ledger.deleting
    return MemberReport(pod, _state_of(state, pod, cause), node, devices, cause, refused)


def _state_of(state: State, pod: Pod, cause: DeleteCause | None) -> MemberState:
    if pod.terminal:
        return MemberState.SUCCEEDED if pod.phase is PodPhase.SUCCEEDED else MemberState.FAILED
    if pod.deleting:
        return MemberState.DELETING
    if cause is not None:
        return MemberState.EVICTING
    if pod.node is not None:
        return MemberState.RUNNING if pod.phase is PodPhase.RUNNING else MemberState.STARTING
    if state.ledger.committed.get(pod.uid):
        return MemberState.BINDING
    return MemberState.GATED if pod.gates else MemberState.WAITING


class Hold(Enum):
    """How a GPU is taken."""

    USED = "used"
    BINDING = "binding"
    KEPT = "kept"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A pod, or a slot kept for a gang, that takes GPUs of a node; `gang` is None for a pod that is not ours.

    `until` is the end of a quarantine.
    """

    pod: Pod
    devices: tuple[int, ...]
    hold: Hold
    gang: GangName | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node, what takes its GPUs, and the gang that it is drained for."""

    node: Node
    uses: tuple[DeviceUse, ...]
    drained_for: GangName | None


def node_reports(state: State) -> list[NodeReport]:
    """Every node with what takes its GPUs."""
    kept = {uid: record for record in state.records.values() for uid in record.reserved}
    drained: dict[str, GangName] = {}
    for record in state.records.values():
        if record.gang is not None:  # as noted on the gang's object: what a dry run would drain is not decided
            drained |= dict.fromkeys(record.gang.notes.target, GangName.of(state, record.key))
    found = []
    for node in state.cluster.table.nodes:
        if node is not None:
            uses = tuple(use for usage in state.cluster.pods_on(node.name) if (use := _use_of(state, usage, kept)))
            found.append(NodeReport(node, uses, drained.get(node.name)))
    return found


def _use_of(state: State, usage: Usage, kept: Mapping[str, GangRecord]) -> DeviceUse | None:
    """What a usage is; None when it takes no GPU, or when only a dry run put it there."""
    pod, uid = usage.pod, usage.pod.uid
    if not pod.shape.wants_devices or state.ledger.committed.get(uid) is False:
        return None
    record = kept.get(uid)
    if record is not None:
        held = DeviceUse(pod, usage.devices, Hold.KEPT, GangName.of(state, record.key))
        return held if _keeps_slots(state, record) else None
    hold = Hold.QUARANTINED if uid in state.quarantined else Hold.BINDING if pod.node is None else Hold.USED
    gang = GangName(pod.gang) if pod.ours and pod.gang is not None else None
    return DeviceUse(pod, usage.devices, hold, gang, state.quarantined.get(uid))


def _keeps_slots(state: State, record: GangRecord) -> bool:
    """Whether the slots of a gang are kept by more than a dry run: held, or noted on its object."""
    if record.key in state.broken:
        return True
    notes = record.gang.notes if record.gang is not None else None
    return notes is not None and (bool(notes.nomination) or notes.admitted_at is not None)


def quarantines(state: State) -> list[Quarantined]:
    """The pods that vanished and whose devices stay unused, with their nodes and devices."""
    found = []
    for uid, until in state.quarantined.items():
        usage = state.cluster.usage.get(uid)
        if usage is not None:
            pod = replace(usage.pod, node=usage.node, devices=usage.devices)
            found.append(Quarantined(pod, until, state.quota.queue_of_pod(uid)))
    return found


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue with everything below it: what it uses, GPUs in milli, and how many gangs are in each phase.

    `level` is 0 at the top. `borrowed` is the use above the quota, and `reclaimable` what other queues could reclaim of
    it. `lent` is the unused quota that other queues use.
    """

    name: str
    queue: Queue | None
    used: Mapping[str, int]
    phases: Mapping[Phase, int]
    level: int = 0
    borrowed: Mapping[str, int] = field(default_factory=dict)
    lent: Mapping[str, int] = field(default_factory=dict)
    reclaimable: Mapping[str, int] = field(default_factory=dict)


def queue_reports(state: State, reporter: Reporter, hidden: str = "") -> list[QueueReport]:
    """Every queue that exists or that a gang names, each below its parent. Gangs of the namespace `hidden` are not
    counted."""
    quota = state.quota
    phases: dict[str, Counter[Phase]] = {name: Counter() for name in quota.queues}
    unreal: dict[str, Counter[str]] = {}
    for record in state.records.values():
        path = quota.path(state.queue_of(record))
        phase = reporter.phase_of(record) if record.key.namespace != hidden else None
        for name in path:
            counts = phases.setdefault(name, Counter())
            counts.update(() if phase is None else (phase,))
        for uid in _on_paper(state, record) if reporter.dry_run else ():
            for name in path:
                unreal.setdefault(name, Counter()).update(dict(charge_of(state.cluster.usage[uid].pod.shape)))
    nothing: Counter[str] = Counter()
    used = {name: {r: n - unreal.get(name, nothing)[r] for r, n in quota.used(name).items()} for name in phases}
    loans = _Loans(state, used)
    return [
        QueueReport(
            name,
            quota.queue(name),
            used[name],
            phases[name],
            level,
            loans.amounts(name, loans.borrowed),
            loans.amounts(name, loans.lent),
            loans.amounts(name, loans.reclaimable),
        )
        for name, level in loans.in_order()
    ]


class _Loans:
    """The tree of queues: what each one borrows and lends, given what it uses."""

    def __init__(self, state: State, used: Mapping[str, Mapping[str, int]]) -> None:
        self._quota, self._used = state.quota, used
        self._parents = {name: self._parent_of(name) for name in used}
        self._children: dict[str | None, list[str]] = {}
        self._sums: dict[tuple[str | None, str], int] = {}
        for name in sorted(used):
            self._children.setdefault(self._parents[name], []).append(name)

    def _parent_of(self, name: str) -> str | None:
        """The parent of a queue; None at the top, where a missing parent and a cycle leave it."""
        queue, path = self._quota.queue(name), self._quota.path(name)
        top = self._quota.queue(path[-1])
        in_cycle = top is not None and top.parent == name
        return queue.parent if queue is not None and len(path) > 1 and not in_cycle else None

    def in_order(self, parent: str | None = None, level: int = 0) -> Iterator[tuple[str, int]]:
        """Every queue with its level, parents before their children."""
        for name in self._children.get(parent, ()):
            yield name, level
            yield from self.in_order(name, level + 1)

    def amounts(self, name: str, count: Callable[[str, str], int]) -> dict[str, int]:
        """An amount of every resource that a queue uses or has a quota of, without those that are 0."""
        queue = self._quota.queue(name)
        resources = dict.fromkeys((*(queue.quota if queue is not None else ()), *self._used[name]))
        return {resource: amount for resource in resources if (amount := count(name, resource))}

    def borrowed(self, name: str, resource: str) -> int:
        """What a queue uses above its quota."""
        return max(0, self._used[name].get(resource, 0) - self._quota.quota_of(name, resource))

    def lent(self, name: str, resource: str) -> int:
        """What siblings borrow of the unused quota of a queue, and others of that of its parent."""
        queue, parent = self._quota.queue(name), self._parents[name]
        unused = self._quota.quota_of(name, resource) - self._used[name].get(resource, 0)
        if queue is None or not queue.lending or unused <= 0:
            return 0
        above = self.lent(parent, resource) if parent is not None else 0
        return min(unused, self._borrowed_below(parent, resource) + above)

    def _borrowed_below(self, parent: str | None, resource: str) -> int:
        """What the children of a queue borrow together."""
        if (parent, resource) not in self._sums:
            self._sums[parent, resource] = sum(self.borrowed(name, resource) for name in self._children[parent])
        return self._sums[parent, resource]

    def reclaimable(self, name: str, resource: str) -> int:
        """What others could reclaim of what a queue borrows: of a queue with children, what they borrow."""
        queue, borrowed = self._quota.queue(name), self.borrowed(name, resource)
        if not borrowed or (queue is not None and not queue.reclaimable):
            return 0
        children = self._children.get(name)
        return min(borrowed, sum(self.reclaimable(child, resource) for child in children)) if children else borrowed


def _on_paper(state: State, record: GangRecord) -> Iterator[str]:
    """What only a dry run has placed: members, and slots that nothing but the dry run keeps."""
    yield from (uid for uid in record.members if state.ledger.committed.get(uid) is False)
    if not _keeps_slots(state, record):
        yield from record.reserved


@dataclass(frozen=True, slots=True)
class EvictionReport:
    """What the eviction of a pod costs: the queue that it is charged to, and the work that is lost."""

    queue: str
    gpu_seconds: float


def report_eviction(state: State, uid: str, now: float) -> EvictionReport:
    """The cost of an eviction: GPU-seconds since the start of the pod, or since the last checkpoint of its gang."""
    pod, queue = state.pods.get(uid), state.quota.queue_of_pod(uid)
    record = state.records.get(state.key_of(pod)) if pod is not None else None
    return EvictionReport(queue, lost_work_of(record, (pod,), now) if record is not None and pod is not None else 0.0)


def pod_differences(state: State, versions: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Compares the API's pods, by uid with name and version, with the engine's pods and what it counts on nodes."""
    for uid, (name, version) in versions.items():
        pod = state.pods.get(uid)
        if pod is None:
            yield f"pod {name} is not known"
        elif pod.version != version:
            yield f"pod {name} is known at version {pod.version}, not {version}"
        elif pod.live and pod.node in state.cluster.table.slots and uid not in state.cluster.usage:
            yield f"pod {name} runs on {pod.node} and is not counted there"
    kept = {uid for record in state.records.values() for uid in record.reserved}
    for uid, usage in state.cluster.usage.items():
        counted: Pod | None = state.pods.get(uid)
        explained = uid in state.ledger.binds or uid in state.quarantined or uid in kept
        if explained or (counted is not None and (counted.live or counted.nominated_node)):
            continue
        yield f"pod {usage.pod.namespace}/{usage.pod.name} is counted on {usage.node} and does not run there"
