"""What telling goes by: the book of gangs' objects, how much may be written, and where that is counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_scheduler.core.lifecycle import Status
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.gangs.dialects import StatusMessage, StatusPatch
from gpu_scheduler.k8s.event_recorder import DropCounter
from gpu_scheduler.k8s.objects import PodObject, RawObject
from gpu_scheduler.k8s.resources import Resource

Subject = RawObject | PodObject
"""What a gang's status is written to: its object, or one of its pods where it has none."""


class Book(Protocol):
    """What is known of gangs' objects."""

    def object_of(self, key: GangKey) -> Subject | None:
        """What a gang's status is written to."""

    def resource_of(self, key: GangKey) -> Resource | None:
        """The kind of the object that defines a gang; None for one that only its pods define."""

    def members_of(self, key: GangKey) -> Collection[PodObject]:
        """A gang's pods; for a pod alone, that pod."""

    def encode(
        self, key: GangKey, subject: Subject, status: Status, told: StatusMessage, now: float
    ) -> Sequence[StatusPatch]:
        """What has to be written so that the subject says this."""


class Counts(DropCounter, Protocol):
    """Where the writer's doings are counted."""

    def count_status_write(self, outcome: str) -> None:
        """One more write, and how it ended."""

    def observe_wait(self, seconds: float) -> None:
        """A gang waited so long for a decision."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is written, and how soon again. Times are in seconds, `writes` and `events` are per second.

    `settle` lets a gang that starts at once pass without a word about its waiting; a message that changed only in its
    numbers is sent again after `again`, one that did not change after `repeat`, since Events expire. While `busy`, all
    but what the next leader needs is written at a tenth of the rate: the API server has binds to do.
    """

    writes: float = 100.0
    events: float = 100.0
    workers: int = 16
    settle: float = 1.0
    again: float = 30.0
    repeat: float = 1800.0
    busy: Callable[[], bool] = lambda: False
