"""Handlers of the REST verbs: read a request, call the registry, encode the response."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import yaml
from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import Cause, DecodingError, MalformedBodyError, StatusError, add_warnings
from embedded_kube.patching.patch import APPLY_PATCH, PatchRequest, apply_patch, check_content_type
from embedded_kube.registry.metadata import check_name
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.schema.schemas import Schemas, parse_object
from embedded_kube.server.codec import (
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
from embedded_kube.server.delete_options import read_delete_options
from embedded_kube.server.encoders import ResponseEncoder, choose_encoder
from embedded_kube.server.listing import forbidden_parameter, list_page
from embedded_kube.server.request_info import RequestInfo
from embedded_kube.server.versions import stored_kind, to_served, to_stored
from embedded_kube.server.watch import WatchServer
from gpu_scheduler.k8s.objects import Json


class RestHandlers:
    """Handlers of all verbs on objects, and of the subresources status and finalize."""

    def __init__(self, registry: ObjectRegistry, schemas: Schemas, watches: WatchServer) -> None:
        self._registry = registry
        self._schemas = schemas
        self._verbs: dict[str, Callable[[web.Request, RequestInfo, ResponseEncoder], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "watch": watches.serve,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def serve(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """Handles a request."""
        if info.subresource and info.verb not in ("get", "update", "patch"):
            raise errors.method_not_allowed()
        encoder = choose_encoder(
            info.kind, info.verb, request.headers.get("Accept", ""), info.query.get("includeObject", "")
        )
        return await self._verbs[info.verb](request, info, encoder)

    # -- reading

    async def _get(self, _request: web.Request, info: RequestInfo, encoder: ResponseEncoder) -> web.StreamResponse:
        return _respond(encoder, encoder.encode_entry(self._registry.entry(info.kind, info.namespace, info.name)))

    async def _list(self, _request: web.Request, info: RequestInfo, encoder: ResponseEncoder) -> web.StreamResponse:
        page = list_page(self._registry.store, info)
        return _respond(encoder, encoder.encode_list(page.entries, page.meta))

    # -- writing

    async def _create(self, request: web.Request, info: RequestInfo, encoder: ResponseEncoder) -> web.StreamResponse:
        kind = stored_kind(self._registry.kinds, info.kind)
        obj, warnings = await _read(request, info)
        options = info.options()
        obj, more = await self._registry.create(kind, info.namespace, to_stored(kind, info.kind, obj), options)
        return self._respond_written(info, encoder, obj, [*warnings, *more], 201)

    async def _update(self, request: web.Request, info: RequestInfo, encoder: ResponseEncoder) -> web.StreamResponse:
        kind = stored_kind(self._registry.kinds, info.kind)
        obj, warnings = await _read(request, info)
        obj = to_stored(kind, info.kind, obj)
        known = self._registry.store.get(kind.resource, info.namespace if kind.namespaced else "", info.name)
        obj, more = await self._registry.update(kind, info.namespace, info.name, obj, info.options())
        return self._respond_written(info, encoder, obj, [*warnings, *more], 200 if known is not None else 201)

    async def _patch(self, request: web.Request, info: RequestInfo, encoder: ResponseEncoder) -> web.StreamResponse:
        kind = stored_kind(self._registry.kinds, info.kind)
        check_content_type(info.kind, request.content_type)
        body, options = await read_body(request), info.options()
        # Apply needs an explicit field manager; for other patches the user agent is used.
        manager = info.query.get("fieldManager", "")
        if "force" in info.query and request.content_type != APPLY_PATCH:
            raise errors.invalid_options(
                "PatchOptions", forbidden_parameter("force", "may not be specified for non-apply patch")
            )
        patch = PatchRequest(request.content_type, body, manager, info.flag("force"), info.subresource)

        def edit(old: Json | None) -> Json:
            served = to_served(info.kind, old) if old is not None else None
            return to_stored(kind, info.kind, apply_patch(patch, served, info.kind, self._schemas))

        last: list[Json] = []

        def recording(old: Json) -> Json:
            last[:] = [edit(old)]
            return last[0]

        try:
            obj, warnings = await self._registry.change(kind, info.namespace, info.name, recording, options)
            status = 200
        except DecodingError as error:
            text = f"Invalid value: {json.dumps(encode(last[0]).decode())}: {error.problem}"
            raise errors.invalid("", "", "", [Cause("patch", text)]) from None
        except StatusError as error:
            if error.code != 404 or patch.content_type != APPLY_PATCH or info.subresource:
                raise
            made = edit(None)
            meta = made.setdefault("metadata", {})
            check_name(meta, info.name)
            if meta.get("uid"):
                why = f"uid mismatch: the provided object specified uid {meta['uid']}, and no existing object was found"
                raise errors.conflict(kind.plural, kind.group, info.name, why) from None
            meta.pop("resourceVersion", None)
            obj, warnings = await self._registry.create(kind, info.namespace, made, options)
            status = 201
        return self._respond_written(info, encoder, obj, warnings, status)

    async def _delete(self, request: web.Request, info: RequestInfo, encoder: ResponseEncoder) -> web.StreamResponse:
        options, warnings = await read_delete_options(request, info)
        with add_warnings(warnings):
            obj = await self._registry.delete(info.kind, info.namespace, info.name, options, info.options())
        if obj.get("kind") == "Status":
            return send(obj, 200, warnings)
        # A real server answers 202 to a delete with orphanDependents: false that is not complete.
        accepted = options.legacy_background and "deletionTimestamp" in obj["metadata"]
        return _respond(encoder, encoder.encode(obj), 202 if accepted else 200, warnings)

    async def _delete_collection(
        self, request: web.Request, info: RequestInfo, encoder: ResponseEncoder
    ) -> web.StreamResponse:
        options, warnings = await read_delete_options(request, info)
        page = list_page(self._registry.store, info)
        for entry in page.entries:
            try:
                await self._registry.delete(info.kind, entry.namespace, entry.name, replace(options), info.options())
            except StatusError as error:
                if error.code != 404:
                    raise
        return _respond(encoder, encoder.encode_list(page.entries, page.meta), 200, warnings)

    def _respond_written(
        self, info: RequestInfo, encoder: ResponseEncoder, obj: Json, warnings: list[str], status: int = 200
    ) -> web.StreamResponse:
        meta = obj["metadata"]
        entry = self._registry.store.get(info.kind.resource, meta.get("namespace", ""), meta["name"])
        # A stored object is already encoded; a dry run is not stored.
        if entry is not None and meta.get("resourceVersion") == str(entry.revision) and not info.query.get("dryRun"):
            return _respond(encoder, encoder.encode_entry(entry), status, warnings)
        return _respond(encoder, encoder.encode(obj), status, warnings)


def _respond(
    encoder: ResponseEncoder, data: bytes, status: int = 200, warnings: list[str] | None = None
) -> web.Response:
    if encoder.media == YAML:
        return send_bytes(to_yaml(data), status, warnings or (), YAML)
    return send_bytes(data, status, warnings or ())


def to_yaml(data: bytes) -> bytes:
    """Converts JSON to YAML."""
    text: str = yaml.safe_dump(decode_body(data, JSON), default_flow_style=False, sort_keys=True)
    return text.encode()


async def _read(request: web.Request, info: RequestInfo) -> tuple[Json, list[str]]:
    """Reads the object in the body; returns it and, if fieldValidation is set, warnings about duplicate fields."""
    data, media = await read_body(request), content_type(request)
    asked = info.query.get("fieldValidation", "")
    kind = info.kind
    try:
        if media == JSON and asked in ("Strict", "Warn"):
            parsed, warnings = parse_object(data, kind, asked)
            obj = as_object(parsed)
        else:
            obj, warnings = as_object(decode_body(data, media)), []
    except MalformedBodyError as error:
        why = f"couldn't get version/kind; json parse error: {error}"
        raise errors.bad_request(f"the object provided is unrecognized (must be of type {kind.kind}): {why}") from None
    if kind.crd_schema is not None:
        for name in ("kind", "apiVersion"):
            if not obj.get(name):
                raise _missing_type_meta(kind.kind, name[0].upper() + name[1:] if name == "kind" else name, data)
    return obj, warnings


def _missing_type_meta(kind: str, name: str, data: bytes) -> StatusError:
    """The error for a custom object without kind or apiVersion."""
    text = data.decode(errors="replace").strip()
    short = text if len(text) <= 30 else f"{text[:30]} ..."
    why = f"Object '{name}' is missing in '{text}'"
    return errors.bad_request(f"the object provided is unrecognized (must be of type {kind}): {why} ({short})")
