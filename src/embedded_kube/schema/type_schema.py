"""Type schemas: the types in schemas.json and in the schemas of CRDs, as one kind of tree."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from embedded_kube.registry.builtin_kinds import VERSIONS

_FIELD_TYPE = re.compile(
    r"(?P<type>[^@~!=]+)(?:@(?P<list>set|map:(?P<keys>[^~!=]+)))?"
    r"(?:~merge(?::(?P<merge_key>[^~!=]+))?(?P<merge>))?(?P<retain>~retainKeys)?(?P<required>!)?(?:=(?P<default>.*))?"
)


@dataclass(slots=True, eq=False)
class TypeSchema:
    """A type: "struct" (known fields), "map", "list", or the name of a scalar; "any" accepts every value."""

    type: str
    name: str = ""
    fields: dict[str, TypeSchema] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    defaults: dict[str, Any] = field(default_factory=dict)
    item: TypeSchema | None = None
    """The type of the items of a list or map."""
    atomic: bool = False
    """Server-side apply replaces the value as a whole."""
    list_type: str = "atomic"
    keys: tuple[str, ...] = ()
    """The keys of items of a "map" list in server-side apply."""
    merges: bool = False
    merge_key: str = ""
    """The merge key of a list that a strategic patch merges ("": its items are scalars)."""
    retains: bool = False
    """The patch strategy includes retainKeys."""

    @property
    def go_name(self) -> str:
        """The Go type, as error messages name it."""
        if self.type == "struct":
            return ".".join(self.name.split(".")[-2:])
        if self.item is not None:
            return ("[]" if self.type == "list" else "map[string]") + self.item.go_name
        return _GO_NAMES.get(self.type, self.type)

    @property
    def struct_name(self) -> str:
        """The last part of a struct's name."""
        return self.name.rpartition(".")[2]


_GO_NAMES = {"double": "float64", "bytes": "[]uint8", "time": "v1.Time", "microtime": "v1.MicroTime"} | {
    "quantity": "resource.Quantity",
    "intstr": "intstr.IntOrString",
}

ANY = TypeSchema("any")


@dataclass(frozen=True, slots=True)
class TypeTable:
    """The types of one Kubernetes version, by struct name and by kind ("apps/v1/Deployment")."""

    structs: dict[str, TypeSchema]
    kinds: dict[str, TypeSchema]


@lru_cache(maxsize=len(VERSIONS))
def load_types(version: str) -> TypeTable:
    """Loads the types of a minor version. In schemas.json the first version is the base of the others."""
    if version not in VERSIONS:
        raise ValueError(f"Kubernetes {version} is not known; it can be one of {', '.join(VERSIONS)}")
    data = json.loads(files("embedded_kube.schema").joinpath("schemas.json").read_text())
    raw = {**data[VERSIONS[0]], **(data[version] if version != VERSIONS[0] else {})}
    raw = {name: type_ for name, type_ in raw.items() if type_ is not None}
    structs = {name: TypeSchema("struct", name, atomic=type_.get("atomic", False)) for name, type_ in raw.items()}
    kinds = {}
    for name, type_ in raw.items():
        _fill(structs[name], type_["fields"], structs)
        if "kind" in type_:
            kinds[type_["kind"]] = structs[name]
    return TypeTable(structs, kinds)


def _fill(schema: TypeSchema, field_types: dict[str, str], structs: dict[str, TypeSchema]) -> None:
    for name, field_type in field_types.items():
        match = _FIELD_TYPE.fullmatch(field_type)
        if match is None:
            raise ValueError(f"schemas.json: {schema.name}.{name} has the unreadable type {field_type!r}")
        found = _read_type(match["type"], structs)
        if match["merge"] is not None or match["retain"] or match["list"]:
            found = replace(
                found,
                list_type=(match["list"] or "atomic").partition(":")[0],
                keys=tuple(match["keys"].split(",")) if match["keys"] else (),
                merges=match["merge"] is not None,
                merge_key=match["merge_key"] or "",
                retains=bool(match["retain"]),
            )
        schema.fields[name] = found
        if match["required"]:
            schema.required.add(name)
        if match["default"] is not None:
            schema.defaults[name] = json.loads(match["default"])


def _read_type(text: str, structs: dict[str, TypeSchema]) -> TypeSchema:
    if text.startswith("[]"):
        return TypeSchema("list", item=_read_type(text[2:], structs))
    if text.startswith("{}"):
        return TypeSchema("map", item=_read_type(text[2:], structs))
    return structs.get(text) or TypeSchema(text)


def crd_type_schema(crd_schema: dict[str, Any], metadata: TypeSchema) -> TypeSchema:
    """The type of a custom resource, as far as patches and server-side apply need it."""
    schema = _from_crd(crd_schema)
    schema.fields = {
        **schema.fields,
        "apiVersion": TypeSchema("string"),
        "kind": TypeSchema("string"),
        "metadata": metadata,
    }
    return schema


def _from_crd(crd_schema: dict[str, Any]) -> TypeSchema:
    kind = crd_schema.get("type", "")
    if crd_schema.get("x-kubernetes-int-or-string"):
        return TypeSchema("intstr")
    if kind == "array":
        items = crd_schema.get("items")
        return TypeSchema(
            "list",
            item=_from_crd(items) if isinstance(items, dict) else ANY,
            list_type=crd_schema.get("x-kubernetes-list-type", "atomic"),
            keys=tuple(crd_schema.get("x-kubernetes-list-map-keys", ())),
        )
    atomic = crd_schema.get("x-kubernetes-map-type") == "atomic"
    values = crd_schema.get("additionalProperties")
    if kind == "object" and isinstance(values, dict):
        return TypeSchema("map", item=_from_crd(values), atomic=atomic)
    if kind == "object":
        fields = {name: _from_crd(value) for name, value in crd_schema.get("properties", {}).items()}
        return TypeSchema("struct", fields=fields, atomic=atomic)
    return TypeSchema(_CRD_SCALARS.get(kind, "any"))


_CRD_SCALARS = {"string": "string", "boolean": "bool", "integer": "int64", "number": "double"}
