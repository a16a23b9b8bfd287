"""The state of the commit protocol's model: pods, requests, commits, the leader, and the scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PENDING, BOUND, ENDING, SUCCEEDED, GONE = "pending", "bound", "ending", "succeeded", "gone"
FOREIGN, TOUCHED, NAMELESS = "foreign", "touched", "bound without a record"

# -- the world


class Pod(NamedTuple):
    """A pod, or the place of a deleted one. A recreated pod has another uid."""

    uid: int = 0
    state: str = PENDING
    gpu: int = -1
    attempt: int = 0


class Bind(NamedTuple):
    """An entry of a commit: this pod, at this attempt, to this GPU."""

    pod: int
    uid: int
    gpu: int
    attempt: int


class Delete(NamedTuple):
    """An entry of a commit: delete this pod, for a restart of its gang or in favour of another gang."""

    pod: int
    uid: int
    evicts: bool = False


class Raise(NamedTuple):
    """A request to raise a pod's attempt."""

    pod: int
    uid: int
    attempt: int


Commit = tuple[Bind | Delete, ...]


class Late(NamedTuple):
    """A commit that a replaced leader has yet to write."""

    commit: Commit


Request = Bind | Delete | Raise | Late


class Leader(NamedTuple):
    """The state of a leader: pods as last seen (None before its list), open commits, and the one that it is about to
    commit. `holds` are gangs whose slots it keeps, if holds are remembered instead of derived."""

    seen: tuple[Pod, ...] | None
    open: frozenset[Commit]
    step: Commit | None = None
    holds: frozenset[str] = frozenset()


class World(NamedTuple):
    """The complete state of the model."""

    pods: tuple[Pod, ...]
    committed: frozenset[Commit] = frozenset()
    lost: frozenset[Commit] = frozenset()
    in_flight: frozenset[Request] = frozenset()
    leader: Leader | None = None
    deletions: int = 0
    refusals: int = 0
    recreations: int = 0


class Gang(NamedTuple):
    """Members by number; its minimum is all of them."""

    members: tuple[int, ...]
    priority: int = 0


@dataclass(frozen=True)
class Scenario:
    """A cluster and the bounds of what happens to it. Bare pods are recreated by a user, not by a controller."""

    gangs: Mapping[str, Gang]
    gpus: int = 2
    deletions: int = 0
    refusals: int = 0
    recreations: int = 0
    bare: bool = False
    foreign: bool = False

    @property
    def start(self) -> World:
        """The initial world: every pod waits, except those of high priority, which arrive later."""
        pods = tuple(
            Pod(state=GONE if gang.priority else PENDING) for gang in self.gangs.values() for _ in gang.members
        )
        return World(pods, deletions=self.deletions, refusals=self.refusals, recreations=self.recreations)


TWO_PAIRS = {"g": Gang((0, 1)), "h": Gang((2, 3))}
PAIR_AND_ONE = {"g": Gang((0, 1)), "h": Gang((2,))}
SCENARIOS = {
    "two gangs want the same GPUs": Scenario(TWO_PAIRS),
    "pods are deleted and recreated": Scenario(PAIR_AND_ONE, deletions=1, recreations=2),
    "bare pods are deleted and recreated": Scenario(PAIR_AND_ONE, deletions=1, recreations=1, bare=True),
    "pods are recreated for another scheduler": Scenario(PAIR_AND_ONE, deletions=1, recreations=1, foreign=True),
    "binds are refused": Scenario(PAIR_AND_ONE, refusals=1),
    "all gangs fit, and binds are refused": Scenario(PAIR_AND_ONE, gpus=3, refusals=1),
    "a gang of higher priority arrives": Scenario({"g": Gang((0, 1)), "h": Gang((2, 3), 1)}, recreations=4),
}
WIDER = {
    "members of two pairs are deleted and recreated": Scenario(TWO_PAIRS, deletions=1, recreations=2),
    "binds of two pairs are refused": Scenario(TWO_PAIRS, gpus=3, refusals=1),
    "pods are deleted twice and recreated": Scenario(PAIR_AND_ONE, deletions=2, recreations=2),
}
"""Scenarios that take minutes."""
