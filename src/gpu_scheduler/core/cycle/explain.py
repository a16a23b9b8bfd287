"""What would let a waiting gang start: every answer is tried on the cluster state, none is guessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpu_scheduler.core.cycle.holders import GangName
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.model import GangKey, Pod, Shape, Toleration
from gpu_scheduler.core.placement.domains import Bid, count_only
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.placement.placeholders import with_shape
from gpu_scheduler.core.queueing.bid import enforced_end, make_bid
from gpu_scheduler.core.reasons import Reason, Unplaceable, Wake
from gpu_scheduler.core.state import State

MOST_TRIED = 64
"""How many running gangs are tried for "fits when it ends"; the ones that end soonest, then the largest."""
MOST_AHEAD = 16
"""How many gangs ahead in line are tried for "starts first"."""


_OF_QUEUES = (
    Reason.QUOTA,
    Reason.OVER_QUOTA,
    Reason.NO_QUEUE,
    Reason.QUEUE_CLOSED,
    Reason.QUEUE_FORBIDDEN,
    Reason.YIELDS_TURN,
    Reason.ONE_RESERVATION,
)


class IfOnly(Enum):
    """A change under which the gang, or part of it, would fit now."""

    NOTHING_CHANGED = "as it is"
    FEWER_MEMBERS = "with fewer members"
    NO_TOPOLOGY = "without its topology rule"
    NO_NODE_RULES = "without its node selector and affinity"
    ALL_TOLERATED = "if it tolerated every taint"
    NO_POD_RULES = "without its pod affinity, anti-affinity and spread rules"
    NO_DRAIN = "if no nodes were drained for another gang"
    GANG_ENDED = "when another gang ends"


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """What was tried and fitted: `members` of the gang, `gang` being the one that would have to end.

    `ahead` is a gang ahead in line that would take the freed room.
    """

    if_only: IfOnly
    members: int
    gang: GangName | None = None
    ahead: GangName | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A report with what would help, which was really tried.

    `earliest_start` supposes that gangs end when they are expected or forced to, and that no other gang comes first.
    """

    report: GangReport
    earliest_start: float | None
    counterfactuals: tuple[Counterfactual, ...]


def explain(state: State, report: GangReport, now: float) -> Explanation:
    """Tries what would let a gang start; nothing, where its own definition or its queue refuses it."""
    record = state.records[report.key]
    bid = _bid_to_try(state, report, now)
    if bid is None:
        return Explanation(report, None, ())
    ahead = _bids_ahead(state, report, now)
    with state.cluster.trial():
        for uid in record.reserved:
            state.cluster.forget(uid)
        start = _earliest_start(state, record, bid, now)
        return Explanation(report, start, tuple(_what_would_help(state, record, bid, ahead)))


def earliest_start(state: State, report: GangReport, now: float) -> float | None:
    """The earliest start of an explanation alone, which takes fewer trials."""
    record = state.records[report.key]
    bid = _bid_to_try(state, report, now)
    if bid is None:
        return None
    with state.cluster.trial():
        for uid in record.reserved:
            state.cluster.forget(uid)
        return _earliest_start(state, record, bid, now)


def _bid_to_try(state: State, report: GangReport, now: float) -> Bid | None:
    """What the gang asks for; None where its own definition or its queue refuses it."""
    record = state.records[report.key]
    facts = state.facts_of(record)
    stuck = record.refusal is not None and not record.refusal.wake_on & Wake.TIME
    if stuck or _is_refused_by_queue(report.refusal) or record.gang is None:
        return None
    if not facts.ready and report.key not in state.queue:
        return None
    bid = make_bid(state, record, facts, now)  # which asks where slots are kept
    bid.groups = count_only(state.cluster, bid.groups)
    return bid


def _is_refused_by_queue(refused: Unplaceable | None) -> bool:
    return refused is not None and any(one.reason in _OF_QUEUES for one in refused.refusals)


def _bids_ahead(state: State, report: GangReport, now: float) -> list[tuple[GangKey, Bid]]:
    """What the first gangs ahead in line ask for, without those that would not start whatever ended."""
    found: list[tuple[GangKey, Bid]] = []
    if report.position is None:
        return found
    for key in state.queue.in_order(state.queue_order)[: report.position - 1]:
        refused = state.queue.refusal(key)
        if refused is None or refused.hopeless or _is_refused_by_queue(refused):
            continue
        record = state.records[key]
        found.append((key, make_bid(state, record, state.facts_of(record), now)))
        if len(found) == MOST_AHEAD:
            break
    return found


def _what_would_help(
    state: State, record: GangRecord, bid: Bid, ahead: Sequence[tuple[GangKey, Bid]]
) -> Iterator[Counterfactual]:
    """Every single change that was tried and found to be enough."""
    if _would_fit(state, bid):
        yield Counterfactual(IfOnly.NOTHING_CHANGED, bid.size)
        return
    some = _fitting(state, bid)
    if some:
        yield Counterfactual(IfOnly.FEWER_MEMBERS, some)
    for if_only, changed in _changed_bids(bid):
        if _would_fit(state, changed):
            yield Counterfactual(if_only, bid.size)
    for other, pods in _running(state, record):
        with state.cluster.trial():
            for pod in pods:
                state.cluster.forget(pod.uid)
            if _would_fit(state, bid):
                ended = GangName.of(state, other.key)
                yield Counterfactual(IfOnly.GANG_ENDED, bid.size, ended, _starts_first(state, bid, ahead))


def _starts_first(state: State, bid: Bid, ahead: Sequence[tuple[GangKey, Bid]]) -> GangName | None:
    """The gang ahead in line that leaves no room for the bid; None where it fits beside all of them."""
    with state.cluster.trial():
        for key, other in ahead:
            if place_gang(state.cluster, other) and not _would_fit(state, bid):
                return GangName.of(state, key)
    return None


def _would_fit(state: State, bid: Bid) -> bool:
    with state.cluster.trial():
        return bool(place_gang(state.cluster, bid))


def _fitting(state: State, bid: Bid) -> int:
    """How many of the members would find a place if some were enough."""
    with state.cluster.trial():
        groups = [replace(group, whole=False) for group in bid.groups]
        return len(place_gang(state.cluster, replace(bid, groups=groups, needed=0, role_needs={})) or ())


def _changed_bids(bid: Bid) -> Iterator[tuple[IfOnly, Bid]]:
    """The bid with one of its own rules, or what others cause, taken away."""
    shapes = [group.pods[0].shape for group in bid.groups]
    if bid.topology or any(group.topology for group in bid.groups):
        groups = [replace(group, topology=()) for group in bid.groups]
        yield IfOnly.NO_TOPOLOGY, replace(bid, topology=(), groups=groups)
    if any(shape.node_labels or shape.node_terms is not None for shape in shapes):
        yield IfOnly.NO_NODE_RULES, _reshaped(bid, node_labels=(), node_terms=None)
    yield IfOnly.ALL_TOLERATED, _reshaped(bid, tolerations=(Toleration(exists=True),))
    if any(shape.has_pod_terms for shape in shapes):
        yield IfOnly.NO_POD_RULES, _reshaped(bid, affinity=(), anti_affinity=(), spread=())
    if bid.excluded is not None:
        yield IfOnly.NO_DRAIN, replace(bid, excluded=None)


def _reshaped(bid: Bid, **changes: object) -> Bid:
    """The bid with every shape changed."""
    shapes: dict[Shape, Shape] = {}
    groups = []
    for group in bid.groups:
        shape = group.pods[0].shape
        changed = shapes.setdefault(shape, replace(shape, **changes))  # type: ignore[arg-type]
        groups.append(replace(group, pods=with_shape(group.pods, changed)))
    return replace(bid, groups=groups)


# -- other gangs


def _running(state: State, record: GangRecord) -> list[tuple[GangRecord, list[Pod]]]:
    """Other gangs that hold nodes, those that end soonest first, then the largest."""
    found = []
    for other in state.records.values():
        pods = [pod for pod in other.members.values() if pod.live]
        if pods and other is not record:
            found.append((other, pods))
    found.sort(key=lambda item: (_end_of(item[0], item[1]) is None, _end_of(*item) or 0.0, -len(item[1]), item[0].key))
    return found[:MOST_TRIED]


def _end_of(record: GangRecord, pods: list[Pod]) -> float | None:
    """When a running gang is expected, or forced, to end."""
    ends = []
    for pod in pods:
        end = enforced_end(pod, pod.started or 0.0)
        if record.gang is not None and record.gang.expected_runtime is not None and pod.started is not None:
            expected = pod.started + record.gang.expected_runtime
            end = expected if end is None else min(end, expected)
        if end is None:
            return None
        ends.append(end)
    return max(ends, default=None)


def _earliest_start(state: State, record: GangRecord, bid: Bid, now: float) -> float | None:
    """When enough will have ended, going by the ends that are known; None when those are not enough."""
    if _would_fit(state, bid):
        return now
    with state.cluster.trial():
        for other, pods in _running(state, record):
            end = _end_of(other, pods)
            if end is None:
                return None
            for pod in pods:
                state.cluster.forget(pod.uid)
            if _would_fit(state, bid):
                return max(now, end)
    return None
