"""Injection of CUDA_VISIBLE_DEVICES: the value from a device map, or a reference to the annotation of the bind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_scheduler.gangs.contract import DEVICE_MAP, GPU_MILLI, VISIBLE_DEVICES, WEBHOOK
from gpu_scheduler.gangs.options import as_dict
from gpu_scheduler.gangs.pods.annotations import CONTAINER_DEVICES, container_annotations, write_devices
from gpu_scheduler.gangs.pods.device_map import MapError, parse_map, pod_index
from gpu_scheduler.k8s.objects import Json, Meta, PodObject
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.webhook.containers import EnvVar, LocatedContainer
from gpu_scheduler.webhook.policy import AdmissionPolicy

VARIABLE = "CUDA_VISIBLE_DEVICES"
_SHOWS_NONE = ("", "-1", "NoDevFiles")
_SCHEDULER_FIELDS = (f"metadata.annotations['{VISIBLE_DEVICES}']", f"metadata.annotations['{CONTAINER_DEVICES}")
"""The fields that the scheduler writes with the bind."""


@dataclass(frozen=True, slots=True)
class Injection:
    """The variable of each container: `by_name`, else `default`. `source` and `suffix` are parts of the log line."""

    source: str
    suffix: str = ""
    default: Json | None = None
    by_name: Mapping[str, Json] = field(default_factory=dict)

    def log_line(self, pod: str) -> str:
        """The log line about a pod."""
        return f"Injecting {VARIABLE}{self.source} for pod {pod}{self.suffix}"


def plan_injection(pod: PodObject, policy: AdmissionPolicy) -> Injection | None:
    """The variable for the containers of a pod; None for a pod that needs none or whose request is invalid."""
    annotations = pod.metadata.annotations or {}
    text = annotations.get(DEVICE_MAP)
    if text is not None:
        return _from_map(pod.metadata, text)
    if not policy.inject:
        return None
    if GPU_MILLI in annotations:
        # A share belongs to the whole pod: no container requests it by itself.
        return Injection(f" from {VISIBLE_DEVICES}", default=_field_reference(VISIBLE_DEVICES))
    try:
        asking = container_annotations(pod, policy.gpu_resources)
    except QuantityError:
        return None
    if not asking:
        return None
    source = VISIBLE_DEVICES if len(asking) == 1 else f"{CONTAINER_DEVICES}*"
    return Injection(f" from {source}", by_name={name: _field_reference(key) for name, key in asking.items()})


def patch_containers(injection: Injection, containers: Iterable[LocatedContainer]) -> list[Json]:
    """The JSON patch (RFC 6902) after which every container has the variable once, with its value."""
    return [operation for located in containers for operation in _patch_container(injection, located)]


def check_generated_name(pod: PodObject) -> str:
    """The problem of a new pod with a map and a generated name, which gives it no index; "" for any other pod."""
    meta = pod.metadata
    if meta.name or DEVICE_MAP not in (meta.annotations or {}) or pod_index(meta) is not None:
        return ""
    right = "set metadata.name to end in an index, such as worker-0, or use a StatefulSet or an Indexed Job"
    return f"{DEVICE_MAP}: the pod has no index, because metadata.generateName gives it none; {right}"


def find_overwritten(injection: Injection, containers: Iterable[LocatedContainer]) -> Iterator[str]:
    """A problem for each container in which another webhook has replaced the variable."""
    for located in containers:
        if any(_patch_container(injection, located)):
            wanted = injection.by_name.get(located.container.name, injection.default) or {}
            value = wanted.get("value") or wanted["valueFrom"]["fieldRef"]["fieldPath"]
            yield (
                f"spec.{located.field}[{located.number}].env: {VARIABLE} must be {value}, but another webhook"
                f" changed it after {WEBHOOK}; let the other webhook run first"
            )


def find_own_device_choices(
    pod: PodObject, containers: Iterable[LocatedContainer], policy: AdmissionPolicy
) -> Iterator[str]:
    """A warning for each container that requests no GPU and sets the variable itself."""
    annotations = pod.metadata.annotations or {}
    if not policy.inject or DEVICE_MAP in annotations or GPU_MILLI in annotations:
        return
    injection = plan_injection(pod, policy)
    asking: Mapping[str, Json] = injection.by_name if injection is not None else {}
    for field_name, number, container in containers:
        if container.name not in asking and any(map(_names_devices, container.env or ())):
            what = "may show GPUs that the container did not request; remove it, or request GPUs"
            yield f"spec.{field_name}[{number}].env: {VARIABLE} {what}"


def _names_devices(variable: EnvVar) -> bool:
    """Whether a variable names GPUs itself, instead of those that the scheduler assigned to the pod."""
    if variable.name != VARIABLE:
        return False
    if variable.value_from is None:
        return (variable.value or "") not in _SHOWS_NONE
    path = str(as_dict(variable.value_from.get("fieldRef")).get("fieldPath"))
    return not path.startswith(_SCHEDULER_FIELDS)


def _from_map(meta: Meta, text: str) -> Injection | None:
    index = pod_index(meta)
    try:
        entry = parse_map(text).get(index) if index is not None else None
    except MapError:
        return None
    if entry is None:
        return None
    value = write_devices(entry.devices)
    return Injection(f"={value}", f" (index {index})", default={"name": VARIABLE, "value": value})


def _field_reference(annotation: str) -> Json:
    # With apiVersion, which the API server would add otherwise: the next review would find a difference.
    reference = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": VARIABLE, "valueFrom": {"fieldRef": reference}}


def _patch_container(injection: Injection, located: LocatedContainer) -> Iterator[Json]:
    wanted = injection.by_name.get(located.container.name, injection.default)
    if wanted is None:
        return
    path = f"/spec/{located.field}/{located.number}/env"
    env = located.container.env
    if env is None:
        yield {"op": "add", "path": path, "value": [wanted]}
        return
    present = [number for number, one in enumerate(env) if one.name == VARIABLE]
    if not present:
        yield {"op": "add", "path": f"{path}/-", "value": wanted}
        return
    first, *others = present
    if not _matches(env[first], wanted):
        yield {"op": "replace", "path": f"{path}/{first}", "value": wanted}
    # From the back, so that the remaining indices stay valid.
    for number in reversed(others):
        yield {"op": "remove", "path": f"{path}/{number}"}


def _matches(variable: EnvVar, wanted: Json) -> bool:
    return (variable.value or "") == wanted.get("value", "") and (variable.value_from or None) == wanted.get(
        "valueFrom"
    )
