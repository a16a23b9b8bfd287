"""Objects as rows of a meta.k8s.io/v1 Table, with the columns of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from embedded_kube.printing.columns import CELL_FUNCTIONS
from embedded_kube.printing.durations import age
from embedded_kube.printing.jsonpath import compile_path
from embedded_kube.registry.kinds import PrinterColumn, ServedKind
from gpu_scheduler.k8s.objects import Json

Cell = Callable[[Json, datetime], Any]

_NAME = PrinterColumn("Name", ".metadata.name", "name")
_AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date")


def columns_of(kind: ServedKind) -> tuple[PrinterColumn, ...]:
    """The columns of a kind: those that it declares, or name and age; the name column is added to those of a CRD."""
    if kind.crd_schema is None and kind.columns:
        return kind.columns
    named = any(column.path == _NAME.path for column in kind.columns)
    return (*(() if named else (_NAME,)), *(kind.columns or (_AGE,)))


def column_definitions(kind: ServedKind) -> list[Json]:
    """The columnDefinitions of a Table."""
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
    """The public type of a column; some internal types map to string or date."""
    return {"name": "string", "age": "string", "count": "string", "moment": "date"}.get(text, text)


class RowPrinter:
    """Makes the rows of a kind's Table. `include` is the includeObject parameter: Metadata, Object or None."""

    def __init__(self, kind: ServedKind, include: str) -> None:
        self._cells = _cells(columns_of(kind), kind.crd_schema is None)
        self._include = include
        self._pods = kind.resource == "pods"

    def row(self, obj: Json, now: datetime) -> Json:
        """The row of one object."""
        made: Json = {"cells": [cell(obj, now) for cell in self._cells]}
        ended = _COMPLETED_CONDITIONS.get(obj.get("status", {}).get("phase", "")) if self._pods else None
        if ended:
            made["conditions"] = [{"type": "Completed", "status": "True", **ended}]
        shown = {"None": None, "Object": obj}
        return {**made, "object": shown[self._include] if self._include in shown else partial(obj)}

    def rows(self, objects: Iterable[Json]) -> list[Json]:
        """The rows of many objects, with the same current time."""
        now = datetime.now(UTC)
        return [self.row(found, now) for found in objects]


_COMPLETED_CONDITIONS = {
    "Succeeded": {"reason": "Succeeded", "message": "The pod has completed successfully."},
    "Failed": {"reason": "Failed", "message": "The pod failed."},
}
"""The row condition of a pod that has ended, by which clients can hide it."""


def partial(obj: Json) -> Json:
    """The PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(column_defs: list[Json], rows: list[Json], meta: Json) -> Json:
    """Makes a Table."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": column_defs,
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
"""The cell of a missing value in a table of a built-in kind, by path or column type; "" for all others."""


@lru_cache(maxsize=512)
def _cells(columns: tuple[PrinterColumn, ...], built_in: bool) -> tuple[Cell, ...]:
    return tuple(_cell(column, built_in) for column in columns)


def _cell(column: PrinterColumn, built_in: bool) -> Cell:
    if column.path.startswith("="):
        return CELL_FUNCTIONS[column.path[1:]]
    find = _reader(column.path)
    missing: Any = _MISSING.get(column.path) or _MISSING.get(column.type, "") if built_in else None
    show: Callable[[list[Any], datetime], Any] = _SHOW.get(column.type, _as_text)

    def cell(obj: Json, now: datetime) -> Any:
        values = find(obj)
        if not values or values[0] is None or values[0] == "":
            return missing
        return show(values if built_in else values[:1], now)

    return cell


def _reader(path: str) -> Callable[[Any], list[Any]]:
    try:
        return compile_path(path)
    except ValueError:
        # An invalid path makes an empty column, not an error for the whole table.
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
