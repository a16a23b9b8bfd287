"""Structural schemas of CRDs: pruning, defaulting and validation of custom objects.

CEL rules (x-kubernetes-validations) are stored and not evaluated.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs

from embedded_kube.errors import Cause
from embedded_kube.schema.decoding import FieldPath, format_path
from gpu_scheduler.k8s.objects import Json

Visitor = Callable[[Any, FieldPath, list[str]], None]

_TYPE_AND_METADATA = frozenset(("apiVersion", "kind", "metadata"))
_RANGES = {"int32": 2**31, "int64": 2**63}
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties")
_PASSED_ON = frozenset(("type", "format", "pattern", "enum", "required", *_NUMBERS, *_SIZES))


class StructuralSchema:
    """The schema of one version of a custom resource."""

    def __init__(self, schema: Json) -> None:
        self._visit = _compile(schema, embedded=True)
        self._validator = jsonschema_rs.Draft4Validator(to_json_schema(schema), validate_formats=True)
        self._unique = list(_unique_lists(schema, ()))

    def prune_and_default(self, obj: Json) -> list[str]:
        """Prunes unknown fields and sets defaults, in place; returns the paths of the unknown fields."""
        unknown: list[str] = []
        self._visit(obj, None, unknown)
        return unknown

    def validate(self, obj: Any) -> list[Cause]:
        """The causes that make an object invalid."""
        causes: list[Cause] = []
        if not self._validator.is_valid(obj):
            causes = [_cause(error) for error in self._validator.iter_errors(obj)]
        for steps, keys in self._unique:
            for items, path in _find(obj, steps, None):
                causes += _repeated(items, keys, path)
        return causes


def _compile(schema: Json, embedded: bool = False) -> Visitor:
    """Compiles one part of a schema. `embedded`: it is a whole object, with kind and metadata."""
    if schema.get("type") == "array":
        items = schema.get("items")
        return _list_visitor(_compile(items)) if isinstance(items, dict) else _keep
    fields = {name: _compile(part, part.get("x-kubernetes-embedded-resource", False))
              for name, part in schema.get("properties", {}).items()}  # fmt: skip
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        return _map_visitor(_compile(values))
    keep = bool(schema.get("x-kubernetes-preserve-unknown-fields") or values is True)
    if schema.get("type") != "object":
        return _keep
    known = _TYPE_AND_METADATA if embedded or schema.get("x-kubernetes-embedded-resource") else frozenset()
    parts = schema.get("properties", {})
    defaults = {name: part["default"] for name, part in parts.items() if "default" in part}
    nullable = {name for name, part in parts.items() if part.get("nullable") or not part.get("type")}
    for name in _TYPE_AND_METADATA & known:
        fields[name] = _keep
        defaults.pop(name, None)

    def visit(value: Any, path: FieldPath, unknown: list[str]) -> None:
        if not isinstance(value, dict):
            return
        for name in list(value):
            part = fields.get(name)
            if part is None:
                if not keep and name not in known:
                    unknown.append(format_path((path, name)))
                    del value[name]
            elif value[name] is None and name not in nullable:
                del value[name]
        for name, default in defaults.items():
            if name not in value:
                value[name] = copy.deepcopy(default)
        for name, item in value.items():
            part = fields.get(name)
            if part is not None and part is not _keep:
                part(item, (path, name), unknown)

    return visit


def _list_visitor(part: Visitor) -> Visitor:
    def visit(value: Any, path: FieldPath, unknown: list[str]) -> None:
        if isinstance(value, list):
            for index, item in enumerate(value):
                part(item, (path, index), unknown)

    return _keep if part is _keep else visit


def _map_visitor(part: Visitor) -> Visitor:
    def visit(value: Any, path: FieldPath, unknown: list[str]) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                part(item, (path, name), unknown)

    return _keep if part is _keep else visit


def _keep(_value: Any, _path: FieldPath, _unknown: list[str]) -> None:
    """Leaves a value unchanged."""


def to_json_schema(schema: Json) -> Json:
    """Translates a CRD's schema to JSON Schema (draft 4)."""
    made = {name: value for name, value in schema.items() if name in _PASSED_ON}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    limit = _RANGES.get(schema.get("format", "")) if schema.get("type") == "integer" else None
    if limit is not None:
        made.setdefault("minimum", -limit)
        made.setdefault("maximum", limit - 1)
    if schema.get("nullable"):
        if "type" in made:
            made["type"] = [made["type"], "null"]
        if "enum" in made:
            made["enum"] = [*made["enum"], None]
    for name in ("properties", "patternProperties"):
        if name in schema:
            made[name] = {key: to_json_schema(part) for key, part in schema[name].items()}
    for name in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(name), dict):
            made[name] = to_json_schema(schema[name])
    for name in ("allOf", "anyOf", "oneOf"):
        if schema.get(name) and not (name == "anyOf" and schema.get("x-kubernetes-int-or-string")):
            made[name] = [to_json_schema(part) for part in schema[name]]
    return made


_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
_LIMITS = {
    "minimum": "should be greater than or equal to {}",
    "maximum": "should be less than or equal to {}",
    "exclusiveMinimum": "should be greater than {}",
    "exclusiveMaximum": "should be less than {}",
    "multipleOf": "should be a multiple of {}",
    "minLength": "should be at least {} chars long",
    "minItems": "should have at least {} items",
    "minProperties": "should have at least {} properties",
    "maxProperties": "should have at most {} properties",
    "pattern": "should match '{}'",
    "uniqueItems": "shouldn't contain duplicates",
}
_COMBINED = {"anyOf": "must validate at least one schema (anyOf)", "not": "must not validate the schema (not)"} | {
    "oneOf": "must validate one and only one schema (oneOf)",
    "allOf": "must validate all the schemas (allOf)",
}


def _cause(error: jsonschema_rs.ValidationError) -> Cause:
    """Translates an error of the validator to the message of the API server."""
    path: FieldPath = None
    for name in error.instance_path:
        path = (path, name)
    rule = str(error.schema_path[-1]) if error.schema_path else error.kind.name
    value: Any = error.instance
    limit = getattr(error.kind, "limit", getattr(error.kind, "pattern", None))
    if error.kind.name == "required":
        return Cause(format_path((path, error.kind.as_dict()["property"])), "Required value", "FieldValueRequired")
    where = format_path(path)
    if rule in ("type", "format"):
        wanted = _wanted(error)
        shown = f'"{_TYPES.get(type(value), "null")}"' if rule == "type" else _show(value)
        reason = "FieldValueTypeInvalid" if rule == "type" else "FieldValueInvalid"
        return Cause(where, f"Invalid value: {shown}: {where} in body must be of type {wanted}: {shown}", reason)
    if rule == "enum":
        options = ", ".join(_show(option) for option in error.kind.as_dict()["options"])
        return Cause(where, f"Unsupported value: {_show(value)}: supported values: {options}", "FieldValueNotSupported")
    if rule == "maxLength":
        return Cause(where, f"Too long: may not be more than {limit} bytes", "FieldValueTooLong")
    if rule == "maxItems":
        return Cause(where, f"Too many: {len(value)}: must have at most {limit} items", "FieldValueTooMany")
    if rule in _COMBINED:
        return Cause(where, f"Invalid value: {_show(value)}: {where} in body {_COMBINED[rule]}")
    text = _LIMITS[rule].format(limit) if rule in _LIMITS else error.message
    return Cause(where, f"Invalid value: {_show(value)}: {where} in body {text}")


def _wanted(error: jsonschema_rs.ValidationError) -> str:
    found = getattr(error.kind, "types", None) or getattr(error.kind, "format", "")
    return "|".join(name for name in found if name != "null") if isinstance(found, list) else str(found)


def _show(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _unique_lists(schema: Json, steps: tuple[str, ...]) -> Any:
    """All lists with unique items (list types map and set): the steps to the list ("*" is every item) and its keys."""
    if schema.get("type") == "array":
        if schema.get("x-kubernetes-list-type") in ("map", "set"):
            yield steps, tuple(schema.get("x-kubernetes-list-map-keys", ()))
        if isinstance(schema.get("items"), dict):
            yield from _unique_lists(schema["items"], (*steps, "*"))
    for name, part in schema.get("properties", {}).items():
        yield from _unique_lists(part, (*steps, name))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _unique_lists(schema["additionalProperties"], (*steps, "*"))


def _find(value: Any, steps: tuple[str, ...], path: FieldPath) -> Any:
    if not steps:
        if isinstance(value, list):
            yield value, path
    elif steps[0] == "*":
        pairs = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
        for name, item in pairs:
            yield from _find(item, steps[1:], (path, name))
    elif isinstance(value, dict) and steps[0] in value:
        yield from _find(value[steps[0]], steps[1:], (path, steps[0]))


def _repeated(items: list[Any], keys: tuple[str, ...], path: FieldPath) -> list[Cause]:
    seen: set[str] = set()
    causes = []
    for index, item in enumerate(items):
        shown = {key: item.get(key) for key in keys} if keys and isinstance(item, dict) else item
        mark = json.dumps(shown, sort_keys=True)
        if mark in seen:
            text = f"Duplicate value: {_show(shown)}"
            causes.append(Cause(format_path((path, index)), text, "FieldValueDuplicate"))
        seen.add(mark)
    return causes
