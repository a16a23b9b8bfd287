"""Jobs, pods and PodGroups for tests of the operator."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec

from gpu_scheduler.k8s.objects import Json, Meta, Object, OwnerReference, RawObject
from gpu_scheduler.k8s.times import format_time
from gpu_scheduler.operator.actions import Action, JobPlan, UpdateStatus
from gpu_scheduler.operator.frameworks import pytorch, tensorflow
from gpu_scheduler.operator.managed_job import ManagedJob
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER, PodGroupApi
from gpu_scheduler.operator.reconcile import ObservedJob, reconcile

NOW = 1_000_000.0
UID = "job-uid"


def template(container: str = "pytorch", gpus: int = 1, **spec: Any) -> Json:
    """A pod template of one container."""
    asked = {"limits": {"nvidia.com/gpu": gpus}, "requests": {"cpu": "500m"}}
    return {"spec": {"containers": [{"name": container, "image": "any", "resources": asked}], **spec}}


def replicas(number: int | None = 1, container: str = "pytorch", *, restart: str = "", **spec: Any) -> Json:
    """A replica spec."""
    found: Json = {"template": template(container, **spec)}
    if number is not None:
        found["replicas"] = number
    if restart:
        found["restartPolicy"] = restart
    return found


def raw(spec: Json, *, name: str = "train", status: Json | None = None, **meta: Any) -> RawObject:
    """A job as it comes from the API."""
    made = Meta(name=name, namespace="team", uid=UID, resource_version="1", **meta)
    return RawObject(made, deepcopy(spec), deepcopy(status or {}))


def torch(
    workers: int | None = 3, *, restart: str = "", run: Json | None = None, meta: Json | None = None, **spec: Any
) -> ManagedJob:
    """A PyTorchJob of a master and workers."""
    specs = {"Master": replicas(1, restart=restart)}
    if workers is not None:
        specs["Worker"] = replicas(workers, restart=restart)
    status = spec.pop("status", None)
    full = {"pytorchReplicaSpecs": specs, "runPolicy": run or {}, **spec}
    return pytorch.decode(raw(full, status=status, **(meta or {})))


def tf(*, run: Json | None = None, status: Json | None = None, spec: Json | None = None, **roles: int) -> ManagedJob:
    """A TFJob with a number of replicas for each type."""
    specs = {name: replicas(number, "tensorflow") for name, number in roles.items()}
    return tensorflow.decode(raw({"tfReplicaSpecs": specs, "runPolicy": run or {}, **(spec or {})}, status=status))


def pod(name: str, phase: str = "Running", *, code: int | None = None, restarts: int = 0, **meta: Any) -> RawObject:
    """A pod of the job."""
    state = {"terminated": {"exitCode": code}} if code is not None else {"running": {}}
    statuses = [{"name": box, "state": state, "restartCount": restarts} for box in ("pytorch", "tensorflow")]
    status = {"phase": phase, "containerStatuses": statuses[:1]}
    if code is not None:
        status["containerStatuses"] = statuses
    made = Meta(name=name, namespace="team", uid=f"uid-{name}", owner_references=[OwnerReference(uid=UID)], **meta)
    return RawObject(made, {}, status)


def service(name: str) -> Object:
    """A Service of the job."""
    return Object(Meta(name=name, namespace="team", uid=f"service-{name}", owner_references=[OwnerReference(uid=UID)]))


def group(
    job: ManagedJob, phase: str = "Inqueue", *, api: PodGroupApi = GPU_SCHEDULER, uid: str = UID, **meta: Any
) -> RawObject:
    """The PodGroup of a job."""
    made = Meta(name=job.meta.name, namespace="team", uid="group", owner_references=[OwnerReference(uid=uid)], **meta)
    return RawObject(made, api.make_group(job)["spec"], {"phase": phase} if phase else {})


def names_of(job: ManagedJob) -> list[str]:
    """The names of all pods of a job."""
    return [job.pod_name(role, index) for role in job.roles for index in range(role.replicas)]


def seen(job: ManagedJob, phases: dict[str, RawObject | str], **more: Any) -> ObservedJob:
    """What exists: some pods by name, and all Services."""
    pods = [found if isinstance(found, RawObject) else pod(name, found) for name, found in phases.items()]
    return ObservedJob(pods=pods, services=[service(name) for name in names_of(job)], **more)


def look(job: ManagedJob, observed: ObservedJob, now: float = NOW) -> JobPlan:
    """The plan of a reconciliation."""
    return reconcile(job, observed, now)


def status_after(job: ManagedJob, plan: JobPlan) -> Json:
    """The job's status after the plan."""
    status = deepcopy(job.status)
    for action in plan.actions:
        if isinstance(action, UpdateStatus):
            merge(status, action.status)
    return status


def merge(into: Json, patch: Json) -> None:
    """A merge patch (RFC 7386)."""
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            inner = into.setdefault(name, {})
            if not isinstance(inner, dict):
                inner = into[name] = {}
            merge(inner, value)
        else:
            into[name] = deepcopy(value)


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition."""
    return {item["type"]: (item["status"], item["reason"]) for item in status.get("conditions", [])}


def of_kind(plan: JobPlan, *kinds: type) -> list[Action]:
    """The actions of some kinds."""
    return [action for action in plan.actions if isinstance(action, kinds)]


def running_status(**more: Any) -> Json:
    """The status of a job that has been running since NOW."""
    return {
        "startTime": format_time(NOW),
        "conditions": [
            {"type": "Created", "status": "True", "reason": "PyTorchJobCreated", "message": "m"},
            {"type": "Running", "status": "True", "reason": "PyTorchJobRunning", "message": "m"},
        ],
        **more,
    }


def over_status(kind: str, at: float = NOW, **more: Any) -> Json:
    """The status of an ended job."""
    told = {"type": kind, "status": "True", "reason": f"PyTorchJob{kind}", "message": "m"}
    return {"completionTime": format_time(at), "conditions": [told], **more}


def as_raw(found: Json) -> RawObject:
    """An object from JSON."""
    return msgspec.convert({name: found[name] for name in ("metadata", "spec", "status") if name in found}, RawObject)
