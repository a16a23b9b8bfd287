"""Reserved annotations: what only the scheduler writes, and who tries to do it in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpu_scheduler.gangs.contract import ATTEMPT, DEVICE_MAP, DEVICES, GPU_MILLI, NOTES, STATUS, VISIBLE_DEVICES
from gpu_scheduler.gangs.jobs import INDEX_LABELS
from gpu_scheduler.gangs.options import quote
from gpu_scheduler.gangs.pods.annotations import CONTAINER_DEVICES

RESERVED = (DEVICES, VISIBLE_DEVICES, ATTEMPT, NOTES, STATUS)
RESERVED_PREFIX = CONTAINER_DEVICES
RESERVED_ON_GANGS = (NOTES, STATUS)
"""Those that the scheduler writes on gang objects too."""

IMMUTABLE = (DEVICE_MAP, GPU_MILLI)
"""Annotations that no Binding may bring: the API server would write them on a pod whose containers are as they are.

Nor labels that give a pod its index. The annotation for that is let through: Volcano sends a pod's own ones along.
"""

_NOTHING: Mapping[str, str] = {}


def is_reserved(name: str) -> bool:
    """Whether only the scheduler writes an annotation of this name on pods."""
    return name in RESERVED or name.startswith(RESERVED_PREFIX)


def is_reserved_on_gang(name: str) -> bool:
    """Whether only the scheduler writes an annotation of this name on gang objects."""
    return name in RESERVED_ON_GANGS


def find_reserved_changes(
    new: Mapping[str, str] | None, old: Mapping[str, str] | None, is_theirs: Callable[[str], bool] = is_reserved
) -> Iterator[str]:
    """The reserved annotations that differ between two versions of an object, each with what would be right."""
    new, old = new or _NOTHING, old or _NOTHING
    for name in sorted(filter(is_theirs, new.keys() | old.keys())):
        if new.get(name) != old.get(name):
            right = "leave it as it is" if name in old else "leave it out"
            yield f"metadata.annotations[{quote(name)}]: only the scheduler may write this; {right}"


def find_immutable_changes(annotations: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[str]:
    """What a Binding, whoever sends it, would change of what was settled when its pod was made."""
    right = "this is settled when the pod is made, not when it is bound; leave it out"
    yield from (f"metadata.annotations[{quote(name)}]: {right}" for name in IMMUTABLE if name in annotations)
    yield from (f"metadata.labels[{quote(name)}]: {right}" for name in INDEX_LABELS if name in labels)
