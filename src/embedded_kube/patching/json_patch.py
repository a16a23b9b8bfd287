"""JSON patch (RFC 6902), as lenient as a real API server: the target of a replace need not exist."""

from __future__ import annotations

import copy
from typing import Any

from gpu_scheduler.k8s.objects import Json


class JsonPatchError(Exception):
    """An operation that is invalid, or does not fit the object."""


def apply_operations(obj: Any, operations: list[Json]) -> Any:
    """Applies operations to a value, in place; returns the result."""
    for operation in operations:
        name, path = operation.get("op"), operation.get("path")
        if not isinstance(name, str) or name not in _OPERATIONS or not isinstance(path, str):
            raise JsonPatchError(f"not an operation: {operation}")
        if not path and name in ("add", "replace"):
            obj = copy.deepcopy(operation.get("value"))
        else:
            _OPERATIONS[name](obj, path, operation)
    return obj


def _keys(path: str) -> list[str]:
    """The keys of a JSON pointer; text before its first slash is ignored."""
    return [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:]]


def _find_container(obj: Any, path: str) -> tuple[Any, str]:
    """The container of the value at a path, and the key in it."""
    *parents, last = _keys(path) or [""]
    for key in parents:
        obj = _get(obj, key)
    if not isinstance(obj, (dict, list)):
        raise JsonPatchError(f"nothing is at {path}")
    return obj, last


def _get(container: Any, key: str) -> Any:
    """The value at a key; None if an object has none."""
    if isinstance(container, dict):
        return container.get(key)
    if isinstance(container, list):
        return container[_index(key, len(container))]
    raise JsonPatchError(f"nothing can be at {key}")


def _index(key: str, length: int) -> int:
    try:
        index = int(key)
    except ValueError:
        raise JsonPatchError(f"{key} is no index in a list") from None
    if not -length <= index < length:
        raise JsonPatchError(f"{key} is beyond the list")
    return index % length if length else 0


def _add(obj: Any, path: str, operation: Json) -> None:
    _put(obj, path, copy.deepcopy(operation.get("value")))


def _put(obj: Any, path: str, value: Any) -> None:
    container, key = _find_container(obj, path)
    if isinstance(container, dict):
        container[key] = value
    else:
        container.insert(len(container) if key == "-" else _index(key, len(container) + 1), value)


def _replace(obj: Any, path: str, operation: Json) -> None:
    container, key = _find_container(obj, path)
    value = copy.deepcopy(operation.get("value"))
    if isinstance(container, dict):
        container[key] = value
    else:
        container[_index(key, len(container))] = value


def _remove(obj: Any, path: str, _operation: Json) -> None:
    container, key = _find_container(obj, path)
    if isinstance(container, list):
        del container[_index(key, len(container))]
    elif key in container:
        del container[key]
    else:
        raise JsonPatchError(f"nothing is at {path}")


def _source(operation: Json) -> str:
    path = operation.get("from")
    if not isinstance(path, str):
        raise JsonPatchError(f"it does not say from where: {operation}")
    return path


def _move(obj: Any, path: str, operation: Json) -> None:
    source = _source(operation)
    value = _get(*_find_container(obj, source))
    _remove(obj, source, operation)
    _put(obj, path, value)


def _copy(obj: Any, path: str, operation: Json) -> None:
    _put(obj, path, copy.deepcopy(_get(*_find_container(obj, _source(operation)))))


def _test(obj: Any, path: str, operation: Json) -> None:
    if _get(*_find_container(obj, path)) != operation.get("value"):
        raise JsonPatchError(f"something else is at {path}")


_OPERATIONS = {"add": _add, "remove": _remove, "replace": _replace, "move": _move, "copy": _copy, "test": _test}
