"""The budget of a cycle: what it may spend on placements, shared between namespaces.

A cycle ends when its work is used up, and the next one goes on with the gangs that were not tried. A flow whose refused
gangs took more than their share waits until the other flows have had theirs, in later cycles too.
"""

from __future__ import annotations

from collections.abc import Hashable

from gpu_scheduler.core.queueing.queue import Flow, QueuePosition

_SHARES = 8
"""A flow gives way to others after its refused gangs took this part of a cycle's work."""


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

    def begin_cycle(self, work: int) -> None:
        """Begins a cycle, given all work so far. Flows that gave way still wait."""
        self._end = work + self._max_work - self._in_advance
        self._in_advance = 0
        self._refused.clear()
        self._podless_shapes.clear()

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
