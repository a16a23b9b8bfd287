"""Exponential backoff."""

from __future__ import annotations


def exponential(failures: int, longest: float, first: float = 1.0) -> float:
    """Returns the delay in seconds before the next retry: `first`, doubled for each failure, at most `longest`."""
    return min(longest, first * 2.0 ** min(failures, 30))
