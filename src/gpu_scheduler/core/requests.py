"""What a pod asks for as a whole, as kube-scheduler computes it (k8s.io/component-helpers resource.PodRequests)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_scheduler.core.quantity import MAX_VALUE, QuantityError, parse_milli, parse_value


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container asks for, by resource name: cpu in milli, everything else in units."""

    requests: Mapping[str, int]
    limits: Mapping[str, int]
    restarts: bool = False  # a sidecar: an init container with restartPolicy Always, running until the pod ends


def read_container(requests: Mapping[str, str], limits: Mapping[str, str], restarts: bool = False) -> ContainerRequest:
    """Read a container's resources, or raise QuantityError naming the resource."""
    return ContainerRequest(read_amounts(requests, "requests"), read_amounts(limits, "limits"), restarts)


def read_amounts(quantities: Mapping[str, str], field: str) -> dict[str, int]:
    """Read resources (cpu in milli, the rest in units), or raise QuantityError naming the field and the resource."""
    return {name: _read_amount(name, text, field) for name, text in quantities.items()}


def pod_request(
    containers: Sequence[ContainerRequest],
    init_containers: Sequence[ContainerRequest],
    overhead: Mapping[str, int],
    pod_level: ContainerRequest | None = None,
) -> dict[str, int]:
    """The most the pod needs at any moment, overhead included; resources it needs none of are left out.

    pod_level is spec.resources. Amounts stop at MAX_VALUE, so that they fit an int64 table. Each container was
    rounded up to whole units by itself, so fractions of a byte count a little more than in kube-scheduler.
    """
    total = _aggregate_containers(containers, init_containers)
    if pod_level is not None:
        total |= _pod_level_request(pod_level, total)
    _add(total, overhead)
    # Without zeros pods that ask for the same have equal requests, and nobody divides by a request of zero.
    return {name: min(amount, MAX_VALUE) for name, amount in total.items() if amount > 0}


def _aggregate_containers(
    containers: Sequence[ContainerRequest], init_containers: Sequence[ContainerRequest]
) -> dict[str, int]:
    """The larger, per resource, of the running pod and every step of its initialisation; zeros are kept."""
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for init in init_containers:
        step = dict(sidecars)
        _add(step, _effective_request(init))
        _raise_to(peak, step)
        if init.restarts:
            sidecars = step
    running = sidecars
    for container in containers:
        _add(running, _effective_request(container))
    _raise_to(running, peak)
    return running


def _effective_request(container: ContainerRequest) -> dict[str, int]:
    """The requests, and the limit of each resource that has no request: the API server's default for pods."""
    return {**container.limits, **container.requests}


def _pod_level_request(pod_level: ContainerRequest, aggregate: Mapping[str, int]) -> dict[str, int]:
    """What spec.resources puts in place of the containers' aggregate, after the API server's defaults."""
    named = dict(pod_level.requests)
    for name, limit in pod_level.limits.items():
        # A limit alone leaves what containers ask for in force, except for huge pages, which cannot be overcommitted.
        if name not in aggregate or name.startswith("hugepages-"):
            named.setdefault(name, limit)
    return {name: amount for name, amount in named.items() if _has_pod_level(name)}


def _has_pod_level(name: str) -> bool:
    """Whether Kubernetes lets a pod ask for this resource as a whole; it ignores the others there."""
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = max(total.get(name, 0), amount)


def _read_amount(name: str, text: str, field: str) -> int:
    try:
        amount = parse_milli(text) if name == "cpu" else parse_value(text)
    except QuantityError as error:
        raise QuantityError(f"{field}[{name!r}]: {error}") from None
    if amount < 0:
        raise QuantityError(f"{field}[{name!r}]: quantity {text!r} is negative; write 0 or more")
    return amount
