"""The verbs of the REST API: from a request to the Api and back to an answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import yaml
from aiohttp import web

from embedded_kube import errors
from embedded_kube.api import Api
from embedded_kube.errors import ApiError, Cause, UndecodableError, UnreadableError, warned
from embedded_kube.patching.patch import APPLY_PATCH, Patch, apply_patch, check_content_type
from embedded_kube.schema.schemas import Schemas, parse_object
from embedded_kube.server.delete_options import read_delete_options
from embedded_kube.server.listing import forbidden, list_page
from embedded_kube.server.routes import Call
from embedded_kube.server.versions import stored_kind, to_served, to_stored
from embedded_kube.server.views import View, choose_view
from embedded_kube.server.watch import Watches
from embedded_kube.server.wire import (
    JSON,
    YAML,
    as_object,
    content_type,
    decode_body,
    encode,
    read_body,
    send,
    send_bytes,
)
from embedded_kube.storage.identity import check_name
from embedded_kube.storage.store import Json


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
        known = self._api.store.get(kind.resource, call.namespace if kind.namespaced else "", call.name)
        found, more = await self._api.update(kind, call.namespace, call.name, found, call.options())
        return self._written(call, view, found, [*warnings, *more], 200 if known is not None else 201)

    async def _change(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        kind = stored_kind(self._api.kinds, call.kind)
        check_content_type(call.kind, request.content_type)
        body, options = await read_body(request), call.options()
        # Only apply needs to know who applies; it is not told a guess.
        manager = call.query.get("fieldManager", "")
        if "force" in call.query and request.content_type != APPLY_PATCH:
            raise errors.invalid_options("PatchOptions", forbidden("force", "may not be specified for non-apply patch"))
        patch = Patch(request.content_type, body, manager, call.flag("force"), call.subresource)

        def edit(old: Json | None) -> Json:
            served = to_served(call.kind, old) if old is not None else None
            return to_stored(kind, call.kind, apply_patch(patch, served, call.kind, self._schemas))

        last: list[Json] = []

        def noted(old: Json) -> Json:
            last[:] = [edit(old)]
            return last[0]

        try:
            found, warnings = await self._api.change(kind, call.namespace, call.name, noted, options)
            status = 200
        except UndecodableError as error:
            text = f"Invalid value: {json.dumps(encode(last[0]).decode())}: {error.problem}"
            raise errors.invalid("", "", "", [Cause("patch", text)]) from None
        except ApiError as error:
            if error.code != 404 or patch.content_type != APPLY_PATCH or call.subresource:
                raise
            made = edit(None)
            meta = made.setdefault("metadata", {})
            check_name(meta, call.name)
            if meta.get("uid"):
                why = f"uid mismatch: the provided object specified uid {meta['uid']}, and no existing object was found"
                raise errors.conflict(kind.plural, kind.group, call.name, why) from None
            meta.pop("resourceVersion", None)
            found, warnings = await self._api.create(kind, call.namespace, made, options)
            status = 201
        return self._written(call, view, found, warnings, status)

    async def _delete(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        options, warnings = await read_delete_options(request, call)
        with warned(warnings):
            found = await self._api.delete(call.kind, call.namespace, call.name, options, call.options())
        if found.get("kind") == "Status":
            return send(found, 200, warnings)
        # An old way to choose the default is answered in the old way, too.
        late = options.told_background and "deletionTimestamp" in found["metadata"]
        return _answer(view, view.one(found), 202 if late else 200, warnings)

    async def _delete_many(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        options, warnings = await read_delete_options(request, call)
        page = list_page(self._api.store, call)
        for entry in page.entries:
            try:
                await self._api.delete(call.kind, entry.namespace, entry.name, replace(options), call.options())
            except ApiError as error:
                if error.code != 404:
                    raise
        return _answer(view, view.many(page.entries, page.meta), 200, warnings)

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
    kind = call.kind
    try:
        if media == JSON and asked in ("Strict", "Warn"):
            parsed, warnings = parse_object(data, kind, asked)
            found = as_object(parsed)
        else:
            found, warnings = as_object(decode_body(data, media)), []
    except UnreadableError as error:
        why = f"couldn't get version/kind; json parse error: {error}"
        raise errors.bad_request(f"the object provided is unrecognized (must be of type {kind.kind}): {why}") from None
    if kind.crd_schema is not None:
        for word in ("kind", "apiVersion"):
            if not found.get(word):
                raise _untyped(kind.kind, word[0].upper() + word[1:] if word == "kind" else word, data)
    return found, warnings


def _untyped(kind: str, word: str, data: bytes) -> ApiError:
    """What is said of a custom object that does not say what it is."""
    text = data.decode(errors="replace").strip()
    short = text if len(text) <= 30 else f"{text[:30]} ..."
    why = f"Object '{word}' is missing in '{text}'"
    return errors.bad_request(f"the object provided is unrecognized (must be of type {kind}): {why} ({short})")
