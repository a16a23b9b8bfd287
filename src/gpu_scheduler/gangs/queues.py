"""QueueRegistry: our queues and Volcano's in one form, and the status of their objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from gpu_scheduler.core.events import Event, QueueGone, QueueSeen
from gpu_scheduler.core.model import MILLI, Queue
from gpu_scheduler.gangs.conditions import change_status
from gpu_scheduler.gangs.contract import QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.dialects.dialect import StatusPatch, patch_object
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME, as_dict, read_queue
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.quantity import QuantityError
from gpu_scheduler.k8s.requests import read_amounts
from gpu_scheduler.k8s.resources import Resource


class QueueError(ValueError):
    """An invalid queue; the message is one line with the field and what would be right."""


class QueueUse(NamedTuple):
    """How many gangs of a queue wait, have reservations, run and have completed, and what it uses (GPUs in milli)."""

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
        status = _our_status(raw, use, gpus) if resource == QUEUES else _volcano_status(raw, use, gpus)
        return patch_object(resource, raw.metadata, {}, status)

    def _current(self, name: str) -> tuple[Resource, RawObject] | None:
        for resource in (QUEUES, VOLCANO_QUEUES):
            raw = self._objects.get((name, resource))
            if raw is not None:
                return resource, raw
        return None

    def _update(self, name: str, before: tuple[Resource, RawObject] | None) -> list[Event]:
        after = self._current(name)
        if after is None:
            return [QueueGone(read_queue(name))] if before is not None else []
        queue = decode_any_queue(*after)
        return [QueueSeen(queue)] if before is None or decode_any_queue(*before) != queue else []


def decode_any_queue(resource: Resource, raw: RawObject) -> Queue:
    """Decodes a queue of either kind; an invalid one is closed."""
    try:
        return decode_queue(raw) if resource == QUEUES else decode_volcano_queue(raw)
    except QueueError:
        return Queue(read_queue(raw.metadata.name), open=False)


def decode_queue(raw: RawObject) -> Queue:
    """Decodes one of our queues; raises QueueError."""
    spec = raw.spec
    return Queue(
        read_queue(raw.metadata.name),
        weight=_read_weight(spec),
        quota=_read_resources(spec, "quota"),
        limit=_read_resources(spec, "limit"),
        borrowing=spec.get("borrowing") is not False,
        reclaimable=spec.get("reclaimable") is not False,
        open=spec.get("closed") is not True,
        namespaces=tuple(str(name) for name in spec.get("allowedNamespaces") or ()),
    )


def decode_volcano_queue(raw: RawObject) -> Queue:
    """Decodes one of Volcano's queues; raises QueueError. Its quota is `deserved`, else `guarantee`."""
    spec = raw.spec
    guaranteed = _read_resources(as_dict(spec.get("guarantee")), "resource", "spec.guarantee")
    return Queue(
        read_queue(raw.metadata.name),
        weight=_read_weight(spec),
        quota={**guaranteed, **_read_resources(spec, "deserved")},
        limit=_read_resources(spec, "capability"),
        reclaimable=spec.get("reclaimable") is not False,
        open=raw.status.get("state") not in ("Closed", "Closing"),
    )


def _read_weight(spec: Json) -> int:
    weight = spec.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
        raise QueueError(f"spec.weight: {weight!r} is not a whole number of 1 or more")
    return weight


def _read_resources(spec: Json, field: str, place: str = "spec") -> dict[str, int]:
    amounts = {name: str(amount) for name, amount in as_dict(spec.get(field)).items()}
    try:
        return read_amounts(amounts, f"{place}.{field}")
    except QuantityError as error:
        raise QueueError(str(error)) from None


# -- status


def _our_status(raw: RawObject, use: QueueUse, gpus: frozenset[str]) -> Json:
    problem = ""
    quota: Mapping[str, int] = {}
    try:
        quota = decode_queue(raw).quota
    except QueueError as error:
        problem = str(error)
    borrowed = {
        name: amount - granted
        for name, most in quota.items()
        if (amount := use.allocated.get(name, 0)) > (granted := most * (MILLI if name in gpus else 1))
    }
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
    if name != "cpu" and name not in gpus:
        return str(amount)
    return str(amount // MILLI) if amount % MILLI == 0 else f"{amount}m"
