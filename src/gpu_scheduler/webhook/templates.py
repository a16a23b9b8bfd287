"""What makes pods: templates with our scheduler's name, minimums that can never be reached, and StatefulSets.

A StatefulSet makes its next pod when the one before is ready. If they are a gang, none is ready before all are there:
it would wait for itself for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from gpu_scheduler.gangs.contract import DEVICE_MAP, GANG, GANG_MIN
from gpu_scheduler.gangs.dialects import read_membership
from gpu_scheduler.gangs.dialects.annotation import read_gang_min
from gpu_scheduler.gangs.jobs import JobKind, SingleTemplateKind
from gpu_scheduler.gangs.jobs.job_kind import read_count
from gpu_scheduler.gangs.options import BadOptionError, as_dict, as_list, note
from gpu_scheduler.gangs.pods.device_map import MAX_LENGTH, MapError, parse_map, pod_index
from gpu_scheduler.k8s.objects import Json, Meta, OwnerReference, PodObject, PodSpec
from gpu_scheduler.webhook.containers import MAX_CONTAINERS, PodContainers, count_containers
from gpu_scheduler.webhook.findings import Findings
from gpu_scheduler.webhook.pods import KnownNodes, check_template, find_too_many_amounts
from gpu_scheduler.webhook.policy import AdmissionPolicy

MAX_TEMPLATES: Final = 1000
"""In an object, such as tasks of a Volcano Job. Nobody needs more, and a review with 10,000 would hold up others."""
_MAX_CONTAINERS: Final = 10 * MAX_CONTAINERS
_MAX_INDICES_LISTED: Final = 3

PARALLEL_WARNING: Final = (
    "spec.podManagementPolicy: set to Parallel, because the pods start together as a gang; "
    "made one by one, the first would wait for the others for ever"
)


class PodTemplate(NamedTuple):
    """Some pods that an object makes alike; `place` is where in the object it says so."""

    place: str
    pod: PodObject
    containers: PodContainers


class TemplateOwner(NamedTuple):
    """What makes pods: its kind, and the object."""

    kind: JobKind
    body: Json

    @property
    def spec(self) -> Json:
        """The spec, or {} where something else stands."""
        return as_dict(self.body.get("spec"))

    @property
    def is_deleted(self) -> bool:
        """Whether it only waits to be gone."""
        return bool(as_dict(self.body.get("metadata")).get("deletionTimestamp"))


def make_parallel(maker: TemplateOwner, policy: AdmissionPolicy) -> tuple[list[Json], str]:
    """For a StatefulSet whose pods are a gang of ours: the patch that has them made at once, and the warning."""
    order = maker.spec.get("podManagementPolicy")
    if order not in (None, "", "OrderedReady") or not any(map(_is_multi_pod_gang, _own_templates(maker, policy))):
        return [], ""
    operation = "replace" if "podManagementPolicy" in maker.spec else "add"
    return [{"op": operation, "path": "/spec/podManagementPolicy", "value": "Parallel"}], PARALLEL_WARNING


def check_template_owner(maker: TemplateOwner, policy: AdmissionPolicy, nodes: KnownNodes | None) -> Findings:
    """What there is to say about an object that makes pods of ours; nothing about others."""
    found = Findings()
    ours = list(islice(_own_templates(maker, policy), MAX_TEMPLATES + 1))
    if not ours:
        return found
    excess = _find_too_large(ours)
    if excess:
        found.refuse(excess)
        return found
    for template in ours:
        found.add(template.place, check_template(template.pod, template.containers, policy, nodes))
        _check_indices(maker, template, found)
    _check_minimums(maker, ours, found)
    return found


# -- templates


def _own_templates(maker: TemplateOwner, policy: AdmissionPolicy) -> Iterator[PodTemplate]:
    return (one for one in _templates(maker) if one.pod.spec.scheduler_name in policy.scheduler_names)


def _find_too_large(templates: list[PodTemplate]) -> str:
    """What to say of templates that are too much together, though each may be small; "" of any others."""
    if len(templates) > MAX_TEMPLATES:
        return f"spec: more than {MAX_TEMPLATES} templates of pods are too many; write at most {MAX_TEMPLATES}"
    containers = sum(count_containers(template.containers) for template in templates)
    if containers > _MAX_CONTAINERS:
        return f"spec: {containers} containers in its templates are too many; write at most {_MAX_CONTAINERS}"
    length = sum(len(note(template.pod.metadata, DEVICE_MAP)) for template in templates)
    if len(templates) > 1 and length > MAX_LENGTH:
        return f"spec: {DEVICE_MAP}: {length} characters in its templates are too many; write at most {MAX_LENGTH}"
    return find_too_many_amounts(template.pod.spec for template in templates)


def _templates(maker: TemplateOwner) -> Iterator[PodTemplate]:
    """The templates of an object; one that makes no sense is the API server's to refuse."""
    named = maker.kind.scheduler_name(maker.body)
    for template in maker.kind.templates(maker.body):
        body = as_dict(template.body.get("spec"))
        if named and not body.get("schedulerName"):
            body = {**body, "schedulerName": named}
        try:
            meta = msgspec.convert(template.body.get("metadata") or {}, Meta)
            pod = PodObject(meta, msgspec.convert(body, PodSpec))
            containers = msgspec.convert({"spec": body}, PodContainers)
        except msgspec.ValidationError:
            continue
        _set_owner(meta, maker)
        yield PodTemplate(template.field, pod, containers)


def _set_owner(meta: Meta, maker: TemplateOwner) -> None:
    """The metadata as the pods will have it: the object gives them their names, and it controls them."""
    of = as_dict(maker.body.get("metadata"))
    meta.name, meta.namespace = "", str(of.get("namespace") or "")
    owner = OwnerReference(kind=str(maker.body.get("kind")), name=str(of.get("name")), controller=True)
    meta.owner_references = [owner]


# -- maps


def _check_indices(maker: TemplateOwner, template: PodTemplate, found: Findings) -> None:
    """Whether the pods of a template with a map are going to have an index, and each of them its line."""
    text = note(template.pod.metadata, DEVICE_MAP)
    if not text or not isinstance(maker.kind, SingleTemplateKind) or pod_index(template.pod.metadata) is not None:
        return
    try:
        entries = parse_map(text)
    except MapError:
        return
    wanted = maker.kind.pod_indices(maker.spec)
    if wanted is None:
        indexed = "use a StatefulSet, or a Job with completionMode: Indexed"
        found.refuse(f"{template.place}: {DEVICE_MAP}: these pods have no index of their own; {indexed}")
        return
    first = islice((str(index) for index in wanted if index not in entries), _MAX_INDICES_LISTED)
    lacking = len(wanted) - sum(index in wanted for index in entries)
    if lacking > 0:
        more = f" and {lacking - _MAX_INDICES_LISTED} more" if lacking > _MAX_INDICES_LISTED else ""
        what = f"there is no line for pod index {', '.join(first)}{more}; add a line for each, or they will be refused"
        found.warn(f"{template.place}: {DEVICE_MAP}: {what}")


# -- minimums


def _is_multi_pod_gang(template: PodTemplate) -> bool:
    """Whether pods are a gang in which one waits for others."""
    if read_membership(template.pod).gang is None:
        return False
    text = note(template.pod.metadata, GANG_MIN)
    try:
        return not text or read_gang_min(text) > 1
    except BadOptionError:
        return False


def _check_minimums(maker: TemplateOwner, ours: list[PodTemplate], found: Findings) -> None:
    """Minimums beyond the pods that there will ever be."""
    total = sum(template.replicas for template in maker.kind.templates(maker.body))
    if total <= 0 or _is_controlled(maker):
        return  # scaled to nothing on purpose; or another object's means, as the ReplicaSets of a rollout are
    for template in ours:
        _check_gang_min(template, total, found)
    for minimum in maker.kind.minimums(maker.body):
        _check_reachable(minimum.field, minimum.value, minimum.pods, found)


def _check_gang_min(template: PodTemplate, total: int, found: Findings) -> None:
    try:
        minimum = read_gang_min(note(template.pod.metadata, GANG_MIN) or "1")
    except BadOptionError:
        return  # said already
    if minimum <= total:
        return
    place = f"{template.place}: {GANG_MIN}"
    if note(template.pod.metadata, GANG):
        found.warn(
            f"{place}: {minimum} pods start together, but only {total} come from here; others must join the gang"
        )
    else:
        _check_reachable(place, minimum, total, found)


def _check_reachable(place: str, minimum: object, total: int, found: Findings) -> None:
    if read_count(minimum, 0) > total:
        found.refuse(f"{place}: {minimum} pods must start together, but there are {total}; write at most {total}")


def _is_controlled(maker: TemplateOwner) -> bool:
    owners = as_list(as_dict(maker.body.get("metadata")).get("ownerReferences"))
    return any(owner.get("controller") for owner in owners)
