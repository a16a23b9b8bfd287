"""Conditions in an object's status, and what a gang's status means for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.times import format_time

MAX_MESSAGE = 1024
"""In characters."""

_STARTED = frozenset({Phase.RUNNING, Phase.HOLDING, Phase.DEGRADED, Phase.FINISHED})
_STARTING = frozenset({Phase.COMMITTING, Phase.BINDING})


class Condition(NamedTuple):
    """A wanted condition. The status None keeps the present condition, if there is one."""

    type: str
    status: bool | None
    reason: str
    message: str


def is_scheduled(status: Status) -> bool | None:
    """Returns whether the gang is scheduled; None while it starts, after it failed, and without members."""
    if status.phase in _STARTED:
        return True
    if status.phase in _STARTING or status.phase is Phase.FAILED or count_members(status) == 0:
        return None
    return False


def count_members(status: Status) -> int:
    """Returns how many pods the gang has, in any state."""
    return status.waiting + status.running + status.succeeded + status.failed


def is_below_minimum(status: Status) -> bool:
    """Returns whether a started gang has fewer members than its minimum."""
    if status.phase in (Phase.HOLDING, Phase.DEGRADED):
        return True
    return status.phase is Phase.RUNNING and status.running + status.succeeded < status.minimum


def is_ready(status: Status) -> bool:
    """Returns whether the minimum of members is running or has succeeded."""
    if status.phase is Phase.FINISHED:
        return True
    enough = status.running + status.succeeded >= status.minimum
    return enough and status.running > 0 and status.phase in (Phase.RUNNING, *_STARTING)


def is_invalid(status: Status) -> bool:
    """Returns whether the gang's definition is invalid."""
    return status.refusal is not None and any(r.reason is Reason.INVALID for r in status.refusal.refusals)


def merge_conditions(
    present: object, wanted: Iterable[Condition], now: float, extra: Mapping[str, object] | None = None
) -> list[Json]:
    """Merges the wanted conditions into the present ones; those of other writers are kept unchanged.

    `extra` holds further fields of the wanted conditions.
    """
    found: dict[str, Json] = {}
    for item in present if isinstance(present, list) else ():
        if isinstance(item, dict):
            found[str(item.get("type", ""))] = item
    for condition in wanted:
        old = found.get(condition.type)
        if condition.status is not None:
            found[condition.type] = _transition(old, condition, now, extra or {})
    return list(found.values())


def _transition(old: Json | None, condition: Condition, now: float, extra: Mapping[str, object]) -> Json:
    status = "True" if condition.status else "False"
    changed = old is None or old.get("status") != status
    return {
        **extra,
        "type": condition.type,
        "status": status,
        "reason": condition.reason,
        "message": condition.message[:MAX_MESSAGE],
        "lastTransitionTime": format_time(now) if old is None or changed else old.get("lastTransitionTime"),
    }


def condition_in(present: object, kind: str) -> Json:
    """Returns the condition of a type; {} if there is none."""
    items = present if isinstance(present, list) else []
    return next((item for item in items if isinstance(item, dict) and item.get("type") == kind), {})


def change_status(raw: RawObject, wanted: Mapping[str, object]) -> Json:
    """Returns the status fields that differ from the wanted ones; a missing field equals an empty one and 0."""
    return {name: value for name, value in wanted.items() if (raw.status.get(name) or None) != (value or None)}
