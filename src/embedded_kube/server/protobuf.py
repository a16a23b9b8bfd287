"""Decoding of protobuf bodies, which typed Go clients (kubectl create, auth, drain) send without negotiation.

Responses are JSON. The table of messages is protobuf.json; scripts/make_protobuf.py makes it and explains its notation.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from embedded_kube.errors import bad_request, unsupported_media_type
from gpu_scheduler.k8s.objects import Json

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_EMPTY: tuple[Any, ...] = ("", 0, False, None, {}, [])


class _Field(NamedTuple):
    name: str
    type: str
    container: str
    omit_empty: bool


def decode_protobuf(data: bytes) -> Json:
    """Decodes the object in a body; 400 if it is not protobuf, 415 for kinds that are not in the table."""
    if not data.startswith(_MAGIC):
        raise bad_request("the body of the request is not protobuf of Kubernetes: it does not begin with its mark")
    try:
        envelope = {number: value for number, _, value in _fields(data[len(_MAGIC) :])}
        names = {number: value.decode() for number, _, value in _fields(envelope.get(1, b""))}
        api_version, kind = names.get(1, ""), names.get(2, "")
        message = _message_of(api_version, kind)
        if message not in _table():
            raise unsupported_media_type(
                f"{api_version}, Kind={kind} cannot be sent as protobuf; send it as application/json"
            )
        return {"apiVersion": api_version, "kind": kind, **_decode_message(message, envelope.get(2, b""))}
    except (IndexError, ValueError, AttributeError, TypeError):
        raise bad_request("the body of the request is not readable protobuf") from None


def _message_of(api_version: str, kind: str) -> str:
    if kind == "DeleteOptions":
        return "meta.v1.DeleteOptions"
    group, _, version = api_version.rpartition("/")
    return f"{group.split('.')[0] or 'core'}.{version}.{kind}"


@cache
def _table() -> dict[str, dict[int, _Field]]:
    text = files("embedded_kube.server").joinpath("protobuf.json").read_text()
    return {
        message: {int(number): _field(field) for number, field in fields.items()}
        for message, fields in json.loads(text).items()
    }


def _field(text: str) -> _Field:
    name, kind = text.split(" ")
    omit_empty = kind.endswith("?")
    kind = kind.removesuffix("?")
    container = kind[:2] if kind[:2] in ("[]", "{}") else ""
    return _Field(name, kind[len(container) :], container, omit_empty)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """The fields of a message: number, wire type and raw value."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, wire, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("an unknown wire type")
        if position + size > len(data):
            raise ValueError("the message ends too early")
        yield number, wire, data[position : position + size]
        position += size


def _decode_message(message: str, data: bytes) -> Json:
    known = _table()[message]
    found: Json = {}
    for number, wire, raw in _fields(data):
        field = known.get(number)
        if field is None:
            continue
        if field.container == "{}":
            pair = {inner: value for inner, _, value in _fields(raw)}
            found.setdefault(field.name, {})[pair.get(1, b"").decode()] = _value(field.type, pair.get(2, b""))
        elif field.container == "[]" and wire == 2 and field.type in ("int32", "int64", "bool"):
            found.setdefault(field.name, []).extend(_packed(field.type, raw))
        elif field.container == "[]":
            found.setdefault(field.name, []).append(_value(field.type, raw))
        elif field.name == "+":
            found.update(_value(field.type, raw))
        else:
            value = _value(field.type, raw)
            if value is not None and not (field.omit_empty and value in _EMPTY):
                found[field.name] = value
    return found


def _packed(kind: str, raw: bytes) -> Iterator[Any]:
    position = 0
    while position < len(raw):
        value, position = _varint(raw, position)
        yield _value(kind, value)


def _value(kind: str, raw: Any) -> Any:
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(raw)
    if kind.endswith(".ExtraValue"):
        return [value.decode() for _, _, value in _fields(raw)]
    return _decode_message(kind, raw)


def _signed(raw: int) -> int:
    return raw - (1 << 64) if raw >= 1 << 63 else raw


def _int_or_string(raw: bytes) -> int | str:
    found = {number: value for number, _, value in _fields(raw)}
    return str(found.get(3, b"").decode()) if found.get(1, 0) else _signed(found.get(2, 0))


def _quantity(raw: bytes) -> str:
    return next((str(value.decode()) for number, _, value in _fields(raw) if number == 1), "0")


def _embedded(raw: bytes) -> Any:
    text = next((value for number, _, value in _fields(raw) if number == 1), b"")
    return json.loads(text) if text else None


def _parse_time(raw: bytes) -> datetime | None:
    found = {number: value for number, _, value in _fields(raw)}
    if not found:
        return None
    return datetime.fromtimestamp(_signed(found.get(1, 0)), UTC).replace(microsecond=found.get(2, 0) // 1000)


def _time(raw: bytes) -> str | None:
    time = _parse_time(raw)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ") if time is not None else None


def _microtime(raw: bytes) -> str | None:
    time = _parse_time(raw)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if time is not None else None


def _double(raw: bytes) -> float:
    return float(struct.unpack("<d", raw)[0])


_SPECIAL: dict[str, Any] = {
    "string": lambda raw: raw.decode(),
    "bytes": lambda raw: base64.b64encode(raw).decode(),
    "bool": bool,
    "int32": _signed,
    "int64": _signed,
    "double": _double,
    "quantity": _quantity,
    "intstr": _int_or_string,
    "time": _time,
    "microtime": _microtime,
    "json": _embedded,
}
