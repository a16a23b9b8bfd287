"""The smallest set of victims, proved by a placement before anyone is evicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpu_scheduler.core.domains import Bid, Placement
from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import Facts, GangRecord
from gpu_scheduler.core.model import Pod, Shape
from gpu_scheduler.core.place import place_gang
from gpu_scheduler.core.state import State

_SINGLES = 64
"""How many victims are tried alone before combinations are."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Pods that go together: one surplus member, or everything that a gang still runs."""

    record: GangRecord
    pods: tuple[Pod, ...]
    whole: bool
    cause: DeleteCause

    @property
    def rank(self) -> tuple[int, int, int, float]:
        """Cheapest first: low priority, surplus before whole gangs, few pods, young."""
        created = self.record.gang.created if self.record.gang is not None else 0.0
        return self.record.priority, int(self.whole), len(self.pods), -created


@dataclass(frozen=True, slots=True)
class Eviction:
    """Victims whose going makes room, and the placement that proves it."""

    victims: tuple[Victim, ...]
    placement: Placement

    @property
    def pods(self) -> dict[str, tuple[Pod, DeleteCause]]:
        """Everyone who has to go, once."""
        return {pod.uid: (pod, victim.cause) for victim in self.victims for pod in victim.pods}


def find_victims(state: State, record: GangRecord, bid: Bid) -> Eviction | None:
    """The cheapest victims that make the bid placeable; None when even all of them would not."""
    if not record.preempts:
        return None
    victims = sorted(_candidates(state, record, bid), key=lambda victim: victim.rank)
    if not victims or _is_being_freed(state, bid):
        return None
    for victim in victims[:_SINGLES]:
        placement = _prove(state, bid, (victim,))
        if placement is not None:
            return Eviction((victim,), placement)
    if len(victims) == 1 or _prove(state, bid, victims) is None:
        return None
    return _spare_most(state, bid, victims)


def _spare_most(state: State, bid: Bid, victims: Sequence[Victim]) -> Eviction:
    """Lets victims off, the dearest first, as long as the placement still succeeds without them going."""
    chosen = list(victims)
    for victim in sorted(victims, key=lambda v: v.rank, reverse=True):
        without = [v for v in chosen if v is not victim]
        if without and _prove(state, bid, without) is not None:
            chosen = without
    placement = _prove(state, bid, chosen)
    assert placement is not None, "each step was proved"
    return Eviction(tuple(chosen), placement)


def _prove(state: State, bid: Bid, victims: Iterable[Victim]) -> Placement | None:
    """The placement that the bid would get if the victims were gone, found on the cluster and undone again."""
    with state.cluster.trial():
        for victim in victims:
            for pod in victim.pods:
                state.cluster.forget(pod.uid)
            if victim.whole:
                # What is held for its lost members goes with it.
                for uid in victim.record.reserved:
                    state.cluster.forget(uid)
        return place_gang(state.cluster, bid)


def _is_being_freed(state: State, bid: Bid) -> bool:
    """Whether the bid only has to wait for pods that are on their way out already."""
    going = {uid for uid, pod in state.pods.items() if pod.live and pod.deleting} | state.ledger.deletes.keys()
    if not going:
        return False
    with state.cluster.trial():
        for uid in going:
            state.cluster.forget(uid)
        return place_gang(state.cluster, bid) is not None


def _candidates(state: State, record: GangRecord, bid: Bid) -> Iterator[Victim]:
    """Lower priority, and (for a queue that stays within its quota) what other queues borrowed."""
    queue = state.queue_of(record)
    wanted = state.quota.total_charge(pod.shape for group in bid.groups for pod in group.pods)
    entitled = state.quota.within_quota(queue, wanted)
    if not entitled and not any(priority < record.priority for priority in state.live_priorities):
        return
    lent: dict[str, list[Shape]] = {}
    borrowed: list[Victim] = []
    for other in state.records.values():
        lower = other.priority < record.priority
        equal = entitled and other.priority <= record.priority and state.queue_of(other) != queue
        if other is record or not (lower or equal):
            continue
        theirs = state.facts_of(other)
        if not theirs.live or theirs.open or theirs.evicting:
            continue
        if lower:
            yield from _parts(other, theirs, DeleteCause.PREEMPTED)
            lent.setdefault(state.queue_of(other), []).extend(pod.shape for pod in theirs.live)
        else:
            borrowed += _parts(other, theirs, DeleteCause.RECLAIMED)
    yield from _reclaimable(state, borrowed, lent)


def _reclaimable(state: State, victims: list[Victim], given: dict[str, list[Shape]]) -> Iterator[Victim]:
    """Those that can all go, with what is `given` anyway, and not push their queues below what they were granted."""
    for victim in sorted(victims, key=lambda v: v.rank):
        queue = state.queue_of(victim.record)
        shapes = [*given.get(queue, ()), *(pod.shape for pod in victim.pods)]
        if state.quota.stays_above(queue, state.quota.total_charge(shapes)):
            given[queue] = shapes
            yield victim


def _parts(record: GangRecord, facts: Facts, cause: DeleteCause) -> Iterator[Victim]:
    """What can be taken of a gang: its surplus one by one, or the gang as a whole."""
    spare = max(0, facts.have - facts.minimum)
    by_role = {role.name: facts.have_by_role.get(role.name, 0) - role.minimum for role in facts.roles}
    if len(facts.live) > 1:
        for pod in sorted(facts.live, key=lambda p: (p.index, p.created, p.name), reverse=True):
            if spare > 0 and by_role.get(pod.role, 1) > 0:
                spare -= 1
                by_role[pod.role] = by_role.get(pod.role, 2) - 1
                yield Victim(record, (pod,), False, cause)
    yield Victim(record, tuple(facts.live), True, cause)
