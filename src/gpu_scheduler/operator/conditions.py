"""The status of a job while it is being rewritten: conditions, counts and times, as the training operator has them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from gpu_scheduler.gangs.conditions import condition_in
from gpu_scheduler.gangs.options import as_dict, as_list
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.times import format_time, parse_time
from gpu_scheduler.operator.actions import Action, Tell, UpdateStatus
from gpu_scheduler.operator.jobs import Counts

CREATED, RUNNING, RESTARTING = "Created", "Running", "Restarting"
SUCCEEDED, SUSPENDED, FAILED = "Succeeded", "Suspended", "Failed"
INVALID = "InvalidSpec"
"""Why a job failed that makes no sense: corrected, it goes on."""

_FORMS: dict[str, type] = {
    **dict.fromkeys(("startTime", "completionTime", "lastReconcileTime"), str),
    **dict.fromkeys(("replicaStatuses", "state", "taskStatusCount"), dict),
    **dict.fromkeys(("retryCount", "version"), int),
    "conditions": list,
}
_NEVER_BOTH = {RUNNING: RESTARTING, RESTARTING: RUNNING}


class Draft:
    """A job's status, changed step by step; `finish` says what has to be written."""

    def __init__(self, kind: str, status: Json, now: float) -> None:
        self._kind = kind
        self._old = status
        self._new = readable(status)
        self._now = now
        self._told: list[Tell] = []

    def is_true(self, name: str) -> bool:
        """Whether a condition holds."""
        return bool(condition_in(self._new.get("conditions"), name).get("status") == "True")

    @property
    def over(self) -> bool:
        """Whether the job has succeeded, or failed for good."""
        failed = condition_in(self._new.get("conditions"), FAILED)
        return self.is_true(SUCCEEDED) or (failed.get("status") == "True" and failed.get("reason") != INVALID)

    def time(self, name: str) -> float | None:
        """A time, in seconds since 1970."""
        return parse_time(self._new.get(name))

    def stamp(self, name: str) -> None:
        """Writes a time down, unless there is one already."""
        if not self._new.get(name):
            self._new[name] = format_time(self._now)

    def clear(self, name: str) -> None:
        """Takes a field away."""
        self._new.pop(name, None)

    def turn(self, name: str, on: bool, message: str, *, word: str = "", reason: str = "", warn: bool = False) -> None:
        """Sets a condition and tells of it. Its reason is the kind with a word, such as PyTorchJobRunning."""
        reason = reason or f"{self._kind}{word or name}"
        found = [item for item in self._new.get("conditions") or () if isinstance(item, dict)]
        old = condition_in(found, name)
        status = "True" if on else "False"
        if (old.get("status"), old.get("reason"), old.get("message")) == (status, reason, message):
            return
        now = format_time(self._now)
        since = old.get("lastTransitionTime", now) if old.get("status") == status else now
        made = {"type": name, "status": status, "reason": reason, "message": message}
        made |= {"lastUpdateTime": now, "lastTransitionTime": since}
        left = [item for item in found if item.get("type") not in (name, _NEVER_BOTH.get(name) if on else None)]
        self._new["conditions"] = [*left, made]
        self._told.append(Tell("Warning" if warn else "Normal", reason, message))

    def drop(self, name: str) -> None:
        """Takes a condition away."""
        self._new["conditions"] = [item for item in self._new.get("conditions") or () if item.get("type") != name]

    def end(self, name: str, message: str, *, reason: str = "") -> None:
        """Succeeded or Failed: nothing runs any more."""
        running = condition_in(self._new.get("conditions"), RUNNING)
        if running.get("status") == "True":
            told = len(self._told)
            self.turn(RUNNING, False, message, reason=reason or f"{self._kind}{name}")
            del self._told[told:]
        self.stamp("completionTime")
        self.turn(name, True, message, reason=reason, warn=name == FAILED)

    def count(self, counts: Mapping[str, Counts], selectors: Mapping[str, str]) -> None:
        """Writes down how many replicas do what."""
        self._new["replicaStatuses"] = {
            role: {
                **{name: number for name, number in found._asdict().items() if number},
                "selector": selectors[role],
            }
            for role, found in counts.items()
        }

    def rest(self, *, succeeded: bool) -> None:
        """No replica is active any more; those that were, count as succeeded if the job did."""
        for found in self._new.get("replicaStatuses", {}).values():
            active = found.pop("active", 0)
            if succeeded and active:
                found["succeeded"] = found.get("succeeded", 0) + active

    def finish(self) -> list[Action]:
        """What has to be written, and told; nothing when nothing has changed."""
        if self._new == self._old:
            return []
        self._new["lastReconcileTime"] = format_time(self._now)
        return [UpdateStatus(change(self._old, self._new)), *self._told]


def readable(status: Json) -> Json:
    """A copy of a status without what is not of the form that it must have: that is written anew."""
    found: Json = {
        name: deepcopy(value) for name, value in status.items() if isinstance(value, _FORMS.get(name, object))
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


def change(old: Json, new: Json) -> Json:
    """The merge patch that makes one object of another."""
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(name), dict):
            if inner := change(old[name], value):
                patch[name] = inner
        elif old.get(name) != value:
            patch[name] = value
    return patch
