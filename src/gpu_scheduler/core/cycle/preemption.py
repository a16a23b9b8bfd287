"""Preemption and reclaim: the cheapest set of victims, proved by a placement before any pod is evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.model import Pod
from gpu_scheduler.core.placement.domains import Bid, Placement
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.reasons import Reason, Refusal
from gpu_scheduler.core.state import State

_MAX_SINGLE_TRIALS = 64
"""How many victims are tried alone before combinations are."""

_MAX_WORK = 20_000
"""How many steps the trials of single victims may take, and, beside eight for each victim, those that spare victims."""

_MAX_PROOFS = 256
"""How many placements are computed to spare victims; after that, only victims outside the placement are spared."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Pods that are evicted together: one surplus member, or all live members of a gang.

    `refused` means that the eviction of a member of the gang is refused already.
    """

    record: GangRecord
    pods: tuple[Pod, ...]
    whole: bool
    cause: DeleteCause
    refused: bool = False

    @property
    def rank(self) -> tuple[float, ...]:
        """The sort key of a victim, by `VICTIM_ORDER`."""
        return tuple([rule(self) for rule in VICTIM_ORDER])

    @property
    def uids(self) -> Iterator[str]:
        """The uids that the eviction frees: the pods and, with a whole gang, its reserved slots."""
        yield from (pod.uid for pod in self.pods)
        if self.whole:
            yield from self.record.reserved


# -- the order of victims: the first rule that tells two victims apart decides, the smaller value is evicted first

VictimRule = Callable[[Victim], float]


def evictable_first(victim: Victim) -> float:
    """Gangs whose eviction is refused already come last."""
    return victim.refused


def lowest_priority(victim: Victim) -> float:
    """Then gangs of lower priority first."""
    return victim.record.priority


def surplus_first(victim: Victim) -> float:
    """Then members beyond a minimum before whole gangs."""
    return victim.whole


def fewest_pods(victim: Victim) -> float:
    """Then the victims with fewer pods first."""
    return len(victim.pods)


def youngest(victim: Victim) -> float:
    """Then the gang that was created last."""
    return -victim.record.gang.created if victim.record.gang is not None else -0.0


VICTIM_ORDER: tuple[VictimRule, ...] = (evictable_first, lowest_priority, surplus_first, fewest_pods, youngest)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A set of victims, and the placement that proves that their eviction suffices."""

    victims: tuple[Victim, ...]
    placement: Placement

    @property
    def pods(self) -> dict[str, tuple[Pod, DeleteCause]]:
        """The pods to evict by uid, each once, with the cause."""
        return {pod.uid: (pod, victim.cause) for victim in self.victims for pod in victim.pods}


def find_victims(state: State, record: GangRecord, bid: Bid) -> Eviction | None:
    """The cheapest victims whose eviction makes the bid placeable; None if all victims together do not."""
    if not record.preempts:
        return None
    victims = sorted(_candidates(state, record, bid), key=lambda victim: victim.rank)
    if not victims or _place_without(state, bid, _leaving(state)) is not None:
        return None
    end = state.work + _MAX_WORK
    for victim in victims[:_MAX_SINGLE_TRIALS]:
        if state.work > end:
            break
        placement = _prove(state, bid, victim)
        if placement is not None:
            return Eviction((victim,), placement)
    if len(victims) == 1:
        return None
    return _minimize(state, bid, victims)


def _minimize(state: State, bid: Bid, victims: Sequence[Victim]) -> Eviction | None:
    """Spares victims, the most expensive first, as long as the bid stays placeable; None if it never is."""
    with state.cluster.trial():
        trial = _VictimTrial(state, bid, victims)
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
        return Eviction(tuple(trial.victims.values()), trial.placement)


def _halves(batch: range) -> list[range]:
    """Both halves; the more expensive one is last, and so the next one tried."""
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]]


class _VictimTrial:
    """The cluster without some victims (within the caller's trial), and the placement of the bid on it."""

    def __init__(self, state: State, bid: Bid, victims: Sequence[Victim]) -> None:
        self.victims = dict(enumerate(victims))
        self._cluster, self._bid = state.cluster, bid
        # A surplus member is also a pod of its whole gang: it is back only when both victims are spared.
        self._counts = Counter(uid for victim in victims for uid in victim.uids)
        usage = state.cluster.usage
        self._usage = {uid: usage[uid] for uid in self._counts if uid in usage}
        for uid in self._usage:
            state.cluster.forget(uid)
        self.placement = self._place()

    def spare(self, numbers: Sequence[int]) -> bool:
        """Spares some victims, all or none of them, if the bid stays placeable."""
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


def _prove(state: State, bid: Bid, victim: Victim) -> Placement | None:
    """The placement of the bid without the victim, computed in a trial."""
    with state.cluster.trial():
        for uid in victim.uids:
            state.cluster.forget(uid)
        return place_gang(state.cluster, bid)


def refused_evictions(state: State, bid: Bid) -> Refusal | None:
    """The refused evictions on the nodes where the bid would be placed without those pods."""
    refused = state.ledger.refused_deletes
    placement = _place_without(state, bid, _leaving(state) | refused) if refused else None
    return refused_on(state, {slot.node for _, slot in placement or ()})


def refused_on(state: State, nodes: set[str]) -> Refusal | None:
    """The number of refused evictions on these nodes, as a refusal; None without any."""
    stay = sum(state.pods[uid].node in nodes for uid in state.ledger.refused_deletes) if nodes else 0
    return Refusal(Reason.EVICTION_REFUSED, short_by=stay) if stay else None


def _leaving(state: State) -> set[str]:
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


def _candidates(state: State, record: GangRecord, bid: Bid) -> Iterator[Victim]:
    """The possible victims: gangs of lower priority and, for a queue within its quota, what other queues borrowed."""
    queue = state.queue_of(record)
    wanted = state.quota.charge_of_shapes(bid.shapes)
    entitled = state.quota.within_quota(queue, wanted)
    if not entitled and not any(priority < record.priority for priority in state.live_priorities):
        return
    lower_pods: list[str] = []
    borrowed: list[Victim] = []
    for other in state.records.values():
        lower = other.priority < record.priority
        equal = entitled and other.priority <= record.priority and state.queue_of(other) != queue
        if other is record or not (lower or equal):
            continue
        state.cluster.work += 1
        theirs = state.facts_of(other)
        if not theirs.live or theirs.in_flight or theirs.evicting:
            continue
        if lower:
            yield from _victims_of(state, other, theirs, DeleteCause.PREEMPTED)
            lower_pods += [*(pod.uid for pod in theirs.live), *other.reserved, *other.unplaced]
        else:
            borrowed += _victims_of(state, other, theirs, DeleteCause.RECLAIMED)
    if borrowed:
        yield from _reclaimable(state, borrowed, {*lower_pods, *_leaving(state), *state.quarantined, *_idle(state)})


def _idle(state: State) -> Iterator[str]:
    """Slots that are reserved for members without pods, by a nomination or by a drain target: nothing runs there. The
    slots of lost members are different, because their gang runs."""
    for record in state.records.values():
        if record.key not in state.broken:
            yield from (*record.reserved, *record.unplaced)


def _reclaimable(state: State, victims: list[Victim], given_back: set[str]) -> Iterator[Victim]:
    """The victims that can all be evicted with their queues still above quota, in addition to what the queues have
    given back or may have to: pods that are leaving, pods of lower priority, and slots on which nothing runs."""
    quota = state.quota
    given = quota.charges_of(given_back)
    for victim in sorted(victims, key=lambda v: v.rank):
        kept = victim.record.unplaced if victim.whole else ()
        taken = quota.charges_of(uid for uid in (*victim.uids, *kept) if uid not in given_back)
        if taken and all(quota.stays_above_quota(queue, taken[queue], given.get(queue, {})) for queue in taken):
            for queue, charges in taken.items():
                given.setdefault(queue, Counter()).update(charges)
            yield victim


def _victims_of(state: State, record: GangRecord, facts: GangFacts, cause: DeleteCause) -> Iterator[Victim]:
    """The victims of one gang: its surplus members one by one, and all its pods without an open delete together."""
    evictable = [pod for pod in facts.live if pod.uid not in state.ledger.deletes]
    refused = len(evictable) < len(facts.live)
    spare = max(0, facts.have - facts.minimum)
    by_role = {role.name: facts.have_by_role.get(role.name, 0) - role.minimum for role in facts.roles}
    if len(evictable) > 1 and not refused:
        for pod in sorted(evictable, key=lambda p: (p.index, p.created, p.name), reverse=True):
            if spare > 0 and by_role.get(pod.role, 1) > 0:
                spare -= 1
                by_role[pod.role] = by_role.get(pod.role, 2) - 1
                yield Victim(record, (pod,), False, cause)
    if evictable:
        yield Victim(record, tuple(evictable), True, cause, refused)
