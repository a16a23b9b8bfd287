"""Recovery of gangs below their minimum: their slots are held for replacements; when the hold expires they restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from gpu_scheduler.core.cycle.losses import charge_losses, kept_charge, replace_lost
from gpu_scheduler.core.cycle.plan import CyclePlan
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord, LostMember
from gpu_scheduler.core.model import OnMemberLost, Pod, Slot
from gpu_scheduler.core.placement.diagnose import diagnose
from gpu_scheduler.core.placement.domains import Bid, MemberGroup, Placement
from gpu_scheduler.core.placement.fit import fits
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.queueing.bid import excluded_nodes, make_bid, placeholder
from gpu_scheduler.core.queueing.quota import charge_of
from gpu_scheduler.core.reasons import Refusal, Unplaceable, Wake
from gpu_scheduler.core.state import State

_MAX_REUSED = 16
"""How many of the last lost slots are tried for each replacement."""


def watch_minimum(state: State, record: GangRecord, facts: GangFacts, now: float, plan: CyclePlan) -> None:
    """Notes since when a gang is below its minimum; when the hold expires, deletes members with a controller."""
    if not facts.broken or facts.policy is OnMemberLost.SHRINK or record.gang is None:
        if record.notes.below_since is not None or record.notes.lost:
            record.update_notes(below_since=None, lost=0)
        shrunk = facts.broken and record.gang is not None
        record.lost = [lost._replace(queue=None) for lost in record.lost[-facts.missing :]] if shrunk else []
        _end_hold(state, record)
        return
    below_since = record.notes.below_since if record.notes.below_since is not None else now
    del record.lost[: -facts.missing]
    record.update_notes(below_since=below_since, lost=len(record.lost))
    hold = record.gang.hold if record.gang.hold is not None else state.config.hold
    deadline = below_since + (0.0 if facts.policy is OnMemberLost.RESTART else hold)
    if now < deadline:
        state.broken[record.key] = None
        state.schedule_timer(deadline, record.key)
        return
    if facts.in_flight:
        state.broken[record.key] = None  # binds in flight cannot be revoked: wait until they are observed
        return
    _end_hold(state, record)
    # Their charges are released: if the hold became longer later, replacements would keep what others use by then.
    record.lost.clear()
    record.update_notes(lost=0)
    replaceable = [pod for pod in facts.live if pod.controlled and pod.uid not in state.ledger.deletes]
    if replaceable:
        for pod in replaceable:
            plan.delete(pod, DeleteCause.RESTART)
        facts.evicting += len(replaceable)
    else:
        facts.hold_expired = True


def _end_hold(state: State, record: GangRecord) -> None:
    if record.key in state.broken:
        del state.broken[record.key]
        state.release_slots(record)
        state.changes |= Wake.FREED


def place_replacements(state: State, record: GangRecord, now: float, plan: CyclePlan) -> None:
    """Places the replacements of a broken gang, in lost slots if these are free, and holds slots for the rest.

    A replacement of the lost shape keeps the charge of the lost member. Any other one asks the queue.
    """
    if not plan.accepts_more:
        return  # the slots stay reserved
    held = [slot for _, slot in state.reserved_slots(record)]
    state.release_slots(record)
    facts = state.facts_of(record)
    if record.gang is None or facts.evicting:
        charge_losses(state, record)
        return
    if not facts.blocked and record.not_before <= now:
        replacements, _ = _replacements_and_added(state, record, facts)
        wanted, refusal = _admitted(state, record, replacements, record.lost)
        placed = _reuse_lost_slots(state, record, wanted)
        placed += _reuse_reserved_slots(state, record, _without(wanted, placed), held)
        facts.ready = _without(wanted, placed)
        if facts.ready:
            placed += place_gang(state.cluster, _partial_bid(state, record, facts, now)) or []
            facts.ready = _without(facts.ready, placed)
        refused = Unplaceable((refusal,), facts.missing, 0) if refusal is not None else None
        if facts.ready:
            refused = diagnose(state.cluster, _partial_bid(state, record, facts, now))
        if placed:
            plan.start(record, placed)
        for pod, _ in placed:
            replace_lost(state, record.lost, pod)
        if replacements and (placed or refused != record.refusal):
            record.refusal = refused
            state.dirty[record.key] = None
    _hold_lost_slots(state, record, held)


def place_added(state: State, record: GangRecord, now: float, plan: CyclePlan) -> None:
    """Places members beyond the lost ones of a gang below its minimum, as many as fit, where its minimum was raised.

    They come after the queue and respect drain targets: otherwise one running pod and a raised minimum would go before
    every other gang.
    """
    facts = state.facts_of(record)
    if not plan.accepts_more or facts.evicting or facts.blocked or record.not_before > now:
        return
    _, added = _replacements_and_added(state, record, facts)
    if not added:
        return
    facts.ready, refusal = _admitted(state, record, added, [])
    refused = Unplaceable((refusal,), facts.missing, 0) if refusal is not None else None
    if facts.ready:
        excluded = excluded_nodes(state, record, facts, now)
        bid = replace(_partial_bid(state, record, facts, now), excluded=excluded)
        placed = place_gang(state.cluster, bid) or []
        if placed:
            plan.start(record, placed)
        elif refused is None:
            refused = diagnose(state.cluster, bid)
    record.refusal = record.refusal or refused
    state.dirty[record.key] = None


def _admitted(
    state: State, record: GangRecord, wanted: list[Pod], losses: list[LostMember]
) -> tuple[list[Pod], Refusal | None]:
    """The waiting members that the gang's queue may take beside the slots that stay held, and why it may not take more.

    A member that is charged as much as a lost one keeps that charge: it is no admission. For any other one the larger
    of both charges counts, so that the queue stays within its limit whichever of the members find a place.
    """
    wanted = wanted[: state.config.max_binds_at_once]
    if not state.has_limits(record):
        return wanted, None
    total: dict[str, int] = {}
    for lost in losses:
        _add(total, kept_charge(state, record, lost))
    left = list(losses)
    admitted: list[Pod] = []
    for pod in wanted:
        charge, kept = charge_of(pod.shape), kept_charge(state, record, replace_lost(state, left, pod))
        if charge != kept:
            _add(total, [(name, max(0, amount - dict(kept).get(name, 0))) for name, amount in charge])
            refusal = state.refuse(record, total)
            if refusal is not None:
                return admitted, refusal
        admitted.append(pod)
    return admitted, None


def _add(total: dict[str, int], charge: Iterable[tuple[str, int]]) -> None:
    for name, amount in charge:
        total[name] = total.get(name, 0) + amount


def _without(pods: list[Pod], placed: Placement) -> list[Pod]:
    return [pod for pod in pods if all(pod is not done for done, _ in placed)]


def _partial_bid(state: State, record: GangRecord, facts: GangFacts, now: float) -> Bid:
    """A bid for as many members as fit. Drain targets do not exclude replacements: otherwise two gangs would wait for
    each other.

    Slots for members without pods are reserved later, for all of them together.
    """
    bid = make_bid(state, record, facts, now)
    existing = [group for group in bid.groups if not group.whole]
    return replace(bid, groups=existing, needed=0, role_needs={}, excluded=None)


def _replacements_and_added(state: State, record: GangRecord, facts: GangFacts) -> tuple[list[Pod], list[Pod]]:
    """The waiting members that fill the gang's minima: those that replace lost members, and those beyond them."""
    left = list(record.lost)
    replacements: list[Pod] = []
    added: list[Pod] = []
    for pod in _members_for_minima(record, facts):
        (added if replace_lost(state, left, pod) is None else replacements).append(pod)
    return replacements, added


def _members_for_minima(record: GangRecord, facts: GangFacts) -> list[Pod]:
    """The waiting members that fill the gang's minima, first the ones like a lost member; members beyond these would
    take the lost slots."""
    lost = Counter((one.slot.role, charge_of(one.shape)) for one in record.lost if one.shape is not None)
    alike: list[Pod] = []
    others: list[Pod] = []
    for pod in facts.ready:
        what = (pod.role, charge_of(pod.shape))
        lost[what] -= 1
        (alike if lost[what] >= 0 else others).append(pod)
    lacking = facts.missing_by_role
    any_role = facts.missing - sum(lacking.values())
    chosen: list[Pod] = []
    for pod in (*alike, *others):
        if lacking.get(pod.role, 0) > 0:
            lacking[pod.role] -= 1
            chosen.append(pod)
        elif any_role > 0:
            any_role -= 1
            chosen.append(pod)
    return chosen


def _hold_lost_slots(state: State, record: GangRecord, held: list[Slot]) -> None:
    """Reserves slots of the lost shapes for lost members that have no replacement yet; all of them stay charged.

    `held` are the slots that were reserved for the gang so far and are not in use again.
    """
    facts = state.facts_of(record)
    if record.gang is None or not record.lost:
        return
    reserved: Placement = []
    groups: list[MemberGroup] = []
    absent = _absent_members(state, record, facts)
    for _, same in groupby(absent, key=lambda pod: (pod.role, id(pod.shape))):
        alike = list(same)
        reused = _reuse_lost_slots(state, record, alike)
        reused += _reuse_reserved_slots(state, record, alike[len(reused) :], held)
        reserved += reused
        rest = alike[len(reused) :]  # equal pods: if one finds no old slot, the ones after it find none either
        if rest:
            groups.append(MemberGroup(rest[0].role, rest))
    if groups:
        bid = Bid(groups, 0, topology=record.gang.topology)
        bid.anchors = tuple(pod.node for pod in facts.live if pod.node is not None)
        reserved += place_gang(state.cluster, bid) or []
    state.mark_reserved(record, reserved)
    # Otherwise the queue would admit other gangs, and the replacement would exceed its limit.
    state.keep_charges(record, _without(absent, reserved))


def _absent_members(state: State, record: GangRecord, facts: GangFacts) -> list[Pod]:
    """Placeholder pods of the lost shapes, as many as the gang misses.

    A loss that only an earlier leader saw has the shape of a live member. A slot that keeps no charge of a lost member
    is held only if the queue may take it. A loss beyond what the gang misses is over: others may use its charge now.
    """
    lacking = facts.missing_by_role
    any_role = facts.missing - sum(lacking.values())
    absent: list[Pod] = []
    others: list[Pod] = []
    for number, lost in enumerate(tuple(record.lost)):
        like = Pod("", "", "", lost.shape, role=lost.slot.role) if lost.shape else _live_member(facts, lacking)
        if like is not None and lacking.get(like.role, 0) > 0:
            lacking[like.role] -= 1
        elif like is not None and any_role > 0:
            any_role -= 1
        else:
            record.lost.remove(lost)
            continue
        group = absent if kept_charge(state, record, lost) else others
        group.append(placeholder(record, like.shape, like.role, number))
    total = state.quota.total_charge(pod.shape for pod in absent)
    for pod in others:
        _add(total, charge_of(pod.shape))
        if state.refuse(record, total) is not None:
            break
        absent.append(pod)
    return absent


def _live_member(facts: GangFacts, lacking: dict[str, int]) -> Pod | None:
    """A live member like the one that was lost: of a role that lacks members, or else any."""
    return next((pod for pod in facts.live if lacking.get(pod.role)), next(iter(facts.live), None))


def _reuse_lost_slots(state: State, record: GangRecord, pods: list[Pod]) -> Placement:
    """Places pods on the slots of lost members, on the same devices, as far as these are free."""
    placed: Placement = []
    for pod in pods:
        for _, slot, _, _ in record.lost[-_MAX_REUSED:]:
            if slot.role == pod.role and _is_free(state, pod, slot):
                state.cluster.add(pod, slot.node, slot.devices)
                placed.append((pod, slot))
                break
    return placed


def _reuse_reserved_slots(state: State, record: GangRecord, pods: list[Pod], held: list[Slot]) -> Placement:
    """Places pods on the gang's reserved slots, if other gangs were nominated for the same nodes since.

    The reserved slots of nominated gangs overlap their victims, which still run: the node looks full, and a nominated
    gang would take this gang's slot before any victim is gone. A slot that is used is removed from `held`.
    """
    nodes = {slot.node for slot in held}
    nominated = [state.records[key] for key in state.nominated]
    later = [other for other in nominated if (other.notes.nominated_at or 0.0) >= (record.notes.below_since or 0.0)]
    overlapping = [
        (other, state.reserved_slots(other))
        for other in later
        if any(slot.node in nodes for slot in other.notes.nomination)
    ]
    if not overlapping:
        return []
    for other, _ in overlapping:
        state.release_slots(other)
    placed: Placement = []
    waiting = list(pods)
    for slot in tuple(held):
        number = next((i for i, pod in enumerate(waiting) if pod.role == slot.role), None)
        if number is not None and _is_free(state, waiting[number], slot):
            pod = waiting.pop(number)
            state.cluster.add(pod, slot.node, slot.devices)
            placed.append((pod, slot))
            held.remove(slot)
    for other, theirs in overlapping:
        state.reserve_slots(other, theirs)
    return placed


def _is_free(state: State, pod: Pod, slot: Slot) -> bool:
    """Whether a former slot of the gang is free, with the same devices."""
    cluster = state.cluster
    number = cluster.table.slots.get(slot.node)
    if number is None or pod.shape.gpu_milli or not fits(cluster, pod, number):
        return False
    if pod.shape.device_map is not None:
        return slot.devices == pod.shape.device_map.devices
    if not cluster.devices.assigned[number]:
        return not slot.devices
    free = cluster.devices.free(number)
    return len(slot.devices) == pod.shape.gpus and all(free >> device & 1 for device in slot.devices)
