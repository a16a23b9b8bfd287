"""The life cycle of a gang: its record, the facts about its members, and the phase that follows from the facts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from gpu_scheduler.core.model import (
    NO_NOTES,
    Expected,
    Failure,
    Gang,
    GangKey,
    Notes,
    OnMemberLost,
    Pod,
    PodPhase,
    Role,
    Shape,
    Slot,
)
from gpu_scheduler.core.placement.domains import Bid
from gpu_scheduler.core.reasons import Unplaceable


class Phase(Enum):
    """The phase of a gang."""

    GATHERING = "gathering"
    BLOCKED = "blocked"
    WAITING = "waiting"
    RESERVED = "reserved"
    NOMINATED = "nominated"
    COMMITTING = "committing"
    BINDING = "binding"
    RUNNING = "running"
    HOLDING = "holding"
    RESTARTING = "restarting"
    DEGRADED = "degraded"
    FINISHED = "finished"
    FAILED = "failed"
    ORPHANED = "orphaned"


class Setback(Enum):
    """What made a gang wait before its next try."""

    BIND_FAILED = "bind failed"
    MEMBER_FAILED = "member failed"
    VICTIMS_REMAINED = "victims remained"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class FailedMember:
    """A member that failed, and how, as its node tells."""

    namespace: str
    name: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Status:
    """A gang's phase and counts; `bind_refused` is what the API server answered to a bind of its last start."""

    phase: Phase
    minimum: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    refusal: Unplaceable | None = None
    timed_out: bool = False
    bind_refused: str = ""
    notes: Notes = NO_NOTES
    exists: bool = True


class LostMember(NamedTuple):
    """A member that was lost and has no replacement yet, and the queue in which its replacement keeps its charge.

    The shape is None if only an earlier leader saw the loss; the queue is None if no charge is kept.
    """

    uid: str
    slot: Slot
    shape: Shape | None = None
    queue: str | None = None


@dataclass(slots=True)
class GangRecord:
    """The state of one gang in the engine. Only `members` and `gang` are observed; the rest can be derived again.

    `facts` and `bid` are as of the last refresh of the gang. `reserved` lists the uids of the placeholder pods on its
    reserved slots, and `unplaced` those of lost members that keep their charge without a slot. `reservation_unused` is
    set when a reservation expired before its members came, at the time `last_turn`, until the gang has started.
    `admitted_from` is the queue and namespace of a gang that got slots before it had pods, until they come.
    `unfit_version` is the version of the empty cluster and of the request for which no drain target was found.
    `surplus_in` is the queue of its members beyond the minimum, and `evictable_at` when it has run for long enough to
    be reclaimed from.
    """

    key: GangKey
    gang: Gang | None = None
    members: dict[str, Pod] = field(default_factory=dict)
    phase: Phase = Phase.GATHERING
    waiting_since: float | None = None
    not_before: float = 0.0
    failures: int = 0
    setback: Setback | None = None
    last_failure: FailedMember | None = None
    timed_out: bool = False
    bind_refused: str = ""
    refusal: Unplaceable | None = None
    last_refusal: Unplaceable | None = None
    notes: Notes = NO_NOTES
    reservation_unused: bool = False
    last_turn: float = 0.0
    admitted_from: tuple[str, str] | None = None
    unfit_version: Hashable = None
    lost: list[LostMember] = field(default_factory=list)
    reserved: list[str] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)
    live_priority: int | None = None
    surplus_in: str | None = None
    evictable_at: float | None = None
    reported: Status | None = None
    facts: GangFacts | None = None
    bid: Bid | None = None

    @property
    def priority(self) -> int:
        """The gang's own priority, or else the highest priority of its members."""
        if self.gang is not None and self.gang.priority is not None:
            return self.gang.priority
        return max((pod.priority for pod in self.members.values()), default=0)

    def update_notes(self, **changes: Any) -> None:
        """Replaces some of the notes."""
        if any(getattr(self.notes, name) != value for name, value in changes.items()):
            self.notes = replace(self.notes, **changes)

    @property
    def preempts(self) -> bool:
        """Whether the preemption policy of every member allows preemption."""
        return all(pod.preempts for pod in self.members.values())


@dataclass(slots=True)
class GangFacts:
    """The members of a gang by their state: ready, gated, in flight, live, evicted, ended."""

    exists: bool = True
    blocked: bool = False
    minimum: int = 1
    roles: tuple[Role, ...] = ()
    policy: OnMemberLost = OnMemberLost.HOLD
    ready: list[Pod] = field(default_factory=list)
    gated: list[Pod] = field(default_factory=list)
    committing: int = 0
    binding: int = 0
    evicting: int = 0
    leaving: int = 0
    live: list[Pod] = field(default_factory=list)
    succeeded: int = 0
    failed: int = 0
    have_by_role: dict[str, int] = field(default_factory=dict)
    expected: tuple[Expected, ...] = ()
    reserved: bool = False
    nominated: bool = False
    hold_expired: bool = False

    @property
    def in_flight(self) -> int:
        """Members with a decided bind that are not observed on their node yet."""
        return self.committing + self.binding

    @property
    def have(self) -> int:
        """The number of members that count towards the minimum."""
        return len(self.live) + self.succeeded + self.in_flight

    @property
    def missing(self) -> int:
        """How many members the gang is short of its minima."""
        return max(0, self.minimum - self.have, sum(self.missing_by_role.values()))

    @property
    def missing_by_role(self) -> dict[str, int]:
        """How many members each role is short of its minimum."""
        return {role.name: max(0, role.minimum - self.have_by_role.get(role.name, 0)) for role in self.roles}

    @property
    def started(self) -> bool:
        """Whether a member is live or has a bind in flight."""
        return bool(self.live) or self.in_flight > 0

    @property
    def ended(self) -> bool:
        """Whether every member that is left has ended."""
        left = self.started or self.ready or self.gated or self.evicting or self.leaving
        return self.succeeded + self.failed > 0 and not left

    @property
    def finished(self) -> bool:
        """Whether its minimum has succeeded and no member waits.

        A member cannot succeed before the gang has started, so it also counts if all that are left have succeeded: the
        others may have been removed since, and so may the gang's object.
        """
        if not self.succeeded or self.ready or self.gated:
            return False
        return (self.exists and self.missing == 0) or (self.ended and not self.failed)

    @property
    def broken(self) -> bool:
        """Whether the gang has started and is short of its minimum."""
        return self.started and self.missing > 0

    @property
    def short_of_quorum(self) -> int:
        """How many pods must still be created before the gang can start."""
        ready_by_role: dict[str, int] = {}
        for pod in self.ready:
            ready_by_role[pod.role] = ready_by_role.get(pod.role, 0) + 1
        by_role = sum(
            max(0, role.minimum - self.have_by_role.get(role.name, 0) - ready_by_role.get(role.name, 0))
            for role in self.roles
        )
        return max(0, self.minimum - self.have - len(self.ready), by_role)

    @property
    def awaits_admission(self) -> bool:
        """Whether the gang asks for capacity before any of its pods exist.

        Pods that are being deleted exist: until they are gone, others with their names cannot come.
        """
        if self.reserved or self.started or self.ready or self.gated or self.succeeded or self.failed:
            return False
        return not self.evicting and not self.leaving and self.awaits_members

    @property
    def awaits_members(self) -> bool:
        """Whether expected members are neither bound nor ended."""
        expected: dict[str, int] = {}
        for each in self.expected:
            expected[each.role] = expected.get(each.role, 0) + each.count
        return any(count > self.have_by_role.get(role, 0) for role, count in expected.items())

    @property
    def complete(self) -> bool:
        """Whether the gang runs, and every member that it needs or expects has been observed on a node."""
        return bool(self.live) and not self.in_flight and not self.missing and not self.awaits_members


def collect_facts(record: GangRecord, binding: Mapping[str, bool], evicting: Collection[str]) -> GangFacts:
    """Sorts the members of a gang by state. `binding` maps pods with an open bind to whether it is committed."""
    facts = GangFacts()
    gang = record.gang
    if gang is None:
        facts.exists = False
    else:
        facts.minimum, facts.roles, facts.policy = gang.minimum, gang.roles, gang.on_member_lost
        facts.blocked = gang.paused or bool(gang.problem)
        facts.expected = gang.expected
    facts.reserved = record.notes.admitted_at is not None
    facts.nominated = bool(record.notes.nomination)
    for uid, pod in record.members.items():
        counts = True
        if pod.phase is PodPhase.SUCCEEDED:
            facts.succeeded += 1
        elif pod.phase is PodPhase.FAILED:
            facts.failed += not pod.deleting  # a pod that was deleted ends like one that failed
            counts = False
        elif uid in evicting or pod.deleting:
            facts.evicting += uid in evicting
            facts.leaving += uid not in evicting
            counts = False
        elif pod.node is not None:
            facts.live.append(pod)
        elif uid in binding:
            if binding[uid]:
                facts.binding += 1
            else:
                facts.committing += 1
        else:
            (facts.gated if pod.gates else facts.ready).append(pod)
            counts = False
        if counts:
            facts.have_by_role[pod.role] = facts.have_by_role.get(pod.role, 0) + 1
    return facts


# The first row that holds is the phase. It follows from facts alone, so a new leader comes to the same phase.
PHASES: tuple[tuple[Phase, Callable[[GangFacts], bool]], ...] = (
    (Phase.ORPHANED, lambda f: not f.exists and not f.ended),
    (Phase.RESTARTING, lambda f: f.evicting > 0),
    (Phase.COMMITTING, lambda f: f.committing > 0),
    (Phase.BINDING, lambda f: f.binding > 0),
    (Phase.RUNNING, lambda f: f.started and (f.missing == 0 or f.policy is OnMemberLost.SHRINK)),
    (Phase.HOLDING, lambda f: f.started and not f.hold_expired),
    (Phase.DEGRADED, lambda f: f.started),
    (Phase.FINISHED, lambda f: f.finished),
    (Phase.FAILED, lambda f: f.failed > 0 and not f.ready and not f.gated),
    (Phase.BLOCKED, lambda f: f.blocked),
    (Phase.NOMINATED, lambda f: f.nominated),
    (Phase.RESERVED, lambda f: f.reserved),
    (Phase.GATHERING, lambda f: f.short_of_quorum > 0 and not f.awaits_admission),
    (Phase.WAITING, lambda f: True),
)


def phase_of(facts: GangFacts) -> Phase:
    """The phase that follows from the facts."""
    return next(phase for phase, holds in PHASES if holds(facts))


def status_of(record: GangRecord, facts: GangFacts, refusal: Unplaceable | None) -> Status:
    """The status that follows from a gang's record and facts."""
    return Status(
        phase=record.phase,
        minimum=facts.minimum,
        waiting=len(facts.ready) + len(facts.gated),
        running=len(facts.live),
        succeeded=facts.succeeded,
        failed=facts.failed,
        refusal=refusal,
        timed_out=record.timed_out,
        bind_refused=record.bind_refused,
        notes=record.notes,
        exists=facts.exists,
    )
