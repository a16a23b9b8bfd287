"""The plan of a world, drawn from its seed: a list of actions, any of which can be left out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

FAULT_PHASE = 45.0
"""Length of the fault phase in seconds; after it no more faults happen."""

USERS = {
    "create-gang": 8.0,
    "create-alone": 2.0,
    "create-shares": 1.5,
    "create-mapped": 1.5,
    "create-impossible": 0.7,
    "create-foreign-member": 0.7,
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
    "small-pod-stream": 0.4,
    "replacement-race": 0.3,
    "edit-queue": 2.0,
    "move-queue": 2.0,
    "grow-gang": 1.5,
    "swap-larger": 1.5,
    "forge-owner": 1.0,
    "create-podless": 1.0,
    "create-unable": 1.0,
    "attack-limit": 1.0,
    "reclaim-race": 1.0,
}
"""Actions of users and other schedulers, with their relative weights."""

NODES = {"lose-node": 1.0, "flap-node": 1.0, "shrink-node": 1.0, "remove-node": 1.0, "break-device": 2.0}
LEADERS = frozenset({"kill", "pause"})
_AIMED = LEADERS | {"delete-pod", "force-delete-pod", "recreate-pod", "rival-binds", "rival-preempts", "kill-all"}
PROGRAMS = {"kill": 4.0, "kill-all": 1.0, "pause": 3.0, "jump-clock": 1.0, "delete-lease": 0.3}
"""A pause leads to two leaders: a process that resumes still considers itself the leader."""


QUEUES = ("red", "blue")
"""The queues of every world that gangs may name, beside the default queue, which has no limit."""

UPPER = ("company", "lab")
"""The queues above these in some worlds; the first one is the parent of the second one."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action at a time. `pick` selects its target, `amount` (0 to 1) its strength."""

    at: float
    kind: str
    pick: int
    amount: float

    @property
    def waits_for_commit(self) -> bool:
        """Whether it happens at the moment of a commit, on the node, the pod or the leader of that commit."""
        return bool(self.pick & 16) and (self.kind in NODES or self.kind in _AIMED)

    def __str__(self) -> str:
        return f"{self.kind} (pick {self.pick % 1000}, {self.amount:.2f})"


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue of a world: its GPUs by quota and by limit.

    `most` is how many GPUs it may use, and `least` how many of them it does not borrow, with regard to its parents and
    to what others do not lend.
    """

    name: str
    quota: int
    limit: int
    borrowing: bool
    reclaimable: bool
    weight: int
    parent: str = ""
    lending: bool = True
    min_runtime: int = 0
    most: int = 0
    least: int = 0

    @property
    def own_most(self) -> int:
        """How many GPUs it may use whatever the other queues are."""
        return self.limit if self.borrowing else min(self.limit, self.quota)


@dataclass(frozen=True, slots=True)
class Plan:
    """The initial state of a world, and the actions on it."""

    seed: int
    nodes: tuple[tuple[str, int, bool], ...]
    """Name, GPUs, and whether we assign the devices, of each node."""
    schedulers: int
    operators: int
    rates: tuple[float, ...]
    """Clock rates of the schedulers."""
    queues: tuple[QueuePlan, ...]
    """The queues that gangs may name."""
    actions: tuple[Action, ...]
    upper: tuple[QueuePlan, ...] = ()
    """The parents of the queues; a parent comes before its children."""
    most: int = 1 << 30
    """How many GPUs the default queue may use: those that no queue keeps for itself."""


def make_plan(seed: int) -> Plan:
    """Draws the plan of a seed."""
    rng = random.Random(f"{seed} plan")
    nodes = tuple((f"node{n}", rng.choice((2, 4, 4)), rng.random() < 0.7) for n in range(rng.randint(2, 3)))
    rates = tuple(rng.choice((1.0, 1.0, 1.0, 0.5, 2.0)) if rng.random() < 0.3 else 1.0 for _ in range(4))
    actions = [_draw(rng, {"create-gang": 1.0}, rng.random() * 3) for _ in range(2)]
    for table, most in ((USERS, 12), (NODES, 3), (PROGRAMS, 4)):
        used = {kind: weight for kind, weight in table.items() if rng.random() < 0.7} or table
        actions += [_draw(rng, used, rng.random() * FAULT_PHASE) for _ in range(rng.randint(0, most))]
    operators = rng.choice((0, 0, 1, 2))
    schedulers = rng.choice((1, 2, 2, 3))
    gpus = sum(gpus for _, gpus, _ in nodes)
    queues = _draw_queues(random.Random(f"{seed} queues"), gpus)
    upper, queues = _draw_tree(random.Random(f"{seed} tree"), gpus, queues)
    most = gpus - sum(queue.quota for queue in queues if not queue.lending)
    return Plan(seed, nodes, schedulers, operators, rates, queues, tuple(sorted(actions, key=_time_of)), upper, most)


def _draw_queues(rng: random.Random, gpus: int) -> tuple[QueuePlan, ...]:
    """Two teams that share the cluster: their quotas fit it together, and each may use at least two GPUs."""
    found = []
    for name in QUEUES:
        quota = rng.randint(1, gpus // 2)
        limit = max(2, rng.randint(quota, gpus))
        borrowing = quota < 2 or rng.random() < 0.8
        found.append(QueuePlan(name, quota, limit, borrowing, rng.random() < 0.9, rng.choice((1, 1, 2))))
    return tuple(found)


def _draw_tree(
    rng: random.Random, gpus: int, leaves: tuple[QueuePlan, ...]
) -> tuple[tuple[QueuePlan, ...], tuple[QueuePlan, ...]]:
    """The parents of the teams, and the teams: none have a parent, or one, or both, or one is a level below the other.

    A team may keep its quota for itself if enough is left for every gang of the default queue.
    """
    company, lab = UPPER
    parents = rng.choice((("", ""), (company, company), (company, ""), (lab, company), (lab, lab)))
    upper: list[QueuePlan] = []
    for name in UPPER if lab in parents else UPPER[:1] if company in parents else ():
        below = sum(queue.quota for queue, parent in zip(leaves, parents, strict=True) if parent)
        quota = max(2, rng.choice((below, rng.randint(0, gpus))))
        limit = rng.randint(max(2, min(quota, gpus)), gpus)
        above = upper[-1].name if upper else ""
        runtime = rng.choice((0, 0, 4))
        upper.append(QueuePlan(name, quota, limit, True, rng.random() < 0.9, rng.choice((1, 2)), above, True, runtime))
    keeper = rng.choice((*(leaf.name for leaf in leaves if leaf.quota <= gpus - 4), "", ""))
    found = [
        replace(leaf, parent=parent, lending=leaf.name != keeper) for leaf, parent in zip(leaves, parents, strict=True)
    ]
    return tuple(upper), tuple(_with_bounds(leaf, found, upper, gpus) for leaf in found)


def _with_bounds(queue: QueuePlan, leaves: Sequence[QueuePlan], upper: Sequence[QueuePlan], gpus: int) -> QueuePlan:
    """A queue with how many GPUs it may use, and how many of them it does not borrow."""
    above = {one.name: one for one in upper}
    path = [queue]
    while path[-1].parent:
        path.append(above[path[-1].parent])
    ceiling, quota = min(one.own_most for one in path), min(one.quota for one in path)
    lent = gpus - sum(other.quota for other in leaves if not other.lending and other is not queue)
    return replace(queue, most=min(ceiling, max(quota, lent)), least=min(ceiling, quota))


def _draw(rng: random.Random, table: dict[str, float], at: float) -> Action:
    (kind,) = rng.choices(list(table), list(table.values()))
    return Action(round(at, 3), kind, rng.randrange(1 << 30), rng.random())


def _time_of(action: Action) -> float:
    return action.at
