"""Recovery of gangs below their minimum: their slots are held for replacements; when the hold expires they restart."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.cycle.plan import CyclePlan
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.model import OnMemberLost, Pod, Shape, Slot
from gpu_scheduler.core.placement.diagnose import diagnose
from gpu_scheduler.core.placement.domains import Bid, MemberGroup, Placement
from gpu_scheduler.core.placement.fit import fits
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.queueing.bid import make_bid, placeholder
from gpu_scheduler.core.reasons import Wake
from gpu_scheduler.core.state import State


def watch_minimum(state: State, record: GangRecord, facts: GangFacts, now: float, plan: CyclePlan) -> None:
    """Notes since when a gang is below its minimum; when the hold expires, deletes members with a controller."""
    if not facts.broken or facts.policy is OnMemberLost.SHRINK or record.gang is None:
        record.update_notes(below_since=None)
        _end_hold(state, record)
        return
    below_since = record.notes.below_since if record.notes.below_since is not None else now
    record.update_notes(below_since=below_since)
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
    """Places the replacements of a broken gang, in lost slots if these are free, and reserves slots for the rest."""
    if not plan.accepts_more:
        return  # the slots stay reserved
    held = [slot for _, slot in state.reserved_slots(record)]
    state.release_slots(record)
    facts = state.facts_of(record)
    if record.gang is None or facts.evicting:
        return
    if not facts.blocked and record.not_before <= now:
        wanted = _replacements(facts)
        placed = _reuse_lost_slots(state, record, wanted)
        placed += _reuse_reserved_slots(state, record, _without(wanted, placed), held)
        facts.ready = _without(wanted, placed)
        if facts.ready:
            placed += place_gang(state.cluster, _partial_bid(state, record, facts, now)) or []
            facts.ready = _without(facts.ready, placed)
        refusal = diagnose(state.cluster, _partial_bid(state, record, facts, now)) if facts.ready else None
        if placed:
            plan.start(record, placed)
        if placed or refusal != record.refusal:
            record.refusal = refusal
            state.dirty[record.key] = None
    _reserve_missing_slots(state, record, held)


def _without(pods: list[Pod], placed: Placement) -> list[Pod]:
    return [pod for pod in pods if all(pod is not done for done, _ in placed)]


def _partial_bid(state: State, record: GangRecord, facts: GangFacts, now: float) -> Bid:
    """A bid for as many replacements as fit. Drain targets do not exclude a gang that runs.

    Slots for members without pods are reserved later, for all of them together.
    """
    bid = make_bid(state, record, facts, now)
    existing = [group for group in bid.groups if not group.whole]
    return replace(bid, groups=existing, needed=0, role_needs={}, excluded=None)


def _replacements(facts: GangFacts) -> list[Pod]:
    """The waiting members that fill the gang's minima; members beyond these would take the lost slots."""
    lacking = facts.missing_by_role
    any_role = facts.missing - sum(lacking.values())
    chosen: list[Pod] = []
    for pod in facts.ready:
        if lacking.get(pod.role, 0) > 0:
            lacking[pod.role] -= 1
            chosen.append(pod)
        elif any_role > 0:
            any_role -= 1
            chosen.append(pod)
    return chosen


def _reserve_missing_slots(state: State, record: GangRecord, held: list[Slot]) -> None:
    """Reserves slots for the missing members, with the shape of a waiting replacement or else of a live member.

    `held` are the slots that were reserved for the gang so far and are not in use again.
    """
    facts = state.facts_of(record)
    if not facts.missing:
        return
    reserved: Placement = []
    groups: list[MemberGroup] = []
    for role, count in _missing_by_role(facts).items():
        shape = _likely_shape(facts, role)
        if shape is None:
            continue
        absent = [placeholder(record, shape, role, i) for i in range(count)]
        reused = _reuse_lost_slots(state, record, absent)
        reused += _reuse_reserved_slots(state, record, absent[len(reused) :], held)
        reserved += reused
        rest = absent[len(reused) :]  # equal pods: if one finds no old slot, the ones after it find none either
        if rest:
            groups.append(MemberGroup(role, rest))
    if groups and record.gang is not None:
        bid = Bid(groups, 0, topology=record.gang.topology)
        bid.anchors = tuple(pod.node for pod in facts.live if pod.node is not None)
        reserved += place_gang(state.cluster, bid) or []
    state.mark_reserved(record, reserved)


def _missing_by_role(facts: GangFacts) -> dict[str, int]:
    """The missing members by role; members that no role's minimum covers get the role of a waiting or live one."""
    missing = facts.missing_by_role
    rest = facts.missing - sum(missing.values())
    like = facts.ready[0].role if facts.ready else facts.live[0].role if facts.live else ""
    missing[like] = missing.get(like, 0) + rest
    return {role: count for role, count in missing.items() if count}


def _likely_shape(facts: GangFacts, role: str) -> Shape | None:
    for pods in (facts.ready, facts.live):
        for pod in pods:
            if pod.role == role:
                return pod.shape
    return None


def _reuse_lost_slots(state: State, record: GangRecord, pods: list[Pod]) -> Placement:
    """Places pods on the slots of lost members, on the same devices, as far as these are free."""
    placed: Placement = []
    for pod in pods:
        for slot in record.lost_slots:
            if slot.role == pod.role and _is_free(state, pod, slot):
                state.cluster.add(pod, slot.node, slot.devices)
                placed.append((pod, slot))
                record.lost_slots.remove(slot)
                record.lost_slots.append(slot)
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
