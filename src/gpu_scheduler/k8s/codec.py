"""What an API server sends: lists, watch events and errors, from bytes to values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import structlog

from gpu_scheduler.base.text import one_line
from gpu_scheduler.k8s.errors import ApiError, Undecided, api_error
from gpu_scheduler.k8s.objects import MAX_DEPTH, Object

T = TypeVar("T")

UNREADABLE = "UNREADABLE"
"""The type of an event whose object does not have the fields that its kind must have; only its metadata is known."""

LONGEST_RETRY = 60.0
"""The longest pause that a server may ask for, in seconds."""

_log = structlog.get_logger(__name__)


class ObjectList(NamedTuple, Generic[T]):
    """All objects of a kind at one moment."""

    items: Sequence[T]
    resource_version: int


class WatchEvent(msgspec.Struct, Generic[T], gc=False):
    """A line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or UNREADABLE, the latter two with metadata alone."""

    type: str
    object: T


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    continue_: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[T]):
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


_WRONG = (msgspec.ValidationError, UnicodeDecodeError)
"""What decoding raises for JSON that is not what it should be; anything else means that it is no JSON."""

# A text that nobody ends goes on to the end, and nothing is looked at twice: who sends garbage must not cost time.
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]++|[\]}]++', re.DOTALL)


def read_object(data: bytes, wanted: type[T]) -> T:
    """An object; Undecided when it is not one, for who knows then what was done."""
    try:
        return _decode(data, wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _garbled(error) from None


def _decode(data: bytes, wanted: type[T]) -> T:
    try:
        return _decoder(wanted).decode(data)  # type: ignore[no-any-return]
    except RecursionError:
        return _decoder(wanted).decode(_cut_deep(data))  # type: ignore[no-any-return]


def _cut_deep(data: bytes) -> bytes:
    """JSON without its deepest parts, but still too deep, so that the object is left out and the others are not."""
    kept: list[bytes] = []
    room, start = 2 * MAX_DEPTH - 1, 0  # how many levels may still be opened
    for mark in _MARKS.finditer(data):
        begin, end = mark.span()
        if data[begin] in b"[{":
            if 0 <= room < end - begin:
                kept += (data[start : begin + room], b"null")
                start = len(data)  # until it ends: what never ends is cut off
            room -= end - begin
        elif data[begin] in b"]}":
            room += end - begin
            if 0 <= room < end - begin:
                start = end - room
    return b"".join(kept) + data[start:]


def read_page(data: bytes, wanted: type[T]) -> ListPage[T]:
    """A page of a list. An object that is not what its kind must be is left out and told of in the log."""
    try:
        return _decode(data, ListPage[wanted])  # type: ignore[valid-type]
    except _WRONG:
        loose = read_object(data, ListPage[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise _garbled(error) from None
    items: list[T] = []
    for raw in loose.items or ():
        try:
            items.append(_decode(raw, wanted))
        except _WRONG as error:
            _tell_unreadable(raw, error)
    return ListPage(loose.metadata, items)


def read_events(lines: bytes, wanted: type[T]) -> Sequence[WatchEvent[T]]:
    """The events of whole lines. An error among them is raised, and who watches again from before gets the others."""
    try:
        events: list[WatchEvent[T]] = _decoder(WatchEvent[wanted]).decode_lines(lines)  # type: ignore[valid-type]
    except (*_WRONG, RecursionError):
        # Most likely a bookmark or an error, whose object is of no kind.
        return _read_odd_lines(lines, wanted)
    except msgspec.DecodeError as error:
        raise _garbled(error) from None
    for event in events:
        if event.type == "ERROR":
            return _read_odd_lines(lines, wanted)
    return events


def _read_odd_lines(lines: bytes, wanted: type[T]) -> Sequence[WatchEvent[T]]:
    events = (_read_odd(line, wanted) for line in lines.split(b"\n") if line.strip())
    return [event for event in events if event is not None]


def _read_odd(line: bytes, wanted: type[T]) -> WatchEvent[Any] | None:
    """The event of a line; None when nobody can tell which object it is about."""
    loose = read_object(line, WatchEvent[msgspec.Raw])
    if loose.type == "ERROR":
        status = read_object(loose.object, _Status)
        raise _translate(status.code, status, None)
    form: type[Any] = Object if loose.type == "BOOKMARK" else wanted
    try:
        return WatchEvent(loose.type, _decode(loose.object, form))
    except _WRONG as error:
        known = _tell_unreadable(loose.object, error)
        return WatchEvent(UNREADABLE, known) if known is not None and loose.type != "BOOKMARK" else None


def read_revision(version: str) -> int:
    """A resourceVersion as the number that it is, so that versions can be compared."""
    try:
        return int(version)
    except ValueError:
        raise Undecided(
            0, "Garbled", f"the API server sent the resourceVersion {version[:60]!a}, not a number"
        ) from None


def read_error(code: int, data: bytes, retry_after: str | None) -> ApiError:
    """The error that an answer is: by its Status object, or by its first line where it is not one."""
    try:
        status = msgspec.json.decode(data, type=_Status)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        first = data.decode(errors="replace").strip().partition("\n")[0][:200]
        status = _Status(f"HTTP {code}: {first}" if first else f"HTTP {code}")
    return _translate(code, status, retry_after)


def _translate(code: int, status: _Status, retry_after: str | None) -> ApiError:
    seconds = status.details.retry_after_seconds if status.details else None
    if retry_after and retry_after.strip().isdecimal():
        seconds = float(retry_after)
    if seconds is not None:
        # Whoever is told to come back in a year looks again sooner.
        seconds = min(max(0.0, seconds), LONGEST_RETRY)
    return api_error(code, one_line(status.reason), one_line(status.message) or f"HTTP {code}", seconds)


def _garbled(error: Exception) -> Undecided:
    return Undecided(0, "Garbled", one_line(f"the API server sent what cannot be read: {error}"))


def _tell_unreadable(data: bytes, error: Exception) -> Object | None:
    """Says that an object is left out; what is known of it, if anything is."""
    try:
        known = _decode(data, Object)
    except _WRONG:
        _log.warning("object left out: not even its metadata can be read", error=str(error))
        return None
    meta = known.metadata
    _log.warning("object left out: not as its kind must be", namespace=meta.namespace, name=meta.name, error=str(error))
    return known
