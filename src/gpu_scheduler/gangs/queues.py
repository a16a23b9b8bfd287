"""QueueRegistry: our queues and Volcano's in one form, and the status of their objects.

| Volcano | here |
|---|---|
| `deserved`, `guarantee.resource` | the quota: for each resource the larger of the two |
| `guarantee.resource` above 0 | no `lending`: a quota is lent as a whole or not at all, so `deserved` is kept too |
| `capability` | the limit |
| `parent` | the parent; the top level if it is empty or `root` |
| `priority`, `weight`, `reclaimable` | the same |
| state Closed or Closing | closed |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from gpu_scheduler.core.events import Event, QueueGone, QueueSeen
from gpu_scheduler.core.model import MILLI, AcrossQueues, Queue
from gpu_scheduler.gangs.conditions import change_status
from gpu_scheduler.gangs.contract import QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.dialects.dialect import StatusPatch, patch_object
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME, as_dict, quote, read_queue
from gpu_scheduler.gangs.queue_tree import QueueTree
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.quantity import QuantityError, format_milli
from gpu_scheduler.k8s.requests import read_amounts
from gpu_scheduler.k8s.resources import Resource

ROOT = "root"
"""The top of Volcano's tree. Our tree has no queue there, so the name is reserved."""

_WITHIN_QUEUE = ("LowerPriority", "Never")
_ACROSS_QUEUES = tuple(word.value for word in AcrossQueues)
_MAX_SECONDS = 10 * 365 * 86_400


class QueueError(ValueError):
    """An invalid queue; the message is one line with the field and what would be right."""


class QueueUse(NamedTuple):
    """How many gangs of a queue and of the queues below it wait, have reservations, run and have completed, and what
    they use (GPUs in milli)."""

    pending: int = 0
    inqueue: int = 0
    running: int = 0
    completed: int = 0
    allocated: Mapping[str, int] = {}


class QueueRegistry:
    """All queues. Of two queues with one name ours counts; "default" is the queue of gangs that name none.

    An invalid queue is closed until it is corrected, and its status says why.
    """

    def __init__(self) -> None:
        self._objects: dict[tuple[str, Resource], RawObject] = {}
        self._tree: QueueTree | None = None

    def on_changed(self, resource: Resource, raw: RawObject) -> list[Event]:
        """Handles a created or changed queue object."""
        before = self._current(raw.metadata.name)
        self._objects[raw.metadata.name, resource] = raw
        return self._update(raw.metadata.name, before)

    def on_deleted(self, resource: Resource, raw: RawObject) -> list[Event]:
        """Handles a deleted queue object."""
        before = self._current(raw.metadata.name)
        self._objects.pop((raw.metadata.name, resource), None)
        return self._update(raw.metadata.name, before)

    @property
    def tree(self) -> QueueTree:
        """The tree of all queues."""
        if self._tree is None:
            found = (self._current(name) for name in dict.fromkeys(name for name, _ in self._objects))
            self._tree = QueueTree(decode_any_queue(*one) for one in found if one is not None)
        return self._tree

    def names(self) -> Collection[str]:
        """Returns the names of the queues that have an object, as the core knows them."""
        return {read_queue(name) for name, _ in self._objects}

    def encode(self, name: str, use: QueueUse, gpu_resources: Iterable[str]) -> list[StatusPatch]:
        """Returns the patches that bring the status of a queue up to date; none if it is, or if it has no object."""
        found = self._current(name or DEFAULT_QUEUE_NAME)
        if found is None:
            return []
        resource, raw = found
        gpus = frozenset(gpu_resources)
        ours = resource == QUEUES
        status = _our_status(raw, use, gpus, self.tree) if ours else _volcano_status(raw, use, gpus)
        return patch_object(resource, raw.metadata, {}, status)

    def _current(self, name: str) -> tuple[Resource, RawObject] | None:
        for resource in (QUEUES, VOLCANO_QUEUES):
            raw = self._objects.get((name, resource))
            if raw is not None:
                return resource, raw
        return None

    def _update(self, name: str, before: tuple[Resource, RawObject] | None) -> list[Event]:
        old = decode_any_queue(*before) if before is not None else None
        after = self._current(name)
        new = decode_any_queue(*after) if after is not None else None
        if old == new:
            return []
        self._tree = None
        return [QueueSeen(new)] if new is not None else [QueueGone(read_queue(name))]


def decode_any_queue(resource: Resource, raw: RawObject) -> Queue:
    """Decodes a queue of either kind; an invalid one is closed."""
    try:
        return decode_queue(raw) if resource == QUEUES else decode_volcano_queue(raw)
    except QueueError:
        return Queue(read_queue(raw.metadata.name), parent=_parent_of_invalid(raw), open=False)


def decode_queue(raw: RawObject) -> Queue:
    """Decodes one of our queues; raises QueueError."""
    spec, preemption = raw.spec, as_dict(raw.spec.get("preemption"))
    if raw.metadata.name == ROOT:
        raise QueueError(f"metadata.name: {quote(ROOT)} is reserved for the top of the tree; choose another name")
    if spec.get("parent") == ROOT:
        raise QueueError(f"spec.parent: {quote(ROOT)} is not a queue; leave the field out for a queue at the top level")
    return Queue(
        read_queue(raw.metadata.name),
        weight=_read_whole(spec, "weight", 1, least=1),
        parent=_read_parent(raw),
        priority=_read_whole(spec, "priority", 0),
        quota=_read_resources(spec, "quota"),
        limit=_read_resources(spec, "limit"),
        borrowing=_read_switch(spec, "borrowing", True),
        lending=_read_switch(spec, "lending", True),
        reclaimable=_read_switch(spec, "reclaimable", True),
        min_runtime=_read_seconds(spec, "minRuntimeSeconds"),
        preempts_within=_read_word(preemption, "withinQueue", _WITHIN_QUEUE) != "Never",
        across=AcrossQueues(_read_word(preemption, "acrossQueues", _ACROSS_QUEUES)),
        open=not _read_switch(spec, "closed", False),
        namespaces=tuple(str(name) for name in spec.get("allowedNamespaces") or ()),
    )


def decode_volcano_queue(raw: RawObject) -> Queue:
    """Decodes one of Volcano's queues; raises QueueError. What it guarantees is never lent."""
    spec = raw.spec
    guaranteed = _read_resources(as_dict(spec.get("guarantee")), "resource", "spec.guarantee")
    deserved = _read_resources(spec, "deserved")
    return Queue(
        read_queue(raw.metadata.name),
        weight=_read_whole(spec, "weight", 1, least=1),
        parent=_read_parent(raw),
        priority=_read_whole(spec, "priority", 0),
        quota={name: max(guaranteed.get(name, 0), deserved.get(name, 0)) for name in {**guaranteed, **deserved}},
        limit=_read_resources(spec, "capability"),
        lending=not any(guaranteed.values()),
        reclaimable=_read_switch(spec, "reclaimable", True),
        open=raw.status.get("state") not in ("Closed", "Closing"),
    )


# -- fields


def _read_parent(raw: RawObject) -> str | None:
    """Returns the parent; None for a queue at the top level."""
    parent = raw.spec.get("parent")
    if parent in (None, "", ROOT):
        return None
    if not isinstance(parent, str):
        raise QueueError(f"spec.parent: {quote(parent)} is not the name of a queue")
    if parent == raw.metadata.name:
        raise QueueError("spec.parent: a queue cannot be its own parent; name another queue, or leave the field out")
    return read_queue(parent)


def _parent_of_invalid(raw: RawObject) -> str | None:
    """Returns the parent of an invalid queue: what the queue still uses counts there."""
    try:
        return _read_parent(raw)
    except QueueError:
        return None


def _read_whole(spec: Json, field: str, absent: int, least: int | None = None) -> int:
    number = spec.get(field)
    if number is None:
        return absent
    if isinstance(number, bool) or not isinstance(number, int) or (least is not None and number < least):
        what = "a whole number" + (f" of {least} or more" if least is not None else "")
        raise QueueError(f"spec.{field}: {number!r} is not {what}")
    return number


def _read_seconds(spec: Json, field: str) -> float:
    seconds = spec.get(field)
    if seconds is None:
        return 0.0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_SECONDS:
        raise QueueError(f"spec.{field}: {quote(seconds)} is not a number of seconds from 0 to {_MAX_SECONDS}")
    return float(seconds)


def _read_switch(spec: Json, field: str, absent: bool) -> bool:
    switch = spec.get(field)
    if switch is None:
        return absent
    if not isinstance(switch, bool):
        raise QueueError(f"spec.{field}: {quote(switch)} is neither true nor false")
    return switch


def _read_word(preemption: Json, field: str, words: tuple[str, ...]) -> str:
    """Returns one of the words; the first if there is none."""
    word = preemption.get(field)
    if word is None:
        return words[0]
    if word not in words:
        raise QueueError(f"spec.preemption.{field}: {quote(word)} is not one of {', '.join(words)}")
    return str(word)


def _read_resources(spec: Json, field: str, place: str = "spec") -> dict[str, int]:
    amounts = {name: str(amount) for name, amount in as_dict(spec.get(field)).items()}
    try:
        return read_amounts(amounts, f"{place}.{field}")
    except QuantityError as error:
        raise QueueError(str(error)) from None


# -- status


def _our_status(raw: RawObject, use: QueueUse, gpus: frozenset[str], tree: QueueTree) -> Json:
    problem = ""
    quota: Mapping[str, int] = {}
    try:
        queue = decode_queue(raw)
        quota = queue.quota
        problem = next((one.text for one in tree.find_problems(queue)), "")
    except QueueError as error:
        problem = str(error)
    granted = {name: most * (MILLI if name in gpus else 1) for name, most in quota.items()}
    borrowed = {name: max(0, amount - granted.get(name, 0)) for name, amount in use.allocated.items()}
    status = change_status(raw, {"pending": use.pending + use.inqueue, "running": use.running})
    status |= _change_amounts(raw, "allocated", use.allocated, gpus)
    status |= _change_amounts(raw, "borrowed", borrowed, gpus)
    if problem != (raw.status.get("problem") or ""):
        status["problem"] = problem or None
    return status


def _volcano_status(raw: RawObject, use: QueueUse, gpus: frozenset[str]) -> Json:
    counts = {"pending": use.pending, "inqueue": use.inqueue, "running": use.running, "completed": use.completed}
    status = change_status(raw, counts | {"state": raw.status.get("state") or "Open"})
    return status | _change_amounts(raw, "allocated", use.allocated, gpus)


def _change_amounts(raw: RawObject, field: str, amounts: Mapping[str, int], gpus: frozenset[str]) -> Json:
    """Returns the merge patch of a map of amounts; resources that are no longer used are removed."""
    present = as_dict(raw.status.get(field))
    wanted = {name: format_amount(name, amount, gpus) for name, amount in amounts.items() if amount}
    changes: Json = {name: text for name, text in wanted.items() if present.get(name) != text}
    changes |= dict.fromkeys(present.keys() - wanted.keys())
    return {field: changes} if changes else {}


def format_amount(name: str, amount: int, gpus: Collection[str]) -> str:
    """Formats an amount as a quantity: cpu and GPUs are in milli, everything else in units."""
    return format_milli(amount) if name == "cpu" or name in gpus else str(amount)
