"""Work queue in the manner of client-go: deduplication, priorities, delays, retries, and fairness between owners."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from enum import Enum
from typing import Generic, TypeVar

from gpu_scheduler.base import backoff

Item = TypeVar("Item", bound=Hashable)


class Priority(Enum):
    """Urgent items are processed first; normal and background items alternate."""

    URGENT = 0
    NORMAL = 1
    BACKGROUND = 2


class FairLimiter:
    """Limits concurrent work: `limit` in all, and for one owner at most as many as are left free for the others.

    An owner whose work hangs therefore delays its own work only.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._used: Counter[Hashable] = Counter()

    def has_capacity(self, owner: Hashable) -> bool:
        """Whether one more may be acquired for an owner."""
        return self._used[owner] < self._free

    def acquire(self, owner: Hashable) -> None:
        """Counts one more as used by an owner."""
        self._free -= 1
        self._used[owner] += 1

    def release(self, owner: Hashable) -> None:
        """Counts one less as used by an owner."""
        self._free += 1
        self._used[owner] -= 1
        if not self._used[owner]:
            del self._used[owner]


class FairQueue(Generic[Item]):
    """Waiting items, each once, first in first out for each owner and round-robin between owners."""

    def __init__(self) -> None:
        self._owners: dict[Item, Hashable] = {}
        self._items: dict[Hashable, dict[Item, None]] = {}

    def __contains__(self, item: Item) -> bool:
        return item in self._owners

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, item: Item, owner: Hashable) -> None:
        """Adds an item; one that is waiting already keeps its place."""
        if item not in self._owners:
            self._owners[item] = owner
            self._items.setdefault(owner, {})[item] = None

    def discard(self, item: Item) -> None:
        """Removes an item, if it is waiting."""
        if item in self._owners:
            owner = self._owners.pop(item)
            items = self._items[owner]
            del items[item]
            if not items:
                del self._items[owner]

    def clear(self) -> None:
        """Removes all items."""
        self._owners.clear()
        self._items.clear()

    def pop(self, limiter: FairLimiter, ready: Callable[[Item], bool] = lambda _: True) -> tuple[Item, Hashable] | None:
        """Removes the next item that is ready and within the limits; returns it and its owner, for which the limiter
        has been acquired, or None."""
        for owner, items in self._items.items():
            item = next((item for item in items if ready(item)), None) if limiter.has_capacity(owner) else None
            if item is not None:
                self.discard(item)
                if items:
                    self._items[owner] = self._items.pop(owner)  # to the end of the round
                limiter.acquire(owner)
                return item, owner
        return None


class WorkQueue(Generic[Item]):
    """Items to be processed by at most `workers` at a time.

    An item waits once, however often it is added, and is processed by one worker at a time. If it is added while it is
    processed, it is processed once more. `owner_of` names the owner of an item: owners take turns, and none can take
    all workers; by default each item is its own owner. Items for which `lock_of` returns the same are processed one
    after the other. `retry` has the shortest and the longest delay of `add_rate_limited`, in seconds.
    """

    def __init__(
        self,
        workers: int,
        owner_of: Callable[[Item], Hashable] = lambda item: item,
        lock_of: Callable[[Item], Hashable] = lambda item: item,
        retry: tuple[float, float] = (0.2, 60.0),
    ) -> None:
        self._owner_of = owner_of
        self._lock_of = lock_of
        self._first_delay, self._longest_delay = retry
        self._limiter = FairLimiter(workers)
        self._waiting: dict[Priority, FairQueue[Item]] = {priority: FairQueue() for priority in Priority}
        self._timers: dict[Item, asyncio.TimerHandle] = {}
        self._failures: dict[Item, int] = {}
        self._active: dict[Item, tuple[Hashable, Hashable]] = {}
        """The lock and the owner of each item that is being processed."""
        self._locks: set[Hashable] = set()
        self._turn = Priority.NORMAL
        self._wake = asyncio.Event()

    def __contains__(self, item: Item) -> bool:
        """Whether an item is waiting; one that is delayed or being processed is not."""
        return any(item in waiting for waiting in self._waiting.values())

    def __len__(self) -> int:
        """The number of waiting items."""
        return sum(map(len, self._waiting.values()))

    # -- add

    def add(self, item: Item, priority: Priority = Priority.NORMAL) -> None:
        """Adds an item, whose delay is over then. One that waits with a higher priority keeps it."""
        self._cancel_timer(item)
        for other in Priority:
            if item in self._waiting[other]:
                if other.value <= priority.value:
                    return
                self._waiting[other].discard(item)
        self._waiting[priority].add(item, self._owner_of(item))
        self._wake.set()

    def add_after(self, item: Item, delay: float, priority: Priority = Priority.NORMAL) -> None:
        """Adds an item after a delay in seconds, unless it is waiting or will be added earlier."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(item)
        if item in self or (timer is not None and timer.when() <= loop.time() + delay):
            return
        self._cancel_timer(item)
        self._timers[item] = loop.call_later(max(0.0, delay), self.add, item, priority)

    def add_rate_limited(self, item: Item, priority: Priority = Priority.NORMAL) -> None:
        """Adds an item that failed, after a delay that doubles with each failure."""
        failures = self._failures.get(item, 0)
        self._failures[item] = failures + 1
        self.add_after(item, backoff.exponential(failures, self._longest_delay, self._first_delay), priority)

    def forget(self, item: Item) -> None:
        """Forgets the failures of an item: its next retry has the shortest delay."""
        self._failures.pop(item, None)

    def discard(self, item: Item) -> None:
        """Removes an item that is waiting or delayed, and forgets its failures."""
        self._cancel_timer(item)
        self.forget(item)
        for waiting in self._waiting.values():
            waiting.discard(item)

    def clear(self) -> None:
        """Removes all items that are waiting or delayed, and forgets all failures."""
        for item in list(self._timers):
            self._cancel_timer(item)
        self._failures.clear()
        for waiting in self._waiting.values():
            waiting.clear()

    # -- process

    async def run(self, process: Callable[[Item], Awaitable[None]]) -> None:
        """Processes items until it is cancelled, or until `process` raises."""
        try:
            async with asyncio.TaskGroup() as workers:
                while True:
                    workers.create_task(self._process(await self.get(), process))
        finally:
            for item in list(self._active):  # cancelled before it was started
                self.done(item)
                self.add(item)

    async def _process(self, item: Item, process: Callable[[Item], Awaitable[None]]) -> None:
        try:
            await process(item)
        finally:
            self.done(item)

    async def get(self) -> Item:
        """Waits for the next item. The caller passes it to `done` after processing it."""
        while (item := self._pop()) is None:
            self._wake.clear()
            await self._wake.wait()
        return item

    def done(self, item: Item) -> None:
        """Marks an item as processed."""
        lock, owner = self._active.pop(item)
        self._locks.discard(lock)
        self._limiter.release(owner)
        self._wake.set()

    def _pop(self) -> Item | None:
        other = Priority.BACKGROUND if self._turn is Priority.NORMAL else Priority.NORMAL
        for priority in (Priority.URGENT, self._turn, other):
            found = self._waiting[priority].pop(self._limiter, self._is_ready)
            if found is not None:
                item, owner = found
                lock = self._lock_of(item)
                self._active[item] = (lock, owner)
                self._locks.add(lock)
                self._turn = other
                return item
        return None

    def _is_ready(self, item: Item) -> bool:
        return item not in self._active and self._lock_of(item) not in self._locks

    def _cancel_timer(self, item: Item) -> None:
        timer = self._timers.pop(item, None)
        if timer is not None:
            timer.cancel()
