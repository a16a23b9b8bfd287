"""The verbs of the REST API: from a request to the Api and back to an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import yaml
from aiohttp import web

from gpu_scheduler.local import errors
from gpu_scheduler.local.api import Api, DeleteOptions
from gpu_scheduler.local.errors import ApiError
from gpu_scheduler.local.listing import list_page
from gpu_scheduler.local.patch import APPLY_PATCH, Patch, apply_patch
from gpu_scheduler.local.routes import Call, is_dry_run
from gpu_scheduler.local.schemas import Schemas, parse_object
from gpu_scheduler.local.store import Json
from gpu_scheduler.local.versions import stored_kind, to_served, to_stored
from gpu_scheduler.local.views import View, choose_view
from gpu_scheduler.local.watch import Watches
from gpu_scheduler.local.wire import JSON, YAML, as_object, content_type, decode_body, read_body, send, send_bytes

# A real server answers a delete of these with the object, of all others with a Status.
_SHOWN_AFTER_DELETE = frozenset(
    {"pods", "services", "serviceaccounts", "persistentvolumes", "persistentvolumeclaims", "podtemplates"}
)


class Verbs:
    """Every verb on objects and on what a kind does not leave to others of its subresources."""

    def __init__(self, api: Api, schemas: Schemas, watches: Watches) -> None:
        self._api = api
        self._schemas = schemas
        self._verbs: dict[str, Callable[[web.Request, Call, View], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "watch": watches.serve,
            "create": self._create,
            "update": self._update,
            "patch": self._change,
            "delete": self._delete,
            "deletecollection": self._delete_many,
        }

    async def serve(self, request: web.Request, call: Call) -> web.StreamResponse:
        """Answers a request."""
        if call.subresource and call.verb not in ("get", "update", "patch"):
            raise errors.not_allowed()
        view = choose_view(call.kind, call.verb, request.headers.get("Accept", ""), call.query.get("includeObject", ""))
        return await self._verbs[call.verb](request, call, view)

    # -- reading

    async def _get(self, _request: web.Request, call: Call, view: View) -> web.StreamResponse:
        return _answer(view, view.entry(self._api.entry(call.kind, call.namespace, call.name)))

    async def _list(self, _request: web.Request, call: Call, view: View) -> web.StreamResponse:
        page = list_page(self._api.store, call)
        return _answer(view, view.many(page.entries, page.meta))

    # -- writing

    async def _create(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        kind = stored_kind(self._api.kinds, call.kind)
        found, warnings = await _read(request, call)
        options = call.options()
        found, more = await self._api.create(kind, call.namespace, to_stored(kind, call.kind, found), options)
        return self._written(call, view, found, [*warnings, *more], 201)

    async def _update(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        kind = stored_kind(self._api.kinds, call.kind)
        found, warnings = await _read(request, call)
        found = to_stored(kind, call.kind, found)
        found, more = await self._api.update(kind, call.namespace, call.name, found, call.options())
        return self._written(call, view, found, [*warnings, *more])

    async def _change(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        kind = stored_kind(self._api.kinds, call.kind)
        body, options = await read_body(request), call.options()
        # Only apply needs to know who applies; it is not told a guess.
        manager = call.query.get("fieldManager", "")
        patch = Patch(request.content_type, body, manager, call.flag("force"), call.subresource)

        def edit(old: Json | None) -> Json:
            served = to_served(call.kind, old) if old is not None else None
            return to_stored(kind, call.kind, apply_patch(patch, served, call.kind, self._schemas))

        try:
            found, warnings = await self._api.change(kind, call.namespace, call.name, edit, options)
            status = 200
        except ApiError as error:
            if error.code != 404 or patch.content_type != APPLY_PATCH or call.subresource:
                raise
            made = edit(None)
            made.setdefault("metadata", {}).setdefault("name", call.name)
            found, warnings = await self._api.create(kind, call.namespace, made, options)
            status = 201
        return self._written(call, view, found, warnings, status)

    async def _delete(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        options = await _read_delete_options(request, call)
        shown = self._api.entry(call.kind, call.namespace, call.name)
        found = await self._api.delete(call.kind, call.namespace, call.name, options, call.options())
        if found.get("kind") != "Status":
            return _answer(view, view.one(found))
        if call.kind.resource in _SHOWN_AFTER_DELETE:
            return _answer(view, view.entry(shown))
        return send(found)

    async def _delete_many(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        options = await _read_delete_options(request, call)
        page = list_page(self._api.store, call)
        for entry in page.entries:
            try:
                await self._api.delete(call.kind, entry.namespace, entry.name, replace(options), call.options())
            except ApiError as error:
                if error.code != 404:
                    raise
        return _answer(view, view.many(page.entries, page.meta))

    def _written(
        self, call: Call, view: View, found: Json, warnings: list[str], status: int = 200
    ) -> web.StreamResponse:
        meta = found["metadata"]
        entry = self._api.store.get(call.kind.resource, meta.get("namespace", ""), meta["name"])
        # What was stored is already written out; a dry run is not stored.
        if entry is not None and meta.get("resourceVersion") == str(entry.revision) and not call.query.get("dryRun"):
            return _answer(view, view.entry(entry), status, warnings)
        return _answer(view, view.one(found), status, warnings)


def _answer(view: View, data: bytes, status: int = 200, warnings: list[str] | None = None) -> web.Response:
    if view.media == YAML:
        return send_bytes(to_yaml(data), status, warnings or (), YAML)
    return send_bytes(data, status, warnings or ())


def to_yaml(data: bytes) -> bytes:
    """JSON as YAML."""
    text: str = yaml.safe_dump(decode_body(data, JSON), default_flow_style=False, sort_keys=True)
    return text.encode()


async def _read(request: web.Request, call: Call) -> tuple[Json, list[str]]:
    """The object in the body, with warnings about fields that it has twice if somebody asked to hear of them."""
    data, media = await read_body(request), content_type(request)
    asked = call.query.get("fieldValidation", "")
    if media == JSON and asked in ("Strict", "Warn"):
        found, warnings = parse_object(data, call.kind, asked)
        return as_object(found), warnings
    return as_object(decode_body(data, media)), []


class _Preconditions(msgspec.Struct, rename="camel"):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteBody(msgspec.Struct, rename="camel"):
    """DeleteOptions as they are sent."""

    grace_period_seconds: Annotated[int, msgspec.Meta(ge=0)] | None = None
    propagation_policy: Literal["", "Background", "Foreground", "Orphan"] | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None
    preconditions: _Preconditions | None = None


async def _read_delete_options(request: web.Request, call: Call) -> DeleteOptions:
    """The options of a delete: the body's if there is one, else the query's."""
    data = await read_body(request) if request.body_exists else b""
    said: Any = decode_body(data, content_type(request)) if data.strip() else _delete_query(call)
    try:
        options = msgspec.convert(said, _DeleteBody)
    except msgspec.ValidationError as error:
        raise errors.bad_request(f"the options of the delete are not valid: {error}") from None
    before = options.preconditions or _Preconditions()
    return DeleteOptions(
        grace=options.grace_period_seconds,
        uid=before.uid,
        revision=before.resource_version,
        propagation=options.propagation_policy or ("Orphan" if options.orphan_dependents else "Background"),
        dry_run=any(is_dry_run(word) for word in options.dry_run or ()),
    )


def _delete_query(call: Call) -> Json:
    return {
        "gracePeriodSeconds": call.number("gracePeriodSeconds"),
        "propagationPolicy": call.query.get("propagationPolicy"),
        "orphanDependents": call.flag("orphanDependents"),
        "dryRun": [call.query["dryRun"]] if call.query.get("dryRun") else None,
    }
