"""Why a gang waits, and what would help: values that were really computed, never guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from gpu_scheduler.core.lifecycle import GangRecord, Phase, phase_of
from gpu_scheduler.core.model import MILLI, GangKey, Pod, Shape, Toleration
from gpu_scheduler.core.placement.diagnose import diagnose
from gpu_scheduler.core.placement.domains import Bid
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.queueing.bid import enforced_end, make_bid
from gpu_scheduler.core.reasons import Reason, Unplaceable, Wake
from gpu_scheduler.core.state import State

MOST_TRIED = 64
"""How many running gangs are tried for "fits when it ends"; the ones that end soonest, then the largest."""


_OF_QUEUES = (
    Reason.QUOTA,
    Reason.OVER_QUOTA,
    Reason.NO_QUEUE,
    Reason.QUEUE_CLOSED,
    Reason.QUEUE_FORBIDDEN,
    Reason.GIVES_WAY,
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
    """What was tried and fitted: `members` of the gang, `gang` being the one that would have to end."""

    if_only: IfOnly
    members: int
    gang: GangKey | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who uses how much of what the gang lacks; `gang` is None for pods that are not ours."""

    name: str
    amount: float
    gang: GangKey | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything there is to say about a gang that waits. `position` counts from 1 over all waiting gangs.

    `earliest_start` supposes that gangs end when they are expected or forced to, and that nobody else comes first.
    """

    key: GangKey
    phase: Phase
    refusal: Unplaceable | None
    position: int | None
    waiting: int
    waiting_since: float | None
    earliest_start: float | None
    holders: tuple[Holder, ...]
    counterfactuals: tuple[Counterfactual, ...]


def explain(state: State, key: GangKey, now: float) -> Explanation | None:
    """Explains one gang; None when it is not known."""
    record = state.records.get(key)
    if record is None:
        return None
    facts = state.facts_of(record)
    refusal = record.refusal or state.queue.refusal(key)
    order = state.queue.in_order(state.share)
    helped: tuple[Counterfactual, ...] = ()
    start = None
    # What the gang itself lacks no change around it can give.
    stuck = record.refusal is not None and not record.refusal.wake_on & Wake.TIME
    if refusal is not None and any(one.reason in _OF_QUEUES for one in refusal.refusals):
        stuck = True  # there may be room: its queue does not let it have any
    if record.gang is not None and not stuck and (facts.ready or key in state.queue):
        bid = make_bid(state, record, facts, now)  # which asks where slots are kept
        with state.cluster.trial():
            for uid in record.reserved:
                state.cluster.forget(uid)
            helped = tuple(_what_would_help(state, record, bid))
            start = _earliest_start(state, record, bid, now)
    return Explanation(
        key=key,
        phase=phase_of(facts),
        refusal=refusal,
        position=order.index(key) + 1 if key in state.queue else None,
        waiting=len(order),
        waiting_since=record.waiting_since,
        earliest_start=start,
        holders=holders_of(state, key),
        counterfactuals=helped,
    )


def _what_would_help(state: State, record: GangRecord, bid: Bid) -> Iterator[Counterfactual]:
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
                yield Counterfactual(IfOnly.GANG_ENDED, bid.size, other.key)


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
        groups.append(replace(group, pods=[replace(pod, shape=changed) for pod in group.pods]))
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


def refuse_now(state: State, key: GangKey, now: float) -> Unplaceable | None:
    """Why a waiting gang lacks room as things are now; None when that is not what it waits for.

    What is remembered may be out of date: a gang is tried again only when there could be enough for it.
    """
    record, refused = state.records.get(key), state.queue.refusal(key)
    if record is None or refused is None or not refused.short or refused.hopeless:
        return None
    bid = make_bid(state, record, state.facts_of(record), now)  # which asks where slots are kept
    with state.cluster.trial():
        for uid in record.reserved:
            state.cluster.forget(uid)
        fresh = diagnose(state.cluster, bid)
    return fresh if fresh.short else None


def holders_of(state: State, key: GangKey) -> tuple[Holder, ...]:
    """Who holds the resource that a waiting gang, or its queue, is short of, the largest first."""
    record = state.records.get(key)
    refusal = (record.refusal or state.queue.refusal(key)) if record is not None else None
    scarce_ones = [r for r in refusal.refusals if r.reason in (Reason.RESOURCE, Reason.QUOTA)] if refusal else []
    short = next(iter(scarce_ones), None)
    if record is None or short is None:
        return ()
    scarce = short.subject
    amounts: dict[tuple[str, GangKey | None], int] = {}
    kept = {uid: other.key for other in state.records.values() for uid in other.reserved}
    mapped: set[tuple[str, str, int]] = set()
    for usage in state.cluster.usage.values():
        pod = usage.pod
        held = _amount_of(pod.shape, scarce, usage.devices)
        if not held or pod.uid in record.members or pod.uid in record.reserved:
            continue
        member = pod.ours and not pod.permanent and pod.uid in state.pods
        gang = kept.get(pod.uid) or (state.key_of(pod) if member else None)
        if short.reason is Reason.QUOTA and (gang is None or not _share_queue(state, record, state.records[gang])):
            continue
        alone = gang is None or (pod.gang is None and pod.uid not in kept)
        name = f"{pod.namespace}/{pod.name}" if alone else str(gang)
        if pod.shape.device_map and scarce == pod.shape.gpu_resource and short.reason is Reason.RESOURCE:
            # Pods of one map may share cards: a node gives each of them once. A queue is charged for every pod.
            cards = {(name, usage.node, device) for device in usage.devices}
            held -= MILLI * len(cards & mapped)
            mapped |= cards
        amounts[name, gang] = amounts.get((name, gang), 0) + held
    ranked = sorted(amounts.items(), key=lambda item: (-item[1], item[0][0]))
    scale = MILLI if scarce in state.config.gpu_resources else 1
    return tuple(
        Holder(name, amount / scale if amount % scale else amount // scale, gang) for (name, gang), amount in ranked[:5]
    )


def _share_queue(state: State, one: GangRecord, other: GangRecord) -> bool:
    return state.queue_of(one) == state.queue_of(other)


def _amount_of(shape: Shape, resource: str, devices: tuple[int, ...]) -> int:
    """What a pod holds of a resource; GPUs in milli, as shares of one card add up."""
    if resource == shape.gpu_resource:
        return shape.gpu_milli or MILLI * (shape.gpus or len(devices))
    return dict(shape.request).get(resource, 0)
