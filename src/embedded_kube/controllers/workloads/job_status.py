"""What a Job says of itself: counters that survive a kill at any moment, and conditions."""

from __future__ import annotations

from collections.abc import Iterable

from embedded_kube.controllers.machinery.conditions import condition, find_condition, is_true, set_condition
from embedded_kube.controllers.machinery.objects import PodView, seconds
from embedded_kube.controllers.workloads.job_plan import FINALIZER, UNCOUNTED_AT_ONCE, JobGoal, JobOutcome, JobTally
from embedded_kube.controllers.workloads.job_policy import write_indexes
from embedded_kube.registry.timestamps import timestamp
from embedded_kube.storage.store import Json


def count_released(status: Json, pods: Iterable[PodView]) -> None:
    """Moves pods that have lost their finalizer from "uncounted" to the counters.

    A pod is first written down by uid, then loses its finalizer, then is counted: whichever of these a kill follows, it
    is counted exactly once.
    """
    uncounted = status.get("uncountedTerminatedPods") or {}
    tracked = {pod.meta.uid for pod in pods if FINALIZER in pod.meta.finalizers}
    left: Json = {}
    for name in ("succeeded", "failed"):
        listed = uncounted.get(name) or []
        still = [uid for uid in listed if uid in tracked]
        if len(listed) > len(still):
            status[name] = status.get(name, 0) + len(listed) - len(still)
        if still:
            left[name] = still
    status["uncountedTerminatedPods"] = left


def record_terminated(status: Json, goal: JobGoal, tally: JobTally) -> None:
    """Writes down the pods that ended since the last look."""
    uncounted = status.setdefault("uncountedTerminatedPods", {})
    room = UNCOUNTED_AT_ONCE
    for name, pods in (("succeeded", tally.new_succeeded), ("failed", tally.new_failed)):
        new = [pod.meta.uid for pod in pods][:room]
        room -= len(new)
        if new:
            uncounted[name] = [*uncounted.get(name, ()), *new]
    if goal.indexed:
        if tally.completed:
            status["completedIndexes"] = write_indexes(tally.completed)
        if goal.per_index is not None or tally.failed_indexes:
            status["failedIndexes"] = write_indexes(tally.failed_indexes)


def count_active(status: Json, goal: JobGoal, tally: JobTally) -> None:
    """The counters of pods that have not ended."""
    counters = {"active": len(tally.active)}
    if goal.indexed:
        # Indexes, not pods, are what succeeds: two pods of one index count once.
        counters["succeeded"] = len(tally.completed) - len(status["uncountedTerminatedPods"].get("succeeded", ()))
    for name, value in counters.items():
        if value > 0:
            status[name] = value
        else:
            status.pop(name, None)
    status["ready"] = sum(pod.ready for pod in tally.active)
    status["terminating"] = len(tally.terminating)


def set_suspended(status: Json, goal: JobGoal) -> str:
    """Follows spec.suspend; returns the reason of the Event it is worth, if any."""
    if goal.suspended:
        status.pop("startTime", None)
        if is_true(status, "Suspended"):
            return ""
        set_condition(status, condition("Suspended", True, "JobSuspended", "Job suspended"), probed="lastProbeTime")
        return "Suspended"
    resumed = is_true(status, "Suspended")
    if resumed:
        set_condition(status, condition("Suspended", False, "JobResumed", "Job resumed"), probed="lastProbeTime")
        status["startTime"] = timestamp()
    status.setdefault("startTime", timestamp())
    return "Resumed" if resumed else ""


def set_outcome(status: Json, outcome: JobOutcome, tally: JobTally) -> bool:
    """Writes the outcome, and the end itself once every pod has ended and was counted; returns whether it has."""
    kind = "SuccessCriteriaMet" if outcome.good else "FailureTarget"
    set_condition(status, condition(kind, True, outcome.reason, outcome.message), probed="lastProbeTime")
    if tally.active or tally.terminating or status.get("uncountedTerminatedPods"):
        return False
    end = "Complete" if outcome.good else "Failed"
    set_condition(status, condition(end, True, outcome.reason, outcome.message), probed="lastProbeTime")
    if outcome.good:
        status.setdefault("completionTime", timestamp())
    return True


def is_finished(status: Json) -> bool:
    """Whether a Job has ended."""
    return is_true(status, "Complete") or is_true(status, "Failed")


def finished_at(status: Json) -> float:
    """When it ended."""
    ended = find_condition(status, "Complete") or find_condition(status, "Failed")
    return seconds(status.get("completionTime") or ended.get("lastTransitionTime"))
