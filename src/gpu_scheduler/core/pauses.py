"""How long to wait before another try."""

from __future__ import annotations


def pause_after(failures: int, longest: float, first: float = 1.0) -> float:
    """Twice as long after each failure, in seconds, up to the longest; however many failures there were."""
    return min(longest, first * 2.0 ** min(failures, 30))
