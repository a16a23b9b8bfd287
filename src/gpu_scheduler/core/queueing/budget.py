"""The budget of a cycle: what it may spend on placements, shared between namespaces.

A cycle ends when its work is used up, and the next one goes on with the gangs that were not tried. A flow whose refused
gangs took more than their share waits until the other flows have had theirs, in later cycles too. Gangs below their
minimum come before the queue, and get half of the work; the ones that are left over come first in the next cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.queueing.queue import Flow, QueuePosition

_SHARES = 8
"""A flow gives way to others after its refused gangs took this part of a cycle's work."""


class Rotation:
    """Gangs that have a turn after each change, some of them in a later cycle."""

    def __init__(self, max_work: int) -> None:
        self._max_work = max_work
        self._cycle = 0
        self._last_change = 0
        self._last_turns: dict[GangKey, int] = {}
        self.has_turns_left = False

    def take_turns(self, keys: list[GangKey], changed: bool, work: Callable[[], int]) -> Iterator[GangKey]:
        """Yields gangs in this order until the work is used up, at least one; those first that waited longest."""
        self._cycle += 1
        if changed:
            self._last_change = self._cycle
        self._last_turns = {key: self._last_turns.get(key, 0) for key in keys}
        due = [key for key in keys if self._last_turns[key] < self._last_change]
        due.sort(key=self._last_turns.__getitem__)
        end = work() + self._max_work
        for number, key in enumerate(due, 1):
            self._last_turns[key] = self._cycle
            self.has_turns_left = number < len(due)
            yield key
            if work() >= end:
                return
        self.has_turns_left = False


class CycleBudget:
    """Which flows wait. Work that starts gangs counts for the cycle, but not against a flow."""

    def __init__(self, max_work: int, max_podless_shapes: int) -> None:
        self._max_work = max_work
        self._max_podless_shapes = max_podless_shapes
        self._end = 0
        self._in_advance = 0
        self._refused: dict[Flow, int] = {}
        self._podless_shapes: dict[Flow, set[Hashable]] = {}
        self._waiting: set[Flow] = set()
        # Gangs below their minimum: for their replacements before the queue, and for other members after it.
        self.replacements = Rotation(max_work // 2)
        self.additions = Rotation(max_work // 2)

    def begin_cycle(self, work: int) -> None:
        """Begins a cycle, given all work so far. Flows that gave way still wait."""
        self._end = work + self._max_work - self._in_advance
        self._in_advance = 0
        self._refused.clear()
        self._podless_shapes.clear()

    def begin_queue(self, work: int) -> None:
        """Begins to try the queue, which gets at least half of a cycle's work."""
        self._end = max(self._end, work + max(1, self._max_work // 2))

    @property
    def has_turns_left(self) -> bool:
        """Whether gangs below their minimum are left over for the next cycle."""
        return self.replacements.has_turns_left or self.additions.has_turns_left

    def has_work_left(self, work: int) -> bool:
        """Whether the cycle may try another gang, given all work so far."""
        return work < self._end

    def spend_in_advance(self, work: int) -> None:
        """Counts work that was done before the cycle tries the first gang."""
        self._in_advance += work

    def note(self, position: QueuePosition, work: int, refused: bool) -> None:
        """Notes what it took to try a gang."""
        flow = position.flow
        if flow.podless:
            self._podless_shapes.setdefault(flow, set()).add(position.signature)
        if refused:
            self._refused[flow] = self._refused.get(flow, 0) + work
            if self._refused[flow] * _SHARES > self._max_work:
                self._waiting.add(flow)

    def waits(self, position: QueuePosition) -> bool:
        """Whether the flow of a gang waits: for others, or, if enough groups without pods were tried, for the next
        cycle."""
        flow = position.flow
        if flow.podless:
            tried = self._podless_shapes.get(flow, ())
            if len(tried) >= self._max_podless_shapes and position.signature not in tried:
                return True
        return flow in self._waiting

    def end_round(self) -> bool:
        """Lets the flows that gave way go on, once no other flow has a gang left; False if none gave way."""
        found = bool(self._waiting)
        self._waiting.clear()
        self._refused.clear()
        return found
