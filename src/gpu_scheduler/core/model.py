"""The values of the core, all frozen: pods, shapes, nodes, gangs and queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from gpu_scheduler.core.selectors import NodeTerm, NodeTerms, PodMatch, Requirement

MILLI = 1000
"""Thousandths of one GPU, the unit of GPU shares."""

HOSTNAME = "kubernetes.io/hostname"
NODE_ALIAS = "gpu-node-name"
"""The node label by which a gpu-scheduling-map names nodes."""

NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""The taints that the node controller puts on nodes that are not ready."""
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


class TaintEffect(Enum):
    """The effect of a taint on pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: TaintEffect


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod. An empty key with `exists` tolerates all taints; no effect means every effect."""

    key: str = ""
    exists: bool = False
    value: str = ""
    effect: TaintEffect | None = None

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers the taint."""
        if self.effect is not None and self.effect is not taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.exists or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host port of a pod."""

    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A pod affinity or anti-affinity term: the selected pods, and the node label that defines the domains."""

    match: PodMatch
    key: str


@dataclass(frozen=True, slots=True)
class Spread:
    """A topology spread constraint: the selected pods are spread evenly over the domains of a node label."""

    match: PodMatch
    key: str
    max_skew: int = 1
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """One entry of a gpu-scheduling-map: a node and its GPUs, which the pods of one `group` share."""

    node: str
    devices: tuple[int, ...]
    group: str


@dataclass(frozen=True, slots=True)
class Preference:
    """A preferred affinity term: its weight is added for nodes, or for pods of a domain, that match."""

    weight: int
    node: NodeTerm | None = None
    pods: PodTerm | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod needs, without its identity: to a node, pods of one shape are interchangeable.

    `request` holds cpu in milli and everything else in units, GPUs under their resource name. `gpus` counts whole GPUs
    of `gpu_resource`; `gpu_milli` is a share of one GPU.
    """

    request: tuple[tuple[str, int], ...] = ()
    gpu_resource: str = ""
    gpus: int = 0
    gpu_milli: int = 0
    device_map: DeviceMap | None = None
    node_labels: tuple[Requirement, ...] = ()
    node_terms: NodeTerms | None = None
    volume_terms: tuple[NodeTerms, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    spread: tuple[Spread, ...] = ()
    preferences: tuple[Preference, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A shape is a dictionary key on every hot path, so its deep hash is computed once.
        object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in _SHAPE_FIELDS)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def wants_devices(self) -> bool:
        """Whether the pod requests GPUs: whole ones, a share, or by a map."""
        return bool(self.gpus or self.gpu_milli or self.device_map)

    @property
    def has_pod_terms(self) -> bool:
        """Whether the pod has affinity, anti-affinity or spread rules."""
        return bool(self.affinity or self.anti_affinity or self.spread)


_SHAPE_FIELDS = tuple(name for name in Shape.__dataclass_fields__ if name != "_hash")


@dataclass(frozen=True, slots=True)
class Node:
    """A node as its API object describes it. `gpus` counts its GPUs, healthy or not; with `assigns_devices` the
    scheduler assigns their indices."""

    name: str
    allocatable: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    gpu_resource: str = ""
    gpus: int = 0
    assigns_devices: bool = False
    unhealthy: frozenset[int] = frozenset()


class PodPhase(Enum):
    """The phase of a pod in the API."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class GangKey(NamedTuple):
    """The key of a gang: the dialect that declares it, its namespace and its name."""

    dialect: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Failure(NamedTuple):
    """How a pod failed; `container` is set where the pod has several."""

    text: str
    container: str = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as last observed. `gates` holds what keeps it from being scheduled at all (scheduling gates, DRA claims,
    unbound volumes); a controller recreates a `controlled` pod; `ours` is false for pods that name another scheduler,
    and `permanent` marks static and DaemonSet pods among these; `charged_queue` is the queue that the bind of a pod
    recorded; `failure` says how it failed."""

    uid: str
    namespace: str
    name: str
    shape: Shape
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    gang: GangKey | None = None
    role: str = ""
    phase: PodPhase = PodPhase.PENDING
    node: str | None = None
    devices: tuple[int, ...] | None = None
    attempt: int = 0
    version: str = ""
    priority: int = 0
    preempts: bool = True
    queue: str = ""
    charged_queue: str | None = None
    created: float = 0.0
    index: int = 0
    ours: bool = True
    controlled: bool = False
    permanent: bool = False
    deleting: bool = False
    gates: tuple[Gate, ...] = ()
    nominated_node: str | None = None
    grace: float = 30.0
    started: float | None = None
    deadline: float | None = None
    failure: Failure | None = None

    @property
    def terminal(self) -> bool:
        """Whether the pod has succeeded or failed."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def live(self) -> bool:
        """Whether the pod is bound to a node and has not ended."""
        return self.node is not None and not self.terminal


class GateKind(Enum):
    """What keeps a single pod from being scheduled, whatever the nodes offer."""

    SCHEDULING_GATE = "scheduling-gate"
    RESOURCE_CLAIM = "resource-claim"
    UNBOUND_CLAIM = "unbound-claim"
    MISSING_CLAIM = "missing-claim"
    BAD_MAP = "bad-map"
    BAD_REQUEST = "bad-request"
    NOT_ALLOWED = "not-allowed"


@dataclass(frozen=True, slots=True)
class Gate:
    """One obstacle to scheduling a pod; `subject` names it."""

    kind: GateKind
    subject: str


class OnMemberLost(Enum):
    """The policy of a gang for the loss of a running member."""

    HOLD = "hold"
    RESTART = "restart"
    SHRINK = "shrink"


@dataclass(frozen=True, slots=True)
class TopologyRule:
    """Members stay within one domain of a level (a configured name or a node label key)."""

    level: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Role:
    """A role of members with its own minimum and, optionally, its own topology; lower `rank` is bound first."""

    name: str
    minimum: int = 0
    topology: tuple[TopologyRule, ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """Members whose pods do not exist yet, but must fit before the gang starts."""

    shape: Shape
    count: int
    role: str = ""


class Slot(NamedTuple):
    """The place of one member: a node and the devices on it."""

    node: str
    devices: tuple[int, ...]
    role: str = ""


@dataclass(frozen=True, slots=True)
class Notes:
    """What a leader leaves on a gang's object for the next leader.

    Since when the gang is below its minimum and how many lost members have no replacement yet, when members without
    pods were admitted, the slots it is nominated for and since when, and the nodes being drained for it and since when.
    `target_since` without a `target` means that the drain lasted too long for a gang without pods.
    """

    below_since: float | None = None
    lost: int = 0
    admitted_at: float | None = None
    nomination: tuple[Slot, ...] = ()
    nominated_at: float | None = None
    target: tuple[str, ...] = ()
    target_since: float | None = None


NO_NOTES = Notes()


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that start together or not at all; `notes` is what an earlier leader left on its object.

    A gang that is not `preemptible` starts within the quota of its queue only. Work before `checkpointed_at` is not
    lost when the gang is evicted.
    """

    key: GangKey
    minimum: int = 1
    roles: tuple[Role, ...] = ()
    expected: tuple[Expected, ...] = ()
    queue: str = ""
    priority: int | None = None
    created: float = 0.0
    timeout: float | None = None
    topology: tuple[TopologyRule, ...] = ()
    on_member_lost: OnMemberLost = OnMemberLost.HOLD
    hold: float | None = None
    expected_runtime: float | None = None
    preemptible: bool = True
    checkpointed_at: float | None = None
    paused: bool = False
    problem: str = ""
    notes: Notes = NO_NOTES


class AcrossQueues(Enum):
    """Which gangs of other queues the gangs of a queue may evict.

    FAIR: what others borrowed, for a gang within its quota or of a queue with the lower share. ANY: gangs of lower
    priority as well, whatever their queue is entitled to. NEVER: none.
    """

    FAIR = "Fair"
    ANY = "Any"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: `quota` is guaranteed (0 of a resource that it does not name), `limit` is never exceeded, use between
    them is borrowed.

    Queues form a tree: what a queue uses counts in its parents too. Without `borrowing` the quota is a limit. Without
    `lending` no other queue uses the quota. Without `reclaimable` what it borrowed is not reclaimed. `min_runtime` is
    how long a gang runs before a gang of another child of this queue reclaims from it. Amounts are in the units of
    requests; a resource that no limit names is unlimited. Empty `namespaces` means all.
    """

    name: str
    weight: int = 1
    quota: Mapping[str, int] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)
    parent: str | None = None
    priority: int = 0
    borrowing: bool = True
    lending: bool = True
    reclaimable: bool = True
    min_runtime: float = 0.0
    preempts_within: bool = True
    across: AcrossQueues = AcrossQueues.FAIR
    open: bool = True
    namespaces: tuple[str, ...] = ()


DEFAULT_QUEUE = Queue("")
