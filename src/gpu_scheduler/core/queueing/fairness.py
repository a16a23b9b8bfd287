"""Who lets others go first: a gang for whose members slots were kept in vain."""

from __future__ import annotations

from gpu_scheduler.core.cycle.plan import Plan
from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.queueing.bid import asks_last
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable, Wake
from gpu_scheduler.core.state import State

GIVES_WAY = Unplaceable((Refusal(Reason.GIVES_WAY),))
_TURNS = 3


def gives_way(state: State, record: GangRecord, now: float, plan: Plan) -> bool:
    """Whether a gang whose members did not come leaves what its queue may use to others who wait there.

    Of three spells, each as long as slots are kept, it asks in the first. Slots kept then are given back in the second.
    In the third nobody keeps any in vain: whoever needs what they kept together has it, or gets nodes drained.
    """
    queue = state.queue_of(record)
    mine = _spell(state, now) % _TURNS == 0
    if mine or record.facts is None or not asks_last(record, record.facts) or not state.quota.limits(queue):
        return False
    if plan.in_demand is None:
        plan.in_demand = _queues_in_demand(state, now)
    return queue in plan.in_demand


def next_turn(state: State, now: float) -> float:
    """When those who give way may ask again."""
    spell = _spell(state, now)
    return (spell - spell % _TURNS + _TURNS) * _length(state)


def _spell(state: State, now: float) -> int:
    return int(now // _length(state))


def _length(state: State) -> float:
    return max(1.0, state.config.reserve)


def _queues_in_demand(state: State, now: float) -> set[str]:
    """The queues of gangs that wait for others to end, or for their next try, and do not themselves ask last."""
    parked = [state.records[key] for key in state.queue.parked(Wake.FREED)]
    resting = [r for r in state.records.values() if r.waiting_since is not None and r.not_before > now]
    return {state.queue_of(r) for r in (*parked, *resting) if not asks_last(r, state.facts_of(r))}
