"""OpenAPI v3 documents, which `kubectl explain` and `kubectl apply` read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.schema.type_schema import TypeSchema, TypeTable
from gpu_scheduler.k8s.objects import Json

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
"""An empty OpenAPI v2 document (swagger, info, paths). kubectl requests one before it sends a List, skips kinds that it
does not find there, and leaves validation to the server."""


def index(kinds: KindTable) -> Json:
    """The index of documents; clients cache a document by its hash."""
    found: dict[str, list[ServedKind]] = {}
    for kind in kinds:
        found.setdefault(_root(kind), []).append(kind)
    return {
        "paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}?hash={_hash(of)}"} for root, of in found.items()}
    }


def _root(kind: ServedKind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def _hash(kinds: list[ServedKind]) -> str:
    content = [(kind.plural, kind.kind, kind.namespaced, kind.subresources, kind.crd_schema) for kind in kinds]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32].upper()


def document(group_version: str, kinds: KindTable, types: TypeTable) -> Json | None:
    """The document of a group version ("apis/apps/v1", "api/v1"); None if it is not served."""
    wanted = group_version.removeprefix("apis/").removeprefix("api/")
    served = [kind for kind in kinds if kind.api_version == wanted]
    if not served:
        return None
    paths: Json = {}
    components = _Components(types)
    for kind in served:
        paths.update(_paths(kind))
        components.add_kind(kind)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": components.schemas},
    }


def _paths(kind: ServedKind) -> Iterator[tuple[str, Json]]:
    collection = f"/{_root(kind)}/" + ("namespaces/{namespace}/" if kind.namespaced else "") + kind.plural
    yield collection, _operations(kind, {"get": "list", "post": "post", "delete": "deletecollection"})
    one = {"get": "get", "put": "put", "patch": "patch", "delete": "delete"}
    yield collection + "/{name}", _operations(kind, one)
    for name in kind.subresources:
        if name in ("status", "scale"):
            yield f"{collection}/{{name}}/{name}", _operations(kind, {"get": "get", "put": "put", "patch": "patch"})
    if kind.namespaced:
        yield f"/{_root(kind)}/{kind.plural}", _operations(kind, {"get": "list"})


def _operations(kind: ServedKind, verbs: dict[str, str]) -> Json:
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
    """The component schemas of a document: its kinds and all types that they use."""

    def __init__(self, types: TypeTable) -> None:
        self._types = types
        self.schemas: Json = {}

    def add_kind(self, kind: ServedKind) -> None:
        """Adds the schema of a kind."""
        about = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        if kind.crd_schema is not None:
            name = ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])
            made = dict(kind.crd_schema)
            top = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
            metadata = self._write(self._types.structs["meta.v1.ObjectMeta"])
            made["properties"] = {**made.get("properties", {}), **top, "metadata": metadata}
            self.schemas[name] = {**made, "x-kubernetes-group-version-kind": [about]}
            return
        schema = self._types.kinds.get(f"{kind.api_version}/{kind.kind}")
        if schema is not None:
            self._write(schema)
            self.schemas[_long_name(schema.name)]["x-kubernetes-group-version-kind"] = [about]

    def _write(self, schema: TypeSchema) -> Json:
        """Writes a type as an OpenAPI schema; structs and named scalars as references."""
        if schema.type == "struct":
            name = _long_name(schema.name)
            if name not in self.schemas:
                self._write_struct(name, schema)
            return _reference(name)
        if schema.type in _NAMED:
            name, definition = _NAMED[schema.type]
            self.schemas.setdefault(name, definition)
            return _reference(name)
        if schema.type == "list" and schema.item is not None:
            made: Json = {"type": "array", "items": self._write(schema.item)}
            if schema.list_type:
                made["x-kubernetes-list-type"] = schema.list_type
            if schema.keys:
                made["x-kubernetes-list-map-keys"] = list(schema.keys)
            return made
        if schema.type == "map" and schema.item is not None:
            return {"type": "object", "additionalProperties": self._write(schema.item)}
        return dict(_SCALARS[schema.type])

    def _write_struct(self, name: str, schema: TypeSchema) -> None:
        made: Json = {"type": "object"}
        self.schemas[name] = made
        properties: Json = {}
        for field, part in schema.fields.items():
            properties[field] = {**self._write(part), **_patch_extensions(part)}
            if field in schema.defaults:
                properties[field]["default"] = schema.defaults[field]
        if properties:
            made["properties"] = properties
        if schema.required:
            made["required"] = sorted(schema.required)
        if schema.atomic:
            made["x-kubernetes-map-type"] = "atomic"


def _patch_extensions(schema: TypeSchema) -> Json:
    strategies = [name for name, used in (("merge", schema.merges), ("retainKeys", schema.retains)) if used]
    extensions: Json = {"x-kubernetes-patch-strategy": ",".join(strategies)} if strategies else {}
    if schema.merge_key:
        extensions["x-kubernetes-patch-merge-key"] = schema.merge_key
    return extensions


def _reference(name: str) -> Json:
    # Inside allOf, because siblings of a bare $ref are ignored.
    return {"allOf": [{"$ref": f"#/components/schemas/{name}"}]}


def _long_name(name: str) -> str:
    package, _, rest = name.partition(".")
    return f"{_PACKAGES.get(package, f'io.k8s.api.{package}')}.{rest}"
