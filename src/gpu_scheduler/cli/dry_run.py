"""What is really so in a view: what the dry run decided for itself is left out, for nobody has carried it out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_scheduler.core.lifecycle import GangFacts, GangRecord, Phase, Status, collect_facts, phase_of, status_of
from gpu_scheduler.core.reasons import Unplaceable
from gpu_scheduler.core.state import LONE_POD, State
from gpu_scheduler.gangs.dialects import display_name


@dataclass(frozen=True)
class Seen:
    """A gang as the API shows it, and what the scheduler's next cycle would do: `starts` it, or `evicts` for it."""

    facts: GangFacts
    status: Status
    starts: bool
    evicts: int

    @property
    def phase(self) -> Phase:
        """Where the gang stands."""
        return self.status.phase

    @property
    def refusal(self) -> Unplaceable | None:
        """Why it cannot start."""
        return self.status.refusal


def look_at(state: State, record: GangRecord) -> Seen:
    """Sorts a gang's members by what is committed or seen, and says what phase that means."""
    ledger, gang = state.ledger, record.gang
    evicting = [uid for uid in record.members if uid in ledger.deleting and _is_committed(state, uid)]
    facts = collect_facts(record, {uid: True for uid in record.members if ledger.committed.get(uid)}, evicting)
    facts.reserved = gang is not None and gang.notes.admitted_at is not None
    facts.nominated = gang is not None and bool(gang.notes.nomination)
    facts.hold_expired = record.notes.below_since is not None and record.key not in state.broken
    starts = any(ledger.committed.get(uid) is False for uid in record.members)
    starts = starts or (record.notes.admitted_at is not None and not facts.reserved and gang is not None)
    evicts = 0
    refusal = record.refusal or state.queue.refusal(record.key)
    if record.notes.nomination and not facts.nominated and refusal is not None:
        evicts = max(1, refusal.refusals[0].short_by)
    status = replace(status_of(record, facts, None if starts or evicts else refusal), phase=phase_of(facts))
    if gang is not None:
        status = replace(status, notes=replace(gang.notes, below_since=status.notes.below_since))
    return Seen(facts, status, starts, evicts)


def _is_committed(state: State, uid: str) -> bool:
    return state.ledger.is_committed(state.ledger.deletes[uid].sequence)


def keeps_slots(state: State, record: GangRecord) -> bool:
    """Whether the slots kept for a gang are kept by more than the dry run: held, or noted on the gang."""
    gang = record.gang
    if record.key in state.broken:
        return True
    return gang is not None and (bool(gang.notes.nomination) or gang.notes.admitted_at is not None)


def waiting_since(record: GangRecord, facts: GangFacts) -> float | None:
    """Since when a gang waits; None when it has no member that does."""
    if record.waiting_since is not None:
        return record.waiting_since
    waiting = [pod.created for pod in (*facts.ready, *facts.gated)]
    if waiting:
        return max(waiting)
    return record.gang.created if record.gang is not None and not facts.started and facts.missing else None


def name_of(record: GangRecord) -> str:
    """What people call a gang; a gang of one is called like its pod."""
    if record.key.dialect == LONE_POD:
        return next((pod.name for pod in record.members.values()), record.key.name)
    return display_name(record.key).removeprefix(f"{record.key.namespace}/")
