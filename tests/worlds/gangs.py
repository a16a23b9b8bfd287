"""The gangs of a world: how each is written in its dialect, and what its users know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.k8s.objects import Json

GANG = "sim/gang"
"""The label by which the observer finds the pods of a gang in every dialect."""

OURS = "gpu-scheduler"
OTHERS = "other-scheduler"
VOLCANO = "podgroups.scheduling.volcano.sh"
PLUGINS = "podgroups.scheduling.x-k8s.io"
WORKLOADS = "workloads.scheduling.k8s.io"
JOBS = "pytorchjobs.kubeflow.org"


@dataclass(slots=True)
class Gang:
    """One gang as its users see it."""

    name: str
    dialect: str
    size: int
    minimum: int
    gpus: int = 1
    milli: int = 0
    device_map: str = ""
    priority: str = ""
    on_lost: str = "hold"
    owned: bool = True
    duration: float = 5.0
    namespace: str = "default"
    scheduler: str = OURS
    queue: str = ""
    preemptible: bool = True
    """Without it, the gang starts within the quota of its queue only, and is not evicted for others."""
    recreate_delay: float = 0.0
    """How long its controller takes to recreate a missing pod, in seconds."""
    must_not_start: bool = False
    """Nothing of it may ever be bound."""
    unable: str = ""
    """Why it cannot start, whatever is free: it has no pods, too few of them, a scheduling gate, or it is paused."""
    forged: bool = False
    """Its pods claim to belong to a DaemonSet."""
    owner: Json | None = None
    minima: list[int] = field(default_factory=list)
    """Every minimum that it has had."""
    queues: list[str] = field(default_factory=list)
    """Every queue that it has named."""
    greedy: bool = False
    """Its users try to get more than its queue allows; they delete it when the faults end."""
    larger: dict[int, int] = field(default_factory=dict)
    """The GPUs of members that ask for more than the others, by index."""
    edited_at: float = 0.0
    """When its minimum last changed."""
    minimum_reached: bool = False
    """Its minimum has run at the same time."""
    progress: float = 0.0
    """For how long its minimum has run at the same time, in seconds."""
    orphaned: bool = False
    """Its object was deleted; waiting members may stay pending until they are deleted."""
    abandoned: bool = False
    """Its users have deleted it, or are about to."""

    def __post_init__(self) -> None:
        self.minima.append(self.minimum)
        self.queues.append(self.queue)

    @property
    def rank(self) -> int:
        """Its priority: that of "high" and of "never" (which may not preempt), or 0."""
        return 1000 if self.priority else 0

    @property
    def evicts(self) -> bool:
        """Whether pods may be evicted for it. The group of a job says nothing about that before its pods exist."""
        return self.scheduler == OURS and (self.priority != "never" or self.dialect == "pytorch")

    @property
    def total_gpus(self) -> int:
        """The GPUs of all its members."""
        return self.gpus * self.size

    @property
    def created(self) -> int:
        """How many pods are created with it."""
        return {"no pods": 0, "too few pods": self.size - 1}.get(self.unable, self.size)

    @property
    def label(self) -> str:
        """The value of its label."""
        return f"{self.namespace}.{self.name}"

    @property
    def key(self) -> Json:
        """Its metadata: name and namespace."""
        return {"name": self.name, "namespace": self.namespace}


def make_pod(gang: Gang, index: int) -> Json:
    """Builds a member."""
    annotations: dict[str, str] = {"gpu-scheduler.io/on-member-lost": gang.on_lost}
    labels = {GANG: gang.label}
    container = _container(gang.larger.get(index, gang.gpus))
    spec: Json = {"schedulerName": gang.scheduler, "containers": [container], "terminationGracePeriodSeconds": 3}
    if gang.queue:
        annotations["gpu-scheduler.io/queue"] = gang.queue
    if not gang.preemptible:
        annotations["gpu-scheduler.io/preemptible"] = "false"
    if gang.unable == "paused":
        annotations["gpu-scheduler.io/paused"] = "true"
    if gang.unable == "gated":
        spec["schedulingGates"] = [{"name": "sim/gate"}]
    if gang.priority:
        spec["priorityClassName"] = gang.priority
    if gang.milli:
        annotations["gpu-scheduler.io/gpu-milli"] = str(gang.milli)
    if gang.device_map:
        annotations["gpu-scheduling-map"] = gang.device_map
    _JOIN[gang.dialect](gang, annotations, labels, spec)
    name = f"{gang.name}-{index}"
    meta: Json = {"name": name, "namespace": gang.namespace, "labels": labels, "annotations": annotations}
    if gang.owner is not None:
        made = gang.owner["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": made["name"], "uid": made["uid"], "controller": True}
        meta["ownerReferences"] = [owner]
    elif gang.forged:
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "forged", "controller": True}
        meta["ownerReferences"] = [owner]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def make_owner(gang: Gang) -> Json:
    """Builds the Job that owns the members. The Job controller is simulated in `Users`."""
    template = {"metadata": {}, "spec": {"containers": [_container(gang.gpus)], "restartPolicy": "Never"}}
    return {"metadata": dict(gang.key), "spec": {"suspend": True, "template": template}}


def make_object(gang: Gang) -> tuple[str, Json] | None:
    """Builds the object that defines the gang, with its resource; None where the pods define it."""
    annotations = {"gpu-scheduler.io/on-member-lost": gang.on_lost}
    if gang.queue and gang.dialect in ("plugins", "workload"):
        annotations["gpu-scheduler.io/queue"] = gang.queue
    if not gang.preemptible:
        annotations["gpu-scheduler.io/preemptible"] = "false"
    if gang.unable == "paused":
        annotations["gpu-scheduler.io/paused"] = "true"
    meta = {**gang.key, "annotations": annotations}
    if gang.dialect == "volcano":
        spec: Json = {"minMember": gang.minimum, "queue": gang.queue or "default"}
        if gang.unable == "no pods":
            spec["minResources"] = {"nvidia.com/gpu": str(gang.total_gpus)}
        return VOLCANO, _typed("scheduling.volcano.sh/v1beta1", "PodGroup", meta, spec)
    if gang.dialect == "plugins":
        return PLUGINS, _typed("scheduling.x-k8s.io/v1alpha1", "PodGroup", meta, {"minMember": gang.minimum})
    if gang.dialect == "workload":
        groups = [{"name": "all", "policy": {"gang": {"minCount": gang.minimum}}}]
        return WORKLOADS, _typed("scheduling.k8s.io/v1alpha1", "Workload", meta, {"podGroups": groups})
    if gang.dialect == "pytorch":
        return JOBS, _make_job(gang, meta)
    return None


def _make_job(gang: Gang, meta: Json) -> Json:
    container = {**_container(gang.gpus), "name": "pytorch"}
    spec: Json = {"containers": [container], "schedulerName": gang.scheduler, "terminationGracePeriodSeconds": 3}
    if gang.priority:
        spec["priorityClassName"] = gang.priority
    template = {"metadata": {"labels": {GANG: gang.label}}, "spec": spec}
    roles = {"Worker": {"replicas": gang.size, "restartPolicy": "OnFailure", "template": template}}
    scheduling = {"minAvailable": gang.minimum, **({"queue": gang.queue} if gang.queue else {})}
    policy = {"cleanPodPolicy": "None", "schedulingPolicy": scheduling}
    return _typed("kubeflow.org/v1", "PyTorchJob", meta, {"pytorchReplicaSpecs": roles, "runPolicy": policy})


def _typed(version: str, kind: str, meta: Json, spec: Json) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def _container(gpus: int) -> Json:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"name": "main", "image": "busybox", "resources": {"limits": limits}}


# What makes a pod a member of its gang, by dialect.


def _join_alone(_gang: Gang, _annotations: Json, _labels: Json, _spec: Json) -> None:
    return None


def _join_annotation(gang: Gang, annotations: Json, _labels: Json, _spec: Json) -> None:
    annotations |= {"gpu-scheduler.io/gang": gang.name, "gpu-scheduler.io/gang-min": str(gang.minimum)}


def _join_volcano(gang: Gang, annotations: Json, _labels: Json, _spec: Json) -> None:
    annotations["scheduling.k8s.io/group-name"] = gang.name


def _join_plugins(gang: Gang, _annotations: Json, labels: Json, _spec: Json) -> None:
    labels["scheduling.x-k8s.io/pod-group"] = gang.name


def _join_workload(gang: Gang, _annotations: Json, _labels: Json, spec: Json) -> None:
    spec["workloadRef"] = {"name": gang.name, "podGroup": "all"}


_JOIN: dict[str, Callable[[Gang, Any, Any, Any], None]] = {
    "alone": _join_alone,
    "annotation": _join_annotation,
    "volcano": _join_volcano,
    "plugins": _join_plugins,
    "workload": _join_workload,
}
