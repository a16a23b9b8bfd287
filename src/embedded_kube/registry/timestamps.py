"""Times as the API writes them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache


def timestamp(later: float = 0.0) -> str:
    """The current time plus `later` seconds, in RFC 3339 as the API writes it."""
    return _write_time(int(time.time() + later))


def deletion_time(grace: int) -> str:
    """When a deletion that begins now ends."""
    return timestamp(_duration(grace))


def shorten_deletion(end: str, by: int) -> str:
    """When a deletion ends that has become shorter by some seconds: its grace period began with the first request."""
    return _write_time(int(datetime.fromisoformat(end).timestamp() - _duration(by)))


def _duration(seconds: int) -> float:
    """Seconds as a time.Duration of Go, which overflows after 292 years."""
    return ((seconds * 10**9 + 2**63) % 2**64 - 2**63) / 10**9


@lru_cache(maxsize=64)
def _write_time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
