"""Loans: GPUs that a queue is entitled to and that other queues use at the moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.core.cycle.drain import may_evict
from gpu_scheduler.core.cycle.victims import across_queues, is_too_young
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.model import AcrossQueues
from gpu_scheduler.core.queueing.bid import make_bid, minimum_of
from gpu_scheduler.core.reasons import Reason, Unplaceable
from gpu_scheduler.core.state import State


class KeptBecause(Enum):
    """Why a queue keeps what it borrowed although the owner of the quota waits for it."""

    NEVER = "this queue is set to acrossQueues: Never"
    NOT_RECLAIMABLE = "it is set to reclaimable: false"
    OUTRANKED = "its gangs may preempt this one by their priority"
    TOO_YOUNG = "its gangs have not run for minRuntimeSeconds yet"
    ONE_AT_A_TIME = "pods are evicted for one gang without pods at a time, and for none that did not use its slots"
    UNSUITABLE = "the eviction of its gangs would not make room for this one"


@dataclass(frozen=True, slots=True)
class Loan:
    """What another queue uses beyond its quota, in units of requests, and why it keeps it."""

    queue: str
    amount: int
    why: KeptBecause


def loans_to(state: State, record: GangRecord, refused: Unplaceable | None, now: float) -> Iterator[Loan]:
    """The queues that borrow what a gang needs and its own queue is entitled to."""
    scarce = next((r.subject for r in refused.refusals if r.reason is Reason.RESOURCE), None) if refused else None
    name, quota = state.queue_of(record), state.quota
    if scarce is None or refused is None or refused.too_large:
        return
    facts = state.facts_of(record)
    bid = minimum_of(state, make_bid(state, record, facts, now))
    wanted = quota.charge_of_shapes(bid.shapes)
    for other in sorted({state.queue_of(r) for r in state.records.values()} - {name}):
        ours, theirs, common = quota.apart(name, other)
        borrowed = min((quota.borrowed(queue, scarce) for queue in theirs), default=0)
        if borrowed > 0 and quota.within_quota(ours, wanted, [scarce]):
            why = _kept_because(state, record, facts, other, theirs, common, now)
            yield Loan(other, borrowed // quota.scale(scarce), why)


def _kept_because(
    state: State,
    record: GangRecord,
    facts: GangFacts,
    borrower: str,
    path: Sequence[str],
    common: str | None,
    now: float,
) -> KeptBecause:
    if across_queues(state, state.queue_of(record)) is AcrossQueues.NEVER:
        return KeptBecause.NEVER
    queues = [queue for name in path if (queue := state.quota.queue(name)) is not None]
    if not all(queue.reclaimable for queue in queues):
        return KeptBecause.NOT_RECLAIMABLE
    if not facts.ready and not may_evict(state, record, facts):
        return KeptBecause.ONE_AT_A_TIME
    gangs = [r for r in state.records.values() if state.queue_of(r) == borrower]
    theirs = [r for r in gangs if any(pod.live for pod in r.members.values())]
    if across_queues(state, borrower) is AcrossQueues.ANY and all(r.priority > record.priority for r in theirs):
        return KeptBecause.OUTRANKED
    if theirs and all(is_too_young(state, other, common, now) for other in theirs):
        return KeptBecause.TOO_YOUNG
    return KeptBecause.UNSUITABLE
