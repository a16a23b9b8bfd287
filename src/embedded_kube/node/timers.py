"""Timer heap: many timers behind one wake-up of the event loop, for the earliest of them."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Timers:
    """Calls functions at their time. Cancelled timers stay in the heap until their time and are skipped then."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._active: set[int] = set()
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def set(self, seconds: float, callback: Callable[[], None]) -> int:
        """Calls `callback` after some seconds. Returns a timer id for `cancel`."""
        self._count += 1
        self._active.add(self._count)
        heapq.heappush(self._heap, (self._loop.time() + seconds, self._count, callback))
        if self._heap[0][1] == self._count:
            self._schedule()
        return self._count

    def cancel(self, timer: int) -> None:
        """Cancels a timer that has not fired."""
        self._active.discard(timer)

    def close(self) -> None:
        """Cancels all timers."""
        if self._handle is not None:
            self._handle.cancel()
        self._heap.clear()

    def _schedule(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._heap[0][0], self._fire) if self._heap else None

    def _fire(self) -> None:
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            _, timer, callback = heapq.heappop(self._heap)
            if timer in self._active:
                self._active.discard(timer)
                try:
                    callback()
                except Exception:  # the timers behind it must fire all the same
                    _log.exception("timer callback failed")
        self._handle = None
        self._schedule()
