"""One scheduling cycle: refreshes changed gangs, tries the queue in order, and starts, nominates or parks each gang."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpu_scheduler.core.cluster.node_table import Bools
from gpu_scheduler.core.cycle.drain import (
    ask_queue,
    bar_from_drains,
    charge_target,
    check_admission,
    check_target,
    choose_target,
    choose_target_after_drain,
    expire_target,
    fits_empty,
    note_admission,
    refuse_on_empty,
)
from gpu_scheduler.core.cycle.let_in import may_be_let_in, place_beside_owner
from gpu_scheduler.core.cycle.losses import charge_losses, replace_lost
from gpu_scheduler.core.cycle.nomination import check_inherited, drop_nomination, nominate, reserve_nominated
from gpu_scheduler.core.cycle.observe import end_quarantines, standby_cycle
from gpu_scheduler.core.cycle.obstacles import own_obstacle
from gpu_scheduler.core.cycle.plan import CyclePlan, report_changes
from gpu_scheduler.core.cycle.preemption import refused_evictions
from gpu_scheduler.core.cycle.recovery import place_added, place_replacements, watch_minimum
from gpu_scheduler.core.cycle.retry import retry_due
from gpu_scheduler.core.events import Effect, Release
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord, Setback
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.placement.diagnose import diagnose
from gpu_scheduler.core.placement.domains import Bid, Placement
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.queueing.bid import (
    check_quota,
    excluded_nodes,
    expected_groups,
    make_bid,
    minimum_of,
    queue_position,
)
from gpu_scheduler.core.queueing.budget import Rotation
from gpu_scheduler.core.queueing.fairness import YIELDS_TURN, next_turn, yields_turn
from gpu_scheduler.core.reasons import FULL_QUEUE, Refusal, Unplaceable, Wake
from gpu_scheduler.core.state import State

PlaceMembers = Callable[[State, GangRecord, float, CyclePlan], None]


def run_cycle(state: State, now: float) -> list[Effect]:
    """Decides everything that can be decided now. Each numbered step relies on the ones before it."""
    went_on, state.unfinished = state.unfinished, False
    if not state.leading:
        standby_cycle(state, now)
        return []
    # 1. Timers, quarantines and retries that are due.
    state.fire_timers(now)
    end_quarantines(state, now)
    effects = retry_due(state, now)
    plan = CyclePlan(state, now)
    state.budget.begin_cycle(state.work)
    for record in _by_priority(state, state.inherited_nominations):
        check_inherited(state, record, now)
    state.inherited_nominations.clear()
    # 2. Every changed gang: its phase, its deadlines, its position in the queue.
    seen = _refresh_changed(state, now, plan)
    # 3. Freed capacity goes to gangs below their minimum first, then to nominated gangs.
    changed = not went_on or bool(seen or state.changes)
    _place_broken(state, now, plan, place_replacements, state.budget.replacements, changed)
    for record in _by_priority(state, state.nominated):
        _retry_nominated(state, record, now, plan)
    for record in _by_priority(state, state.reservations_to_renew):
        _renew_reservation(state, record, now, excluded_nodes(state, record, state.facts_of(record), now))
    state.reservations_to_renew.clear()
    # 4. The queue in order, until no ready gang is left or the work of the cycle is used up.
    state.queue.wake(state.changes | Wake.TURN, state.might_start)
    state.changes = Wake.NOTHING
    if state.new_victim_priority is not None:
        state.queue.wake(Wake.FREED, state.could_evict_new_victims)
        state.new_victim_priority = None
    drained_for = _try_queue(state, now, plan)
    _place_broken(state, now, plan, place_added, state.budget.additions, changed)
    # 5. A drain target for the first gang that has waited too long.
    drained_for = choose_target(state, now) or drained_for
    # 6. One commit for all decisions, and a report for every gang whose status changed.
    commit = plan.commit()
    if commit is not None:
        effects.append(commit)
    left = state.budget.has_turns_left or not state.budget.has_work_left(state.work)
    state.unfinished = plan.accepts_more and (left or state.queue.has_ready)
    effects += [Release(sequence) for sequence in state.ledger.finished()]
    effects += report_changes(state, dict.fromkeys((*seen, *state.dirty)))
    state.dirty.clear()
    if drained_for is not None:
        state.dirty[drained_for] = None  # it leaves its equivalence class: only it may use the target
    return effects


def _refresh_changed(state: State, now: float, plan: CyclePlan) -> list[GangKey]:
    """Refreshes every changed gang, and then what depends on all of them; returns the changed gangs."""
    seen = list(state.dirty)
    state.dirty.clear()
    for key in seen:
        if key in state.records:
            refresh_gang(state, state.records[key], now, plan)
    for record in _by_priority(state, state.broken):
        charge_losses(state, record)  # before any gang asks its queue
    check_target(state, now)
    return seen


def _place_broken(
    state: State, now: float, plan: CyclePlan, place: PlaceMembers, turns: Rotation, changed: bool
) -> None:
    """Places members of gangs below their minimum until half of the cycle's work is used; the next cycle goes on with
    the gangs left over."""
    if not state.broken and not turns.has_turns_left:
        return
    keys = [record.key for record in _by_priority(state, state.broken)]
    for key in turns.take_turns(keys, changed, lambda: state.work):
        place(state, state.records[key], now, plan)


def _try_queue(state: State, now: float, plan: CyclePlan) -> GangKey | None:
    """Tries the ready gangs in order until the work of the cycle is used up; returns the gang that got a target."""
    budget, drained_for = state.budget, None
    budget.begin_queue(state.work)
    while plan.accepts_more and budget.has_work_left(before := state.work) and (first := _next_gang(state)) is not None:
        position = state.queue.position_of(first)
        decided = schedule_gang(state, state.records[first], now, plan)
        if position.flow.podless or not decided:
            budget.note(position, state.work - before, refused=not decided)
        drained_for = choose_target_after_drain(state, state.records[first], now) or drained_for
    return drained_for


def _next_gang(state: State) -> GangKey | None:
    """The next gang of the queue. After a drain, parked gangs that wait for capacity are tried again first."""
    if state.drain_ended and state.target is None:
        state.queue.wake(Wake.FREED, lambda *_: True)
    state.drain_ended = False
    order = state.queue_order
    first = state.queue.pop(order, state.budget.waits)
    if first is None and state.budget.end_round():
        first = state.queue.pop(order, state.budget.waits)
    return first


def _by_priority(state: State, keys: Iterable[GangKey]) -> list[GangRecord]:
    records = [state.records[key] for key in keys if key in state.records]
    return sorted(records, key=_rank)


def _rank(record: GangRecord) -> tuple[int, float, GangKey]:
    return -record.priority, record.notes.below_since or record.notes.nominated_at or 0.0, record.key


# -- one changed gang


def refresh_gang(state: State, record: GangRecord, now: float, plan: CyclePlan) -> None:
    """Refreshes a changed gang: expires its deadlines, and adds it to the queue if it wants a decision."""
    check_admission(state, record)
    if state.drop_if_empty(record):
        return
    facts = state.facts_of(record)
    live = bool(facts.live) and not facts.in_flight
    state.track_live_priority(record, live)
    state.track_surplus(record, live and facts.exists and facts.have > facts.minimum)
    if record.evictable_at is not None and now >= record.evictable_at:
        record.evictable_at = None
        state.note_new_victim(record.priority)
    watch_minimum(state, record, facts, now, plan)
    _expire(state, record, facts, now)
    expire_target(state, record, facts, now)
    record.refusal = own_obstacle(record, facts, now)
    record.last_refusal = state.queue.refusal(record.key) or record.last_refusal
    _drop_stale_decisions(state, record, facts)
    queued = (
        record.refusal is None and not facts.evicting and record.key not in state.broken and not record.notes.nomination
    )
    if not queued or not (facts.ready or facts.awaits_admission):
        state.queue.remove(record.key)
        if record.notes.nomination:
            _record_wait_start(state, record, facts, now)
        elif not facts.ready:
            record.waiting_since = None
        return
    _record_wait_start(state, record, facts, now)
    _enqueue(state, record, facts, now)


def _record_wait_start(state: State, record: GangRecord, facts: GangFacts, now: float) -> None:
    """Records since when a gang waits, and schedules its timeout and drain timers."""
    if record.waiting_since is None:
        # The creation times of the pods count, so that a new leader computes the same.
        record.waiting_since = min(now, max((pod.created for pod in facts.ready), default=now))
        if record.gang is not None and record.gang.timeout is not None:
            due = record.waiting_since + record.gang.timeout
            record.timed_out = record.timed_out or (now >= due and facts.missing > 0)
            state.schedule_timer(due, record.key)
        state.schedule_timer(record.waiting_since + state.config.drain_after, record.key)


def _enqueue(state: State, record: GangRecord, facts: GangFacts, now: float) -> None:
    record.facts, record.bid, record.unfit_version = facts, make_bid(state, record, facts, now), None
    state.queue.add(record.key, queue_position(state, record, facts, record.bid))


def _expire(state: State, record: GangRecord, facts: GangFacts, now: float) -> None:
    """Ends nominations, reservations and waiting times that have expired."""
    config = state.config
    if record.notes.nominated_at is not None and now >= record.notes.nominated_at + config.nominate:
        drop_nomination(state, record)
        state.back_off(record, now, Setback.VICTIMS_REMAINED)
    ended = (facts.succeeded or facts.failed) and not (facts.started or facts.ready or facts.gated)
    over = ended or facts.complete  # or it has been used
    if record.notes.admitted_at is not None and (over or now >= record.notes.admitted_at + config.reserve):
        if record.reserved and record.key not in state.broken:
            state.budget.spend_in_advance(len(record.reserved))
            state.release_slots(record)
            state.changes |= Wake.FREED
        record.update_notes(admitted_at=None)
        facts.reserved = False
        record.reservation_unused, record.last_turn = not facts.started and not ended, now
        if record.reservation_unused and record.admitted_from is not None:
            bar_from_drains(state, record.admitted_from, unused=True)
    timeout = record.gang.timeout if record.gang is not None else None
    if timeout is not None and record.waiting_since is not None and facts.missing:
        # A backoff does not count towards the timeout; a drain target depends on the total waiting time.
        due = max(record.waiting_since, record.not_before) + timeout
        if now >= due:
            record.timed_out = True
            drop_nomination(state, record)
            state.back_off(record, now, Setback.TIMED_OUT)
        else:
            state.schedule_timer(due, record.key)
    if facts.started and not facts.missing:
        record.timed_out, record.last_failure, record.reservation_unused = False, None, False


def _drop_stale_decisions(state: State, record: GangRecord, facts: GangFacts) -> None:
    """Drops the nomination and drain target of a gang that has started, or that cannot start by itself."""
    if record.notes.nomination and not facts.missing:
        drop_nomination(state, record)
    stuck = record.refusal is not None and not record.refusal.wake_on & Wake.TIME
    if record.notes.target and (stuck or not facts.missing or record.key in state.broken):
        state.clear_target(record)


# -- one gang of the queue


def schedule_gang(state: State, record: GangRecord, now: float, plan: CyclePlan) -> bool:
    """Starts a gang, or nominates it, or parks it with the refusal; False if it is parked."""
    state.cluster.work += 1
    last = state.queue.refusal(record.key)
    if yields_turn(state, record, now, plan):
        state.queue.park(record.key, YIELDS_TURN)
        if last != YIELDS_TURN:
            state.dirty[record.key] = None
            state.schedule_timer(next_turn(state, now), record.key)
        return False
    if last is not None and not _worth_retrying(state, record, last):
        state.queue.park(record.key, last)
        return False
    state.dirty[record.key] = None
    facts, bid = _current_bid(state, record, now)
    reserved = state.reserved_slots(record)
    state.release_slots(record)
    refusal, bid = ask_queue(state, record, bid, now)
    if bid.needed and bid.size > bid.needed and state.queue.another_minimum_waits(record.key):
        bid = minimum_of(state, bid)
    placement = place_gang(state.cluster, bid) if refusal is None else None
    let_in = refusal is None and not placement and may_be_let_in(state, bid)
    if let_in:
        placement = place_beside_owner(state, bid, now) or placement
    if placement:
        _start(state, record, placement, now, plan)
        _renew_reservation(state, record, now, bid.excluded)
        return True
    state.reserve_slots(record, reserved)
    if refusal is not None or (record.notes.target and not charge_target(state, record, now)):
        state.clear_target(record)
    if placement is not None:
        refused = replace(diagnose(state.cluster, bid), short=())  # any free slot helps members beyond the minimum
    elif (found := _evict_for(state, record, facts, bid, refusal, now, plan)) is None:
        return True
    else:
        refused = found
    # Members of several kinds may find room beside the owner of a target when other pods lead to another arrangement.
    also = Wake.POD_BOUND if let_in else Wake.NOTHING
    for key in state.queue.park(record.key, refused, also):
        state.dirty[key] = None
    return False


def _evict_for(
    state: State,
    record: GangRecord,
    facts: GangFacts,
    bid: Bid,
    refusal: Refusal | None,
    now: float,
    plan: CyclePlan,
) -> Unplaceable | None:
    """Nominates a gang that finds no place, or that its queue refuses, if victims suffice; otherwise returns why it
    cannot start."""
    if refusal is not None:
        nominated = refusal.reason in FULL_QUEUE and nominate(state, record, facts, bid, now, plan, refusal)
        return None if nominated else Unplaceable((refusal,), bid.needed, 0)
    if not fits_empty(state, bid):
        state.clear_target(record)
        return refuse_on_empty(state, bid)
    refused = diagnose(state.cluster, bid)
    if nominate(state, record, facts, bid, now, plan):
        return None
    hindrance = refused_evictions(state, bid)
    return refused if hindrance is None else replace(refused, refusals=(*refused.refusals, hindrance))


def _worth_retrying(state: State, record: GangRecord, last: Unplaceable) -> bool:
    """Whether a refused gang is worth another attempt: always, unless the same capacity is still missing."""
    if not last.short or not last.wake_on & Wake.FREED:
        return True
    return state.could_start(record.key, last)


def _current_bid(state: State, record: GangRecord, now: float) -> tuple[GangFacts, Bid]:
    """The facts and bid of the last refresh, or new ones if other pods or time change them."""
    facts, bid = record.facts, record.bid
    anti_affinity = state.cluster.pod_counts.anti_affinity_matches()
    if facts is None or bid is None or anti_affinity or any(group.whole for group in bid.groups):
        facts = state.facts_of(record)
        return facts, make_bid(state, record, facts, now)
    bid.excluded = excluded_nodes(state, record, facts, now)
    return facts, bid


def _start(state: State, record: GangRecord, placement: Placement, now: float, plan: CyclePlan) -> None:
    """Starts a gang on a placement: binds its members and reserves the slots of expected members."""
    state.queue.remove(record.key)
    drop_nomination(state, record)
    state.clear_target(record)
    record.waiting_since, record.refusal, record.last_refusal = None, None, None
    plan.start(record, placement)
    for pod, _ in placement if record.lost else ():
        replace_lost(state, record.lost, pod)
    if record.reserved and record.notes.admitted_at is None:
        record.update_notes(admitted_at=now)
        state.schedule_timer(now + state.config.reserve, record.key)
        if len(record.reserved) == len(placement):
            note_admission(state, record)
    if record.bid is None or len(placement) < record.bid.size:
        facts = state.facts_of(record)
        if facts.ready:
            _enqueue(state, record, facts, now)
    else:
        record.facts = record.bid = None


def _retry_nominated(state: State, record: GangRecord, now: float, plan: CyclePlan) -> None:
    """Starts a nominated gang if its slots are free; otherwise they stay reserved."""
    state.release_slots(record)
    facts = state.facts_of(record)
    if (facts.short_of_quorum and not facts.awaits_admission) or facts.blocked or not facts.exists:
        drop_nomination(state, record)
        return
    record.facts, record.bid = facts, make_bid(state, record, facts, now)  # new members may have come
    refusal, bid = check_quota(state, record, record.bid)
    placement = place_gang(state.cluster, bid) if plan.accepts_more and refusal is None else None
    if placement:
        state.dirty[record.key] = None
        _start(state, record, placement, now, plan)
    else:
        reserve_nominated(state, record, facts, now)


def _renew_reservation(state: State, record: GangRecord, now: float, excluded: Bools | None) -> None:
    """Reserves slots again for the expected members of a gang that this or an earlier leader admitted."""
    gang, admitted_at = record.gang, record.notes.admitted_at
    if gang is None or admitted_at is None or record.reserved or now >= admitted_at + state.config.reserve:
        return
    facts = state.facts_of(record)
    if not facts.ready and not facts.started:
        note_admission(state, record)
    have = facts.have_by_role
    groups = expected_groups(record, [(e, e.count - have.get(e.role, 0)) for e in gang.expected])
    refusal, bid = check_quota(state, record, Bid(groups, 0, topology=gang.topology, excluded=excluded))
    placement = place_gang(state.cluster, bid) if groups and refusal is None else None
    state.mark_reserved(record, placement or [])
