"""Quarantines on the Lease: the leader publishes which GPUs of vanished pods it keeps unused, and until when.

Only the leader has seen these pods vanish. The commands read the annotation, so that they count the same GPUs as taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from gpu_scheduler.core.events import Quarantined
from gpu_scheduler.core.model import Pod, Shape
from gpu_scheduler.k8s.times import format_time, parse_time

MAX_PUBLISHED = 100
"""The most pods that are published, those that last longest first: the Lease is written every few seconds."""


class _Entry(msgspec.Struct, omit_defaults=True):
    """One pod: `milli` is its share of a GPU, `queue` what it is charged to."""

    uid: str
    namespace: str
    name: str
    node: str
    gpus: tuple[int, ...]
    resource: str
    until: str
    milli: int = 0
    queue: str = ""


def encode_quarantines(found: Iterable[Quarantined]) -> str:
    """The text of the annotation; "" where there is nothing to publish."""
    longest = sorted(found, key=lambda one: (-one.until, one.pod.uid))[:MAX_PUBLISHED]
    return msgspec.json.encode([_encode(one) for one in longest]).decode() if longest else ""


def decode_quarantines(text: str) -> Iterator[Quarantined]:
    """The quarantines of an annotation; none of a text that is not valid."""
    try:
        entries = msgspec.json.decode(text or "[]", type=list[_Entry])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    for one in entries:
        until = parse_time(one.until)
        if until is not None:
            pod = Pod(one.uid, one.namespace, one.name, _shape_of(one), node=one.node, devices=one.gpus)
            yield Quarantined(pod, until, one.queue)


def _shape_of(one: _Entry) -> Shape:
    """The GPUs of a pod; those of a map count as whole ones."""
    whole = 0 if one.milli else len(one.gpus)
    request = ((one.resource, whole),) if whole else ()
    return Shape(request, gpu_resource=one.resource, gpus=whole, gpu_milli=one.milli)


def _encode(one: Quarantined) -> _Entry:
    pod, shape = one.pod, one.pod.shape
    return _Entry(
        pod.uid,
        pod.namespace,
        pod.name,
        pod.node or "",
        pod.devices or (),
        shape.gpu_resource,
        format_time(one.until),
        shape.gpu_milli,
        one.queue,
    )
