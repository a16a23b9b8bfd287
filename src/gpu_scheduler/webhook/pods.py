"""Checks of pods that name this scheduler, with the same messages that the scheduler would report later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from gpu_scheduler.base.text import closest, join
from gpu_scheduler.core.model import GateKind
from gpu_scheduler.gangs.contract import DEVICE_MAP, GANG, GANG_MIN, GPU_MILLI
from gpu_scheduler.gangs.dialects import read_membership
from gpu_scheduler.gangs.dialects.annotation import read_gang_min
from gpu_scheduler.gangs.dialects.volcano import GROUP_NAME
from gpu_scheduler.gangs.options import BadOptionError, find_bad_options, find_unknown_keys, refuse_namespace
from gpu_scheduler.gangs.pods.device_map import MapEntry, MapError, find_map_errors, parse_map, pod_index
from gpu_scheduler.gangs.pods.shapes import find_gates
from gpu_scheduler.k8s.objects import PodObject, PodSpec
from gpu_scheduler.webhook.containers import (
    AdmissionContainer,
    EnvVar,
    PodContainers,
    all_containers,
    find_too_many_containers,
)
from gpu_scheduler.webhook.denials import Denial
from gpu_scheduler.webhook.findings import Findings
from gpu_scheduler.webhook.injection import find_own_device_choices
from gpu_scheduler.webhook.policy import AdmissionPolicy


class KnownNodes(NamedTuple):
    """What the webhook knows of the nodes: the names that a map may use, and the resources that they offer."""

    names: frozenset[str]
    resources: frozenset[str]


MAX_AMOUNTS = 10_000
"""The most requests and limits of all pods of a review."""

_MAX_UNKNOWN_RESOURCES = 8
"""The most unknown resources of a pod that are compared with those of the nodes."""
_SHOWS_GPUS = "NVIDIA_VISIBLE_DEVICES"
_SHOWS_NONE = ("", "void", "none")


def check_pod(pod: PodObject, containers: PodContainers, policy: AdmissionPolicy, nodes: KnownNodes | None) -> Findings:
    """Checks a pod."""
    found = _check_pod(pod, containers, policy, nodes)
    _check_choices(pod, containers, policy, found)
    return found


def _check_pod(
    pod: PodObject, containers: PodContainers, policy: AdmissionPolicy, nodes: KnownNodes | None
) -> Findings:
    found = Findings()
    excess = find_too_many_containers(containers) or find_too_many_amounts([pod.spec])
    if excess:
        found.refuse(excess)
        return found
    text = (pod.metadata.annotations or {}).get(DEVICE_MAP)
    gates = find_gates(pod.spec, pod.metadata, policy.gpu_resources)
    found.refuse(*(gate.subject for gate in gates))
    if text is not None:
        if any(gate.kind is GateKind.BAD_MAP for gate in gates):
            found.refuse(*format_mistakes(find_map_errors(text)))
        else:
            _check_node(text, pod_index(pod.metadata), nodes, found)
    found.refuse(*policy.ceilings.find_problems(pod.metadata.namespace, pod.spec))
    _check_gang(pod, policy, found)
    if nodes is not None:
        found.warn(*_unknown_resources(pod.spec, nodes.resources))
    _check_bypasses(pod, containers, policy, found)
    return found


def find_too_many_amounts(specs: Iterable[PodSpec]) -> str:
    """The problem of pods with too many requests and limits, or ""."""
    listed = (one.resources for spec in specs for one in (*spec.containers, *(spec.init_containers or ()), spec))
    number = sum(len(some.requests or ()) + len(some.limits or ()) for some in listed if some is not None)
    if number <= MAX_AMOUNTS:
        return ""
    return f"spec.containers: {number} requests and limits are too many; write at most {MAX_AMOUNTS}"


def find_late_changes(new: PodObject, old: PodObject) -> Iterator[str]:
    """A problem for each change of the map or the share: running containers would keep the old value."""
    if _entry_of(new) != _entry_of(old):
        yield f"{DEVICE_MAP}: the GPUs of a pod cannot change once it exists; keep its line, or create the pod again"
    if (new.metadata.annotations or {}).get(GPU_MILLI) != (old.metadata.annotations or {}).get(GPU_MILLI):
        yield f"{GPU_MILLI}: the share of a pod cannot change once it exists; keep it, or create the pod again"


def _entry_of(pod: PodObject) -> MapEntry | str | None:
    """The entry of a pod in its map, the text of an invalid map, or None for a pod without a map."""
    text = (pod.metadata.annotations or {}).get(DEVICE_MAP)
    if text is None:
        return None
    index = pod_index(pod.metadata)
    try:
        return parse_map(text).get(index, text) if index is not None else text
    except MapError:
        return text


def check_template(
    pod: PodObject, containers: PodContainers, policy: AdmissionPolicy, nodes: KnownNodes | None
) -> Findings:
    """Checks a pod template: like a pod, except for what depends on the index of the pod."""
    annotations = dict(pod.metadata.annotations or {})
    text = annotations.pop(DEVICE_MAP, None)
    bare = PodObject(msgspec.structs.replace(pod.metadata, annotations=annotations), pod.spec)
    found = _check_pod(bare, containers, policy, nodes)
    _check_choices(pod, containers, policy, found)
    if text is not None:
        try:
            found.warn(*_unknown_nodes({entry.node for entry in parse_map(text).values()}, nodes))
        except MapError:
            found.refuse(*format_mistakes(find_map_errors(text)))
    return found


def format_mistakes(mistakes: Iterable[MapError]) -> Iterator[str]:
    """The mistakes of a map, with the name of its annotation in front."""
    return (f"{DEVICE_MAP}: {mistake}" for mistake in mistakes)


def _check_node(text: str, index: int | None, nodes: KnownNodes | None, found: Findings) -> None:
    entry = parse_map(text).get(index) if index is not None else None
    if entry is not None:
        found.warn(*_unknown_nodes({entry.node}, nodes))


def _unknown_nodes(named: set[str], nodes: KnownNodes | None) -> Iterator[str]:
    unknown = sorted(name for name in named if name not in nodes.names) if nodes is not None else ()
    if unknown:
        waits = "the pod waits until a node has that name or that gpu-node-name label"
        yield f"{DEVICE_MAP}: there is no node {join(unknown)}; {waits}"


def _unknown_resources(spec: PodSpec, offered: frozenset[str]) -> Iterator[str]:
    """A warning for each resource that no node offers and that looks like a misspelt one.

    Any other may be offered by a node that is still to be added.
    """
    asked = {
        name: f"spec.{field}[{number}].resources"
        for field, containers in (("initContainers", spec.init_containers or ()), ("containers", spec.containers))
        for number, container in enumerate(containers)
        if container.resources is not None
        for name in (*(container.resources.requests or ()), *(container.resources.limits or ()))
        if "/" in name and name not in offered
    }
    for name, field in islice(asked.items(), _MAX_UNKNOWN_RESOURCES):
        near = closest(name, offered)
        if near:
            yield f"{field}: no node has {name}; did you mean {near}?"


def _check_gang(pod: PodObject, policy: AdmissionPolicy, found: Findings) -> None:
    """Checks the annotations about gangs. The scheduler reports what depends on other pods or on gang objects."""
    annotations: Mapping[str, str] = pod.metadata.annotations or {}
    if not annotations:
        return
    problem = read_membership(pod).problem
    if problem:
        found.refuse(problem)
    group = annotations.get(GROUP_NAME, "")
    if "/" in group:
        found.refuse(refuse_namespace(GROUP_NAME, group))
    if annotations.get(GANG_MIN):
        try:
            read_gang_min(annotations[GANG_MIN], policy.ceilings.max_members)
        except BadOptionError as error:
            found.refuse(str(error))
    elif annotations.get(GANG):
        found.warn(f"{GANG_MIN}: missing; at least one pod of the gang must say how many start together")
    found.refuse(*find_bad_options(annotations), *policy.ceilings.find_option_problems(annotations))
    found.warn(*find_unknown_keys(annotations))


def _check_bypasses(pod: PodObject, containers: PodContainers, policy: AdmissionPolicy, found: Findings) -> None:
    """Checks for settings that bypass the scheduler."""
    if pod.spec.node_name:
        what = "spec.nodeName: bypasses the scheduler and may use GPUs that other pods hold; leave it out"
        found.deny_or_warn(Denial.NODE_NAME, what, policy)
    for field, number, container in all_containers(containers):
        path = f"spec.{field}[{number}]"
        if any(_shows_gpus(variable) for variable in container.env or ()):
            what = f"{path}.env: {_SHOWS_GPUS} may show GPUs that the pod was not assigned; leave it out"
            found.deny_or_warn(Denial.NVIDIA_VISIBLE_DEVICES, what, policy)
        elif Denial.NVIDIA_VISIBLE_DEVICES in policy.deny and _may_import(container):
            # The content of a ConfigMap or Secret is not known here, and may change before the container starts.
            found.warn(f"{path}.envFrom: may set {_SHOWS_GPUS}, which is not allowed here; make sure that it does not")
        context = container.security_context
        if context is not None and context.privileged:
            what = f"{path}.securityContext.privileged: a privileged container can use every GPU of its node"
            found.deny_or_warn(Denial.PRIVILEGED, f"{what}; leave it out", policy)


def _check_choices(pod: PodObject, containers: PodContainers, policy: AdmissionPolicy, found: Findings) -> None:
    if not found.problems:  # too many containers to check may be one of them
        found.warn(*find_own_device_choices(pod, all_containers(containers), policy))


def _shows_gpus(variable: EnvVar) -> bool:
    return variable.name == _SHOWS_GPUS and (
        variable.value_from is not None or (variable.value or "") not in _SHOWS_NONE
    )


def _may_import(container: AdmissionContainer) -> bool:
    """Whether the variable may come from a ConfigMap or a Secret; a value in `env` takes precedence."""
    sources = container.env_from or ()
    return any(_SHOWS_GPUS.startswith(source.prefix or "") for source in sources) and not any(
        variable.name == _SHOWS_GPUS for variable in container.env or ()
    )
