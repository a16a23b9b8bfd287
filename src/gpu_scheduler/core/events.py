"""Events, which the engine handles (past tense), and effects, which the caller carries out (imperative)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gpu_scheduler.core.lifecycle import FailedMember, Setback, Status
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, Queue

# -- events


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node was added or changed."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod was added or changed."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod was deleted. With `maybe_bound`, the pod may have been bound to a node unobserved."""

    uid: str
    maybe_bound: bool = False


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The leader keeps the devices of a pod that vanished unused for some time, and its queue charged for them."""

    pod: Pod
    until: float
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A gang whose last start failed: which setback it had, and until when the leader does not try it again."""

    key: GangKey
    until: float
    setback: Setback | None = None
    timed_out: bool = False
    bind_refused: str = ""
    failed: FailedMember | None = None


@dataclass(frozen=True, slots=True)
class Setbacks:
    """What only the leader knows about gangs that wait, and what a dry run takes in to say the same as the leader.

    The gangs whose start failed, the uids of pods whose eviction is refused, the gangs whose reservation expired before
    their pods came, in the order of their turns, and the queues and namespaces that get one reservation at a time after
    such a gang.
    """

    backoffs: tuple[Backoff, ...] = ()
    refused_evictions: tuple[str, ...] = ()
    unused_reservations: tuple[GangKey, ...] = ()
    one_reservation_each: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class GangSeen:
    """A gang object was added or changed."""

    gang: Gang


@dataclass(frozen=True, slots=True)
class GangGone:
    """A gang object was deleted."""

    key: GangKey


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A queue was added or changed."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueGone:
    """A queue was deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class TookOver:
    """This replica leads, and has handled a consistent list of all objects; the previous leader left `open` commits."""

    open: tuple[Commit, ...] = ()
    next_sequence: int = 0


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another leader holds the Lease: this replica must not act any more."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The Lease names this commit: it will be carried out, by this leader or the next one."""

    sequence: int


class BindFailure(Enum):
    """How the API server answered a failed bind."""

    REFUSED = "refused"
    MOVED = "moved"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BindFailed:
    """A bind failed, or its outcome is unknown; `message` is the answer of the API server."""

    uid: str
    failure: BindFailure
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteFailed:
    """A delete failed for now (a disruption budget, a timeout)."""

    uid: str


Event = (
    NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
    | Quarantined
    | Setbacks
    | GangSeen
    | GangGone
    | QueueSeen
    | QueueGone
    | TookOver
    | Fenced
    | Committed
    | BindFailed
    | DeleteFailed
)

# -- effects


class Bind(NamedTuple):
    """The decision to bind a pod, at this attempt, to a node with devices, charged to a queue."""

    uid: str
    namespace: str
    name: str
    attempt: int
    node: str
    devices: tuple[int, ...]
    queue: str = ""


class DeleteCause(Enum):
    """Why the scheduler deletes a pod."""

    RESTART = "restart"
    PREEMPTED = "preempted"
    RECLAIMED = "reclaimed"


class Delete(NamedTuple):
    """The decision to delete a pod, by uid: never another pod of the same name."""

    uid: str
    namespace: str
    name: str
    cause: DeleteCause


@dataclass(frozen=True, slots=True)
class Commit:
    """Write this intent and swap it into the Lease, before any of its binds and deletes is sent."""

    sequence: int
    binds: tuple[Bind, ...] = ()
    deletes: tuple[Delete, ...] = ()


@dataclass(frozen=True, slots=True)
class SendBind:
    """Send a committed bind, with the resource version of the pod that has the bind's attempt."""

    bind: Bind
    version: str


@dataclass(frozen=True, slots=True)
class SendDelete:
    """Send a committed delete; `failures` counts its earlier attempts that failed."""

    delete: Delete
    failures: int = 0


@dataclass(frozen=True, slots=True)
class RaiseAttempt:
    """Give up a committed bind: raise the attempt on the pod, so that a delayed bind fails."""

    uid: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Release:
    """Every entry of this commit is over: remove it from the Lease and delete the intent."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Report:
    """Write the status of a gang, for users and for the next leader."""

    key: GangKey
    status: Status


Effect = Commit | SendBind | SendDelete | RaiseAttempt | Release | Report
