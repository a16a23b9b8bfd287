"""Loans: GPUs that a queue is entitled to and that other queues use at the moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.model import MILLI
from gpu_scheduler.core.placement.domains import Bid
from gpu_scheduler.core.queueing.bid import make_bid
from gpu_scheduler.core.reasons import Reason, Unplaceable
from gpu_scheduler.core.state import State


class KeptBecause(Enum):
    """Why a queue keeps what it borrowed although the owner of the quota waits for it."""

    NOT_RECLAIMABLE = "it is set to reclaimable: false"
    NO_QUOTA = "it has no quota of its own, and only a queue with one gives back"
    HIGHER_PRIORITY = "its gangs have a higher priority"
    NO_PODS = "GPUs are taken back once the pods of this gang exist"
    INDIVISIBLE = "no gang of it could go without taking its queue below its quota"


@dataclass(frozen=True, slots=True)
class Loan:
    """What another queue uses beyond its quota, in units of requests, and why it keeps it."""

    queue: str
    amount: int
    why: KeptBecause


def loans_to(state: State, record: GangRecord, refused: Unplaceable | None, now: float) -> Iterator[Loan]:
    """The queues that borrow what a gang needs and its own queue is entitled to."""
    scarce = next((r.subject for r in refused.refusals if r.reason is Reason.RESOURCE), None) if refused else None
    name = state.queue_of(record)
    queue = state.quota.queue(name)
    if scarce is None or refused is None or refused.too_large or queue is None or scarce not in queue.quota:
        return
    bid = make_bid(state, record, state.facts_of(record), now)
    if not state.quota.within_quota(name, state.quota.charge_of_shapes(bid.shapes)):
        return
    scale = MILLI if scarce in state.config.gpu_resources else 1
    for other in sorted({state.queue_of(r) for r in state.records.values()} - {name}):
        theirs = state.quota.queue(other)
        granted = theirs.quota.get(scarce, 0) * scale if theirs is not None else 0
        borrowed = state.quota.used(other).get(scarce, 0) - granted
        if borrowed > 0:
            yield Loan(other, borrowed // scale, _kept_because(state, record, bid, other))


def _kept_because(state: State, record: GangRecord, bid: Bid, borrower: str) -> KeptBecause:
    queue = state.quota.queue(borrower)
    if queue is None or not queue.quota:
        return KeptBecause.NO_QUOTA
    if not queue.reclaimable:
        return KeptBecause.NOT_RECLAIMABLE
    if any(group.whole for group in bid.groups):
        return KeptBecause.NO_PODS
    gangs = [r for r in state.records.values() if state.queue_of(r) == borrower]
    theirs = [r for r in gangs if any(pod.live for pod in r.members.values())]
    if theirs and all(other.priority > record.priority for other in theirs):
        return KeptBecause.HIGHER_PRIORITY
    return KeptBecause.INDIVISIBLE
