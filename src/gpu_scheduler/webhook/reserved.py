"""Reserved annotations, which only the scheduler writes, and metadata that is immutable once a pod exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpu_scheduler.gangs.contract import (
    ATTEMPT,
    CHARGED_QUEUE,
    DEVICE_MAP,
    DEVICES,
    GPU_MILLI,
    NOTES,
    STATUS,
    VISIBLE_DEVICES,
)
from gpu_scheduler.gangs.jobs import INDEX_LABELS
from gpu_scheduler.gangs.options import quote
from gpu_scheduler.gangs.pods.annotations import CONTAINER_DEVICES

RESERVED = (DEVICES, VISIBLE_DEVICES, ATTEMPT, CHARGED_QUEUE, NOTES, STATUS)
RESERVED_PREFIX = CONTAINER_DEVICES
RESERVED_ON_GANGS = (NOTES, STATUS)
"""The ones that the scheduler also writes on gang objects."""

IMMUTABLE = (DEVICE_MAP, GPU_MILLI)
"""Annotations that no Binding may set: the API server would copy them to a pod whose containers exist already.

The same holds for labels that give a pod its index. The annotation with the index is allowed, because Volcano copies a
pod's own annotations into its Binding.
"""

_NOTHING: Mapping[str, str] = {}


def is_reserved(name: str) -> bool:
    """Whether only the scheduler may write this annotation of a pod."""
    return name in RESERVED or name.startswith(RESERVED_PREFIX)


def is_reserved_on_gang(name: str) -> bool:
    """Whether only the scheduler may write this annotation of a gang object."""
    return name in RESERVED_ON_GANGS


def find_reserved_changes(
    new: Mapping[str, str] | None, old: Mapping[str, str] | None, is_reserved_key: Callable[[str], bool] = is_reserved
) -> Iterator[str]:
    """A problem for each reserved annotation that differs between two versions of an object."""
    new, old = new or _NOTHING, old or _NOTHING
    for name in sorted(filter(is_reserved_key, new.keys() | old.keys())):
        if new.get(name) != old.get(name):
            right = "leave it as it is" if name in old else "leave it out"
            yield f"metadata.annotations[{quote(name)}]: only the scheduler may write this; {right}"


def find_immutable_changes(annotations: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[str]:
    """A problem for each immutable annotation and label that a Binding sets."""
    right = "cannot change after the pod is created; leave it out of the Binding"
    yield from (f"metadata.annotations[{quote(name)}]: {right}" for name in IMMUTABLE if name in annotations)
    yield from (f"metadata.labels[{quote(name)}]: {right}" for name in INDEX_LABELS if name in labels)
