"""Quantities as the API server writes them back: "1.5Gi" becomes "1536Mi", 0.5 becomes "500m"."""

from __future__ import annotations

import re
from functools import lru_cache

from gpu_scheduler.core.quantity import parse_nano

_MILLI = 10**6
_DECIMAL = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_EXPONENT = re.compile(r"[0-9.][eE][+-]?[0-9]+$")


@lru_cache(maxsize=4096)  # the same few quantities are on every pod
def canonical(text: str) -> str:
    """The one way to write an amount that keeps its family of suffixes; finer than milli is rounded up.

    Raises QuantityError for a text that is no quantity.
    """
    nano = parse_nano(text)
    sign, size = ("-", -nano) if nano < 0 else ("", nano)
    milli = -(-size // _MILLI)
    if milli == 0:
        return "0"
    if text[-1] == "i" and milli >= 1024_000 and milli % 1000 == 0:
        return sign + _shrink(milli // 1000, 1024, _BINARY)
    if _EXPONENT.search(text):
        power = -3
        while milli % 1000 == 0:
            milli //= 1000
            power += 3
        return f"{sign}{milli}e{power}" if power else f"{sign}{milli}"
    return sign + _shrink(milli, 1000, _DECIMAL)


def _shrink(amount: int, base: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while amount % base == 0 and step < len(suffixes) - 1:
        amount //= base
        step += 1
    return f"{amount}{suffixes[step]}"
