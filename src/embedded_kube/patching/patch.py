"""Applies a PATCH request to an object, by its content type."""

from __future__ import annotations

from typing import Any, NamedTuple

from embedded_kube import errors
from embedded_kube.patching.apply import apply_configuration
from embedded_kube.patching.json_patch import JsonPatchError, apply_operations
from embedded_kube.patching.strategic import merge_strategically
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.schema.jsontext import load, load_yaml
from embedded_kube.schema.schemas import Schemas
from embedded_kube.schema.type_schema import TypeSchema
from gpu_scheduler.k8s.objects import Json

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
CONTENT_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH, STRATEGIC_PATCH)

MAX_OPERATIONS = 10_000


class PatchRequest(NamedTuple):
    """The body and the parameters of a PATCH request."""

    content_type: str
    body: bytes
    field_manager: str = ""
    force: bool = False
    subresource: str = ""


def check_content_type(kind: ServedKind, content_type: str) -> None:
    """Raises UnsupportedMediaType (415) for an unknown patch type."""
    if content_type not in CONTENT_TYPES and kind.crd_schema is None:
        raise errors.unsupported_media_type("415: Unsupported Media Type")
    known = [name for name in CONTENT_TYPES if name != STRATEGIC_PATCH or kind.crd_schema is None]
    if content_type not in known:
        types = ", ".join(known)
        raise errors.unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {types}"
        )


def apply_patch(patch: PatchRequest, old: Json | None, kind: ServedKind, schemas: Schemas) -> Json:
    """The patched object; may change `old`. With `old` None, server-side apply creates an object."""
    if patch.content_type == APPLY_PATCH:
        return _server_side_apply(patch, old, kind, schemas)
    if old is None:
        raise errors.not_found(kind.plural, kind.group, "")
    body = load(patch.body)
    if patch.content_type == JSON_PATCH:
        found = _json_patch(old, body)
    else:
        if body is None and patch.content_type == STRATEGIC_PATCH:
            body = {}
        if not isinstance(body, dict):
            raise errors.bad_request(f"a patch of type {patch.content_type} must be a JSON object")
        if patch.content_type == MERGE_PATCH:
            found = merge(old, body)
        else:
            found = merge_strategically(old, body, schemas.type_schema(kind))
    if not isinstance(found, dict) or not isinstance(found.get("metadata", {}), dict):
        raise errors.bad_request("the patched object must be a JSON object with an object as its metadata")
    return found


def merge(old: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396): merges objects, null deletes, any other value replaces."""
    if not isinstance(patch, dict):
        return patch
    made = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge(made.get(name), value)
    return made


def _json_patch(old: Json, operations: Any) -> Any:
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise errors.bad_request("error decoding patch: a JSON patch must be a list of objects, each with op and path")
    if len(operations) > MAX_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise errors.StatusError(413, "RequestEntityTooLarge", message)
    try:
        return apply_operations(old, operations)
    except JsonPatchError:
        raise errors.StatusError(422, "Invalid", REJECTED) from None


REJECTED = "the server rejected our request due to an error in our request"


def _check_declared(applied: Json, schema: TypeSchema, kind: ServedKind) -> None:
    """Refuses a configuration with fields that the schema does not declare."""
    path = _undeclared(applied, schema, "")
    if path:
        meta = applied.get("metadata", {})
        about = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {kind.group}/{kind.version}, Kind={kind.kind}"
        raise errors.untyped(f"failed to create typed patch object ({about}): {path}: field not declared in schema")


def _undeclared(value: Any, schema: TypeSchema, path: str) -> str:
    """The path of the first undeclared field, or ""."""
    if isinstance(value, dict) and schema.type == "struct":
        for name, item in value.items():
            if name not in schema.fields:
                return f"{path}.{name}"
            found = _undeclared(item, schema.fields[name], f"{path}.{name}")
            if found:
                return found
    return ""


def _server_side_apply(patch: PatchRequest, old: Json | None, kind: ServedKind, schemas: Schemas) -> Json:
    applied = load_yaml(patch.body)
    if not isinstance(applied, dict) or not isinstance(applied.get("metadata", {}), dict):
        raise errors.bad_request("an apply configuration must be an object with apiVersion, kind and metadata")
    if not patch.field_manager:
        text = "Required value: is required for apply patch"
        raise errors.invalid(
            "PatchOptions", "meta.k8s.io", "", [errors.Cause("fieldManager", text, "FieldValueRequired")]
        )
    for name, wanted in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if applied.get(name) != wanted:
            raise errors.bad_request(f"an apply configuration must say {name}: {wanted}, not {applied.get(name)!r}")
    if applied.get("metadata", {}).get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    if kind.crd_schema is None:
        _check_declared(applied, schemas.type_schema(kind), kind)
    manager = (patch.field_manager, patch.subresource)
    return apply_configuration(old, applied, schemas.type_schema(kind), manager, patch.force)
