"""Work that waits its turn: what is urgent first, the rest by turns, nothing twice, nobody all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic

from gpu_scheduler.k8s.fair_queue import FairLimiter, FairQueue, Item


class Priority(Enum):
    """Urgent work goes before all other; plain and background work take turns."""

    URGENT = 0
    NORMAL = 1
    BACKGROUND = 2


@dataclass(frozen=True, slots=True)
class WorkItem(Generic[Item]):
    """An item that is worked on, its lock, and whose it is."""

    item: Item
    lock: Hashable
    owner: Hashable


class PriorityWorkQueue(Generic[Item]):
    """Items in their lanes, for so many workers. `lock_of` says which items must not be worked on at once: those with
    equal locks; `owner_of` whose an item is."""

    def __init__(self, workers: int, lock_of: Callable[[Item], Hashable], owner_of: Callable[[Item], Hashable]) -> None:
        self._lock_of = lock_of
        self._owner_of = owner_of
        self._hands = FairLimiter(workers)
        self._waiting: dict[Priority, FairQueue[Item]] = {lane: FairQueue() for lane in Priority}
        self._timers: dict[Item, asyncio.TimerHandle] = {}
        self._busy: set[Hashable] = set()
        self._turn = Priority.NORMAL
        self._wake = asyncio.Event()

    def add(self, item: Item, lane: Priority) -> None:
        """Lets an item wait in a lane; one that waits in a better lane stays there."""
        self._cancel_timer(item)
        for other in Priority:
            if item in self._waiting[other]:
                if other.value <= lane.value:
                    return
                self._waiting[other].drop(item)
        self._waiting[lane].add(item, self._owner_of(item))
        self._wake.set()

    def add_in(self, item: Item, seconds: float, lane: Priority) -> None:
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
            waiting.drop(item)

    def clear(self) -> None:
        """Takes everything out."""
        for item in list(self._timers):
            self._cancel_timer(item)
        for waiting in self._waiting.values():
            waiting.clear()

    def __contains__(self, item: Item) -> bool:
        return any(item in waiting for waiting in self._waiting.values())

    async def take(self) -> WorkItem[Item]:
        """The next item, until it is given back by `release`."""
        while True:
            found = self._pick()
            if found is not None:
                return found
            self._wake.clear()
            await self._wake.wait()

    def release(self, taken: WorkItem[Item]) -> None:
        """Says that the work on an item is over."""
        self._busy.discard(taken.lock)
        self._hands.give_back(taken.owner)
        self._wake.set()

    def _pick(self) -> WorkItem[Item] | None:
        after = Priority.BACKGROUND if self._turn is Priority.NORMAL else Priority.NORMAL
        for lane in (Priority.URGENT, self._turn, after):
            found = self._waiting[lane].take(self._hands, lambda item: self._lock_of(item) not in self._busy)
            if found is not None:
                item, owner = found
                taken = WorkItem(item, self._lock_of(item), owner)
                self._busy.add(taken.lock)
                self._turn = after
                return taken
        return None

    def _cancel_timer(self, item: Item) -> None:
        timer = self._timers.pop(item, None)
        if timer is not None:
            timer.cancel()
