"""Nominations: slots that are reserved for a gang while its victims are evicted."""

from __future__ import annotations

from bisect import bisect_left

from gpu_scheduler.core.cycle.drain import may_evict
from gpu_scheduler.core.cycle.plan import CyclePlan
from gpu_scheduler.core.cycle.preemption import find_victims, leaving_pods
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.placement.domains import Bid
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.queueing.bid import make_bid, nominated_placeholders
from gpu_scheduler.core.reasons import FULL_QUEUE, Reason, Refusal, Unplaceable, Wake
from gpu_scheduler.core.state import State


def nominate(
    state: State,
    record: GangRecord,
    facts: GangFacts,
    bid: Bid,
    now: float,
    plan: CyclePlan,
    limit: Refusal | None = None,
) -> bool:
    """Evicts victims for a gang, if that is proved to suffice, and reserves their slots until they are gone.

    `limit` is the refusal of its queue if that is full.
    """
    if any(group.whole for group in bid.groups) and not may_evict(state, record, facts):
        return False
    eviction = find_victims(state, record, bid, now, limit)
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
    reserve_nominated(state, record, facts, now)
    return True


def reserve_nominated(state: State, record: GangRecord, facts: GangFacts, now: float) -> None:
    """Reserves the nominated slots of a gang; drops the nomination if its queue may not take the waiting members.

    While victims of a full queue end, the slots are charged only as far as the limit allows.
    """
    kept = nominated_placeholders(state, record, facts, now)
    refusal = state.refuse(record, state.quota.total_charge(pod.shape for pod, _ in kept))
    if refusal is not None and not _waits_for_victims(state, refusal):
        drop_nomination(state, record)
        state.dirty[record.key] = None
        return
    charged = len(kept)
    if refusal is not None:
        shapes = [pod.shape for pod, _ in kept]
        charged = bisect_left(
            range(len(kept)),
            True,
            key=lambda n: state.refuse(record, state.quota.total_charge(shapes[: n + 1])) is not None,
        )
    state.reserve_slots(record, kept, charged)


def _waits_for_victims(state: State, refusal: Refusal) -> bool:
    """Whether pods are ending that the full queue is charged for, or that use what other queues keep."""
    quota, anywhere = state.quota, refusal.reason is Reason.KEPT_QUOTA
    return refusal.reason in FULL_QUEUE and any(
        anywhere or refusal.queue in quota.path(quota.queue_of_pod(uid))
        for uid in (*leaving_pods(state), *state.quarantined)
    )


def drop_nomination(state: State, record: GangRecord) -> None:
    """Drops the nomination of a gang and releases its slots."""
    if record.notes.nomination:
        record.update_notes(nomination=(), nominated_at=None)
        state.nominated.pop(record.key, None)
        state.release_slots(record)
        state.changes |= Wake.FREED


def check_inherited(state: State, record: GangRecord, now: float) -> None:
    """Drops a nomination of an earlier leader that stopped before it committed the evictions."""
    facts = state.facts_of(record)
    if not record.notes.nomination or not (facts.ready or facts.awaits_admission):
        return
    deleting = [pod.uid for pod in state.pods.values() if pod.deleting or pod.uid in state.ledger.deletes]
    with state.cluster.trial():
        for uid in (*deleting, *state.quarantined):
            state.cluster.forget(uid)
        if place_gang(state.cluster, make_bid(state, record, facts, now)):
            return
    drop_nomination(state, record)
