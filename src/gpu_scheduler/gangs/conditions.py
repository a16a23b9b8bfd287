"""Conditions in an object's status: one of each type, and the time at which it last turned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.times import format_time

LONGEST = 1024
"""In characters: a message is read by people."""

_STARTED = frozenset({Phase.RUNNING, Phase.HOLDING, Phase.DEGRADED, Phase.FINISHED})
_UNDERWAY = frozenset({Phase.COMMITTING, Phase.BINDING})


class Condition(NamedTuple):
    """One thing that is or is not so. None as status: as it was, and no word about it if it never was."""

    type: str
    status: bool | None
    reason: str
    message: str


def is_scheduled(status: Status) -> bool | None:
    """Whether the gang has its places; None while that is being decided, and when nobody is there or left."""
    if status.phase in _STARTED:
        return True
    if status.phase in _UNDERWAY or status.phase is Phase.FAILED or count_members(status) == 0:
        return None
    return False


def count_members(status: Status) -> int:
    """How many pods the gang has, in whatever state."""
    return status.waiting + status.running + status.succeeded + status.failed


def is_below_minimum(status: Status) -> bool:
    """Whether a gang that has started has fewer members than it promised."""
    if status.phase in (Phase.HOLDING, Phase.DEGRADED):
        return True
    return status.phase is Phase.RUNNING and status.running + status.succeeded < status.minimum


def is_ready(status: Status) -> bool:
    """Whether at least the promised number of members works, or has done its work."""
    if status.phase is Phase.FINISHED:
        return True
    enough = status.running + status.succeeded >= status.minimum
    return enough and status.running > 0 and status.phase in (Phase.RUNNING, *_UNDERWAY)


def is_invalid(status: Status) -> bool:
    """Whether the gang's own definition keeps it from being scheduled."""
    return status.refusal is not None and any(r.reason is Reason.INVALID for r in status.refusal.refusals)


def merge_conditions(
    present: object, wanted: Iterable[Condition], now: float, extra: Mapping[str, object] | None = None
) -> list[Json]:
    """The conditions there are, with the wanted ones put in; those of other writers are kept as they are.

    `extra` are further fields of each condition that changes.
    """
    found: dict[str, Json] = {}
    for item in present if isinstance(present, list) else ():
        if isinstance(item, dict):
            found[str(item.get("type", ""))] = item
    for condition in wanted:
        old = found.get(condition.type)
        if condition.status is not None:
            found[condition.type] = _turn(old, condition, now, extra or {})
    return list(found.values())


def _turn(old: Json | None, condition: Condition, now: float, extra: Mapping[str, object]) -> Json:
    status = "True" if condition.status else "False"
    turned = old is None or old.get("status") != status
    return {
        **extra,
        "type": condition.type,
        "status": status,
        "reason": condition.reason,
        "message": condition.message[:LONGEST],
        "lastTransitionTime": format_time(now) if old is None or turned else old.get("lastTransitionTime"),
    }


def condition_in(present: object, kind: str) -> Json:
    """The condition of a type, {} for none."""
    items = present if isinstance(present, list) else []
    return next((item for item in items if isinstance(item, dict) and item.get("type") == kind), {})


def change_status(raw: RawObject, wanted: Mapping[str, object]) -> Json:
    """The fields of a status that are not yet as wanted; one that is not there is as good as an empty one or 0."""
    return {name: value for name, value in wanted.items() if (raw.status.get(name) or None) != (value or None)}
