"""Volcano Jobs (batch.volcano.sh): decoding, their pods, and the plugins env and svc."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple

from gpu_scheduler.gangs.jobs import VOLCANO_JOBS
from gpu_scheduler.gangs.jobs.volcano_job import TASK
from gpu_scheduler.gangs.options import VOLCANO_QUEUE
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.operator.decoding import read_choice, read_number, read_object, read_template, read_text, read_texts
from gpu_scheduler.operator.managed_job import (
    BadSpecError,
    JobProgress,
    JobRole,
    ManagedJob,
    ReplicaCounts,
    RestartPolicy,
    RunPolicy,
    SchedulingPolicy,
    check_names,
    check_size,
)
from gpu_scheduler.operator.pods import owner_reference

RESOURCES = VOLCANO_JOBS.resources("v1alpha1")
_PREFIX = "volcano.sh"
JOB_NAME = f"{_PREFIX}/job-name"
JOB_NAMESPACE = f"{_PREFIX}/job-namespace"
JOB_VERSION = f"{_PREFIX}/job-version"
TASK_INDEX = f"{_PREFIX}/task-index"
HOSTS = "/etc/volcano"
_DEFAULT_MAX_RETRY = 3
_PLUGINS = ("env", "svc")
ANY = "*"


class PolicyAction(Enum):
    """The action of a lifecycle policy."""

    ABORT = "AbortJob"
    RESTART = "RestartJob"
    RESTART_TASK = "RestartTask"
    RESTART_POD = "RestartPod"
    TERMINATE = "TerminateJob"
    COMPLETE = "CompleteJob"
    SYNC = "SyncJob"


class LifecyclePolicy(NamedTuple):
    """The action for some events, or for an exit code."""

    events: tuple[str, ...]
    exit_code: int | None
    action: PolicyAction


@dataclass(frozen=True, slots=True)
class Task(JobRole):
    """A task: replicas of one template, with a minimum and lifecycle policies."""

    minimum: int | None = None
    policies: tuple[LifecyclePolicy, ...] = ()
    depends_on: tuple[str, ...] = ()
    """The tasks that must have started before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolcanoJob(ManagedJob):
    """A Volcano Job."""

    container: ClassVar[str] = ""
    port_name: ClassVar[str] = ""
    port: ClassVar[int] = 0
    operator_name: ClassVar[str] = "volcano"

    tasks: tuple[Task, ...] = ()
    policies: tuple[LifecyclePolicy, ...] = ()
    plugins: tuple[str, ...] = ()
    min_success: int | None = None
    max_retry: int = _DEFAULT_MAX_RETRY

    @property
    def minimum_by_role(self) -> dict[str, int]:
        return {task.name: task.minimum for task in self.tasks if task.minimum is not None and not task.depends_on}

    @property
    def min_replicas(self) -> int:
        """Counts only tasks without dependencies: pods of the others are created after these have started."""
        first = [task for task in self.tasks if not task.depends_on]
        return sum(task.replicas if task.minimum is None else task.minimum for task in first)

    def environment(self, role: JobRole, index: int, container: str) -> dict[str, str]:
        """Returns the index of the pod in its task (plugin env), and the hosts of all tasks (plugin svc)."""
        found: dict[str, str] = {}
        if "env" in self.plugins:
            found |= {"VK_TASK_INDEX": str(index), "VC_TASK_INDEX": str(index)}
        for task in self.tasks if "svc" in self.plugins else ():
            word = task.name.upper().replace("-", "_")
            found |= {f"VC_{word}_HOSTS": ",".join(self.hosts(task)), f"VC_{word}_NUM": str(task.replicas)}
        return found

    def hosts(self, task: JobRole) -> list[str]:
        """Returns the host names of a task's pods."""
        return [f"{self.pod_name(task, index)}.{self.meta.name}" for index in range(task.replicas)]

    def is_leader(self, role: JobRole, index: int) -> bool:
        return False

    def progress(self, counts: Mapping[str, ReplicaCounts], first_worker_done: bool) -> JobProgress:
        found = counts.values()
        return JobProgress(any(one.active for one in found), sum(one.succeeded for one in found) >= self.gang_minimum)

    def describe(self, state: str) -> str:
        return f"Job {self.meta.name} is {state}"


# -- pods, and the objects of plugins


def make_task_pod(job: VolcanoJob, task: Task, index: int, version: int) -> Json:
    """Returns a pod of a task, not yet joined to its PodGroup."""
    template = deepcopy(task.template)
    meta, spec = template.get("metadata") or {}, template["spec"]
    name, queue = job.pod_name(task, index), job.policy.scheduling.queue or "default"
    names = {JOB_NAME: job.meta.name, JOB_NAMESPACE: job.meta.namespace, TASK: task.name}
    labels = {**(meta.get("labels") or {}), **names, TASK_INDEX: str(index)}
    annotations = {**(meta.get("annotations") or {}), **names, JOB_VERSION: str(version), VOLCANO_QUEUE: queue}
    spec["restartPolicy"] = task.restart.value
    if job.scheduler:
        spec.setdefault("schedulerName", job.scheduler)
    if job.policy.scheduling.priority_class:
        spec.setdefault("priorityClassName", job.policy.scheduling.priority_class)
    if "svc" in job.plugins:
        spec.setdefault("hostname", name)
        spec.setdefault("subdomain", job.meta.name)
        spec["volumes"] = [*(spec.get("volumes") or ()), {"name": _volume(job), "configMap": {"name": _volume(job)}}]
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        _complete_container(container, job, job.environment(task, index, container["name"]))
    made = {**meta, "name": name, "namespace": job.meta.namespace, "labels": labels, "annotations": annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**made, "ownerReferences": [owner_reference(job)]},
        "spec": spec,
    }


def _complete_container(container: Json, job: VolcanoJob, env: Mapping[str, str]) -> None:
    if env:
        given = [one for one in container.get("env") or () if one.get("name") not in env]
        container["env"] = [*given, *({"name": name, "value": value} for name, value in env.items())]
    if "svc" in job.plugins:
        mount = {"name": _volume(job), "mountPath": HOSTS}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]


def _volume(job: VolcanoJob) -> str:
    return f"{job.meta.name}-svc"


def _plugin_meta(job: VolcanoJob, name: str) -> Json:
    labels = {JOB_NAME: job.meta.name}
    return {"name": name, "namespace": job.meta.namespace, "labels": labels, "ownerReferences": [owner_reference(job)]}


def make_hosts_config_map(job: VolcanoJob) -> Json:
    """Returns the ConfigMap with a hosts file for every task."""
    data = {f"{task.name}.host": "\n".join(job.hosts(task)) for task in job.tasks}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _plugin_meta(job, _volume(job)), "data": data}


def make_job_service(job: VolcanoJob) -> Json:
    """Returns the headless Service that resolves the names of all pods."""
    spec = {
        "clusterIP": "None",
        "selector": {JOB_NAME: job.meta.name, JOB_NAMESPACE: job.meta.namespace},
        "publishNotReadyAddresses": True,
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _plugin_meta(job, job.meta.name), "spec": spec}


# -- decoding


def decode(raw: RawObject, resource: Resource = RESOURCES[0]) -> VolcanoJob:
    """Decodes a job; raises BadSpecError."""
    spec = raw.spec
    tasks = _read_tasks(spec)
    check_size("spec.tasks", tasks)
    check_names(raw.metadata.name, tasks)
    minimum = read_number(spec, "minAvailable", "spec")
    total = sum(task.replicas for task in tasks)
    if minimum is not None and minimum > total:
        raise BadSpecError(f"spec.minAvailable: {minimum} must be at most {total}, the number of replicas")
    first = sum(task.replicas for task in tasks if not task.depends_on)
    if minimum is not None and minimum > first:
        raise BadSpecError(
            f"spec.minAvailable: {minimum} must be at most {first}, the number of pods in tasks without dependsOn: "
            "the others are created after these have started"
        )
    retries = read_number(spec, "maxRetry", "spec")
    scheduling = SchedulingPolicy(
        minimum or None, read_text(spec, "queue", "spec"), read_text(spec, "priorityClassName", "spec")
    )
    return VolcanoJob(
        resource=resource,
        meta=raw.metadata,
        status=raw.status,
        roles=tasks,
        policy=RunPolicy(ttl=read_number(spec, "ttlSecondsAfterFinished", "spec"), scheduling=scheduling),
        scheduler=read_text(spec, "schedulerName", "spec"),
        tasks=tasks,
        policies=tuple(_read_policies(spec, "spec")),
        plugins=_read_plugins(spec),
        min_success=read_number(spec, "minSuccess", "spec", least=1),
        max_retry=_DEFAULT_MAX_RETRY if retries is None else retries,
    )


def _read_plugins(spec: Json) -> tuple[str, ...]:
    found = read_object(spec, "plugins", "spec")
    for name in found:
        if name not in _PLUGINS:
            raise BadSpecError(f'spec.plugins: "{name}" is not supported; use only {", ".join(_PLUGINS)}')
    return tuple(found)


def _read_tasks(spec: Json) -> tuple[Task, ...]:
    found = spec.get("tasks")
    if not isinstance(found, list) or not found:
        raise BadSpecError("spec.tasks: missing or empty; write a list with at least one task")
    names: set[str] = set()
    made: list[Task] = []
    for number, one in enumerate(found):
        where = f"spec.tasks[{number}]"
        if not isinstance(one, dict):
            raise BadSpecError(f"{where}: must be an object")
        task = _read_task(one, where, f"default{number}")
        if task.name in names:
            raise BadSpecError(f'{where}.name: "{task.name}" is given twice; task names must differ')
        names.add(task.name)
        made.append(task)
    for number, task in enumerate(made):
        for name in task.depends_on:
            if name not in names - {task.name}:
                raise BadSpecError(f'spec.tasks[{number}].dependsOn.name: "{name}" must be the name of another task')
    return tuple(made)


def _read_task(found: Json, where: str, default: str) -> Task:
    template = read_template(found, where)
    pod = template["spec"]
    if not pod["containers"]:
        raise BadSpecError(f"{where}.template.spec.containers: missing or empty; write at least one")
    replicas = read_number(found, "replicas", where)
    replicas = 1 if replicas is None else replicas
    minimum = read_number(found, "minAvailable", where)
    if minimum is not None and minimum > replicas:
        raise BadSpecError(f"{where}.minAvailable: {minimum} must be at most {replicas}, the number of replicas")
    after = read_texts(read_object(found, "dependsOn", where), "name", f"{where}.dependsOn")
    restart = read_choice(pod, "restartPolicy", f"{where}.template.spec", RestartPolicy.ON_FAILURE)
    return Task(
        read_text(found, "name", where) or default,
        replicas,
        template,
        restart,
        minimum,
        tuple(_read_policies(found, where)),
        tuple(after),
    )


def _read_policies(found: Json, where: str) -> Iterator[LifecyclePolicy]:
    listed = found.get("policies") or []
    for number, one in enumerate(listed if isinstance(listed, list) else [listed]):
        place = f"{where}.policies[{number}]"
        if not isinstance(one, dict):
            raise BadSpecError(f"{place}: must be an object such as {{event: PodFailed, action: RestartJob}}")
        code = one.get("exitCode")
        if code is not None and (not isinstance(code, int) or code == 0):
            raise BadSpecError(f"{place}.exitCode: must be a whole number other than 0")
        event = read_text(one, "event", place)
        events = (*([event] if event else ()), *read_texts(one, "events", place))
        if code is None and not events:
            raise BadSpecError(f"{place}: names no event; write event, events or exitCode")
        if not one.get("action"):
            raise BadSpecError(f"{place}.action: must be one of {', '.join(action.value for action in PolicyAction)}")
        yield LifecyclePolicy(events, code, read_choice(one, "action", place, PolicyAction.SYNC))
