"""What `kubectl get` prints: objects as rows of a Table, with the columns of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from embedded_kube.printing.columns import FUNCTIONS
from embedded_kube.printing.durations import age
from embedded_kube.printing.jsonpath import compile_path
from embedded_kube.storage.kinds import Column, Kind
from embedded_kube.storage.store import Json

Cell = Callable[[Json, datetime], Any]

_NAME = Column("Name", ".metadata.name", "name")
_AGE = Column("Age", ".metadata.creationTimestamp", "date")


def columns_of(kind: Kind) -> tuple[Column, ...]:
    """The columns of a kind: those it declares, or name and age; a CRD does not declare its name."""
    if kind.crd_schema is None and kind.columns:
        return kind.columns
    named = any(column.path == _NAME.path for column in kind.columns)
    return (*(() if named else (_NAME,)), *(kind.columns or (_AGE,)))


def definitions(kind: Kind) -> list[Json]:
    """The head of a Table."""
    return [
        {
            "name": column.name,
            "type": _type(column.type),
            "format": "name" if column.type == "name" else "",
            "description": column.description or column.name,
            "priority": 1 if column.wide else 0,
        }
        for column in columns_of(kind)
    ]


def _type(text: str) -> str:
    """What a column is called; some say less than they show."""
    return {"name": "string", "age": "string", "count": "string", "moment": "date"}.get(text, text)


class Rows:
    """Makes the rows of a kind's Table; `include` is what goes with each row: Metadata, Object or None."""

    def __init__(self, kind: Kind, include: str) -> None:
        self._cells = _cells(columns_of(kind), kind.crd_schema is None)
        self._include = include
        self._pods = kind.resource == "pods"

    def row(self, found: Json, now: datetime) -> Json:
        """One object."""
        made: Json = {"cells": [cell(found, now) for cell in self._cells]}
        ended = _ENDED.get(found.get("status", {}).get("phase", "")) if self._pods else None
        if ended:
            made["conditions"] = [{"type": "Completed", "status": "True", **ended}]
        shown = {"None": None, "Object": found}
        return {**made, "object": shown[self._include] if self._include in shown else partial(found)}

    def rows(self, objects: Iterable[Json]) -> list[Json]:
        """Many objects, all at the same moment."""
        now = datetime.now(UTC)
        return [self.row(found, now) for found in objects]


_ENDED = {
    "Succeeded": {"reason": "Succeeded", "message": "The pod has completed successfully."},
    "Failed": {"reason": "Failed", "message": "The pod failed."},
}
"""What a row says about a pod that is over, so that clients may leave it out."""


def partial(found: Json) -> Json:
    """The metadata of an object alone."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": found["metadata"]}


def table(heads: list[Json], rows: list[Json], meta: Json) -> Json:
    """A Table."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": heads,
        "rows": rows,
    }


_MISSING = {
    "integer": 0,
    "count": 0,
    "age": "<unknown>",
    **dict.fromkeys((".status.podIP", ".spec.nodeName", ".status.nominatedNodeName"), "<none>"),
    **dict.fromkeys((f".status.nodeInfo.{name}" for name in ("osImage", "kernelVersion")), "<unknown>"),
    ".status.nodeInfo.containerRuntimeVersion": "<unknown>",
}
"""What a built-in kind shows by type or path where there is nothing; an empty text for all others."""


@lru_cache(maxsize=512)
def _cells(columns: tuple[Column, ...], built_in: bool) -> tuple[Cell, ...]:
    return tuple(_cell(column, built_in) for column in columns)


def _cell(column: Column, built_in: bool) -> Cell:
    if column.path.startswith("="):
        return FUNCTIONS[column.path[1:]]
    find = _reader(column.path)
    missing: Any = _MISSING.get(column.path) or _MISSING.get(column.type, "") if built_in else None
    show: Callable[[list[Any], datetime], Any] = _SHOW.get(column.type, _as_text)

    def cell(found: Json, now: datetime) -> Any:
        values = find(found)
        if not values or values[0] is None or values[0] == "":
            return missing
        return show(values if built_in else values[:1], now)

    return cell


def _reader(path: str) -> Callable[[Any], list[Any]]:
    try:
        return compile_path(path)
    except ValueError:
        # A column that cannot be read stays empty: it must not cost the user the rest of the table.
        return lambda _found: []


def _as_age(values: list[Any], now: datetime) -> Any:
    return age(str(values[0]), now)


def _as_number(values: list[Any], _now: datetime) -> Any:
    return values[0] if isinstance(values[0], (int, float, bool)) else None


def _as_text(values: list[Any], _now: datetime) -> str:
    return " ".join(_text(value) for value in values)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(f'"{inner}"' if isinstance(inner, str) else _text(inner) for inner in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f'"{name}":{_text(inner)}' for name, inner in value.items()) + "}"
    return str(value)


_SHOW: dict[str, Callable[[list[Any], datetime], Any]] = {
    "age": _as_age,
    "date": _as_age,
    "integer": _as_number,
    "count": _as_number,
    "number": _as_number,
    "boolean": _as_number,
}
