"""Expected members: pods that do not exist yet, and what they will request according to the job that creates them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from gpu_scheduler.core.model import Expected
from gpu_scheduler.gangs.dialects.dialect import GangContext
from gpu_scheduler.gangs.jobs import JobKind, find_owner_kind, is_job_group
from gpu_scheduler.gangs.options import MAX_ROLES, BadOptionError, as_dict
from gpu_scheduler.gangs.roles import LEADERS, role_of
from gpu_scheduler.gangs.spark import expect_executors, read_executors, shape_share
from gpu_scheduler.k8s.objects import Json, Meta, OwnerReference, PodObject, PodSpec, RawObject
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import read_amounts


class _Template(NamedTuple):
    """Pods that a job creates from one template."""

    role: str
    replicas: int
    pod: PodObject


def min_resources(raw: RawObject) -> dict[str, str]:
    """Returns the group's `minResources`, without the names of quota fields that Volcano's own jobs add."""
    found: dict[str, str] = {}
    for name, amount in as_dict(raw.spec.get("minResources")).items():
        kind, _, rest = name.partition(".")
        if name == "pods" or name.startswith("count/") or kind == "limits":
            continue
        if kind == "requests":
            found.setdefault(rest, str(amount))
        else:
            found[name] = str(amount)
    return found


def expect_members(
    raw: RawObject, minimum: int, tasks: Mapping[str, int], context: GangContext, pods: Collection[PodObject]
) -> tuple[Expected, ...]:
    """Returns the members that must fit before a group may start; none without minResources.

    The owner job's templates say what they request. Without templates each member takes an equal part of minResources,
    but only until the first pod exists: it is unknown which of the parts that pod is. A Spark driver is the exception:
    it creates its executors itself, so in a group with a minimum of 1 it needs its own request only, and the rest of
    minResources is for the executors.
    """
    share = min_resources(raw)
    job = _owner_job(raw, context)
    if not share or job == {}:
        return ()  # a guess while the job is being fetched would reserve the wrong slots
    templates = _read_templates(raw, job or {})
    if len(templates) > MAX_ROLES:
        what = f"{len(templates)} pod templates of the job are too many"
        raise BadOptionError(f"spec.minResources: {what}; write at most {MAX_ROLES} in the job")
    shapes = [context.shape_of(template.pod.spec, template.pod.metadata) for template in templates]
    if templates and None not in shapes:
        counts = _count_members(templates, minimum, tasks)
        known = zip(templates, shapes, counts, strict=True)
        return tuple(Expected(s, count, t.role) for t, s, count in known if s is not None and count)
    try:
        amounts = read_amounts(share, "spec.minResources")
    except QuantityError as error:
        raise BadOptionError(str(error)) from None
    executors = read_executors(raw, context)
    if pods:
        return expect_executors(amounts, executors, pods, context) if minimum == 1 else ()
    count = executors or minimum
    shape = shape_share(amounts, count, PodSpec(), raw.metadata.namespace, context)
    return (Expected(shape, count),) if shape is not None else ()


def is_made_for_job(raw: RawObject, context: GangContext) -> bool:
    """Returns whether the group has an owner job that has been read."""
    return bool(_owner_job(raw, context))


def is_owned_by_job(raw: RawObject) -> bool:
    """Returns whether the group names an owner of the API group of a job kind, whether or not it has been read."""
    return any(is_job_group(owner.api_version.partition("/")[0]) for owner in raw.metadata.owner_references or ())


def job_scheduler(raw: RawObject, context: GangContext) -> str:
    """Returns the scheduler that the pods of the owner job will name; "" when the job does not say."""
    job, kind = _owner_job(raw, context), _owner_kind(raw)
    if not job or kind is None:
        return ""
    named = (as_dict(template.body.get("spec")).get("schedulerName") for template in kind.templates(job))
    return next((str(name) for name in named if name), "") or kind.scheduler_name(job)


def _owner(raw: RawObject) -> OwnerReference | None:
    """Returns the controller of a group, else its first owner."""
    owners = sorted(raw.metadata.owner_references or (), key=lambda owner: not owner.controller)
    return owners[0] if owners else None


def _owner_kind(raw: RawObject) -> JobKind | None:
    owner = _owner(raw)
    return find_owner_kind(owner) if owner is not None else None


def _owner_job(raw: RawObject, context: GangContext) -> Json | None:
    """Returns the owner job: {} while it is being fetched, None where there is none or it cannot be read."""
    owner = _owner(raw)
    return context.owner_of(raw.metadata.namespace, owner) if owner is not None else None


def _read_templates(raw: RawObject, job: Json) -> list[_Template]:
    """Decodes the templates of the owner job; returns none when one of them cannot be decoded."""
    found: list[_Template] = []
    kind = _owner_kind(raw)
    for template in kind.templates(job) if kind is not None else ():
        try:
            meta = msgspec.convert(template.body.get("metadata") or {}, Meta)
            pod = PodObject(meta, msgspec.convert(template.body.get("spec"), PodSpec))
        except msgspec.ValidationError:
            return []
        meta.namespace = raw.metadata.namespace
        found.append(_Template(role_of(pod) or template.role, template.replicas, pod))
    return found


def _count_members(templates: list[_Template], minimum: int, tasks: Mapping[str, int]) -> list[int]:
    """Returns how many of each must fit: the task minimums first, then leaders, then the others in order."""
    counts = [min(template.replicas, tasks.get(template.role, 0)) for template in templates]
    left = minimum - sum(counts)
    for i in sorted(range(len(templates)), key=lambda i: templates[i].role.lower() not in LEADERS):
        more = max(0, min(left, templates[i].replicas - counts[i]))
        counts[i] += more
        left -= more
    return counts
