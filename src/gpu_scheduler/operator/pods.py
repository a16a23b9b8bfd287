"""The pods and Services of replicas."""

from __future__ import annotations

from copy import deepcopy

from gpu_scheduler.gangs.contract import RESTARTS
from gpu_scheduler.gangs.jobs.kubeflow import REPLICA_INDEX, REPLICA_TYPE
from gpu_scheduler.gangs.options import as_dict, as_list
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.times import parse_time
from gpu_scheduler.operator.jobs import Job, Restart, Role

_PREFIX = "training.kubeflow.org"
JOB_NAME = f"{_PREFIX}/job-name"
OPERATOR_NAME = f"{_PREFIX}/operator-name"
JOB_ROLE = f"{_PREFIX}/job-role"

UNKNOWN_CODE = 0xBEEF
"""The exit code of a container that left none, as the training operator has it: one that is worth another try."""


def owner_of(job: Job) -> Json:
    """The reference that makes an object the job's own: it goes when the job goes."""
    return {
        "apiVersion": job.resource.api_version,
        "kind": job.kind,
        "name": job.meta.name,
        "uid": job.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def labels_of(job: Job, role: Role) -> dict[str, str]:
    """What all pods of a role are found by."""
    return {JOB_NAME: job.meta.name, OPERATOR_NAME: job.operator, REPLICA_TYPE: role.label}


def make_pod(job: Job, role: Role, index: int) -> Json:
    """The pod of a replica, but for what marks it as a member of a gang."""
    template = deepcopy(role.template)
    meta, spec = template.get("metadata") or {}, template["spec"]
    labels = {**(meta.get("labels") or {}), **labels_of(job, role), REPLICA_INDEX: str(index)}
    if job.leads(role, index):
        labels[JOB_ROLE] = "master"
    name = job.pod_name(role, index)
    annotations = {**(meta.get("annotations") or {})}
    if name in job.restarts:
        annotations[RESTARTS] = str(job.restarts[name])
    # Whether a replica whose exit code decides starts again is for the operator to say, not for the node.
    spec["restartPolicy"] = Restart.NEVER.value if role.restart is Restart.EXIT_CODE else role.restart.value
    if job.scheduler:
        spec.setdefault("schedulerName", job.scheduler)
    for container in spec["containers"]:
        _complete(container, job, role, index)
    made = {**meta, "name": name, "namespace": job.meta.namespace, "labels": labels, "ownerReferences": [owner_of(job)]}
    if annotations:
        made["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}


def _complete(container: Json, job: Job, role: Role, index: int) -> None:
    """Adds a container's environment, and the job's port to the one that works."""
    env = job.environment(role, index, str(container.get("name")))
    if env:
        # What the job says of itself goes before what a template says of it.
        given = [one for one in container.get("env") or () if one.get("name") not in env]
        container["env"] = [*given, *({"name": name, "value": value} for name, value in env.items())]
    if container.get("name") == job.container:
        ports = container.get("ports") or []
        if not any(port.get("name") == job.port_name for port in ports):
            container["ports"] = [*ports, {"name": job.port_name, "containerPort": job.port}]


def make_service(job: Job, role: Role, index: int) -> Json:
    """The headless Service by which a replica is found under its pod's name."""
    labels = {**labels_of(job, role), REPLICA_INDEX: str(index)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job.pod_name(role, index),
            "namespace": job.meta.namespace,
            "labels": labels,
            "ownerReferences": [owner_of(job)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "ports": [{"name": job.port_name, "port": job.port_of(role)}],
            # The others look a replica up while it starts.
            "publishNotReadyAddresses": True,
        },
    }


def phase_of(pod: RawObject) -> str:
    """Pending, Running, Succeeded, Failed or Unknown."""
    return str(pod.status.get("phase") or "Pending")


def is_leaving(pod: RawObject) -> bool:
    """Whether a pod is being deleted."""
    return pod.metadata.deletion_timestamp is not None


def exit_code(pod: RawObject, container: str) -> int:
    """With which code the container ended that does the work."""
    codes = (ended.get("exitCode") for name, ended in endings(pod) if name == container)
    return next((code for code in codes if isinstance(code, int)), UNKNOWN_CODE)


def endings(pod: RawObject) -> list[tuple[object, Json]]:
    """The containers that have ended, and how."""
    statuses = as_list(pod.status.get("containerStatuses"))
    found = [(one.get("name"), as_dict(as_dict(one.get("state")).get("terminated"))) for one in statuses]
    return [(name, ended) for name, ended in found if ended]


def ended_at(pod: RawObject) -> float | None:
    """When the last container of a pod ended; when the pod was made if none says so."""
    times = [when for _, ended in endings(pod) if (when := parse_time(ended.get("finishedAt"))) is not None]
    return max(times, default=parse_time(pod.metadata.creation_timestamp))


def count_restarts(pod: RawObject) -> int:
    """How often the node has started the pod's containers again."""
    lists = (as_list(pod.status.get(name)) for name in ("initContainerStatuses", "containerStatuses"))
    counts = (status.get("restartCount") for found in lists for status in found)
    return sum(count for count in counts if isinstance(count, int))
