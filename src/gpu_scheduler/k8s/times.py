"""Conversion between API timestamps (RFC 3339) and seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: object) -> float | None:
    """Parses a timestamp; None if there is none or it is invalid."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def format_time(seconds: float) -> str:
    """Formats a timestamp with whole seconds, as in metadata and conditions."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    """Formats a timestamp with microseconds, as in Leases and Events."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
