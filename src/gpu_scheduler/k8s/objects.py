"""API objects as typed structs. Fields that are not declared here are not kept in memory."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

Json = dict[str, Any]
"""A JSON object."""

MAX_DEPTH = 100
"""How deep an object may be nested. No field that is read lies deeper; an API server accepts 10,000 levels."""


class _ApiStruct(msgspec.Struct, rename="camel", gc=False, omit_defaults=True):
    """Base of structs whose fields are camelCase on the wire."""


class OwnerReference(_ApiStruct):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(_ApiStruct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None


class Object(_ApiStruct):
    """An object of any kind, of which only the metadata is kept."""

    metadata: Meta


class Resources(_ApiStruct):
    # A quantity in a template may be a JSON number.
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None
    claims: list[Json] | None = None

    def __post_init__(self) -> None:
        # Requests equal limits in most pods: sharing one dict saves memory.
        if self.limits == self.requests:
            self.limits = self.requests


class ContainerPort(_ApiStruct):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class Container(_ApiStruct):
    name: str = ""
    resources: Resources | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None


class Volume(_ApiStruct):
    name: str = ""
    persistent_volume_claim: Json | None = None
    ephemeral: Json | None = None


class PodSpec(_ApiStruct):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    containers: list[Container] = []
    init_containers: list[Container] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: Resources | None = None
    node_selector: dict[str, str] | None = None
    affinity: Json | None = None
    tolerations: list[Json] | None = None
    topology_spread_constraints: list[Json] | None = None
    scheduling_gates: list[Json] | None = None
    resource_claims: list[Json] | None = None
    volumes: list[Volume] | None = None
    host_network: bool = False
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    workload_ref: Json | None = None
    scheduling_group: Json | None = None


class PodCondition(_ApiStruct):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None

    def __post_init__(self) -> None:
        # All pods have the same few values.
        self.type = sys.intern(self.type)
        self.status = sys.intern(self.status)


class Terminated(_ApiStruct):
    exit_code: int = 0
    reason: str | None = None


class ContainerState(_ApiStruct):
    terminated: Terminated | None = None


class ContainerStatus(_ApiStruct):
    name: str = ""
    state: ContainerState | None = None
    resources: Resources | None = None
    allocated_resources: dict[str, str | int | float] | None = None


class PodStatus(_ApiStruct):
    phase: str = "Pending"
    reason: str | None = None
    message: str | None = None
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resources: Resources | None = None
    allocated_resources: dict[str, str | int | float] | None = None


class PodObject(_ApiStruct):
    metadata: Meta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    def __post_init__(self) -> None:
        # Only the statuses of containers that are being resized or have failed are kept.
        spec, status = self.spec, self.status
        if status.container_statuses is not None:
            status.container_statuses = _being_resized(spec.containers, status.container_statuses)
        if status.init_container_statuses is not None:
            sidecars = [one for one in spec.init_containers or () if one.restart_policy == "Always"]
            status.init_container_statuses = _being_resized(sidecars, status.init_container_statuses)


def _being_resized(containers: list[Container], statuses: list[ContainerStatus]) -> list[ContainerStatus] | None:
    asked = {one.name: one.resources.requests if one.resources is not None else None for one in containers}
    found = []
    for one in statuses:
        if one.state is not None and one.state.terminated is not None and one.state.terminated.exit_code:
            found.append(one)
        elif one.resources is not None and one.name in asked:
            given = (one.resources.requests, one.allocated_resources)
            if any(amounts and amounts != asked[one.name] for amounts in given):
                found.append(one)
    return found or None


class NodeTaint(_ApiStruct):
    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(_ApiStruct):
    unschedulable: bool = False
    taints: list[NodeTaint] | None = None


class NodeCondition(_ApiStruct):
    type: str = ""
    status: str = ""


class NodeStatus(_ApiStruct):
    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    conditions: list[NodeCondition] | None = None


class NodeObject(_ApiStruct):
    metadata: Meta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class RawObject(_ApiStruct):
    """An object with typed metadata, and spec and status as JSON."""

    metadata: Meta
    spec: Json = {}
    status: Json = {}

    def __post_init__(self) -> None:
        # Comparing or copying recurses to the full depth.
        for name, part in (("spec", self.spec), ("status", self.status)):
            if _is_deeper(part, MAX_DEPTH):
                raise ValueError(f"{name}: must not be nested deeper than {MAX_DEPTH} levels")


def _is_deeper(part: Any, levels: int) -> bool:
    found = [part]
    for _ in range(levels):
        found = [
            inner
            for outer in found
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not found:
            return False
    return True


class ClaimSpec(_ApiStruct):
    volume_name: str = ""
    storage_class_name: str | None = None


class ClaimStatus(_ApiStruct):
    phase: str = ""


class ClaimObject(_ApiStruct):
    """A PersistentVolumeClaim."""

    metadata: Meta
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)


class VolumeSpec(_ApiStruct):
    node_affinity: Json | None = None


class VolumeObject(_ApiStruct):
    """A PersistentVolume."""

    metadata: Meta
    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)


class StorageClassObject(_ApiStruct):
    """A StorageClass; its fields are at the top level."""

    metadata: Meta
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: list[Json] | None = None


class PriorityClassObject(_ApiStruct):
    """A PriorityClass; its fields are at the top level."""

    metadata: Meta
    value: int = 0
