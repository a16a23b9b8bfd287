"""Status limits: how much the status writer writes, how soon it repeats itself, and where its writes are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpu_scheduler.k8s.event_recorder import DropCounter
from gpu_scheduler.k8s.objects import PodObject, RawObject

Subject = RawObject | PodObject
"""The object that carries a gang's status: its own object, or one of its pods where it has none."""


class StatusMetrics(DropCounter, Protocol):
    """Counters of the status writer."""

    def count_status_write(self, outcome: str) -> None:
        """Counts a write by its outcome."""

    def observe_wait(self, seconds: float) -> None:
        """Records how long a gang waited for a decision."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates and delays. Times are in seconds, `writes` and `events` are per second.

    A gang that starts within `settle` is never reported as waiting. A message that changed only in its numbers is sent
    again after `again`, an unchanged one after `repeat`, since Events expire. While `busy`, all but notes for the
    next leader is written at a tenth of the rate: binds come first.
    """

    writes: float = 100.0
    events: float = 100.0
    workers: int = 16
    settle: float = 1.0
    again: float = 30.0
    repeat: float = 1800.0
    busy: Callable[[], bool] = lambda: False
