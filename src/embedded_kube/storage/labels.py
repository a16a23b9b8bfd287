"""Label selectors as objects write them, and the hashes that revisions are named by."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from embedded_kube.storage.store import Json

ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Letters and digits that make no words."""

_ordered = msgspec.json.Encoder(order="deterministic").encode


def matches(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects these labels: no selector selects nothing, an empty one everything."""
    if selector is None:
        return False
    for name, value in (selector.get("matchLabels") or {}).items():
        if labels.get(name) != value:
            return False
    return all(_meets(term, labels) for term in selector.get("matchExpressions") or ())


def _meets(term: Json, labels: Mapping[str, str]) -> bool:
    held, values = labels.get(term["key"]), term.get("values") or ()
    match term["operator"]:
        case "In":
            return held is not None and held in values
        case "NotIn":
            return held is None or held not in values
        case "Exists":
            return held is not None
        case "DoesNotExist":
            return held is None
        case _:
            return False


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
