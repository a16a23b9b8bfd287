"""Server-side apply: a configuration is merged into the object, and what its manager no longer wants is removed.

What managers applied is remembered in metadata.managedFields, as a real server does. Left out: fields that others set
by plain updates and patches have no owner here, so applying over them is no conflict.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from embedded_kube.api import timestamp
from embedded_kube.errors import ApiError
from embedded_kube.schema.defaults import DEFAULTS
from embedded_kube.schema.quantities import is_same
from embedded_kube.schema.shapes import ANY, Shape
from gpu_scheduler.k8s.quantity import QuantityError

Json = dict[str, Any]
Fields = dict[str, Any]
"""A set of fields as FieldsV1 writes it: f:name, k:{keys}, v:value, and "." for an item itself."""

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
"""What of its metadata says which object a configuration is about, and is nobody's."""


def apply_configuration(old: Json | None, applied: Json, shape: Shape, manager: tuple[str, str], force: bool) -> Json:
    """The object that `applied` makes of `old` for a manager (its name, and the subresource it writes).

    409 when another manager applied a different value, unless forced.
    """
    before: Json = old if old is not None else {}
    records: list[Json] = copy.deepcopy(before.get("metadata", {}).get("managedFields", []))
    wanted = _fields_of(_without_identity(applied), shape)
    mine = next((one for one in records if _owner(one) == manager), None)
    others = [one for one in records if one is not mine and one.get("operation") == "Apply"]
    _check_conflicts((before, applied), wanted, others, shape, force)
    made: Json = _merge(before, applied, shape)
    dropped = _subtract(mine.get("fieldsV1", {}), wanted) if mine is not None else {}
    for other in others:
        dropped = _subtract(dropped, other.get("fieldsV1", {}))
    _remove(made, dropped, shape)
    made.setdefault("metadata", {})["managedFields"] = _record(records, mine, manager, wanted, applied["apiVersion"])
    return made


def _owner(record: Json) -> tuple[str, str]:
    is_apply = record.get("operation") == "Apply"
    return (record.get("manager", ""), record.get("subresource", "")) if is_apply else ("", "")


def _record(
    records: list[Json], mine: Json | None, manager: tuple[str, str], wanted: Fields, api_version: str
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


def _child(shape: Shape, name: str) -> Shape:
    if shape.type == "struct":
        return shape.fields.get(name, ANY)
    return shape.item if shape.item is not None else ANY


def _is_granular(value: Any, shape: Shape) -> bool:
    """Whether parts of a value have owners of their own."""
    if isinstance(value, dict):
        return not shape.atomic
    return isinstance(value, list) and shape.list_type in ("map", "set")


def _item_key(item: Any, shape: Shape) -> str:
    """What tells an item of a list apart, as FieldsV1 writes it."""
    if shape.list_type == "set" or not isinstance(item, dict):
        return "v:" + json.dumps(item, separators=(",", ":"), sort_keys=True)
    part = shape.item or ANY
    known = {**part.defaults, **DEFAULTS.get(part.name, {})}
    keys = {key: item.get(key, known.get(key)) for key in shape.keys}
    return "k:" + json.dumps(keys, separators=(",", ":"), sort_keys=True)


def _fields_of(value: Any, shape: Shape) -> Fields:
    if not _is_granular(value, shape):
        return {}
    if isinstance(value, dict):
        return {f"f:{name}": _fields_of(item, _child(shape, name)) for name, item in value.items()}
    made: Fields = {}
    for item in value:
        key = _item_key(item, shape)
        made[key] = {} if key.startswith("v:") else {".": {}, **_fields_of(item, shape.item or ANY)}
    return made


def _subtract(fields: Fields, other: Fields) -> Fields:
    """The fields that are not in the other set."""
    made: Fields = {}
    for name, below in fields.items():
        if name not in other:
            made[name] = below
        elif below:
            rest = _subtract(below, other[name])
            if rest:
                made[name] = rest
    return made


def _leaves(fields: Fields, value: Any, shape: Shape, path: str) -> Iterator[tuple[str, Any]]:
    """Every field of a set that has a value: its path as messages write it, and the value."""
    for name, below in fields.items():
        if name == ".":
            continue
        item, part = _step(value, shape, name)
        where = path + _word(name)
        if below:
            yield from _leaves(below, item, part, where)
        else:
            yield where, item


def _word(name: str) -> str:
    """A step of a path as messages write it."""
    if name.startswith("f:"):
        return f".{name[2:]}"
    if name.startswith("v:"):
        return f"[={name[2:]}]"
    keys = json.loads(name[2:])
    return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(keys.items())) + "]"


def _only(fields: Fields, paths: set[str], path: str) -> Fields:
    """The fields of a set that have these paths."""
    made: Fields = {}
    for name, below in fields.items():
        where = path + _word(name) if name != "." else ""
        kept = _only(below, paths, where) if below else {}
        if kept or where in paths:
            made[name] = kept
    return made


def _step(value: Any, shape: Shape, name: str) -> tuple[Any, Shape]:
    if name.startswith("f:"):
        return (value.get(name[2:]) if isinstance(value, dict) else None), _child(shape, name[2:])
    part = shape.item or ANY
    items = value if isinstance(value, list) else []
    return next((item for item in items if _item_key(item, shape) == name), None), part


def _check_conflicts(values: tuple[Json, Json], wanted: Fields, others: list[Json], shape: Shape, force: bool) -> None:
    old, applied = values
    causes = []
    for other in others:
        owned: Fields = other.get("fieldsV1", {})
        taken = _intersect(wanted, owned)
        mine, theirs = dict(_leaves(taken, applied, shape, "")), dict(_leaves(taken, old, shape, ""))
        lost = [path for path, value in mine.items() if not _is_same(value, theirs.get(path))]
        causes += [
            {"reason": "FieldManagerConflict", "message": f'conflict with "{other["manager"]}"', "field": path}
            for path in lost
        ]
        if force and lost:
            other["fieldsV1"] = _subtract(owned, _only(taken, set(lost), ""))
    if causes and not force:
        raise ApiError(409, "Conflict", _describe(causes), {"causes": causes})


def _describe(causes: list[Json]) -> str:
    """Conflicts in words: one in a line, several by whom they are with."""
    if len(causes) == 1:
        return f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    by: dict[str, list[str]] = {}
    for cause in causes:
        by.setdefault(cause["message"].replace("conflict with", "conflicts with"), []).append(cause["field"])
    told = "\n".join(
        f"{who}:\n" + "\n".join(f"- {field}" for field in sorted(fields)) for who, fields in sorted(by.items())
    )
    return f"Apply failed with {len(causes)} conflicts: {told}"


def _is_same(applied: Any, stored: Any) -> bool:
    """Whether a value as somebody wrote it is the stored one: quantities may be written in many ways."""
    if applied == stored:
        return True
    if isinstance(applied, (dict, list, bool)) or not isinstance(stored, str):
        return False
    try:
        return is_same(str(applied), stored)
    except QuantityError:
        return False


def _intersect(fields: Fields, other: Fields) -> Fields:
    """The fields that are in both sets."""
    made: Fields = {}
    for name, below in fields.items():
        theirs = other.get(name)
        if theirs is None:
            continue
        both = _intersect(below, theirs)
        # A field that one of them has whole and the other in parts ({} beside content) is not the same field.
        if both or not (below or theirs):
            made[name] = both
    return made


# -- values


def _merge(old: Any, applied: Any, shape: Shape) -> Any:
    if isinstance(applied, dict) and isinstance(old, dict) and not shape.atomic:
        made = dict(old)
        for name, value in applied.items():
            if value is None:
                made.pop(name, None)
            else:
                made[name] = _merge(made.get(name), value, _child(shape, name))
        return made
    if isinstance(applied, list) and isinstance(old, list) and _is_granular(applied, shape):
        return _merge_lists(old, applied, shape)
    return copy.deepcopy(applied)


def _merge_lists(old: list[Any], applied: list[Any], shape: Shape) -> list[Any]:
    def identity(item: Any) -> str:
        return _item_key(item, shape)

    before = {identity(item): item for item in old}
    wanted = {identity(item): item for item in applied}
    left, right = list(before), list(wanted)
    made: list[Any] = []
    # What only the object has stays in front of what only the configuration has, up to the next they share.
    while left or right:
        if left and left[0] not in wanted:
            made.append(before[left.pop(0)])
        elif left and left[0] not in right:
            left.pop(0)  # it came earlier in the configuration
        else:
            key = right.pop(0)
            made.append(_merge(before.get(key), wanted[key], shape.item or ANY))
    return made


def _remove(value: Any, fields: Fields, shape: Shape) -> None:
    """Takes fields out of a value; what becomes empty by it goes too."""
    for name, below in fields.items():
        if name.startswith("f:") and isinstance(value, dict):
            key = name[2:]
            if below and key in value:
                value[key] = copy.copy(value[key])
                _remove(value[key], below, _child(shape, key))
                if not value[key]:
                    del value[key]
            else:
                value.pop(key, None)
        elif isinstance(value, list):
            place = next((i for i, item in enumerate(value) if _item_key(item, shape) == name), None)
            if place is None:
                continue
            if "." in below or not below:
                del value[place]
            else:
                value[place] = copy.copy(value[place])
                _remove(value[place], below, shape.item or ANY)
