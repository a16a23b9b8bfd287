"""Conversion between API timestamps (RFC 3339) and seconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def parse_time(text: object) -> float | None:
    """Parses a timestamp; None if there is none or it is invalid."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def parse_rfc3339(text: str) -> float | None:
    """Parses a timestamp that a user wrote, with date, time and zone; None if it is invalid."""
    return parse_time(text) if _RFC_3339.fullmatch(text) else None


def format_time(seconds: float) -> str:
    """Formats a timestamp with whole seconds, as in metadata and conditions."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(seconds: float) -> str:
    """Formats a timestamp with microseconds, as in Leases and Events."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
