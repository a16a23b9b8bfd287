"""Who is served next, when serving some may take very long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class FairLimiter:
    """So many can be served at once, and of one owner at most as many as are left free for others: one whose work hangs
    delays its own and nobody else's."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._busy: Counter[Hashable] = Counter()

    def are_free_for(self, owner: Hashable) -> bool:
        """Whether one may be taken for this owner."""
        return self._busy[owner] < self._free

    def take(self, owner: Hashable) -> None:
        """Takes one."""
        self._free -= 1
        self._busy[owner] += 1

    def give_back(self, owner: Hashable) -> None:
        """Gives one back."""
        self._free += 1
        self._busy[owner] -= 1
        if not self._busy[owner]:
            del self._busy[owner]


class FairQueue(Generic[Item]):
    """Items that wait, each once, in a row for each owner; the owners take turns."""

    def __init__(self) -> None:
        self._owners: dict[Item, Hashable] = {}
        self._rows: dict[Hashable, dict[Item, None]] = {}

    def __contains__(self, item: Item) -> bool:
        return item in self._owners

    def __bool__(self) -> bool:
        return bool(self._owners)

    def add(self, item: Item, owner: Hashable) -> None:
        """Lets an item wait; one that waits already keeps its place."""
        if item not in self._owners:
            self._owners[item] = owner
            self._rows.setdefault(owner, {})[item] = None

    def drop(self, item: Item) -> None:
        """Takes an item out, if it waits."""
        if item in self._owners:
            owner = self._owners.pop(item)
            row = self._rows[owner]
            del row[item]
            if not row:
                del self._rows[owner]

    def clear(self) -> None:
        """Takes all out."""
        self._owners.clear()
        self._rows.clear()

    def take(self, hands: FairLimiter, may: Callable[[Item], bool] = lambda _: True) -> tuple[Item, Hashable] | None:
        """The next item that may be served, with its owner, who has a hand now; None if there is none."""
        for owner, row in self._rows.items():
            item = next((item for item in row if may(item)), None) if hands.are_free_for(owner) else None
            if item is not None:
                self.drop(item)
                if row:
                    self._rows[owner] = self._rows.pop(owner)  # behind all others
                hands.take(owner)
                return item, owner
        return None
