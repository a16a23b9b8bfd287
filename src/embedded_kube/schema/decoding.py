"""Decoding: compiles a type into a function that prunes unknown fields, checks types and sets defaults, in place.

One pass over the object. Every pod that is created or changed goes through it, so the common case must stay cheap.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from embedded_kube.schema.quantities import canonical
from embedded_kube.schema.type_schema import TypeSchema
from gpu_scheduler.k8s.quantity import QuantityError

FieldPath = tuple[Any, str | int] | None
"""The path of a value: its parent's path and its name or index. It is formatted only for an error."""

DecodeFunction = Callable[[Any, FieldPath, list[str]], Any]
"""(value, path, paths of unknown fields so far) -> the value to store."""

Defaulter = Callable[[dict[str, Any]], None]
"""Sets defaults of a struct that depend on its other fields."""

_BITS = {"int32": 2**31, "int64": 2**63}
_SECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_SIX_DIGITS = re.compile(r"\.\d{6}(Z|[+-]\d\d:\d\d)$")
_MICROSECONDS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_QUANTITIES = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class UnmarshalError(Exception):
    """A value that does not match the type of its field."""

    def __init__(self, path: FieldPath, problem: str, wanted: str = "") -> None:
        super().__init__(problem)
        self.path = path
        self.problem = problem
        self.wanted = wanted
        self.owner = ""

    def message(self) -> str:
        """The message of a real API server."""
        if not self.wanted:
            return self.problem
        if self.path is None:
            return f"json: cannot unmarshal {self.problem} into Go value of type {self.wanted}"
        names = ".".join(str(name) for name in _names(self.path) if isinstance(name, str))
        return f"json: cannot unmarshal {self.problem} into Go struct field {self.owner}.{names} of type {self.wanted}"


def _names(path: FieldPath) -> list[str | int]:
    names: list[str | int] = []
    while path is not None:
        path, name = path
        names.append(name)
    return names[::-1]


def format_path(path: FieldPath) -> str:
    """Formats a path: spec.containers[0].image."""
    text = ""
    for name in _names(path):
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


def json_type(value: Any) -> str:
    """The JSON type of a value, as error messages name it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


class Decoders:
    """Decode functions of type schemas, each compiled once. `defaults` and `defaulters` are keyed by struct name."""

    def __init__(self, defaults: dict[str, dict[str, Any]], defaulters: dict[str, Defaulter]) -> None:
        self._defaults = defaults
        self._defaulters = defaulters
        self._structs: dict[str, DecodeFunction] = {}

    def decoder(self, schema: TypeSchema) -> DecodeFunction:
        """The decode function of a type."""
        if schema.type == "struct":
            return self._structs.get(schema.name) or self._struct(schema)
        if schema.type == "list":
            return self._list(schema)
        if schema.type == "map":
            return self._map(schema)
        return _SCALARS.get(schema.type) or _integer(schema.type)

    def _struct(self, schema: TypeSchema) -> DecodeFunction:
        scalars, copied, omitted_if_empty = self._tables(schema)
        nulls = {name for name, default in scalars if default is None}
        plain = {name: _PLAIN[item.type] for name, item in schema.fields.items() if item.type in _PLAIN}
        decoders: dict[str, DecodeFunction] = {}
        set_defaults = self._defaulters.get(schema.name)
        struct_name, go_name = schema.struct_name, schema.go_name
        plain_type, find_decoder = plain.get, decoders.get

        def decode_value(value: Any, path: FieldPath, unknown: list[str]) -> Any:
            if type(value) is not dict:
                raise UnmarshalError(path, json_type(value), go_name)
            for name, default in scalars:
                found = value.get(name)
                if found is None or found == "":
                    value[name] = default
            for name, default in copied:
                if value.get(name) is None:
                    value[name] = deepcopy(default) if default else default.copy()
            drop: list[str] = []
            try:
                for name, item in value.items():
                    if plain_type(name) is type(item):
                        continue
                    decode = find_decoder(name)
                    if decode is None:
                        unknown.append(format_path((path, name)))
                        drop.append(name)
                    elif item is None:
                        if name not in nulls:
                            drop.append(name)
                    elif not item and name in omitted_if_empty:
                        decode(item, (path, name), unknown)
                        drop.append(name)
                    else:
                        value[name] = decode(item, (path, name), unknown)
            except UnmarshalError as error:
                error.owner = error.owner or struct_name
                raise
            for name in drop:
                del value[name]
            if set_defaults is not None:
                set_defaults(value)
            return value

        self._structs[schema.name] = decode_value
        # Last, because the type of a field may contain this type.
        for name, item in schema.fields.items():
            decoders[name] = self.decoder(item)
        return decode_value

    def _tables(self, schema: TypeSchema) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]], set[str]]:
        """Scalar defaults, defaults to copy (lists and maps), and the fields that are dropped when they are empty."""
        defaults = {**schema.defaults, **self._defaults.get(schema.name, {})}
        # Required lists are always written, because clients expect them.
        for name in schema.required:
            if schema.fields[name].type == "list" and name not in defaults:
                defaults[name] = []
        scalars = [(name, value) for name, value in defaults.items() if not isinstance(value, (dict, list))]
        copied = [(name, value) for name, value in defaults.items() if isinstance(value, (dict, list))]
        omitted_if_empty = {
            name for name, part in schema.fields.items() if part.type in ("list", "map")
        } - defaults.keys()
        # An empty managedFields, which resets it, is not the same as a missing one.
        omitted_if_empty.discard("managedFields")
        return scalars, copied, omitted_if_empty

    def _list(self, schema: TypeSchema) -> DecodeFunction:
        assert schema.item is not None
        decode_item = self.decoder(schema.item)
        plain = _PLAIN.get(schema.item.type)
        empty = _empty(schema.item)
        go_name = schema.go_name

        def decode_value(value: Any, path: FieldPath, unknown: list[str]) -> Any:
            if type(value) is not list:
                raise UnmarshalError(path, json_type(value), go_name)
            for index, item in enumerate(value):
                if type(item) is plain:
                    continue
                found = (empty.copy() if isinstance(empty, (dict, list)) else empty) if item is None else item
                value[index] = decode_item(found, (path, index), unknown)
            return value

        return decode_value

    def _map(self, schema: TypeSchema) -> DecodeFunction:
        assert schema.item is not None
        decode_item = self.decoder(schema.item)
        plain = _PLAIN.get(schema.item.type)
        empty = _empty(schema.item)
        go_name = schema.go_name

        def decode_value(value: Any, path: FieldPath, unknown: list[str]) -> Any:
            if type(value) is not dict:
                raise UnmarshalError(path, json_type(value), go_name)
            for name, item in value.items():
                if type(item) is plain:
                    continue
                found = (empty.copy() if isinstance(empty, (dict, list)) else empty) if item is None else item
                try:
                    value[name] = decode_item(found, (path, name), unknown)
                except UnmarshalError as error:
                    if error.path == (path, name):
                        error.path = path  # messages do not name the key of a map
                    raise
            return value

        return decode_value


def _empty(schema: TypeSchema) -> Any:
    """The zero value that a null in a list or map decodes to."""
    return {"struct": {}, "map": {}, "list": [], "string": "", "bool": False, "any": None}.get(schema.type, 0)


def _integer(name: str) -> DecodeFunction:
    limit = _BITS[name]

    def decode_value(value: Any, path: FieldPath, _: list[str]) -> Any:
        if type(value) is not int or not -limit <= value < limit:
            raise UnmarshalError(path, f"number {value}" if type(value) in (int, float) else json_type(value), name)
        return value

    return decode_value


def _string(value: Any, path: FieldPath, _: list[str]) -> Any:
    if type(value) is not str:
        raise UnmarshalError(path, json_type(value), "string")
    return value


def _bool(value: Any, path: FieldPath, _: list[str]) -> Any:
    if type(value) is not bool:
        raise UnmarshalError(path, json_type(value), "bool")
    return value


def _double(value: Any, path: FieldPath, _: list[str]) -> Any:
    if type(value) is not int and type(value) is not float:
        raise UnmarshalError(path, json_type(value), "float64")
    return value


def _anything(value: Any, _path: FieldPath, _: list[str]) -> Any:
    return value


def _int_or_string(value: Any, path: FieldPath, _: list[str]) -> Any:
    if type(value) is str or (type(value) is int and -(2**31) <= value < 2**31):
        return value
    raise UnmarshalError(path, json_type(value), "intstr.IntOrString")


def _quantity(value: Any, path: FieldPath, _: list[str]) -> Any:
    if type(value) is not str:
        if type(value) is not int and type(value) is not float:
            raise UnmarshalError(path, _QUANTITIES)
        value = repr(value)
    try:
        return canonical(value)
    except QuantityError:
        raise UnmarshalError(path, _QUANTITIES) from None


def _bytes(value: Any, path: FieldPath, _: list[str]) -> Any:
    if type(value) is not str:
        raise UnmarshalError(path, json_type(value), "[]uint8")
    try:
        binascii.a2b_base64(value.replace("\n", "").replace("\r", ""), strict_mode=True)
    except (binascii.Error, ValueError):
        wrong = re.match(r"[A-Za-z0-9+/\r\n]*", value)
        raise UnmarshalError(path, f"illegal base64 data at input byte {wrong.end() if wrong else 0}") from None
    return value


def _time(value: Any, path: FieldPath, _: list[str]) -> Any:
    found = _parse_time(value, path)
    return value if _SECONDS.fullmatch(value) else found.strftime("%Y-%m-%dT%H:%M:%SZ")


def _microtime(value: Any, path: FieldPath, _: list[str]) -> Any:
    found = _parse_time(value, path)
    if not _SIX_DIGITS.search(value):
        raise UnmarshalError(path, f'parsing time "{value}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse it')
    return value if _MICROSECONDS.fullmatch(value) else found.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parse_time(value: Any, path: FieldPath) -> datetime:
    if type(value) is not str:
        raise UnmarshalError(path, json_type(value), "v1.Time")
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None or "T" not in value:
            raise ValueError
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UnmarshalError(path, f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse it') from None


_PLAIN: dict[str, type] = {"string": str, "bool": bool}
_SCALARS: dict[str, DecodeFunction] = {
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
