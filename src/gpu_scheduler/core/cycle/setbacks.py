"""Setbacks: what only the leader knows about gangs that wait, for the dry runs of the commands."""

from __future__ import annotations

from gpu_scheduler.core.cycle.drain import bar_from_drains
from gpu_scheduler.core.events import Backoff, Setbacks
from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.state import State


def find_setbacks(state: State, now: float) -> Setbacks:
    """The gangs whose start failed, the evictions that are refused, and the reservations that were not used."""
    records = state.records.values()
    last = sorted((r for r in records if r.reservation_unused), key=lambda r: (r.last_turn, r.key))
    return Setbacks(
        tuple([_backoff_of(record) for record in records if record.not_before > now or record.bind_refused]),
        tuple(sorted(state.ledger.refused_deletes)),
        tuple([record.key for record in last]),
        tuple([where for where, unused in state.barred_from_drains.items() if unused]),
    )


def _backoff_of(record: GangRecord) -> Backoff:
    return Backoff(
        record.key, record.not_before, record.setback, record.timed_out, record.bind_refused, record.last_failure
    )


def on_setbacks(state: State, event: Setbacks, now: float) -> None:
    """Takes in the setbacks that the leader publishes. No backoff lasts longer than the longest one."""
    for backoff in event.backoffs:
        record = state.records.get(backoff.key)
        if record is not None:
            record.not_before = min(backoff.until, now + state.config.longest_back_off)
            record.setback, record.timed_out = backoff.setback, backoff.timed_out
            record.bind_refused, record.last_failure = backoff.bind_refused, backoff.failed
            state.dirty[backoff.key] = None
    for uid in event.refused_evictions:
        if uid in state.ledger.deletes and uid in state.pods:
            state.stop_counting_on_delete(state.pods[uid])
    for turn, key in enumerate(event.unused_reservations, 1):
        if key in state.records:
            state.records[key].reservation_unused, state.records[key].last_turn = True, float(turn)
            state.dirty[key] = None
    for where in event.one_reservation_each:
        bar_from_drains(state, where, unused=True)
