"""What `kubectl get` prints: objects as rows of a Table, with the columns of their kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from gpu_scheduler.local.columns import FUNCTIONS
from gpu_scheduler.local.durations import age
from gpu_scheduler.local.jsonpath import compile_path
from gpu_scheduler.local.kinds import Column, Kind
from gpu_scheduler.local.store import Json

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
    return "string" if text in ("name", "age") else text


class Rows:
    """Makes the rows of a kind's Table; `include` is what goes with each row: Metadata, Object or None."""

    def __init__(self, kind: Kind, include: str) -> None:
        self._cells = _cells(columns_of(kind), kind.crd_schema is None)
        self._include = include

    def row(self, found: Json, now: datetime) -> Json:
        """One object."""
        cells = [cell(found, now) for cell in self._cells]
        if self._include == "None":
            return {"cells": cells}
        if self._include == "Object":
            return {"cells": cells, "object": found}
        return {"cells": cells, "object": partial(found)}

    def rows(self, objects: Iterable[Json]) -> list[Json]:
        """Many objects, all at the same moment."""
        now = datetime.now(UTC)
        return [self.row(found, now) for found in objects]


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


@lru_cache(maxsize=512)
def _cells(columns: tuple[Column, ...], built_in: bool) -> tuple[Cell, ...]:
    return tuple(_cell(column, built_in) for column in columns)


def _cell(column: Column, built_in: bool) -> Cell:
    if column.path.startswith("="):
        return FUNCTIONS[column.path[1:]]
    find = _reader(column.path)
    # Users know "<none>" and 0 from built-in kinds, and an empty cell from custom ones.
    missing: Any = {"integer": 0, "age": "<unknown>"}.get(column.type, "<none>") if built_in else None
    show: Callable[[list[Any], datetime], Any] = _SHOW.get(column.type, _as_text)

    def cell(found: Json, now: datetime) -> Any:
        values = find(found)
        if not values or values[0] is None or values[0] == "":
            return missing
        return show(values, now)

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
    "number": _as_number,
    "boolean": _as_number,
}
