"""Decoding of API pods and nodes to the core's values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpu_scheduler.base.text import one_line
from gpu_scheduler.core.cluster.device_table import MAX_DEVICES
from gpu_scheduler.core.model import Failure, Gate, GateKind, Node, Pod, PodPhase, Shape, Taint, TaintEffect
from gpu_scheduler.gangs.ceilings import NO_CEILINGS, Ceilings
from gpu_scheduler.gangs.contract import ASSIGNS_DEVICES, ATTEMPT, CHARGED_QUEUE, DEVICES, UNHEALTHY_DEVICES
from gpu_scheduler.gangs.dialects import Membership
from gpu_scheduler.gangs.pods.annotations import read_devices
from gpu_scheduler.gangs.pods.device_map import pod_index, read_number
from gpu_scheduler.gangs.pods.shapes import read_shape, with_volumes
from gpu_scheduler.k8s.objects import Meta, NodeObject, OwnerReference, PodObject
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import read_amounts
from gpu_scheduler.k8s.times import parse_time
from gpu_scheduler.scheduler.decoding.resize import held_spec
from gpu_scheduler.scheduler.decoding.volumes import VolumeClaims

_MIRROR: Final = "kubernetes.io/config.mirror"
_PHASES: Final = {phase.value: phase for phase in PodPhase}
_EFFECTS: Final = {effect.value: effect for effect in TaintEffect}
_DEFAULT_GRACE: Final = 30
_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Settings of decoding: the scheduler names that are ours, the names of GPU resources, what tenants may write."""

    scheduler_names: frozenset[str]
    gpu_resources: tuple[str, ...]
    ceilings: Ceilings = NO_CEILINGS


def decode_pod(
    raw: PodObject, member: Membership, claims: VolumeClaims, labels: Mapping[str, str], options: DecodeOptions
) -> Pod:
    """Decodes a pod in a namespace with these labels. Never raises: an invalid value becomes a gate."""
    meta, spec, status = raw.metadata, raw.spec, raw.status
    annotations = meta.annotations or _NOTHING
    node = spec.node_name or None
    ours = spec.scheduler_name in options.scheduler_names
    shape, wrong = read_shape(held_spec(raw) if node else spec, meta, options.gpu_resources, ours)
    gates: tuple[Gate, ...] = ()
    if node is None:
        # A bound pod has no gates, and its volumes must not become part of a shape that siblings share.
        volumes = claims.constraints(raw)
        if volumes.terms:
            shape = with_volumes(shape, volumes.terms)
        unclear = (Gate(GateKind.BAD_REQUEST, member.problem),) if member.problem else ()
        barred = _forbidden(raw, options.ceilings) if ours else ()
        gates = (*wrong, *unclear, *barred, *_pod_gates(raw), *volumes.gates)
    deadline = spec.active_deadline_seconds
    return Pod(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        shape=shape,
        labels=meta.labels or _NOTHING,
        namespace_labels=labels,
        gang=member.gang,
        role=member.role,
        phase=_PHASES.get(status.phase) or (PodPhase.PENDING if node is None else PodPhase.RUNNING),
        node=node,
        devices=_devices(annotations, shape) if node is not None else None,
        attempt=attempt_of(meta),
        version=meta.resource_version,
        priority=_priority(raw, options),
        preempts=spec.preemption_policy != "Never",
        queue=member.queue,
        charged_queue=annotations.get(CHARGED_QUEUE) if node is not None else None,
        created=parse_time(meta.creation_timestamp) or 0.0,
        index=pod_index(meta) or 0,
        ours=ours,
        controlled=_controller(meta) is not None,
        permanent=not ours and _is_permanent(meta, node),
        deleting=options.ceilings.is_leaving(meta),
        gates=gates,
        nominated_node=(status.nominated_node_name or None) if not ours else None,
        grace=_grace(raw),
        started=parse_time(status.start_time),
        deadline=None if deadline is None else float(deadline),
        failure=_failure(raw) if status.phase == PodPhase.FAILED.value else None,
    )


def _forbidden(raw: PodObject, ceilings: Ceilings) -> tuple[Gate, ...]:
    """Gates for what the administrator does not allow in this namespace."""
    problems = ceilings.find_problems(raw.metadata.namespace, raw.spec)
    return tuple(Gate(GateKind.NOT_ALLOWED, problem) for problem in problems)


def _priority(raw: PodObject, options: DecodeOptions) -> int:
    """The priority of a pod; one that its namespace may not use raises no pod of ours above 0."""
    priority = raw.spec.priority or 0
    ours = raw.spec.scheduler_name in options.scheduler_names
    barred = ours and options.ceilings.find_priority_problem(raw.metadata.namespace, raw.spec)
    return min(priority, 0) if barred else priority


def _grace(raw: PodObject) -> float:
    """How long a pod may take to end: its own grace period, or a longer one that its deletion asked for."""
    own, asked = raw.spec.termination_grace_period_seconds, raw.metadata.deletion_grace_period_seconds
    return float(max(_DEFAULT_GRACE if own is None else own, asked or 0))


def _failure(raw: PodObject) -> Failure:
    """How a pod failed: the first container that ended with an error, else the status reason of the pod."""
    status = raw.status
    for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        ended = one.state.terminated if one.state is not None else None
        if ended is not None and ended.exit_code:
            why = f" ({ended.reason})" if ended.reason and ended.reason != "Error" else ""
            several = len(raw.spec.containers) + len(raw.spec.init_containers or ()) > 1
            text = f"container {one.name} exited with code {ended.exit_code}{why}"
            return Failure(one_line(text, 200), one.name if several else "")
    return Failure(one_line(status.reason or "", 200))


def attempt_of(meta: Meta) -> int:
    """How many committed binds of a pod have been given up."""
    return read_number((meta.annotations or _NOTHING).get(ATTEMPT, "")) or 0


def decode_node(raw: NodeObject, options: DecodeOptions) -> Node:
    """Decodes a node; amounts that cannot be parsed are omitted."""
    meta, status = raw.metadata, raw.status
    labels = meta.labels or _NOTHING
    capacity = _amounts(status.capacity)
    gpu_resource = next((name for name in options.gpu_resources if capacity.get(name)), "")
    gpus = capacity.get(gpu_resource, 0)
    return Node(
        name=meta.name,
        allocatable=_amounts(status.allocatable),
        labels=labels,
        taints=tuple(_taints(raw)),
        unschedulable=raw.spec.unschedulable,
        ready=any(one.type == "Ready" and one.status == "True" for one in status.conditions or ()),
        gpu_resource=gpu_resource,
        gpus=gpus,
        assigns_devices=labels.get(ASSIGNS_DEVICES) == "true",
        unhealthy=_unhealthy(meta, min(gpus, MAX_DEVICES)),
    )


def _is_permanent(meta: Meta, node: str | None) -> bool:
    """Whether a pod is static, or a bound one of a DaemonSet."""
    owner = _controller(meta)
    return _MIRROR in (meta.annotations or _NOTHING) or (
        node is not None and owner is not None and owner.kind == "DaemonSet"
    )


def _pod_gates(raw: PodObject) -> Iterator[Gate]:
    """Gates from the pod's own spec: resource claims and scheduling gates."""
    spec = raw.spec
    for claim in spec.resource_claims or ():
        why = f"resourceclaim {claim.get('name', '')}: devices of resource claims are not allocated here"
        yield Gate(GateKind.RESOURCE_CLAIM, f"{why}; ask for a GPU in resources.limits")
    for gate in spec.scheduling_gates or ():
        yield Gate(GateKind.SCHEDULING_GATE, str(gate.get("name", "")))


def _devices(annotations: Mapping[str, str], shape: Shape) -> tuple[int, ...] | None:
    """The devices of a bound pod: as recorded, else those of its device map, which applies on every node."""
    recorded = read_devices(annotations.get(DEVICES), shape)
    return recorded if recorded is not None or shape.device_map is None else shape.device_map.devices


def _controller(meta: Meta) -> OwnerReference | None:
    """The controller that would recreate the pod."""
    return next((owner for owner in meta.owner_references or () if owner.controller), None)


def _amounts(quantities: Mapping[str, str | int | float] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, amount in (quantities or {}).items():
        try:
            found |= read_amounts({name: str(amount)}, "status")
        except QuantityError:
            continue
    return found


def _taints(raw: NodeObject) -> Iterator[Taint]:
    for taint in raw.spec.taints or ():
        effect = _EFFECTS.get(taint.effect)
        if effect is not None:
            yield Taint(taint.key, taint.value or "", effect)


def _unhealthy(meta: Meta, gpus: int) -> frozenset[int]:
    """The devices that the node's annotation marks as unhealthy."""
    words = (meta.annotations or _NOTHING).get(UNHEALTHY_DEVICES, "").replace(",", " ").split()
    numbers = (read_number(word) for word in words)
    return frozenset(number for number in numbers if number is not None and number < gpus)
