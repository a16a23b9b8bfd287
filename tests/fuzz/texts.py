"""Strings that users write: the gpu-scheduling-map and quantities."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from embedded_kube.schema.quantities import canonical
from gpu_scheduler.gangs.pods.device_map import MapError, find_map_errors, map_group, parse_map
from gpu_scheduler.k8s.quantity import (
    MAX_LENGTH,
    MAX_VALUE,
    QuantityError,
    parse_nano,
    parse_value,
)
from tests.fuzz.target import Input, Target
from tests.unit.webhook.reviewing import THREE

_MAPS = ("0=node1:0", THREE, " 0 = node1 : 0 , 1 \n\n1=node-2.example:7", "\n".join(f"{i}=n{i}:0" for i in range(64)))
_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITIES = ("0", "1", "500m", "1.5Gi", "1e3", "12E-3", "+1", "-2Ki", "9223372036854775807", ".5", "5.", "100n", "1E")


def _read_map(given: Input) -> str:
    text = given.body.decode("utf-8", "surrogateescape")
    mistakes = find_map_errors(text)
    if mistakes:
        parse_map(text)
        raise AssertionError(f"read although it has mistakes: {mistakes}")
    assert parse_map(text)
    assert map_group("x", text) == map_group("x", f"\n{text} \n")
    return "read"


def _read_quantity(given: Input) -> str:
    """Reads a quantity, and compares it with the amount by Kubernetes' own grammar."""
    text = given.body.decode("utf-8", "surrogateescape")
    amount = _weigh(text)
    try:
        nano = parse_nano(text)
    except QuantityError:
        assert amount is None, f"{text!r} is {amount}"
        raise
    assert amount is not None, f"{text!r} is no quantity, but was read as {nano} nano units"
    sign = -1 if amount < 0 else 1
    assert nano == sign * min(ceil(abs(amount) * 10**9), MAX_VALUE * 10**9)
    assert parse_value(text) == sign * min(ceil(abs(amount)), MAX_VALUE)
    canonical(text)
    return "read"


def _weigh(text: str) -> Fraction | None:
    """The amount by the grammar in k8s.io/apimachinery's documentation, read character by character; None if invalid.

    Numbers without digits, which Go's two parsers treat differently, are left to the tables of the unit tests.
    """
    if len(text) > MAX_LENGTH:
        return None
    rest = text[1:] if text[:1] in ("+", "-") else text
    whole, rest = _digits(rest)
    fraction = ""
    if rest[:1] == ".":
        fraction, rest = _digits(rest[1:])
    if not whole and not fraction:
        try:
            return Fraction(parse_nano(text), 10**9)
        except QuantityError:
            return None
    number = Fraction(int(whole + fraction), 10 ** len(fraction)) * (-1 if text[:1] == "-" else 1)
    if rest in _BINARY:
        return number * Fraction(2 ** _BINARY[rest])
    if rest in _POWERS:
        return number * Fraction(f"1e{_POWERS[rest]}")
    if rest[:1] in ("e", "E"):
        exponent = rest[2:] if rest[1:2] in ("+", "-") else rest[1:]
        if exponent and _digits(exponent)[1] == "" and int(exponent) < 2**31:
            power = min(int(exponent), 400)  # beyond that every amount is over or under all limits
            return number / Fraction(10**power) if rest[1:2] == "-" else number * Fraction(10**power)
    return None


def _digits(text: str) -> tuple[str, str]:
    length = next((i for i, letter in enumerate(text) if letter not in "0123456789"), len(text))
    return text[:length], text[length:]


TARGETS = (
    Target("map", _read_map, [Input("", text.encode()) for text in _MAPS], (MapError,)),
    Target("quantity", _read_quantity, [Input("", text.encode()) for text in _QUANTITIES], (QuantityError,)),
)
