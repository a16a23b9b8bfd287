"""Reads and writes status conditions."""

from __future__ import annotations

from typing import Any

from embedded_kube.registry.timestamps import timestamp
from gpu_scheduler.k8s.objects import Json


def find_condition(status: Json, kind: str) -> Json:
    """Returns the condition of a type, or an empty one."""
    found: Json = next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
    return found


def is_true(status: Json, kind: str) -> bool:
    """Whether a condition has status True."""
    return find_condition(status, kind).get("status") == "True"


def set_condition(status: Json, new: Json, *, probed: str = "") -> None:
    """Adds or replaces a condition. lastTransitionTime changes only with its status.

    `probed` names a time field (lastUpdateTime, lastProbeTime) that is set with every change of the condition.
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
    """Removes a condition."""
    conditions = [c for c in status.get("conditions") or () if c.get("type") != kind]
    if conditions:
        status["conditions"] = conditions
    else:
        status.pop("conditions", None)


def condition(kind: str, status: bool | str, reason: str, message: str) -> Json:
    """Returns a condition without times."""
    value = status if isinstance(status, str) else str(status)
    return {"type": kind, "status": value, "reason": reason, "message": message}
