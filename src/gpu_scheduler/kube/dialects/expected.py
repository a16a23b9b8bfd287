"""Members that do not exist yet: what they will need, read from the job that is going to make them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from gpu_scheduler.core.model import Expected, Shape
from gpu_scheduler.core.quantity import QuantityError
from gpu_scheduler.core.requests import read_amounts
from gpu_scheduler.kube.dialects.dialect import GangContext
from gpu_scheduler.kube.dialects.options import LEADERS, BadOptionError, as_dict, as_list, role_of
from gpu_scheduler.kube.objects import Container, Json, Meta, PodObject, PodSpec, RawObject, Resources


class _Template(NamedTuple):
    """Some pods that a job makes alike."""

    role: str
    replicas: int
    pod: PodObject


def min_resources(raw: RawObject) -> dict[str, str]:
    """What a group asks for before its pods exist, without the fields of quotas that Volcano's own jobs mix in."""
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
    raw: RawObject, minimum: int, tasks: Mapping[str, int], context: GangContext, any_there: bool
) -> tuple[Expected, ...]:
    """The members that must fit before a group may begin; none without minResources.

    The owner job's templates say what they need. Where those cannot be read, each takes an equal part of minResources,
    but only until the first pod is there: it cannot be told which of the parts that pod is.
    """
    share = min_resources(raw)
    job = _owner_job(raw, context)
    if not share or job == {}:
        return ()  # to guess while the job is on its way would keep the wrong slots
    templates = list(_read_templates(raw, job or {}))
    shapes = [context.shape_of(template.pod.spec, template.pod.metadata) for template in templates]
    if templates and None not in shapes:
        counts = _count_members(templates, minimum, tasks)
        known = zip(templates, shapes, counts, strict=True)
        return tuple(Expected(s, count, t.role) for t, s, count in known if s is not None and count)
    shape = None if any_there else _share_shape(raw, share, minimum, context)
    return (Expected(shape, minimum),) if shape is not None else ()


def is_made_for_job(raw: RawObject, context: GangContext) -> bool:
    """Whether a job that has been read owns the group."""
    return bool(_owner_job(raw, context))


def coming_scheduler(raw: RawObject, context: GangContext) -> str:
    """The scheduler that the owner job's pods are going to name; "" when nothing says so."""
    job = _owner_job(raw, context) or {}
    specs = [as_dict(job.get("spec")), *(as_dict(template.get("spec")) for _, _, template in templates_of(job))]
    return next((str(spec["schedulerName"]) for spec in specs if spec.get("schedulerName")), "")


def _owner_job(raw: RawObject, context: GangContext) -> Json | None:
    """The job behind a group: {} while it is on its way, None where there is none that can be read."""
    owners = sorted(raw.metadata.owner_references or (), key=lambda owner: not owner.controller)
    return context.owner_of(raw.metadata.namespace, owners[0]) if owners else None


def _read_templates(raw: RawObject, job: Json) -> Iterator[_Template]:
    """The pods that a group's job makes; none as soon as one template cannot be read."""
    found = []
    for role, replicas, template in templates_of(job):
        try:
            meta = msgspec.convert(template.get("metadata") or {}, Meta)
            pod = PodObject(meta, msgspec.convert(template.get("spec"), PodSpec))
        except msgspec.ValidationError:
            return
        meta.namespace = raw.metadata.namespace
        found.append(_Template(role_of(pod) or role, replicas, pod))
    yield from found


def templates_of(job: Json) -> Iterator[tuple[str, int, Json]]:
    """Roles, replicas and templates: tasks of a Volcano Job, replica specs of a Kubeflow job.

    The training operator writes a replica type in small letters when it marks pods with it.
    """
    spec = as_dict(job.get("spec"))
    for task in as_list(spec.get("tasks")):
        yield str(task.get("name") or ""), _replicas(task), as_dict(task.get("template"))
    for field, replica_specs in spec.items():
        if field.endswith("ReplicaSpecs"):
            for kind, replica in as_dict(replica_specs).items():
                yield kind.lower(), _replicas(as_dict(replica)), as_dict(as_dict(replica).get("template"))


def _replicas(part: Json) -> int:
    replicas = part.get("replicas")
    return replicas if isinstance(replicas, int) else 1


def _count_members(templates: list[_Template], minimum: int, tasks: Mapping[str, int]) -> list[int]:
    """How many of each must fit: what its task demands, then whoever leads, then the others in order."""
    counts = [min(template.replicas, tasks.get(template.role, 0)) for template in templates]
    left = minimum - sum(counts)
    for i in sorted(range(len(templates)), key=lambda i: templates[i].role.lower() not in LEADERS):
        more = max(0, min(left, templates[i].replicas - counts[i]))
        counts[i] += more
        left -= more
    return counts


def _share_shape(raw: RawObject, share: Mapping[str, str], minimum: int, context: GangContext) -> Shape | None:
    """A pod that takes an equal part of what the group asks for."""
    try:
        amounts = read_amounts(share, "spec.minResources")
    except QuantityError as error:
        raise BadOptionError(str(error)) from None
    parts: dict[str, str | int | float] = {
        name: f"{-(-amount // minimum)}{'m' if name == 'cpu' else ''}" for name, amount in amounts.items()
    }
    spec = PodSpec(containers=[Container(resources=Resources(requests=parts))])
    return context.shape_of(spec, Meta(namespace=raw.metadata.namespace))
