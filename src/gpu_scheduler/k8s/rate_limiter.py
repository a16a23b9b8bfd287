"""A bound on how many things are done in a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SLOWER = 10.0
"""How many times fewer things are done while something more important is."""


class RateLimiter:
    """Lets `rate` things a second begin, and up to `burst` at once after a quiet time; a tenth of both while `busy`."""

    def __init__(self, rate: float, burst: float, busy: Callable[[], bool] = lambda: False) -> None:
        self._rate = rate
        self._burst = burst
        self._busy = busy
        self._left = burst
        self._seen = time.monotonic()

    async def take(self, *, hurry: bool = False) -> None:
        """Waits for its turn; who is in a hurry makes no way for what is more important."""
        now = time.monotonic()
        cost = SLOWER if self._busy() and not hurry else 1.0
        self._left = min(self._burst, self._left + (now - self._seen) * self._rate) - cost
        self._seen = now
        if self._left < 0:
            # Taken in advance: who comes next sees the debt, and waits longer.
            await asyncio.sleep(-self._left / self._rate)
