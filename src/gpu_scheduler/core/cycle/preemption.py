"""Preemption and reclaim: the cheapest set of victims, proved by a placement before any pod is evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from operator import attrgetter

from gpu_scheduler.core.cycle.victims import Victim, find_candidates
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.model import Pod
from gpu_scheduler.core.placement.diagnose import short_resources
from gpu_scheduler.core.placement.domains import Bid, Placement
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.queueing.bid import minimum_of
from gpu_scheduler.core.queueing.sharing import SharingRules, Taken, Taking
from gpu_scheduler.core.reasons import Reason, Refusal
from gpu_scheduler.core.state import State

_MAX_SINGLE_TRIALS = 64
"""How many victims of each tier are tried alone before combinations are."""

_MAX_WORK = 20_000
"""How many steps the search may take, and, beside eight for each victim, the trials that spare victims."""

_MAX_PROOFS = 256
"""How many placements are computed to spare victims; after that, only victims outside the placement are spared."""

_FIRST_PREFIX = 16
"""How many victims are tried together at first; the number doubles until they suffice."""

_MAX_COMBINED = 10
"""Of so few victims all combinations are tried, if none of the other ways finds a set that the rules allow."""

_THOROUGHLY = 16
"""Up to this many victims, each one is tried to be spared once more in the end."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A set of victims, and the placement that proves that their eviction suffices."""

    victims: tuple[Victim, ...]
    placement: Placement

    @property
    def pods(self) -> dict[str, tuple[Pod, DeleteCause]]:
        """The pods to evict by uid, each once, with the cause."""
        return {pod.uid: (pod, victim.cause) for victim in self.victims for pod in victim.pods}


def find_victims(
    state: State, record: GangRecord, bid: Bid, now: float, limit: Refusal | None = None
) -> Eviction | None:
    """The cheapest victims without which the rules and the nodes admit the minimum of a bid; None if there are none.

    `limit` is the refusal of the gang's queue if that is full.
    """
    if not record.preempts or not bid.needed:
        return None
    bid = minimum_of(state, bid)
    leaving = leaving_pods(state)
    short = {limit.subject} if limit is not None else short_resources(state.cluster, bid)
    wanted = state.quota.charge_of_shapes(bid.shapes)
    only_quota = record.gang is not None and not record.gang.preemptible
    rules = SharingRules(state.quota, state.totals(), state.queue_of(record), wanted, short, only_quota)
    rules.count_out({*leaving, *state.quarantined, *_idle(state)}, leaving)
    victims = sorted(find_candidates(state, record, now, rules), key=attrgetter("rank"))
    if not victims or (rules.allow(()) and _place_without(state, bid, leaving) is not None):
        return None
    return _Search(state, bid, rules, victims).run()


class _Search:
    """The search for the victims of one bid: tier by tier, single victims before combinations."""

    def __init__(self, state: State, bid: Bid, rules: SharingRules, victims: Sequence[Victim]) -> None:
        self._state, self._bid, self._rules, self._victims = state, bid, rules, victims
        self._end = state.work + _MAX_WORK
        self._all: list[Taking] = []

    def run(self) -> Eviction | None:
        """The first set that suffices, without the victims that can be spared."""
        for tier in sorted({victim.tier for victim in self._victims}):
            known = [victim for victim in self._victims if victim.tier <= tier]
            self._all.extend(victim.taking for victim in known if victim.tier == tier)
            if not self._rules.admits(self._rules.sum_up(self._all)) or self._is_hopeless(known):
                continue
            for victim in islice((one for one in known if one.tier == tier), _MAX_SINGLE_TRIALS):
                if self._state.work > self._end:
                    break
                if (found := self._prove([victim])) is not None:
                    return found
            for chosen in self._sets(known) if len(known) > 1 else ():
                if (eviction := self._minimize(chosen)) is not None:
                    return self._prefer_surplus(eviction)
                if self._state.work > self._end:
                    return None
        return None

    def _prefer_surplus(self, eviction: Eviction) -> Eviction:
        """Takes the surplus of a gang in its place, if that suffices beside the other victims."""
        for victim in eviction.victims if len(eviction.victims) <= _THOROUGHLY else ():
            surplus = [one for one in self._victims if one.record is victim.record and not one.whole]
            if victim.whole and surplus:
                others = [one for one in eviction.victims if one is not victim and one not in surplus]
                found = self._minimize([*surplus, *others])
                if found is not None:
                    return self._prefer_surplus(found)
        return eviction

    def _is_hopeless(self, victims: Sequence[Victim]) -> bool:
        """Whether all of these few victims together do not suffice, although the rules allow to take them all."""
        if not 1 < len(victims) <= _MAX_SINGLE_TRIALS or len(self._legal(victims)) < len(victims):
            return False
        return self._prove(victims) is None

    def _sets(self, victims: Sequence[Victim]) -> Iterator[list[Victim]]:
        """Sets that the rules allow: the cheapest victims, more and more of them; those of the nearest queues first;
        those on the same nodes; of few victims all combinations."""
        for count in _doubling(len(victims)):
            yield (legal := self._legal(victims[:count]))
        if len(legal) == len(victims):
            return
        yield self._legal(sorted(victims, key=lambda victim: -self._rules.closeness(victim.taking)))
        yield from self._sets_by_node(victims)
        if len(victims) <= _MAX_COMBINED:
            for count in range(2, len(victims) + 1):
                yield from map(list, combinations(victims, count))

    def _legal(self, victims: Iterable[Victim]) -> list[Victim]:
        """The victims that may go together, the first ones first."""
        taken = Taken()
        return [victim for victim in victims if self._rules.allow_one_more(taken, victim.taking)]

    def _sets_by_node(self, victims: Sequence[Victim]) -> Iterator[list[Victim]]:
        """The victims of one node after the other, those of the nodes with the fewest first."""
        usage = self._state.cluster.usage
        by_node: dict[str, list[int]] = {}
        for number, victim in enumerate(victims):
            for node in {usage[uid].node for uid in victim.uids if uid in usage}:
                by_node.setdefault(node, []).append(number)
        nodes = sorted(by_node, key=lambda node: (len(by_node[node]), by_node[node]))[:_MAX_SINGLE_TRIALS]
        for first in range(len(nodes)):
            order = [number for node in (*nodes[first:], *nodes[:first]) for number in by_node[node]]
            yield self._legal([victims[number] for number in dict.fromkeys(order)])

    def _prove(self, victims: Sequence[Victim]) -> Eviction | None:
        """The eviction of these victims, if the rules allow it and the bid is placeable without them."""
        if not self._rules.allow(victim.taking for victim in victims):
            return None
        placement = _place_without(self._state, self._bid, {uid for victim in victims for uid in victim.uids})
        return Eviction(tuple(victims), placement) if placement is not None else None

    def _minimize(self, victims: Sequence[Victim]) -> Eviction | None:
        """Spares victims, the most expensive first, as long as the bid stays placeable; None if it never is."""
        if not victims or not self._rules.allow(victim.taking for victim in victims):
            return None
        state = self._state
        with state.cluster.trial():
            trial = _VictimTrial(state, self._bid, self._rules, victims)
            if trial.placement is None:
                return None
            undecided = _halves(range(len(victims)))
            end = state.work + _MAX_WORK + 8 * len(victims)
            for _ in range(_MAX_PROOFS):
                if not undecided or state.work > end:
                    break
                batch = undecided.pop()
                if not trial.spare(batch) and len(batch) > 1:
                    undecided += _halves(batch)
            while undecided and (aside := trial.bystanders()) and trial.spare(aside):
                pass
            while len(trial.victims) <= _THOROUGHLY and any(trial.spare([n]) for n in sorted(trial.victims)[::-1]):
                pass
            return Eviction(tuple(trial.victims.values()), trial.placement)


def _doubling(most: int) -> Iterator[int]:
    """16, 32, 64 and so on, and at last the greatest number."""
    count = _FIRST_PREFIX
    while count < most:
        yield count
        count *= 2
    yield most


def _halves(batch: range) -> list[range]:
    """Both halves; the more expensive one is last, and so the next one tried."""
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]]


class _VictimTrial:
    """The cluster without some victims (within the caller's trial), and the placement of the bid on it."""

    def __init__(self, state: State, bid: Bid, rules: SharingRules, victims: Sequence[Victim]) -> None:
        self.victims = dict(enumerate(victims))
        self._cluster, self._bid, self._rules = state.cluster, bid, rules
        # A surplus member is also a pod of its whole gang: it is back only when both victims are spared.
        self._counts = Counter(uid for victim in victims for uid in victim.uids)
        usage = state.cluster.usage
        self._usage = {uid: usage[uid] for uid in self._counts if uid in usage}
        for uid in self._usage:
            state.cluster.forget(uid)
        self.placement = self._place()

    def spare(self, numbers: Sequence[int]) -> bool:
        """Spares some victims, all or none of them, if the rules allow the rest and the bid stays placeable."""
        chosen = set(numbers)
        if not self._rules.allow(victim.taking for number, victim in self.victims.items() if number not in chosen):
            return False
        uids = [uid for number in numbers for uid in self.victims[number].uids]
        self._counts.subtract(uids)
        with self._cluster.trial() as trial:
            for uid in dict.fromkeys(uids):
                if not self._counts[uid] and uid in self._usage:
                    pod, node, devices, _ = self._usage[uid]
                    self._cluster.add(pod, node, devices)
            placement = self._place()
            if placement is None:
                self._counts.update(uids)
                return False
            trial.keep()
        for number in numbers:
            del self.victims[number]
        self.placement = placement
        return True

    def bystanders(self) -> list[int]:
        """The victims without a pod on a node of the placement."""
        used = {slot.node for _, slot in self.placement or ()}
        usage = self._usage
        return [
            number
            for number, victim in self.victims.items()
            if not any(uid in usage and usage[uid].node in used for uid in victim.uids)
        ]

    def _place(self) -> Placement | None:
        with self._cluster.trial():
            return place_gang(self._cluster, self._bid)


def refused_evictions(state: State, bid: Bid) -> Refusal | None:
    """The refused evictions on the nodes where the bid would be placed without those pods."""
    refused = state.ledger.refused_deletes
    placement = _place_without(state, bid, leaving_pods(state) | refused) if refused else None
    return refused_on(state, {slot.node for _, slot in placement or ()})


def refused_on(state: State, nodes: set[str]) -> Refusal | None:
    """The number of refused evictions on these nodes, as a refusal; None without any."""
    stay = sum(state.pods[uid].node in nodes for uid in state.ledger.refused_deletes) if nodes else 0
    return Refusal(Reason.EVICTION_REFUSED, short_by=stay) if stay else None


def leaving_pods(state: State) -> set[str]:
    """Pods that are being deleted already."""
    return {uid for uid, pod in state.pods.items() if pod.live and pod.deleting} | state.ledger.deleting


def _place_without(state: State, bid: Bid, leaving: set[str]) -> Placement | None:
    """The placement of the bid once these pods are gone; None if there are none or it does not fit."""
    if not leaving:
        return None
    with state.cluster.trial():
        for uid in leaving:
            state.cluster.forget(uid)
        return place_gang(state.cluster, bid)


def _idle(state: State) -> Iterator[str]:
    """Slots that are reserved for members without pods, by a nomination or by a drain target: nothing runs there. The
    slots of lost members are different, because their gang runs."""
    for record in state.records.values():
        if record.key not in state.broken:
            yield from (*record.reserved, *record.unplaced)
