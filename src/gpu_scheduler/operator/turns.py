"""Whose turn it is: every key is worked on by one at a time, soon after something happened to it or when its time
has come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from gpu_scheduler.base import backoff
from gpu_scheduler.k8s.fair_queue import FairLimiter, FairQueue

Key = TypeVar("Key", bound=Hashable)

_FIRST, _LONGEST = 0.2, 60.0


class WorkQueue(Generic[Key]):
    """Keys that wait for their turn, at so many workers. One that is added while it is worked on gets another turn.
    `owner_of` says whose a key is."""

    def __init__(self, workers: int, owner_of: Callable[[Key], Hashable]) -> None:
        self._workers = workers
        self._owner_of = owner_of
        self._hands = FairLimiter(workers)
        self._waiting: FairQueue[Key] = FairQueue()
        self._busy: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: Key) -> None:
        """Something happened to a key."""
        self._waiting.add(key, self._owner_of(key))
        self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """A key's time comes by and by; the last word counts."""
        self.forget(key)
        self._timers[key] = asyncio.get_running_loop().call_later(max(0.0, seconds), self.add, key)

    def forget(self, key: Key) -> None:
        """No time is set for a key any more."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def put_off(self, key: Key) -> None:
        """A turn went wrong: the next comes later each time."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.add_after(key, backoff.exponential(failures, _LONGEST, _FIRST))

    def went_well(self, key: Key) -> None:
        """A turn went well: the next that goes wrong is the first."""
        self._failures.pop(key, None)

    def close(self) -> None:
        """Nobody's turn comes any more."""
        for key in list(self._timers):
            self.forget(key)

    async def run(self, take_turn: Callable[[Key], Awaitable[None]]) -> None:
        """Takes turns until it is cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._workers):
                workers.create_task(self._work(take_turn))

    async def _work(self, take_turn: Callable[[Key], Awaitable[None]]) -> None:
        while True:
            found = self._waiting.take(self._hands, lambda key: key not in self._busy)
            if found is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            key, owner = found
            self._busy.add(key)
            try:
                await take_turn(key)
            finally:
                self._busy.discard(key)
                self._hands.give_back(owner)
                self._wake.set()
