"""Times as the API writes them (RFC 3339) and as we count them (seconds since 1970)."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: object) -> float | None:
    """The time that a timestamp means, or None where there is none or it cannot be read."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def format_time(seconds: float) -> str:
    """A timestamp with whole seconds, as in metadata and conditions."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    """A timestamp with microseconds, as in Leases and Events."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
