"""Dialect: what every way to define a gang has to implement, and the values that go in and out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_scheduler.core.lifecycle import Status
from gpu_scheduler.core.model import Gang, GangKey, Shape
from gpu_scheduler.gangs.ceilings import NO_CEILINGS, Ceilings
from gpu_scheduler.gangs.contract import QUEUE
from gpu_scheduler.gangs.options import annotation, queue_of
from gpu_scheduler.gangs.rights import WATCH, Right
from gpu_scheduler.gangs.roles import role_of
from gpu_scheduler.k8s.objects import Json, Meta, OwnerReference, PodObject, PodSpec, RawObject
from gpu_scheduler.k8s.resources import Resource


class Membership(NamedTuple):
    """The gang, role and queue of a pod. Without a gang it starts by itself, or not at all if there is a problem."""

    gang: GangKey | None = None
    role: str = ""
    queue: str = ""
    problem: str = ""


class StatusMessage(NamedTuple):
    """A reason for programs and a message for people."""

    reason: str
    message: str


class StatusUpdate(NamedTuple):
    """The status to write on a gang's object. `alive` are the gangs that share the object, this one included;
    `owner` names the owners of its pods."""

    status: Status
    message: StatusMessage
    now: float
    alive: Collection[GangKey] = ()
    owner: str = ""


class StatusPatch(NamedTuple):
    """A merge patch of one object, or of a subresource."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    body: Json


def patch_object(resource: Resource, meta: Meta, annotations: Json, status: Json | None = None) -> list[StatusPatch]:
    """Returns the patches for annotations and status fields; the uid protects a later object of the same name."""
    where = (resource, meta.namespace, meta.name)
    patches = []
    if annotations:
        patches.append(StatusPatch(*where, "", {"metadata": {"uid": meta.uid, "annotations": annotations}}))
    if status:
        patches.append(StatusPatch(*where, "status", {"metadata": {"uid": meta.uid}, "status": status}))
    return patches


def _no_shape(_spec: PodSpec, _meta: Meta) -> Shape | None:
    return None


def _no_owner(_namespace: str, _owner: OwnerReference) -> Json | None:
    return None


@dataclass(slots=True)
class GangContext:
    """What decoding and encoding of gangs depends on besides their objects.

    `resources` maps each dialect to the served version of its object, if any. `levels` are the names of the topology
    levels, widest first. `default_queues` has the queue of each namespace that gives one to gangs that name none.
    `owner_of` returns the object of an owner reference: {} while it is being fetched, None if it cannot be read.
    `shape_of` decodes a pod template and returns None for an invalid one. `ceilings` are what tenants may write.
    """

    scheduler_names: frozenset[str]
    resources: Mapping[str, Resource] = field(default_factory=dict)
    workload_status: bool = False
    levels: tuple[str, ...] = ()
    priority_classes: Mapping[str, int] = field(default_factory=dict)
    default_queues: Mapping[str, str] = field(default_factory=dict)
    shape_of: Callable[[PodSpec, Meta], Shape | None] = _no_shape
    owner_of: Callable[[str, OwnerReference], Json | None] = _no_owner
    ceilings: Ceilings = NO_CEILINGS

    def default_queue(self, namespace: str, naming: Iterable[Meta]) -> str:
        """Returns the queue of a gang or pod whose objects name none. Our annotation can name the queue `default`."""
        queue = self.default_queues.get(namespace, "")
        return queue if queue and not any(annotation(meta, QUEUE) for meta in naming) else ""


class GroupRequest(NamedTuple):
    """What a job asks of the PodGroup that an operator creates for it."""

    minimum: int
    min_resources: Mapping[str, str]
    minimum_by_role: Mapping[str, int]
    queue: str = ""
    priority_class: str = ""
    timeout: int | None = None


class Dialect:
    """One way to define a gang. A new dialect is one file with a subclass, and an entry in the table of `dialects`."""

    name: str = ""
    resources: tuple[Resource, ...] = ()
    """The versions of its object that it reads, best first; () where pods alone define the gang."""
    scheduler: str = ""
    """The scheduler that its groups are usually written for."""
    definition: str = ""
    """The file in `gangs/crds` that defines its object; "" for objects that Kubernetes itself serves, or for none."""

    has_status: bool = True
    """Whether its object has a status."""

    @property
    def rights(self) -> tuple[Right, ...]:
        """What the scheduler must be allowed to do with the objects: notes are annotations, the rest is status."""
        kinds = dict.fromkeys((resource.group, resource.plural) for resource in self.resources)
        found = [Right(group, plural, (*WATCH, "patch")) for group, plural in kinds]
        found += [Right(group, plural, ("patch",), "status") for group, plural in kinds if self.has_status]
        return tuple(found)

    def group_of(self, pod: PodObject) -> str:
        """Returns the name of the gang that a pod names, within the pod's namespace; "" for none."""
        raise NotImplementedError

    def membership(self, pod: PodObject) -> Membership | None:
        """Returns the membership of a pod that uses this dialect, else None."""
        group = self.group_of(pod)
        if not group:
            return None
        return Membership(GangKey(self.name, pod.metadata.namespace, group), role_of(pod), queue_of(pod))

    def traits(self, pod: PodObject) -> Hashable:
        """Returns what a pod itself declares about its gang. Of pods with equal traits `decode` gets only one."""
        return ()

    def keys_of(self, raw: RawObject) -> tuple[GangKey, ...]:
        """Returns the gangs that an object defines even without pods."""
        return (GangKey(self.name, raw.metadata.namespace, raw.metadata.name),)

    def object_name(self, key: GangKey) -> str:
        """Returns the name of the gang's object; "" if pods alone define it."""
        return key.name

    def is_individual(self, key: GangKey, raw: RawObject) -> bool:
        """Returns whether the pods of this group start individually, not as a gang."""
        return False

    def expected_scheduler(self, raw: RawObject, context: GangContext) -> str:
        """Returns the scheduler that the pods of a group without pods will name."""
        return self.scheduler

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        """Returns the gang; None if its object is missing. `pods` has one pod for each set of traits."""
        raise NotImplementedError

    def encode(
        self, key: GangKey, raw: RawObject | PodObject, update: StatusUpdate, context: GangContext
    ) -> list[StatusPatch]:
        """Returns the patches that bring the object up to date.

        A dialect without objects patches one of the pods, which is then passed as `raw`.
        """
        raise NotImplementedError


class PodGroupDialect(Dialect):
    """A dialect whose groups an operator can create for a job."""

    def join(self, pod: Json, group: str, role: str) -> None:
        """Makes a pod that is yet to be created a member of a group."""
        raise NotImplementedError

    def group_spec(self, request: GroupRequest) -> Json:
        """Returns the fields of a group's spec that follow the job for as long as it exists."""
        return {"minMember": request.minimum, "minResources": dict(request.min_resources)}

    def new_group_spec(self, request: GroupRequest) -> Json:
        """Returns the spec of a new group."""
        return self.group_spec(request)

    def group_annotations(self, request: GroupRequest) -> dict[str, str]:
        """Returns what of the request the group carries in annotations, for want of a field."""
        return {}
