"""Durations as kubectl shows them: 5m2s, 3h, 12d (compare duration.HumanDuration)."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str) -> datetime | None:
    """Parses a time of the API, with or without a fraction; None if it is malformed."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def age(text: str, now: datetime) -> str:
    """The duration since a time."""
    moment = parse_time(text)
    return "<unknown>" if moment is None else human_duration((now - moment).total_seconds())


def human_duration(duration: float) -> str:
    """Formats seconds in the two largest units."""
    if duration < -1:
        return "<invalid>"
    seconds = max(0, int(duration))
    if seconds < 120:
        return f"{seconds}s"
    minutes = seconds // 60
    if minutes < 10:
        return _pair(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return _pair(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _pair(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _pair(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large}{unit}{small}{smaller}" if small else f"{large}{unit}"
