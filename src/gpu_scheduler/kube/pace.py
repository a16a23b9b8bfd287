"""A bound on how many things are done in a second."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """Lets `rate` things a second begin, and up to `burst` at once after a quiet time."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._seen = time.monotonic()

    async def take(self) -> None:
        """Waits for its turn."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate) - 1
        self._seen = now
        if self._left < 0:
            # Taken in advance: who comes next sees the debt, and waits longer.
            await asyncio.sleep(-self._left / self._rate)
