"""Request bodies, responses, and content negotiation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import StatusError
from embedded_kube.schema.jsontext import parse_yaml
from embedded_kube.server.protobuf import CONTENT_TYPE, decode_protobuf
from gpu_scheduler.base import documents
from gpu_scheduler.k8s.objects import Json

MAX_BODY_BYTES = 3 * 1024 * 1024

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode

JSON = "application/json"
YAML = "application/yaml"
_NOT_CACHED = {"Cache-Control": "no-cache, private"}


async def read_body(request: web.Request) -> bytes:
    """Reads the body; RequestEntityTooLarge (413) above the limit."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        message = f"Request entity too large: limit is {MAX_BODY_BYTES}"
        raise StatusError(413, "RequestEntityTooLarge", message) from None


async def read_object(request: web.Request) -> Json:
    """Reads the object in the body."""
    data = await read_body(request)
    return as_object(decode_body(data, content_type(request)))


def content_type(request: web.Request) -> str:
    """The media type of the body; JSON by default."""
    return request.content_type if "Content-Type" in request.headers else JSON


def as_object(obj: Any) -> Json:
    """The decoded body as an object; MalformedBodyError if it is none."""
    if obj is None:
        return {}
    if not isinstance(obj, dict):
        raise errors.MalformedBodyError("the body of the request must be one object (a JSON or YAML mapping)")
    if obj.get("metadata", obj) is None:
        del obj["metadata"]
    if not isinstance(obj.get("metadata", {}), dict):
        raise errors.bad_request("metadata must be an object (a JSON or YAML mapping)")
    return obj


def decode_body(data: bytes, media: str) -> Any:
    """Decodes a body; 415 for an unknown media type, 400 if it is malformed."""
    if media == JSON or media.endswith("+json"):
        try:
            return decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise errors.MalformedBodyError(f"the body of the request is not JSON: {error}") from None
    if media in (YAML, "text/yaml", "application/x-yaml") or media.endswith("+yaml"):
        try:
            return parse_yaml(data)
        except documents.BadDocumentError as error:
            raise errors.MalformedBodyError(f"the body of the request is not YAML: {error}") from None
    if media == CONTENT_TYPE:
        return decode_protobuf(data)
    raise errors.unsupported_media_type(
        "the body of the request was in an unknown format - "
        f"accepted media types include: {JSON}, {YAML}, {CONTENT_TYPE}"
    )


def send_bytes(data: bytes, status: int = 200, warnings: Iterable[str] = (), media: str = JSON) -> web.Response:
    """Makes a response of encoded data."""
    response = web.Response(body=data, status=status, content_type=media, headers=_NOT_CACHED)
    for warning in warnings:
        text = "".join(letter if letter.isprintable() else " " for letter in warning)
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def send(obj: Any, status: int = 200, warnings: Iterable[str] = ()) -> web.Response:
    """Makes a response of an object."""
    return send_bytes(encode(obj), status, warnings)


def send_error(error: StatusError) -> web.Response:
    """Makes the response of an error."""
    response = send(error.status(), error.code, error.warnings)
    if error.code == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="gpu-scheduler"'
    retry = error.details.get("retryAfterSeconds")
    if retry:
        response.headers["Retry-After"] = str(retry)
    return response


class AcceptHeader:
    """The media types and forms that a client accepts, in its order of preference."""

    def __init__(self, header: str) -> None:
        self._ranges = [_media_range(part) for part in header.split(",") if part.strip()]

    def form(self, forms: Iterable[str]) -> tuple[str, str]:
        """The first supported pair of form and media type; the form "" is the object itself, else "Table" and so on."""
        known = set(forms)
        if not self._ranges:
            return "", JSON
        for media, parameters in self._ranges:
            kind = parameters.get("as", "")
            if kind and (kind not in known or parameters.get("g", "meta.k8s.io") != "meta.k8s.io"):
                continue
            if kind and parameters.get("v", "v1") not in ("v1", "v1beta1"):
                continue
            if media in (JSON, "*/*"):
                return kind, JSON
            if media in (YAML, "text/yaml"):
                return kind, YAML
        message = "only the following media types are accepted: application/json, application/yaml"
        raise StatusError(406, "NotAcceptable", message)

    def discovery(self) -> str:
        """The accepted version of aggregated discovery, or ""."""
        for media, parameters in self._ranges:
            if media not in (JSON, "*/*", "application/*"):
                continue
            if parameters.get("as") == "APIGroupDiscoveryList" and parameters.get("g") == "apidiscovery.k8s.io":
                if parameters.get("v") in ("v2", "v2beta1"):
                    return parameters["v"]
            elif "as" not in parameters:
                return ""
        return ""


def _media_range(text: str) -> tuple[str, dict[str, str]]:
    media, *parameters = text.split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    return media.strip().lower(), {name.strip(): value.strip() for name, _, value in pairs}
