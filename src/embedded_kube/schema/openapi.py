"""OpenAPI v3 documents of what is served, for `kubectl explain`, `kubectl apply` and its validation on the server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from embedded_kube.schema.shapes import Shape, Types
from embedded_kube.storage.kinds import Kind, Kinds

Json = dict[str, Any]

_PACKAGES = {
    "meta": "io.k8s.apimachinery.pkg.apis.meta",
    "apiextensions": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
}
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_SCALARS: dict[str, Json] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "double": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
_NAMED: dict[str, tuple[str, Json]] = {
    "time": (_META + "Time", {"type": "string", "format": "date-time"}),
    "microtime": (_META + "MicroTime", {"type": "string", "format": "date-time"}),
    "quantity": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {"oneOf": [{"type": "string"}, {"type": "number"}]},
    ),
    "intstr": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    ),
}
_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")

VERSION_2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
EMPTY_VERSION_2 = b"\x0a\x032.0\x12\x12\x0a\x0aKubernetes\x12\x04v1.0\x42\x00"
"""An OpenAPI v2 document (swagger, info, paths) that describes nothing: kubectl asks for one before it sends a List,
skips what it does not find there, and leaves the validation to the server."""


def index(kinds: Kinds) -> Json:
    """Which documents there are; the hash lets clients keep the ones that did not change."""
    found: dict[str, list[Kind]] = {}
    for kind in kinds:
        found.setdefault(_root(kind), []).append(kind)
    return {
        "paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash={_hash(of)}"} for root, of in found.items()}
    }


def _root(kind: Kind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def _hash(kinds: list[Kind]) -> str:
    told = [(kind.plural, kind.kind, kind.namespaced, kind.subresources, kind.crd_schema) for kind in kinds]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32].upper()


def document(group_version: str, kinds: Kinds, types: Types) -> Json | None:
    """The document of a group version ("apis/apps/v1", "api/v1"); None when nothing of it is served."""
    wanted = group_version.removeprefix("apis/").removeprefix("api/")
    served = [kind for kind in kinds if kind.api_version == wanted]
    if not served:
        return None
    pages: Json = {}
    components = _Components(types)
    for kind in served:
        pages.update(_paths(kind))
        components.add_kind(kind)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": pages,
        "components": {"schemas": components.schemas},
    }


def _paths(kind: Kind) -> Iterator[tuple[str, Json]]:
    home = f"/{_root(kind)}/" + ("namespaces/{namespace}/" if kind.namespaced else "") + kind.plural
    yield home, _operations(kind, {"get": "list", "post": "post", "delete": "deletecollection"})
    one = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}
    yield home + "/{name}", _operations(kind, one)
    for name in kind.subresources:
        if name in ("status", "scale"):
            yield f"{home}/{{name}}/{name}", _operations(kind, {"get": "get", "put": "put", "patch": "patch"})
    if kind.namespaced:
        yield f"/{_root(kind)}/{kind.plural}", _operations(kind, {"get": "list"})


def _operations(kind: Kind, verbs: dict[str, str]) -> Json:
    about = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    made: Json = {}
    for method, action in verbs.items():
        names = _WRITE_PARAMETERS if method in ("post", "put", "patch") else ("dryRun",) if method == "delete" else ()
        made[method] = {
            "operationId": f"{action}{kind.kind}",
            "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": about,
        }
    return made


class _Components:
    """The schemas of a document: those of its kinds and everything that they are made of."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self.schemas: Json = {}

    def add_kind(self, kind: Kind) -> None:
        """Adds a kind under its own name."""
        about = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        if kind.crd_schema is not None:
            name = ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])
            made = dict(kind.crd_schema)
            top = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
            metadata = self._write(self._types.structs["meta.v1.ObjectMeta"])
            made["properties"] = {**made.get("properties", {}), **top, "metadata": metadata}
            self.schemas[name] = {**made, "x-kubernetes-group-version-kind": [about]}
            return
        shape = self._types.kinds.get(f"{kind.api_version}/{kind.kind}")
        if shape is not None:
            self._write(shape)
            self.schemas[_long_name(shape.name)]["x-kubernetes-group-version-kind"] = [about]

    def _write(self, shape: Shape) -> Json:
        """A shape as a schema; structs and special scalars as references."""
        if shape.type == "struct":
            name = _long_name(shape.name)
            if name not in self.schemas:
                self._write_struct(name, shape)
            return _reference(name)
        if shape.type in _NAMED:
            name, schema = _NAMED[shape.type]
            self.schemas.setdefault(name, schema)
            return _reference(name)
        if shape.type == "list" and shape.item is not None:
            made: Json = {"type": "array", "items": self._write(shape.item)}
            if shape.list_type:
                made["x-kubernetes-list-type"] = shape.list_type
            if shape.keys:
                made["x-kubernetes-list-map-keys"] = list(shape.keys)
            return made
        if shape.type == "map" and shape.item is not None:
            return {"type": "object", "additionalProperties": self._write(shape.item)}
        return dict(_SCALARS[shape.type])

    def _write_struct(self, name: str, shape: Shape) -> None:
        made: Json = {"type": "object"}
        self.schemas[name] = made
        properties: Json = {}
        for field, part in shape.fields.items():
            properties[field] = {**self._write(part), **_patch_marks(part)}
            if field in shape.defaults:
                properties[field]["default"] = shape.defaults[field]
        if properties:
            made["properties"] = properties
        if shape.required:
            made["required"] = sorted(shape.required)
        if shape.atomic:
            made["x-kubernetes-map-type"] = "atomic"


def _patch_marks(shape: Shape) -> Json:
    strategies = [name for name, used in (("merge", shape.merges), ("retainKeys", shape.retains)) if used]
    marks: Json = {"x-kubernetes-patch-strategy": ",".join(strategies)} if strategies else {}
    if shape.merge_key:
        marks["x-kubernetes-patch-merge-key"] = shape.merge_key
    return marks


def _reference(name: str) -> Json:
    # Inside allOf, so that marks may stand beside it.
    return {"allOf": [{"$ref": f"#/components/schemas/{name}"}]}


def _long_name(name: str) -> str:
    package, _, rest = name.partition(".")
    return f"{_PACKAGES.get(package, f'io.k8s.api.{package}')}.{rest}"
