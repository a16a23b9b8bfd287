"""Dialect: what every way to define a gang has to implement, and the values that go in and out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_scheduler.core.lifecycle import Status
from gpu_scheduler.core.model import Gang, GangKey, Shape
from gpu_scheduler.gangs.options import queue_of
from gpu_scheduler.gangs.rights import WATCH, Right
from gpu_scheduler.gangs.roles import role_of
from gpu_scheduler.k8s.objects import Json, Meta, OwnerReference, PodObject, PodSpec, RawObject
from gpu_scheduler.k8s.resources import Resource


class Membership(NamedTuple):
    """Where a pod belongs: no gang means that it starts by itself, or not at all while there is a problem."""

    gang: GangKey | None = None
    role: str = ""
    queue: str = ""
    problem: str = ""


class StatusMessage(NamedTuple):
    """What people are told about a gang: a word for machines and a sentence for them."""

    reason: str
    message: str


class StatusUpdate(NamedTuple):
    """Everything that a gang's object is to say. `alive` are the gangs that share the object, this one included;
    `owner` is what its pods belong to."""

    status: Status
    told: StatusMessage
    now: float
    alive: Collection[GangKey] = ()
    owner: str = ""


class StatusPatch(NamedTuple):
    """A merge patch of one object, or of its subresource."""

    resource: Resource
    namespace: str
    name: str
    subresource: str
    body: Json


def patch_object(resource: Resource, meta: Meta, annotations: Json, status: Json | None = None) -> list[StatusPatch]:
    """The patches that change these annotations and these fields of the status, if any; never of a namesake."""
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
    """What reading and writing gangs depends on besides their objects.

    `resources` says in which version each dialect's objects are served here; a dialect without an entry has none.
    `levels` are the names of the topology levels, widest first. `owner_of` gives the object that an owner reference
    means: {} while it is on its way, None where it cannot be read; `shape_of` reads a pod template, and gives None for
    one that makes no sense.
    """

    scheduler_names: frozenset[str]
    resources: Mapping[str, Resource] = field(default_factory=dict)
    workload_status: bool = False
    levels: tuple[str, ...] = ()
    priority_classes: Mapping[str, int] = field(default_factory=dict)
    shape_of: Callable[[PodSpec, Meta], Shape | None] = _no_shape
    owner_of: Callable[[str, OwnerReference], Json | None] = _no_owner


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
        """The gang's name that a pod speaks of, within the pod's own namespace; "" for none."""
        raise NotImplementedError

    def membership(self, pod: PodObject) -> Membership | None:
        """Where a pod belongs if it speaks this dialect, else None."""
        group = self.group_of(pod)
        if not group:
            return None
        return Membership(GangKey(self.name, pod.metadata.namespace, group), role_of(pod), queue_of(pod))

    def marks(self, pod: PodObject) -> Hashable:
        """What a pod itself says about its gang's definition. Of pods with equal marks only one is ever looked at."""
        return ()

    def keys_of(self, raw: RawObject) -> tuple[GangKey, ...]:
        """The gangs that an object is by itself, with or without pods."""
        return (GangKey(self.name, raw.metadata.namespace, raw.metadata.name),)

    def object_name(self, key: GangKey) -> str:
        """The name of the object that defines a gang; "" where only its pods do."""
        return key.name

    def is_individual(self, key: GangKey, raw: RawObject) -> bool:
        """Whether the pods of this group are no gang: each starts by itself."""
        return False

    def expected_scheduler(self, raw: RawObject, context: GangContext) -> str:
        """The scheduler that the pods of a group without any are going to name."""
        return self.scheduler

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        """The gang as it is defined; None when what defines it is not there. `pods` has one for every set of marks."""
        raise NotImplementedError

    def encode(
        self, key: GangKey, raw: RawObject | PodObject, update: StatusUpdate, context: GangContext
    ) -> list[StatusPatch]:
        """What has to be written so that the object says this; nothing when it says so already.

        A dialect without objects writes to one of the pods, which then stands in for `raw`.
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
