"""Reservation rotation: a gang whose reserved slots were not used yields to the other gangs of its queue, by rounds."""

from __future__ import annotations

from gpu_scheduler.core.cycle.plan import CyclePlan
from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.queueing.bid import has_unused_reservation
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable, Wake
from gpu_scheduler.core.state import State

YIELDS_TURN = Unplaceable((Refusal(Reason.YIELDS_TURN),))
_ROUNDS = 3
"""Rounds of one rotation; a gang with an unused reservation may start in the first."""


def yields_turn(state: State, record: GangRecord, now: float, plan: CyclePlan) -> bool:
    """Whether a gang with an unused reservation leaves the capacity of its queue to other gangs that wait there.

    A round lasts as long as a reservation. In the first of three rounds the gang may reserve slots; in the second they
    expire; in the third no unused reservation is left, so a gang that needs all of that capacity at once can start or
    get a drain target.
    """
    queue = state.queue_of(record)
    unused = record.facts is not None and has_unused_reservation(record, record.facts)
    if _round(state, now) % _ROUNDS == 0 or not unused or not state.quota.has_limits(queue):
        return False
    if plan.contended_queues is None:
        plan.contended_queues = _contended_queues(state, now)
    return queue in plan.contended_queues


def next_turn(state: State, now: float) -> float:
    """When the next rotation begins."""
    number = _round(state, now)
    return (number - number % _ROUNDS + _ROUNDS) * _round_seconds(state)


def _round(state: State, now: float) -> int:
    return int(now // _round_seconds(state))


def _round_seconds(state: State) -> float:
    return max(1.0, state.config.reserve)


def _contended_queues(state: State, now: float) -> set[str]:
    """The queues in which a gang without an unused reservation waits for capacity, or backs off."""
    parked = [state.records[key] for key in state.queue.parked(Wake.FREED)]
    backing_off = [r for r in state.records.values() if r.waiting_since is not None and r.not_before > now]
    return {state.queue_of(r) for r in (*parked, *backing_off) if not has_unused_reservation(r, state.facts_of(r))}
