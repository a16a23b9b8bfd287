"""Lists: selection, resourceVersion and paging.

All pages of a list show the state at the revision of the first page. When the store no longer keeps the changes since
that revision, a continue token gets 410 Expired.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from embedded_kube import errors
from embedded_kube.errors import Cause, StatusError
from embedded_kube.server.request_info import RequestInfo
from embedded_kube.server.selectors import SelectionPredicate
from embedded_kube.storage.store import NamespacedName, Store, StoreEntry
from gpu_scheduler.k8s.objects import Json


class EntryPage(NamedTuple):
    """The entries and the metadata of a list response."""

    entries: list[StoreEntry]
    meta: Json


class _ContinueToken(msgspec.Struct):
    """A continue token: the revision of the list, and the last object of the page."""

    revision: int
    namespace: str
    name: str


def make_predicate(info: RequestInfo) -> SelectionPredicate:
    """The predicate of a list or watch: namespace, selectors and, for a watch of one object, its name."""
    fields = info.query.get("fieldSelector", "")
    if info.name:
        fields = f"{fields},metadata.name={info.name}" if fields else f"metadata.name={info.name}"
    return SelectionPredicate(info.kind, info.namespace, info.query.get("labelSelector", ""), fields)


def list_page(store: Store, info: RequestInfo) -> EntryPage:
    """One page of a list, or all of it."""
    query = info.query
    if not query:
        return EntryPage(list(store.entries(info.kind.resource, info.namespace)), _meta(store.revision))
    predicate = make_predicate(info)
    limit = info.number("limit") or 0
    info.number("timeoutSeconds")
    token = _decode_token(query["continue"]) if query.get("continue") else None
    revision = token.revision if token is not None else _list_revision(store, info)
    try:
        entries: Iterable[StoreEntry] = store.entries_at(info.kind.resource, info.namespace, revision)
    except StatusError as error:
        if token is None:
            raise
        message = "The provided continue parameter is too old to display a consistent list result. Start a new list "
        raise errors.expired(message + "without the continue parameter.") from error
    if token is not None:
        after: NamespacedName = (token.namespace, token.name)
        entries = [entry for entry in entries if (entry.namespace, entry.name) > after]
    if predicate.selective:
        entries = [entry for entry in entries if predicate.matches(entry)]
    found = list(entries)
    if limit <= 0 or len(found) <= limit:
        return EntryPage(found, _meta(revision))
    meta = _meta(revision)
    last = found[limit - 1]
    meta["continue"] = _encode_token(_ContinueToken(revision, last.namespace, last.name))
    if not predicate.selective:
        meta["remainingItemCount"] = len(found) - limit
    return EntryPage(found[:limit], meta)


def _meta(revision: int) -> Json:
    return {"resourceVersion": str(revision)}


def _list_revision(store: Store, info: RequestInfo) -> int:
    """The revision that a list shows: the latest, unless resourceVersionMatch is Exact."""
    match = info.query.get("resourceVersionMatch", "")
    asked = parse_revision(info.query.get("resourceVersion", ""))
    causes = []
    if info.query.get("sendInitialEvents"):
        causes.append(forbidden_parameter("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if match and asked is None:
        causes.append(
            forbidden_parameter(_MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided")
        )
    if match not in ("", "Exact", "NotOlderThan"):
        message = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
        causes.append(Cause(_MATCH, message, "FieldValueNotSupported"))
    if match == "Exact" and asked == 0:
        causes.append(forbidden_parameter(_MATCH, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    if causes:
        raise errors.invalid_options("ListOptions", *causes)
    if asked is None:
        return store.revision
    if asked > store.revision:
        raise resource_version_too_large(asked, store.revision)
    return asked if match == "Exact" else store.revision


_MATCH = "resourceVersionMatch"


def forbidden_parameter(field: str, why: str) -> Cause:
    """The cause for a parameter that is not allowed."""
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


def parse_revision(text: str) -> int | None:
    """Parses the resourceVersion of a query; None if it is empty."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise errors.bad_request(f'resourceVersion: Invalid value: "{text}": must be a whole number')
    return int(text)


def resource_version_too_large(asked: int, latest: int) -> StatusError:
    """The error for a resourceVersion above the latest; clients retry, or list without one."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {latest}"
    return StatusError(504, "Timeout", message, details)


def _encode_token(token: _ContinueToken) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decode_token(text: str) -> _ContinueToken:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_ContinueToken)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        why = "invalid continue token: continue key is not valid: it must be the one that the previous page gave"
        raise errors.bad_request(why) from None
