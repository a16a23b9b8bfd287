"""The annotations about GPUs that a bind writes on its pod.

| annotation | value |
|---|---|
| gpu-scheduler.io/devices | the GPU indices of the pod on its node, "0,1"; only where the scheduler chose them |
| gpu-scheduler.io/visible-devices | what the pod should see: the same, or 0..n-1 where a device plugin renumbers |
| visible-devices.gpu-scheduler.io/<container> | the same for one container, if several request GPUs |

Containers get the pod's GPUs in order. An init container that ends passes its GPUs on, a sidecar keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

from gpu_scheduler.core.cluster.device_table import MAX_DEVICES
from gpu_scheduler.core.model import Shape
from gpu_scheduler.gangs.contract import DEVICES, GROUP, VISIBLE_DEVICES
from gpu_scheduler.gangs.pods.device_map import read_number
from gpu_scheduler.gangs.pods.shapes import is_sidecar
from gpu_scheduler.k8s.objects import Container, PodObject
from gpu_scheduler.k8s.requests import read_exactly

CONTAINER_DEVICES = f"visible-devices.{GROUP}/"
"""A container's name follows."""


class _Share(NamedTuple):
    """The positions of one container's GPUs among those of the pod."""

    container: str
    start: int
    size: int


def bind_annotations(pod: PodObject, devices: Sequence[int], gpu_resources: Iterable[str]) -> dict[str, str]:
    """Returns the annotations of a bind with these devices; () where a device plugin chooses them."""
    shares = list(_shares(pod, tuple(gpu_resources)))
    pool = tuple(devices) or tuple(range(max((share.start + share.size for share in shares), default=0)))
    if not pool:
        return {}
    found = {DEVICES: write_devices(devices)} if devices else {}
    found[VISIBLE_DEVICES] = write_devices(pool)
    if len(shares) > 1:
        for name, start, size in shares:
            # A device plugin numbers each container's GPUs from 0.
            seen = pool[start : start + size] if devices else range(size)
            found[CONTAINER_DEVICES + name] = write_devices(seen)
    return found


def container_annotations(pod: PodObject, gpu_resources: Iterable[str]) -> dict[str, str]:
    """Returns the annotation with the visible devices of each container that requests GPUs; raises QuantityError."""
    names = [share.container for share in _shares(pod, tuple(gpu_resources))]
    return {name: CONTAINER_DEVICES + name if len(names) > 1 else VISIBLE_DEVICES for name in names}


def write_devices(devices: Iterable[int]) -> str:
    """Formats indices: "0,1"."""
    return ",".join(map(str, devices))


def read_devices(text: str | None, shape: Shape) -> tuple[int, ...] | None:
    """Returns the indices recorded for a pod of this shape; None if there are none, or if they do not fit the shape."""
    if not text:
        return None
    found = [read_number(word) for word in text.split(",", MAX_DEVICES)]
    devices = tuple(device for device in found if device is not None and device < MAX_DEVICES)
    if len(devices) != len(found) or len(set(devices)) != len(devices):
        return None
    wanted = 1 if shape.gpu_milli else shape.gpus
    return devices if len(devices) == (wanted or len(devices)) else None


def _shares(pod: PodObject, gpu_resources: tuple[str, ...]) -> Iterator[_Share]:
    """Yields the containers that request GPUs, with their positions."""
    start = 0
    for container in pod.spec.init_containers or ():
        count = _count_gpus(container, gpu_resources)
        if count:
            yield _Share(container.name, start, count)
            start += count if is_sidecar(container) else 0
    for container in pod.spec.containers:
        count = _count_gpus(container, gpu_resources)
        if count:
            yield _Share(container.name, start, count)
            start += count


def _count_gpus(container: Container, gpu_resources: tuple[str, ...]) -> int:
    resources = container.resources
    if resources is None:
        return 0
    effective = {**(resources.limits or {}), **(resources.requests or {})}
    asked = {name: str(effective[name]) for name in gpu_resources if name in effective}
    return sum(ceil(amount) for amount in read_exactly(asked, "resources").values())
