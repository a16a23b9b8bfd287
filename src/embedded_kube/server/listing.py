"""Lists: which objects, at which resourceVersion, in how many pages.

A page is cut from the state of one revision: later pages show what was there when the first was read, however much has
changed since, as long as the store remembers the changes in between; after that a continue token is answered with 410.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from embedded_kube import errors
from embedded_kube.errors import ApiError, Cause
from embedded_kube.server.routes import Call
from embedded_kube.server.selectors import Selection
from embedded_kube.storage.store import Entry, Json, Name, Store


class Page(NamedTuple):
    """What a list is answered with."""

    entries: list[Entry]
    meta: Json


class _Token(msgspec.Struct):
    """Where the next page begins: after a name, at a revision."""

    revision: int
    namespace: str
    name: str


def select(call: Call) -> Selection:
    """The objects that a request names by namespace, selectors and, for a watch of one object, by name."""
    fields = call.query.get("fieldSelector", "")
    if call.name:
        fields = f"{fields},metadata.name={call.name}" if fields else f"metadata.name={call.name}"
    return Selection(call.kind, call.namespace, call.query.get("labelSelector", ""), fields)


def list_page(store: Store, call: Call) -> Page:
    """One page of a list, or all of it."""
    query = call.query
    if not query:
        return Page(list(store.entries(call.kind.resource, call.namespace)), _meta(store.revision))
    selection = select(call)
    limit = call.number("limit") or 0
    call.number("timeoutSeconds")
    token = _read_token(query["continue"]) if query.get("continue") else None
    revision = token.revision if token is not None else _revision_of_list(store, call)
    try:
        entries: Iterable[Entry] = store.entries_at(call.kind.resource, call.namespace, revision)
    except ApiError as error:
        if token is None:
            raise
        message = "The provided continue parameter is too old to display a consistent list result. Start a new list "
        raise errors.gone(message + "without the continue parameter.") from error
    if token is not None:
        after: Name = (token.namespace, token.name)
        entries = [entry for entry in entries if (entry.namespace, entry.name) > after]
    if selection.selective:
        entries = [entry for entry in entries if selection.matches(entry)]
    found = list(entries)
    if limit <= 0 or len(found) <= limit:
        return Page(found, _meta(revision))
    meta = _meta(revision)
    last = found[limit - 1]
    meta["continue"] = _write_token(_Token(revision, last.namespace, last.name))
    if not selection.selective:
        meta["remainingItemCount"] = len(found) - limit
    return Page(found[:limit], meta)


def _meta(revision: int) -> Json:
    return {"resourceVersion": str(revision)}


def _revision_of_list(store: Store, call: Call) -> int:
    """The state that a list shows: the latest, unless one revision exactly is wanted."""
    match = call.query.get("resourceVersionMatch", "")
    asked = parse_revision(call.query.get("resourceVersion", ""))
    causes = []
    if call.query.get("sendInitialEvents"):
        causes.append(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if match and asked is None:
        causes.append(forbidden(_MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
    if match not in ("", "Exact", "NotOlderThan"):
        told = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
        causes.append(Cause(_MATCH, told, "FieldValueNotSupported"))
    if match == "Exact" and asked == 0:
        causes.append(forbidden(_MATCH, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    if causes:
        raise errors.invalid_options("ListOptions", *causes)
    if asked is None:
        return store.revision
    if asked > store.revision:
        raise too_large(asked, store.revision)
    return asked if match == "Exact" else store.revision


_MATCH = "resourceVersionMatch"


def forbidden(field: str, why: str) -> Cause:
    """A parameter that must not be there."""
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


def parse_revision(text: str) -> int | None:
    """A resourceVersion of a query; None when there is none."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise errors.bad_request(f'resourceVersion: Invalid value: "{text}": must be a whole number')
    return int(text)


def too_large(asked: int, latest: int) -> ApiError:
    """The client has seen a revision that is still to come; it should ask again, or without one."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {latest}"
    return ApiError(504, "Timeout", message, details)


def _write_token(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _read_token(text: str) -> _Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        why = "invalid continue token: continue key is not valid: it must be the one that the previous page gave"
        raise errors.bad_request(why) from None
