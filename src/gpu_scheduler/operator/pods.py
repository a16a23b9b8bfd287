"""The pods and Services of replicas: how they are created, and what their status says."""

from __future__ import annotations

from copy import deepcopy

from gpu_scheduler.gangs.contract import RESTARTS
from gpu_scheduler.gangs.jobs.kubeflow import REPLICA_INDEX, REPLICA_TYPE
from gpu_scheduler.gangs.options import as_dict, as_list
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.times import parse_time
from gpu_scheduler.operator.managed_job import JobRole, ManagedJob, RestartPolicy

_PREFIX = "training.kubeflow.org"
JOB_NAME = f"{_PREFIX}/job-name"
OPERATOR_NAME = f"{_PREFIX}/operator-name"
JOB_ROLE = f"{_PREFIX}/job-role"

UNKNOWN_EXIT_CODE = 0xBEEF
"""The exit code of a container that reports none, as in the training operator: a retryable one."""


def owner_reference(job: ManagedJob) -> Json:
    """Returns the owner reference of an object that is deleted with the job."""
    return {
        "apiVersion": job.resource.api_version,
        "kind": job.kind,
        "name": job.meta.name,
        "uid": job.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def replica_labels(job: ManagedJob, role: JobRole) -> dict[str, str]:
    """Returns the labels that select the pods of a role."""
    return {JOB_NAME: job.meta.name, OPERATOR_NAME: job.operator_name, REPLICA_TYPE: role.label}


def make_pod(job: ManagedJob, role: JobRole, index: int) -> Json:
    """Returns the pod of a replica, not yet joined to its PodGroup."""
    template = deepcopy(role.template)
    meta, spec = template.get("metadata") or {}, template["spec"]
    labels = {**(meta.get("labels") or {}), **replica_labels(job, role), REPLICA_INDEX: str(index)}
    if job.is_leader(role, index):
        labels[JOB_ROLE] = "master"
    name = job.pod_name(role, index)
    annotations = {**(meta.get("annotations") or {})}
    if name in job.restarts:
        annotations[RESTARTS] = str(job.restarts[name])
    # With the policy ExitCode the operator decides about a restart, not the kubelet.
    spec["restartPolicy"] = RestartPolicy.NEVER.value if role.restart is RestartPolicy.EXIT_CODE else role.restart.value
    if job.scheduler:
        spec.setdefault("schedulerName", job.scheduler)
    for container in spec["containers"]:
        _complete_container(container, job, role, index)
    made = {
        **meta,
        "name": name,
        "namespace": job.meta.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(job)],
    }
    if annotations:
        made["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}


def _complete_container(container: Json, job: ManagedJob, role: JobRole, index: int) -> None:
    """Adds the environment to a container, and the job's port to the main container."""
    env = job.environment(role, index, str(container.get("name")))
    if env:
        # The job's variables override those of the template.
        given = [one for one in container.get("env") or () if one.get("name") not in env]
        container["env"] = [*given, *({"name": name, "value": value} for name, value in env.items())]
    if container.get("name") == job.container:
        ports = container.get("ports") or []
        if not any(port.get("name") == job.port_name for port in ports):
            container["ports"] = [*ports, {"name": job.port_name, "containerPort": job.port}]


def make_service(job: ManagedJob, role: JobRole, index: int) -> Json:
    """Returns the headless Service that resolves the name of a replica's pod."""
    labels = {**replica_labels(job, role), REPLICA_INDEX: str(index)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job.pod_name(role, index),
            "namespace": job.meta.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "ports": [{"name": job.port_name, "port": job.port_of(role)}],
            # Other replicas resolve the name before the pod is ready.
            "publishNotReadyAddresses": True,
        },
    }


def phase_of(pod: RawObject) -> str:
    """Returns Pending, Running, Succeeded, Failed or Unknown."""
    return str(pod.status.get("phase") or "Pending")


def is_terminating(pod: RawObject) -> bool:
    """Returns whether a pod is being deleted."""
    return pod.metadata.deletion_timestamp is not None


def exit_code(pod: RawObject, container: str) -> int:
    """Returns the exit code of the main container."""
    codes = (ended.get("exitCode") for name, ended in terminated_containers(pod) if name == container)
    return next((code for code in codes if isinstance(code, int)), UNKNOWN_EXIT_CODE)


def terminated_containers(pod: RawObject) -> list[tuple[object, Json]]:
    """Returns the names of the terminated containers, each with its terminated state."""
    statuses = as_list(pod.status.get("containerStatuses"))
    found = [(one.get("name"), as_dict(as_dict(one.get("state")).get("terminated"))) for one in statuses]
    return [(name, ended) for name, ended in found if ended]


def ended_at(pod: RawObject) -> float | None:
    """Returns when the last container of a pod ended; the creation time of the pod if none says so."""
    times = [
        when for _, ended in terminated_containers(pod) if (when := parse_time(ended.get("finishedAt"))) is not None
    ]
    return max(times, default=parse_time(pod.metadata.creation_timestamp))


def count_restarts(pod: RawObject) -> int:
    """Returns how often the kubelet has restarted the pod's containers."""
    lists = (as_list(pod.status.get(name)) for name in ("initContainerStatuses", "containerStatuses"))
    counts = (status.get("restartCount") for found in lists for status in found)
    return sum(count for count in counts if isinstance(count, int))
