"""Plans the next step of a Job: pods to create and delete, and its outcome. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from embedded_kube.controllers.machinery.conditions import find_condition
from embedded_kube.controllers.machinery.objects import INDEX_FAILURES, FullObject, PodView, seconds
from embedded_kube.controllers.workloads.job_policy import match_failure_policy, met_success_rule, read_indexes
from embedded_kube.controllers.workloads.pod_control import BURST, pick_victims
from gpu_scheduler.base import backoff
from gpu_scheduler.k8s.objects import Json

FINALIZER = "batch.kubernetes.io/job-tracking"
MAX_UNCOUNTED = 500


class JobGoal(NamedTuple):
    """Desired state of a Job, from its spec."""

    parallelism: int = 1
    completions: int | None = 1
    indexed: bool = False
    backoff_limit: int = 6
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    deadline: float | None = None
    suspended: bool = False
    failure_policy: Json | None = None
    success_policy: Json | None = None
    replaces_failed_only: bool = False
    backoff: float = 10.0
    backoff_cap: float = 600.0


class JobOutcome(NamedTuple):
    """How a Job ends: whether it succeeded, reason and message."""

    succeeded: bool
    reason: str
    message: str


@dataclass(slots=True)
class JobTally:
    """The pods of a Job by state, and the totals of ended pods, counted in the status or not yet."""

    succeeded: int = 0
    failed: int = 0
    completed: set[int] = field(default_factory=set)
    failed_indexes: set[int] = field(default_factory=set)
    index_failures: dict[int, int] = field(default_factory=dict)
    new_succeeded: list[PodView] = field(default_factory=list)
    new_failed: list[PodView] = field(default_factory=list)
    ignored: list[PodView] = field(default_factory=list)
    stale: list[PodView] = field(default_factory=list)
    active: list[PodView] = field(default_factory=list)
    terminating: list[PodView] = field(default_factory=list)
    fatal: str = ""


class BatchJobPlan(NamedTuple):
    """Indexes of pods to create (None: not indexed), pods to delete uncounted, pods to delete because the Job ends."""

    create: tuple[int | None, ...] = ()
    drop: tuple[PodView, ...] = ()
    kill: tuple[PodView, ...] = ()
    outcome: JobOutcome | None = None
    requeue_after: float | None = None


def read_goal(found: FullObject, backoff: float, backoff_cap: float) -> JobGoal:
    """Reads the goal from a Job's spec."""
    spec = found.spec
    per_index = spec.get("backoffLimitPerIndex")
    completions, parallelism = spec.get("completions"), spec.get("parallelism")
    if completions is None and parallelism is None:
        completions = 1
    policy = spec.get("podFailurePolicy")
    return JobGoal(
        parallelism=1 if parallelism is None else parallelism,
        completions=completions,
        indexed=spec.get("completionMode") == "Indexed",
        backoff_limit=spec.get("backoffLimit", 6 if per_index is None else 2**31 - 1),
        backoff_limit_per_index=per_index,
        max_failed_indexes=spec.get("maxFailedIndexes"),
        deadline=spec.get("activeDeadlineSeconds"),
        suspended=bool(spec.get("suspend")),
        failure_policy=policy,
        success_policy=spec.get("successPolicy"),
        replaces_failed_only=spec.get("podReplacementPolicy", "Failed" if policy else "") == "Failed",
        backoff=backoff,
        backoff_cap=backoff_cap,
    )


def tally_job(goal: JobGoal, status: Json, pods: Iterable[PodView]) -> JobTally:
    """Classifies a Job's pods: ended, active, terminating."""
    uncounted = status.get("uncountedTerminatedPods") or {}
    waiting = {*(uncounted.get("succeeded") or ()), *(uncounted.get("failed") or ())}
    tally = JobTally(
        succeeded=status.get("succeeded", 0) + len(uncounted.get("succeeded") or ()),
        failed=status.get("failed", 0) + len(uncounted.get("failed") or ()),
        completed=read_indexes(status.get("completedIndexes")),
        failed_indexes=read_indexes(status.get("failedIndexes")),
    )
    for pod in pods:
        _classify(goal, tally, pod, waiting)
    if goal.indexed:
        valid = range(goal.completions or 0)
        tally.completed.update(pod.index for pod in tally.new_succeeded if pod.index is not None and pod.index in valid)
        tally.succeeded = len(tally.completed)
        if goal.backoff_limit_per_index is not None:
            spent = (index for index, count in tally.index_failures.items() if count > goal.backoff_limit_per_index)
            tally.failed_indexes.update(spent)
        tally.failed_indexes -= tally.completed
    return tally


def _classify(goal: JobGoal, tally: JobTally, pod: PodView, waiting: set[str]) -> None:
    tracked = FINALIZER in pod.meta.finalizers
    gone = pod.meta.deleting and not pod.ended
    failed = pod.phase == "Failed" or (gone and not goal.replaces_failed_only)
    if failed and pod.index is not None:
        text = pod.annotations.get(INDEX_FAILURES, "0")
        count = (int(text) if text.isdecimal() else 0) + 1
        tally.index_failures[pod.index] = max(count, tally.index_failures.get(pod.index, 0))
    if gone:
        tally.terminating.append(pod)
    elif not pod.ended:
        # An untracked pod was about to be deleted uncounted when the controller was interrupted.
        (tally.active if tracked else tally.stale).append(pod)
        return
    if not tracked or pod.meta.uid in waiting:
        return
    if pod.phase == "Succeeded":
        tally.new_succeeded.append(pod)
        tally.succeeded += 1
    elif failed:
        action, why = match_failure_policy(goal.failure_policy, pod)
        if action == "Ignore":
            tally.ignored.append(pod)
            return
        if action == "FailJob" and not tally.fatal:
            tally.fatal = why
        elif action == "FailIndex" and pod.index is not None:
            tally.failed_indexes.add(pod.index)
        tally.new_failed.append(pod)
        tally.failed += 1


def plan_job(goal: JobGoal, status: Json, tally: JobTally, pods: Sequence[PodView], now: float) -> BatchJobPlan:
    """Plans the next step of a Job that has not ended."""
    outcome = recorded_outcome(status) or _decide_outcome(goal, status, tally, now)
    if outcome is not None:
        return BatchJobPlan(drop=tuple(tally.stale), kill=tuple(tally.active), outcome=outcome)
    deadline = _seconds_left(goal, status, now)
    if goal.suspended:
        return BatchJobPlan(drop=(*tally.stale, *tally.active))
    surplus = _surplus(goal, tally)
    terminating = len(tally.terminating) if goal.replaces_failed_only else 0
    missing = _wanted(goal, tally) - len(tally.active) - terminating
    if surplus or missing <= 0:
        return BatchJobPlan(drop=(*tally.stale, *surplus), requeue_after=deadline)
    wait = backoff_left(goal, pods, now)
    if wait > 0:
        return BatchJobPlan(
            drop=tuple(tally.stale), requeue_after=min(wait, deadline) if deadline is not None else wait
        )
    create = _free_indexes(goal, tally, missing) if goal.indexed else [None] * missing
    if len(create) > BURST:
        create, deadline = create[:BURST], 0.0
    return BatchJobPlan(create=tuple(create), drop=tuple(tally.stale), requeue_after=deadline)


def recorded_outcome(status: Json) -> JobOutcome | None:
    """Returns the outcome that the status already has."""
    for kind in ("SuccessCriteriaMet", "FailureTarget"):
        found = find_condition(status, kind)
        if found.get("status") == "True":
            return JobOutcome(kind == "SuccessCriteriaMet", found.get("reason", ""), found.get("message", ""))
    return None


def _decide_outcome(goal: JobGoal, status: Json, tally: JobTally, now: float) -> JobOutcome | None:
    if tally.fatal:
        return JobOutcome(False, "PodFailurePolicy", tally.fatal)
    if tally.failed > goal.backoff_limit or _restarted_too_often(goal, tally):
        return JobOutcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    left = _seconds_left(goal, status, now)
    if left is not None and left <= 0 and not goal.suspended:
        return JobOutcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    if goal.max_failed_indexes is not None and len(tally.failed_indexes) > goal.max_failed_indexes:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return JobOutcome(False, "MaxFailedIndexesExceeded", message)
    ended = len(tally.completed) + len(tally.failed_indexes)
    if goal.indexed and tally.failed_indexes and goal.completions is not None and ended >= goal.completions:
        return JobOutcome(False, "FailedIndexes", "Job has failed indexes")
    met = met_success_rule(goal.success_policy, tally.completed) if goal.indexed else None
    if met is not None:
        return JobOutcome(True, "SuccessPolicy", f"Matched rules at index {met}")
    if goal.completions is None:
        complete = tally.succeeded > 0 and not tally.active
    else:
        complete = tally.succeeded >= goal.completions
    return JobOutcome(True, "CompletionsReached", "Reached expected number of succeeded pods") if complete else None


def _restarted_too_often(goal: JobGoal, tally: JobTally) -> bool:
    restarts = sum(pod.restarts for pod in tally.active if pod.restart_policy == "OnFailure")
    return restarts > 0 if goal.backoff_limit == 0 else restarts >= goal.backoff_limit


def _seconds_left(goal: JobGoal, status: Json, now: float) -> float | None:
    if goal.deadline is None or not status.get("startTime") or goal.suspended:
        return None
    return seconds(status["startTime"]) + goal.deadline - now


def _wanted(goal: JobGoal, tally: JobTally) -> int:
    if goal.completions is None:
        return len(tally.active) if tally.succeeded else goal.parallelism
    return min(goal.parallelism, max(0, goal.completions - tally.succeeded - len(tally.failed_indexes)))


def _surplus(goal: JobGoal, tally: JobTally) -> list[PodView]:
    """Returns pods whose index is in use, done or out of range, and pods beyond the parallelism."""
    extra: list[PodView] = []
    if goal.indexed:
        seen: set[int] = set()
        for pod in sorted(tally.active, key=lambda pod: (pod.meta.created, pod.meta.name)):
            index = pod.index
            done = index in tally.completed or index in tally.failed_indexes
            if index is None or index >= (goal.completions or 0) or index in seen or done:
                extra.append(pod)
            else:
                seen.add(index)
    left = [pod for pod in tally.active if pod not in extra]
    return extra + pick_victims(left, max(0, len(left) - _wanted(goal, tally)))


def _free_indexes(goal: JobGoal, tally: JobTally, count: int) -> list[int | None]:
    taken = {pod.index for pod in tally.active} | tally.completed | tally.failed_indexes
    if goal.replaces_failed_only:
        taken |= {pod.index for pod in tally.terminating}
    free: list[int | None] = []
    for index in range(goal.completions or 0):
        if len(free) >= count:
            break
        if index not in taken:
            free.append(index)
    return free


def backoff_left(goal: JobGoal, pods: Iterable[PodView], now: float) -> float:
    """Returns the backoff before the next pod: doubled with every failure since the last success."""
    last_success, failures = 0.0, []
    for pod in pods:
        if pod.phase == "Succeeded":
            last_success = max(last_success, pod.finished)
        elif pod.phase == "Failed":
            failures.append(pod.finished)
    recent = [when for when in failures if when >= last_success]
    if not recent:
        return 0.0
    delay = backoff.exponential(len(recent) - 1, goal.backoff_cap, goal.backoff)
    return max(recent) + delay - now
