"""Many timers behind one: a heap, and a single wake-up of the loop for the earliest."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Timers:
    """Calls functions at their time. One that was cancelled is passed over when its time comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._live: set[int] = set()
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def set(self, seconds: float, act: Callable[[], None]) -> int:
        """Calls `act` after so many seconds; the number that is returned cancels it."""
        self._count += 1
        self._live.add(self._count)
        heapq.heappush(self._heap, (self._loop.time() + seconds, self._count, act))
        if self._heap[0][1] == self._count:
            self._arm()
        return self._count

    def cancel(self, number: int) -> None:
        """Forgets a timer that has not gone off."""
        self._live.discard(number)

    def close(self) -> None:
        """Forgets all of them."""
        if self._handle is not None:
            self._handle.cancel()
        self._heap.clear()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._heap[0][0], self._ring) if self._heap else None

    def _ring(self) -> None:
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            _, number, act = heapq.heappop(self._heap)
            if number in self._live:
                self._live.discard(number)
                try:
                    act()
                except Exception:  # the timers behind it must go off all the same
                    _log.exception("a timer failed")
        self._handle = None
        self._arm()
