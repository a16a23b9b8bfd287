"""What a node has left, and whether it takes one more pod: the last check, after the scheduler's."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from embedded_kube.storage.store import Json
from gpu_scheduler.gangs.contract import DEVICE_MAP, DEVICES, GPU_MILLI
from gpu_scheduler.gangs.pods.device_map import MapError, map_group
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import pod_request, read_container, read_exactly


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod is not run here."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pod takes of its node. `sharing` names those it shares its GPUs with; "" means nobody."""

    uid: str
    requests: dict[str, int]
    devices: tuple[int, ...] = ()
    milli: int = 1000
    sharing: str = ""


def read_claim(pod: Json) -> Claim:
    """A pod's claim; amounts that cannot be read count as nothing, as the API server has refused them before."""
    spec = pod["spec"]
    meta = pod["metadata"]
    annotations = meta.get("annotations") or {}
    inits = [_resources(item) for item in spec.get("initContainers") or ()]
    try:
        whole = spec.get("resources")
        requests = pod_request(
            [_resources(item) for item in spec["containers"]],
            inits,
            read_exactly(spec.get("overhead") or {}, "overhead"),
            read_container(whole.get("requests") or {}, whole.get("limits") or {}) if whole else None,
        )
    except QuantityError:
        requests = {}
    requests["pods"] = 1
    devices = tuple(sorted({int(number) for number in _INDEX.findall(annotations.get(DEVICES, ""))}))
    milli = annotations.get(GPU_MILLI, "")
    sharing = ""
    if annotations.get(DEVICE_MAP):
        with suppress(MapError):
            sharing = map_group(meta.get("namespace", ""), annotations[DEVICE_MAP])
    return Claim(meta["uid"], requests, devices, int(milli) if milli.isdecimal() else 1000, sharing)


# Indices stand alone or after the name of their container ("main=0,1"); digits inside names are none.
_INDEX = re.compile(r"(?<![\w.-])\d+(?![\w.-])")


def _resources(container: Json) -> Any:
    found = container.get("resources") or {}
    restarts = container.get("restartPolicy") == "Always"
    return read_container(found.get("requests") or {}, found.get("limits") or {}, restarts)


@dataclass(slots=True)
class Room:
    """One node's resources and the pods that hold them."""

    allocatable: dict[str, int]
    gpus: int = 0
    unhealthy: set[int] = field(default_factory=set)
    claims: dict[str, Claim] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)

    def refuse(self, claim: Claim) -> Refusal | None:
        """Why the pod does not fit; None when it does. Resources that the node does not know are no obstacle."""
        for name, amount in claim.requests.items():
            capacity = self.allocatable.get(name)
            used = self._used.get(name, 0)
            if capacity is not None and amount and used + amount > capacity:
                why = f"Pod was rejected: Node didn't have enough resource: {name}, requested: {amount}, "
                return Refusal(f"OutOf{name}", why + f"used: {used}, capacity: {capacity}")
        return self._refuse_devices(claim)

    def _refuse_devices(self, claim: Claim) -> Refusal | None:
        failed = "Pod was rejected: Allocate failed due to "
        if self.gpus and claim.devices and max(claim.devices) >= self.gpus:
            why = f"device {max(claim.devices)}: the node has {self.gpus}, which is unexpected"
            return Refusal("UnexpectedAdmissionError", failed + why)
        broken = self.unhealthy.intersection(claim.devices)
        if broken:
            why = f"device {min(broken)}, which is unhealthy, which is unexpected"
            return Refusal("UnexpectedAdmissionError", failed + why)
        for index in claim.devices:
            others = [other for other in self.claims.values() if index in other.devices]
            if claim.sharing and all(other.sharing == claim.sharing for other in others):
                continue
            if sum(other.milli for other in others) + claim.milli > 1000:
                why = f"device {index}, which is used by pod {others[0].uid}, which is unexpected" if others else ""
                return Refusal("UnexpectedAdmissionError", failed + why) if others else None
        return None

    def take(self, claim: Claim) -> None:
        """Gives the pod what it claims."""
        if claim.uid in self.claims:
            return
        self.claims[claim.uid] = claim
        for name, amount in claim.requests.items():
            self._used[name] = self._used.get(name, 0) + amount

    def free(self, uid: str) -> None:
        """Takes everything back from a pod."""
        claim = self.claims.pop(uid, None)
        if claim is not None:
            for name, amount in claim.requests.items():
                self._used[name] -= amount
