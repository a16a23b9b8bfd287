"""Shrinks JSON as long as it still shows a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpu_scheduler.k8s.objects import Json

_KEPT = ("metadata", "uid", "status", "schedulerName", "capacity")
"""Fields that every object of a real server has, and complete conditions."""


def shrink(value: Json, shows: Callable[[Json], bool]) -> Json:
    """The value without every removable part, larger parts first; its top-level keys stay."""
    shrunk = True
    while shrunk:
        shrunk = False
        for path in sorted(_paths(value), key=len):
            fixed = len(path) == 1 or path[-1] in _KEPT or "conditions" in path
            smaller = None if fixed else _without(value, path)
            if smaller is not None and shows(smaller):
                value, shrunk = smaller, True
    return value


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every part; in lists the last item first, so that the other paths stay valid."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value) - 1, -1, -1))
    for key in keys:
        yield (*path, key)
        yield from _paths(value[key], (*path, key))


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    """A copy without one part; None if the part is gone already."""
    key, rest = path[0], path[1:]
    there = key in value if isinstance(value, dict) else isinstance(value, list) and key < len(value)
    if not there:
        return None
    changed = value.copy()
    if not rest:
        del changed[key]
        return changed
    inner = _without(value[key], rest)
    if inner is None:
        return None
    changed[key] = inner
    return changed
