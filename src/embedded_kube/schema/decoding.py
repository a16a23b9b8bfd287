"""From a shape to a function that makes JSON well-formed in place: unknown fields go, types are checked, defaults come.

One pass over the object; every pod that is created or changed goes through it, so the common case must stay cheap.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from embedded_kube.schema.quantities import canonical
from embedded_kube.schema.shapes import Shape
from gpu_scheduler.k8s.quantity import QuantityError

Path = tuple[Any, str | int] | None
"""Where a value is: its parent's path and its name or index. Made into text only when there is something to say."""

Reader = Callable[[Any, Path, list[str]], Any]
"""(value, path, unknown fields found so far) -> the value as it is stored."""

Complete = Callable[[dict[str, Any]], None]
"""Fills in what depends on other fields of the same struct."""

_BITS = {"int32": 2**31, "int64": 2**63}
_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_SIX_DIGITS = re.compile(r"\.\d{6}(Z|[+-]\d\d:\d\d)$")
_MICROSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_QUANTITIES = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class MalformedError(Exception):
    """A value that is not what its field holds."""

    def __init__(self, path: Path, problem: str, wanted: str = "") -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem
        self.wanted = wanted
        self.owner = ""

    def sentence(self) -> str:
        """What is wrong, as the API says it."""
        if not self.wanted:
            return self.problem
        if self.path is None:
            return f"json: cannot unmarshal {self.problem} into Go value of type {self.wanted}"
        names = ".".join(str(name) for name in _names(self.path) if isinstance(name, str))
        return f"json: cannot unmarshal {self.problem} into Go struct field {self.owner}.{names} of type {self.wanted}"


def _names(path: Path) -> list[str | int]:
    names: list[str | int] = []
    while path is not None:
        path, name = path
        names.append(name)
    return names[::-1]


def write_path(path: Path) -> str:
    """spec.containers[0].image."""
    text = ""
    for name in _names(path):
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


def say(value: Any) -> str:
    """A JSON value in the words of an error message."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


class Decoders:
    """Readers of shapes, each made once. `defaults` and `completions` are by the name of a struct."""

    def __init__(self, defaults: dict[str, dict[str, Any]], completions: dict[str, Complete]) -> None:
        self._defaults = defaults
        self._completions = completions
        self._structs: dict[str, Reader] = {}

    def reader(self, shape: Shape) -> Reader:
        """The reader of a shape."""
        if shape.type == "struct":
            return self._structs.get(shape.name) or self._struct(shape)
        if shape.type == "list":
            return self._list(shape)
        if shape.type == "map":
            return self._map(shape)
        return _SCALARS.get(shape.type) or _integer(shape.type)

    def _struct(self, shape: Shape) -> Reader:
        scalars, fresh, holders = self._tables(shape)
        nulls = {name for name, default in scalars if default is None}
        plain = {name: _PLAIN[item.type] for name, item in shape.fields.items() if item.type in _PLAIN}
        readers: dict[str, Reader] = {}
        complete = self._completions.get(shape.name)
        own_name, go_name = shape.own_name, shape.go_name
        plain_type, find_reader = plain.get, readers.get

        def read(value: Any, path: Path, unknown: list[str]) -> Any:
            if type(value) is not dict:
                raise MalformedError(path, say(value), go_name)
            for name, default in scalars:
                found = value.get(name)
                if found is None or found == "":
                    value[name] = default
            for name, default in fresh:
                if value.get(name) is None:
                    value[name] = deepcopy(default) if default else default.copy()
            drop: list[str] = []
            try:
                for name, item in value.items():
                    if plain_type(name) is type(item):
                        continue
                    reader = find_reader(name)
                    if reader is None:
                        unknown.append(write_path((path, name)))
                        drop.append(name)
                    elif item is None:
                        if name not in nulls:
                            drop.append(name)
                    elif not item and name in holders:
                        reader(item, (path, name), unknown)
                        drop.append(name)
                    else:
                        value[name] = reader(item, (path, name), unknown)
            except MalformedError as error:
                error.owner = error.owner or own_name
                raise
            for name in drop:
                del value[name]
            if complete is not None:
                complete(value)
            return value

        self._structs[shape.name] = read
        # The readers of the fields may lead back here, so they are made last.
        for name, item in shape.fields.items():
            readers[name] = self.reader(item)
        return read

    def _tables(self, shape: Shape) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]], set[str]]:
        """The default values that can be shared, those that cannot, and what is left out when it is empty."""
        defaults = {**shape.defaults, **self._defaults.get(shape.name, {})}
        # Where the API always writes a list, clients expect one.
        for name in shape.required:
            if shape.fields[name].type == "list" and name not in defaults:
                defaults[name] = []
        scalars = [(name, value) for name, value in defaults.items() if not isinstance(value, (dict, list))]
        fresh = [(name, value) for name, value in defaults.items() if isinstance(value, (dict, list))]
        holders = {name for name, part in shape.fields.items() if part.type in ("list", "map")} - defaults.keys()
        # That nobody owns anything any more must be told from silence about it.
        holders.discard("managedFields")
        return scalars, fresh, holders

    def _list(self, shape: Shape) -> Reader:
        assert shape.item is not None
        read_item = self.reader(shape.item)
        plain = _PLAIN.get(shape.item.type)
        empty = _empty(shape.item)
        go_name = shape.go_name

        def read(value: Any, path: Path, unknown: list[str]) -> Any:
            if type(value) is not list:
                raise MalformedError(path, say(value), go_name)
            for index, item in enumerate(value):
                if type(item) is plain:
                    continue
                found = (empty.copy() if isinstance(empty, (dict, list)) else empty) if item is None else item
                value[index] = read_item(found, (path, index), unknown)
            return value

        return read

    def _map(self, shape: Shape) -> Reader:
        assert shape.item is not None
        read_item = self.reader(shape.item)
        plain = _PLAIN.get(shape.item.type)
        empty = _empty(shape.item)
        go_name = shape.go_name

        def read(value: Any, path: Path, unknown: list[str]) -> Any:
            if type(value) is not dict:
                raise MalformedError(path, say(value), go_name)
            for name, item in value.items():
                if type(item) is plain:
                    continue
                found = (empty.copy() if isinstance(empty, (dict, list)) else empty) if item is None else item
                try:
                    value[name] = read_item(found, (path, name), unknown)
                except MalformedError as error:
                    if error.path == (path, name):
                        error.path = path  # values of a map are not told apart
                    raise
            return value

        return read


def _empty(shape: Shape) -> Any:
    """What a null in a list or map is read as."""
    return {"struct": {}, "map": {}, "list": [], "string": "", "bool": False, "any": None}.get(shape.type, 0)


def _integer(name: str) -> Reader:
    limit = _BITS[name]

    def read(value: Any, path: Path, _: list[str]) -> Any:
        if type(value) is not int or not -limit <= value < limit:
            raise MalformedError(path, f"number {value}" if type(value) in (int, float) else say(value), name)
        return value

    return read


def _string(value: Any, path: Path, _: list[str]) -> Any:
    if type(value) is not str:
        raise MalformedError(path, say(value), "string")
    return value


def _bool(value: Any, path: Path, _: list[str]) -> Any:
    if type(value) is not bool:
        raise MalformedError(path, say(value), "bool")
    return value


def _double(value: Any, path: Path, _: list[str]) -> Any:
    if type(value) is not int and type(value) is not float:
        raise MalformedError(path, say(value), "float64")
    return value


def _anything(value: Any, _path: Path, _: list[str]) -> Any:
    return value


def _int_or_string(value: Any, path: Path, _: list[str]) -> Any:
    if type(value) is str or (type(value) is int and -(2**31) <= value < 2**31):
        return value
    raise MalformedError(path, say(value), "intstr.IntOrString")


def _quantity(value: Any, path: Path, _: list[str]) -> Any:
    if type(value) is not str:
        if type(value) is not int and type(value) is not float:
            raise MalformedError(path, _QUANTITIES)
        value = repr(value)
    try:
        return canonical(value)
    except QuantityError:
        raise MalformedError(path, _QUANTITIES) from None


def _bytes(value: Any, path: Path, _: list[str]) -> Any:
    if type(value) is not str:
        raise MalformedError(path, say(value), "[]uint8")
    try:
        binascii.a2b_base64(value.replace("\n", "").replace("\r", ""), strict_mode=True)
    except (binascii.Error, ValueError):
        wrong = re.match(r"[A-Za-z0-9+/\r\n]*", value)
        raise MalformedError(path, f"illegal base64 data at input byte {wrong.end() if wrong else 0}") from None
    return value


def _time(value: Any, path: Path, _: list[str]) -> Any:
    found = _moment(value, path)
    return value if _SECONDS.fullmatch(value) else found.strftime("%Y-%m-%dT%H:%M:%SZ")


def _microtime(value: Any, path: Path, _: list[str]) -> Any:
    found = _moment(value, path)
    if not _SIX_DIGITS.search(value):
        raise MalformedError(path, f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse it')
    return value if _MICROSECONDS.fullmatch(value) else found.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(value: Any, path: Path) -> datetime:
    if type(value) is not str:
        raise MalformedError(path, say(value), "v1.Time")
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None or "T" not in value:
            raise ValueError
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise MalformedError(path, f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse it') from None


_PLAIN: dict[str, type] = {"string": str, "bool": bool}
_SCALARS: dict[str, Reader] = {
    "string": _string,
    "bool": _bool,
    "double": _double,
    "any": _anything,
    "intstr": _int_or_string,
    "quantity": _quantity,
    "bytes": _bytes,
    "time": _time,
    "microtime": _microtime,
}
