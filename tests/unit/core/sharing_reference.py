"""Reference for who may be evicted: all sets of victims on a small cluster, each judged by the rules as written.

Judged by section 5 of the design and docs/queues.md, without any code of the engine. Where these leave room, it follows
the engine: which members are surplus, how victims of a set are ranked, and when kept quota is in the way. It knows GPUs
only, counts whole ones, and tries everything: slow, and meant to be obvious.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from gpu_scheduler.core.model import DEFAULT_QUEUE, AcrossQueues, Queue

GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Member:
    """A running pod of a gang."""

    uid: str
    node: str
    gpus: int
    role: str = ""
    index: int = 0


@dataclass(frozen=True)
class Running:
    """A running gang; `roles` are the minimums of its roles."""

    name: str
    queue: str
    members: tuple[Member, ...]
    minimum: int
    roles: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    preemptible: bool = True

    @property
    def surplus(self) -> tuple[Member, ...]:
        """The members that may be evicted while the gang runs on: beyond its minimums, the highest index first."""
        spare = len(self.members) - self.minimum
        least = dict(self.roles)
        left = Counter(member.role for member in self.members)
        found = []
        for member in sorted(self.members, key=lambda one: (one.index, one.uid), reverse=True):
            if spare > 0 and left[member.role] > least.get(member.role, 0):
                found.append(member)
                left[member.role] -= 1
                spare -= 1
        return tuple(found)


@dataclass(frozen=True)
class Waiting:
    """A gang that waits: the GPUs of each pod of its minimum, and how many pods like the last one it has beyond it."""

    name: str
    queue: str
    pods: tuple[int, ...]
    beyond: int = 0
    roles: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    preemptible: bool = True

    @property
    def gpus(self) -> int:
        """The GPUs of the minimum."""
        return sum(self.pods)


@dataclass(frozen=True)
class Case:
    """A cluster (the GPUs of each node), its queues and running gangs, and one gang that waits."""

    nodes: Mapping[str, int]
    queues: Mapping[str, Queue]
    running: tuple[Running, ...]
    waiting: Waiting


@dataclass(frozen=True)
class Unit:
    """What goes at once: one member beyond a minimum, or a whole gang."""

    gang: Running
    members: tuple[Member, ...]
    whole: bool

    @property
    def gpus(self) -> int:
        """The GPUs that it frees."""
        return sum(member.gpus for member in self.members)


Units = tuple[Unit, ...]
"""A set of victims."""


class Judge:
    """The rules for one case."""

    def __init__(self, case: Case) -> None:
        self.case, self.asker = case, case.waiting
        self.total = sum(case.nodes.values())
        self.mine = self.path(self.asker.queue)
        self.use: Counter[str] = Counter()
        for gang in case.running:
            for name in self.path(gang.queue):
                self.use[name] += sum(member.gpus for member in gang.members)
        self.free = dict(case.nodes)
        for gang in case.running:
            for member in gang.members:
                self.free[member.node] -= member.gpus
        assert min(self.free.values()) >= 0, "more GPUs are used than a node has"

    # -- the tree

    def queue(self, name: str) -> Queue:
        """A queue; the default queue exists without an object."""
        return self.case.queues.get(name, DEFAULT_QUEUE)

    def path(self, name: str) -> list[str]:
        """A queue and its parents, the queue first."""
        found = [name]
        while (parent := self.queue(found[-1]).parent) is not None:
            found.append(parent)
        return found

    def below_common(self, name: str, other: str) -> list[str]:
        """The queue and its parents below the lowest one that it shares with another queue."""
        return [upper for upper in self.path(name) if upper not in self.path(other)]

    def quota(self, name: str) -> int:
        """The quota; none means 0."""
        return self.queue(name).quota.get(GPU, 0)

    # -- candidates

    def options(self, gang: Running) -> Iterator[Units]:
        """What may go of one gang, as far as this depends on the gang and the settings of the queues alone.

        Members of one size on one node are interchangeable, so only their number is varied.
        """
        yield ()
        if not gang.preemptible:
            return
        if gang.queue == self.asker.queue:
            if not self.queue(gang.queue).preempts_within or gang.priority > self.asker.priority:
                return
            whole = gang.priority < self.asker.priority
        else:
            if self.queue(self.asker.queue).across is AcrossQueues.NEVER:
                return
            if not all(self.queue(name).reclaimable for name in self.below_common(gang.queue, self.asker.queue)):
                return
            whole = True
        alike: dict[tuple[str, int], list[Member]] = {}
        for member in gang.surplus:
            alike.setdefault((member.node, member.gpus), []).append(member)
        counts = product(*(range(len(some) + 1) for some in alike.values()))
        for numbers in counts:
            chosen = [m for number, some in zip(numbers, alike.values(), strict=True) for m in some[:number]]
            if chosen:
                yield tuple(Unit(gang, (member,), whole=False) for member in chosen)
        if whole:
            yield (Unit(gang, gang.members, whole=True),)

    def sets(self) -> Iterator[Units]:
        """All sets of candidates, the empty one first."""
        for parts in product(*(list(self.options(gang)) for gang in self.case.running)):
            yield tuple(unit for part in parts for unit in part)

    def units_of(self, uids: frozenset[str]) -> Units | str:
        """The victims that these pods are, or what is wrong with them."""
        found: list[Unit] = []
        for gang in self.case.running:
            gone = [member for member in gang.members if member.uid in uids]
            if not gone:
                continue
            whole = len(gone) == len(gang.members)
            surplus = {member.uid for member in gang.surplus}
            if not whole and not {member.uid for member in gone} <= surplus:
                return f"{gang.name} runs on without members that belong to its minimum"
            units = [Unit(gang, gang.members, whole=True)] if whole else [Unit(gang, (m,), whole=False) for m in gone]
            possible = list(self.options(gang))
            if whole and not any(unit.whole for option in possible for unit in option):
                return f"{gang.name} may not be evicted as a whole"
            if len(possible) == 1:
                return f"{gang.name} may not be evicted"
            found += units
        return tuple(found)

    # -- the rules for a set

    def forbidden(self, units: Units) -> str:
        """Why the rules forbid this set of victims, or the start of the gang after them; "" if they allow it."""
        gone: Counter[str] = Counter()
        for unit in units:
            for name in self.path(unit.gang.queue):
                gone[name] += unit.gpus
        return (
            self._exceeds(gone)
            or self._uses_kept_quota(gone, units)
            or self._robs(units)
            or self._no_claim(units, gone)
        )

    def _exceeds(self, gone: Mapping[str, int]) -> str:
        """Limits of the own path; without borrowing the quota that is named is one, and for a gang that is not
        preemptible every quota is, named or not."""
        for name in self.mine:
            queue, after = self.queue(name), self.use[name] - gone[name] + self.asker.gpus
            ceilings = [queue.limit[GPU]] if GPU in queue.limit else []
            if not self.asker.preemptible or (not queue.borrowing and GPU in queue.quota):
                ceilings.append(self.quota(name))
            if any(after > most for most in ceilings):
                return f"queue {name} would use {after}, above its limit of {min(ceilings)}"
        return ""

    def _uses_kept_quota(self, gone: Mapping[str, int], units: Units) -> str:
        """A gang that borrows leaves alone what other queues do not lend and do not use."""
        if all(self.use[name] - gone[name] + self.asker.gpus <= self.quota(name) for name in self.mine):
            return ""
        kept = 0
        for name, queue in self.case.queues.items():
            covered = any(not self.queue(upper).lending for upper in self.path(name)[1:])
            if not queue.lending and not covered and name not in self.mine:
                kept += max(0, self.quota(name) - (self.use[name] - gone[name]))
        left = sum(self.free.values()) + sum(unit.gpus for unit in units) - self.asker.gpus
        return f"{kept} GPUs are not lent, and {left} would be left" if kept > left else ""

    def _robs(self, units: Units) -> str:
        """Other queues, and their parents below the common one, are above their quota before each victim goes, if the
        largest goes last. A gang gives its members beyond the minimum before the others."""
        gone, largest = Counter[str](), Counter[str]()
        seen: set[str] = set()
        for unit in sorted(units, key=lambda one: one.whole):
            beyond = {member.uid for member in unit.gang.surplus} if unit.whole else set()
            fresh = [member for member in unit.members if member.uid not in seen]
            seen.update(member.uid for member in fresh)
            for name in self.path(unit.gang.queue):
                gone[name] += sum(member.gpus for member in fresh)
                last = sum(member.gpus for member in fresh if member.uid not in beyond)
                largest[name] = max(largest[name], last)
        for unit in units:
            for name in self.below_common(unit.gang.queue, self.asker.queue):
                if self.use[name] - gone[name] + largest[name] <= self.quota(name):
                    return f"queue {name} is not above its quota when a victim of {unit.gang.name} goes"
        return ""

    def _no_claim(self, units: Units, gone: Mapping[str, int]) -> str:
        """Against every other queue: within quota with the gang, or a share that is not larger than theirs."""
        for theirs in {unit.gang.queue for unit in units} - {self.asker.queue}:
            ours = self.below_common(self.asker.queue, theirs)
            if all(self.use[name] - gone[name] + self.asker.gpus <= self.quota(name) for name in ours):
                continue
            top = self.below_common(theirs, self.asker.queue)[-1]
            mine = self._share(ours[-1], self.asker.gpus - gone[ours[-1]])
            if mine > self._share(top, -gone[top]):
                return f"not entitled, and the share of {ours[-1]} would be larger than that of {top}"
        return ""

    def _share(self, name: str, change: int) -> Fraction:
        """What is borrowed, for the weight. All shares are parts of the same GPUs that can be lent."""
        return Fraction(max(0, self.use[name] + change - self.quota(name)), self.queue(name).weight)

    # -- nodes

    def fits(self, units: Units) -> bool:
        """Whether the minimum finds a place without these victims; every way to place it is tried."""
        free = dict(self.free)
        for unit in units:
            for member in unit.members:
                free[member.node] += member.gpus
        return _pack(sorted(self.asker.pods, reverse=True), tuple(sorted(free.values(), reverse=True)))

    def suffices(self, units: Units) -> bool:
        """Whether the rules and the nodes let the gang start at the price of these victims."""
        return self.fits(units) and not self.forbidden(units)

    # -- the order of sets

    def tier(self, units: Units) -> tuple[bool, bool, bool]:
        """The tier of the worst victim: whole gangs are worse than surplus, then the own queue is worse than others,
        then victims without which their queue is below its quota."""
        return max((self._tier_of(unit) for unit in units), default=(False, False, False))

    def _tier_of(self, unit: Unit) -> tuple[bool, bool, bool]:
        own = unit.gang.queue == self.asker.queue
        theirs = [] if own else self.below_common(unit.gang.queue, self.asker.queue)
        return unit.whole, own, any(self.use[name] - unit.gpus < self.quota(name) for name in theirs)

    def smaller(self, units: Units) -> Iterator[Units]:
        """The sets in which one victim is let off, or a whole gang loses only members beyond its minimum."""
        for unit in units:
            rest = tuple(other for other in units if other is not unit)
            yield rest
            if unit.whole:
                yield from ((*rest, *some) for some in self.options(unit.gang) if some and not some[0].whole)

    def best(self) -> Units | None:
        """A set of the best tier that suffices, the smallest of that tier; None if there is none."""
        enough = (units for units in self.sets() if self.suffices(units))
        return min(enough, key=lambda units: (bool(units), self.tier(units), len(units)), default=None)


def _pack(pods: Sequence[int], free: tuple[int, ...]) -> bool:
    """Whether pods fit nodes with so many free GPUs; the largest pod is tried on every node."""
    if not pods:
        return True
    for i, left in enumerate(free):
        if left >= pods[0] and (i == 0 or left != free[i - 1]):
            after = tuple(sorted((*free[:i], left - pods[0], *free[i + 1 :]), reverse=True))
            if _pack(pods[1:], after):
                return True
    return False
