"""Short hashes: names of revisions and random-looking suffixes of objects."""

from __future__ import annotations

import msgspec

ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Letters and digits that make no words."""

_ordered = msgspec.json.Encoder(order="deterministic").encode


def short_hash(*values: object) -> str:
    """A few letters that stand for some values: the same today and after a restart."""
    number = 2166136261
    for byte in _ordered(values):
        number = ((number ^ byte) * 16777619) & 0xFFFFFFFF
    letters = ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        letters += ALPHABET[digit]
    return letters or ALPHABET[0]
