"""Pod admission on a node: the kubelet's last check of resources and devices, after the scheduler's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import ContainerRequest, pod_request, read_container, read_exactly


class DeviceClaim(Protocol):
    """The devices that a pod was given."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Device indices on the node."""

    @property
    def milli(self) -> int:
        """Thousandths of each device that the pod uses."""

    @property
    def sharing(self) -> str:
        """Pods with the same value may share their devices without limit; "" means that the pod shares with none."""


DeviceClaimReader = Callable[[Json], DeviceClaim | None]
"""Reads which devices a pod was given; None for a pod without devices."""


def no_device_claim(_: Json) -> None:
    """The reader of a cluster that does not check devices."""


@dataclass(frozen=True, slots=True)
class PodRejection:
    """Why a node does not admit a pod."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """What a pod takes of its node."""

    uid: str
    requests: dict[str, int]
    claim: DeviceClaim | None = None


def read_allocation(pod: Json, read_claim: DeviceClaimReader) -> PodAllocation:
    """Reads what a pod takes. Quantities that cannot be parsed count as 0: the API server rejected those pods."""
    spec = pod["spec"]
    try:
        pod_level = spec.get("resources")
        requests = pod_request(
            [_container_request(item) for item in spec["containers"]],
            [_container_request(item) for item in spec.get("initContainers") or ()],
            read_exactly(spec.get("overhead") or {}, "overhead"),
            read_container(pod_level.get("requests") or {}, pod_level.get("limits") or {}) if pod_level else None,
        )
    except QuantityError:
        requests = {}
    requests["pods"] = 1
    return PodAllocation(pod["metadata"]["uid"], requests, read_claim(pod))


def _container_request(container: Json) -> ContainerRequest:
    found = container.get("resources") or {}
    restarts = container.get("restartPolicy") == "Always"
    return read_container(found.get("requests") or {}, found.get("limits") or {}, restarts)


@dataclass(slots=True)
class NodeAdmission:
    """Admits pods to one node and tracks the resources and devices that they hold."""

    allocatable: dict[str, int]
    gpus: int = 0
    unhealthy: set[int] = field(default_factory=set)
    allocations: dict[str, PodAllocation] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)

    def reject(self, pod: PodAllocation) -> PodRejection | None:
        """Returns why the pod does not fit, or None when it does. Resources that the node does not have are ignored."""
        for name, amount in pod.requests.items():
            capacity = self.allocatable.get(name)
            used = self._used.get(name, 0)
            if capacity is not None and amount and used + amount > capacity:
                why = f"Pod was rejected: Node didn't have enough resource: {name}, requested: {amount}, "
                return PodRejection(f"OutOf{name}", why + f"used: {used}, capacity: {capacity}")
        why = self._device_conflict(pod.claim) if pod.claim is not None else ""
        if not why:
            return None
        why = f"Pod was rejected: Allocate failed due to {why}, which is unexpected"
        return PodRejection("UnexpectedAdmissionError", why)

    def _device_conflict(self, claim: DeviceClaim) -> str:
        if self.gpus and claim.devices and max(claim.devices) >= self.gpus:
            return f"device {max(claim.devices)}: the node has {self.gpus}"
        broken = self.unhealthy.intersection(claim.devices)
        if broken:
            return f"device {min(broken)}, which is unhealthy"
        for index in claim.devices:
            others = {
                uid: other.claim
                for uid, other in self.allocations.items()
                if other.claim is not None and index in other.claim.devices
            }
            if claim.sharing and all(other.sharing == claim.sharing for other in others.values()):
                continue
            if others and sum(other.milli for other in others.values()) + claim.milli > 1000:
                return f"device {index}, which is used by pod {next(iter(others))}"
        return ""

    def allocate(self, pod: PodAllocation) -> None:
        """Charges the pod's allocation to the node, once."""
        if pod.uid in self.allocations:
            return
        self.allocations[pod.uid] = pod
        for name, amount in pod.requests.items():
            self._used[name] = self._used.get(name, 0) + amount

    def release(self, uid: str) -> None:
        """Releases everything that a pod holds."""
        pod = self.allocations.pop(uid, None)
        if pod is not None:
            for name, amount in pod.requests.items():
                self._used[name] -= amount
