"""Gangs in every dialect, as objects to create."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import container

GPU = "nvidia.com/gpu"
NATIVE = {"1.35": "v1alpha1", "1.36": "v1alpha2", "1.37": "v1beta1"}
"""Versions of Kubernetes with native gangs, each a dialect by its number."""

DIALECTS = ("annotation", "volcano", "scheduler-plugins", "1.35")
"""Dialects of every 1.35 cluster; "1.36" and "1.37" need clusters of those versions."""


def member(
    name: str, gpus: int = 1, *, scheduler: str = "gpu-scheduler", meta: Json | None = None, **spec: Any
) -> Json:
    """A pod that requests GPUs."""
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    whole = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Never",
        "containers": [container(resources=resources)],
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **(meta or {})}, "spec": whole}


def group(dialect: str, name: str, minimum: int, *, annotations: Json | None = None, **spec: Any) -> list[Json]:
    """The object that defines a gang, in a list; an empty list where pods define it. `spec` adds fields."""
    meta: Json = {"name": name, **({"annotations": annotations} if annotations else {})}
    if dialect == "volcano":
        more = {"minMember": minimum, "queue": "default", **spec}
        return [{"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": more}]
    if dialect == "scheduler-plugins":
        more = {"minMember": minimum, **spec}
        return [{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": meta, "spec": more}]
    if dialect in NATIVE:
        version = f"scheduling.k8s.io/{NATIVE[dialect]}"
        policy = {"gang": {"minCount": minimum}}
        if dialect == "1.35":
            groups = [{"name": "workers", "policy": policy}]
            return [
                {"apiVersion": version, "kind": "Workload", "metadata": meta, "spec": {"podGroups": groups, **spec}}
            ]
        more = {"schedulingPolicy": policy, **spec}
        return [{"apiVersion": version, "kind": "PodGroup", "metadata": meta, "spec": more}]
    return []


def join(dialect: str, name: str, minimum: int, role: str = "") -> tuple[Json, Json]:
    """What makes a pod a member of a gang: metadata, and spec fields."""
    if dialect == "volcano":
        named = {"scheduling.k8s.io/group-name": name, **({"volcano.sh/task-spec": role} if role else {})}
        return {"annotations": named}, {}
    if dialect == "scheduler-plugins":
        return {"labels": {"scheduling.x-k8s.io/pod-group": name}}, {}
    if dialect == "1.35":
        return {}, {"workloadRef": {"name": name, "podGroup": "workers"}}
    if dialect in NATIVE:
        return {}, {"schedulingGroup": {"podGroupName": name}}
    named = {"gpu-scheduler.io/gang": name, "gpu-scheduler.io/gang-min": str(minimum)}
    return {"annotations": {**named, **({"gpu-scheduler.io/role": role} if role else {})}}, {}


def gang(
    dialect: str,
    name: str,
    size: int,
    *,
    minimum: int | None = None,
    gpus: int = 1,
    meta: Json | None = None,
    **spec: Any,
) -> list[Json]:
    """A gang of bare pods `<name>-0..` with its object; `meta` and `spec` add to the pods."""
    least = size if minimum is None else minimum
    theirs, fields = join(dialect, name, least)
    whole = merge(theirs, meta or {})
    pods = [member(f"{name}-{number}", gpus, meta=whole, **fields, **spec) for number in range(size)]
    return [*group(dialect, name, least), *pods]


def gang_job(
    dialect: str,
    name: str,
    size: int,
    *,
    minimum: int | None = None,
    gpus: int = 1,
    meta: Json | None = None,
    **spec: Any,
) -> list[Json]:
    """The same with pods of an indexed Job, which recreates failed and deleted ones."""
    least = size if minimum is None else minimum
    theirs, fields = join(dialect, name, least)
    pod = member(name, gpus, meta=merge(theirs, meta or {}), **fields, **spec)
    pod["metadata"].pop("name")
    job = {"completionMode": "Indexed", "completions": size, "parallelism": size, "backoffLimit": 1000}
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    whole = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**job, "template": template},
    }
    return [*group(dialect, name, least), whole]


def priority_class(name: str, value: int) -> Json:
    """A PriorityClass, which pods name in `priorityClassName`."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def queue(name: str, **spec: Any) -> Json:
    """A Queue of the project."""
    return {"apiVersion": "gpu-scheduler.io/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def merge(first: Json, second: Json) -> Json:
    """Merges metadata: labels and annotations of both, the second's where both have a key."""
    merged = {**first, **second}
    for field in ("labels", "annotations"):
        both = {**first.get(field, {}), **second.get(field, {})}
        if both:
            merged[field] = both
    return merged
