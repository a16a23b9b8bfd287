"""Retries of committed binds and deletes; binds that fail for too long are given up."""

from __future__ import annotations

from gpu_scheduler.base import backoff
from gpu_scheduler.base.text import one_line
from gpu_scheduler.core.cycle.ledger import OpenBind, OpenDelete
from gpu_scheduler.core.events import (
    BindFailed,
    BindFailure,
    DeleteFailed,
    Effect,
    RaiseAttempt,
    SendBind,
    SendDelete,
)
from gpu_scheduler.core.state import State

MAX_RETRY_FACTOR = 8
"""How many times longer than the first delay the longest one between two attempts is."""
FAILURE_TIMEOUT_FACTOR = 3
"""A bind that fails without being refused is given up after this many times `Config.refused_for`: short enough that
the backoff of its gang does not start again from the first failure."""

MAX_ANSWER = 300
"""How much of the API server's answer to a bind is kept, in characters."""


def send_bind(state: State, entry: OpenBind) -> list[Effect]:
    """Sends a bind with the resource version of its pod, if the pod is still at the attempt of the bind."""
    pod = state.pods.get(entry.bind.uid)
    if pod is None or pod.attempt != entry.bind.attempt:
        return []
    return [SendBind(entry.bind, pod.version)]


def give_up(state: State, entry: OpenBind, now: float) -> list[Effect]:
    """Gives up a bind: raises the attempt on the pod. The entry is over only when the new attempt is observed."""
    entry.given_up = True
    if not state.ledger.is_committed(entry.sequence):
        return []
    state.ledger.retries[entry.bind.uid] = now + state.config.retry
    return [RaiseAttempt(entry.bind.uid, entry.bind.attempt + 1)]


def on_bind_failed(state: State, event: BindFailed, now: float) -> list[Effect]:
    """Handles a failed bind: schedules a retry, or gives the bind up after too long."""
    entry = state.ledger.binds.get(event.uid)
    if entry is None or not state.ledger.is_committed(entry.sequence):
        return []  # the answer to an earlier bind
    if event.failure is not BindFailure.UNKNOWN:
        entry.tries = 0
    _schedule_retry(state, event.uid, entry, now)
    if event.failure is BindFailure.REFUSED:
        if entry.refused_since is None:
            entry.refused_since = now
        elif now - entry.refused_since >= state.config.refused_for:
            entry.given_up = True
    else:
        entry.refused_since = None
    if entry.failing_since is None:
        entry.failing_since = now
    failing = now - entry.failing_since
    if event.failure is BindFailure.REFUSED or failing >= state.config.refused_for:
        _record_bind_refusal(state, event)
    if failing < FAILURE_TIMEOUT_FACTOR * state.config.refused_for or entry.given_up:
        return []
    # The bind is still retried: neither request succeeds while the API server is down, and either may afterwards.
    return [RaiseAttempt(event.uid, entry.bind.attempt + 1)]


def _record_bind_refusal(state: State, event: BindFailed) -> None:
    """Keeps the answer of the API server to the first failed bind of a start: the others differ in names only."""
    record = state.records.get(state.key_of(state.pods[event.uid]))
    if record is not None and not record.bind_refused:
        record.bind_refused = one_line(event.message, MAX_ANSWER)
        state.dirty[record.key] = None


def on_delete_failed(state: State, event: DeleteFailed, now: float) -> None:
    """Handles a failed delete: it stays committed and is retried."""
    entry = state.ledger.deletes.get(event.uid)
    if entry is not None:
        _schedule_retry(state, event.uid, entry, now)
        if entry.keeps_failing and event.uid in state.ledger.deleting:
            state.stop_counting_on_delete(state.pods[event.uid])


def _schedule_retry(state: State, uid: str, entry: OpenBind | OpenDelete, now: float) -> None:
    """Schedules the next attempt with exponential backoff."""
    first = state.config.retry
    state.ledger.retries[uid] = now + backoff.exponential(entry.tries, MAX_RETRY_FACTOR * first, first)
    entry.tries += 1


def retry_due(state: State, now: float) -> list[Effect]:
    """Sends the entries whose retry is due."""
    effects: list[Effect] = []
    for entry in state.ledger.due(now):
        if isinstance(entry, OpenDelete):
            effects.append(SendDelete(entry.delete, entry.tries))
        elif entry.given_up:
            effects += give_up(state, entry, now)
        else:
            effects += send_bind(state, entry)
    return effects
