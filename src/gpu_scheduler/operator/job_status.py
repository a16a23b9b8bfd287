"""JobStatusBuilder: conditions, replica counts and times of a job's status, as the training operator writes them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from gpu_scheduler.gangs.conditions import condition_in
from gpu_scheduler.gangs.options import as_dict, as_list
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.times import format_time, parse_time
from gpu_scheduler.operator.actions import Action, RecordEvent, UpdateStatus
from gpu_scheduler.operator.managed_job import ReplicaCounts

CREATED, RUNNING, RESTARTING = "Created", "Running", "Restarting"
SUCCEEDED, SUSPENDED, FAILED = "Succeeded", "Suspended", "Failed"
INVALID = "InvalidSpec"
"""The reason of a job that failed because its spec is invalid: once corrected, the job continues."""

_TYPES: dict[str, type] = {
    **dict.fromkeys(("startTime", "completionTime", "lastReconcileTime"), str),
    **dict.fromkeys(("replicaStatuses", "state", "taskStatusCount"), dict),
    **dict.fromkeys(("retryCount", "version"), int),
    "conditions": list,
}
_EXCLUSIVE = {RUNNING: RESTARTING, RESTARTING: RUNNING}


class JobStatusBuilder:
    """A copy of a job's status that is changed step by step; `build` returns what has to be written."""

    def __init__(self, kind: str, status: Json, now: float) -> None:
        self._kind = kind
        self._old = status
        self._new = without_wrong_types(status)
        self._now = now
        self._events: list[RecordEvent] = []

    def is_true(self, name: str) -> bool:
        """Returns whether a condition is True."""
        return bool(condition_in(self._new.get("conditions"), name).get("status") == "True")

    @property
    def ended(self) -> bool:
        """Whether the job has succeeded, or failed for another reason than an invalid spec."""
        failed = condition_in(self._new.get("conditions"), FAILED)
        return self.is_true(SUCCEEDED) or (failed.get("status") == "True" and failed.get("reason") != INVALID)

    def time(self, name: str) -> float | None:
        """Returns a time in seconds since the epoch."""
        return parse_time(self._new.get(name))

    def set_time(self, name: str) -> None:
        """Sets a time to now, unless it is set."""
        if not self._new.get(name):
            self._new[name] = format_time(self._now)

    def clear(self, name: str) -> None:
        """Removes a field."""
        self._new.pop(name, None)

    def set_condition(
        self, name: str, on: bool, message: str, *, suffix: str = "", reason: str = "", warn: bool = False
    ) -> None:
        """Sets a condition, with an Event if it changes. The default reason is kind and suffix: PyTorchJobRunning."""
        reason = reason or f"{self._kind}{suffix or name}"
        found = [item for item in self._new.get("conditions") or () if isinstance(item, dict)]
        old = condition_in(found, name)
        status = "True" if on else "False"
        if (old.get("status"), old.get("reason"), old.get("message")) == (status, reason, message):
            return
        now = format_time(self._now)
        since = old.get("lastTransitionTime", now) if old.get("status") == status else now
        made = {"type": name, "status": status, "reason": reason, "message": message}
        made |= {"lastUpdateTime": now, "lastTransitionTime": since}
        left = [item for item in found if item.get("type") not in (name, _EXCLUSIVE.get(name) if on else None)]
        self._new["conditions"] = [*left, made]
        self._events.append(RecordEvent("Warning" if warn else "Normal", reason, message))

    def remove_condition(self, name: str) -> None:
        """Removes a condition."""
        self._new["conditions"] = [item for item in self._new.get("conditions") or () if item.get("type") != name]

    def end(self, name: str, message: str, *, reason: str = "") -> None:
        """Sets Succeeded or Failed, the completion time, and Running to False without an Event of its own."""
        running = condition_in(self._new.get("conditions"), RUNNING)
        if running.get("status") == "True":
            events = len(self._events)
            self.set_condition(RUNNING, False, message, reason=reason or f"{self._kind}{name}")
            del self._events[events:]
        self.set_time("completionTime")
        self.set_condition(name, True, message, reason=reason, warn=name == FAILED)

    def set_counts(self, counts: Mapping[str, ReplicaCounts], selectors: Mapping[str, str]) -> None:
        """Sets replicaStatuses."""
        self._new["replicaStatuses"] = {
            role: {
                **{name: number for name, number in found._asdict().items() if number},
                "selector": selectors[role],
            }
            for role, found in counts.items()
        }

    def clear_active(self, *, succeeded: bool) -> None:
        """Sets the active replicas to 0; they count as succeeded if the job has succeeded."""
        for found in self._new.get("replicaStatuses", {}).values():
            active = found.pop("active", 0)
            if succeeded and active:
                found["succeeded"] = found.get("succeeded", 0) + active

    def build(self) -> list[Action]:
        """Returns the status update and the Events; nothing when nothing has changed."""
        if self._new == self._old:
            return []
        self._new["lastReconcileTime"] = format_time(self._now)
        return [UpdateStatus(merge_patch(self._old, self._new)), *self._events]


def without_wrong_types(status: Json) -> Json:
    """Returns a copy of a status without the fields whose values have the wrong type."""
    found: Json = {
        name: deepcopy(value) for name, value in status.items() if isinstance(value, _TYPES.get(name, object))
    }
    if "conditions" in found:
        found["conditions"] = as_list(found["conditions"])
    if "replicaStatuses" in found:
        found["replicaStatuses"] = {
            role: {
                name: value for name, value in as_dict(counts).items() if isinstance(value, int) or name == "selector"
            }
            for role, counts in found["replicaStatuses"].items()
        }
    return found


def merge_patch(old: Json, new: Json) -> Json:
    """Returns the merge patch from one object to another."""
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(name), dict):
            if inner := merge_patch(old[name], value):
                patch[name] = inner
        elif old.get(name) != value:
            patch[name] = value
    return patch
