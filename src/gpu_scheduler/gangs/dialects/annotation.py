"""Gangs without an object, declared by annotations of their pods.

`gpu-scheduler.io/gang` names the gang: all pods of a namespace with that name are its members. Without a name,
`gpu-scheduler.io/gang-min` makes the pods of one controller a gang, called for example "Job/train/5f0c2a81". The last
part is the beginning of the controller's uid, so that a later job of the same name is another gang.

An option need not be on every pod, but all pods that set it must set the same value. Only the time of the last
checkpoint may differ: the earliest one counts, because the gang restarts from it. The scheduler keeps its notes on one
of the pods.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable

from gpu_scheduler.core.model import Gang, GangKey
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.contract import CHECKPOINTED_AT, GANG, GANG_MIN, NOTES
from gpu_scheduler.gangs.dialects.dialect import (
    Dialect,
    GangContext,
    Membership,
    StatusPatch,
    StatusUpdate,
    patch_object,
)
from gpu_scheduler.gangs.notes import change_notes, with_notes
from gpu_scheduler.gangs.options import (
    OPTIONS,
    BadOptionError,
    annotation,
    created_at,
    queue_of,
    quote,
    read_minimum,
    refuse_namespace,
    with_options,
)
from gpu_scheduler.gangs.roles import rank_roles, role_of
from gpu_scheduler.k8s.objects import PodObject, RawObject
from gpu_scheduler.k8s.resources import PODS
from gpu_scheduler.k8s.times import parse_rfc3339

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
_UID_SHOWN = 8


def display_name(key: GangKey) -> str:
    """Returns the gang's namespace and name; for a gang of a controller, without the uid."""
    kind, _, rest = key.name.partition("/")
    if key.dialect == Annotations.name and rest:
        return f"{key.namespace}/{kind}/{rest.rpartition('/')[0]}"
    return str(key)


class Annotations(Dialect):
    """Gangs that are named by annotation, or formed by the pods of a controller."""

    name = "annotation"

    def group_of(self, pod: PodObject) -> str:
        """Returns the gang that a pod names, else its controller; "" for neither."""
        meta = pod.metadata
        named = annotation(meta, GANG)
        if named:
            return named if _NAME.fullmatch(named) else ""
        owner = next((owner for owner in meta.owner_references or () if owner.controller), None)
        return f"{owner.kind}/{owner.name}/{owner.uid[:_UID_SHOWN]}" if owner is not None else ""

    def membership(self, pod: PodObject) -> Membership | None:
        """Returns the membership of a pod with one of the two annotations."""
        annotations = pod.metadata.annotations
        if not annotations or not (annotations.get(GANG) or annotations.get(GANG_MIN)):
            return None
        found = super().membership(pod)
        if found is not None:
            return found
        if annotations.get(GANG):
            problem = _refuse_name(annotations[GANG])
        else:
            problem = f"{GANG_MIN}: the pod has no controller whose pods could form the gang; name the gang in {GANG}"
        return Membership(None, role_of(pod), queue_of(pod), problem)

    def traits(self, pod: PodObject) -> Hashable:
        """Returns every annotation that affects the gang."""
        annotations = pod.metadata.annotations or {}
        return tuple(annotations.get(name) for name in (GANG_MIN, NOTES, *OPTIONS))

    def keys_of(self, raw: RawObject) -> tuple[GangKey, ...]:
        """Returns (): there are no objects."""
        return ()

    def object_name(self, key: GangKey) -> str:
        """Returns ""."""
        return ""

    def decode(
        self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext
    ) -> Gang | None:
        """Returns the gang that its pods define together."""
        if not pods:
            return None
        declared, problem, minimum = _first_values(pods), "", 1
        try:
            _check_agreement(declared, pods)
            text = annotation(declared[GANG_MIN].metadata, GANG_MIN) if GANG_MIN in declared else None
            minimum = read_gang_min(text, context.ceilings.max_members)
        except BadOptionError as error:
            problem = str(error)
        gang = Gang(
            key,
            minimum=minimum,
            roles=rank_roles((), pods),
            queue=next((queue for queue in map(queue_of, pods) if queue), ""),
            created=min(created_at(pod.metadata) for pod in pods),
            problem=problem,
        )
        carrier = next((pod for pod in pods if annotation(pod.metadata, NOTES)), None)
        options = {name: annotation(pod.metadata, name) for name, pod in declared.items()}
        return with_notes(with_options(gang, options), carrier.metadata.annotations if carrier is not None else None)

    def encode(
        self, key: GangKey, raw: RawObject | PodObject, update: StatusUpdate, context: GangContext
    ) -> list[StatusPatch]:
        """Returns the patch of the notes; everything else is in Events."""
        return patch_object(PODS, raw.metadata, change_notes(raw.metadata.annotations, update.status))


class LonePods(Annotations):
    """Pods without a gang. A pod that sets options, or has notes, is a gang of one."""

    name = LONE_POD

    def group_of(self, pod: PodObject) -> str:
        """Returns the uid of the pod."""
        return pod.metadata.uid

    def has_options(self, pod: PodObject) -> bool:
        """Returns whether a pod sets options or has notes."""
        annotations = pod.metadata.annotations
        return annotations is not None and any(name in annotations for name in (NOTES, *OPTIONS))

    def decode(self, key: GangKey, raw: RawObject | None, pods: Collection[PodObject], context: GangContext) -> Gang:
        """Returns the pod as a gang of one."""
        meta = next(iter(pods)).metadata
        return with_notes(with_options(Gang(key, created=created_at(meta)), meta.annotations), meta.annotations)


def _refuse_name(named: str) -> str:
    if "/" in named:
        return refuse_namespace(GANG, named)
    return f"{GANG}: {quote(named)} is not a valid name; write at most 253 letters, digits, '-', '_' and '.'"


def _first_values(pods: Collection[PodObject]) -> dict[str, PodObject]:
    """Returns for every annotation about the gang the first pod that has it; of checkpoints, the earliest."""
    declared: dict[str, PodObject] = {}
    for pod in pods:
        for name in (GANG_MIN, *OPTIONS):
            if annotation(pod.metadata, name):
                declared.setdefault(name, pod)
    if CHECKPOINTED_AT in declared:
        declared[CHECKPOINTED_AT] = min(pods, key=_checkpointed_at)
    return declared


def _checkpointed_at(pod: PodObject) -> float:
    """Returns when a pod made its last checkpoint. An invalid time comes first, so that it is reported."""
    text = annotation(pod.metadata, CHECKPOINTED_AT)
    if not text:
        return math.inf
    seconds = parse_rfc3339(text)
    return -math.inf if seconds is None else seconds


def _check_agreement(declared: dict[str, PodObject], pods: Collection[PodObject]) -> None:
    for name, first in declared.items():
        if name == CHECKPOINTED_AT:
            continue
        for pod in pods:
            text = annotation(pod.metadata, name)
            if text and text != annotation(first.metadata, name):
                one = f"pod {first.metadata.name} has {quote(annotation(first.metadata, name))}"
                other = f"pod {pod.metadata.name} has {quote(text)}"
                raise BadOptionError(f"{name}: {one} and {other}; all pods of a gang must have the same value")


def read_gang_min(text: str | None, most: int) -> int:
    """Returns the minimum that an annotation declares, up to `most`; raises BadOptionError."""
    number = int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else text
    return read_minimum(number, GANG_MIN, most)
