"""What will be done to a world, drawn from its seed: a list of actions, from which any may be left out."""

from __future__ import annotations

import random
from dataclasses import dataclass

TROUBLE = 45.0
"""For so many seconds anything may happen; after that nothing goes wrong any more."""

USERS = {
    "create-gang": 8.0,
    "create-alone": 2.0,
    "create-shares": 1.5,
    "create-mapped": 1.5,
    "create-impossible": 0.7,
    "create-stranger": 0.7,
    "edit-minimum": 1.5,
    "delete-object": 1.0,
    "delete-gang": 1.0,
    "delete-pod": 2.5,
    "force-delete-pod": 1.0,
    "recreate-pod": 1.0,
    "rival-binds": 2.0,
    "rival-waits": 0.7,
    "rival-preempts": 0.7,
    "end-namespace": 0.5,
    "delete-placements": 0.5,
    "stream": 0.4,
    "siege": 0.3,
}
"""What users and other schedulers do, and how often compared with each other."""

NODES = {"lose-node": 1.0, "flap-node": 1.0, "shrink-node": 1.0, "remove-node": 1.0, "break-device": 2.0}
LEADERS = frozenset({"kill", "pause"})
_AIMED = LEADERS | {"delete-pod", "force-delete-pod", "recreate-pod", "rival-binds", "rival-preempts", "kill-all"}
PROGRAMS = {"kill": 4.0, "kill-all": 1.0, "pause": 3.0, "jump-clock": 1.0, "delete-lease": 0.3}
"""Two leaders come of a pause: whoever wakes up still thinks that it leads."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that is done at a time. `pick` chooses to whom, `much` (0 to 1) says how much."""

    at: float
    kind: str
    pick: int
    much: float

    @property
    def waits_for_commit(self) -> bool:
        """Whether it is done the moment something is committed, to the node, the pod or the leader of it."""
        return bool(self.pick & 16) and (self.kind in NODES or self.kind in _AIMED)

    def __str__(self) -> str:
        return f"{self.kind} (pick {self.pick % 1000}, {self.much:.2f})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A world at its beginning, and what will be done to it."""

    seed: int
    nodes: tuple[tuple[str, int, bool], ...]
    """Names, GPUs, and whether we assign their devices."""
    schedulers: int
    operators: int
    rates: tuple[float, ...]
    """How fast the clocks of the programs run."""
    actions: tuple[Action, ...]


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"{seed} plan")
    nodes = tuple((f"node{n}", chance.choice((2, 4, 4)), chance.random() < 0.7) for n in range(chance.randint(2, 3)))
    rates = tuple(chance.choice((1.0, 1.0, 1.0, 0.5, 2.0)) if chance.random() < 0.3 else 1.0 for _ in range(4))
    actions = [_draw(chance, {"create-gang": 1.0}, chance.random() * 3) for _ in range(2)]
    for table, most in ((USERS, 8), (NODES, 3), (PROGRAMS, 4)):
        used = {kind: weight for kind, weight in table.items() if chance.random() < 0.7} or table
        actions += [_draw(chance, used, chance.random() * TROUBLE) for _ in range(chance.randint(0, most))]
    operators = chance.choice((0, 0, 1, 2))
    return Plan(seed, nodes, chance.choice((1, 2, 2, 3)), operators, rates, tuple(sorted(actions, key=_time_of)))


def _draw(chance: random.Random, table: dict[str, float], at: float) -> Action:
    (kind,) = chance.choices(list(table), list(table.values()))
    return Action(round(at, 3), kind, chance.randrange(1 << 30), chance.random())


def _time_of(action: Action) -> float:
    return action.at
