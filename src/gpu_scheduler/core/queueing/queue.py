"""The queue of waiting gangs: equal requests form one equivalence class, and only a change that can help wakes it."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.reasons import Unplaceable, Wake


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """What decides the place of a gang in the queue. Gangs with one `signature` request the same, so a refusal of one
    holds for all."""

    signature: Hashable
    priority: int
    queue: str
    created: float


# -- the order of waiting gangs: the first rule that tells two gangs apart decides, the smaller value goes first

OrderRule = Callable[[QueuePosition, float], float]
"""A sort key of a waiting gang, from its position and the share of the cluster that its queue uses."""


def highest_priority(position: QueuePosition, _share: float) -> float:
    """Gangs of higher priority first, whatever their queue."""
    return -position.priority


def smallest_share(_position: QueuePosition, share: float) -> float:
    """Then the queue that uses least of the cluster for its weight."""
    return share


def oldest(position: QueuePosition, _share: float) -> float:
    """Then the gang that was created first."""
    return position.created


WAITING_ORDER: tuple[OrderRule, ...] = (highest_priority, smallest_share, oldest)

Rank = tuple[tuple[float, ...], GangKey]


def rank(key: GangKey, position: QueuePosition, share: float = 0.0) -> Rank:
    """The sort key of a waiting gang; the gang's key breaks ties. Within one queue the share makes no difference."""
    return tuple([rule(position, share) for rule in WAITING_ORDER]), key


# -- the queue


@dataclass(slots=True)
class EquivalenceClass:
    """Gangs with one signature, oldest first. The class is parked while `refused` is set, otherwise it is ready;
    `wakes` are the changes that make it ready again."""

    gangs: list[tuple[float, GangKey]] = field(default_factory=list)
    refused: Unplaceable | None = None
    wakes: Wake = Wake.NOTHING
    last_refusal: Unplaceable | None = None


class GangQueue:
    """Every gang that wants a decision, ready or parked."""

    def __init__(self) -> None:
        self._classes: dict[Hashable, EquivalenceClass] = {}
        self._positions: dict[GangKey, QueuePosition] = {}
        self._ready: dict[str, list[tuple[Rank, int, QueuePosition]]] = {}
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, key: GangKey) -> bool:
        return key in self._positions

    def add(self, key: GangKey, position: QueuePosition) -> None:
        """Adds a gang to its equivalence class.

        A parked class stays parked: the same request would be refused again. Only the gang's own class, with its key
        as the signature, becomes ready.
        """
        old = self._positions.get(key)
        if old is not None and old != position:
            self.remove(key)
            old = None
        equals = self._classes.get(position.signature)
        if equals is None:
            equals = self._classes[position.signature] = EquivalenceClass()
        if old is None:
            self._positions[key] = position
            insort(equals.gangs, (position.created, key))
        if position.signature == key or (equals.refused is None and equals.gangs[0][1] == key):
            self._make_ready(equals)

    def remove(self, key: GangKey) -> None:
        """Removes a gang, ready or parked."""
        position = self._positions.pop(key, None)
        if position is None:
            return
        equals = self._classes[position.signature]
        index = bisect_left(equals.gangs, (position.created, key))
        del equals.gangs[index]
        if not equals.gangs:
            del self._classes[position.signature]
        elif index == 0 and equals.refused is None:
            self._push(equals)

    def park(self, key: GangKey, refused: Unplaceable, also: Wake = Wake.NOTHING) -> list[GangKey]:
        """Parks the whole class of a refused gang until one of the changes that could cure it, or those in `also`;
        returns the gangs of the class whose refusal is not reported yet."""
        equals = self._classes[self._positions[key].signature]
        news = [key] if equals.last_refusal is not None else [k for _, k in equals.gangs]
        equals.refused = equals.last_refusal = refused
        equals.wakes = refused.wake_on | also
        return news

    def refusal(self, key: GangKey) -> Unplaceable | None:
        """The last refusal of a gang's class."""
        position = self._positions.get(key)
        return self._classes[position.signature].last_refusal if position is not None else None

    def signature_of(self, key: GangKey) -> Hashable:
        """The signature that a gang shares with those that ask for the same; its key when it is not in the queue."""
        position = self._positions.get(key)
        return position.signature if position is not None else key

    def wake(self, changes: Wake, helps: Callable[[GangKey, Unplaceable], bool]) -> None:
        """Makes the parked classes ready that a change can help; `helps` gets the first gang and its refusal."""
        for equals in list(self._classes.values()):
            if equals.refused is None or not equals.wakes & changes:
                continue
            if changes & Wake.NODE or helps(equals.gangs[0][1], equals.refused):
                self._make_ready(equals)

    def pop(self, share_of: Callable[[str], float]) -> GangKey | None:
        """The next gang to decide, by `WAITING_ORDER`. It stays in its class until it is removed or parked."""
        heads = [head for queue in list(self._ready) if (head := self._head(queue)) is not None]
        if len(heads) < 2:
            return heads[0][0] if heads else None
        return min(rank(key, position, share_of(position.queue)) for key, position in heads)[1]

    def in_order(self, share_of: Callable[[str], float]) -> list[GangKey]:
        """Every gang, by `WAITING_ORDER`."""
        positions = self._positions
        shares = {queue: share_of(queue) for queue in {position.queue for position in positions.values()}}
        return sorted(positions, key=lambda key: rank(key, positions[key], shares[positions[key].queue]))

    def parked(self, changes: Wake) -> Iterator[GangKey]:
        """The first gang of every class that waits for one of these changes."""
        for equals in list(self._classes.values()):
            if equals.refused is not None and equals.wakes & changes:
                yield equals.gangs[0][1]

    def _make_ready(self, equals: EquivalenceClass) -> None:
        equals.refused = None
        self._push(equals)

    def _push(self, equals: EquivalenceClass) -> None:
        """Adds the first gang of a class to the heap that `pop` reads."""
        _, key = equals.gangs[0]
        position = self._positions[key]
        self._pushed += 1  # breaks ties: positions have no order
        heapq.heappush(self._ready.setdefault(position.queue, []), (rank(key, position), self._pushed, position))

    def _head(self, queue: str) -> tuple[GangKey, QueuePosition] | None:
        """The first gang of a queue whose class is ready; drops stale entries of the heap."""
        heads = self._ready[queue]
        while heads:
            (_, key), _, position = heads[0]
            equals = self._classes.get(position.signature)
            ready = equals is not None and equals.refused is None and equals.gangs[0][1] == key
            if ready and self._positions[key] is position:
                return key, position
            heapq.heappop(heads)
        del self._ready[queue]
        return None
