"""What an API server sends: lists, watch events and errors, from bytes to values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import structlog

from gpu_scheduler.kube.errors import ApiError, Undecided, api_error
from gpu_scheduler.kube.objects import Object

T = TypeVar("T")

UNREADABLE = "UNREADABLE"
"""The type of an event whose object does not have the fields that its kind must have; only its metadata is known."""

_log = structlog.get_logger(__name__)


class Listed(NamedTuple, Generic[T]):
    """All objects of a kind at one moment."""

    items: Sequence[T]
    resource_version: int


class Event(msgspec.Struct, Generic[T], gc=False):
    """A line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or UNREADABLE, the latter two with metadata alone."""

    type: str
    object: T


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, Generic[T]):
    """A part of a list."""

    metadata: _ListMeta
    items: list[T] | None = None


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct, rename="camel"):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


_decoder: Callable[[Any], msgspec.json.Decoder[Any]] = lru_cache(maxsize=64)(msgspec.json.Decoder)


def read_object(data: bytes, wanted: type[T]) -> T:
    """An object; Undecided when it is not one, for who knows then what was done."""
    try:
        return _decoder(wanted).decode(data)  # type: ignore[no-any-return]
    except msgspec.MsgspecError as error:
        raise _garbled(error) from None


def read_page(data: bytes, wanted: type[T]) -> Page[T]:
    """A page of a list. An object that is not what its kind must be is left out and told of in the log."""
    try:
        return _decoder(Page[wanted]).decode(data)  # type: ignore[valid-type, no-any-return]
    except msgspec.ValidationError:
        loose = read_object(data, Page[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise _garbled(error) from None
    items: list[T] = []
    for raw in loose.items or ():
        try:
            items.append(_decoder(wanted).decode(raw))
        except msgspec.ValidationError as error:
            _tell_unreadable(read_object(raw, Object), error)
    return Page(loose.metadata, items)


def read_events(lines: bytes, wanted: type[T]) -> Sequence[Event[T]]:
    """The events of whole lines. An error among them is raised, and who watches again from before gets the others."""
    try:
        events: list[Event[T]] = _decoder(Event[wanted]).decode_lines(lines)  # type: ignore[valid-type]
    except msgspec.ValidationError:
        # Most likely a bookmark or an error, whose object is of no kind.
        return [_read_odd(line, wanted) for line in lines.splitlines()]
    except msgspec.DecodeError as error:
        raise _garbled(error) from None
    for event in events:
        if event.type == "ERROR":
            return [_read_odd(line, wanted) for line in lines.splitlines()]
    return events


def _read_odd(line: bytes, wanted: type[T]) -> Event[Any]:
    loose = read_object(line, Event[msgspec.Raw])
    if loose.type == "ERROR":
        status = read_object(loose.object, _Status)
        raise _translate(status.code, status, None)
    if loose.type == "BOOKMARK":
        return Event(loose.type, read_object(loose.object, Object))
    try:
        return Event(loose.type, _decoder(wanted).decode(loose.object))
    except msgspec.ValidationError as error:
        known = read_object(loose.object, Object)
        _tell_unreadable(known, error)
        return Event(UNREADABLE, known)


def read_revision(version: str) -> int:
    """A resourceVersion as the number that it is, so that versions can be compared."""
    try:
        return int(version)
    except ValueError:
        raise Undecided(0, "Garbled", f'the API server sent the resourceVersion "{version}", not a number') from None


def read_error(code: int, data: bytes, retry_after: str | None) -> ApiError:
    """The error that an answer is: by its Status object, or by its first line where it is not one."""
    try:
        status = msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError:
        first = data.decode(errors="replace").strip().partition("\n")[0][:200]
        status = _Status(f"HTTP {code}: {first}" if first else f"HTTP {code}")
    return _translate(code, status, retry_after)


def _translate(code: int, status: _Status, retry_after: str | None) -> ApiError:
    seconds = status.details.retry_after_seconds if status.details else None
    if retry_after and retry_after.strip().isdecimal():
        seconds = float(retry_after)
    return api_error(code, status.reason, status.message or f"HTTP {code}", seconds)


def _garbled(error: msgspec.MsgspecError) -> Undecided:
    return Undecided(0, "Garbled", f"the API server sent what cannot be read: {error}")


def _tell_unreadable(found: Object, error: Exception) -> None:
    meta = found.metadata
    _log.warning("object left out: not as its kind must be", namespace=meta.namespace, name=meta.name, error=str(error))
