"""Members that do not exist yet: what they will need, read from the job that is going to make them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from gpu_scheduler.core.model import Expected, Shape
from gpu_scheduler.gangs.contract import EXECUTORS
from gpu_scheduler.gangs.dialects.dialect import GangContext
from gpu_scheduler.gangs.options import LEADERS, BadOptionError, as_dict, as_list, note, quote, role_of
from gpu_scheduler.gangs.owners import JOBS
from gpu_scheduler.gangs.pods.device_map import read_number
from gpu_scheduler.k8s.objects import Container, Json, Meta, PodObject, PodSpec, RawObject, Resources
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import read_amounts

_JOB_GROUPS = frozenset(group for group, _ in JOBS)
_DRIVER, _EXECUTOR = "driver", "executor"
_MOST_PARTS = 1000
"""How finely a sum is divided at most."""


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
    raw: RawObject, minimum: int, tasks: Mapping[str, int], context: GangContext, pods: Collection[PodObject]
) -> tuple[Expected, ...]:
    """The members that must fit before a group may begin; none without minResources.

    The owner job's templates say what they need. Where those cannot be read, each takes an equal part of minResources,
    but only until the first pod is there: it cannot be told which of the parts that pod is. A driver is the exception.
    It makes its executors itself, so of a group with a minimum of one it needs no more than it says, and the rest of
    minResources is theirs.
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
    try:
        amounts = read_amounts(share, "spec.minResources")
    except QuantityError as error:
        raise BadOptionError(str(error)) from None
    executors = _read_executors(raw)
    if pods:
        return _expect_executors(amounts, executors, pods, context) if minimum == 1 else ()
    count = executors or minimum
    shape = _shape_part(amounts, count, PodSpec(), raw.metadata.namespace, context)
    return (Expected(shape, count),) if shape is not None else ()


def is_made_for_job(raw: RawObject, context: GangContext) -> bool:
    """Whether a job that has been read owns the group."""
    return bool(_owner_job(raw, context))


def is_owned_by_job(raw: RawObject) -> bool:
    """Whether a group says that a job owns it, of a kind whose templates are understood; read or not."""
    return any(owner.api_version.partition("/")[0] in _JOB_GROUPS for owner in raw.metadata.owner_references or ())


def coming_scheduler(raw: RawObject, context: GangContext) -> str:
    """The scheduler that the owner job's pods are going to name; "" when nothing says so."""
    job = _owner_job(raw, context) or {}
    # What a template names is kept; what the job names is for the others.
    specs = [*(as_dict(template.get("spec")) for _, _, template in templates_of(job)), as_dict(job.get("spec"))]
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


# -- Spark: a driver that makes its executors


def _expect_executors(
    amounts: Mapping[str, int], told: int, pods: Collection[PodObject], context: GangContext
) -> tuple[Expected, ...]:
    """The executors that a driver is going to make out of what it leaves of the group's resources."""
    members = {role_of(pod): pod for pod in pods}
    driver = members.get(_DRIVER)
    shape = context.shape_of(driver.spec, driver.metadata) if driver is not None else None
    if driver is None or shape is None:
        return ()
    taken = dict(shape.request)
    rest = {name: amount - taken.get(name, 0) for name, amount in amounts.items() if amount > taken.get(name, 0)}
    if not rest:
        return ()
    known = members.get(_EXECUTOR)
    if known is not None and (like := context.shape_of(known.spec, known.metadata)) is not None:
        return (Expected(like, told or _count_like(like, rest), _EXECUTOR),)
    namespace = driver.metadata.namespace
    whole = _shape_part(rest, 1, PodSpec(), namespace, context)
    if whole is None:
        return ()
    count = told or min(_MOST_PARTS, whole.gpus or -(-rest.get("cpu", 0) // 1000) or 1)
    # Until the first executor is there, nobody knows where they may go: where the driver may, it is assumed, but for a
    # driver without GPUs whose executors have some, because such a driver is often kept away from nodes that have them.
    apart = whole.gpus > 0 and shape.gpus == 0
    place = PodSpec(node_selector=None if apart else driver.spec.node_selector, tolerations=driver.spec.tolerations)
    part = _shape_part(rest, count, place, namespace, context)
    return (Expected(part, count, _EXECUTOR),) if part is not None else ()


def _count_like(shape: Shape, rest: Mapping[str, int]) -> int:
    """How many members like this one a sum was written for, by what matters most of what both speak of."""
    request = dict(shape.request)
    name = next((name for name in (shape.gpu_resource, "cpu", "memory") if name in rest and name in request), "")
    return min(_MOST_PARTS, max(1, rest[name] // request[name])) if name else 1


def _read_executors(raw: RawObject) -> int:
    """How many executors a group says that it is for; 0 where it does not."""
    text = note(raw.metadata, EXECUTORS)
    if not text:
        return 0
    number = read_number(text)
    if number is None or not 1 <= number <= _MOST_PARTS:
        raise BadOptionError(f"{EXECUTORS}: {quote(text)} is no number of executors from 1 to {_MOST_PARTS}")
    return number


def _shape_part(
    amounts: Mapping[str, int], parts: int, place: PodSpec, namespace: str, context: GangContext
) -> Shape | None:
    """A pod that takes an equal part of a sum, where `place` may go."""
    requests: dict[str, str | int | float] = {
        name: f"{-(-amount // parts)}{'m' if name == 'cpu' else ''}" for name, amount in amounts.items()
    }
    place.containers = [Container(resources=Resources(requests=requests))]
    return context.shape_of(place, Meta(namespace=namespace))
