"""Reconciliation of a job: a pure function from the job and what exists for it to the actions that are due.

First the job's PodGroup is created; Services and pods follow when the scheduler has admitted the group. Names are
deterministic and deletes carry a uid, so after a crash between two actions the next reconciliation completes them.
What must survive a crash is written before it is acted upon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_scheduler.base import backoff
from gpu_scheduler.gangs.conditions import condition_in
from gpu_scheduler.gangs.contract import RESTARTS
from gpu_scheduler.gangs.pods.device_map import read_number
from gpu_scheduler.k8s.objects import Meta, Object, RawObject
from gpu_scheduler.operator.actions import (
    Action,
    CreateGroup,
    CreatePod,
    CreateService,
    DeleteGroup,
    DeleteJob,
    DeletePod,
    DeleteService,
    JobPlan,
    PatchGroup,
    RecordEvent,
    RecordRestarts,
)
from gpu_scheduler.operator.decoding import restart_annotation
from gpu_scheduler.operator.job_status import (
    CREATED,
    FAILED,
    INVALID,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    JobStatusBuilder,
)
from gpu_scheduler.operator.managed_job import CleanPodPolicy, JobRole, ManagedJob, ReplicaCounts, RestartPolicy
from gpu_scheduler.operator.pod_groups import PodGroupApi, patch_group_spec
from gpu_scheduler.operator.pods import (
    count_restarts,
    ended_at,
    exit_code,
    is_terminating,
    make_pod,
    make_service,
    phase_of,
    replica_labels,
)

FIRST_RETRYABLE_CODE = 128
"""Exit codes from here on mean that a signal ended the container: the replica is restarted."""

MAX_RESTART_BACKOFF = 60.0
"""The longest time in seconds between the end of a failing replica and its restart."""

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """What exists for a job: the pods and Services that it owns, and the PodGroup with its name."""

    pods: Sequence[RawObject] = ()
    services: Sequence[Object] = ()
    group: RawObject | None = None
    groups: PodGroupApi | None = None
    """How PodGroups are created; None where the operator creates none."""
    served_names: frozenset[str] = frozenset()
    """The scheduler names that our scheduler serves, as far as known."""


class _FailedReplica(NamedTuple):
    """A pod that failed, and whether its replica is restarted."""

    pod: RawObject
    role: JobRole
    retry: bool


@dataclass(slots=True)
class _Replicas:
    """The pods of a job by name, how many are in which state, and the failed ones."""

    pods: dict[str, RawObject]
    counts: dict[str, ReplicaCounts]
    failures: list[_FailedReplica] = field(default_factory=list)
    first_worker_done: bool = False

    def failed_of(self, role: JobRole) -> list[_FailedReplica]:
        return [found for found in self.failures if found.role == role]


def reconcile(job: ManagedJob, observed: ObservedJob, now: float) -> JobPlan:
    """Returns the actions that are due for a job."""
    if job.meta.deletion_timestamp is not None:
        return JobPlan()  # garbage collection deletes what it owns
    status = JobStatusBuilder(job.kind, job.status, now)
    if status.ended:
        return _clean_up(job, observed, status, now)
    status.remove_condition(FAILED)  # the spec was invalid and has been corrected
    status.set_condition(CREATED, True, f"{job.describe('created')}.")
    if job.policy.suspended:
        return _suspend(job, observed, status)
    if status.is_true(SUSPENDED):
        status.set_condition(SUSPENDED, False, f"{job.describe('resumed')}.", suffix="Resumed")
    return _run(job, observed, status, now)


def reject(kind: str, raw: RawObject, message: str, now: float) -> JobPlan:
    """Returns the actions for a job with an invalid spec: its status says why, and nothing else changes."""
    status = JobStatusBuilder(kind, raw.status, now)
    if raw.metadata.deletion_timestamp is None and not status.ended:
        status.set_condition(FAILED, True, message, reason=INVALID, warn=True)
    return JobPlan(status.build())


# -- ended and suspended jobs


def _clean_up(job: ManagedJob, observed: ObservedJob, status: JobStatusBuilder, now: float) -> JobPlan:
    """Deletes the pods that cleanPodPolicy selects, and the job itself after ttlSecondsAfterFinished."""
    clean = job.policy.clean
    plan = JobPlan(list(delete_group(job, observed)))
    if clean is not CleanPodPolicy.NONE:
        gone = [pod for pod in observed.pods if clean is CleanPodPolicy.ALL or phase_of(pod) not in _ENDED]
        plan.actions += _delete_replicas(observed, gone)
    status.clear_active(succeeded=status.is_true(SUCCEEDED))
    plan.actions += status.build()
    ended = status.time("completionTime")
    if job.policy.ttl is not None and ended is not None:
        if now >= ended + job.policy.ttl:
            plan.actions.append(DeleteJob())
        else:
            plan.requeue_at = ended + job.policy.ttl
    return plan


def _suspend(job: ManagedJob, observed: ObservedJob, status: JobStatusBuilder) -> JobPlan:
    """Deletes the PodGroup, the pods and the Services."""
    plan = JobPlan([*delete_group(job, observed), *_delete_replicas(observed, observed.pods)])
    message = f"{job.describe('suspended')}."
    if status.is_true(RUNNING):
        status.set_condition(RUNNING, False, message, suffix="Suspended")
    status.set_condition(SUSPENDED, True, message)
    status.clear_active(succeeded=False)
    status.clear("startTime")
    plan.actions += status.build()
    return plan


def _delete_replicas(observed: ObservedJob, pods: Sequence[RawObject]) -> Iterator[Action]:
    """Deletes some pods, and the Services of all pods that do not remain."""
    leaving = {pod.metadata.name for pod in pods}
    staying = {pod.metadata.name for pod in observed.pods} - leaving
    for pod in pods:
        if not is_terminating(pod):
            yield DeletePod(pod.metadata.name, pod.metadata.uid)
    # Also Services without a pod: an earlier attempt may have been interrupted.
    for service in observed.services:
        if service.metadata.name not in staying and service.metadata.deletion_timestamp is None:
            yield DeleteService(service.metadata.name, service.metadata.uid)


def delete_group(job: ManagedJob, observed: ObservedJob) -> Iterator[Action]:
    """Deletes the job's PodGroup before its pods: otherwise the gang would be reported below its minimum."""
    group = observed.group
    if group is not None and _is_owner(job, group.metadata) and group.metadata.deletion_timestamp is None:
        yield DeleteGroup(group.metadata.name, group.metadata.uid)


def _is_owner(job: ManagedJob, meta: Meta) -> bool:
    return any(owner.uid == job.meta.uid for owner in meta.owner_references or ())


# -- running jobs


def _run(job: ManagedJob, observed: ObservedJob, status: JobStatusBuilder, now: float) -> JobPlan:
    replicas = _read_replicas(job, observed)
    limit = _exceeded_limit(job, replicas, status, now)
    if limit:
        # All pods go, whatever the cleanPodPolicy, before the job counts as failed: an ended job keeps its pods.
        plan = JobPlan([*delete_group(job, observed), *_delete_replicas(observed, observed.pods)])
        status.clear_active(succeeded=False)
        status.end(FAILED, f"Job {job.meta.name} has failed because {limit}")
        plan.actions += status.build()
        return plan
    status.set_counts(replicas.counts, {role.name: _selector(job, role) for role in job.roles})
    if _update_progress(job, replicas, status):
        return JobPlan(status.build())
    plan = JobPlan()
    times = []
    if ensure_group(job, observed, plan):
        status.set_time("startTime")
        later = [due for due in (_restart_time(job, found) for found in replicas.failures if found.retry) if due > now]
        times += later
        plan.actions += _restart(job, replicas, now)
        plan.actions += _delete_surplus(job, observed)
        plan.actions += _create_missing(job, observed, replicas)
    # The status first: pods that the API server refuses, because of a quota for example, must not delay it.
    plan.actions[:0] = status.build()
    started = status.time("startTime")
    if job.policy.deadline is not None and started is not None:
        times.append(started + job.policy.deadline)
    plan.requeue_at = min(times, default=None)
    return plan


def _read_replicas(job: ManagedJob, observed: ObservedJob) -> _Replicas:
    pods = {pod.metadata.name: pod for pod in observed.pods}
    replicas = _Replicas(pods, {})
    for role in job.roles:
        phases = []
        for index in range(role.replicas):
            pod = pods.get(job.pod_name(role, index))
            if pod is None or (is_terminating(pod) and phase_of(pod) != "Succeeded"):
                continue
            phases.append(phase_of(pod))
            if phases[-1] == "Failed":
                replicas.failures.append(_FailedReplica(pod, role, _is_retryable(job, role, pod)))
            if role.name == "Worker" and index == 0 and phases[-1] == "Succeeded":
                replicas.first_worker_done = True
        counted = (phases.count(phase) for phase in ("Running", "Succeeded", "Failed"))
        replicas.counts[role.name] = ReplicaCounts(*counted)
    return replicas


def _is_retryable(job: ManagedJob, role: JobRole, pod: RawObject) -> bool:
    if role.restart is RestartPolicy.EXIT_CODE:
        return exit_code(pod, job.container) >= FIRST_RETRYABLE_CODE
    # The kubelet restarts containers; a pod that failed nevertheless was evicted, or lost with its node.
    return role.restart is not RestartPolicy.NEVER


def _exceeded_limit(job: ManagedJob, replicas: _Replicas, status: JobStatusBuilder, now: float) -> str:
    """Returns why the job has exceeded a limit; "" if it has not."""
    policy, started = job.policy, status.time("startTime")
    if policy.backoff_limit is not None:
        in_place = sum(count_restarts(pod) for pod in replicas.pods.values())
        due = sum(_is_unrecorded(job, found) for found in replicas.failures if found.retry)
        recreated = sum(job.restarts.values()) + due
        if in_place >= max(1, policy.backoff_limit) or recreated > policy.backoff_limit:
            return "it has reached the specified backoff limit"
    if policy.deadline is not None and started is not None and now >= started + policy.deadline:
        return "it was active longer than specified deadline"
    return ""


def _is_unrecorded(job: ManagedJob, failure: _FailedReplica) -> bool:
    """Returns whether the restart of this pod has not been recorded on the job yet."""
    meta = failure.pod.metadata
    before = (meta.annotations or {}).get(RESTARTS, "0")
    return job.restarts.get(meta.name, 0) <= (read_number(before) or 0)


def _update_progress(job: ManagedJob, replicas: _Replicas, status: JobStatusBuilder) -> bool:
    """Sets the conditions that follow from the replicas; returns whether the job has ended."""
    progress = job.progress(replicas.counts, replicas.first_worker_done)
    if progress.succeeded:
        status.end(SUCCEEDED, f"{job.describe('succeeded')}.")
        return True
    again = []
    for role in job.roles:
        failed = replicas.failed_of(role)
        lost = [found for found in failed if not found.retry]
        if lost and not job.tolerates_failures(role):
            status.end(FAILED, f"{job.describe('failed')} because {len(lost)} {role.name} replica(s) failed.")
            return True
        if len(failed) > len(lost):
            again.append(f"{len(failed) - len(lost)} {role.name}")
    if again:
        why = f"{' and '.join(again)} replica(s) failed."
        status.set_condition(RESTARTING, True, f"{job.describe('restarting')} because {why}", warn=True)
    if progress.running and not any(found.retry for found in replicas.failures):
        status.set_condition(RUNNING, True, f"{job.describe('running')}.")
    return False


def _selector(job: ManagedJob, role: JobRole) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(replica_labels(job, role).items()))


def ensure_group(job: ManagedJob, observed: ObservedJob, plan: JobPlan) -> bool:
    """Creates the PodGroup or brings it up to date; returns whether pods may be created."""
    api, group = observed.groups, observed.group
    if api is None or job.total == 0:
        return True
    # A pod proves that the group had been admitted, also if the operator crashed after creating it. Terminating pods
    # prove nothing: they may date from before the job was suspended.
    admitted = not all(map(is_terminating, observed.pods))
    if group is None:
        others = sorted(api.schedulers(job) - {api.scheduler} - observed.served_names)
        if others:
            why = (
                f"schedulerName: the pods name {' and '.join(others)}, which {api.scheduler} is not known to serve; "
                f"write {api.scheduler}, leave it out, or run a scheduler for that name"
            )
            plan.actions.append(RecordEvent("Warning", "PodTemplateSchedulerName", why))
        plan.actions.append(CreateGroup(api.make_group(job)))
        return admitted
    if not _is_owner(job, group.metadata):
        owners = group.metadata.owner_references or ()
        if any((owner.kind, owner.name) == (job.kind, job.meta.name) for owner in owners):
            return False  # that of an earlier job with this name: garbage collection deletes it
        why = f"PodGroup {group.metadata.name} exists and is not owned by this job; delete it, or rename the job"
        plan.actions.append(RecordEvent("Warning", "FailedCreatePodGroup", why))
        return False
    if wanted := patch_group_spec(api, job, group):
        meta = {"uid": group.metadata.uid}
        plan.actions.append(PatchGroup(group.metadata.name, {"metadata": meta, "spec": wanted}))
    if admitted or api.is_open(group):
        return True
    waiting = condition_in(group.status.get("conditions"), "Unschedulable")
    if waiting.get("status") == "True" and waiting.get("message"):
        plan.actions.append(RecordEvent("Warning", "Unschedulable", f"No pods yet: {waiting['message']}"))
    return False


def _restart_time(job: ManagedJob, failure: _FailedReplica) -> float:
    """Returns when a failed pod is recreated: at once, then with exponential backoff."""
    before = job.restarts.get(failure.pod.metadata.name, 0)
    ended = ended_at(failure.pod)
    if not before or ended is None or not _is_unrecorded(job, failure):
        return 0.0
    return ended + backoff.exponential(before - 1, MAX_RESTART_BACKOFF)


def _restart(job: ManagedJob, replicas: _Replicas, now: float) -> Iterator[Action]:
    """Records the restarts, then deletes the pods that are to be recreated."""
    again = [found for found in replicas.failures if found.retry and _restart_time(job, found) <= now]
    new = [found.pod.metadata.name for found in again if _is_unrecorded(job, found)]
    if new:
        yield RecordRestarts(restart_annotation(job, {name: job.restarts.get(name, 0) + 1 for name in new}))
    for found in again:
        code = exit_code(found.pod, job.container)
        meta = found.pod.metadata
        yield RecordEvent("Normal", "ExitedWithCode", f"Pod: {meta.namespace}.{meta.name} exited with code {code}")
        yield DeletePod(meta.name, meta.uid)


def _delete_surplus(job: ManagedJob, observed: ObservedJob) -> Iterator[Action]:
    """Deletes the pods and Services of replicas that the job no longer has."""
    wanted = {job.pod_name(role, index) for role in job.roles for index in range(role.replicas)}
    for pod in observed.pods:
        if pod.metadata.name not in wanted and not is_terminating(pod):
            yield DeletePod(pod.metadata.name, pod.metadata.uid)
    for service in observed.services:
        if service.metadata.name not in wanted and service.metadata.deletion_timestamp is None:
            yield DeleteService(service.metadata.name, service.metadata.uid)


def _create_missing(job: ManagedJob, observed: ObservedJob, replicas: _Replicas) -> Iterator[Action]:
    """Creates what is missing: Services first, because pods resolve each other's names when they start."""
    existing = {service.metadata.name for service in observed.services}
    places = [(role, index) for role in job.roles for index in range(role.replicas)]
    for role, index in places:
        if job.pod_name(role, index) not in existing:
            yield CreateService(make_service(job, role, index))
    for role, index in places:
        if job.pod_name(role, index) not in replicas.pods:
            pod = make_pod(job, role, index)
            yield CreatePod(observed.groups.join(pod, job, role.label) if observed.groups is not None else pod)
