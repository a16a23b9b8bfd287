"""What values of a type look like: schemas.json and the schemas of CRDs as one tree that everything else reads."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

VERSIONS = ("1.35", "1.36", "1.37")
"""The minor versions of Kubernetes that schemas.json describes; the first is the base of the others."""

_WORD = re.compile(
    r"(?P<type>[^@~!=]+)(?:@(?P<list>set|map:(?P<keys>[^~!=]+)))?"
    r"(?:~merge(?::(?P<merge_key>[^~!=]+))?(?P<merge>))?(?P<retain>~retainKeys)?(?P<required>!)?(?:=(?P<default>.*))?"
)


@dataclass(slots=True, eq=False)
class Shape:
    """A type: "struct" (known fields), "map", "list", or the name of a scalar; "any" is anything at all."""

    type: str
    name: str = ""
    fields: dict[str, Shape] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    defaults: dict[str, Any] = field(default_factory=dict)
    item: Shape | None = None
    """What a list or map holds."""
    atomic: bool = False
    """Server-side apply replaces it as a whole."""
    list_type: str = "atomic"
    keys: tuple[str, ...] = ()
    """The fields that tell items of a "map" list apart in server-side apply."""
    merges: bool = False
    merge_key: str = ""
    """A strategic patch merges this list, items by this field (none: they are plain values)."""
    retains: bool = False
    """A strategic patch may say which of its fields stay ($retainKeys)."""

    @property
    def go_name(self) -> str:
        """The type as messages of the API call it."""
        if self.type == "struct":
            return ".".join(self.name.split(".")[-2:])
        if self.item is not None:
            return ("[]" if self.type == "list" else "map[string]") + self.item.go_name
        return _GO_NAMES.get(self.type, self.type)

    @property
    def own_name(self) -> str:
        """The last word of a struct's name."""
        return self.name.rpartition(".")[2]


_GO_NAMES = {"double": "float64", "bytes": "[]uint8", "time": "v1.Time", "microtime": "v1.MicroTime"} | {
    "quantity": "resource.Quantity",
    "intstr": "intstr.IntOrString",
}

ANY = Shape("any")


@dataclass(frozen=True, slots=True)
class Types:
    """Every type of one Kubernetes version, and which of them is which kind ("apps/v1/Deployment")."""

    structs: dict[str, Shape]
    kinds: dict[str, Shape]


@lru_cache(maxsize=len(VERSIONS))
def load_types(version: str) -> Types:
    """The types of a minor version."""
    if version not in VERSIONS:
        raise ValueError(f"Kubernetes {version} is not known; it can be one of {', '.join(VERSIONS)}")
    data = json.loads(files("embedded_kube.schema").joinpath("schemas.json").read_text())
    raw = {**data[VERSIONS[0]], **(data[version] if version != VERSIONS[0] else {})}
    raw = {name: type_ for name, type_ in raw.items() if type_ is not None}
    structs = {name: Shape("struct", name, atomic=type_.get("atomic", False)) for name, type_ in raw.items()}
    kinds = {}
    for name, type_ in raw.items():
        _fill(structs[name], type_["fields"], structs)
        if "kind" in type_:
            kinds[type_["kind"]] = structs[name]
    return Types(structs, kinds)


def _fill(shape: Shape, words: dict[str, str], structs: dict[str, Shape]) -> None:
    for name, word in words.items():
        match = _WORD.fullmatch(word)
        if match is None:
            raise ValueError(f"schemas.json: {shape.name}.{name} has the unreadable type {word!r}")
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
        shape.fields[name] = found
        if match["required"]:
            shape.required.add(name)
        if match["default"] is not None:
            shape.defaults[name] = json.loads(match["default"])


def _read_type(text: str, structs: dict[str, Shape]) -> Shape:
    if text.startswith("[]"):
        return Shape("list", item=_read_type(text[2:], structs))
    if text.startswith("{}"):
        return Shape("map", item=_read_type(text[2:], structs))
    return structs.get(text) or Shape(text)


def crd_shape(schema: dict[str, Any], metadata: Shape) -> Shape:
    """The shape of a custom resource: what patches and server-side apply need to know of its schema."""
    shape = _from_crd(schema)
    shape.fields = {**shape.fields, "apiVersion": Shape("string"), "kind": Shape("string"), "metadata": metadata}
    return shape


def _from_crd(schema: dict[str, Any]) -> Shape:
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        return Shape("intstr")
    if kind == "array":
        items = schema.get("items")
        return Shape(
            "list",
            item=_from_crd(items) if isinstance(items, dict) else ANY,
            list_type=schema.get("x-kubernetes-list-type", "atomic"),
            keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
        )
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, dict):
        return Shape("map", item=_from_crd(values), atomic=atomic)
    if kind == "object":
        fields = {name: _from_crd(value) for name, value in schema.get("properties", {}).items()}
        return Shape("struct", fields=fields, atomic=atomic)
    return Shape(_CRD_SCALARS.get(kind, "any"))


_CRD_SCALARS = {"string": "string", "boolean": "bool", "integer": "int64", "number": "double"}
