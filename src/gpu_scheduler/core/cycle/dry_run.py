"""Dry runs: how a gang stands when nothing that this engine decided is carried out."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.core.cycle.drain import fits_empty, refuse_on_empty
from gpu_scheduler.core.cycle.preemption import refused_on
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord, Status, collect_facts, phase_of, status_of
from gpu_scheduler.core.placement.diagnose import diagnose
from gpu_scheduler.core.placement.place import could_place
from gpu_scheduler.core.queueing.bid import check_quota, make_bid
from gpu_scheduler.core.reasons import Unplaceable
from gpu_scheduler.core.state import State


def status_in_dry_run(state: State, record: GangRecord) -> tuple[GangFacts, Status, bool, int]:
    """The facts and the status, and what the dry run decided: to start the gang, or to evict so many pods for it."""
    ledger, gang = state.ledger, record.gang
    deletes = ledger.deletes
    evicting = [uid for uid in record.members if uid in ledger.deleting and ledger.is_committed(deletes[uid].sequence)]
    facts = collect_facts(record, {uid: True for uid in record.members if ledger.committed.get(uid)}, evicting)
    facts.reserved = gang is not None and gang.notes.admitted_at is not None
    facts.nominated = gang is not None and bool(gang.notes.nomination)
    facts.hold_expired = record.notes.below_since is not None and record.key not in state.broken
    starts = any(ledger.committed.get(uid) is False for uid in record.members)
    starts = starts or (record.notes.admitted_at is not None and not facts.reserved and gang is not None)
    evicts = 0
    refusal = _refused_evictions(state, record) or record.refusal or state.queue.refusal(record.key)
    if record.notes.nomination and not facts.nominated and refusal is not None:
        evicts = max(1, refusal.refusals[0].short_by)
    status = status_of(record, facts, None if starts or evicts else refusal)
    status = replace(status, phase=phase_of(facts))
    if gang is not None:
        status = replace(status, notes=replace(gang.notes, below_since=status.notes.below_since))
    return facts, status, starts, evicts


def _refused_evictions(state: State, record: GangRecord) -> Unplaceable | None:
    """The refusal of a gang that the leader nominated, if evictions on the nodes of its slots are refused."""
    nomination = record.gang.notes.nomination if record.gang is not None else ()
    refusal = refused_on(state, {slot.node for slot in nomination}) if record.notes.nomination else None
    return Unplaceable((refusal,)) if refusal is not None else None


def refuse_as_if_tried(state: State, record: GangRecord, facts: GangFacts, now: float) -> Unplaceable | None:
    """Why a gang that backs off would not start if it were tried now; None where it would."""
    bid = make_bid(state, record, facts, now)
    if not bid.groups:
        return None
    refusal, bid = check_quota(state, record, bid)
    if refusal is not None:
        return Unplaceable((refusal,), bid.needed, 0)
    if not fits_empty(state, bid):
        return refuse_on_empty(state, bid)
    return None if could_place(state.cluster, bid) else diagnose(state.cluster, bid)
