"""Conditions in a status: what holds, since when, and why."""

from __future__ import annotations

from typing import Any

from embedded_kube.registry.timestamps import timestamp
from embedded_kube.storage.store import Json


def find_condition(status: Json, kind: str) -> Json:
    """The condition of a type, or an empty one."""
    found: Json = next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
    return found


def is_true(status: Json, kind: str) -> bool:
    """Whether a condition holds."""
    return find_condition(status, kind).get("status") == "True"


def set_condition(status: Json, new: Json, *, probed: str = "") -> None:
    """Puts a condition in place; the time of its last change stays unless its status changed.

    `probed` names a field (lastUpdateTime, lastProbeTime) that is set with every change of the condition.
    """
    conditions: list[dict[str, Any]] = list(status.get("conditions") or ())
    old = find_condition(status, new["type"])
    if all(old.get(name) == value for name, value in new.items()):
        return
    now = timestamp()
    changed = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
    entry = {**new, **({probed: now} if probed else {}), "lastTransitionTime": changed or now}
    place = next((i for i, c in enumerate(conditions) if c.get("type") == new["type"]), None)
    if place is None:
        conditions.append(entry)
    else:
        conditions[place] = entry
    status["conditions"] = conditions


def drop_condition(status: Json, kind: str) -> None:
    """Takes a condition away."""
    conditions = [c for c in status.get("conditions") or () if c.get("type") != kind]
    if conditions:
        status["conditions"] = conditions
    else:
        status.pop("conditions", None)


def condition(kind: str, status: bool | str, reason: str, message: str) -> Json:
    """A condition, without times."""
    said = status if isinstance(status, str) else str(status)
    return {"type": kind, "status": said, "reason": reason, "message": message}
