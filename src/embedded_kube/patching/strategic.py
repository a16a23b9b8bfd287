"""Strategic merge patch: merges lists by a key of their items; directives ($patch, $retainKeys, ...) control it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embedded_kube import errors
from embedded_kube.schema.type_schema import ANY, TypeSchema
from gpu_scheduler.k8s.objects import Json

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


def merge_strategically(old: Json, patch: Json, schema: TypeSchema) -> Json:
    """Applies a strategic merge patch to an object; BadRequest (400) if the patch is malformed."""
    patch = dict(patch)
    directive = patch.pop(_PATCH, "merge")
    if directive == "replace":
        kept: Json = _clean(patch)
        return kept
    if directive == "delete":
        return {}
    if directive != "merge":
        raise errors.untyped(f'{_PATCH} must be "merge", "replace" or "delete", not {directive!r}')
    made = dict(old)
    _retain(made, patch)
    orders = {name.removeprefix(_ORDER): patch.pop(name) for name in list(patch) if name.startswith(_ORDER)}
    for name in [name for name in patch if name.startswith(_DELETE)]:
        _delete_values(made, name.removeprefix(_DELETE), patch.pop(name))
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merge_value(made.get(name), value, _child(schema, name), name)
    for name, order in orders.items():
        if isinstance(made.get(name), list):
            made[name] = _reorder(made[name], old.get(name), order, _child(schema, name), name)
    return made


def _child(schema: TypeSchema, name: str) -> TypeSchema:
    if schema.type == "struct":
        return schema.fields.get(name, ANY)
    return schema.item if schema.type == "map" and schema.item is not None else ANY


def _retain(made: Json, patch: Json) -> None:
    if _RETAIN not in patch:
        return
    keep = patch.pop(_RETAIN)
    if not isinstance(keep, list):
        raise errors.bad_request(f"{_RETAIN} must be a list of field names, not {keep!r}")
    extra = sorted(name for name, value in patch.items() if value is not None and name[0] != "$" and name not in keep)
    if extra:
        raise errors.bad_request(f"{_RETAIN} must list every field that the patch sets; it lacks {', '.join(extra)}")
    for name in [name for name in made if name not in keep]:
        del made[name]


def _delete_values(made: Json, name: str, values: Any) -> None:
    if not isinstance(values, list):
        raise errors.bad_request(f"{_DELETE}{name} must be a list of values, not {values!r}")
    if isinstance(made.get(name), list):
        made[name] = [item for item in made[name] if item not in values]


def _merge_value(old: Any, value: Any, schema: TypeSchema, name: str) -> Any:
    if isinstance(value, dict):
        return merge_strategically(old if isinstance(old, dict) else {}, value, schema)
    if isinstance(value, list) and schema.merges:
        before = old if isinstance(old, list) else []
        return _merge_items(before, value, schema, name) if schema.merge_key else _union(before, value)
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _clean(value: Any) -> Any:
    """A value that replaces the old one, without its nulls and directives."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items() if v is not None and not k.startswith("$")}
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _union(old: list[Any], values: list[Any]) -> list[Any]:
    made = list(old)
    for value in values:
        if value not in made:
            made.append(value)
    return order_items(made, values, old, lambda item: item)


def _merge_items(old: list[Any], items: list[Any], schema: TypeSchema, name: str) -> list[Any]:
    key = schema.merge_key
    for item in items:
        if not isinstance(item, dict):
            raise errors.untyped(f"{name}: a patch of this list must hold objects, not {item!r}")
    if any(item.get(_PATCH) == "replace" for item in items):
        return [_clean(item) for item in items if _PATCH not in item]
    made = list(old)
    for item in items:
        if key not in item:
            raise errors.untyped(f"{name}: an item of the patch does not contain the declared merge key: {key}")
        place = next((i for i, one in enumerate(made) if isinstance(one, dict) and one.get(key) == item[key]), None)
        if item.get(_PATCH) == "delete":
            made = [one for one in made if not (isinstance(one, dict) and one.get(key) == item[key])]
        elif place is None:
            made.append(merge_strategically({}, item, schema.item or ANY))
        else:
            made[place] = merge_strategically(made[place], item, schema.item or ANY)
    # Without $setElementOrder, the order of the patch counts, and its items come before the others.
    order = [item[key] for item in items if item.get(_PATCH) != "delete"]
    return order_items(made, order, old, lambda one: one.get(key) if isinstance(one, dict) else None)


def _reorder(made: list[Any], old: Any, order: Any, schema: TypeSchema, name: str) -> list[Any]:
    """Sorts a list by $setElementOrder; items that it does not name keep their place relative to the others."""
    if not isinstance(order, list):
        raise errors.bad_request(f"{_ORDER}{name} must be a list, not {order!r}")
    key = schema.merge_key

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    return order_items(made, [identity(item) for item in order], old if isinstance(old, list) else [], identity)


def order_items(items: list[Any], order: list[Any], before: list[Any], identity: Callable[[Any], Any]) -> list[Any]:
    """Sorts the items in `order`; the others keep the position relative to them that they had in `before`."""
    was = [identity(item) for item in before]
    listed = sorted((item for item in items if identity(item) in order), key=lambda item: order.index(identity(item)))
    others = [item for item in items if identity(item) not in order]
    made: list[Any] = []
    while listed and others:
        left, right = identity(listed[0]), identity(others[0])
        moved = left in was and right in was and was.index(left) > was.index(right)
        made.append(others.pop(0) if moved else listed.pop(0))
    return [*made, *listed, *others]
