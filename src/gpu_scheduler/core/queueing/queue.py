"""The order of waiting gangs: lines of gangs that ask for the same, woken only by what could help them."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.reasons import Unplaceable, Wake


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Where a gang stands in the queue. Gangs of one `signature` are refused together: they ask for the same."""

    signature: Hashable
    priority: int
    queue: str
    created: float


@dataclass(slots=True)
class EquivalenceClass:
    """Gangs with one signature, oldest first. It is parked while `refused` is set, else ready."""

    standing: QueuePosition
    gangs: list[tuple[float, GangKey]] = field(default_factory=list)
    refused: Unplaceable | None = None
    last_refusal: Unplaceable | None = None


class GangQueue:
    """Every gang that wants a decision, ready or parked."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, EquivalenceClass] = {}
        self._standing: dict[GangKey, QueuePosition] = {}
        self._ready: dict[str, list[tuple[int, float, GangKey, int, Hashable]]] = {}
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._standing)

    def __contains__(self, key: GangKey) -> bool:
        return key in self._standing

    def offer(self, key: GangKey, standing: QueuePosition) -> None:
        """Puts a gang into the line of those that ask for the same.

        A line that is parked stays so, for what was just refused would be refused again, unless it is the gang's own.
        """
        old = self._standing.get(key)
        if old is not None and old != standing:
            self.withdraw(key)
            old = None
        line = self._lines.get(standing.signature)
        if line is None:
            line = self._lines[standing.signature] = EquivalenceClass(standing)
        if old is None:
            self._standing[key] = standing
            insort(line.gangs, (standing.created, key))
        if standing.signature == key or (line.refused is None and line.gangs[0][1] == key):
            self._make_ready(line)

    def withdraw(self, key: GangKey) -> None:
        """Takes a gang out, wherever it stands."""
        standing = self._standing.pop(key, None)
        if standing is None:
            return
        line = self._lines[standing.signature]
        place = bisect_left(line.gangs, (standing.created, key))
        del line.gangs[place]
        if not line.gangs:
            del self._lines[standing.signature]
        elif place == 0 and line.refused is None:
            self._push(line)

    def park(self, key: GangKey, refused: Unplaceable) -> list[GangKey]:
        """Lets the whole line of a refused gang wait; returns those of it who have not been told why yet."""
        line = self._lines[self._standing[key].signature]
        news = [key] if line.last_refusal is not None else [k for _, k in line.gangs]
        line.refused = line.last_refusal = refused
        return news

    def refusal(self, key: GangKey) -> Unplaceable | None:
        """Why a gang's line was last refused."""
        standing = self._standing.get(key)
        return self._lines[standing.signature].last_refusal if standing is not None else None

    def wake(self, changes: Wake, helps: Callable[[GangKey, Unplaceable], bool]) -> None:
        """Makes the lines ready that a change could help; `helps` is asked about the first gang and its refusal."""
        for line in list(self._lines.values()):
            if line.refused is None or not line.refused.wake_on & changes:
                continue
            if changes & Wake.NODE or helps(line.gangs[0][1], line.refused):
                self._make_ready(line)

    def pop(self, share_of: Callable[[str], float]) -> GangKey | None:
        """The next gang to decide: highest priority, then the queue with the smallest share, then the oldest.

        It stays in its line until it is withdrawn (started) or parked (refused).
        """
        heads = [(head, queue) for queue in list(self._ready) if (head := self._head(queue)) is not None]
        if len(heads) < 2:
            return heads[0][0][2] if heads else None
        highest = min(priority for (priority, _, _), _ in heads)
        ranks = [(share_of(queue), created, key) for (priority, created, key), queue in heads if priority == highest]
        return min(ranks)[2]

    def in_order(self, share_of: Callable[[str], float]) -> list[GangKey]:
        """Every gang in the order in which they would be served."""
        shares = {queue: share_of(queue) for queue in {standing.queue for standing in self._standing.values()}}
        return sorted(self._standing, key=lambda key: _rank(self._standing[key], shares, key))

    def parked(self, changes: Wake) -> Iterator[GangKey]:
        """The head of every line that waits for one of these changes."""
        for line in list(self._lines.values()):
            if line.refused is not None and line.refused.wake_on & changes:
                yield line.gangs[0][1]

    def _make_ready(self, line: EquivalenceClass) -> None:
        line.refused = None
        self._push(line)

    def _push(self, line: EquivalenceClass) -> None:
        """Lets the head of a line be found by `pop`."""
        created, key = line.gangs[0]
        heads = self._ready.setdefault(line.standing.queue, [])
        self._pushed += 1  # ties are broken before two signatures, which have no order, are compared
        heapq.heappush(heads, (-line.standing.priority, created, key, self._pushed, line.standing.signature))

    def _head(self, queue: str) -> tuple[int, float, GangKey] | None:
        """The first gang of a queue whose line is ready; entries that no longer hold are dropped on the way."""
        heads = self._ready[queue]
        while heads:
            priority, created, key, _, signature = heads[0]
            line = self._lines.get(signature)
            if line is not None and line.refused is None and line.gangs[0] == (created, key):
                return priority, created, key
            heapq.heappop(heads)
        del self._ready[queue]
        return None


def _rank(standing: QueuePosition, shares: dict[str, float], key: GangKey) -> tuple[int, float, float, GangKey]:
    return -standing.priority, shares[standing.queue], standing.created, key
