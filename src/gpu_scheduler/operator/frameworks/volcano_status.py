"""What has to be done about a Job of Volcano, given what is there: its phases, and what its policies ask for.

A restart raises the job's version, and pods carry the version they were made for. So what has to go is what carries
another one, however often the operator dies in between.
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
    Plan,
    Tell,
    UpdateStatus,
)
from gpu_scheduler.operator.conditions import INVALID, change, readable
from gpu_scheduler.operator.frameworks.job_controller import JobController
from gpu_scheduler.operator.frameworks.volcano import (
    ANY,
    JOB_NAME,
    JOB_VERSION,
    RESOURCES,
    Do,
    Policy,
    Task,
    VolcanoJob,
    decode,
    make_hosts,
    make_job_service,
    make_task_pod,
)
from gpu_scheduler.operator.pods import endings, is_leaving, phase_of
from gpu_scheduler.operator.reconcile import Observed, open_gang, remove_group

PENDING, RUNNING, RESTARTING, FAILED, COMPLETED = "Pending", "Running", "Restarting", "Failed", "Completed"
_LEAVING = {"Aborting": "Aborted", "Completing": COMPLETED, "Terminating": "Terminated"}
_OVER = (COMPLETED, FAILED, "Terminated", "Aborted")
_ENDED = ("Succeeded", "Failed")
_PHASES = {Do.ABORT: "Aborting", Do.COMPLETE: "Completing", Do.TERMINATE: "Terminating", Do.RESTART: RESTARTING}


@dataclass(slots=True)
class _Look:
    """One look at a job: what is there, and the status that is being written."""

    job: VolcanoJob
    observed: Observed
    now: float
    status: Json
    told: list[Tell]

    @property
    def phase(self) -> str:
        return str((self.status.get("state") or {}).get("phase") or PENDING)

    @property
    def version(self) -> int:
        return int(self.status.get("version") or 0)

    def turn(self, phase: str, reason: str = "", message: str = "") -> None:
        """Goes on to a phase, and tells of it."""
        when = format_time(self.now)
        self.status["state"] = {"phase": phase, "reason": reason, "message": message, "lastTransitionTime": when}
        passed = self.status.get("conditions") or []
        self.status["conditions"] = [*passed, {"status": phase, "lastTransitionTime": when}]
        kind = self.job.kind
        self.told.append(
            Tell("Warning" if phase == FAILED else "Normal", f"{kind}{phase}", message or f"Job is {phase}")
        )

    def pods_of(self, task: Task) -> list[RawObject]:
        names = {self.job.pod_name(task, index) for index in range(task.replicas)}
        return [pod for pod in self.observed.pods if pod.metadata.name in names and self.is_current(pod)]

    def is_current(self, pod: RawObject) -> bool:
        return (pod.metadata.annotations or {}).get(JOB_VERSION, "0") == str(self.version)


def reconcile(job: VolcanoJob, observed: Observed, now: float) -> Plan:
    """What to do about a job."""
    if job.meta.deletion_timestamp is not None:
        return Plan()
    look = _Look(job, observed, now, readable(job.status), [])
    state = look.status.get("state") or {}
    if state.get("reason") == INVALID:
        look.status.pop("state")
    if not look.status.get("state"):
        look.turn(PENDING)
    plan = Plan()
    if look.phase in _OVER:
        _wind_up(look, plan)
    elif look.phase in _LEAVING:
        plan.actions += _delete(pod for pod in observed.pods if phase_of(pod) not in _ENDED)
        if all(phase_of(pod) in _ENDED for pod in observed.pods):
            look.turn(_LEAVING[look.phase], state.get("reason", ""))
    elif look.phase == RESTARTING:
        _restart(look, plan)
    else:
        _run(look, plan)
    _count(look)
    plan.actions[:0] = _finish(look)
    return plan


def reject(kind: str, raw: RawObject, message: str, now: float) -> Plan:
    """What to do about a job that makes no sense: say so, and touch nothing."""
    state = as_dict(raw.status.get("state"))
    over = state.get("phase") in _OVER and state.get("reason") != INVALID
    if raw.metadata.deletion_timestamp is not None or over or state.get("message") == message:
        return Plan()
    said = {"phase": FAILED, "reason": INVALID, "message": message, "lastTransitionTime": format_time(now)}
    return Plan([UpdateStatus({"state": said}), Tell("Warning", INVALID, message)])


def _wind_up(look: _Look, plan: Plan) -> None:
    job = look.job
    plan.actions += remove_group(job, look.observed)
    ended = parse_time(look.status["state"].get("lastTransitionTime"))
    if job.policy.ttl is not None and ended is not None and look.phase != "Aborted":
        if look.now >= ended + job.policy.ttl:
            plan.actions.append(DeleteJob())
        else:
            plan.again = ended + job.policy.ttl


def _restart(look: _Look, plan: Plan) -> None:
    """Waits until the pods of earlier versions are gone."""
    old = [pod for pod in look.observed.pods if not look.is_current(pod)]
    plan.actions += _delete(old)
    if not old:
        if int(look.status.get("retryCount") or 0) >= look.job.max_retry:
            look.turn(FAILED, "MaxRetryReached", f"it was restarted {look.job.max_retry} times, which is its maxRetry")
        else:
            look.turn(PENDING)


def _run(look: _Look, plan: Plan) -> None:
    job, observed = look.job, look.observed
    if _follow_policies(look, plan) or _is_over(look):
        return
    if not open_gang(job, observed, plan):
        return
    plan.actions += _make_plugins(look)
    wanted = {job.pod_name(task, index) for task in job.tasks for index in range(task.replicas)}
    plan.actions += _delete(pod for pod in observed.pods if pod.metadata.name not in wanted)
    there = {pod.metadata.name for pod in observed.pods}
    for task in job.tasks:
        if not all(_has_started(look, name) for name in task.after):
            continue
        for index in range(task.replicas):
            if job.pod_name(task, index) not in there:
                pod = make_task_pod(job, task, index, look.version)
                plan.actions.append(CreatePod(_mark(look, pod, task)))
    begun = sum(phase_of(pod) in ("Running", *_ENDED) for task in job.tasks for pod in look.pods_of(task))
    if look.phase == PENDING and begun >= job.gang_minimum:
        look.turn(RUNNING)


def _mark(look: _Look, pod: Json, task: Task) -> Json:
    gang = look.observed.gang
    if gang is None:
        return pod
    return gang.join(pod, look.job, task.name)


def _has_started(look: _Look, name: str) -> bool:
    """Whether as many pods of a task run, or have, as it needs."""
    for task in look.job.tasks:
        if task.name == name:
            begun = sum(phase_of(pod) in ("Running", *_ENDED) for pod in look.pods_of(task))
            return begun >= (task.replicas if task.minimum is None else task.minimum)
    return True


def _make_plugins(look: _Look) -> Iterator[Action]:
    """What svc needs; the ConfigMap first, so that where the Service is, it is too."""
    if "svc" in look.job.plugins and not look.observed.services:
        yield CreateConfigMap(make_hosts(look.job))
        yield CreateService(make_job_service(look.job))


# -- policies


def _follow_policies(look: _Look, plan: Plan) -> bool:
    """Does what the policies ask for; whether the job goes on to another phase by that."""
    for task in look.job.tasks:
        pods = look.pods_of(task)
        for event, code, pod in _happened(task, pods):
            do = _find_policy((*task.policies, *look.job.policies), event, code)
            if do in _PHASES:
                if do is Do.RESTART:
                    look.status["version"] = look.version + 1
                    look.status["retryCount"] = int(look.status.get("retryCount") or 0) + 1
                look.turn(_PHASES[do], event, f"{do.value} because of {event} in task {task.name}")
                return True
            if do in (Do.RESTART_POD, Do.RESTART_TASK) and pod is not None:
                # The one that failed goes last: as long as it is there, the others are known to have to go.
                others = [one for one in pods if one is not pod] if do is Do.RESTART_TASK else []
                plan.actions += _delete([*others, pod])
    return False


def _happened(task: Task, pods: list[RawObject]) -> Iterator[tuple[str, int | None, RawObject | None]]:
    """What has become of a task: events, with the exit code and the pod."""
    for pod in pods:
        if phase_of(pod) == "Failed" and not is_leaving(pod):
            evicted = pod.status.get("reason") == "Evicted"
            yield "PodEvicted" if evicted else "PodFailed", _exit_code(pod), pod
    phases = [phase_of(pod) for pod in pods]
    if task.replicas and phases.count("Succeeded") == task.replicas:
        yield "TaskCompleted", None, None
    elif task.replicas and phases.count("Failed") == task.replicas:
        yield "TaskFailed", None, None


def _exit_code(pod: RawObject) -> int | None:
    codes = (ended.get("exitCode") for _, ended in endings(pod))
    return next((code for code in codes if code and isinstance(code, int)), None)


def _find_policy(policies: Iterable[Policy], event: str, code: int | None) -> Do:
    for policy in policies:
        if policy.code is not None and policy.code == code:
            return policy.do
        if event in policy.events or ANY in policy.events:
            return policy.do
    return Do.SYNC


# -- the end, and the status


def _is_over(look: _Look) -> bool:
    """Whether enough pods have succeeded, or all have ended."""
    job = look.job
    ended = {task.name: Counter(phase_of(pod) for pod in look.pods_of(task)) for task in job.tasks}
    succeeded = sum(found["Succeeded"] for found in ended.values())
    if job.min_success is not None and succeeded >= job.min_success:
        look.turn("Completing", "MinSuccess", f"{succeeded} pods have succeeded")
        return True
    if job.total == 0 or succeeded + sum(found["Failed"] for found in ended.values()) < job.total:
        return False
    short = [task.name for task in job.tasks if ended[task.name]["Succeeded"] < (task.minimum or 0)]
    if short or job.min_success is not None or succeeded < job.gang_minimum:
        look.turn(FAILED, "PodFailed", f"{succeeded} of {job.total} pods succeeded, {job.gang_minimum} had to")
    else:
        look.turn(COMPLETED)
    return True


def _count(look: _Look) -> None:
    """Writes down how many pods do what."""
    total: Counter[str] = Counter()
    tasks: Json = {}
    for task in look.job.tasks:
        found = Counter("Terminating" if is_leaving(pod) else phase_of(pod) for pod in look.pods_of(task))
        total += found
        if found:
            tasks[task.name] = {"phase": dict(found)}
    if look.phase in _OVER and not total:
        return  # what was there has been cleared away
    for phase in ("Pending", "Running", "Succeeded", "Failed", "Terminating", "Unknown"):
        if total[phase]:
            look.status[phase.lower()] = total[phase]
        else:
            look.status.pop(phase.lower(), None)
    look.status["minAvailable"] = look.job.gang_minimum
    look.status["taskStatusCount"] = tasks


def _finish(look: _Look) -> list[Action]:
    changed = change(look.job.status, look.status)
    return [UpdateStatus(changed), *look.told] if changed else []


def _delete(pods: Iterable[RawObject]) -> Iterator[Action]:
    for pod in pods:
        if not is_leaving(pod):
            yield DeletePod(pod.metadata.name, pod.metadata.uid)


CONTROLLER = JobController(
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
