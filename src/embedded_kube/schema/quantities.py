"""The canonical form of quantities: "1.5Gi" becomes "1536Mi", 0.5 becomes "500m"."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gpu_scheduler.k8s.quantity import MAX_VALUE, Parts, split_quantity

_DECIMAL = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_MILLI = -3
_MOST_DIGITS = 18
"""This many digits always fit an int64."""


class _Amount(NamedTuple):
    """digits * 10 ** power, without trailing zeros; rounded up to milli."""

    negative: bool
    digits: int
    power: int


@lru_cache(maxsize=4096)  # pods repeat the same few quantities
def canonical(text: str) -> str:
    """A quantity as the API server stores it in a resource list; rounded up to milli. Raises QuantityError."""
    parts = split_quantity(text)
    amount = _read_amount(parts)
    if not amount.digits:
        return "0"
    if _is_kept(parts):
        return text
    sign = "-" if amount.negative else ""
    if parts.base == 2 and amount.power >= 0:
        units = amount.digits * 10**amount.power
        if units >= 1024:
            return sign + _shrink(units)
    digits, power = amount.digits, amount.power
    while power % 3:
        digits, power = digits * 10, power - 1
    if parts.exponential:
        return f"{sign}{digits}e{power}" if power else f"{sign}{digits}"
    # There is no suffix beyond exa: the rest of the power is written as digits.
    beyond = max(0, power // 3 + 2 - len(_DECIMAL))
    return f"{sign}{digits * 1000**beyond}{_DECIMAL[power // 3 + 1 - beyond]}"


def is_equal(one: str, other: str) -> bool:
    """Whether two quantities are equal. Raises QuantityError."""
    return _read_amount(split_quantity(one)) == _read_amount(split_quantity(other))


def _read_amount(parts: Parts) -> _Amount:
    digits, power = int(parts.whole + parts.fraction or "0"), -len(parts.fraction)
    if parts.base == 2:
        digits = min(digits << parts.power, MAX_VALUE * 10**-power)
    else:
        power += parts.power
    if power < _MILLI:
        digits = -(-digits // 10 ** min(_MILLI - power, 2 * len(str(digits))))
        power = _MILLI
    while digits and digits % 10 == 0:
        digits, power = digits // 10, power + 1
    return _Amount(parts.negative and digits > 0, digits, power if digits else 0)


def _is_kept(parts: Parts) -> bool:
    """Whether the API server takes the text as canonical; its fast path also accepts "+5" and "5."."""
    whole = parts.whole.lstrip("0") or "0"
    if parts.base == 2:
        short = len(whole) + parts.power * 3 // 10 < 15
        return short and not parts.fraction and int(whole) % 8 != 0
    digits = whole + parts.fraction
    power = parts.power - len(parts.fraction)
    plain = not digits.endswith("000") and not digits.startswith("0")
    return plain and len(digits) <= _MOST_DIGITS and power >= _MILLI and power % 3 == 0


def _shrink(amount: int) -> str:
    step = 0
    while amount % 1024 == 0 and step < len(_BINARY) - 1:
        amount //= 1024
        step += 1
    return f"{amount}{_BINARY[step]}"
