"""Decoding of API responses: objects, list pages, watch events and errors."""

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
"""The type of a watch event whose object cannot be decoded to its kind; only the metadata is known."""

LONGEST_RETRY = 60.0
"""The longest Retry-After that is respected, in seconds."""

_log = structlog.get_logger(__name__)


class ObjectList(NamedTuple, Generic[T]):
    """All objects of a kind at one resourceVersion."""

    items: Sequence[T]
    resource_version: int


class WatchEvent(msgspec.Struct, Generic[T], gc=False):
    """A watch event: ADDED, MODIFIED, DELETED, BOOKMARK or UNREADABLE, the latter two with metadata only."""

    type: str
    object: T


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = "0"
    continue_: str = msgspec.field(name="continue", default="")


class ObjectPage(msgspec.Struct, Generic[T]):
    """One page of a list."""

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


_INVALID = (msgspec.ValidationError, UnicodeDecodeError)
"""Errors for JSON that does not match the type; other decoding errors mean that the data is not JSON."""

# An unterminated string extends to the end, and no byte is scanned twice: garbage must not cost time.
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]++|[\]}]++', re.DOTALL)


def read_object(data: bytes, wanted: type[T]) -> T:
    """Decodes an object; raises Undecided if that fails, because the outcome of the request is then unknown."""
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
    """Cuts the deepest parts out of JSON. The object stays too deep and is skipped; others in the data survive."""
    kept: list[bytes] = []
    left, start = 2 * MAX_DEPTH - 1, 0  # how many levels may still be opened
    for mark in _MARKS.finditer(data):
        begin, end = mark.span()
        if data[begin] in b"[{":
            if 0 <= left < end - begin:
                kept += (data[start : begin + left], b"null")
                start = len(data)  # moved back where the part ends, if it does
            left -= end - begin
        elif data[begin] in b"]}":
            left += end - begin
            if 0 <= left < end - begin:
                start = end - left
    return b"".join(kept) + data[start:]


def read_page(data: bytes, wanted: type[T]) -> ObjectPage[T]:
    """Decodes a page of a list. An object that does not match its kind is skipped and logged."""
    try:
        return _decode(data, ObjectPage[wanted])  # type: ignore[valid-type]
    except _INVALID:
        loose = read_object(data, ObjectPage[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise _garbled(error) from None
    items: list[T] = []
    for raw in loose.items or ():
        try:
            items.append(_decode(raw, wanted))
        except _INVALID as error:
            _log_unreadable(raw, error)
    return ObjectPage(loose.metadata, items)


def read_events(lines: bytes, wanted: type[T]) -> Sequence[WatchEvent[T]]:
    """Decodes watch events from complete lines. An ERROR event is raised; a new watch repeats the others."""
    try:
        events: list[WatchEvent[T]] = _decoder(WatchEvent[wanted]).decode_lines(lines)  # type: ignore[valid-type]
    except (*_INVALID, RecursionError):
        # Probably a bookmark or an error, whose object has another type.
        return _read_lines(lines, wanted)
    except msgspec.DecodeError as error:
        raise _garbled(error) from None
    for event in events:
        if event.type == "ERROR":
            return _read_lines(lines, wanted)
    return events


def _read_lines(lines: bytes, wanted: type[T]) -> Sequence[WatchEvent[T]]:
    events = (_read_line(line, wanted) for line in lines.split(b"\n") if line.strip())
    return [event for event in events if event is not None]


def _read_line(line: bytes, wanted: type[T]) -> WatchEvent[Any] | None:
    """Decodes one line; None if even the metadata of its object cannot be decoded."""
    loose = read_object(line, WatchEvent[msgspec.Raw])
    if loose.type == "ERROR":
        status = read_object(loose.object, _Status)
        raise _translate(status.code, status, None)
    form: type[Any] = Object if loose.type == "BOOKMARK" else wanted
    try:
        return WatchEvent(loose.type, _decode(loose.object, form))
    except _INVALID as error:
        known = _log_unreadable(loose.object, error)
        return WatchEvent(UNREADABLE, known) if known is not None and loose.type != "BOOKMARK" else None


def read_revision(version: str) -> int:
    """Parses a resourceVersion as a number, so that versions can be compared."""
    try:
        return int(version)
    except ValueError:
        raise Undecided(
            0, "Garbled", f"the API server sent the resourceVersion {version[:60]!a}, not a number"
        ) from None


def read_error(code: int, data: bytes, retry_after: str | None) -> ApiError:
    """Decodes an error response: its Status object, or else the first line of its body."""
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
        seconds = min(max(0.0, seconds), LONGEST_RETRY)
    return api_error(code, one_line(status.reason), one_line(status.message) or f"HTTP {code}", seconds)


def _garbled(error: Exception) -> Undecided:
    return Undecided(0, "Garbled", one_line(f"the API server sent invalid data: {error}"))


def _log_unreadable(data: bytes, error: Exception) -> Object | None:
    """Logs that an object is skipped; returns its metadata if that can be decoded."""
    try:
        known = _decode(data, Object)
    except _INVALID:
        _log.warning("object skipped: its metadata cannot be decoded", error=str(error))
        return None
    meta = known.metadata
    _log.warning(
        "object skipped: it does not match its kind", namespace=meta.namespace, name=meta.name, error=str(error)
    )
    return known
