"""Status of a Job: counters that stay correct when the controller is killed at any moment, and conditions."""

from __future__ import annotations

from collections.abc import Iterable

from embedded_kube.controllers.machinery.conditions import condition, find_condition, is_true, set_condition
from embedded_kube.controllers.machinery.objects import PodView, seconds
from embedded_kube.controllers.workloads.job_plan import FINALIZER, MAX_UNCOUNTED, JobGoal, JobOutcome, JobTally
from embedded_kube.controllers.workloads.job_policy import write_indexes
from embedded_kube.registry.timestamps import timestamp
from gpu_scheduler.k8s.objects import Json


def count_released(status: Json, pods: Iterable[PodView]) -> None:
    """Moves pods without finalizer from uncountedTerminatedPods to the counters.

    A pod's uid is written to the status first, then the pod loses its finalizer, then it is counted. A kill after any
    of these steps leaves it counted exactly once.
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
    """Adds newly terminated pods to the status."""
    uncounted = status.setdefault("uncountedTerminatedPods", {})
    free = MAX_UNCOUNTED
    for name, pods in (("succeeded", tally.new_succeeded), ("failed", tally.new_failed)):
        new = [pod.meta.uid for pod in pods][:free]
        free -= len(new)
        if new:
            uncounted[name] = [*uncounted.get(name, ()), *new]
    if goal.indexed:
        if tally.completed:
            status["completedIndexes"] = write_indexes(tally.completed)
        if goal.backoff_limit_per_index is not None or tally.failed_indexes:
            status["failedIndexes"] = write_indexes(tally.failed_indexes)


def count_active(status: Json, goal: JobGoal, tally: JobTally) -> None:
    """Sets the counters of pods that have not ended."""
    counters = {"active": len(tally.active)}
    if goal.indexed:
        # Indexes succeed, not pods: two pods of one index count once.
        counters["succeeded"] = len(tally.completed) - len(status["uncountedTerminatedPods"].get("succeeded", ()))
    for name, value in counters.items():
        if value > 0:
            status[name] = value
        else:
            status.pop(name, None)
    status["ready"] = sum(pod.ready for pod in tally.active)
    status["terminating"] = len(tally.terminating)


def set_suspended(status: Json, goal: JobGoal) -> str:
    """Applies spec.suspend; returns the reason of an Event to record, if any."""
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
    """Sets the outcome condition, and the final condition once all pods are counted; returns whether it did."""
    kind = "SuccessCriteriaMet" if outcome.succeeded else "FailureTarget"
    set_condition(status, condition(kind, True, outcome.reason, outcome.message), probed="lastProbeTime")
    if tally.active or tally.terminating or status.get("uncountedTerminatedPods"):
        return False
    end = "Complete" if outcome.succeeded else "Failed"
    set_condition(status, condition(end, True, outcome.reason, outcome.message), probed="lastProbeTime")
    if outcome.succeeded:
        status.setdefault("completionTime", timestamp())
    return True


def is_finished(status: Json) -> bool:
    """Whether a Job is Complete or Failed."""
    return is_true(status, "Complete") or is_true(status, "Failed")


def finished_at(status: Json) -> float:
    """Returns when a Job ended."""
    ended = find_condition(status, "Complete") or find_condition(status, "Failed")
    return seconds(status.get("completionTime") or ended.get("lastTransitionTime"))
