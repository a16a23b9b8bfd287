"""The queue of waiting gangs: equal requests form one equivalence class, and only a change that can help wakes it."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.reasons import Unplaceable, Wake


class Flow(NamedTuple):
    """Gangs that take turns with those of other flows: those of one namespace with pods, or without."""

    namespace: str
    podless: bool = False


_ANY_FLOW = Flow("")


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """What decides the place of a gang in its queue. Gangs with one `signature` request the same, so a refusal of one
    holds for all. `last_turn` is when slots were last reserved for a gang in vain, or 0. `minimum` is what its queue is
    charged for its minimum; `surplus` means that it has its minimum."""

    signature: Hashable
    priority: int
    queue: str
    created: float
    flow: Flow = _ANY_FLOW
    last_turn: float = 0.0
    minimum: tuple[tuple[str, int], ...] = ()
    surplus: bool = False

    @property
    def seniority(self) -> tuple[float, float]:
        """The sort key among gangs of one priority and queue."""
        return self.last_turn, self.created


# -- the order of the gangs of one queue: the first rule that tells two apart decides, the smaller value goes first

OrderRule = Callable[[QueuePosition], float]


def earliest_turn(position: QueuePosition) -> float:
    """Gangs for which slots were reserved in vain come last; the one whose turn was longest ago first."""
    return position.last_turn


def minimum_first(position: QueuePosition) -> float:
    """Then gangs that need their minimum before gangs that want more."""
    return position.surplus


def highest_priority(position: QueuePosition) -> float:
    """Then gangs of higher priority."""
    return -position.priority


def oldest(position: QueuePosition) -> float:
    """Then the gang that was created first."""
    return position.created


WAITING_ORDER: tuple[OrderRule, ...] = (earliest_turn, minimum_first, highest_priority, oldest)

Rank = tuple[tuple[float, ...], GangKey]


def rank(key: GangKey, position: QueuePosition) -> Rank:
    """The sort key of a waiting gang within its queue; the gang's key breaks ties."""
    return tuple([rule(position) for rule in WAITING_ORDER]), key


class Order(Protocol):
    """The order of the first gangs of all queues."""

    def first(self, heads: Sequence[tuple[GangKey, QueuePosition]]) -> GangKey:
        """The gang whose turn it is."""

    def sort(self, gangs: Iterable[tuple[GangKey, QueuePosition]]) -> list[GangKey]:
        """All gangs in the order of their turns."""


# -- the queue


@dataclass(slots=True)
class EquivalenceClass:
    """Gangs with one signature, by seniority. The class is parked while `refused` is set, otherwise it is ready;
    `wakes` are the changes that make it ready again. `in_line` means that it is ready and waits for its flow's turn."""

    gangs: list[tuple[tuple[float, float], GangKey]] = field(default_factory=list)
    refused: Unplaceable | None = None
    wakes: Wake = Wake.NOTHING
    last_refusal: Unplaceable | None = None
    in_line: bool = False


Waits = Callable[[QueuePosition], bool]
"""Whether the flow of a gang has to wait."""


def never_waits(_position: QueuePosition) -> bool:
    """No flow has to wait."""
    return False


class GangQueue:
    """Every gang that wants a decision, ready or parked.

    The ready classes of a flow that had to wait stand in line, first come, first served. Classes that become ready
    later join the line, so each class is tried before any other is tried twice.
    """

    def __init__(self) -> None:
        self._classes: dict[Hashable, EquivalenceClass] = {}
        self._positions: dict[GangKey, QueuePosition] = {}
        self._ready: dict[str, list[tuple[Rank, int, QueuePosition]]] = {}
        self._lines: dict[Flow, deque[EquivalenceClass]] = {}
        # The class of each line that is being tried, or is about to be.
        self._released: dict[Flow, EquivalenceClass] = {}
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
            insort(equals.gangs, (position.seniority, key))
        if position.signature == key or (equals.refused is None and equals.gangs[0][1] == key):
            self._make_ready(equals)

    def remove(self, key: GangKey) -> None:
        """Removes a gang, ready or parked."""
        position = self._positions.pop(key, None)
        if position is None:
            return
        equals = self._classes[position.signature]
        index = bisect_left(equals.gangs, (position.seniority, key))
        del equals.gangs[index]
        if not equals.gangs:
            del self._classes[position.signature]
        elif index == 0 and equals.refused is None and not equals.in_line:
            self._push(equals)

    def park(self, key: GangKey, refused: Unplaceable, also: Wake = Wake.NOTHING) -> list[GangKey]:
        """Parks the whole class of a refused gang until one of the changes that could cure it, or those in `also`;
        returns the gangs of the class whose refusal is not reported yet."""
        position = self._positions[key]
        equals = self._classes[position.signature]
        if self._released.get(position.flow) is equals:
            del self._released[position.flow]
        news = [key] if equals.last_refusal is not None else [k for _, k in equals.gangs]
        equals.refused = equals.last_refusal = refused
        equals.wakes = refused.wake_on | also
        return news

    def refusal(self, key: GangKey) -> Unplaceable | None:
        """The last refusal of a gang's class."""
        position = self._positions.get(key)
        return self._classes[position.signature].last_refusal if position is not None else None

    def position_of(self, key: GangKey) -> QueuePosition:
        """The position of a gang in the queue."""
        return self._positions[key]

    @property
    def has_ready(self) -> bool:
        """Whether a gang is ready to be decided, also one whose flow has to wait."""
        return bool(self._lines) or any(self._head(queue, never_waits) is not None for queue in list(self._ready))

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

    def pop(self, order: Order, waits: Waits = never_waits) -> GangKey | None:
        """The next gang to decide, of the flows that do not wait: the first one by the order of queues, of the first
        gangs of all queues. It stays in its class until it is removed or parked."""
        for flow in list(self._lines):
            self._release_next(flow, waits)
        heads = [head for queue in list(self._ready) if (head := self._head(queue, waits)) is not None]
        if len(heads) < 2:
            return heads[0][0] if heads else None
        return order.first(heads)

    def in_order(self, order: Order) -> list[GangKey]:
        """Every gang in the order of their turns."""
        return order.sort(self._positions.items())

    def another_minimum_waits(self, key: GangKey) -> bool:
        """Whether a gang other than this one is ready to be decided and needs its minimum."""
        if len(self._classes[self._positions[key].signature].gangs) > 1:
            return True
        heads = (self._head(queue, never_waits) for queue in list(self._ready))
        return bool(self._lines) or any(head and head[0] != key and not head[1].surplus for head in heads)

    def parked(self, changes: Wake) -> Iterator[GangKey]:
        """The first gang of every class that waits for one of these changes."""
        for equals in list(self._classes.values()):
            if equals.refused is not None and equals.wakes & changes:
                yield equals.gangs[0][1]

    def _make_ready(self, equals: EquivalenceClass) -> None:
        """Makes a class ready: it joins the line of its flow if there is one."""
        equals.refused = None
        flow = self._positions[equals.gangs[0][1]].flow
        if equals.in_line:
            return
        if flow in self._lines and self._released.get(flow) is not equals:
            self._stand_in_line(equals, flow)
        else:
            self._push(equals)

    def _stand_in_line(self, equals: EquivalenceClass, flow: Flow) -> None:
        """Adds a class to the line of its flow, in front if it was released before."""
        line = self._lines.setdefault(flow, deque())
        equals.in_line = True
        if self._released.get(flow) is equals:
            del self._released[flow]
            line.appendleft(equals)
        else:
            line.append(equals)

    def _release_next(self, flow: Flow, waits: Waits) -> None:
        """Lets the first class of a line be tried, unless its flow has to wait or the last one is not tried yet."""
        last, line = self._released.get(flow), self._lines[flow]
        if last is not None and last.gangs:
            return
        while line and not (line[0].gangs and line[0].refused is None):
            line.popleft().in_line = False
        if line and not waits(self._positions[line[0].gangs[0][1]]):
            equals = self._released[flow] = line.popleft()
            equals.in_line = False
            self._push(equals)
        if not line:
            del self._lines[flow]
            self._released.pop(flow, None)

    def _push(self, equals: EquivalenceClass) -> None:
        """Adds the first gang of a class to the heap that `pop` reads."""
        _, key = equals.gangs[0]
        position = self._positions[key]
        self._pushed += 1  # breaks ties: positions have no order
        heapq.heappush(self._ready.setdefault(position.queue, []), (rank(key, position), self._pushed, position))

    def _head(self, queue: str, waits: Waits) -> tuple[GangKey, QueuePosition] | None:
        """The first gang of a queue whose class is ready and whose flow does not wait; drops stale entries of the
        heap."""
        heads = self._ready[queue]
        while heads:
            (_, key), _, position = heads[0]
            equals = self._classes.get(position.signature)
            ready = equals is not None and equals.refused is None and not equals.in_line and equals.gangs[0][1] == key
            if ready and self._positions[key] is position:
                if not waits(position):
                    return key, position
                assert equals is not None
                self._stand_in_line(equals, position.flow)
            heapq.heappop(heads)
        del self._ready[queue]
        return None
