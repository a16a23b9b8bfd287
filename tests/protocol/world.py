"""What the model of the commit protocol is about: pods, requests, commits, who leads, and what may befall them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PENDING, BOUND, ENDING, SUCCEEDED, GONE = "pending", "bound", "ending", "succeeded", "gone"
FOREIGN, TOUCHED, NAMELESS = "foreign", "touched", "bound without a record"

# -- the world


class Pod(NamedTuple):
    """A pod, or the place of one. What is made again under its name has another uid."""

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
    """An entry of a commit: this pod goes, for a restart of its gang or for another gang."""

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
    """A commit that a replaced leader has yet to write down."""

    commit: Commit


Request = Bind | Delete | Raise | Late


class Leader(NamedTuple):
    """What a leader has in mind: pods as it last saw them (none before its list), open commits, and the one it is about
    to commit. `holds` are gangs whose slots it keeps, where that is remembered and not derived."""

    seen: tuple[Pod, ...] | None
    open: frozenset[Commit]
    step: Commit | None = None
    holds: frozenset[str] = frozenset()


class World(NamedTuple):
    """Everything that is so."""

    pods: tuple[Pod, ...]
    committed: frozenset[Commit] = frozenset()
    lost: frozenset[Commit] = frozenset()
    flying: frozenset[Request] = frozenset()
    leader: Leader | None = None
    deletions: int = 0
    refusals: int = 0
    makings: int = 0


class Gang(NamedTuple):
    """Members by number; all of them are its minimum."""

    members: tuple[int, ...]
    priority: int = 0


@dataclass(frozen=True)
class Scenario:
    """A cluster and what may befall it. Bare pods are made again by a person: nobody restarts them."""

    gangs: Mapping[str, Gang]
    gpus: int = 2
    deletions: int = 0
    refusals: int = 0
    makings: int = 0
    bare: bool = False
    foreign: bool = False

    @property
    def start(self) -> World:
        """How it begins: every pod waits, but for those of high priority, who are yet to come."""
        pods = tuple(
            Pod(state=GONE if gang.priority else PENDING) for gang in self.gangs.values() for _ in gang.members
        )
        return World(pods, deletions=self.deletions, refusals=self.refusals, makings=self.makings)


TWO_PAIRS = {"g": Gang((0, 1)), "h": Gang((2, 3))}
PAIR_AND_ONE = {"g": Gang((0, 1)), "h": Gang((2,))}
SCENARIOS = {
    "two gangs want the same GPUs": Scenario(TWO_PAIRS),
    "pods are deleted and made again": Scenario(PAIR_AND_ONE, deletions=1, makings=2),
    "bare pods are deleted and made again": Scenario(PAIR_AND_ONE, deletions=1, makings=1, bare=True),
    "pods are made again for another scheduler": Scenario(PAIR_AND_ONE, deletions=1, makings=1, foreign=True),
    "binds are refused": Scenario(PAIR_AND_ONE, refusals=1),
    "there is room for all, and binds are refused": Scenario(PAIR_AND_ONE, gpus=3, refusals=1),
    "a gang of higher priority comes": Scenario({"g": Gang((0, 1)), "h": Gang((2, 3), 1)}, makings=4),
}
WIDER = {
    "members of two pairs are deleted and made again": Scenario(TWO_PAIRS, deletions=1, makings=2),
    "binds of two pairs are refused": Scenario(TWO_PAIRS, gpus=3, refusals=1),
    "pods are deleted twice and made again": Scenario(PAIR_AND_ONE, deletions=2, makings=2),
}
"""Scenarios that take minutes."""
