"""In-place pod resize: until the kubelet has finished, a pod may use more than its spec requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gpu_scheduler.k8s.objects import Container, ContainerStatus, PodObject, PodSpec, Resources
from gpu_scheduler.k8s.quantity import QuantityError, parse_nano

Quantities = Mapping[str, str | int | float]


def held_spec(pod: PodObject) -> PodSpec:
    """A bound pod's spec, whose requests are the largest of requested, allocated and actual resources.

    A request that the kubelet reports as infeasible does not count.
    """
    spec, status = pod.spec, pod.status
    held = {one.name: one for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))}
    whole = spec.resources is not None and status.resources is not None
    if not held and not whole:
        return spec
    pending = next((one for one in status.conditions or () if one.type == "PodResizePending"), None)
    feasible = pending is None or pending.reason != "Infeasible"
    changes: dict[str, object] = {
        "containers": [_with_held(one, held, feasible) for one in spec.containers],
        "init_containers": [_with_held(one, held, feasible) for one in spec.init_containers or ()],
    }
    if spec.resources is not None and status.resources is not None:
        changes["resources"] = _largest(
            spec.resources, (status.resources.requests, status.allocated_resources), feasible
        )
    return msgspec.structs.replace(spec, **changes)


def _with_held(container: Container, held: Mapping[str, ContainerStatus], feasible: bool) -> Container:
    status = held.get(container.name)
    if status is None or status.resources is None:
        return container
    given = (status.resources.requests, status.allocated_resources)
    return msgspec.structs.replace(container, resources=_largest(container.resources or Resources(), given, feasible))


def _largest(asking: Resources, given: Iterable[Quantities | None], feasible: bool) -> Resources:
    """The largest amount of each resource: the request, if it counts, and what was given."""
    most = dict(asking.requests or {})
    seen: set[str] = set()
    for amounts in given:
        for name, amount in (amounts or {}).items():
            void = not feasible and name not in seen
            if void or name not in most or _size(amount) > _size(most[name]):
                most[name] = amount
            seen.add(name)
    return msgspec.structs.replace(asking, requests=most)


def _size(amount: str | int | float) -> int:
    try:
        return parse_nano(str(amount))
    except QuantityError:
        return -1
