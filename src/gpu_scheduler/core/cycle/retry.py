"""What is committed and does not happen: it is sent again, and binds that fail for too long are given up."""

from __future__ import annotations

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

MAX_RETRY_DOUBLINGS = 3
"""How often the time between two tries doubles."""
FAILURE_TIMEOUT_FACTOR = 3
"""How many times longer than a refusal any other failure is borne: too short for back-offs to begin anew after it."""


def send_bind(state: State, entry: OpenBind) -> list[Effect]:
    """Sends a bind with the version of the pod that it was decided for, if that version is still to be seen."""
    pod = state.pods.get(entry.bind.uid)
    if pod is None or pod.attempt != entry.bind.attempt:
        return []
    return [SendBind(entry.bind, pod.version)]


def give_up(state: State, entry: OpenBind, now: float) -> list[Effect]:
    """Marks the pod so that a delayed bind fails; the entry is over only when the mark is seen."""
    entry.given_up = True
    if not state.ledger.is_committed(entry.sequence):
        return []
    state.ledger.retries[entry.bind.uid] = now + state.config.retry
    return [RaiseAttempt(entry.bind.uid, entry.bind.attempt + 1)]


def on_bind_failed(state: State, event: BindFailed, now: float) -> list[Effect]:
    """A bind did not land: it is tried again, and given up when that goes on for too long."""
    entry = state.ledger.binds.get(event.uid)
    if entry is None or not state.ledger.is_committed(entry.sequence):
        return []  # the answer to an earlier one
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
    # The bind is sent on: while the API server is away altogether neither lands, and once it is back the bind may.
    return [RaiseAttempt(event.uid, entry.bind.attempt + 1)]


def _record_bind_refusal(state: State, event: BindFailed) -> None:
    """Keeps what the API server said to the first bind of a start: it says the same to all, each by its name."""
    record = state.records.get(state.key_of(state.pods[event.uid]))
    if record is not None and not record.bind_refused:
        record.bind_refused = event.message
        state.dirty[record.key] = None


def on_delete_failed(state: State, event: DeleteFailed, now: float) -> None:
    """A delete was refused for now: it stays committed and is tried again."""
    entry = state.ledger.deletes.get(event.uid)
    if entry is not None:
        _schedule_retry(state, event.uid, entry, now)
        if entry.keeps_failing and event.uid in state.ledger.deleting:
            state.stop_counting_on_delete(state.pods[event.uid])


def _schedule_retry(state: State, uid: str, entry: OpenBind | OpenDelete, now: float) -> None:
    """Later each time that nobody answers, or a budget forbids it: asking more often helps neither."""
    state.ledger.retries[uid] = now + state.config.retry * 2 ** min(entry.tries, MAX_RETRY_DOUBLINGS)
    entry.tries += 1


def retry_due(state: State, now: float) -> list[Effect]:
    """Sends again what is due."""
    effects: list[Effect] = []
    for entry in state.ledger.due(now):
        if isinstance(entry, OpenDelete):
            effects.append(SendDelete(entry.delete, entry.tries))
        elif entry.given_up:
            effects += give_up(state, entry, now)
        else:
            effects += send_bind(state, entry)
    return effects
