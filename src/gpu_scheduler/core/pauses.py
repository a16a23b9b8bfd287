"""How long to wait before another try."""

from __future__ import annotations


def pause_after(failures: int, longest: float) -> float:
    """Twice as long after each failure, in seconds, up to the longest; however many failures there were."""
    return min(longest, 2.0 ** min(failures, 30))
