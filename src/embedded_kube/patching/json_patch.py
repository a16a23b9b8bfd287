"""JSON patch (RFC 6902), as forgiving as that of a real API server: what is replaced need not be there."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]


class PatchError(Exception):
    """An operation does not fit the object."""


def patched(found: Any, operations: list[Json]) -> Any:
    """What the operations make of a value, which is changed."""
    for operation in operations:
        name, path = operation.get("op"), operation.get("path")
        if not isinstance(name, str) or name not in _OPERATIONS or not isinstance(path, str):
            raise PatchError(f"not an operation: {operation}")
        if not path and name in ("add", "replace"):
            found = copy.deepcopy(operation.get("value"))
        else:
            _OPERATIONS[name](found, path, operation)
    return found


def _keys(path: str) -> list[str]:
    """The steps of a path; what stands before its first slash does not count."""
    return [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:]]


def _container(found: Any, path: str) -> tuple[Any, str]:
    """What holds the value at a path, and its key there."""
    *parents, last = _keys(path) or [""]
    for key in parents:
        found = _look(found, key)
    if not isinstance(found, (dict, list)):
        raise PatchError(f"nothing is at {path}")
    return found, last


def _look(holder: Any, key: str) -> Any:
    """The value at a key; None where an object has none."""
    if isinstance(holder, dict):
        return holder.get(key)
    if isinstance(holder, list):
        return holder[_index(holder, key, len(holder))]
    raise PatchError(f"nothing can be at {key}")


def _index(holder: list[Any], key: str, length: int) -> int:
    try:
        place = int(key)
    except ValueError:
        raise PatchError(f"{key} is no place in a list") from None
    if not -length <= place < length:
        raise PatchError(f"{key} is beyond the list")
    return place % length if length else 0


def _add(found: Any, path: str, operation: Json) -> None:
    _put(found, path, copy.deepcopy(operation.get("value")))


def _put(found: Any, path: str, value: Any) -> None:
    holder, key = _container(found, path)
    if isinstance(holder, dict):
        holder[key] = value
    else:
        holder.insert(len(holder) if key == "-" else _index(holder, key, len(holder) + 1), value)


def _replace(found: Any, path: str, operation: Json) -> None:
    holder, key = _container(found, path)
    value = copy.deepcopy(operation.get("value"))
    if isinstance(holder, dict):
        holder[key] = value
    else:
        holder[_index(holder, key, len(holder))] = value


def _remove(found: Any, path: str, _operation: Json) -> None:
    holder, key = _container(found, path)
    if isinstance(holder, list):
        del holder[_index(holder, key, len(holder))]
    elif key in holder:
        del holder[key]
    else:
        raise PatchError(f"nothing is at {path}")


def _source(operation: Json) -> str:
    path = operation.get("from")
    if not isinstance(path, str):
        raise PatchError(f"it does not say from where: {operation}")
    return path


def _move(found: Any, path: str, operation: Json) -> None:
    source = _source(operation)
    value = _look(*_container(found, source))
    _remove(found, source, operation)
    _put(found, path, value)


def _copy(found: Any, path: str, operation: Json) -> None:
    _put(found, path, copy.deepcopy(_look(*_container(found, _source(operation)))))


def _test(found: Any, path: str, operation: Json) -> None:
    if _look(*_container(found, path)) != operation.get("value"):
        raise PatchError(f"something else is at {path}")


_OPERATIONS = {"add": _add, "remove": _remove, "replace": _replace, "move": _move, "copy": _copy, "test": _test}
