"""Text formatting for messages: amounts, durations, lists, single lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

MAX_MESSAGE = 999
"""The longest message, in characters: the API accepts 1024 in an Event, and leaves room for a prefix."""

_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_ALIKE = 0.65
"""Two names this much alike may be one name and its misspelling."""
_LONGEST_NAME = 320
_OTHER_PREFIX = 0.2
"""Names whose prefixes differ too must be this much more alike."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_AMOUNT = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?:[KMGTPE]i|m)?(?![\w-])")


def format_amount(resource: str, amount: float) -> str:
    """Formats an amount in the units of requests: "1.5 cpu", "12Gi memory", "7 nvidia.com/gpu"."""
    return f"{format_number(resource, amount)} {resource}"


def format_number(resource: str, amount: float) -> str:
    """Formats an amount without the name of its resource."""
    if resource == "cpu":
        return _decimals(amount / 1000, 3)
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return _say_bytes(int(amount))
    return str(amount)


def _say_bytes(amount: int) -> str:
    power = max(0, min(len(_BINARY), (abs(amount).bit_length() - 1) // 10))
    return f"{_decimals(amount / 1024**power, 1)}{_BINARY[power - 1]}" if power else f"{amount} bytes of"


def _decimals(value: float, places: int) -> str:
    return f"{value:.{places}f}".rstrip("0").rstrip(".")


def format_duration(seconds: float) -> str:
    """Formats a duration in its largest fitting unit: "90 seconds", "5 minutes", "3 hours", "2 days"."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length or (seconds >= length and seconds % length < 1):
            return count(round(seconds / length), unit)
    return count(round(max(0.0, seconds)), "second")


def count(number: int, noun: str) -> str:
    """Formats a number with its noun: "1 node", "3 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join(parts: Sequence[str], most: int = 3) -> str:
    """Joins parts with commas, cut after `most`: "a, b, c and 3 more"."""
    left = len(parts) - most
    return ", ".join(parts[:most]) + (f" and {left} more" if left > 0 else "")


def one_line(text: str, longest: int = MAX_MESSAGE) -> str:
    """Removes line breaks and control characters from text, and truncates it to `longest` characters."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 3] + "..."


def encodable(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode: a byte of a header that is not UTF-8 decodes to one."""
    return _SURROGATE.sub("\ufffd", text)


def without_numbers(text: str) -> str:
    """Replaces numbers, so that messages that differ only in numbers become equal."""
    return _DIGITS.sub("#", text)


def without_amounts(text: str) -> str:
    """Replaces numbers except those in names: train-worker-1 stays different from train-worker-2."""
    return _AMOUNT.sub("#", text)


def closest(word: str, known: Iterable[str]) -> str:
    """The known name that a misspelt word most likely means, or "" when none is close.

    Names like "example.com/name" are compared by the part after the slash when the part before it is the same or left
    out, so that a shared prefix makes no two names alike. A word longer than any name of the API is close to none.
    """
    if len(word) > _LONGEST_NAME:
        return ""
    scored = [(_likeness(word.lower(), name.lower()), name) for name in sorted(set(known))]
    score, name = max(scored, key=lambda one: one[0], default=(0.0, ""))
    return name if score >= _ALIKE else ""


def _likeness(word: str, name: str) -> float:
    """From 0 to 1; a name that begins with the whole word is alike even when it is much longer."""
    (prefix, _, last), (other, _, own) = word.rpartition("/"), name.rpartition("/")
    if prefix in ("", other):
        begins = _ALIKE if last and own.startswith(f"{last}-") else 0.0
        return max(begins, SequenceMatcher(None, last, own).ratio())
    return SequenceMatcher(None, word, name).ratio() - _OTHER_PREFIX
