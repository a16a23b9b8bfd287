"""Obstacles of a gang itself: what keeps it from being scheduled, whatever the cluster offers."""

from __future__ import annotations

from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.queueing.bid import find_too_many_kinds
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable


def own_obstacle(record: GangRecord, facts: GangFacts, now: float) -> Unplaceable | None:
    """Why the gang itself cannot be scheduled, whatever the cluster offers; None if it can."""
    gang = record.gang
    missing = facts.short_of_quorum
    if gang is None:
        found = Refusal(Reason.GANG_GONE)
    elif problem := gang.problem or find_too_many_kinds(facts):
        found = Refusal(Reason.INVALID, problem)
    elif gang.paused:
        found = Refusal(Reason.PAUSED)
    elif missing and facts.gated:
        found = Refusal(Reason.GATED, facts.gated[0].gates[0].subject, short_by=missing)
    elif missing and _members_start_together(facts) and not facts.awaits_admission:
        found = Refusal(Reason.MEMBERS_MISSING, short_by=missing)
    elif record.not_before > now:
        found = Refusal(Reason.BACK_OFF)
    else:
        return None
    return Unplaceable((found,), facts.minimum, facts.have) if facts.ready or facts.gated or missing else None


def _members_start_together(facts: GangFacts) -> bool:
    """Whether members must wait for each other: after the hold has expired, a lone bound member would be deleted."""
    return not facts.started or (facts.hold_expired and any(pod.controlled for pod in facts.ready))
