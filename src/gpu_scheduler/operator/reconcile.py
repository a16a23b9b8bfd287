"""What has to be done about a job, given what is there: a pure function.

A job is created, then its gang's PodGroup is; Services and pods follow when the group has room. Names are
deterministic and deletes name a uid, so whoever dies between two actions leaves nothing that the next look does not
complete. What must not be forgotten is written down before it is acted upon.
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
    PatchGroup,
    Plan,
    RecordRestarts,
    Tell,
)
from gpu_scheduler.operator.conditions import (
    CREATED,
    FAILED,
    INVALID,
    RESTARTING,
    RUNNING,
    SUCCEEDED,
    SUSPENDED,
    Draft,
)
from gpu_scheduler.operator.jobs import CleanPods, Counts, Job, Restart, Role
from gpu_scheduler.operator.pod_groups import PodGroupApi, patch_group_spec
from gpu_scheduler.operator.pods import (
    count_restarts,
    ended_at,
    exit_code,
    is_leaving,
    labels_of,
    make_pod,
    make_service,
    phase_of,
)
from gpu_scheduler.operator.reading import write_restarts

RETRYABLE = 128
"""Exit codes from here on are a signal's doing, and worth another try."""

LONGEST_PAUSE = 60.0
"""A replica that fails again and again is made anew at the latest so many seconds after it ended."""

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Observed:
    """What is there for a job: the pods and Services that it owns, and the PodGroup of its name."""

    pods: Sequence[RawObject] = ()
    services: Sequence[Object] = ()
    group: RawObject | None = None
    gang: PodGroupApi | None = None
    """How gangs are made here; None for not at all."""


class _Failure(NamedTuple):
    """A pod that failed, and whether its replica gets another."""

    pod: RawObject
    role: Role
    retry: bool


@dataclass(slots=True)
class _Members:
    """The pods of a job by their names, and what became of them."""

    pods: dict[str, RawObject]
    counts: dict[str, Counts]
    failures: list[_Failure] = field(default_factory=list)
    first_worker_done: bool = False

    def failed_in(self, role: Role) -> list[_Failure]:
        return [found for found in self.failures if found.role == role]


def reconcile(job: Job, observed: Observed, now: float) -> Plan:
    """What to do about a job."""
    if job.meta.deletion_timestamp is not None:
        return Plan()  # what it owns goes with it
    draft = Draft(job.kind, job.status, now)
    if draft.over:
        return _wind_up(job, observed, draft, now)
    draft.drop(FAILED)  # it made no sense, and now does
    draft.turn(CREATED, True, f"{job.say('created')}.")
    if job.policy.suspended:
        return _suspend(job, observed, draft)
    if draft.is_true(SUSPENDED):
        draft.turn(SUSPENDED, False, f"{job.say('resumed')}.", word="Resumed")
    return _run(job, observed, draft, now)


def reject(kind: str, raw: RawObject, message: str, now: float) -> Plan:
    """What to do about a job that makes no sense: say so, and touch nothing."""
    draft = Draft(kind, raw.status, now)
    if raw.metadata.deletion_timestamp is None and not draft.over:
        draft.turn(FAILED, True, message, reason=INVALID, warn=True)
    return Plan(draft.finish())


# -- a job that is over, or rests


def _wind_up(job: Job, observed: Observed, draft: Draft, now: float) -> Plan:
    """Takes away what its policy says, and the job itself when its time has come."""
    clean = job.policy.clean
    plan = Plan(list(remove_group(job, observed)))
    if clean is not CleanPods.NONE:
        gone = [pod for pod in observed.pods if clean is CleanPods.ALL or phase_of(pod) not in _ENDED]
        plan.actions += _remove(observed, gone)
    draft.rest(succeeded=draft.is_true(SUCCEEDED))
    plan.actions += draft.finish()
    ended = draft.time("completionTime")
    if job.policy.ttl is not None and ended is not None:
        if now >= ended + job.policy.ttl:
            plan.actions.append(DeleteJob())
        else:
            plan.again = ended + job.policy.ttl
    return plan


def _suspend(job: Job, observed: Observed, draft: Draft) -> Plan:
    """Gives everything back."""
    plan = Plan([*remove_group(job, observed), *_remove(observed, observed.pods)])
    message = f"{job.say('suspended')}."
    if draft.is_true(RUNNING):
        draft.turn(RUNNING, False, message, word="Suspended")
    draft.turn(SUSPENDED, True, message)
    draft.rest(succeeded=False)
    draft.clear("startTime")
    plan.actions += draft.finish()
    return plan


def _remove(observed: Observed, pods: Sequence[RawObject]) -> Iterator[Action]:
    """Deletes some pods, and the Services of all pods that do not stay."""
    leaving = {pod.metadata.name for pod in pods}
    staying = {pod.metadata.name for pod in observed.pods} - leaving
    for pod in pods:
        if not is_leaving(pod):
            yield DeletePod(pod.metadata.name, pod.metadata.uid)
    # Not only those whose pods go now: whoever began this may have died in between.
    for service in observed.services:
        if service.metadata.name not in staying and service.metadata.deletion_timestamp is None:
            yield DeleteService(service.metadata.name, service.metadata.uid)


def remove_group(job: Job, observed: Observed) -> Iterator[Action]:
    """Deletes the job's PodGroup, if there is one. It goes before pods do: else it would be called short of them."""
    group = observed.group
    if group is not None and _owns(job, group.metadata) and group.metadata.deletion_timestamp is None:
        yield DeleteGroup(group.metadata.name, group.metadata.uid)


def _owns(job: Job, meta: Meta) -> bool:
    return any(owner.uid == job.meta.uid for owner in meta.owner_references or ())


# -- a job that runs, or is about to


def _run(job: Job, observed: Observed, draft: Draft, now: float) -> Plan:
    members = _read_members(job, observed)
    limit = _passed_limit(job, members, draft, now)
    if limit:
        # Before it is called failed, whatever its clean-up policy: a job that is over keeps its pods.
        plan = Plan([*remove_group(job, observed), *_remove(observed, observed.pods)])
        draft.rest(succeeded=False)
        draft.end(FAILED, f"Job {job.meta.name} has failed because {limit}")
        plan.actions += draft.finish()
        return plan
    draft.count(members.counts, {role.name: _selector(job, role) for role in job.roles})
    if _judge(job, members, draft):
        return Plan(draft.finish())
    plan = Plan()
    times = []
    if open_gang(job, observed, plan):
        draft.stamp("startTime")
        later = [due for due in (_due(job, found) for found in members.failures if found.retry) if due > now]
        times += later
        plan.actions += _restart(job, members, now)
        plan.actions += _shrink(job, observed)
        plan.actions += _create(job, observed, members)
    # The status goes first: pods that are refused, by a quota for one, must not keep the job from saying how it is.
    plan.actions[:0] = draft.finish()
    started = draft.time("startTime")
    if job.policy.deadline is not None and started is not None:
        times.append(started + job.policy.deadline)
    plan.again = min(times, default=None)
    return plan


def _read_members(job: Job, observed: Observed) -> _Members:
    pods = {pod.metadata.name: pod for pod in observed.pods}
    members = _Members(pods, {})
    for role in job.roles:
        phases = []
        for index in range(role.replicas):
            pod = pods.get(job.pod_name(role, index))
            if pod is None or (is_leaving(pod) and phase_of(pod) != "Succeeded"):
                continue
            phases.append(phase_of(pod))
            if phases[-1] == "Failed":
                members.failures.append(_Failure(pod, role, _deserves_retry(job, role, pod)))
            if role.name == "Worker" and index == 0 and phases[-1] == "Succeeded":
                members.first_worker_done = True
        counted = (phases.count(phase) for phase in ("Running", "Succeeded", "Failed"))
        members.counts[role.name] = Counts(*counted)
    return members


def _deserves_retry(job: Job, role: Role, pod: RawObject) -> bool:
    if role.restart is Restart.EXIT_CODE:
        return exit_code(pod, job.container) >= RETRYABLE
    # The node starts containers again; a pod that failed all the same was evicted, or lost with its node.
    return role.restart is not Restart.NEVER


def _passed_limit(job: Job, members: _Members, draft: Draft, now: float) -> str:
    """Which of its limits the job has passed; "" for none."""
    policy, started = job.policy, draft.time("startTime")
    if policy.backoff_limit is not None:
        inside = sum(count_restarts(pod) for pod in members.pods.values())
        made_anew = sum(job.restarts.values()) + sum(_is_new(job, found) for found in members.failures if found.retry)
        if inside >= max(1, policy.backoff_limit) or made_anew > policy.backoff_limit:
            return "it has reached the specified backoff limit"
    if policy.deadline is not None and started is not None and now >= started + policy.deadline:
        return "it was active longer than specified deadline"
    return ""


def _is_new(job: Job, failure: _Failure) -> bool:
    """Whether the job does not say yet that this pod will be made anew."""
    meta = failure.pod.metadata
    before = (meta.annotations or {}).get(RESTARTS, "0")
    return job.restarts.get(meta.name, 0) <= (read_number(before) or 0)


def _judge(job: Job, members: _Members, draft: Draft) -> bool:
    """Says how the job stands; whether it is over."""
    standing = job.judge(members.counts, members.first_worker_done)
    if standing.succeeded:
        draft.end(SUCCEEDED, f"{job.say('succeeded')}.")
        return True
    again = []
    for role in job.roles:
        failed = members.failed_in(role)
        lost = [found for found in failed if not found.retry]
        if lost and not job.bears_failures(role):
            draft.end(FAILED, f"{job.say('failed')} because {len(lost)} {role.name} replica(s) failed.")
            return True
        if len(failed) > len(lost):
            again.append(f"{len(failed) - len(lost)} {role.name}")
    if again:
        why = f"{' and '.join(again)} replica(s) failed."
        draft.turn(RESTARTING, True, f"{job.say('restarting')} because {why}", warn=True)
    if standing.running and not any(found.retry for found in members.failures):
        draft.turn(RUNNING, True, f"{job.say('running')}.")
    return False


def _selector(job: Job, role: Role) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels_of(job, role).items()))


def open_gang(job: Job, observed: Observed, plan: Plan) -> bool:
    """Makes the PodGroup and keeps it up to date; whether pods may be made."""
    api, group = observed.gang, observed.group
    if api is None or job.total == 0:
        return True
    # Some are there, so there was room: whoever died while making them had been let in. Those that leave prove nothing:
    # they may be of before the job was suspended.
    let_in = not all(map(is_leaving, observed.pods))
    if group is None:
        others = sorted(api.schedulers(job) - {api.scheduler})
        if others:
            why = (
                f"the pods name {' and '.join(others)}, which is kept: they wait for a scheduler that serves this name"
            )
            plan.actions.append(Tell("Warning", "PodTemplateSchedulerName", why))
        plan.actions.append(CreateGroup(api.make_group(job)))
        return let_in
    if not _owns(job, group.metadata):
        owners = group.metadata.owner_references or ()
        if any((owner.kind, owner.name) == (job.kind, job.meta.name) for owner in owners):
            return False  # an earlier job's of this name, which goes after it
        why = f"there is a PodGroup {group.metadata.name} of somebody else; delete it or call the job something else"
        plan.actions.append(Tell("Warning", "FailedCreatePodGroup", why))
        return False
    if wanted := patch_group_spec(api, job, group):
        meta = {"uid": group.metadata.uid}
        plan.actions.append(PatchGroup(group.metadata.name, {"metadata": meta, "spec": wanted}))
    if let_in or api.is_open(group):
        return True
    waits = condition_in(group.status.get("conditions"), "Unschedulable")
    if waits.get("status") == "True" and waits.get("message"):
        plan.actions.append(Tell("Warning", "Unschedulable", f"No pods yet: {waits['message']}"))
    return False


def _due(job: Job, failure: _Failure) -> float:
    """When a pod that failed is to be made anew: at once, and later each time that it fails again."""
    before = job.restarts.get(failure.pod.metadata.name, 0)
    ended = ended_at(failure.pod)
    if not before or ended is None or not _is_new(job, failure):
        return 0.0
    return ended + backoff.exponential(before - 1, LONGEST_PAUSE)


def _restart(job: Job, members: _Members, now: float) -> Iterator[Action]:
    """Deletes the pods that are to be made anew, after writing down that they are."""
    again = [found for found in members.failures if found.retry and _due(job, found) <= now]
    new = [found.pod.metadata.name for found in again if _is_new(job, found)]
    if new:
        yield RecordRestarts(write_restarts(job, {name: job.restarts.get(name, 0) + 1 for name in new}))
    for found in again:
        code = exit_code(found.pod, job.container)
        meta = found.pod.metadata
        yield Tell("Normal", "ExitedWithCode", f"Pod: {meta.namespace}.{meta.name} exited with code {code}")
        yield DeletePod(meta.name, meta.uid)


def _shrink(job: Job, observed: Observed) -> Iterator[Action]:
    """Deletes what the job no longer has, since somebody asked for fewer replicas."""
    wanted = {job.pod_name(role, index) for role in job.roles for index in range(role.replicas)}
    for pod in observed.pods:
        if pod.metadata.name not in wanted and not is_leaving(pod):
            yield DeletePod(pod.metadata.name, pod.metadata.uid)
    for service in observed.services:
        if service.metadata.name not in wanted and service.metadata.deletion_timestamp is None:
            yield DeleteService(service.metadata.name, service.metadata.uid)


def _create(job: Job, observed: Observed, members: _Members) -> Iterator[Action]:
    """Makes what is missing: Services first, for pods look each other up when they start."""
    there = {service.metadata.name for service in observed.services}
    places = [(role, index) for role in job.roles for index in range(role.replicas)]
    for role, index in places:
        if job.pod_name(role, index) not in there:
            yield CreateService(make_service(job, role, index))
    for role, index in places:
        if job.pod_name(role, index) not in members.pods:
            pod = make_pod(job, role, index)
            yield CreatePod(observed.gang.join(pod, job, role.label) if observed.gang is not None else pod)
