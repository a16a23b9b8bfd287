"""Reconciliation of a Volcano Job: its phases, and the actions of its lifecycle policies.

A restart increments the job's version, and each pod carries the version it was created for. Pods of another version
are deleted, however often the operator crashes in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_scheduler.gangs.jobs import VOLCANO_JOBS
from gpu_scheduler.gangs.options import as_dict
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.times import format_time, parse_time
from gpu_scheduler.operator.actions import (
    Action,
    CreateConfigMap,
    CreatePod,
    CreateService,
    DeleteJob,
    DeletePod,
    JobPlan,
    RecordEvent,
    UpdateStatus,
)
from gpu_scheduler.operator.frameworks.framework import JobFramework
from gpu_scheduler.operator.frameworks.volcano import (
    ANY,
    JOB_NAME,
    JOB_VERSION,
    RESOURCES,
    LifecyclePolicy,
    PolicyAction,
    Task,
    VolcanoJob,
    decode,
    make_hosts_config_map,
    make_job_service,
    make_task_pod,
)
from gpu_scheduler.operator.job_status import INVALID, merge_patch, without_wrong_types
from gpu_scheduler.operator.pods import is_terminating, phase_of, terminated_containers
from gpu_scheduler.operator.reconcile import ObservedJob, delete_group, ensure_group

PENDING, RUNNING, RESTARTING, FAILED, COMPLETED = "Pending", "Running", "Restarting", "Failed", "Completed"
_ENDING = {"Aborting": "Aborted", "Completing": COMPLETED, "Terminating": "Terminated"}
_FINAL = (COMPLETED, FAILED, "Terminated", "Aborted")
_ENDED = ("Succeeded", "Failed")
_PHASES = {
    PolicyAction.ABORT: "Aborting",
    PolicyAction.COMPLETE: "Completing",
    PolicyAction.TERMINATE: "Terminating",
    PolicyAction.RESTART: RESTARTING,
}


@dataclass(slots=True)
class _Reconciliation:
    """One reconciliation: the job, what exists for it, the new status and the Events."""

    job: VolcanoJob
    observed: ObservedJob
    now: float
    status: Json
    events: list[RecordEvent]

    @property
    def phase(self) -> str:
        return str((self.status.get("state") or {}).get("phase") or PENDING)

    @property
    def version(self) -> int:
        return int(self.status.get("version") or 0)

    def set_phase(self, phase: str, reason: str = "", message: str = "") -> None:
        """Enters a phase, with an Event."""
        when = format_time(self.now)
        self.status["state"] = {"phase": phase, "reason": reason, "message": message, "lastTransitionTime": when}
        earlier = self.status.get("conditions") or []
        self.status["conditions"] = [*earlier, {"status": phase, "lastTransitionTime": when}]
        kind = self.job.kind
        self.events.append(
            RecordEvent("Warning" if phase == FAILED else "Normal", f"{kind}{phase}", message or f"Job is {phase}")
        )

    def pods_of(self, task: Task) -> list[RawObject]:
        names = {self.job.pod_name(task, index) for index in range(task.replicas)}
        return [pod for pod in self.observed.pods if pod.metadata.name in names and self.is_current(pod)]

    def is_current(self, pod: RawObject) -> bool:
        return (pod.metadata.annotations or {}).get(JOB_VERSION, "0") == str(self.version)


def reconcile(job: VolcanoJob, observed: ObservedJob, now: float) -> JobPlan:
    """Returns the actions that are due for a job."""
    if job.meta.deletion_timestamp is not None:
        return JobPlan()
    run = _Reconciliation(job, observed, now, without_wrong_types(job.status), [])
    state = run.status.get("state") or {}
    if state.get("reason") == INVALID:
        run.status.pop("state")
    if not run.status.get("state"):
        run.set_phase(PENDING)
    plan = JobPlan()
    if run.phase in _FINAL:
        _clean_up(run, plan)
    elif run.phase in _ENDING:
        plan.actions += _delete(pod for pod in observed.pods if phase_of(pod) not in _ENDED)
        if all(phase_of(pod) in _ENDED for pod in observed.pods):
            run.set_phase(_ENDING[run.phase], state.get("reason", ""))
    elif run.phase == RESTARTING:
        _restart(run, plan)
    else:
        _run(run, plan)
    _count(run)
    plan.actions[:0] = _finish(run)
    return plan


def reject(kind: str, raw: RawObject, message: str, now: float) -> JobPlan:
    """Returns the actions for a job with an invalid spec: its status says why, and nothing else changes."""
    state = as_dict(raw.status.get("state"))
    over = state.get("phase") in _FINAL and state.get("reason") != INVALID
    if raw.metadata.deletion_timestamp is not None or over or state.get("message") == message:
        return JobPlan()
    said = {"phase": FAILED, "reason": INVALID, "message": message, "lastTransitionTime": format_time(now)}
    return JobPlan([UpdateStatus({"state": said}), RecordEvent("Warning", INVALID, message)])


def _clean_up(run: _Reconciliation, plan: JobPlan) -> None:
    job = run.job
    plan.actions += delete_group(job, run.observed)
    ended = parse_time(run.status["state"].get("lastTransitionTime"))
    if job.policy.ttl is not None and ended is not None and run.phase != "Aborted":
        if run.now >= ended + job.policy.ttl:
            plan.actions.append(DeleteJob())
        else:
            plan.requeue_at = ended + job.policy.ttl


def _restart(run: _Reconciliation, plan: JobPlan) -> None:
    """Deletes the pods of earlier versions; once they are gone, the job is Pending again, or has failed."""
    old = [pod for pod in run.observed.pods if not run.is_current(pod)]
    plan.actions += _delete(old)
    if not old:
        if int(run.status.get("retryCount") or 0) >= run.job.max_retry:
            run.set_phase(
                FAILED, "MaxRetryReached", f"restarted {run.job.max_retry} times: spec.maxRetry allows no more"
            )
        else:
            run.set_phase(PENDING)


def _run(run: _Reconciliation, plan: JobPlan) -> None:
    job, observed = run.job, run.observed
    if _apply_policies(run, plan) or _end_if_done(run):
        return
    if not ensure_group(job, observed, plan):
        return
    plan.actions += _create_plugin_objects(run)
    wanted = {job.pod_name(task, index) for task in job.tasks for index in range(task.replicas)}
    plan.actions += _delete(pod for pod in observed.pods if pod.metadata.name not in wanted)
    there = {pod.metadata.name for pod in observed.pods}
    for task in job.tasks:
        if not all(_has_started(run, name) for name in task.depends_on):
            continue
        for index in range(task.replicas):
            if job.pod_name(task, index) not in there:
                pod = make_task_pod(job, task, index, run.version)
                plan.actions.append(CreatePod(_join(run, pod, task)))
    begun = sum(phase_of(pod) in ("Running", *_ENDED) for task in job.tasks for pod in run.pods_of(task))
    if run.phase == PENDING and begun >= job.gang_minimum:
        run.set_phase(RUNNING)


def _join(run: _Reconciliation, pod: Json, task: Task) -> Json:
    groups = run.observed.groups
    if groups is None:
        return pod
    return groups.join(pod, run.job, task.name)


def _has_started(run: _Reconciliation, name: str) -> bool:
    """Returns whether the minimum of a task's pods is running or has ended."""
    for task in run.job.tasks:
        if task.name == name:
            begun = sum(phase_of(pod) in ("Running", *_ENDED) for pod in run.pods_of(task))
            return begun >= (task.replicas if task.minimum is None else task.minimum)
    return True


def _create_plugin_objects(run: _Reconciliation) -> Iterator[Action]:
    """Creates the objects of the plugin svc; the ConfigMap first, so that the Service implies it."""
    if "svc" in run.job.plugins and not run.observed.services:
        yield CreateConfigMap(make_hosts_config_map(run.job))
        yield CreateService(make_job_service(run.job))


# -- policies


def _apply_policies(run: _Reconciliation, plan: JobPlan) -> bool:
    """Applies the lifecycle policies; returns whether the job has entered another phase."""
    for task in run.job.tasks:
        pods = run.pods_of(task)
        for event, code, pod in _lifecycle_events(task, pods):
            action = _choose_action((*task.policies, *run.job.policies), event, code)
            if action in _PHASES:
                if action is PolicyAction.RESTART:
                    run.status["version"] = run.version + 1
                    run.status["retryCount"] = int(run.status.get("retryCount") or 0) + 1
                run.set_phase(_PHASES[action], event, f"{action.value} because of {event} in task {task.name}")
                return True
            if action in (PolicyAction.RESTART_POD, PolicyAction.RESTART_TASK) and pod is not None:
                # The failed pod goes last: as long as it exists, the others are known to be due for deletion.
                others = [one for one in pods if one is not pod] if action is PolicyAction.RESTART_TASK else []
                plan.actions += _delete([*others, pod])
    return False


def _lifecycle_events(task: Task, pods: list[RawObject]) -> Iterator[tuple[str, int | None, RawObject | None]]:
    """Yields the lifecycle events of a task, each with the exit code and the pod."""
    for pod in pods:
        if phase_of(pod) == "Failed" and not is_terminating(pod):
            evicted = pod.status.get("reason") == "Evicted"
            yield "PodEvicted" if evicted else "PodFailed", _exit_code(pod), pod
    phases = [phase_of(pod) for pod in pods]
    if task.replicas and phases.count("Succeeded") == task.replicas:
        yield "TaskCompleted", None, None
    elif task.replicas and phases.count("Failed") == task.replicas:
        yield "TaskFailed", None, None


def _exit_code(pod: RawObject) -> int | None:
    codes = (ended.get("exitCode") for _, ended in terminated_containers(pod))
    return next((code for code in codes if code and isinstance(code, int)), None)


def _choose_action(policies: Iterable[LifecyclePolicy], event: str, code: int | None) -> PolicyAction:
    for policy in policies:
        if policy.exit_code is not None and policy.exit_code == code:
            return policy.action
        if event in policy.events or ANY in policy.events:
            return policy.action
    return PolicyAction.SYNC


# -- the end, and the status


def _end_if_done(run: _Reconciliation) -> bool:
    """Ends the job if enough pods have succeeded or all have ended; returns whether it has."""
    job = run.job
    ended = {task.name: Counter(phase_of(pod) for pod in run.pods_of(task)) for task in job.tasks}
    succeeded = sum(found["Succeeded"] for found in ended.values())
    if job.min_success is not None and succeeded >= job.min_success:
        run.set_phase("Completing", "MinSuccess", f"{succeeded} pods have succeeded")
        return True
    if job.total == 0 or succeeded + sum(found["Failed"] for found in ended.values()) < job.total:
        return False
    short = [task.name for task in job.tasks if ended[task.name]["Succeeded"] < (task.minimum or 0)]
    if short or job.min_success is not None or succeeded < job.gang_minimum:
        run.set_phase(FAILED, "PodFailed", f"{succeeded} of {job.total} pods succeeded, {job.gang_minimum} had to")
    else:
        run.set_phase(COMPLETED)
    return True


def _count(run: _Reconciliation) -> None:
    """Sets the counts of pods by phase and task."""
    total: Counter[str] = Counter()
    tasks: Json = {}
    for task in run.job.tasks:
        found = Counter("Terminating" if is_terminating(pod) else phase_of(pod) for pod in run.pods_of(task))
        total += found
        if found:
            tasks[task.name] = {"phase": dict(found)}
    if run.phase in _FINAL and not total:
        return  # the pods have been deleted: the counts remain
    for phase in ("Pending", "Running", "Succeeded", "Failed", "Terminating", "Unknown"):
        if total[phase]:
            run.status[phase.lower()] = total[phase]
        else:
            run.status.pop(phase.lower(), None)
    run.status["minAvailable"] = run.job.gang_minimum
    run.status["taskStatusCount"] = tasks


def _finish(run: _Reconciliation) -> list[Action]:
    changed = merge_patch(run.job.status, run.status)
    return [UpdateStatus(changed), *run.events] if changed else []


def _delete(pods: Iterable[RawObject]) -> Iterator[Action]:
    for pod in pods:
        if not is_terminating(pod):
            yield DeletePod(pod.metadata.name, pod.metadata.uid)


FRAMEWORK = JobFramework(
    VOLCANO_JOBS,
    RESOURCES,
    "volcano-jobs.yaml",
    JOB_NAME,
    ("volcano-controllers",),
    decode,
    reconcile,
    reject,
    annotates_restarts=False,
)
