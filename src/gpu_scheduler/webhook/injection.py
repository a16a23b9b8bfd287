"""CUDA_VISIBLE_DEVICES of containers: the literal from a map, or a reference to what the bind will write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_scheduler.core.quantity import QuantityError
from gpu_scheduler.kube.annotations import CONTAINER_DEVICES, tell_containers, write_devices
from gpu_scheduler.kube.device_map import MapError, parse_map, pod_index
from gpu_scheduler.kube.objects import Json, Meta, PodObject
from gpu_scheduler.kube.resources import DEVICE_MAP, GPU_MILLI, VISIBLE_DEVICES
from gpu_scheduler.webhook.containers import EnvVar, Placed
from gpu_scheduler.webhook.rules import Rules

VARIABLE = "CUDA_VISIBLE_DEVICES"


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


def plan_injection(pod: PodObject, rules: Rules) -> Injection | None:
    """What the containers of a pod of ours get; None for a pod that gets nothing, or asks wrongly."""
    notes = pod.metadata.annotations or {}
    text = notes.get(DEVICE_MAP)
    if text is not None:
        return _from_map(pod.metadata, text)
    if not rules.inject:
        return None
    if GPU_MILLI in notes:
        # A share is the whole pod's: no container asks for it by itself.
        return Injection(f" from {VISIBLE_DEVICES}", everywhere=_refer_to(VISIBLE_DEVICES))
    try:
        told = tell_containers(pod, rules.gpu_resources)
    except QuantityError:
        return None
    if not told:
        return None
    said = VISIBLE_DEVICES if len(told) == 1 else f"{CONTAINER_DEVICES}*"
    return Injection(f" from {said}", by_name={name: _refer_to(key) for name, key in told.items()})


def patch_containers(injection: Injection, containers: Iterable[Placed]) -> list[Json]:
    """The operations (RFC 6902) after which every container has the variable once and as it should be."""
    return [operation for placed in containers for operation in _patch_container(injection, placed)]


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


def _refer_to(annotation: str) -> Json:
    # With its apiVersion, or the API server would add it and the next look would find something else.
    reference = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": VARIABLE, "valueFrom": {"fieldRef": reference}}


def _patch_container(injection: Injection, placed: Placed) -> Iterator[Json]:
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
    if not _is(env[first], wanted):
        yield {"op": "replace", "path": f"{path}/{first}", "value": wanted}
    # From the back, so that the numbers of the others stay right.
    for number in reversed(others):
        yield {"op": "remove", "path": f"{path}/{number}"}


def _is(variable: EnvVar, wanted: Json) -> bool:
    return (variable.value or "") == wanted.get("value", "") and (variable.value_from or None) == wanted.get(
        "valueFrom"
    )
