"""Fleet settings: the nodes of the local cluster, from flags or from a YAML file with a list of node groups."""

from __future__ import annotations

import difflib
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from embedded_kube.node.node_admission import DeviceClaimReader, no_device_claim
from gpu_scheduler.base.documents import BadDocumentError, parse_yaml
from gpu_scheduler.base.text import one_line
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import QuantityError, parse_nano

RUNTIMES = ("process", "simulated")
RUNTIME = "gpu-scheduler.io/runtime"
UNHEALTHY_DEVICES = "gpu-scheduler.io/unhealthy-devices"
FLEET_LABEL = "gpu-scheduler.io/fleet"
"""The label of nodes that a fleet created."""

_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MAX_NODES = 20_000
_MAX_GPUS = 128


class FleetError(Exception):
    """The fleet settings are invalid. The message is one line: the field and what to write instead."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of the nodes. With a `file`, the nodes come from it, not from the numbers."""

    folder: Path
    nodes: int = 4
    gpus: int = 8
    cpu: str = "4"
    memory: str = "8Gi"
    racks: int = 1
    zones: int = 1
    file: Path | None = None
    runtime: str = "process"
    kubernetes: str = "1.35"
    back_off: float = 10.0
    """Seconds before a container's second restart; the delay doubles with each further restart."""
    back_off_limit: float = 300.0
    isolate: bool = True
    """Whether pods get their own Linux namespaces where the system allows it."""
    control_plane: bool = False
    """Whether there is one more node, without GPUs, for the project's own addons."""
    read_device_claim: DeviceClaimReader = no_device_claim
    """Reads which devices a pod was given; a node rejects pods whose devices are in use."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A group of equal nodes. `{n}` in rack and zone is the number of the rack or zone, from 1."""

    count: int = 1
    prefix: str = "node"
    cpu: str = "4"
    memory: str = "8Gi"
    pods: int = 110
    gpus: int = 8
    gpuResource: str = "nvidia.com/gpu"  # noqa: N815, the field's name in the file
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    taints: list[dict[str, str]] = field(default_factory=list)
    runtime: str = "process"
    racks: int = 1
    zones: int = 1
    rack: str = "rack{n}"
    zone: str = "zone{n}"


CONTROL_PLANE = "control-plane"
_ROLE = "node-role.kubernetes.io/control-plane"
_CONTROL_PLANE = NodeGroup(gpus=0, labels={_ROLE: ""}, taints=[{"key": _ROLE, "effect": "NoSchedule"}])


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One node of the fleet. A node without a rack has no topology labels."""

    name: str
    number: int
    group: NodeGroup
    rack: str
    zone: str
    address: str


def read_fleet(settings: FleetSettings) -> list[FleetNode]:
    """Returns the nodes that the settings describe, or raises FleetError."""
    if settings.file is not None:
        groups = _read_file(settings.file)
    else:
        numbers = {name: getattr(settings, name) for name in ("gpus", "cpu", "memory", "racks", "zones", "runtime")}
        groups = [_make_group({"count": settings.nodes, **numbers}, "", "--")]
    found = _lay_out(groups)
    if settings.control_plane:
        found.append(FleetNode(CONTROL_PLANE, 0, _CONTROL_PLANE, "", "", _address(len(found))))
    return found


def _read_file(path: Path) -> list[NodeGroup]:
    try:
        found = parse_yaml(path.read_bytes())
    except OSError as error:
        raise FleetError(f"--fleet: {path}: {error.strerror}") from None
    except BadDocumentError as error:
        raise FleetError(f"--fleet: {path}: {error}") from None
    if isinstance(found, dict) and set(found) == {"nodes"}:
        found = found["nodes"]
    if not isinstance(found, list) or not found:
        raise FleetError(f"--fleet: {path}: write a list of node groups, for example: [{{count: 4, gpus: 8}}]")
    return [_make_group(item, f"[{number}]", f"--fleet: {path}: ") for number, item in enumerate(found)]


def _make_group(found: object, place: str, where: str) -> NodeGroup:
    """Returns a validated group. `place` is its position in the file, `where` the prefix of error messages."""

    def invalid(name: str, why: str) -> FleetError:
        dot = "." if place and name else ""
        return FleetError(f"{where}{place}{dot}{name}: {why}")

    if not isinstance(found, dict):
        raise invalid("", "write a group as fields, for example {count: 4, gpus: 8}")
    known = {item.name: item for item in fields(NodeGroup)}
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1, 0.4)
            raise invalid(str(name), f"no such field; did you mean {near[0]}?" if near else _list(known))
    values: dict[str, Any] = {}
    for name, value in found.items():
        values[name] = _check_type(name, value, invalid)
    for name, minimum, maximum in (
        ("count", 1, _MAX_NODES),
        ("gpus", 0, _MAX_GPUS),
        ("pods", 1, 10_000),
        ("racks", 1, _MAX_NODES),
        ("zones", 1, _MAX_NODES),
    ):
        if not minimum <= values.get(name, minimum) <= maximum:
            raise invalid(
                "nodes" if where == "--" and name == "count" else name, f"{values[name]} is not {minimum} to {maximum}"
            )
    for name in ("cpu", "memory"):
        try:
            if parse_nano(values.get(name, "1")) <= 0:
                raise invalid(name, f"{values[name]} is not above 0")
        except QuantityError as error:
            raise invalid(name, str(error)) from None
    if values.get("runtime", RUNTIMES[0]) not in RUNTIMES:
        raise invalid("runtime", f"{values['runtime']!r} is not one of {', '.join(RUNTIMES)}")
    for number, taint in enumerate(values.get("taints", ())):
        if not isinstance(taint, dict) or not taint.get("key") or taint.get("effect") not in _TAINT_EFFECTS:
            raise invalid(f"taints[{number}]", f"write key, value and an effect out of {', '.join(_TAINT_EFFECTS)}")
    return NodeGroup(**values)


def _list(known: Iterable[str]) -> str:
    return f"no such field; there are {', '.join(known)}"


def _check_type(name: str, value: object, invalid: Any) -> object:
    default = getattr(NodeGroup(), name)
    if name in ("cpu", "memory"):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise invalid(name, "write a quantity, for example 4 or 8Gi")
        return str(value)
    if isinstance(default, int):
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(name, f"{value!r} is not a whole number")
        return value
    if isinstance(default, dict):
        if not isinstance(value, dict):
            raise invalid(name, "write names and values, for example {team: research}")
        return {str(key): str(item) if not isinstance(item, bool) else str(item).lower() for key, item in value.items()}
    if isinstance(default, list):
        if not isinstance(value, list):
            raise invalid(name, "write a list")
        return value
    if not isinstance(value, str) or not value:
        raise invalid(name, f"{value!r} is not a text")
    return value


def _lay_out(groups: list[NodeGroup]) -> list[FleetNode]:
    """Assigns names, racks and zones. Groups with the same prefix continue its numbering, so names are unique."""
    counts: dict[str, int] = {}
    found: list[FleetNode] = []
    for group in groups:
        for index in range(group.count):
            counts[group.prefix] = number = counts.get(group.prefix, 0) + 1
            rack = index * min(group.racks, group.count) // group.count
            zone = (
                rack * min(group.zones, group.racks) // group.racks
                if group.zones <= group.racks
                else (index * min(group.zones, group.count) // group.count)
            )
            names = (group.rack.replace("{n}", str(rack + 1)), group.zone.replace("{n}", str(zone + 1)))
            found.append(FleetNode(f"{group.prefix}{number}", number, group, *names, _address(len(found))))
    return found


def _address(place: int) -> str:
    # Only Linux answers on all of 127.0.0.0/8.
    if platform.system() != "Linux":
        return "127.0.0.1"
    return f"127.{1 + place // 62500}.{1 + place // 250 % 250}.{1 + place % 250}"


def node_labels(spec: FleetNode) -> dict[str, str]:
    """Returns the labels of a Node object."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    found = {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine,
        RUNTIME: spec.group.runtime,
        FLEET_LABEL: "local",
    }
    if spec.rack:
        # Topology labels only where pods may run: topology spread counts every node that has the label, tainted or not.
        found |= {
            "kubernetes.io/hostname": spec.name,
            "gpu-node-name": spec.name,
            "gpu-scheduler.io/rack": spec.rack,
            "topology.kubernetes.io/zone": spec.zone,
            "gpu-scheduler.io/assigns-devices": "true",
        }
    return found | spec.group.labels


def node_object(spec: FleetNode) -> Json:
    """Returns a Node object without status."""
    group = spec.group
    meta: Json = {"name": spec.name, "labels": node_labels(spec)}
    if group.annotations:
        meta["annotations"] = dict(group.annotations)
    found: Json = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}}
    if group.taints:
        found["spec"]["taints"] = [dict(taint) for taint in group.taints]
    return found


def unhealthy_devices(annotations: Mapping[str, str]) -> set[int]:
    """Reads the GPU indices in a node's annotation; words that are not numbers are ignored."""
    words = annotations.get(UNHEALTHY_DEVICES, "").replace(",", " ").split()
    return {int(word) for word in words if word.isdecimal()}


def node_resources(spec: FleetNode, annotations: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns capacity and allocatable. An unhealthy GPU is not allocatable, as with a device plugin."""
    group = spec.group
    capacity = {"cpu": group.cpu, "memory": group.memory, "pods": str(group.pods), "ephemeral-storage": "100Gi"}
    allocatable = dict(capacity)
    if group.gpus:
        broken = {index for index in unhealthy_devices(annotations) if index < group.gpus}
        capacity[group.gpuResource] = str(group.gpus)
        allocatable[group.gpuResource] = str(group.gpus - len(broken))
    return capacity, allocatable
