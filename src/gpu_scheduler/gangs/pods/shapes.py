"""What a pod needs, read from its spec: one Shape for all pods that ask for the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import msgspec

from gpu_scheduler.base.text import join
from gpu_scheduler.core.model import (
    MILLI,
    DeviceMap,
    Gate,
    GateKind,
    HostPort,
    Shape,
    TaintEffect,
    Toleration,
)
from gpu_scheduler.core.selectors import NodeTerms, labels_equal
from gpu_scheduler.gangs.contract import DEVICE_MAP, GPU_MILLI
from gpu_scheduler.gangs.pods.device_map import MapError, map_group, parse_map, pod_index, read_number
from gpu_scheduler.gangs.pods.terms import (
    Affinity,
    Speaker,
    SpreadConstraint,
    node_terms,
    pod_terms,
    preferences,
    spreads,
)
from gpu_scheduler.k8s.objects import Container, Meta, PodSpec, Resources
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import Amount, ContainerRequest, pod_request, read_container, read_exactly

_SHAPES = 8192
"""How many distinct shapes are remembered; one that falls out is read again."""


_SHORT = 8192
"""Characters of a pod that are worth remembering for the next pod of its job."""


class Shaped(NamedTuple):
    """A shape, and what is wrong with it: as long as there are gates, the shape holds only what could be read."""

    shape: Shape
    gates: tuple[Gate, ...] = ()


class _Need(msgspec.Struct, rename="camel", gc=False):
    """The parts of a spec that take something of a node."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str | int | float] | None = None
    resources: Resources | None = None
    host_network: bool = False


class _Toleration(msgspec.Struct, rename="camel", gc=False):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Rules(msgspec.Struct, rename="camel", gc=False):
    """The parts of a spec that say which nodes will do."""

    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[_Toleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None


class _Devices(NamedTuple):
    """What a pod's annotations say of GPUs, and which pod of its job it is."""

    map: str | None = None
    milli: str | None = None
    pod: int | None = None


_encode = msgspec.json.Encoder().encode
_read_need = msgspec.json.Decoder(_Need).decode
_read_rules = msgspec.json.Decoder(_Rules).decode


def read_shape(spec: PodSpec, meta: Meta, gpu_resources: tuple[str, ...], ours: bool = True) -> Shaped:
    """The shape of a pod or of a template. Never raises; a pod that is not ours has no use for our annotations."""
    return _read(*_take_parts(spec, meta, ours), gpu_resources)


def find_gates(spec: PodSpec, meta: Meta, gpu_resources: tuple[str, ...]) -> tuple[Gate, ...]:
    """What is wrong with a pod of ours. Whoever sends many, or large ones, does not make this process grow."""
    parts, speaker, devices = _take_parts(spec, meta, ours=True)
    size = len(parts) + len(devices.map or "") + len(devices.milli or "") + 128 * len(speaker.labels)
    find = _gates if size <= _SHORT else _gates.__wrapped__
    return find(parts, speaker, devices, gpu_resources)


def _take_parts(spec: PodSpec, meta: Meta, ours: bool) -> tuple[bytes, Speaker, _Devices]:
    """All that a shape is made of, as values that can be compared."""
    parts = _encode(
        {
            "containers": spec.containers,
            "initContainers": spec.init_containers,
            "overhead": spec.overhead,
            "resources": spec.resources,
            "hostNetwork": spec.host_network,
            "nodeSelector": spec.node_selector,
            "affinity": spec.affinity,
            "tolerations": spec.tolerations,
            "topologySpreadConstraints": spec.topology_spread_constraints,
        }
    )
    # A pod's own labels belong to its shape only if a term asks for them by key.
    labels = tuple(sorted(meta.labels.items())) if meta.labels and b"abelKeys" in parts else ()
    devices = _Devices()
    if ours and meta.annotations:
        written, milli = meta.annotations.get(DEVICE_MAP), meta.annotations.get(GPU_MILLI)
        if written is not None or milli is not None:
            devices = _Devices(written, milli, pod_index(meta))
    return parts, Speaker(meta.namespace, labels), devices


@lru_cache(maxsize=_SHAPES)
def with_volumes(shape: Shape, terms: tuple[NodeTerms, ...]) -> Shape:
    """The shape of a pod whose volumes are only to be had on some nodes."""
    return _intern(replace(shape, volume_terms=terms))


@lru_cache(maxsize=_SHAPES)
def _intern(shape: Shape) -> Shape:
    """The one object for all equal shapes."""
    return shape


@lru_cache(maxsize=_SHAPES)  # the text of a spec is a cheaper key than the shape that would have to be made from it
def _read(parts: bytes, speaker: Speaker, devices: _Devices, gpu_resources: tuple[str, ...]) -> Shaped:
    shape, gates = _make(parts, speaker, devices, gpu_resources)
    return Shaped(_intern(shape), gates)


@lru_cache(maxsize=1024)
def _gates(parts: bytes, speaker: Speaker, devices: _Devices, gpu_resources: tuple[str, ...]) -> tuple[Gate, ...]:
    gates: list[Gate] = []
    with _noting(gates):
        shape = _shape_of_need(_read_need(parts), gpu_resources, gates)
        _add_devices(shape, devices, speaker.namespace, gpu_resources, gates)
        # What can be read can be added, which takes ten times as long and is of no use here.
        _read_rules(parts)
    return tuple(gates)


def _make(parts: bytes, speaker: Speaker, devices: _Devices, gpu_resources: tuple[str, ...]) -> Shaped:
    gates: list[Gate] = []
    shape = Shape()
    with _noting(gates):
        shape = _shape_of_need(_read_need(parts), gpu_resources, gates)
        shape = _add_devices(shape, devices, speaker.namespace, gpu_resources, gates)
        shape = _add_rules(shape, _read_rules(parts), speaker)
    return Shaped(shape, tuple(gates))


@contextmanager
def _noting(gates: list[Gate]) -> Iterator[None]:
    """Notes what cannot be read, and goes on behind the block."""
    try:
        yield
    except msgspec.ValidationError as error:
        gates.append(Gate(GateKind.BAD_REQUEST, _place(error)))
    except QuantityError as error:
        gates.append(Gate(GateKind.BAD_REQUEST, str(error)))


def _place(error: msgspec.ValidationError) -> str:
    """The field first, then what is right: "spec.tolerations[0].key: Expected `str | null`, got `int`"."""
    what, _, path = str(error).partition(" - at `$")
    return f"spec{path.rstrip('`')}: {what}"


# -- what it takes


def sum_request(need: _Need | PodSpec) -> dict[str, int]:
    """What a pod takes of its node, or QuantityError."""
    inits, containers = need.init_containers or (), need.containers or ()
    return pod_request(
        [_read_resources(one.resources, f"spec.containers[{i}].") for i, one in enumerate(containers)],
        [_read_resources(one.resources, f"spec.initContainers[{i}].", is_sidecar(one)) for i, one in enumerate(inits)],
        _read_overhead(need.overhead),
        _read_resources(need.resources, "spec.") if need.resources is not None else None,
    )


def _shape_of_need(need: _Need, gpu_resources: tuple[str, ...], gates: list[Gate]) -> Shape:
    inits = need.init_containers or []
    containers = need.containers or []
    request = sum_request(need)
    kinds = [name for name in gpu_resources if request.get(name)]
    if len(kinds) > 1:
        why = f"spec.containers: {' and '.join(kinds)} are asked for; ask for one kind of GPU"
        gates.append(Gate(GateKind.BAD_REQUEST, why))
    staying = [*(one for one in inits if is_sidecar(one)), *containers]
    return Shape(
        request=tuple(sorted(request.items())),
        gpu_resource=kinds[0] if kinds else "",
        gpus=request[kinds[0]] if kinds else 0,
        host_ports=tuple(dict.fromkeys(_host_ports(staying, need.host_network))),
    )


def is_sidecar(init_container: Container) -> bool:
    """Whether an init container runs as long as the pod does."""
    return init_container.restart_policy == "Always"


def _read_resources(resources: Resources | None, place: str, restarts: bool = False) -> ContainerRequest:
    if resources is None:
        return ContainerRequest({}, {}, restarts)
    try:
        return read_container(_texts(resources.requests), _texts(resources.limits), restarts)
    except QuantityError as error:
        raise QuantityError(f"{place}resources.{error}") from None


def _read_overhead(overhead: Mapping[str, str | int | float] | None) -> Mapping[str, Amount]:
    return read_exactly(_texts(overhead), "spec.overhead") if overhead else {}


def _texts(amounts: Mapping[str, str | int | float] | None) -> dict[str, str]:
    """Quantities as text: in a template they may be plain numbers."""
    return {name: str(amount) for name, amount in (amounts or {}).items()}


def _host_ports(containers: Sequence[Container], host_network: bool) -> Iterator[HostPort]:
    for container in containers:
        for port in container.ports or ():
            number = port.host_port or (port.container_port if host_network else 0)
            if number:
                yield HostPort(number, port.protocol or "TCP", port.host_ip or "0.0.0.0")


# -- which GPUs


def _add_devices(
    shape: Shape, devices: _Devices, namespace: str, gpu_resources: tuple[str, ...], gates: list[Gate]
) -> Shape:
    """The shape with the share or the map that its annotations ask for; gates when they ask wrongly."""
    first = next(iter(gpu_resources), "")
    if devices.map is not None:
        try:
            found = _read_map(shape, devices, namespace)
        except MapError as error:
            gates.append(Gate(GateKind.BAD_MAP, f"{DEVICE_MAP}: {error}"))
            return shape
        # Without a request its GPUs are charged as those of the first kind.
        return replace(shape, device_map=found, gpu_resource=shape.gpu_resource or first)
    if devices.milli is not None:
        milli = read_number(devices.milli)
        if milli is None or not 0 < milli < MILLI:
            why = f"{devices.milli[:40]!a} is not a share of a GPU; write thousandths of one, from 1 to {MILLI - 1}"
        elif shape.gpus:
            why = f"a share of one GPU goes with no whole ones; remove it, or the request for {shape.gpu_resource}"
        else:
            return replace(shape, gpu_milli=milli, gpu_resource=first)
        gates.append(Gate(GateKind.BAD_REQUEST, f"{GPU_MILLI}: {why}"))
    return shape


def _read_map(shape: Shape, devices: _Devices, namespace: str) -> DeviceMap:
    assert devices.map is not None
    entries = parse_map(devices.map)
    if devices.milli is not None:
        raise MapError(0, f"a map gives whole GPUs; remove it, or {GPU_MILLI}")
    if devices.pod is None:
        raise MapError(0, "the pod has no index; let its name end in a number, for example worker-0")
    entry = entries.get(devices.pod)
    if entry is None:
        there = join([str(index) for index in sorted(entries)], most=8)
        wanted = f"add {devices.pod}=<node>:<GPU>,<GPU>"
        raise MapError(0, f"there is no line for pod index {devices.pod}, only for {there}; {wanted}")
    if shape.gpus and shape.gpus != len(entry.devices):
        asked = f"{shape.gpus} of {shape.gpu_resource} are requested"
        raise MapError(0, f"{len(entry.devices)} GPUs for pod index {devices.pod}, but {asked}; make them equal")
    return DeviceMap(entry.node, entry.devices, map_group(namespace, devices.map))


# -- which nodes


def _add_rules(shape: Shape, rules: _Rules, speaker: Speaker) -> Shape:
    affinity = rules.affinity or Affinity()
    constraints = rules.topology_spread_constraints or []
    node = affinity.node_affinity
    return replace(
        shape,
        node_labels=labels_equal(rules.node_selector or {}),
        node_terms=node_terms(node.required) if node is not None else None,
        tolerations=tuple(dict.fromkeys(_tolerations(rules.tolerations or []))),
        affinity=pod_terms(affinity.pod_affinity, speaker),
        anti_affinity=pod_terms(affinity.pod_anti_affinity, speaker),
        spread=spreads(constraints, speaker),
        preferences=tuple(preferences(affinity, constraints, speaker)),
    )


def _tolerations(written: Sequence[_Toleration]) -> Iterator[Toleration]:
    effects = {effect.value: effect for effect in TaintEffect}
    for one in written:
        # What newer servers know beyond these tolerates nothing here: then the pod waits, which can be explained.
        if (one.operator or "Equal") in ("Equal", "Exists") and (not one.effect or one.effect in effects):
            effect = effects[one.effect] if one.effect else None
            yield Toleration(one.key or "", one.operator == "Exists", one.value or "", effect)
