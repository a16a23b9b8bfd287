"""Sharing between queues: whose turn it is, and what a gang may take from other queues.

A gang is *entitled* if its minimum keeps its queue within the quota, and so the parents of that queue below the one
that it shares with the other queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.queueing.queue import QueuePosition, rank
from gpu_scheduler.core.queueing.quota import Charges, QuotaTracker

# -- the order of queues: the first rule that tells two queues apart decides, the smaller value goes first


@dataclass(frozen=True, slots=True)
class QueueClaim:
    """A queue that competes with its siblings by the first of its waiting gangs."""

    entitled: bool
    priority: int
    share: float
    gang_priority: int


QueueRule = Callable[[QueueClaim], float]


def entitled_first(claim: QueueClaim) -> float:
    """Queues whose gang stays within the quota come first."""
    return not claim.entitled


def highest_queue_priority(claim: QueueClaim) -> float:
    """Then queues of higher priority."""
    return -claim.priority


def smallest_share(claim: QueueClaim) -> float:
    """Then the queue that borrows least for its weight."""
    return claim.share


QUEUE_ORDER: tuple[QueueRule, ...] = (entitled_first, highest_queue_priority, smallest_share)

Heads = Sequence[tuple[GangKey, QueuePosition]]


class QueueOrder:
    """The order of the first gangs of all queues, level by level from the top; shares are computed once.

    With `by_priority` the priority of the gangs decides before the queues do.
    """

    def __init__(self, quota: QuotaTracker, totals: Mapping[str, int], by_priority: bool) -> None:
        self._quota, self._totals, self._by_priority = quota, totals, by_priority
        self._shares: dict[str, float] = {}

    def first(self, heads: Heads) -> GangKey:
        """The gang whose turn it is. Minimums come before members beyond them, whatever their queue, and gangs for
        which slots were reserved in vain come last."""
        best = min((position.last_turn, position.surplus) for _, position in heads)
        rivals = [head for head in heads if (head[1].last_turn, head[1].surplus) == best]
        if self._by_priority:
            top = max(position.priority for _, position in rivals)
            rivals = [head for head in rivals if head[1].priority == top]
        return self._first_below(rivals, 0)[0]

    def _first_below(self, heads: Heads, level: int) -> tuple[GangKey, QueuePosition]:
        """The first of the gangs whose queues have the same parents down to a level."""
        if len(heads) == 1:
            return heads[0]
        children: dict[str, list[tuple[GangKey, QueuePosition]]] = {}
        for head in heads:
            path = self._quota.path(head[1].queue)
            children.setdefault(path[-1 - level] if level < len(path) else "", []).append(head)
        if len(children) == 1 and level >= len(self._quota.path(heads[0][1].queue)):
            return min(heads, key=lambda head: rank(*head))
        found = [(name, self._first_below(some, level + 1)) for name, some in children.items()]
        return min(found, key=lambda item: self._rank(item[0], level, *item[1]))[1]

    def _rank(self, name: str, level: int, key: GangKey, position: QueuePosition) -> tuple[object, ...]:
        queue = self._quota.queue(name)
        path = self._quota.path(position.queue)
        entitled = self._quota.within_quota(path[: len(path) - level], dict(position.minimum))
        if name not in self._shares:
            self._shares[name] = self._quota.share(name, self._totals)
        claim = QueueClaim(entitled, queue.priority if queue is not None else 0, self._shares[name], position.priority)
        return tuple([rule(claim) for rule in QUEUE_ORDER]), rank(key, position)

    def sort(self, gangs: Iterable[tuple[GangKey, QueuePosition]]) -> list[GangKey]:
        """All gangs in the order of their turns, if none of them started."""
        lines: dict[str, list[tuple[GangKey, QueuePosition]]] = {}
        for gang in sorted(gangs, key=lambda gang: rank(*gang), reverse=True):
            lines.setdefault(gang[1].queue, []).append(gang)
        found: list[GangKey] = []
        while lines:
            first = self.first([line[-1] for line in lines.values()])
            queue = next(queue for queue, line in lines.items() if line[-1][0] == first)
            found.append(lines[queue].pop()[0])
            if not lines[queue]:
                del lines[queue]
        return found


# -- what a gang may take


class Taking(NamedTuple):
    """What the eviction of one victim frees, part by part: the members beyond its minimum go before the others.
    `reclaimed` means that it belongs to another queue, and that the rules between queues apply."""

    parts: tuple[tuple[str, ...], ...]
    queue: str
    reclaimed: bool


@dataclass(slots=True)
class Taken:
    """What a set of victims takes together, and the largest amounts of the last part of one victim, by queue with its
    parents; and the queues that it reclaims from."""

    uids: set[str] = field(default_factory=set)
    gone: dict[str, dict[str, int]] = field(default_factory=dict)
    largest: dict[str, dict[str, int]] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)


class SharingRules:
    """What a gang may take from its own queue and from others.

    `wanted` is the charge of its minimum, and `short` the resources that it lacks. A gang that is not preemptible stays
    `within_quota`.
    """

    def __init__(
        self,
        quota: QuotaTracker,
        totals: Mapping[str, int],
        queue: str,
        wanted: Mapping[str, int],
        short: Collection[str],
        within_quota: bool = False,
    ) -> None:
        self._quota, self._totals, self._queue, self._within_quota = quota, totals, queue, within_quota
        self._wanted, self._short = wanted, [resource for resource in short if wanted.get(resource)]
        self._given: Charges = {}
        self._leaving: Charges = {}
        self._uncounted: frozenset[str] = frozenset()
        self._costs: dict[int, tuple[tuple[str, ...], Charges]] = {}
        self._borrowers: dict[str, bool] = {}

    def count_out(self, given_back: Collection[str], leaving: Collection[str]) -> None:
        """Notes which pods and slots their queues lose anyway, and which of them end now."""
        self._uncounted = frozenset(given_back)
        self._costs.clear()
        self._borrowers.clear()
        self._given, self._leaving = self._charges(given_back), self._charges(leaving)

    def _charges(self, uids: Iterable[str]) -> dict[str, dict[str, int]]:
        """What is charged for pods and slots, by queue with its parents."""
        found: dict[str, dict[str, int]] = {}
        for queue, amounts in self._quota.charges_of(uids).items():
            for upper in self._quota.path(queue):
                _sum_up(found.setdefault(upper, {}), amounts)
        return found

    def _cost(self, part: tuple[str, ...]) -> Charges:
        """What a part of a victim takes by itself, computed once."""
        known = self._costs.get(id(part))
        if known is None:
            known = part, self._charges(uid for uid in part if uid not in self._uncounted)
            self._costs[id(part)] = known
        return known[1]

    def _add(self, taken: Taken, taking: Taking) -> tuple[Charges, list[str]]:
        """Adds a victim to a set; returns what that takes in addition, and the pods and slots."""
        added: dict[str, dict[str, int]] = {}
        uids: list[str] = []
        for part in taking.parts:
            fresh: Sequence[str] = part
            if taken.uids.isdisjoint(part):
                more = self._cost(part)
            else:
                fresh = [uid for uid in part if uid not in taken.uids]
                more = self._charges(uid for uid in fresh if uid not in self._uncounted)
            taken.uids.update(fresh)
            uids += fresh
            for queue, amounts in more.items():
                _sum_up(taken.gone.setdefault(queue, {}), amounts)
                _sum_up(added.setdefault(queue, {}), amounts)
                largest = taken.largest.setdefault(queue, {})
                for resource, amount in amounts.items():
                    if part is taking.parts[-1]:
                        largest[resource] = max(largest.get(resource, 0), amount)
        if taking.reclaimed:
            taken.queues.add(taking.queue)
        return added, uids

    def allow_one_more(self, taken: Taken, taking: Taking) -> bool:
        """Adds a victim to a set if the rules allow the set with it."""
        if not taking.reclaimed:
            self._add(taken, taking)
            return True
        if not self.may_borrow(taking.queue):
            return False
        known = taking.queue in taken.queues
        largest = {queue: dict(taken.largest.get(queue, ())) for queue in self._quota.path(taking.queue)}
        more, fresh = self._add(taken, taking)
        if more and self._may_reclaim(taken, taking.queue):
            return True
        for queue, amounts in more.items():
            _sum_up(taken.gone[queue], amounts, -1)
        taken.uids.difference_update(fresh)
        if not known:
            taken.queues.discard(taking.queue)
        taken.largest.update(largest)
        return False

    def may_borrow(self, queue: str) -> bool:
        """Whether something of another queue could be reclaimed, whatever else goes: a queue that has a quota of
        everything that the gang lacks, and is not above any of them, loses nothing."""
        known = self._borrowers.get(queue)
        if known is None:
            _, theirs, _ = self._quota.apart(self._queue, queue)
            known = self._borrowers[queue] = bool(theirs) and all(self._could_lose(name) for name in theirs)
        return known

    def _could_lose(self, name: str) -> bool:
        queue = self._quota.queue(name)
        granted = queue.quota if queue is not None else {}
        return any(
            r not in granted or self._quota.borrowed(name, r, -_of(self._given, name, r)) > 0 for r in self._short
        )

    def straddle(self, taking: Taking) -> bool:
        """Whether another queue falls below its quota without a victim, in a resource that the gang lacks."""
        if not taking.reclaimed:
            return False
        _, theirs, _ = self._quota.apart(self._queue, taking.queue)
        lost: dict[str, dict[str, int]] = {}
        for part in taking.parts:
            for queue, amounts in self._cost(part).items():
                _sum_up(lost.setdefault(queue, {}), amounts)
        return any(
            (amount := _of(lost, name, resource))
            and self._quota.borrowed(name, resource, -amount - _of(self._given, name, resource)) < 0
            for name in theirs
            for resource in self._short
        )

    def sum_up(self, takings: Iterable[Taking]) -> Taken:
        """What a set of victims takes together."""
        taken = Taken()
        for taking in takings:
            self._add(taken, taking)
        return taken

    def allow(self, takings: Iterable[Taking]) -> bool:
        """Whether the rules allow the eviction of a whole set, and the limits then admit the gang."""
        taken = self.sum_up(takings)
        return self.admits(taken) and all(self._may_reclaim(taken, queue) for queue in taken.queues)

    def admits(self, taken: Taken) -> bool:
        """Whether the queue of the gang and its parents admit its minimum without what is taken."""
        quota = self._quota
        gone = {queue: Counter(amounts) for queue, amounts in self._leaving.items()}
        for queue, amounts in taken.gone.items():
            gone.setdefault(queue, Counter()).update(amounts)
        if any(self._exceeds(name, gone.get(name, Counter())) for name in quota.path(self._queue)):
            return False
        return not quota.keeps_quota or quota.refuse_kept(self._queue, self._wanted, self._totals, gone) is None

    def _exceeds(self, name: str, gone: Mapping[str, int]) -> bool:
        """Whether a queue would exceed its limit, or its quota if that is a limit for it or for the gang."""
        quota, queue = self._quota, self._quota.queue(name)
        if queue is None:
            return True
        change = {resource: asked - gone.get(resource, 0) for resource, asked in self._wanted.items() if asked}
        if self._within_quota:
            counted = [resource for resource in change if resource in quota.quota_resources]
            if not counted or any(quota.borrowed(name, resource, change[resource]) > 0 for resource in counted):
                return True
        ceilings = [queue.limit] if queue.borrowing else [queue.limit, queue.quota]
        used = quota.used(name)
        return any(
            used.get(resource, 0) + change[resource] > most * quota.scale(resource)
            for ceiling in ceilings
            for resource, most in ceiling.items()
            if resource in change
        )

    def closeness(self, taking: Taking) -> int:
        """How many parents the queue of a victim shares with the gang's queue."""
        ours = self._quota.path(self._queue)
        return sum(queue in ours for queue in self._quota.path(taking.queue))

    def _may_reclaim(self, taken: Taken, queue: str) -> bool:
        """Whether victims of another queue may be reclaimed, together with everything else that is taken."""
        ours, theirs, _ = self._quota.apart(self._queue, queue)
        if not ours or not theirs or not all(self._borrows_until_the_last(taken, name) for name in theirs):
            return False
        return self._is_entitled(taken, ours) or self._has_smaller_share(taken, ours[-1], theirs[-1])

    def _is_entitled(self, taken: Taken, ours: Sequence[str]) -> bool:
        quota, wanted = self._quota, self._wanted
        return bool(self._short) and all(
            quota.borrowed(name, resource, wanted[resource] - _of(taken.gone, name, resource)) <= 0
            for name in ours
            for resource in self._short
        )

    def _borrows_until_the_last(self, taken: Taken, name: str) -> bool:
        """Whether a queue is above its quota before each victim goes, if the largest one goes last.

        If it has no quota of what the gang lacks, its quota of other resources that the victims use protects them.
        """
        gone, queue = taken.gone.get(name, {}), self._quota.queue(name)
        lost = [resource for resource in self._short if gone.get(resource)]
        granted = queue.quota if queue is not None else {}
        judged = [r for r in lost if r in granted] or [r for r in granted if gone.get(r)] or lost
        return bool(lost) and all(
            self._quota.borrowed(name, r, _of(taken.largest, name, r) - gone[r] - _of(self._given, name, r)) > 0
            for r in judged
        )

    def _has_smaller_share(self, taken: Taken, ours: str, theirs: str) -> bool:
        """Whether the gang's queue borrows at most as much with the gang as the other queue without the victims, of
        every resource that the gang lacks. The largest share of any resource would let two queues evict each other:
        it may stay the same with the gang."""
        quota, totals = self._quota, self._totals
        return bool(self._short) and all(
            quota.share_of(ours, resource, totals, self._wanted[resource] - _of(taken.gone, ours, resource))
            <= quota.share_of(
                theirs, resource, totals, -_of(taken.gone, theirs, resource) - _of(self._given, theirs, resource)
            )
            for resource in self._short
        )


def _sum_up(total: dict[str, int], amounts: Mapping[str, int], times: int = 1) -> None:
    for resource, amount in amounts.items():
        total[resource] = total.get(resource, 0) + amount * times


def _of(charges: Charges, queue: str, resource: str) -> int:
    return charges.get(queue, {}).get(resource, 0)
