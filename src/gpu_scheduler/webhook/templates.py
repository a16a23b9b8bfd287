"""Checks of objects with pod templates: Deployments, ReplicaSets, StatefulSets, Jobs, Volcano and Kubeflow jobs.

A StatefulSet with the default pod management policy creates its next pod when the previous one is ready. If its pods
are a gang, none is ready before all exist: the StatefulSet would deadlock. So its policy is changed to Parallel.
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
from gpu_scheduler.gangs.options import MAX_ROLES, BadOptionError, annotation, as_dict, as_list
from gpu_scheduler.gangs.pods.device_map import MAX_LENGTH, MapError, parse_map, pod_index
from gpu_scheduler.k8s.objects import Json, Meta, OwnerReference, PodObject, PodSpec
from gpu_scheduler.webhook.containers import MAX_CONTAINERS, PodContainers, count_containers
from gpu_scheduler.webhook.findings import Findings
from gpu_scheduler.webhook.pods import KnownNodes, check_template, find_too_many_amounts
from gpu_scheduler.webhook.policy import AdmissionPolicy

MAX_TEMPLATES: Final = MAX_ROLES
"""The most templates of an object, such as tasks of a Volcano Job: each is a role of its gang."""
_MAX_CONTAINERS: Final = 10 * MAX_CONTAINERS
_MAX_INDICES_LISTED: Final = 3

PARALLEL_WARNING: Final = (
    "spec.podManagementPolicy: set to Parallel, because the pods are a gang and start together; "
    "with OrderedReady the first pod would wait for the others without end"
)


class PodTemplate(NamedTuple):
    """A pod template and its field in the object."""

    field: str
    pod: PodObject
    containers: PodContainers


class TemplateOwner(NamedTuple):
    """An object with pod templates, and its kind."""

    kind: JobKind
    body: Json

    @property
    def spec(self) -> Json:
        """The spec, or {} if it is not an object."""
        return as_dict(self.body.get("spec"))

    @property
    def is_deleted(self) -> bool:
        """Whether the object is being deleted."""
        return bool(as_dict(self.body.get("metadata")).get("deletionTimestamp"))


def make_parallel(owner: TemplateOwner, policy: AdmissionPolicy) -> tuple[list[Json], str]:
    """The patch that lets a StatefulSet create all pods of a gang at once, and the warning about it."""
    order = owner.spec.get("podManagementPolicy")
    templates, most = _own_templates(owner, policy), policy.ceilings.max_members
    if order not in (None, "", "OrderedReady") or not any(_is_multi_pod_gang(one, most) for one in templates):
        return [], ""
    operation = "replace" if "podManagementPolicy" in owner.spec else "add"
    return [{"op": operation, "path": "/spec/podManagementPolicy", "value": "Parallel"}], PARALLEL_WARNING


def check_template_owner(owner: TemplateOwner, policy: AdmissionPolicy, nodes: KnownNodes | None) -> Findings:
    """Checks the templates of an object that name this scheduler; finds nothing in any others."""
    found = Findings()
    templates = list(islice(_own_templates(owner, policy), MAX_TEMPLATES + 1))
    if not templates:
        return found
    excess = _find_too_large(templates)
    if excess:
        found.refuse(excess)
        return found
    for template in templates:
        found.add(template.field, check_template(template.pod, template.containers, policy, nodes))
        _check_indices(owner, template, found)
    _check_minimums(owner, templates, policy, found)
    _check_priority_class(owner, policy, found)
    return found


# -- templates


def _own_templates(owner: TemplateOwner, policy: AdmissionPolicy) -> Iterator[PodTemplate]:
    return (one for one in _templates(owner) if one.pod.spec.scheduler_name in policy.scheduler_names)


def _find_too_large(templates: list[PodTemplate]) -> str:
    """The problem of templates that are too large together, or ""."""
    if len(templates) > MAX_TEMPLATES:
        field = templates[-1].field
        return f"{field}: more than {MAX_TEMPLATES} pod templates are too many; write at most {MAX_TEMPLATES}"
    containers = sum(count_containers(template.containers) for template in templates)
    if containers > _MAX_CONTAINERS:
        return f"spec: {containers} containers in pod templates are too many; write at most {_MAX_CONTAINERS}"
    length = sum(len(annotation(template.pod.metadata, DEVICE_MAP)) for template in templates)
    if len(templates) > 1 and length > MAX_LENGTH:
        return f"spec: {DEVICE_MAP}: {length} characters in pod templates are too many; write at most {MAX_LENGTH}"
    return find_too_many_amounts(template.pod.spec for template in templates)


def _templates(owner: TemplateOwner) -> Iterator[PodTemplate]:
    """The templates of an object that can be decoded. The API server refuses any others."""
    job_scheduler = owner.kind.scheduler_name(owner.body)
    for template in owner.kind.templates(owner.body):
        body = as_dict(template.body.get("spec"))
        if job_scheduler and not body.get("schedulerName"):
            body = {**body, "schedulerName": job_scheduler}
        try:
            meta = msgspec.convert(template.body.get("metadata") or {}, Meta)
            pod = PodObject(meta, msgspec.convert(body, PodSpec))
            containers = msgspec.convert({"spec": body}, PodContainers)
        except msgspec.ValidationError:
            continue
        _set_owner(meta, owner)
        yield PodTemplate(template.field, pod, containers)


def _set_owner(meta: Meta, owner: TemplateOwner) -> None:
    """Sets the metadata that the pods will have: no name yet, and the object as controller."""
    of = as_dict(owner.body.get("metadata"))
    meta.name, meta.namespace = "", str(of.get("namespace") or "")
    controller = OwnerReference(kind=str(owner.body.get("kind")), name=str(of.get("name")), controller=True)
    meta.owner_references = [controller]


# -- maps


def _check_indices(owner: TemplateOwner, template: PodTemplate, found: Findings) -> None:
    """Checks that pods of a template with a map will have an index, and that the map has a line for each."""
    text = annotation(template.pod.metadata, DEVICE_MAP)
    if not text or not isinstance(owner.kind, SingleTemplateKind) or pod_index(template.pod.metadata) is not None:
        return
    try:
        entries = parse_map(text)
    except MapError:
        return
    wanted = owner.kind.pod_indices(owner.spec)
    if wanted is None:
        indexed = "use a StatefulSet, or a Job with completionMode: Indexed"
        found.refuse(f"{template.field}: {DEVICE_MAP}: these pods have no index; {indexed}")
        return
    first = islice((str(index) for index in wanted if index not in entries), _MAX_INDICES_LISTED)
    missing = len(wanted) - sum(index in wanted for index in entries)
    if missing > 0:
        more = f" and {missing - _MAX_INDICES_LISTED} more" if missing > _MAX_INDICES_LISTED else ""
        what = f"there is no line for pod index {', '.join(first)}{more}; add one for each, or these pods are refused"
        found.warn(f"{template.field}: {DEVICE_MAP}: {what}")


# -- minimums


def _is_multi_pod_gang(template: PodTemplate, most: int) -> bool:
    """Whether pods of a template wait for each other before they start."""
    if read_membership(template.pod).gang is None:
        return False
    text = annotation(template.pod.metadata, GANG_MIN)
    try:
        return not text or read_gang_min(text, most) > 1
    except BadOptionError:
        return False


def _check_minimums(
    owner: TemplateOwner, templates: list[PodTemplate], policy: AdmissionPolicy, found: Findings
) -> None:
    """Refuses minimums above the number of pods that the object can create, or that a gang may have."""
    total = sum(template.replicas for template in owner.kind.templates(owner.body))
    if total <= 0 or _is_controlled(owner):
        return  # scaled to zero, or controlled by another object, as the ReplicaSets of a rollout are
    for template in templates:
        _check_gang_min(template, total, policy, found)
    for minimum in owner.kind.minimums(owner.body):
        _check_reachable(minimum.field, minimum.value, minimum.pods, found)
        problem = policy.ceilings.find_minimum_problem(read_count(minimum.value, 0), minimum.field)
        if problem:
            found.refuse(problem)


def _check_gang_min(template: PodTemplate, total: int, policy: AdmissionPolicy, found: Findings) -> None:
    try:
        minimum = read_gang_min(annotation(template.pod.metadata, GANG_MIN) or "1", policy.ceilings.max_members)
    except BadOptionError:
        return  # check_template reports it
    if minimum <= total:
        return
    field = f"{template.field}: {GANG_MIN}"
    if annotation(template.pod.metadata, GANG):
        found.warn(
            f"{field}: {minimum} pods must start together, but this object creates {total}; others must join the gang"
        )
    else:
        _check_reachable(field, minimum, total, found)


def _check_reachable(field: str, minimum: object, total: int, found: Findings) -> None:
    if read_count(minimum, 0) > total:
        found.refuse(f"{field}: {minimum} pods must start together, but there are {total}; write at most {total}")


def _check_priority_class(owner: TemplateOwner, policy: AdmissionPolicy, found: Findings) -> None:
    """Refuses a priority class of the object's own PodGroup that its namespace may not use."""
    namespace = str(as_dict(owner.body.get("metadata")).get("namespace") or "")
    declared = owner.kind.priority_class(owner.body)
    problem = policy.ceilings.find_class_problem(namespace, declared.name, declared.field)
    if problem:
        found.refuse(problem)


def _is_controlled(owner: TemplateOwner) -> bool:
    owners = as_list(as_dict(owner.body.get("metadata")).get("ownerReferences"))
    return any(reference.get("controller") for reference in owners)
