"""One cycle: who has changed, who goes first, who can start, who must wait and for what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_scheduler.core.cluster.node_table import Bools
from gpu_scheduler.core.cycle.drain import (
    check_target,
    choose_target,
    choose_target_after_drain,
    fits_empty,
    refuse_on_empty,
)
from gpu_scheduler.core.cycle.observe import end_quarantines, standby_cycle
from gpu_scheduler.core.cycle.plan import Plan
from gpu_scheduler.core.cycle.preemption import find_victims, refused_evictions, refused_on
from gpu_scheduler.core.cycle.recovery import place_replacements, watch_minimum
from gpu_scheduler.core.cycle.retry import retry_due
from gpu_scheduler.core.events import Effect, Release, Report
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord, phase_of, status_of
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.placement.diagnose import diagnose
from gpu_scheduler.core.placement.domains import Bid, Placement
from gpu_scheduler.core.placement.place import minimum_counts, place_gang
from gpu_scheduler.core.queueing.bid import (
    absent_members,
    excluded_nodes,
    expected_groups,
    make_bid,
    nominated_placeholders,
    queue_position,
)
from gpu_scheduler.core.queueing.fairness import YIELDS_TURN, next_turn, yields_turn
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable, Wake
from gpu_scheduler.core.state import State


def run_cycle(state: State, now: float) -> list[Effect]:
    """Decides everything that can be decided now. Each numbered step relies on the ones before it."""
    if not state.leading:
        standby_cycle(state, now)
        return []
    # 1. What time alone has changed.
    state.fire_timers(now)
    end_quarantines(state, now)
    effects = retry_due(state, now)
    plan = Plan(state, now)
    for record in _by_priority(state, state.inherited_nominations):
        _check_inherited(state, record, now)
    state.inherited_nominations.clear()
    # 2. Every gang that something happened to: its phase, its deadlines, its place in the queue.
    seen = list(state.dirty)
    state.dirty.clear()
    for key in seen:
        if key in state.records:
            refresh_gang(state, state.records[key], now, plan)
    check_target(state, now)
    # 3. Returning capacity belongs to broken gangs first, then to those for whom others were evicted.
    for record in _by_priority(state, state.broken):
        place_replacements(state, record, now, plan)
    for record in _by_priority(state, state.nominated):
        _retry_nominated(state, record, now, plan)
    for record in _by_priority(state, state.reservations_to_renew):
        _renew_reservation(state, record, now, excluded_nodes(state, record, state.facts_of(record), now))
    state.reservations_to_renew.clear()
    # 4. The queue, in order, until nobody who could be helped is left.
    state.queue.wake(state.changes | Wake.TURN, state.could_start)
    state.changes = Wake.NOTHING
    if state.new_victim_priority is not None:
        state.queue.wake(Wake.FREED, state.could_evict_new_victims)
        state.new_victim_priority = None
    drained_for = None
    while plan.accepts_more and (first := _next_gang(state)) is not None:
        decide(state, state.records[first], now, plan)
        drained_for = choose_target_after_drain(state, state.records[first], now) or drained_for
    # 5. A head that others keep from starting gets nodes that run empty for it.
    drained_for = choose_target(state, now) or drained_for
    # 6. One commit for all of it, and a word to everyone concerned.
    commit = plan.commit()
    if commit is not None:
        effects.append(commit)
    effects += [Release(sequence) for sequence in state.ledger.finished()]
    effects += _report_changes(state, dict.fromkeys((*seen, *state.dirty)))
    state.dirty.clear()
    if drained_for is not None:
        state.dirty[drained_for] = None  # it may now have what is refused to others who ask for the same
    return effects


def _next_gang(state: State) -> GangKey | None:
    """The first in the queue. When nodes are drained no longer, who waits for room comes before those behind it."""
    if state.drain_ended and state.target is None:
        state.queue.wake(Wake.FREED, lambda *_: True)
    state.drain_ended = False
    return state.queue.pop(state.share)


def _by_priority(state: State, keys: Iterable[GangKey]) -> list[GangRecord]:
    records = [state.records[key] for key in keys if key in state.records]
    return sorted(records, key=_rank)


def _rank(record: GangRecord) -> tuple[int, float, GangKey]:
    return -record.priority, record.notes.below_since or record.notes.nominated_at or 0.0, record.key


def _report_changes(state: State, keys: Iterable[GangKey]) -> list[Effect]:
    """A report for every gang whose status is no longer what was told last."""
    effects: list[Effect] = []
    for key in keys:
        record = state.records.get(key)
        if record is None:
            continue
        facts = state.facts_of(record)
        facts.hold_expired = record.notes.below_since is not None and key not in state.broken
        record.phase = phase_of(facts)
        refusal = _eviction_refusal(state, record) or record.refusal or state.queue.refusal(key)
        status = status_of(record, facts, refusal)
        if status != record.reported:
            record.reported = status
            effects.append(Report(key, status))
    return effects


def _eviction_refusal(state: State, record: GangRecord) -> Unplaceable | None:
    """What keeps a nominated gang waiting, if the eviction of pods from its slots' nodes is refused."""
    refusal = refused_on(state, {slot.node for slot in record.notes.nomination})
    return Unplaceable((refusal,)) if refusal is not None else None


# -- one gang that something happened to


def refresh_gang(state: State, record: GangRecord, now: float, plan: Plan) -> None:
    """Looks at a gang afresh: deadlines that have passed, and whether it wants a decision."""
    if state.drop_if_empty(record):
        return
    facts = state.facts_of(record)
    state.track_live_priority(record, bool(facts.live) and not facts.in_flight)
    watch_minimum(state, record, facts, now, plan)
    _expire(state, record, facts, now)
    record.refusal = _own_obstacle(state, record, facts, now)
    _drop_stale_decisions(state, record, facts)
    asks = (
        record.refusal is None and not facts.evicting and record.key not in state.broken and not record.notes.nomination
    )
    if not asks or not (facts.ready or _awaits_admission(state, record, facts, now)):
        state.queue.remove(record.key)
        if not facts.ready:
            record.waiting_since = None
        elif record.notes.nomination:
            _record_wait_start(state, record, facts, now)
        return
    _record_wait_start(state, record, facts, now)
    _enqueue(state, record, facts, now)


def _record_wait_start(state: State, record: GangRecord, facts: GangFacts, now: float) -> None:
    """Notes since when a gang waits, also for room that an earlier leader began to make for it."""
    if record.waiting_since is None:
        # A new leader must agree about how long a gang has waited, so the pods' own times count.
        record.waiting_since = min(now, max((pod.created for pod in facts.ready), default=now))
        if record.gang is not None and record.gang.timeout is not None:
            state.schedule_timer(record.waiting_since + record.gang.timeout, record.key)
        state.schedule_timer(record.waiting_since + state.config.drain_after, record.key)


def _enqueue(state: State, record: GangRecord, facts: GangFacts, now: float) -> None:
    record.facts, record.bid = facts, make_bid(state, record, facts, now)
    state.queue.add(record.key, queue_position(state, record, facts, record.bid))


def _own_obstacle(state: State, record: GangRecord, facts: GangFacts, now: float) -> Unplaceable | None:
    """What has to change about the gang itself before it makes sense to decide anything."""
    gang = record.gang
    missing = facts.short_of_quorum
    if gang is None:
        found = Refusal(Reason.GANG_GONE)
    elif gang.problem:
        found = Refusal(Reason.INVALID, gang.problem)
    elif gang.paused:
        found = Refusal(Reason.PAUSED)
    elif missing and facts.gated:
        found = Refusal(Reason.GATED, facts.gated[0].gates[0].subject, short_by=missing)
    elif missing and _members_start_together(facts) and not _awaits_admission(state, record, facts, now):
        found = Refusal(Reason.MEMBERS_MISSING, short_by=missing)
    elif record.not_before > now:
        found = Refusal(Reason.BACK_OFF)
    else:
        return None
    return Unplaceable((found,), facts.minimum, facts.have) if facts.ready or facts.gated or missing else None


def _members_start_together(facts: GangFacts) -> bool:
    """Whether members wait for each other: when the hold is over, who is bound alone would be deleted at once."""
    return not facts.started or (facts.hold_expired and any(pod.controlled for pod in facts.ready))


def _awaits_admission(state: State, record: GangRecord, facts: GangFacts, now: float) -> bool:
    """Whether members that do not exist yet are to be proved placeable before their pods are made."""
    if record.notes.admitted_at is not None or facts.ready or facts.gated or facts.succeeded or facts.failed:
        return False
    return any(count > 0 for _, count in absent_members(state, record, facts, now))


def _expire(state: State, record: GangRecord, facts: GangFacts, now: float) -> None:
    """Ends nominations, reservations and waits that have lasted too long."""
    config = state.config
    if record.notes.nominated_at is not None and now >= record.notes.nominated_at + config.nominate:
        _drop_nomination(state, record)
        state.back_off(record, now)
    ended = (facts.succeeded or facts.failed) and not (facts.started or facts.ready or facts.gated)
    if record.notes.admitted_at is not None and (ended or now >= record.notes.admitted_at + config.reserve):
        if record.reserved and record.key not in state.broken:
            state.release_slots(record)
            state.changes |= Wake.FREED
        record.update_notes(admitted_at=None)
        record.reservation_unused = not facts.started and not ended
    timeout = record.gang.timeout if record.gang is not None else None
    if timeout is not None and record.waiting_since is not None and facts.missing:
        # A back-off does not count as waiting; how long the gang has been blocked in all is what drains nodes for it.
        due = max(record.waiting_since, record.not_before) + timeout
        if now >= due:
            record.timed_out = True
            _drop_nomination(state, record)
            state.back_off(record, now)
        else:
            state.schedule_timer(due, record.key)
    if facts.started and not facts.missing:
        record.timed_out = False


def _drop_stale_decisions(state: State, record: GangRecord, facts: GangFacts) -> None:
    """Gives up what was kept for a gang that has started, or that must change itself before it can."""
    if record.notes.nomination and not facts.missing:
        _drop_nomination(state, record)
    stuck = record.refusal is not None and not record.refusal.wake_on & Wake.TIME
    if record.notes.target and (stuck or not facts.missing or record.key in state.broken):
        state.clear_target(record)


def _drop_nomination(state: State, record: GangRecord) -> None:
    if record.notes.nomination:
        record.update_notes(nomination=(), nominated_at=None)
        state.nominated.pop(record.key, None)
        state.release_slots(record)
        state.changes |= Wake.FREED


# -- one gang whose turn it is


def decide(state: State, record: GangRecord, now: float, plan: Plan) -> None:
    """Starts a gang, or finds out why it cannot start and lets it wait for that to change."""
    last = state.queue.refusal(record.key)
    if yields_turn(state, record, now, plan):
        state.queue.park(record.key, YIELDS_TURN)
        if last != YIELDS_TURN:
            state.dirty[record.key] = None
            state.schedule_timer(next_turn(state, now), record.key)
        return
    if last is not None and not _worth_retrying(state, record, last):
        state.queue.park(record.key, last)
        return
    state.dirty[record.key] = None
    facts, bid = _current_bid(state, record, now)
    kept = state.reserved_slots(record)
    state.release_slots(record)
    refusal, bid = _check_quota(state, record, bid)
    placement = place_gang(state.cluster, bid) if refusal is None else None
    if placement:
        _start(state, record, placement, now, plan)
        _renew_reservation(state, record, now, bid.excluded)
        return
    state.reserve_slots(record, kept)
    if refusal is not None:
        state.clear_target(record)
    refused = Unplaceable((refusal,), bid.needed, 0) if refusal is not None else diagnose(state.cluster, bid)
    if placement is not None:
        refused = replace(refused, short=())  # of members beyond the minimum any one is welcome
    elif refusal is None:
        if not fits_empty(state, bid):
            state.clear_target(record)
            refused = refuse_on_empty(state, bid)
        elif _nominate(state, record, facts, bid, now, plan):
            return
        elif (hindrance := refused_evictions(state, bid)) is not None:
            refused = replace(refused, refusals=(*refused.refusals, hindrance))
    for key in state.queue.park(record.key, refused):
        state.dirty[key] = None


def _worth_retrying(state: State, record: GangRecord, last: Unplaceable) -> bool:
    """Whether another try makes sense; a refusal that only a change of nodes could cure is out of date after one."""
    if not last.short or not last.wake_on & Wake.FREED:
        return True
    return state.could_start(record.key, last)


def _current_bid(state: State, record: GangRecord, now: float) -> tuple[GangFacts, Bid]:
    """What a gang asks for: as of the last time something happened to it, but for what time and others change."""
    facts, bid = record.facts, record.bid
    others_matter = state.cluster.pod_counts.anti_affinity_matches()
    if facts is None or bid is None or others_matter or any(group.whole for group in bid.groups):
        facts = state.facts_of(record)
        return facts, make_bid(state, record, facts, now)
    bid.excluded = excluded_nodes(state, record, facts, now)
    return facts, bid


def _start(state: State, record: GangRecord, placement: Placement, now: float, plan: Plan) -> None:
    """Takes a placement: real members are bound, slots of members still to come are kept for a while."""
    state.queue.remove(record.key)
    _drop_nomination(state, record)
    state.clear_target(record)
    record.waiting_since, record.refusal = None, None
    plan.start(record, placement)
    if record.reserved and record.notes.admitted_at is None:
        record.update_notes(admitted_at=now)
        state.schedule_timer(now + state.config.reserve, record.key)
    if record.bid is None or len(placement) < record.bid.size:
        facts = state.facts_of(record)
        if facts.ready:
            _enqueue(state, record, facts, now)
    else:
        record.facts = record.bid = None


def _check_quota(state: State, record: GangRecord, bid: Bid) -> tuple[Refusal | None, Bid]:
    """Whether the queue may take the minimum; members beyond it that would pass a limit are left out of the bid."""
    quota = state.quota
    name, namespace = state.queue_of(record), record.key.namespace
    if not quota.has_limits(name):
        return None, bid
    everyone = quota.total_charge(pod.shape for group in bid.groups for pod in group.pods)
    refusal = quota.refuse(name, namespace, everyone)
    if refusal is None:
        return None, bid
    counts = list(minimum_counts(state.cluster, bid))
    shapes = [pod.shape for group, count in zip(bid.groups, counts, strict=True) for pod in group.pods[:count]]
    if shapes and (short := quota.refuse(name, namespace, quota.total_charge(shapes))) is not None:
        return short, bid
    for i, group in enumerate(bid.groups):
        for pod in group.pods[counts[i] :]:
            over = quota.refuse(name, namespace, quota.total_charge([*shapes, pod.shape]))
            if over is not None:
                refusal = over
                break
            shapes.append(pod.shape)
            counts[i] += 1
    trimmed = [replace(g, pods=g.pods[:count]) for g, count in zip(bid.groups, counts, strict=True) if count]
    return (None, replace(bid, groups=trimmed)) if trimmed else (refusal, bid)


def _nominate(state: State, record: GangRecord, facts: GangFacts, bid: Bid, now: float, plan: Plan) -> bool:
    """Evicts for a gang, if that is sure to make room, and keeps the room until the victims are gone."""
    if any(group.whole for group in bid.groups):
        return False
    eviction = find_victims(state, record, bid)
    if eviction is None:
        return False
    for pod, cause in eviction.pods.values():
        plan.delete(pod, cause)
        state.dirty[state.key_of(pod)] = None
    state.queue.remove(record.key)
    record.update_notes(nomination=tuple(slot for _, slot in eviction.placement), nominated_at=now)
    record.refusal = Unplaceable((Refusal(Reason.EVICTING, short_by=len(eviction.pods)),), bid.needed, 0)
    state.nominated[record.key] = None
    state.schedule_timer(now + state.config.nominate, record.key)
    state.reserve_slots(record, nominated_placeholders(record, facts))
    return True


def _retry_nominated(state: State, record: GangRecord, now: float, plan: Plan) -> None:
    """Decides a nominated gang afresh once its slots are really free; until then they stay kept for it."""
    state.release_slots(record)
    facts = state.facts_of(record)
    if facts.short_of_quorum or facts.blocked or not facts.exists:
        _drop_nomination(state, record)
        return
    record.facts, record.bid = facts, make_bid(state, record, facts, now)  # others may have come meanwhile
    refusal, bid = _check_quota(state, record, record.bid)
    placement = place_gang(state.cluster, bid) if plan.accepts_more and refusal is None else None
    if placement:
        state.dirty[record.key] = None
        _start(state, record, placement, now, plan)
    else:
        state.reserve_slots(record, nominated_placeholders(record, facts))


def _check_inherited(state: State, record: GangRecord, now: float) -> None:
    """Drops the nomination of a leader that died before it committed the evictions: nobody makes room for it."""
    facts = state.facts_of(record)
    if not record.notes.nomination or not facts.ready:
        return
    going = [pod.uid for pod in state.pods.values() if pod.deleting or pod.uid in state.ledger.deletes]
    with state.cluster.trial():
        for uid in (*going, *state.quarantined):
            state.cluster.forget(uid)
        if place_gang(state.cluster, make_bid(state, record, facts, now)):
            return
    _drop_nomination(state, record)


def _renew_reservation(state: State, record: GangRecord, now: float, excluded: Bools | None) -> None:
    """Keeps slots anew for a gang that was admitted, by this leader or an earlier one, and lacks members."""
    gang, admitted_at = record.gang, record.notes.admitted_at
    if gang is None or admitted_at is None or record.reserved or now >= admitted_at + state.config.reserve:
        return
    have = state.facts_of(record).have_by_role
    groups = expected_groups(record, [(e, e.count - have.get(e.role, 0)) for e in gang.expected])
    refusal, bid = _check_quota(state, record, Bid(groups, 0, topology=gang.topology, excluded=excluded))
    placement = place_gang(state.cluster, bid) if groups and refusal is None else None
    state.mark_reserved(record, placement or [])
