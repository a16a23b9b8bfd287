"""Victims: which pods may be evicted for a gang, by the rules of its queue, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpu_scheduler.core.events import DeleteCause
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord
from gpu_scheduler.core.model import MILLI, AcrossQueues, Pod, Shape
from gpu_scheduler.core.queueing.sharing import SharingRules, Taking
from gpu_scheduler.core.state import State


@dataclass(frozen=True, slots=True)
class Victim:
    """Pods that are evicted together: one surplus member, or all live members of a gang.

    `refused` means that the eviction of a member of the gang is refused already; `straddles`, that its queue would fall
    below its quota. `lost_work` is in GPU-seconds.
    """

    record: GangRecord
    pods: tuple[Pod, ...]
    whole: bool
    cause: DeleteCause
    taking: Taking
    own_queue: bool
    refused: bool = False
    straddles: bool = False
    lost_work: float = 0.0
    rank: tuple[float, ...] = field(init=False, compare=False)
    """The sort key of a victim, by `VICTIM_ORDER`."""
    tier: tuple[float, ...] = field(init=False, compare=False)
    """The first part of the rank. Victims of a later tier are taken only if the earlier tiers do not suffice."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", tuple([rule(self) for rule in VICTIM_ORDER]))
        object.__setattr__(self, "tier", self.rank[:_TIER])

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


def surplus_first(victim: Victim) -> float:
    """Then members beyond a minimum before whole gangs."""
    return victim.whole


def borrowers_first(victim: Victim) -> float:
    """Then gangs of other queues before those of the same queue."""
    return victim.own_queue


def within_borrowed_first(victim: Victim) -> float:
    """Then victims that leave their queue with its quota."""
    return victim.straddles


def lowest_priority(victim: Victim) -> float:
    """Then gangs of lower priority first."""
    return victim.record.priority


def least_work_lost(victim: Victim) -> float:
    """Then the victims that have used fewer GPU-seconds since their start or their last checkpoint."""
    return victim.lost_work


def fewest_pods(victim: Victim) -> float:
    """Then the victims with fewer pods first."""
    return len(victim.pods)


def youngest(victim: Victim) -> float:
    """Then the gang that was created last."""
    return -victim.record.gang.created if victim.record.gang is not None else -0.0


VICTIM_ORDER: tuple[VictimRule, ...] = (
    evictable_first,
    surplus_first,
    borrowers_first,
    within_borrowed_first,
    lowest_priority,
    least_work_lost,
    fewest_pods,
    youngest,
)
_TIER = VICTIM_ORDER.index(within_borrowed_first) + 1


# -- candidates


def find_candidates(
    state: State, record: GangRecord, now: float, rules: SharingRules | None = None
) -> Iterator[Victim]:
    """The possible victims: gangs of lower priority in the same queue, surplus of equal priority there, and gangs of
    other queues. `SharingRules` decide which of them may go together."""
    queue = state.queue_of(record)
    for other in state.records.values():
        if other is record or other.live_priority is None or (other.gang is not None and not other.gang.preemptible):
            continue
        own = state.queue_of(other) == queue
        if own:
            taken = _within_queue(state, record, other)
        else:
            taken = _across_queues(state, record, other, now)
            if taken is DeleteCause.RECLAIMED and rules is not None and not rules.may_borrow(state.queue_of(other)):
                continue
        if taken is None:
            continue
        state.cluster.work += 1
        theirs = state.facts_of(other)
        if theirs.live and not theirs.in_flight and not theirs.evicting:
            victims = _victims_of(state, other, theirs, taken, now, rules)
            yield from (victim for victim in victims if not victim.whole or not own or other.priority < record.priority)


def across_queues(state: State, queue: str) -> AcrossQueues:
    """Which gangs of other queues the gangs of a queue may evict."""
    found = state.quota.queue(queue)
    across = found.across if found is not None else AcrossQueues.FAIR
    return AcrossQueues.ANY if across is AcrossQueues.FAIR and state.config.cluster_priority else across


def _within_queue(state: State, record: GangRecord, other: GangRecord) -> DeleteCause | None:
    """The cause of an eviction within one queue; None if the queue or the priorities forbid it."""
    queue = state.quota.queue(state.queue_of(record))
    allowed = queue is None or queue.preempts_within
    return DeleteCause.PREEMPTED if allowed and other.priority <= record.priority else None


def _across_queues(state: State, record: GangRecord, other: GangRecord, now: float) -> DeleteCause | None:
    """The cause of an eviction from another queue; None if it is not possible whatever the queues use.

    A gang that the other one may evict by its priority does not reclaim from it: they would evict each other in turn.
    """
    queue, theirs = state.queue_of(record), state.queue_of(other)
    across = across_queues(state, queue)
    if across is AcrossQueues.NEVER:
        return None
    if across is AcrossQueues.ANY and other.priority < record.priority:
        return DeleteCause.PREEMPTED
    if other.priority > record.priority and across_queues(state, theirs) is AcrossQueues.ANY:
        return None
    _, below, common = state.quota.apart(queue, theirs)
    if any((found := state.quota.queue(name)) is not None and not found.reclaimable for name in below):
        return None
    return DeleteCause.RECLAIMED if not is_too_young(state, other, common, now) else None


def is_too_young(state: State, record: GangRecord, common: str | None, now: float) -> bool:
    """Whether a gang has not run for long enough to be reclaimed from; it is looked at again when it has."""
    upper = state.quota.queue(common) if common is not None else None
    least = upper.min_runtime if upper is not None else state.config.min_runtime
    if least <= 0:
        return False
    started = min((pod.started for pod in record.members.values() if pod.live and pod.started is not None), default=now)
    if now >= started + least:
        return False
    record.evictable_at = started + least
    state.schedule_timer(record.evictable_at, record.key)
    return True


def _victims_of(
    state: State, record: GangRecord, facts: GangFacts, cause: DeleteCause, now: float, rules: SharingRules | None
) -> Iterator[Victim]:
    """The victims of one gang: its surplus members one by one, and all its pods without an open delete together."""
    evictable = [pod for pod in facts.live if pod.uid not in state.ledger.deletes]
    refused = len(evictable) < len(facts.live)
    queue, own = state.queue_of(record), cause is DeleteCause.PREEMPTED

    def victim(pods: tuple[Pod, ...], whole: bool) -> Victim:
        uids = [pod.uid for pod in pods]
        parts = [tuple(uids)]
        if whole:
            surplus = {pod.uid for pod in surplus_members(facts, evictable)}
            rest = [uid for uid in uids if uid not in surplus]
            parts = [tuple(surplus), (*rest, *record.reserved, *record.unplaced)]
        taking = Taking(tuple(parts), queue, not own)
        straddles = rules is not None and rules.straddle(taking)
        return Victim(record, pods, whole, cause, taking, own, refused, straddles, lost_work_of(record, pods, now))

    if len(evictable) > 1 and not refused:
        yield from (victim((pod,), False) for pod in surplus_members(facts, evictable))
    if evictable:
        yield victim(tuple(evictable), True)


def surplus_members(facts: GangFacts, pods: Sequence[Pod]) -> Iterator[Pod]:
    """The pods that a gang can do without: beyond its minimum, that of each role, and the members that it expects."""
    spare = facts.have - facts.minimum
    if spare <= 0 or not facts.exists:  # the minimum of a gang whose object is gone is not known
        return
    least = {role.name: role.minimum for role in facts.roles}
    for expected in facts.expected:
        least[expected.role] = max(expected.count, least.get(expected.role, 0))
    left = {role: facts.have_by_role.get(role, 0) - count for role, count in least.items()}
    others = 0 if facts.expected else spare
    for pod in sorted(pods, key=lambda p: (p.index, p.created, p.name), reverse=True):
        if spare > 0 and left.get(pod.role, others) > 0:
            spare -= 1
            left[pod.role] = left.get(pod.role, others) - 1
            yield pod


def gpus_of(shape: Shape) -> float:
    """The GPUs of a shape, with those of its map."""
    if shape.device_map is not None:
        return len(shape.device_map.devices)
    return shape.gpus + shape.gpu_milli / MILLI


def lost_work_of(record: GangRecord, pods: Iterable[Pod], now: float) -> float:
    """The GPU-seconds since the start of pods, or since the last checkpoint of their gang."""
    saved = record.gang.checkpointed_at if record.gang is not None else None
    lost = 0.0
    for pod in pods:
        since = now if pod.started is None else pod.started
        since = max(since, saved) if saved is not None else since
        lost += gpus_of(pod.shape) * max(0.0, now - since)
    return lost
