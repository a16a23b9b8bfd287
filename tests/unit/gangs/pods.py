"""Pods, nodes and claims as the API writes them, for the tests that decode them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gpu_scheduler.core.model import Pod
from gpu_scheduler.gangs.dialects import Membership
from gpu_scheduler.gangs.pods.shapes import Shaped, read_shape
from gpu_scheduler.k8s.objects import Json, NodeObject, PodObject
from gpu_scheduler.scheduler.decoding.decode import DecodeOptions, decode_pod
from gpu_scheduler.scheduler.decoding.volumes import VolumeClaims

T = TypeVar("T")

GPU = "nvidia.com/gpu"
AMD = "amd.com/gpu"
GPUS = (GPU, AMD)
READING = DecodeOptions(frozenset({"gpu-scheduler"}), GPUS)


def as_sent(kind: type[T], body: Json) -> T:
    """An object after encoding and decoding."""
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def container(name: str = "main", **resources: Any) -> Json:
    """A container with requests; `limits` and others are fields of its resources."""
    limits = resources.pop("limits", {})
    extra = resources.pop("extra", {})
    return {"name": name, "resources": {"requests": resources.pop("requests", resources), "limits": limits}, **extra}


def asking(gpus: int, name: str = "main", resource: str = GPU, **extra: Any) -> Json:
    """A container that requests GPUs."""
    return container(name, requests={}, limits={resource: str(gpus)}, extra=extra)


def pod(
    name: str = "worker-0", *, annotations: Json | None = None, labels: Json | None = None, **spec: Any
) -> PodObject:
    """A waiting pod of ours in namespace x."""
    meta: Json = {"name": name, "namespace": "x", "uid": f"uid-{name}", "resourceVersion": "7"}
    meta |= {"annotations": annotations or {}, "labels": labels or {}, "creationTimestamp": "2025-01-02T03:04:05Z"}
    meta |= spec.pop("meta", {})
    status = spec.pop("status", {})
    body = {"metadata": meta, "spec": {"schedulerName": "gpu-scheduler", "containers": [container()]} | spec}
    return as_sent(PodObject, body | {"status": status})


def node(name: str = "node1", **status: Any) -> NodeObject:
    """A ready node."""
    meta = {"name": name} | status.pop("meta", {})
    spec = status.pop("spec", {})
    return as_sent(
        NodeObject,
        {"metadata": meta, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": "True"}]} | status},
    )


def shape(raw: PodObject) -> Shaped:
    """The shape of a pod."""
    return read_shape(raw.spec, raw.metadata, GPUS)


def decode(raw: PodObject, claims: VolumeClaims | None = None) -> Pod:
    """The pod as the core sees it."""
    return decode_pod(raw, Membership(), claims or VolumeClaims(), {"team": "blue"}, READING)
