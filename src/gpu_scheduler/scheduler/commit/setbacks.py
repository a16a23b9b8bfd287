"""Setbacks on the Lease: the leader publishes which gangs back off and which evictions are refused.

Only the leader knows. The commands read the annotation, so that they say the same about a gang as its object does.
"""

from __future__ import annotations

import msgspec

from gpu_scheduler.core.events import Setbacks

MAX_PUBLISHED = 100
"""The most entries of each sort that are published, the longest backoffs first: the Lease is written every few seconds.
"""

_NOTHING = Setbacks()


def encode_setbacks(found: Setbacks) -> str:
    """The text of the annotation; "" where there is nothing to publish."""
    longest = sorted(found.backoffs, key=lambda one: (-one.until, one.key))[:MAX_PUBLISHED]
    most = Setbacks(
        tuple(longest),
        found.refused_evictions[:MAX_PUBLISHED],
        found.unused_reservations[:MAX_PUBLISHED],
        found.one_reservation_each[:MAX_PUBLISHED],
    )
    return msgspec.json.encode(most).decode() if most != _NOTHING else ""


def decode_setbacks(text: str) -> Setbacks:
    """The setbacks of an annotation; none of a text that is not valid."""
    try:
        return msgspec.json.decode(text or "{}", type=Setbacks)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _NOTHING
