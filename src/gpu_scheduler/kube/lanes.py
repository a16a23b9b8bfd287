"""Work that waits its turn: what is urgent first, the rest by turns, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Lane(Enum):
    """Urgent work goes before all other; plain and background work take turns."""

    URGENT = 0
    PLAIN = 1
    BACKGROUND = 2


class Lanes(Generic[Item]):
    """Items in their lanes. `lock_of` says which items must not be worked on at once: those with equal locks."""

    def __init__(self, lock_of: Callable[[Item], Hashable]) -> None:
        self._lock_of = lock_of
        self._waiting: dict[Lane, dict[Item, None]] = {lane: {} for lane in Lane}
        self._timers: dict[Item, asyncio.TimerHandle] = {}
        self._busy: set[Hashable] = set()
        self._turn = Lane.PLAIN
        self._wake = asyncio.Event()

    def add(self, item: Item, lane: Lane) -> None:
        """Lets an item wait in a lane; one that waits in a better lane stays there."""
        self._cancel_timer(item)
        for other in Lane:
            if item in self._waiting[other]:
                if other.value <= lane.value:
                    return
                del self._waiting[other][item]
        self._waiting[lane][item] = None
        self._wake.set()

    def add_in(self, item: Item, seconds: float, lane: Lane) -> None:
        """Adds an item after a while, unless it waits already or comes earlier."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(item)
        if item in self or (timer is not None and timer.when() <= loop.time() + seconds):
            return
        self._cancel_timer(item)
        self._timers[item] = loop.call_later(seconds, self.add, item, lane)

    def drop(self, item: Item) -> None:
        """Takes an item out, wherever it waits."""
        self._cancel_timer(item)
        for waiting in self._waiting.values():
            waiting.pop(item, None)

    def clear(self) -> None:
        """Takes everything out."""
        for item in [*self._timers, *(item for waiting in self._waiting.values() for item in waiting)]:
            self.drop(item)

    def __contains__(self, item: Item) -> bool:
        return any(item in waiting for waiting in self._waiting.values())

    async def take(self) -> tuple[Item, Hashable]:
        """The next item, with the lock that `release` gives back."""
        while True:
            found = self._pick()
            if found is not None:
                return found
            self._wake.clear()
            await self._wake.wait()

    def release(self, lock: Hashable) -> None:
        """Says that the work on an item is over."""
        self._busy.discard(lock)
        self._wake.set()

    def _pick(self) -> tuple[Item, Hashable] | None:
        after = Lane.BACKGROUND if self._turn is Lane.PLAIN else Lane.PLAIN
        for lane in (Lane.URGENT, self._turn, after):
            for item in self._waiting[lane]:
                lock = self._lock_of(item)
                if lock not in self._busy:
                    del self._waiting[lane][item]
                    self._busy.add(lock)
                    self._turn = after
                    return item, lock
        return None

    def _cancel_timer(self, item: Item) -> None:
        timer = self._timers.pop(item, None)
        if timer is not None:
            timer.cancel()
