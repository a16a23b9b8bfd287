"""Drain targets: nodes that run empty for a gang that has been first in the queue for too long."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from gpu_scheduler.core.cluster.cluster import Usage
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.model import GangKey, Pod
from gpu_scheduler.core.placement.diagnose import diagnose
from gpu_scheduler.core.placement.domains import Bid, MemberGroup, Placement, count_only
from gpu_scheduler.core.placement.place import could_place, place_gang
from gpu_scheduler.core.placement.placeholders import with_shape
from gpu_scheduler.core.placement.scoring import least_used
from gpu_scheduler.core.queueing.bid import check_quota, has_unused_reservation, make_bid, takes_precedence
from gpu_scheduler.core.reasons import FULL_QUEUE, Reason, Refusal, Unplaceable, Wake
from gpu_scheduler.core.state import State

_MAX_BARRED = 4096
"""How many queues and namespaces are remembered at most; the oldest are forgotten."""


def choose_target(state: State, now: float) -> GangKey | None:
    """Gives a drain target to the first gang that has waited too long for others to end and fits empty nodes; returns
    the gang.

    Only a gang that takes precedence over its owner, and has waited too long itself, takes over an existing target.
    """
    owner = state.records[state.target] if state.target is not None else None
    for head in _blocked_heads(state, now, owner):
        placement = place_on_empty(state, head, now)
        if not placement:
            head.unfit_version = _version_of_target(state, head)
            _park_too_large(state, head, now)
            if state.budget.has_work_left(state.work):
                continue
            return None
        if not charge_target(state, head, now):
            continue
        if owner is not None:
            state.clear_target(owner)
            state.dirty[owner.key] = None
        head.update_notes(target=tuple(sorted({slot.node for _, slot in placement})), target_since=now)
        state.target = head.key
        state.target_version = _version_of_target(state, head)
        state.dirty[head.key] = None
        return head.key
    return None


def choose_target_after_drain(state: State, record: GangRecord, now: float) -> GangKey | None:
    """Gives a drain target to a gang that was just refused, before the gangs behind it are tried, if none is drained.

    Otherwise those would enter nodes that were drained for this gang until another took the target over and started.
    """
    if state.target is not None or not _is_blocked(state, record, now):
        return None
    return choose_target(state, now)


def check_target(state: State, now: float) -> None:
    """Ends a drain whose target would not fit the gang even if only permanent pods were left on it, or whose charge no
    longer fits its queue."""
    owner = state.records[state.target] if state.target is not None else None
    if owner is not None and not charge_target(state, owner, now):
        state.clear_target(owner)
        state.dirty[owner.key] = None
        return
    if owner is None or state.target_version == _version_of_target(state, owner):
        return
    state.target_version = _version_of_target(state, owner)
    state.changes |= Wake.FREED  # there may be room for other gangs beside the owner
    if not place_on_empty(state, owner, now, within=owner.notes.target):
        state.clear_target(owner)
        state.dirty[owner.key] = None


def _version_of_target(state: State, owner: GangRecord) -> Hashable:
    """The version of a target: it changes with the empty cluster and with what the owner requests."""
    return _version_of_empty(state), _request(owner.bid, owner.bid.groups) if owner.bid is not None else None


def _park_too_large(state: State, record: GangRecord, now: float) -> None:
    """Parks a gang that no longer fits the empty cluster: it waits for nodes now, not for other gangs to end."""
    bid = make_bid(state, record, state.facts_of(record), now)
    if not fits_empty(state, bid):
        state.dirty.update(dict.fromkeys(state.queue.park(record.key, refuse_on_empty(state, bid))))


def _blocked_heads(state: State, now: float, owner: GangRecord | None) -> list[GangRecord]:
    """The gangs that have waited too long for running gangs and may take a target from its owner, in the order in which
    they get one."""
    parked = (state.records[key] for key in state.queue.parked(Wake.FREED))
    rivals = (record for record in parked if owner is None or takes_precedence(state, record, owner))
    heads = [record for record in rivals if _is_blocked(state, record, now)]
    positions = [(r.key, replace(state.queue.position_of(r.key), created=r.waiting_since or 0.0)) for r in heads]
    return [state.records[key] for key in state.queue_order.sort(positions)]


def _is_blocked(state: State, record: GangRecord, now: float) -> bool:
    """Whether a refused gang has waited too long and has neither a nomination nor a drain target."""
    waited = record.waiting_since is not None and record.waiting_since <= now - state.config.drain_after
    return waited and not record.notes.target and not record.notes.nomination and _waits_for_nodes(state, record)


def _waits_for_nodes(state: State, record: GangRecord) -> bool:
    """Whether a gang waits for nodes (not for quota) to start (not to grow), and may get a target for that."""
    refused = state.queue.refusal(record.key)
    if refused is None or any(refusal.reason in FULL_QUEUE for refusal in refused.refusals):
        return False
    if record.unfit_version is not None and record.unfit_version == _version_of_target(state, record):
        return False
    facts = state.facts_of(record)
    return facts.missing > 0 and not has_unused_reservation(record, facts) and _may_drain(state, record, facts)


# -- groups without pods


def charge_target(state: State, record: GangRecord, now: float) -> bool:
    """Charges the queue for what a target is kept for, if pods of the gang do not exist yet; False if it may not take
    that. Otherwise the queue could use its whole limit and close nodes besides."""
    state.release_target_charge(record)
    if record.gang is None or not record.gang.expected:
        return True
    bid = make_bid(state, record, state.facts_of(record), now)
    if not any(group.whole for group in bid.groups):
        return True
    charge = state.quota.charge_of_shapes(bid.shapes)
    if state.refuse(record, charge) is not None:
        return False
    state.charge_target(record, charge)
    return True


def expire_target(state: State, record: GangRecord, facts: GangFacts, now: float) -> None:
    """Ends a drain that has lasted too long for a gang without pods; it gets no other target until its pods exist."""
    target, since = record.notes.target, record.notes.target_since
    if not target and since is None:
        return
    if facts.ready or facts.started:
        if not target:
            record.update_notes(target_since=None)
        return
    if not target:
        return
    since = since if since is not None else now  # an earlier leader may not have noted it
    record.update_notes(target_since=since)
    if now < since + state.config.max_podless_drain:
        state.schedule_timer(since + state.config.max_podless_drain, record.key)
        return
    state.clear_target(record)
    record.update_notes(target_since=since)
    bar_from_drains(state, (state.queue_of(record), record.key.namespace))


def ask_queue(state: State, record: GangRecord, bid: Bid, now: float) -> tuple[Refusal | None, Bid]:
    """`check_quota`; groups without pods may have to wait for each other. The drain for a gang of lower priority in the
    same queue ends if only its charge is in the way."""
    if _waits_for_reservation(state, record):
        return Refusal(Reason.ONE_RESERVATION), bid
    refusal, admitted = check_quota(state, record, bid)
    owner = state.records[state.target] if state.target is not None else None
    if refusal is None or owner is None or owner.priority >= record.priority:
        return refusal, admitted
    state.release_target_charge(owner)
    refusal, admitted = check_quota(state, record, bid)
    if refusal is not None and charge_target(state, owner, now):
        return refusal, admitted
    state.clear_target(owner)
    state.dirty[owner.key] = None
    return refusal, admitted


def note_admission(state: State, record: GangRecord) -> None:
    """Notes that slots are reserved for a gang without pods. Until its pods come, no other one of its queue and
    namespace gets a target."""
    if record.admitted_from is None:
        record.admitted_from = state.queue_of(record), record.key.namespace
        bar_from_drains(state, record.admitted_from)
    state.admitted_groups.setdefault(record.admitted_from, {})[record.key] = None


def check_admission(state: State, record: GangRecord) -> None:
    """Allows targets again when the pods of an admitted gang have come, and not when its object is deleted before."""
    if record.admitted_from is None:
        return
    facts = state.facts_of(record)
    if facts.ready or facts.started:
        if state.barred_from_drains.pop(record.admitted_from, None) is not None:
            state.changes |= Wake.FREED  # for groups that waited for a reservation to end, or may evict again
    elif record.gang is None:
        bar_from_drains(state, record.admitted_from, unused=True)
    else:
        return
    _forget_admission(state, record.admitted_from, record.key)
    record.admitted_from = None


def bar_from_drains(state: State, admitted_from: tuple[str, str], unused: bool = False) -> None:
    """Keeps targets from groups without pods of a queue and namespace, whatever their names. After a reservation that
    was not used, they get one reservation at a time."""
    barred = state.barred_from_drains
    barred[admitted_from] = unused or barred.get(admitted_from, False)
    if len(barred) > _MAX_BARRED:
        del barred[next(iter(barred))]


def _waits_for_reservation(state: State, record: GangRecord) -> bool:
    """Whether a group without pods gets no slots now: an earlier reservation in its queue and namespace was not used,
    and another group has one."""
    queue_and_namespace = state.queue_of(record), record.key.namespace
    if not state.barred_from_drains.get(queue_and_namespace) or not state.facts_of(record).awaits_admission:
        return False
    for key in tuple(state.admitted_groups.get(queue_and_namespace, ())):
        other = state.records.get(key)
        if other is not None and other.reserved and other.admitted_from == queue_and_namespace:
            return True
        _forget_admission(state, queue_and_namespace, key)
    return False


def _forget_admission(state: State, admitted_from: tuple[str, str], key: GangKey) -> None:
    groups = state.admitted_groups.get(admitted_from, {})
    groups.pop(key, None)
    if not groups:
        state.admitted_groups.pop(admitted_from, None)


def may_evict(state: State, record: GangRecord, facts: GangFacts) -> bool:
    """Whether pods may be evicted for a gang of which members have no pods yet: always if it has pods; otherwise for
    one such gang of each queue at a time, and none that has wasted slots or a target."""
    if facts.ready:
        return True
    queue = state.queue_of(record)
    busy = (other for key in state.nominated if (other := state.records.get(key)) is not None and other is not record)
    if any(state.queue_of(other) == queue and not state.facts_of(other).ready for other in busy):
        return False
    return not record.reservation_unused and _may_drain(state, record, facts)


def _may_drain(state: State, record: GangRecord, facts: GangFacts) -> bool:
    """Whether a gang may get a target: always if it has pods."""
    if facts.ready:
        return True
    expired = record.notes.target_since is not None or state.config.max_podless_drain <= 0
    return not expired and (state.queue_of(record), record.key.namespace) not in state.barred_from_drains


# -- the empty cluster


def _version_of_empty(state: State) -> tuple[int, int]:
    """The version of the empty cluster: it changes with the nodes and with permanent pods on them."""
    return state.empty.table.version, state.empty_version


def place_on_empty(
    state: State,
    record: GangRecord,
    now: float,
    within: tuple[str, ...] | None = None,
    beside: Iterable[Usage] = (),
) -> Placement | None:
    """The placement of the gang's minimum on the empty cluster, `beside` some pods, on the nodes with the least use
    now."""
    bid = make_bid(state, record, state.facts_of(record), now)
    minimum = Bid(
        count_only(state.empty, [replace(group, anchors=()) for group in bid.groups]),
        bid.needed,
        bid.role_needs,
        bid.topology,
        tie_break=least_used(state.cluster),
    )
    if within is not None:
        slots = state.empty.table.slots
        minimum.excluded = np.ones(state.empty.table.size, bool)
        minimum.excluded[[slots[node] for node in within if node in slots]] = False
    with state.empty.trial():
        for pod, node, devices, _ in beside:
            state.empty.add(pod, node, devices)
        # Which nodes are used least must not decide whether the gang fits at all.
        return place_gang(state.empty, minimum) or place_gang(state.empty, replace(minimum, tie_break=None))


def bid_on_empty(bid: Bid) -> Bid:
    """The bid as it is tried on the empty cluster."""
    return Bid(_without_anchors(bid), bid.needed, bid.role_needs, bid.topology)


def refuse_on_empty(state: State, bid: Bid) -> Unplaceable:
    """Why the bid's minimum does not fit the empty cluster."""
    refused = diagnose(state.empty, bid_on_empty(bid))
    return replace(refused, refusals=(Refusal(Reason.TOO_LARGE), *refused.refusals))


def fits_empty(state: State, bid: Bid) -> bool:
    """Whether the bid's minimum fits the empty cluster, which has only permanent pods."""
    groups = _without_anchors(bid)
    key = _request(bid, groups)
    version = _version_of_empty(state)
    if state.empty_fits.get(key, (None, False))[0] != version or any(g.pods[0].shape.has_pod_terms for g in groups):
        counted = count_only(state.empty, groups)
        found = could_place(state.empty, Bid(counted, bid.needed, bid.role_needs, bid.topology))
        if len(state.empty_fits) > 4096:
            state.empty_fits.clear()
        state.empty_fits[key] = (version, found)
    return state.empty_fits[key][1]


def _request(bid: Bid, groups: list[MemberGroup]) -> Hashable:
    """What the groups of a bid request together."""
    what = tuple((g.role, g.pods[0].shape, len(g.pods), g.topology) for g in groups)
    return what, bid.needed, tuple(bid.role_needs.items()), bid.topology


def _without_anchors(bid: Bid) -> list[MemberGroup]:
    """The bid's groups without ties to running pods: no anchors, and no affinity to pods of other gangs."""
    return [replace(group, anchors=(), pods=_without_foreign_affinity(group.pods)) for group in bid.groups]


def _without_foreign_affinity(pods: Sequence[Pod]) -> Sequence[Pod]:
    """Pods of one shape without the affinity terms that do not select themselves."""
    first, shape = pods[0], pods[0].shape
    own = tuple(t for t in shape.affinity if t.match.matches(first.labels, first.namespace, first.namespace_labels))
    if own == shape.affinity:
        return pods
    return with_shape(pods, replace(shape, affinity=own))
