"""A queue of object keys: each key is worked on by one worker at a time, and failures come back later and later."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from gpu_scheduler.base import backoff

K = TypeVar("K")

FIRST_RETRY = 0.02
LAST_RETRY = 60.0


class WorkQueue(Generic[K]):
    """Keys to look at. A key that is added while it is worked on is looked at once more afterwards."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._wanted: set[K] = set()
        self._working: set[K] = set()
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        """Asks for a look at a key, soon."""
        if key in self._wanted:
            return
        self._wanted.add(key)
        if key not in self._working:
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: K, delay: float) -> None:
        """Asks for a look after some seconds; an earlier appointment stands."""
        if delay <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        known = self._later.get(key)
        if known is not None:
            if known.when() <= loop.time() + delay:
                return
            known.cancel()
        self._later[key] = loop.call_later(delay, self._due, key)

    def retry(self, key: K) -> None:
        """Asks for a look after a failure: twice as long a wait each time."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, backoff.exponential(failures, LAST_RETRY, FIRST_RETRY))

    def succeeded(self, key: K) -> None:
        """Forgets past failures."""
        self._failures.pop(key, None)

    async def take(self) -> K:
        """The next key; give it back with `done`."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = self._ready.popleft()
        self._wanted.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Ends the work on a key."""
        self._working.discard(key)
        if key in self._wanted:
            self._ready.append(key)
            self._wake.set()

    def close(self) -> None:
        """Cancels every appointment."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()

    def _due(self, key: K) -> None:
        self._later.pop(key, None)
        self.add(key)
