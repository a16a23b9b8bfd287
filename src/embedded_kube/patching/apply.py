"""Server-side apply: merges a configuration into an object, and removes fields that its manager no longer applies.

Ownership is recorded in metadata.managedFields, as by a real server. Not implemented: fields set by plain updates and
patches have no owner here, so applying over them is no conflict.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from embedded_kube.errors import StatusError
from embedded_kube.registry.timestamps import timestamp
from embedded_kube.schema.defaults import DEFAULTS
from embedded_kube.schema.quantities import is_equal
from embedded_kube.schema.type_schema import ANY, TypeSchema
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import QuantityError

FieldSet = dict[str, Any]
"""A set of fields as FieldsV1 writes it: f:name, k:{keys}, v:value, and "." for an item itself."""

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
"""Metadata that identifies the object; it has no owner."""


def apply_configuration(
    old: Json | None, applied: Json, schema: TypeSchema, manager: tuple[str, str], force: bool
) -> Json:
    """Applies a configuration for a manager (name, subresource); returns the new object.

    A conflict (409) if another manager owns a field with a different value, unless `force` is set.
    """
    before: Json = old if old is not None else {}
    records: list[Json] = copy.deepcopy(before.get("metadata", {}).get("managedFields", []))
    wanted = _fields_of(_without_identity(applied), schema)
    mine = next((one for one in records if _owner(one) == manager), None)
    others = [one for one in records if one is not mine and one.get("operation") == "Apply"]
    _check_conflicts((before, applied), wanted, others, schema, force)
    made: Json = _merge(before, applied, schema)
    dropped = _subtract(mine.get("fieldsV1", {}), wanted) if mine is not None else {}
    for other in others:
        dropped = _subtract(dropped, other.get("fieldsV1", {}))
    _remove(made, dropped, schema)
    made.setdefault("metadata", {})["managedFields"] = _record(records, mine, manager, wanted, applied["apiVersion"])
    return made


def _owner(record: Json) -> tuple[str, str]:
    is_apply = record.get("operation") == "Apply"
    return (record.get("manager", ""), record.get("subresource", "")) if is_apply else ("", "")


def _record(
    records: list[Json], mine: Json | None, manager: tuple[str, str], wanted: FieldSet, api_version: str
) -> list[Json]:
    if mine is not None and mine.get("fieldsV1") == wanted:
        return records
    if not wanted:
        return [one for one in records if one is not mine and one.get("fieldsV1")]
    name, subresource = manager
    made: Json = {"manager": name, "operation": "Apply", "apiVersion": api_version, "time": timestamp()}
    made |= {"fieldsType": "FieldsV1", "fieldsV1": wanted}
    if subresource:
        made["subresource"] = subresource
    return [*(one for one in records if one is not mine and one.get("fieldsV1")), made]


def _without_identity(applied: Json) -> Json:
    made = {name: value for name, value in applied.items() if name not in ("apiVersion", "kind")}
    meta = {name: value for name, value in applied.get("metadata", {}).items() if name not in _IDENTITY}
    if meta:
        made["metadata"] = meta
    else:
        made.pop("metadata", None)
    return made


# -- sets of fields


def _child(schema: TypeSchema, name: str) -> TypeSchema:
    if schema.type == "struct":
        return schema.fields.get(name, ANY)
    return schema.item if schema.item is not None else ANY


def _is_granular(value: Any, schema: TypeSchema) -> bool:
    """Whether the parts of a value have owners of their own."""
    if isinstance(value, dict):
        return not schema.atomic
    return isinstance(value, list) and schema.list_type in ("map", "set")


def _item_key(item: Any, schema: TypeSchema) -> str:
    """The key of a list item, as FieldsV1 writes it."""
    if schema.list_type == "set" or not isinstance(item, dict):
        return "v:" + json.dumps(item, separators=(",", ":"), sort_keys=True)
    part = schema.item or ANY
    known = {**part.defaults, **DEFAULTS.get(part.name, {})}
    keys = {key: item.get(key, known.get(key)) for key in schema.keys}
    return "k:" + json.dumps(keys, separators=(",", ":"), sort_keys=True)


def _fields_of(value: Any, schema: TypeSchema) -> FieldSet:
    if not _is_granular(value, schema):
        return {}
    if isinstance(value, dict):
        return {f"f:{name}": _fields_of(item, _child(schema, name)) for name, item in value.items()}
    made: FieldSet = {}
    for item in value:
        key = _item_key(item, schema)
        made[key] = {} if key.startswith("v:") else {".": {}, **_fields_of(item, schema.item or ANY)}
    return made


def _subtract(fields: FieldSet, other: FieldSet) -> FieldSet:
    """The fields that are not in the other set."""
    made: FieldSet = {}
    for name, below in fields.items():
        if name not in other:
            made[name] = below
        elif below:
            rest = _subtract(below, other[name])
            if rest:
                made[name] = rest
    return made


def _leaves(fields: FieldSet, value: Any, schema: TypeSchema, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves of a set: path in the format of messages, and value."""
    for name, below in fields.items():
        if name == ".":
            continue
        item, part = _step(value, schema, name)
        where = path + _format_step(name)
        if below:
            yield from _leaves(below, item, part, where)
        else:
            yield where, item


def _format_step(name: str) -> str:
    """A step of a path in the format of messages."""
    if name.startswith("f:"):
        return f".{name[2:]}"
    if name.startswith("v:"):
        return f"[={name[2:]}]"
    keys = json.loads(name[2:])
    return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(keys.items())) + "]"


def _restrict(fields: FieldSet, paths: set[str], path: str) -> FieldSet:
    """The fields of a set that have these paths."""
    made: FieldSet = {}
    for name, below in fields.items():
        where = path + _format_step(name) if name != "." else ""
        kept = _restrict(below, paths, where) if below else {}
        if kept or where in paths:
            made[name] = kept
    return made


def _step(value: Any, schema: TypeSchema, name: str) -> tuple[Any, TypeSchema]:
    if name.startswith("f:"):
        return (value.get(name[2:]) if isinstance(value, dict) else None), _child(schema, name[2:])
    part = schema.item or ANY
    items = value if isinstance(value, list) else []
    return next((item for item in items if _item_key(item, schema) == name), None), part


def _check_conflicts(
    values: tuple[Json, Json], wanted: FieldSet, others: list[Json], schema: TypeSchema, force: bool
) -> None:
    old, applied = values
    causes = []
    for other in others:
        owned: FieldSet = other.get("fieldsV1", {})
        taken = _intersect(wanted, owned)
        mine, theirs = dict(_leaves(taken, applied, schema, "")), dict(_leaves(taken, old, schema, ""))
        lost = [path for path, value in mine.items() if not _is_same(value, theirs.get(path))]
        causes += [
            {"reason": "FieldManagerConflict", "message": f'conflict with "{other["manager"]}"', "field": path}
            for path in lost
        ]
        if force and lost:
            other["fieldsV1"] = _subtract(owned, _restrict(taken, set(lost), ""))
    if causes and not force:
        raise StatusError(409, "Conflict", _conflict_message(causes), {"causes": causes})


def _conflict_message(causes: list[Json]) -> str:
    """The message: a single conflict in one line, several grouped by manager."""
    if len(causes) == 1:
        return f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    by: dict[str, list[str]] = {}
    for cause in causes:
        by.setdefault(cause["message"].replace("conflict with", "conflicts with"), []).append(cause["field"])
    text = "\n".join(
        f"{who}:\n" + "\n".join(f"- {field}" for field in sorted(fields)) for who, fields in sorted(by.items())
    )
    return f"Apply failed with {len(causes)} conflicts: {text}"


def _is_same(applied: Any, stored: Any) -> bool:
    """Whether an applied value equals the stored one; quantities are compared by amount."""
    if applied == stored:
        return True
    if isinstance(applied, (dict, list, bool)) or not isinstance(stored, str):
        return False
    try:
        return is_equal(str(applied), stored)
    except QuantityError:
        return False


def _intersect(fields: FieldSet, other: FieldSet) -> FieldSet:
    """The fields that are in both sets."""
    made: FieldSet = {}
    for name, below in fields.items():
        theirs = other.get(name)
        if theirs is None:
            continue
        both = _intersect(below, theirs)
        # A field that is a leaf in one set and has children in the other is not the same field.
        if both or not (below or theirs):
            made[name] = both
    return made


# -- values


def _merge(old: Any, applied: Any, schema: TypeSchema) -> Any:
    if isinstance(applied, dict) and isinstance(old, dict) and not schema.atomic:
        made = dict(old)
        for name, value in applied.items():
            if value is None:
                made.pop(name, None)
            else:
                made[name] = _merge(made.get(name), value, _child(schema, name))
        return made
    if isinstance(applied, list) and isinstance(old, list) and _is_granular(applied, schema):
        return _merge_lists(old, applied, schema)
    return copy.deepcopy(applied)


def _merge_lists(old: list[Any], applied: list[Any], schema: TypeSchema) -> list[Any]:
    def identity(item: Any) -> str:
        return _item_key(item, schema)

    before = {identity(item): item for item in old}
    wanted = {identity(item): item for item in applied}
    left, right = list(before), list(wanted)
    made: list[Any] = []
    # Between two shared items, those of the object come before those of the configuration.
    while left or right:
        if left and left[0] not in wanted:
            made.append(before[left.pop(0)])
        elif left and left[0] not in right:
            left.pop(0)  # already added, in the order of the configuration
        else:
            key = right.pop(0)
            made.append(_merge(before.get(key), wanted[key], schema.item or ANY))
    return made


def _remove(value: Any, fields: FieldSet, schema: TypeSchema) -> None:
    """Removes fields from a value, and parents that become empty."""
    for name, below in fields.items():
        if name.startswith("f:") and isinstance(value, dict):
            key = name[2:]
            if below and key in value:
                value[key] = copy.copy(value[key])
                _remove(value[key], below, _child(schema, key))
                if not value[key]:
                    del value[key]
            else:
                value.pop(key, None)
        elif isinstance(value, list):
            place = next((i for i, item in enumerate(value) if _item_key(item, schema) == name), None)
            if place is None:
                continue
            if "." in below or not below:
                del value[place]
            else:
                value[place] = copy.copy(value[place])
                _remove(value[place], below, schema.item or ANY)
