"""CUDA_VISIBLE_DEVICES of containers: the literal from a map, or a reference to what the bind will write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_scheduler.gangs.contract import DEVICE_MAP, GPU_MILLI, VISIBLE_DEVICES, WEBHOOK
from gpu_scheduler.gangs.options import as_dict
from gpu_scheduler.gangs.pods.annotations import CONTAINER_DEVICES, tell_containers, write_devices
from gpu_scheduler.gangs.pods.device_map import MapError, parse_map, pod_index
from gpu_scheduler.k8s.objects import Json, Meta, PodObject
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.webhook.containers import EnvVar, LocatedContainer
from gpu_scheduler.webhook.policy import AdmissionPolicy

VARIABLE = "CUDA_VISIBLE_DEVICES"
_SHOWS_NONE = ("", "-1", "NoDevFiles")
_GIVEN = (f"metadata.annotations['{VISIBLE_DEVICES}']", f"metadata.annotations['{CONTAINER_DEVICES}")
"""What a bind writes is in these fields."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What containers get: each by its name, else all of them `everywhere`. `said` and `which` make the log line."""

    said: str
    which: str = ""
    everywhere: Json | None = None
    by_name: Mapping[str, Json] = field(default_factory=dict)

    def describe(self, pod: str) -> str:
        """The log line about a pod."""
        return f"Injecting {VARIABLE}{self.said} for pod {pod}{self.which}"


def plan_injection(pod: PodObject, policy: AdmissionPolicy) -> Injection | None:
    """What the containers of a pod of ours get; None for a pod that gets nothing, or asks wrongly."""
    notes = pod.metadata.annotations or {}
    text = notes.get(DEVICE_MAP)
    if text is not None:
        return _from_map(pod.metadata, text)
    if not policy.inject:
        return None
    if GPU_MILLI in notes:
        # A share is the whole pod's: no container asks for it by itself.
        return Injection(f" from {VISIBLE_DEVICES}", everywhere=_field_reference(VISIBLE_DEVICES))
    try:
        told = tell_containers(pod, policy.gpu_resources)
    except QuantityError:
        return None
    if not told:
        return None
    said = VISIBLE_DEVICES if len(told) == 1 else f"{CONTAINER_DEVICES}*"
    return Injection(f" from {said}", by_name={name: _field_reference(key) for name, key in told.items()})


def patch_containers(injection: Injection, containers: Iterable[LocatedContainer]) -> list[Json]:
    """The operations (RFC 6902) after which every container has the variable once and as it should be."""
    return [operation for placed in containers for operation in _patch_container(injection, placed)]


def check_generated_name(pod: PodObject) -> str:
    """What to say of a new pod with a map whose name is still to be generated, and could only end in a chance number.

    "" of any other pod.
    """
    meta = pod.metadata
    if meta.name or DEVICE_MAP not in (meta.annotations or {}) or pod_index(meta) is not None:
        return ""
    right = "write a metadata.name that ends in one, for example worker-0, or use a StatefulSet or an Indexed Job"
    return f"{DEVICE_MAP}: the pod has no index, and a generated name gives it none; {right}"


def find_overwritten(injection: Injection, containers: Iterable[LocatedContainer]) -> Iterator[str]:
    """The containers that are not as the injection should have left them, each with what would be right."""
    for placed in containers:
        if any(_patch_container(injection, placed)):
            wanted = injection.by_name.get(placed.container.name, injection.everywhere) or {}
            value = wanted.get("value") or wanted["valueFrom"]["fieldRef"]["fieldPath"]
            yield (
                f"spec.{placed.field}[{placed.number}].env: {VARIABLE} must be {value}, but another webhook changed the"
                f" pod after {WEBHOOK} had seen it; let that one come first"
            )


def find_own_device_choices(
    pod: PodObject, containers: Iterable[LocatedContainer], policy: AdmissionPolicy
) -> Iterator[str]:
    """The containers that ask for no GPUs and choose some all the same, where only those who ask get the variable."""
    notes = pod.metadata.annotations or {}
    if not policy.inject or DEVICE_MAP in notes or GPU_MILLI in notes:
        return
    injection = plan_injection(pod, policy)
    told: Mapping[str, Json] = injection.by_name if injection is not None else {}
    for field_name, number, container in containers:
        if container.name not in told and any(map(_names_devices, container.env or ())):
            what = "may show GPUs that the container did not ask for; leave it out, or ask for GPUs"
            yield f"spec.{field_name}[{number}].env: {VARIABLE} {what}"


def _names_devices(variable: EnvVar) -> bool:
    """Whether a variable names GPUs by itself: not what the scheduler gave another container of the pod."""
    if variable.name != VARIABLE:
        return False
    if variable.value_from is None:
        return (variable.value or "") not in _SHOWS_NONE
    path = str(as_dict(variable.value_from.get("fieldRef")).get("fieldPath"))
    return not path.startswith(_GIVEN)


def _from_map(meta: Meta, text: str) -> Injection | None:
    index = pod_index(meta)
    try:
        entry = parse_map(text).get(index) if index is not None else None
    except MapError:
        return None
    if entry is None:
        return None
    value = write_devices(entry.devices)
    return Injection(f"={value}", f" (index {index})", everywhere={"name": VARIABLE, "value": value})


def _field_reference(annotation: str) -> Json:
    # With its apiVersion, or the API server would add it and the next look would find something else.
    reference = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": VARIABLE, "valueFrom": {"fieldRef": reference}}


def _patch_container(injection: Injection, placed: LocatedContainer) -> Iterator[Json]:
    wanted = injection.by_name.get(placed.container.name, injection.everywhere)
    if wanted is None:
        return
    path = f"/spec/{placed.field}/{placed.number}/env"
    env = placed.container.env
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
    # From the back, so that the numbers of the others stay right.
    for number in reversed(others):
        yield {"op": "remove", "path": f"{path}/{number}"}


def _matches(variable: EnvVar, wanted: Json) -> bool:
    return (variable.value or "") == wanted.get("value", "") and (variable.value_from or None) == wanted.get(
        "valueFrom"
    )
