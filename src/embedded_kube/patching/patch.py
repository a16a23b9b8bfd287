"""Patches: from an object and a request's body to the object that is meant."""

from __future__ import annotations

from typing import Any, NamedTuple

from embedded_kube import errors
from embedded_kube.patching.apply import apply_configuration
from embedded_kube.patching.json_patch import PatchError, patched
from embedded_kube.patching.strategic import merge_strategically
from embedded_kube.schema.jsontext import load, load_yaml
from embedded_kube.schema.schemas import Schemas
from embedded_kube.schema.shapes import Shape
from embedded_kube.storage.kinds import Kind
from embedded_kube.storage.store import Json

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
CONTENT_TYPES = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH, STRATEGIC_PATCH)

MOST_OPERATIONS = 10_000


class Patch(NamedTuple):
    """What a PATCH request carries."""

    content_type: str
    body: bytes
    field_manager: str = ""
    force: bool = False
    subresource: str = ""


def check_content_type(kind: Kind, content_type: str) -> None:
    """415 for a patch that nobody understands."""
    if content_type not in CONTENT_TYPES and kind.crd_schema is None:
        raise errors.unsupported("415: Unsupported Media Type")
    known = [name for name in CONTENT_TYPES if name != STRATEGIC_PATCH or kind.crd_schema is None]
    if content_type not in known:
        told = ", ".join(known)
        raise errors.unsupported(
            f"the body of the request was in an unknown format - accepted media types include: {told}"
        )


def apply_patch(patch: Patch, old: Json | None, kind: Kind, schemas: Schemas) -> Json:
    """The patched object, a new one; `old` may be changed. None for `old` is server-side apply making an object."""
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
            found = merge_strategically(old, body, schemas.shape(kind))
    if not isinstance(found, dict) or not isinstance(found.get("metadata", {}), dict):
        raise errors.bad_request("the patched object must be a JSON object with an object as its metadata")
    return found


def merge(old: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged, null deletes, everything else replaces."""
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
    if len(operations) > MOST_OPERATIONS:
        message = f"The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {len(operations)}"
        raise errors.ApiError(413, "RequestEntityTooLarge", message)
    try:
        return patched(old, operations)
    except PatchError:
        raise errors.ApiError(422, "Invalid", REJECTED) from None


REJECTED = "the server rejected our request due to an error in our request"


def _check_declared(applied: Json, shape: Shape, kind: Kind) -> None:
    """A configuration may only have fields that exist; a real server fails on others."""
    path = _undeclared(applied, shape, "")
    if path:
        meta = applied.get("metadata", {})
        about = f"{meta.get('namespace', '')}/{meta.get('name', '')}; {kind.group}/{kind.version}, Kind={kind.kind}"
        raise errors.unnamed(f"failed to create typed patch object ({about}): {path}: field not declared in schema")


def _undeclared(value: Any, shape: Shape, path: str) -> str:
    """The path of a field that does not exist."""
    if isinstance(value, dict) and shape.type == "struct":
        for name, item in value.items():
            if name not in shape.fields:
                return f"{path}.{name}"
            found = _undeclared(item, shape.fields[name], f"{path}.{name}")
            if found:
                return found
    return ""


def _server_side_apply(patch: Patch, old: Json | None, kind: Kind, schemas: Schemas) -> Json:
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
        _check_declared(applied, schemas.shape(kind), kind)
    manager = (patch.field_manager, patch.subresource)
    return apply_configuration(old, applied, schemas.shape(kind), manager, patch.force)
