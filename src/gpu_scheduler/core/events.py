"""What came in (events, past tense) and what must be done (effects, imperative)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gpu_scheduler.core.lifecycle import Status
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, Queue

# -- events


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node exists in this form."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node no longer exists."""

    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod exists in this form."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod no longer exists. `maybe_bound` unless it is known to have had no node that was not seen before."""

    uid: str
    maybe_bound: bool = False


@dataclass(frozen=True, slots=True)
class GangSeen:
    """A gang object exists in this form."""

    gang: Gang


@dataclass(frozen=True, slots=True)
class GangGone:
    """A gang object no longer exists."""

    key: GangKey


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A queue exists in this form."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueGone:
    """A queue no longer exists."""

    name: str


@dataclass(frozen=True, slots=True)
class TookOver:
    """We lead, and have seen everything up to a consistent list; these commits were left open by the leader before."""

    open: tuple[Commit, ...] = ()
    next_sequence: int = 0


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another leader holds the Lease: nothing more may be done."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The Lease names this commit: it will be carried out, by us or by the next leader."""

    sequence: int


class BindFailure(Enum):
    """What the API server said to a bind."""

    REFUSED = "refused"
    MOVED = "moved"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BindFailed:
    """A bind did not succeed, or nobody knows whether it did; `message` is what the API server said."""

    uid: str
    failure: BindFailure
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteFailed:
    """A delete was refused for now (a disruption budget, a time-out)."""

    uid: str


Event = (
    NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
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
    """Put this pod, at this attempt, on this node with these devices."""

    uid: str
    namespace: str
    name: str
    attempt: int
    node: str
    devices: tuple[int, ...]


class DeleteCause(Enum):
    """Why a pod of ours has to go."""

    RESTART = "restart"
    PREEMPTED = "preempted"
    RECLAIMED = "reclaimed"


class Delete(NamedTuple):
    """Delete this pod, and no other that may carry its name later."""

    uid: str
    namespace: str
    name: str
    cause: DeleteCause


@dataclass(frozen=True, slots=True)
class Commit:
    """Write this intent and swap it into the Lease, before any of it is carried out."""

    sequence: int
    binds: tuple[Bind, ...] = ()
    deletes: tuple[Delete, ...] = ()


@dataclass(frozen=True, slots=True)
class SendBind:
    """Post a committed bind, with the version of the pod that carries the bind's attempt."""

    bind: Bind
    version: str


@dataclass(frozen=True, slots=True)
class SendDelete:
    """Send a committed delete, which has failed so many times."""

    delete: Delete
    failures: int = 0


@dataclass(frozen=True, slots=True)
class RaiseAttempt:
    """Give up on a committed bind: mark the pod so that a delayed one fails."""

    uid: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Release:
    """Every entry of this commit is over: take it out of the Lease and delete the intent."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Report:
    """Tell people (and the next leader) how a gang is doing."""

    key: GangKey
    status: Status


Effect = Commit | SendBind | SendDelete | RaiseAttempt | Release | Report
