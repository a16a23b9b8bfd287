"""Damages valid inputs: changes one to four places by a seeded random generator."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

WORDS = (
    *(
        "",
        " ",
        "0",
        "-0",
        "-1",
        "+1",
        "1.5",
        "1e3",
        "1e400",
        "1e-400",
        "1e2147483648",
        "NaN",
        "Infinity",
        "0x10",
        "1_0",
    ),
    *(
        "9" * 19,
        "9" * 25,
        "9" * 5000,
        "1" * 300,
        "true",
        "null",
        "~",
        "500m",
        "1Ki",
        "1Ei",
        "9Ei",
        "Ti",
        ".",
        "1n",
        "-1Pi",
    ),
    *("²", "٣", "é", "名前", "🚀", "\u2028", "\x00", "\x1b[31m", "\r", "\n", "\t", "\ud800", "x\udfff", "\ufeff"),
    *(
        "a" * 64,
        "a" * 254,
        "x" * 70_000,
        "../..",
        "/",
        "a/b",
        "a=b",
        "a,b",
        "*",
        "%s%n",
        "{}",
        "[]",
        '{"a":',
        "[1]",
        '"',
    ),
    *("Always", "Exists", "In", "NotIn", "Gt", "Never", "Succeeded", "Failed", "Inqueue", "True", "required:rack"),
    *("2025-01-02T03:04:05Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59+23:59", "2025-13-45T99:99:99Z", "now"),
    *("0=node1:0,1", "0=node1:0\n0=node1:0", "18446744073709551616=n:0", "gpu-scheduler", "volcano", "x/y/z"),
)
"""Strings that break parsers: invalid and odd numbers, other digits, controls, surrogates, long names, API terms."""


class Text(str):
    """JSON that is written verbatim, valid or not."""


ODD: tuple[Any, ...] = (
    *map(Text, ("NaN", "-Infinity", "1e999", "-1e999", "9" * 400, "-0", "1.0", "0.1e-300", "01", "nul", '"\\ud800"')),
    *map(Text, ('"\\u0000"', '"\udcff\udcfe"', "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900, "[" * 100_000)),
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        1.5,
        2**31 - 1,
        2**31,
        -(2**31),
        1000,
        20_000,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
        1e308,
        -1e308,
    ),
    *([], {}, [None], [[]], [{}], {"": ""}, {"name": 1}, [1, "a", None], {"a": {"b": {"c": []}}}, [0] * 2000),
)
"""Values of every type, and some that are not JSON or larger than a parser expects."""


def change(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Derives an input from a valid one: mostly by changing its parts, sometimes its bytes; a few are noise."""
    kind = rng.random()
    if kind < 0.03:
        return rng.randbytes(rng.choice((0, 1, 7, 64, 1000)))
    if kind < 0.2:
        return _change_bytes(rng, data, others)
    try:
        found = json.loads(data) if data[:1] in (b"{", b"[") else None
    except (ValueError, RecursionError):
        found = None
    if found is None:
        return _change_text(rng, data)
    donors = [rng.choice(others)] if others else []
    try:
        for _ in range(rng.choice((1, 1, 2, 3, 4))):
            found = _change_part(rng, found, donors)
        written = write(found)
    except RecursionError:  # nested too deeply to walk through
        written = data
    return _change_bytes(rng, written, others) if kind > 0.97 else written


def write(found: Any) -> bytes:
    """Encodes a value as JSON. Pairs may repeat a key; strings that UTF-8 cannot encode become invalid bytes."""
    return _write(found).encode("utf-8", "surrogateescape")


def _write(found: Any) -> str:
    if isinstance(found, Text):
        return str(found)
    if isinstance(found, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_write(value)}" for name, value in found.items()) + "}"
    if isinstance(found, Pairs):
        return "{" + ",".join(f"{json.dumps(name)}:{_write(value)}" for name, value in found.pairs) + "}"
    if isinstance(found, list):
        return "[" + ",".join(map(_write, found)) + "]"
    return json.dumps(found)


class Pairs:
    """An object with a repeated key."""

    def __init__(self, found: dict[str, Any], name: str, value: Any) -> None:
        self.pairs = [*found.items(), (name, value)]


# -- parts of JSON


def _places(found: Any) -> list[tuple[Any, Any]]:
    """Every place in a value, as its container and its key or index there."""
    places: list[tuple[Any, Any]] = []
    left = [found]
    while left:
        holder = left.pop()
        keys: Any = holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in list(keys):
            places.append((holder, key))
            left.append(holder[key])
    return places


def _change_part(rng: random.Random, found: Any, donors: Sequence[bytes]) -> Any:
    places = _places(found)
    if not places:
        return deepcopy(rng.choice(ODD))
    holder, key = rng.choice(places)
    old = holder[key]
    way = rng.randrange(9)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(old, str) and not isinstance(old, Text):
        holder[key] = _change_string(rng, old)
    elif way == 2:
        holder[key] = rng.choice(WORDS)
    elif way == 3 and isinstance(holder, dict):
        holder[rng.choice(WORDS)] = holder.pop(key)
    elif way == 4:
        other, place = rng.choice(places)
        holder[key] = deepcopy(other[place])
    elif way == 5 and isinstance(old, dict) and old:
        name = rng.choice(list(old))
        holder[key] = Pairs(old, name, deepcopy(rng.choice(ODD)))
    elif way == 6 and isinstance(old, list) and old:
        holder[key] = old * rng.choice((2, 2, 300)) if len(old) < 20 else old[:1]
    elif way == 7 and donors:
        holder[key] = _donate(rng, donors)
    else:
        holder[key] = deepcopy(rng.choice(ODD))
    return found


def _donate(rng: random.Random, donors: Sequence[bytes]) -> Any:
    """A part of another input."""
    try:
        places = _places(json.loads(rng.choice(donors)))
    except (ValueError, RecursionError):
        return None
    holder, key = rng.choice(places) if places else ([None], 0)
    return holder[key]


def _change_string(rng: random.Random, text: str) -> str:
    """Changes a string. A string that is JSON itself, as in annotations, is changed as JSON."""
    if text[:1] in ("{", "[") and rng.random() < 0.8 and _is_json(text):
        return change(rng, text.encode("utf-8", "surrogatepass"), ()).decode("utf-8", "replace")
    at = rng.randrange(len(text) + 1)
    until = min(len(text), at + rng.choice((0, 1, 1, 4)))
    return text[:at] + rng.choice(WORDS) + text[until:]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# -- text and bytes


def _change_text(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "surrogateescape")
    for _ in range(rng.choice((1, 1, 2, 4))):
        text = _change_string(rng, text)
    return text.encode("utf-8", "surrogatepass")


def _change_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(found) + 1)
        way = rng.randrange(7)
        if way == 0:
            del found[at:]
        elif way == 1 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif way == 2:
            found[at:at] = rng.choice(
                (b"\x00", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\n", b"\r\n", b'"', b"{", b"]")
            )
        elif way == 3:
            del found[at : at + rng.choice((1, 2, 30))]
        elif way == 4:
            found[at:at] = found[at : at + rng.choice((1, 30, 500))] * rng.choice((1, 2, 20))
        elif way == 5 and others:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            found[at:at] = other[start : start + 200]
        else:
            found[at:at] = rng.randbytes(rng.choice((1, 3, 40)))
    return bytes(found)
