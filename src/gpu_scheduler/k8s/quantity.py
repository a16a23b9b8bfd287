"""Kubernetes quantities ("500m", "1.5Gi", "1e3") to integers, as k8s.io/apimachinery ParseQuantity reads them.

Three departures, all where Go's own answer would mislead a scheduler:

- every amount stops at 2^63-1 in magnitude. Go caps the binary suffixes only, and its Value() of "1e30" is 0;
- negative amounts are exact and round away from zero. Go promises the same, but its Value() of "-1Pi" is -2882303760;
- texts over MAX_LENGTH characters and exponents outside int32, which Go wraps round or never finishes, are refused.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

MAX_VALUE: Final = 2**63 - 1
MAX_LENGTH: Final = 256

_NANO_PER_UNIT: Final = 10**9
_MAX_NANO: Final = MAX_VALUE * _NANO_PER_UNIT
_MAX_EXPONENT: Final = 2**31 - 1

_SUFFIXES: Final[dict[str, tuple[int, int]]] = {
    "n": (10, -9),
    "u": (10, -6),
    "m": (10, -3),
    "": (10, 0),
    "k": (10, 3),
    "M": (10, 6),
    "G": (10, 9),
    "T": (10, 12),
    "P": (10, 15),
    "E": (10, 18),
    "Ki": (2, 10),
    "Mi": (2, 20),
    "Gi": (2, 30),
    "Ti": (2, 40),
    "Pi": (2, 50),
    "Ei": (2, 60),
}

_BINARY_SUFFIXES: Final = {power: suffix for suffix, (base, power) in _SUFFIXES.items() if base == 2}

# [0-9] and not \d: Python's \d and int() would take the digits of every script, Kubernetes takes ASCII only.
_SHAPE: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[A-Za-z]*))"
)

# Beyond these shifts the digits no longer matter: one nano unit shifted up by 28 is over the cap, and the longest
# accepted number (under 10^256, times 2^60) shifted down by 300 is under one nano unit.
_HIGHEST_SHIFT: Final = 28
_LOWEST_SHIFT: Final = -300


class QuantityError(ValueError):
    """Text that is not a quantity; the message is one line with the text and what would be right."""


class Parts(NamedTuple):
    """The parts of a written quantity: digits before and after the point, times base ** power."""

    negative: bool
    whole: str
    fraction: str
    base: int
    power: int
    exponential: bool


def parse_nano(text: str) -> int:
    """Reads a quantity as nano units, rounded away from zero, at most MAX_VALUE whole units in magnitude."""
    return _read_nano(text)


def parse_value(text: str) -> int:
    """Reads a quantity as whole units (Quantity.Value), rounded away from zero, at most MAX_VALUE in magnitude."""
    return _round_away(_read_nano(text), _NANO_PER_UNIT)


def format_milli(amount: int) -> str:
    """Formats thousandths exactly: "2" or "1500m"."""
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def format_whole(amount: int) -> str:
    """Formats a whole number exactly, and a multiple of 2^20 with the largest binary suffix that divides it: "12Gi"."""
    power = min(60, ((amount & -amount).bit_length() - 1) // 10 * 10) if amount else 0
    return f"{amount >> power}{_BINARY_SUFFIXES[power]}" if power >= 20 else str(amount)


def split_quantity(text: str) -> Parts:
    """Splits a quantity into its parts; one without digits, which Go reads as zero, has no digits here either."""
    match = _SHAPE.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None:
        raise _refuse(text)
    base, power = _read_power(match, text)
    parts = Parts(match["sign"] == "-", match["whole"], match["fraction"] or "", base, power, bool(match["exponent"]))
    # Go's fast path reads a missing number as 0, its exact path finds no digits. The latter handles what may not fit
    # an int64 or is finer than nano, so "Ti" is zero there and "Pi" is an error.
    missing = not parts.whole and not parts.fraction
    if missing and (not text or (base == 2 and power > 40) or (base == 10 and power < -9)):
        raise _refuse(text)
    return parts


@lru_cache(maxsize=4096)  # all pods of a cluster have the same few quantities
def _read_nano(text: str) -> int:
    parts = split_quantity(text)
    nano = _scale_to_nano(int(parts.whole + parts.fraction or "0"), parts.base, parts.power, len(parts.fraction))
    return -nano if parts.negative else nano


def _read_power(match: re.Match[str], text: str) -> tuple[int, int]:
    """The factor of the suffix, as base and power."""
    if match["exponent"] is not None:
        exponent = int(match["exponent"])
        if abs(exponent) > _MAX_EXPONENT:
            raise _refuse(text)
        return 10, exponent
    power = _SUFFIXES.get(match["suffix"])
    if power is None:
        raise _refuse(text)
    return power


def _scale_to_nano(mantissa: int, base: int, power: int, places: int) -> int:
    """The nano units in mantissa * base**power / 10**places, rounded up and capped."""
    if base == 2:
        mantissa <<= power
        power = 0
    # Clamped before 10**shift is written out: "1e999999999" must not cost a gigabyte.
    shift = max(_LOWEST_SHIFT, min(_HIGHEST_SHIFT, power - places + 9))
    nano = mantissa * 10**shift if shift >= 0 else _round_away(mantissa, 10**-shift)
    return min(nano, _MAX_NANO)


def _round_away(amount: int, unit: int) -> int:
    """The amount in units, rounded away from zero."""
    return -(-amount // unit) if amount >= 0 else amount // unit


def _refuse(text: str) -> QuantityError:
    if len(text) > MAX_LENGTH:
        return QuantityError(f"quantity {text[:20]!r}... has {len(text)} characters; write at most {MAX_LENGTH}")
    return QuantityError(
        f"quantity {text!r} is not a number with a known suffix; write for example 2, 500m, 1.5Gi or 1e3"
    )
