"""Token-bucket rate limiter that makes way for more important work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BUSY_FACTOR = 10.0
"""How many tokens a request costs that is not urgent while more important work is in progress."""


class RateLimiter:
    """Admits `rate` requests a second, and up to `burst` at once after an idle time; a tenth of both while `busy`."""

    def __init__(self, rate: float, burst: float, busy: Callable[[], bool] = lambda: False) -> None:
        self._rate = rate
        self._burst = burst
        self._busy = busy
        self._tokens = burst
        self._updated = time.monotonic()

    async def take(self, *, urgent: bool = False) -> None:
        """Waits until one more request is admitted; an urgent one is not slowed down by `busy`."""
        now = time.monotonic()
        cost = BUSY_FACTOR if self._busy() and not urgent else 1.0
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate) - cost
        self._updated = now
        if self._tokens < 0:
            # Taken in advance: the next request sees the debt and waits longer.
            await asyncio.sleep(-self._tokens / self._rate)
