"""Reports: everything that a message about a gang needs, computed once, from the engine's state.

The status writer, the command line and the simulations render a `GangReport`; none of them reads the state itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpu_scheduler.base.text import closest
from gpu_scheduler.core.cluster.topology import NODE
from gpu_scheduler.core.cycle.drain import bid_on_empty
from gpu_scheduler.core.cycle.dry_run import refuse_as_if_tried, status_in_dry_run
from gpu_scheduler.core.cycle.holders import (
    GangName,
    Holder,
    Scarce,
    blocked_entry,
    hide_others,
    holders_of,
    report_entry,
    scarce_resource,
)
from gpu_scheduler.core.cycle.loans import Loan, loans_to
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import (
    FailedMember,
    GangFacts,
    GangRecord,
    Phase,
    Setback,
    Status,
    status_of,
)
from gpu_scheduler.core.model import MILLI, DeviceMap, Failure, Gang, GangKey, Gate, Pod, PodPhase
from gpu_scheduler.core.placement.diagnose import count_shortfall, diagnose
from gpu_scheduler.core.placement.place import could_place
from gpu_scheduler.core.queueing.bid import make_bid
from gpu_scheduler.core.reasons import Reason, Unplaceable
from gpu_scheduler.core.state import State

_FRESH = 1.0
"""For how many seconds an answer that many gangs share is reused."""
_MAX_CACHED = 4096

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GangReport:
    """A gang as it stands. What is not known, or does not apply, is None or empty.

    `gate` keeps the pod `gated` back. `entry` is the GPU map entry that is in the way: `entry_holders` use its devices,
    `entry_missing` do not exist. `levels` are the topology levels that nodes have, where the requested one is none of
    them. `first_in_line` leaves out gangs that no end of another gang could start. `queue_used` and `queue_most` are in
    units of requests. `starts` and `evicts` are what a dry run decided: it has not happened. `waiting_uids` are the
    members without a bind.
    """

    key: GangKey
    status: Status
    gang: Gang | None
    members: tuple[Pod, ...] = ()
    queue: str = ""
    priority: int = 0
    waiting_since: float | None = None
    position: int | None = None
    in_line: int = 0
    first_in_line: GangName | None = None
    starts: bool = False
    evicts: int = 0
    holders: tuple[Holder, ...] = ()
    loans: tuple[Loan, ...] = ()
    waiting_uids: frozenset[str] = frozenset()
    gate: Gate | None = None
    gated: str = ""
    entry: DeviceMap | None = None
    entry_holders: tuple[Holder, ...] = ()
    entry_missing: tuple[int, ...] = ()
    levels: tuple[str, ...] = ()
    unknown_resource: bool = False
    suggestion: str = ""
    queue_used: int | None = None
    queue_most: int | None = None
    drained_for: GangName | None = None
    hold_left: float | None = None
    retry_left: float | None = None
    setback: Setback | None = None
    last_refusal: Unplaceable | None = None
    failed: FailedMember | None = None
    cause: DeleteCause | None = None

    @property
    def phase(self) -> Phase:
        """Where the gang stands."""
        return self.status.phase

    @property
    def refusal(self) -> Unplaceable | None:
        """Why it cannot start now."""
        return self.status.refusal


@dataclass(frozen=True, slots=True)
class Line:
    """The waiting gangs in order, the place of each, counted from 1, and the first that could start as things are."""

    order: Sequence[GangKey]
    positions: Mapping[GangKey, int] = field(default_factory=dict)
    first: GangKey | None = None


class Reporter:
    """Makes reports. Answers that many gangs share, such as who holds the GPUs, are reused for a second."""

    def __init__(self, state: State, dry_run: bool) -> None:
        self._state = state
        self.dry_run = dry_run
        self._holders: dict[Scarce, tuple[float, tuple[Holder, ...]]] = {}
        self._seen_holders: dict[tuple[Scarce, str | None], tuple[float, tuple[Holder, ...]]] = {}
        self._refusals: dict[object, tuple[float, Unplaceable | None]] = {}
        self._loans: dict[object, tuple[float, tuple[Loan, ...]]] = {}
        self._order: tuple[float, Line] = (-math.inf, Line(()))

    def report(self, key: GangKey, now: float, reader: str | None = None) -> GangReport | None:
        """The report about a gang; None for one that is not known.

        With a namespace as `reader`, gangs and pods of other namespaces have no name.
        """
        state, record = self._state, self._state.records.get(key)
        if record is None:
            return None
        facts, status, starts, evicts = self._status_of(record)
        status = replace(status, refusal=self._refresh(record, status, facts, now))
        last = self._last_refusal(record, status, facts, now)
        refused = last or status.refusal
        line = self._line(now)
        gated = next((pod for pod in record.members.values() if pod.gates and pod.node is None), None)
        reasons = {refusal.reason: refusal.subject for refusal in refused.refusals} if refused is not None else {}
        used, most = _queue_use(state, refused)
        entry = blocked_entry(state, record) if reasons.keys() & _OF_MAP else None
        binds = state.ledger.binds
        return GangReport(
            key=key,
            status=status,
            gang=record.gang,
            members=tuple(record.members.values()),
            queue=state.queue_of(record),
            priority=record.priority,
            waiting_since=_waiting_since(record, facts),
            position=line.positions.get(key),
            in_line=len(line.order),
            first_in_line=GangName.of(state, line.first).seen_from(reader) if line.first is not None else None,
            starts=starts,
            evicts=evicts,
            holders=self._find_holders(record, refused, now, reader),
            loans=self._find_loans(record, refused, facts, now),
            waiting_uids=frozenset(p.uid for p in record.members.values() if _waits(p) and p.uid not in binds),
            gate=gated.gates[0] if gated is not None else None,
            gated=gated.name if gated is not None else "",
            **report_entry(state, entry, reader),
            levels=_other_levels(state, reasons[Reason.TOPOLOGY]) if Reason.TOPOLOGY in reasons else (),
            unknown_resource=_is_unknown(state, reasons.get(Reason.RESOURCE)),
            suggestion=_suggest(state, reasons),
            queue_used=used,
            queue_most=most,
            drained_for=_drained_for(state, reader) if Reason.RESERVED in reasons else None,
            hold_left=_hold_left(state, record, status, now),
            retry_left=max(0.0, record.not_before - now) if record.not_before > now else None,
            setback=record.setback,
            last_refusal=last,
            failed=_last_failure(record),
            cause=next((d.delete.cause for uid in record.members if (d := state.ledger.deletes.get(uid))), None),
        )

    def phase_of(self, record: GangRecord) -> Phase:
        """The phase of a gang: as last reported, or in a dry run as it follows from what has happened."""
        return self._status_of(record)[1].phase if self.dry_run else record.phase

    def is_on_paper(self, record: GangRecord) -> bool:
        """Whether only a dry run has placed a gang: nothing of it holds a node."""
        facts, _, starts, _ = self._status_of(record)
        return starts and not facts.started

    # -- what is decided, and what has happened

    def _status_of(self, record: GangRecord) -> tuple[GangFacts, Status, bool, int]:
        """The facts and the status, and what a dry run would do: start the gang, or evict so many pods for it."""
        state = self._state
        if self.dry_run:
            return status_in_dry_run(state, record)
        facts = state.facts_of(record)
        status = record.reported
        if status is None:
            status = status_of(record, facts, record.refusal or state.queue.refusal(record.key))
        return facts, status, False, 0

    # -- why it cannot start, as of now

    def _refresh(self, record: GangRecord, status: Status, facts: GangFacts, now: float) -> Unplaceable | None:
        """The refusal with the numbers of the whole gang as of now: a gang is tried again only when that could help."""
        refused = status.refusal
        if refused is None or not refused.refusals or not refused.counts_members or record.gang is None:
            return refused
        if record.reserved:
            return self._refuse_now(record, refused, facts, now)
        shared = (refused, self._state.queue.signature_of(record.key))
        return _recent(self._refusals, shared, now, lambda: self._refuse_now(record, refused, facts, now))

    def _refuse_now(self, record: GangRecord, refused: Unplaceable, facts: GangFacts, now: float) -> Unplaceable | None:
        state = self._state
        bid = make_bid(state, record, facts, now)  # which asks where slots are kept
        if not bid.groups:
            return refused
        if refused.too_large:
            return count_shortfall(state.empty, bid_on_empty(bid), refused)
        with state.cluster.trial():
            for uid in record.reserved:
                state.cluster.forget(uid)
            if record.reserved and facts.broken and could_place(state.cluster, bid):
                return None  # the slots that are kept for it are enough
            fresh = diagnose(state.cluster, bid)
            stay = tuple(refusal for refusal in refused.refusals if refusal.reason is Reason.EVICTION_REFUSED)
            fresh = replace(fresh, refusals=(*fresh.refusals, *stay)) if fresh.short else refused
            return count_shortfall(state.cluster, bid, fresh)

    def _last_refusal(self, record: GangRecord, status: Status, facts: GangFacts, now: float) -> Unplaceable | None:
        """Why a gang that waits for its next try did not start before."""
        refused = status.refusal.refusals if status.refusal is not None else ()
        if not any(refusal.reason is Reason.BACK_OFF for refusal in refused):
            return None
        last = record.last_refusal
        if self.dry_run and last is None:  # only the leader has tried it
            last = refuse_as_if_tried(self._state, record, facts, now)
        return self._refresh(record, replace(status, refusal=last), facts, now)

    # -- its place in line, and who is in its way

    def _line(self, now: float) -> Line:
        """Every waiting gang in order."""
        at, line = self._order
        # A queue that changes all the time is not sorted for every report.
        if now - at > _FRESH or (self.dry_run and len(line.order) != len(self._state.queue)):
            queue = self._state.queue
            order = queue.in_order(self._state.queue_order)
            can_start = (key for key in order if (refused := queue.refusal(key)) is None or not refused.hopeless)
            line = Line(order, {key: place for place, key in enumerate(order, 1)}, next(can_start, None))
            self._order = (now, line)
        return line

    def _find_holders(
        self, record: GangRecord, refused: Unplaceable | None, now: float, reader: str | None
    ) -> tuple[Holder, ...]:
        scarce = scarce_resource(self._state, record, refused)
        if scarce is None:
            return ()
        running = any(pod.live for pod in record.members.values())
        shared = not (record.reserved or running)  # what a gang holds itself is left out of its own answer

        def all_holders() -> tuple[Holder, ...]:
            every = holders_of(self._state, record, scarce)
            return tuple(holder for holder in every if not self._is_placed_on_paper(holder))

        def largest() -> tuple[Holder, ...]:
            every = _recent(self._holders, scarce, now, all_holders) if shared else all_holders()
            return tuple(hide_others(every, reader)[:5])

        return _recent(self._seen_holders, (scarce, reader), now, largest) if shared else largest()

    def _find_loans(
        self, record: GangRecord, refused: Unplaceable | None, facts: GangFacts, now: float
    ) -> tuple[Loan, ...]:
        """What other queues borrow of what the gang's queue is entitled to; gangs that ask for the same share it."""
        if record.gang is None or scarce_resource(self._state, record, refused) is None:
            return ()
        shared = (refused, self._state.queue.signature_of(record.key), bool(facts.ready))
        return _recent(self._loans, shared, now, lambda: tuple(loans_to(self._state, record, refused, now)))

    def _is_placed_on_paper(self, holder: Holder) -> bool:
        record = self._state.records.get(holder.gang) if holder.gang is not None else None
        return self.dry_run and record is not None and self.is_on_paper(record)


def _recent(cache: dict[K, tuple[float, T]], key: K, now: float, make: Callable[[], T]) -> T:
    """The answer of the last second; a new one where there is none."""
    known = cache.get(key)
    if known is not None and now - known[0] <= _FRESH:
        return known[1]
    if len(cache) > _MAX_CACHED:
        cache.clear()
    cache[key] = (now, answer := make())
    return answer


_OF_MAP = {Reason.DEVICE_HELD, Reason.DEVICE_MISSING}


def _waits(pod: Pod) -> bool:
    return pod.node is None and not pod.deleting and not pod.terminal


def _waiting_since(record: GangRecord, facts: GangFacts) -> float | None:
    """Since when members wait; a gang without pods waits since its object was created."""
    waiting = [pod.created for pod in (*facts.ready, *facts.gated)]
    if waiting:
        return record.waiting_since if record.waiting_since is not None else max(waiting)
    return record.gang.created if record.gang is not None and not facts.started and facts.missing else None


def _last_failure(record: GangRecord) -> FailedMember | None:
    failed = [pod for pod in record.members.values() if pod.phase is PodPhase.FAILED and not pod.deleting]
    newest = max(failed, key=lambda pod: (pod.created, pod.name), default=None)
    if newest is None:
        return record.last_failure
    return FailedMember(newest.namespace, newest.name, newest.failure or Failure(""))


def _hold_left(state: State, record: GangRecord, status: Status, now: float) -> float | None:
    """How long slots stay held, or reserved."""
    end = None
    if status.phase is Phase.HOLDING and record.gang is not None and status.notes.below_since is not None:
        end = status.notes.below_since + (record.gang.hold if record.gang.hold is not None else state.config.hold)
    elif status.phase is Phase.RESERVED and status.notes.admitted_at is not None:
        end = status.notes.admitted_at + state.config.reserve
    return max(0.0, end - now) if end is not None else None


def _drained_for(state: State, reader: str | None) -> GangName | None:
    return GangName.of(state, state.target).seen_from(reader) if state.target else None


# -- levels


def _other_levels(state: State, level: str) -> tuple[str, ...]:
    """The levels that nodes are labelled with, widest first, where this one is not among them."""
    if _has_domains(state, level):
        return ()
    return (*(name for name, _ in state.config.levels if _has_domains(state, name)), NODE)


def _has_domains(state: State, level: str) -> bool:
    return bool((state.cluster.topology.codes(level) >= 0).any())


# -- names that do not exist


def _is_unknown(state: State, resource: str | None) -> bool:
    return resource is not None and not state.totals().get(resource)


def _suggest(state: State, reasons: Mapping[Reason, str]) -> str:
    """What was probably meant by a resource that no node has, or by a queue that does not exist."""
    resource = reasons.get(Reason.RESOURCE)
    if resource is not None and _is_unknown(state, resource):
        return closest(resource, [name for name, amount in state.totals().items() if amount])
    if Reason.NO_QUEUE in reasons:
        found = closest(reasons[Reason.NO_QUEUE], state.quota.queues)
        return f"queue {found}" if found else ""
    return ""


# -- queues


def _queue_use(state: State, refused: Unplaceable | None) -> tuple[int | None, int | None]:
    """What a full queue uses of a resource and what it may use, in the units of requests."""
    full = (Reason.QUOTA, Reason.OVER_QUOTA)
    found = next((r for r in refused.refusals if r.reason in full), None) if refused is not None else None
    queue = state.quota.queue(found.queue) if found is not None else None
    if found is None or queue is None:
        return None, None
    name, resource = found.queue, found.subject
    ceilings = [queue.limit] if queue.borrowing else [queue.limit, queue.quota]
    most = min((ceiling[resource] for ceiling in ceilings if resource in ceiling), default=None)
    scale = MILLI if resource in state.config.gpu_resources else 1
    return -(-state.quota.used(name).get(resource, 0) // scale), most
