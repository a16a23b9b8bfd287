"""Pods of ours: what is wrong with one, in the words in which the scheduler would say it later."""

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
from gpu_scheduler.gangs.pods.device_map import MapEntry, MapError, find_mistakes, parse_map, pod_index
from gpu_scheduler.gangs.pods.shapes import find_gates
from gpu_scheduler.k8s.objects import PodObject, PodSpec
from gpu_scheduler.webhook.containers import (
    AdmissionContainer,
    EnvVar,
    PodContainers,
    all_containers,
    find_too_many_containers,
)
from gpu_scheduler.webhook.findings import Findings
from gpu_scheduler.webhook.injection import find_own_device_choices
from gpu_scheduler.webhook.policy import AdmissionPolicy, Denial


class KnownNodes(NamedTuple):
    """What the webhook knows of the nodes: the names that a map may use, and the resources that they offer."""

    names: frozenset[str]
    resources: frozenset[str]


MAX_AMOUNTS = 10_000
"""Requests and limits in the pods of a review, for the reason that there are not more containers either."""

_MAX_UNKNOWN_RESOURCES = 8
"""Each is compared with every resource of the nodes."""
_SHOWS_GPUS = "NVIDIA_VISIBLE_DEVICES"
_SHOWS_NONE = ("", "void", "none")


def check_pod(pod: PodObject, containers: PodContainers, policy: AdmissionPolicy, nodes: KnownNodes | None) -> Findings:
    """What there is to say about a pod."""
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
            found.refuse(*format_mistakes(find_mistakes(text)))
        else:
            _check_node(text, pod_index(pod.metadata), nodes, found)
    _check_gang(pod, found)
    if nodes is not None:
        found.warn(*_unknown_resources(pod.spec, nodes.resources))
    _check_bypasses(pod, containers, policy, found)
    return found


def find_too_many_amounts(specs: Iterable[PodSpec]) -> str:
    """What to say of pods that ask for too many resources; "" of any others."""
    listed = (one.resources for spec in specs for one in (*spec.containers, *(spec.init_containers or ()), spec))
    number = sum(len(some.requests or ()) + len(some.limits or ()) for some in listed if some is not None)
    if number <= MAX_AMOUNTS:
        return ""
    return f"spec.containers: {number} requests and limits are too many; write at most {MAX_AMOUNTS}"


def find_late_changes(new: PodObject, old: PodObject) -> Iterator[str]:
    """What was settled when a pod was made, and is being changed: its containers would go on with what they got."""
    if _map_entry(new) != _map_entry(old):
        yield f"{DEVICE_MAP}: the pod got its GPUs when it was made; leave its line as it is, or make the pod again"
    if (new.metadata.annotations or {}).get(GPU_MILLI) != (old.metadata.annotations or {}).get(GPU_MILLI):
        yield f"{GPU_MILLI}: the pod got its share when it was made; leave it as it is, or make the pod again"


def _map_entry(pod: PodObject) -> MapEntry | str | None:
    """The entry of a pod in its map; a map that cannot be read as it is, None for a pod without."""
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
    """What there is to say about a template: as of a pod, except for what depends on the pod's index."""
    notes = dict(pod.metadata.annotations or {})
    text = notes.pop(DEVICE_MAP, None)
    bare = PodObject(msgspec.structs.replace(pod.metadata, annotations=notes), pod.spec)
    found = _check_pod(bare, containers, policy, nodes)
    _check_choices(pod, containers, policy, found)
    if text is not None:
        try:
            found.warn(*_unknown_nodes({entry.node for entry in parse_map(text).values()}, nodes))
        except MapError:
            found.refuse(*format_mistakes(find_mistakes(text)))
    return found


def format_mistakes(mistakes: Iterable[MapError]) -> Iterator[str]:
    """Mistakes of a map with the annotation that it stands in."""
    return (f"{DEVICE_MAP}: {mistake}" for mistake in mistakes)


def _check_node(text: str, index: int | None, nodes: KnownNodes | None, found: Findings) -> None:
    entry = parse_map(text).get(index) if index is not None else None
    if entry is not None:
        found.warn(*_unknown_nodes({entry.node}, nodes))


def _unknown_nodes(named: set[str], nodes: KnownNodes | None) -> Iterator[str]:
    unknown = sorted(name for name in named if name not in nodes.names) if nodes is not None else ()
    if unknown:
        waits = "its pods wait until there is one of that name or with that label gpu-node-name"
        yield f"{DEVICE_MAP}: there is no node {join(unknown)}; {waits}"


def _unknown_resources(spec: PodSpec, offered: frozenset[str]) -> Iterator[str]:
    """The resources that no node offers and that look like a misspelt one.

    Others may be offered by a node that is still to come.
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


def _check_gang(pod: PodObject, found: Findings) -> None:
    """The annotations about gangs; what depends on other pods or on objects is for the scheduler to say."""
    notes: Mapping[str, str] = pod.metadata.annotations or {}
    if not notes:
        return
    problem = read_membership(pod).problem
    if problem:
        found.refuse(problem)
    group = notes.get(GROUP_NAME, "")
    if "/" in group:
        found.refuse(refuse_namespace(GROUP_NAME, group))
    if notes.get(GANG_MIN):
        try:
            read_gang_min(notes[GANG_MIN])
        except BadOptionError as error:
            found.refuse(str(error))
    elif notes.get(GANG):
        found.warn(f"{GANG_MIN}: missing; unless another pod of the gang says how many start together, none will")
    found.refuse(*find_bad_options(notes))
    found.warn(*find_unknown_keys(notes))


def _check_bypasses(pod: PodObject, containers: PodContainers, policy: AdmissionPolicy, found: Findings) -> None:
    """What pods of ours should better not do."""
    if pod.spec.node_name:
        what = "spec.nodeName: it takes the pod past the scheduler, onto GPUs that others may hold; leave it out"
        found.deny_or_warn(Denial.NODE_NAME, what, policy)
    for field, number, container in all_containers(containers):
        place = f"spec.{field}[{number}]"
        if any(_shows_gpus(variable) for variable in container.env or ()):
            what = f"{place}.env: {_SHOWS_GPUS} may show GPUs that the pod was not given; leave it out"
            found.deny_or_warn(Denial.NVIDIA_VISIBLE_DEVICES, what, policy)
        elif Denial.NVIDIA_VISIBLE_DEVICES in policy.deny and _may_import(container):
            # What is in a ConfigMap or a Secret is not known here, and may change before the container starts.
            found.warn(
                f"{place}.envFrom: it may bring {_SHOWS_GPUS}, which is refused here; make sure that it does not"
            )
        context = container.security_context
        if context is not None and context.privileged:
            what = f"{place}.securityContext.privileged: a privileged container reaches every GPU of its node"
            found.deny_or_warn(Denial.PRIVILEGED, f"{what}; leave it out", policy)


def _check_choices(pod: PodObject, containers: PodContainers, policy: AdmissionPolicy, found: Findings) -> None:
    if not found.problems:  # one of which may be that there are too many containers to look at
        found.warn(*find_own_device_choices(pod, all_containers(containers), policy))


def _shows_gpus(variable: EnvVar) -> bool:
    return variable.name == _SHOWS_GPUS and (
        variable.value_from is not None or (variable.value or "") not in _SHOWS_NONE
    )


def _may_import(container: AdmissionContainer) -> bool:
    """Whether the variable may come from a ConfigMap or a Secret: one that is written in `env` is the stronger one."""
    sources = container.env_from or ()
    return any(_SHOWS_GPUS.startswith(source.prefix or "") for source in sources) and not any(
        variable.name == _SHOWS_GPUS for variable in container.env or ()
    )
