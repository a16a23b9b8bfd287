"""The effective resource request of a pod, as kube-scheduler computes it (k8s.io/component-helpers PodRequests)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from gpu_scheduler.k8s.quantity import MAX_VALUE, QuantityError, parse_nano

Amount = int | Fraction
"""An amount of a resource: cpu in milli, others in units. Fractions are summed exactly and rounded at the end."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """Requests and limits of one container, by resource name."""

    requests: Mapping[str, Amount]
    limits: Mapping[str, Amount]
    restarts: bool = False  # a sidecar: an init container with restartPolicy Always, running until the pod ends


def read_container(requests: Mapping[str, str], limits: Mapping[str, str], restarts: bool = False) -> ContainerRequest:
    """Reads a container's resources; raises QuantityError that names the resource."""
    return ContainerRequest(read_exactly(requests, "requests"), read_exactly(limits, "limits"), restarts)


def read_exactly(quantities: Mapping[str, str], field: str) -> dict[str, Amount]:
    """Reads resources exactly, to be summed; raises QuantityError that names the field and the resource."""
    return {name: _read_amount(name, text, field) for name, text in quantities.items()}


def read_amounts(quantities: Mapping[str, str], field: str) -> dict[str, int]:
    """Reads resources, each rounded up; raises QuantityError that names the field and the resource."""
    return {name: _round_up(amount) for name, amount in read_exactly(quantities, field).items()}


def pod_request(
    containers: Sequence[ContainerRequest],
    init_containers: Sequence[ContainerRequest],
    overhead: Mapping[str, Amount],
    pod_level: ContainerRequest | None = None,
) -> dict[str, int]:
    """The most that the pod needs at any moment, including overhead; resources with amount zero are omitted.

    pod_level is spec.resources. Sums are rounded up and capped at MAX_VALUE, so that they fit an int64 table.
    """
    total = _aggregate_containers(containers, init_containers)
    if pod_level is not None:
        total |= _pod_level_request(pod_level, total)
    _add(total, overhead)
    # Without zeros, equivalent pods have equal requests, and no code divides by a request of zero.
    return {name: _round_up(amount) for name, amount in total.items() if amount > 0}


def _aggregate_containers(
    containers: Sequence[ContainerRequest], init_containers: Sequence[ContainerRequest]
) -> dict[str, Amount]:
    """The larger, per resource, of the running pod and every step of its initialisation; zeros are kept."""
    peak: dict[str, Amount] = {}
    sidecars: dict[str, Amount] = {}
    for init in init_containers:
        step = _effective_request(init)
        # Resources that this container does not request need no entry: the running pod uses the sidecars' amount, too.
        for name in step:
            step[name] += sidecars.get(name, 0)
        _raise_to(peak, step)
        if init.restarts:
            sidecars |= step
    running = sidecars
    for container in containers:
        _add(running, _effective_request(container))
    _raise_to(running, peak)
    return running


def _effective_request(container: ContainerRequest) -> dict[str, Amount]:
    """The requests, and the limit of each resource that has no request: the API server's default for pods."""
    return {**container.limits, **container.requests}


def _pod_level_request(pod_level: ContainerRequest, aggregate: Mapping[str, Amount]) -> dict[str, Amount]:
    """The requests in spec.resources that replace the containers' aggregate, after the API server's defaults."""
    named = dict(pod_level.requests)
    for name, limit in pod_level.limits.items():
        # A limit alone does not replace container requests, except for huge pages, which cannot be overcommitted.
        if name not in aggregate or name.startswith("hugepages-"):
            named.setdefault(name, limit)
    return {name: amount for name, amount in named.items() if _has_pod_level(name)}


def _has_pod_level(name: str) -> bool:
    """Whether Kubernetes supports this resource in spec.resources; it ignores others there."""
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def _add(total: dict[str, Amount], amounts: Mapping[str, Amount]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: dict[str, Amount], amounts: Mapping[str, Amount]) -> None:
    for name, amount in amounts.items():
        total[name] = max(total.get(name, 0), amount)


def _read_amount(name: str, text: str, field: str) -> Amount:
    try:
        nano = parse_nano(text)
    except QuantityError as error:
        raise QuantityError(f"{field}[{name!r}]: {error}") from None
    if nano < 0:
        raise QuantityError(f"{field}[{name!r}]: quantity {text!r} is negative; write 0 or more")
    amount = Fraction(nano, 10**6 if name == "cpu" else 10**9)
    return amount.numerator if amount.denominator == 1 else amount


def _round_up(amount: Amount) -> int:
    return min(ceil(amount), MAX_VALUE)
