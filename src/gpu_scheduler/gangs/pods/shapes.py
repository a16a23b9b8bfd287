"""Shapes: what a pod requests, decoded from its spec; one Shape object for all pods with equal requests."""

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
from gpu_scheduler.gangs.pods.rule_ceilings import find_too_many_rules
from gpu_scheduler.gangs.pods.terms import (
    Affinity,
    SpreadConstraint,
    TermContext,
    node_terms,
    pod_terms,
    preferences,
    spreads,
)
from gpu_scheduler.k8s.objects import Container, Meta, PodSpec, Resources
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import Amount, ContainerRequest, pod_request, read_container, read_exactly

_MAX_SHAPES = 8192
"""How many distinct shapes are cached."""


_MAX_CACHED_SIZE = 8192
"""The largest pod, in characters, whose result is cached for the next pod of its job."""


class Shaped(NamedTuple):
    """A shape, and the problems of the pod; with problems the shape holds only what could be decoded."""

    shape: Shape
    gates: tuple[Gate, ...] = ()


class _NodeUse(msgspec.Struct, rename="camel", gc=False):
    """The fields of a spec that use resources of a node."""

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


class _PlacementRules(msgspec.Struct, rename="camel", gc=False):
    """The fields of a spec that restrict the nodes."""

    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[_Toleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None


class _Devices(NamedTuple):
    """The annotations about GPUs, and the index of the pod."""

    map: str | None = None
    milli: str | None = None
    pod: int | None = None


_encode = msgspec.json.Encoder().encode
_decode_use = msgspec.json.Decoder(_NodeUse).decode
_decode_rules = msgspec.json.Decoder(_PlacementRules).decode


def read_shape(spec: PodSpec, meta: Meta, gpu_resources: tuple[str, ...], ours: bool = True) -> Shaped:
    """Returns the shape of a pod or a template. Never raises. Our annotations count for our pods only."""
    return _read(*_shape_key(spec, meta, ours), gpu_resources)


def find_gates(spec: PodSpec, meta: Meta, gpu_resources: tuple[str, ...]) -> tuple[Gate, ...]:
    """Returns the problems of one of our pods. The cache stays small, whatever pods are sent."""
    parts, context, devices = _shape_key(spec, meta, ours=True)
    size = len(parts) + len(devices.map or "") + len(devices.milli or "") + 128 * len(context.labels)
    find = _gates if size <= _MAX_CACHED_SIZE else _gates.__wrapped__
    return find(parts, context, devices, gpu_resources)


def _shape_key(spec: PodSpec, meta: Meta, ours: bool) -> tuple[bytes, TermContext, _Devices]:
    """Returns everything that determines a shape, as hashable values."""
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
    # A pod's own labels affect its shape only if a term refers to them by key.
    labels = tuple(sorted(meta.labels.items())) if meta.labels and b"abelKeys" in parts else ()
    devices = _Devices()
    if ours and meta.annotations:
        written, milli = meta.annotations.get(DEVICE_MAP), meta.annotations.get(GPU_MILLI)
        if written is not None or milli is not None:
            devices = _Devices(written, milli, pod_index(meta))
    return parts, TermContext(meta.namespace, labels), devices


@lru_cache(maxsize=_MAX_SHAPES)
def with_volumes(shape: Shape, terms: tuple[NodeTerms, ...]) -> Shape:
    """Returns the shape of a pod whose volumes are available on some nodes only."""
    return _intern(replace(shape, volume_terms=terms))


@lru_cache(maxsize=_MAX_SHAPES)
def _intern(shape: Shape) -> Shape:
    """Returns one object for all equal shapes."""
    return shape


@lru_cache(maxsize=_MAX_SHAPES)  # the text of a spec is a cheaper key than its shape
def _read(parts: bytes, context: TermContext, devices: _Devices, gpu_resources: tuple[str, ...]) -> Shaped:
    shape, gates = _make(parts, context, devices, gpu_resources)
    return Shaped(_intern(shape), gates)


@lru_cache(maxsize=1024)
def _gates(parts: bytes, context: TermContext, devices: _Devices, gpu_resources: tuple[str, ...]) -> tuple[Gate, ...]:
    gates: list[Gate] = []
    with _collect_problems(gates):
        shape = _shape_of_use(_decode_use(parts), gpu_resources, gates)
        _add_devices(shape, devices, context.namespace, gpu_resources, gates)
        # Decoding suffices: to build the rules takes ten times as long and finds no further problem.
        _check_rules(shape, _decode_rules(parts), gates)
    return tuple(gates)


def _make(parts: bytes, context: TermContext, devices: _Devices, gpu_resources: tuple[str, ...]) -> Shaped:
    gates: list[Gate] = []
    shape = Shape()
    with _collect_problems(gates):
        shape = _shape_of_use(_decode_use(parts), gpu_resources, gates)
        shape = _add_devices(shape, devices, context.namespace, gpu_resources, gates)
        rules = _decode_rules(parts)
        _check_rules(shape, rules, gates)
        shape = _add_rules(shape, rules, context)
    return Shaped(shape, tuple(gates))


@contextmanager
def _collect_problems(gates: list[Gate]) -> Iterator[None]:
    """Converts decoding errors in the block into gates."""
    try:
        yield
    except msgspec.ValidationError as error:
        gates.append(Gate(GateKind.BAD_REQUEST, _place(error)))
    except QuantityError as error:
        gates.append(Gate(GateKind.BAD_REQUEST, str(error)))


def _place(error: msgspec.ValidationError) -> str:
    """Returns the field and the problem: "spec.tolerations[0].key: Expected `str | null`, got `int`"."""
    what, _, path = str(error).partition(" - at `$")
    return f"spec{path.rstrip('`')}: {what}"


# -- resources


def sum_request(use: _NodeUse | PodSpec) -> dict[str, int]:
    """Returns what a pod requests of its node; raises QuantityError."""
    inits, containers = use.init_containers or (), use.containers or ()
    return pod_request(
        [_read_resources(one.resources, f"spec.containers[{i}].") for i, one in enumerate(containers)],
        [_read_resources(one.resources, f"spec.initContainers[{i}].", is_sidecar(one)) for i, one in enumerate(inits)],
        _read_overhead(use.overhead),
        _read_resources(use.resources, "spec.") if use.resources is not None else None,
    )


def _shape_of_use(use: _NodeUse, gpu_resources: tuple[str, ...], gates: list[Gate]) -> Shape:
    inits = use.init_containers or []
    containers = use.containers or []
    request = sum_request(use)
    kinds = [name for name in gpu_resources if request.get(name)]
    if len(kinds) > 1:
        why = f"spec.containers: {' and '.join(kinds)} are requested; request one kind of GPU"
        gates.append(Gate(GateKind.BAD_REQUEST, why))
    staying = [*(one for one in inits if is_sidecar(one)), *containers]
    return Shape(
        request=tuple(sorted(request.items())),
        gpu_resource=kinds[0] if kinds else "",
        gpus=request[kinds[0]] if kinds else 0,
        host_ports=tuple(dict.fromkeys(_host_ports(staying, use.host_network))),
    )


def is_sidecar(init_container: Container) -> bool:
    """Returns whether an init container is a sidecar, which runs as long as the pod."""
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
    """Returns quantities as text: a template may have plain numbers."""
    return {name: str(amount) for name, amount in (amounts or {}).items()}


def _host_ports(containers: Sequence[Container], host_network: bool) -> Iterator[HostPort]:
    for container in containers:
        for port in container.ports or ():
            number = port.host_port or (port.container_port if host_network else 0)
            if number:
                yield HostPort(number, port.protocol or "TCP", port.host_ip or "0.0.0.0")


# -- GPUs


def _add_devices(
    shape: Shape, devices: _Devices, namespace: str, gpu_resources: tuple[str, ...], gates: list[Gate]
) -> Shape:
    """Returns the shape with the GPU share or map of its annotations; invalid ones become gates."""
    first = next(iter(gpu_resources), "")
    if devices.map is not None:
        try:
            found = _read_map(shape, devices, namespace)
        except MapError as error:
            gates.append(Gate(GateKind.BAD_MAP, f"{DEVICE_MAP}: {error}"))
            return shape
        # Without a request its GPUs count as those of the first kind.
        return replace(shape, device_map=found, gpu_resource=shape.gpu_resource or first)
    if devices.milli is not None:
        milli = read_number(devices.milli)
        if milli is None or not 0 < milli < MILLI:
            why = f"{devices.milli[:40]!a} is not a share of a GPU; write thousandths of a GPU, from 1 to {MILLI - 1}"
        elif shape.gpus:
            why = f"a share cannot be combined with whole GPUs; remove it, or the request for {shape.gpu_resource}"
        else:
            return replace(shape, gpu_milli=milli, gpu_resource=first)
        gates.append(Gate(GateKind.BAD_REQUEST, f"{GPU_MILLI}: {why}"))
    return shape


def _read_map(shape: Shape, devices: _Devices, namespace: str) -> DeviceMap:
    assert devices.map is not None
    entries = parse_map(devices.map)
    if devices.milli is not None:
        raise MapError(0, f"a map assigns whole GPUs; remove it, or {GPU_MILLI}")
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


# -- nodes


def _check_rules(shape: Shape, rules: _PlacementRules, gates: list[Gate]) -> None:
    """Adds a gate for each kind of rule of which the pod has too many."""
    affinity, constraints = rules.affinity or Affinity(), rules.topology_spread_constraints or []
    tolerations = len(rules.tolerations or ())
    found = find_too_many_rules(affinity, constraints, rules.node_selector or {}, tolerations, len(shape.host_ports))
    gates.extend(Gate(GateKind.BAD_REQUEST, problem) for problem in found)


def _add_rules(shape: Shape, rules: _PlacementRules, context: TermContext) -> Shape:
    affinity = rules.affinity or Affinity()
    constraints = rules.topology_spread_constraints or []
    node = affinity.node_affinity
    return replace(
        shape,
        node_labels=labels_equal(rules.node_selector or {}),
        node_terms=node_terms(node.required) if node is not None else None,
        tolerations=tuple(dict.fromkeys(_tolerations(rules.tolerations or []))),
        affinity=pod_terms(affinity.pod_affinity, context),
        anti_affinity=pod_terms(affinity.pod_anti_affinity, context),
        spread=spreads(constraints, context),
        preferences=tuple(preferences(affinity, constraints, context)),
    )


def _tolerations(written: Sequence[_Toleration]) -> Iterator[Toleration]:
    effects = {effect.value: effect for effect in TaintEffect}
    for one in written:
        # Operators and effects of newer servers tolerate nothing here: the pod waits, and its message says why.
        if (one.operator or "Equal") in ("Equal", "Exists") and (not one.effect or one.effect in effects):
            effect = effects[one.effect] if one.effect else None
            yield Toleration(one.key or "", one.operator == "Exists", one.value or "", effect)
