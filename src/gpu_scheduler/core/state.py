"""Everything the engine knows, and the few ways to change it that keep its parts in step."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from gpu_scheduler.base import backoff
from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.topology import DEFAULT_LEVELS, Levels
from gpu_scheduler.core.cycle.ledger import Ledger
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord, collect_facts
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, Slot
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.queueing.queue import GangQueue
from gpu_scheduler.core.queueing.quota import QuotaTracker
from gpu_scheduler.core.reasons import Unplaceable, Wake

LONE_POD = "pod"
"""The dialect of a pod that names no gang: it is a gang of one."""


@dataclass(frozen=True, slots=True)
class Config:
    """What an operator may set. Times are in seconds."""

    levels: Levels = DEFAULT_LEVELS
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu")
    gangs: bool = True
    hold: float = 300.0
    reserve: float = 300.0
    drain_after: float = 300.0
    nominate: float = 600.0
    refused_for: float = 60.0
    quarantine: float = 30.0
    retry: float = 1.0
    longest_back_off: float = 60.0
    max_open_binds: int = 2000
    max_binds_at_once: int = 500
    max_open_commits: int = 500


class State:
    """The cluster, the gangs, the queues and the open decisions, as far as events have told."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.cluster = Cluster(config.levels)
        # The same nodes with nothing but what never ends on them: what could ever fit.
        self.empty = Cluster(config.levels)
        self.empty_version = 0
        self.pods: dict[str, Pod] = {}
        self.records: dict[GangKey, GangRecord] = {}
        self.queue = GangQueue()
        self.quota = QuotaTracker(config.gpu_resources)
        self.ledger = Ledger()
        self.leading = False
        self.dirty: dict[GangKey, None] = {}
        self.changes = Wake.NOTHING
        self.quarantined: dict[str, float] = {}
        self.broken: dict[GangKey, None] = {}
        self.nominated: dict[GangKey, None] = {}
        # Gangs that an earlier leader nominated: whether it came to evict for them is not known yet.
        self.inherited_nominations: dict[GangKey, None] = {}
        # Gangs that an earlier leader admitted: their slots have to be kept anew.
        self.reservations_to_renew: dict[GangKey, None] = {}
        self.target: GangKey | None = None
        self.target_version: tuple[int, int] | None = None
        # Whether nodes have ceased to be drained since the queue was last asked who is first.
        self.drain_ended = False
        self.live_priorities: dict[int, int] = {}
        # The lowest priority of gangs that can be evicted since a moment ago: to whom they give way has to look again.
        self.new_victim_priority: int | None = None
        self.empty_fits: dict[Hashable, tuple[object, bool]] = {}
        # When gangs that are gone may be tried again, and how often they failed.
        self._backoffs: dict[GangKey, tuple[float, int]] = {}
        self._timers: list[tuple[float, GangKey]] = []
        self._pending_timers: set[tuple[float, GangKey]] = set()
        self._totals: tuple[int, dict[str, int]] = (-1, {})

    # -- gangs

    def key_of(self, pod: Pod) -> GangKey:
        """The gang a pod belongs to; a gang of one for a pod without, and for every pod when gangs are off."""
        if pod.gang is not None and self.config.gangs and pod.gang.namespace == pod.namespace:
            return pod.gang
        return GangKey(LONE_POD, pod.namespace, pod.uid)

    def record_of(self, key: GangKey) -> GangRecord:
        """A gang's record, made when first asked for."""
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = GangRecord(key)
            record.not_before, record.failures = self._backoffs.pop(key, (0.0, 0))
        return record

    def join(self, pod: Pod) -> GangRecord:
        """Enters a pod into its gang."""
        record = self.record_of(self.key_of(pod))
        if record.gang is None and record.key.dialect == LONE_POD:
            record.gang = Gang(record.key, queue=pod.queue, priority=pod.priority, created=pod.created)
        record.members[pod.uid] = pod
        self.dirty[record.key] = None
        return record

    def drop_if_empty(self, record: GangRecord) -> bool:
        """Forgets a gang of which nothing is left."""
        if record.members or (record.gang is not None and record.key.dialect != LONE_POD):
            return False
        self.queue.remove(record.key)
        self.release_slots(record)
        self.track_live_priority(record, False)
        self._remember_backoff(record)
        self.records.pop(record.key, None)
        self.broken.pop(record.key, None)
        self.nominated.pop(record.key, None)
        if self.target == record.key:
            self.clear_target(record)
        return True

    def facts_of(self, record: GangRecord) -> GangFacts:
        """A gang's members, sorted."""
        return collect_facts(record, self.ledger.committed, self.ledger.deleting)

    def stop_counting_on_delete(self, pod: Pod) -> None:
        """A pod's delete is refused again and again: its gang runs on, and whoever waits for it looks for others."""
        self.ledger.deleting.discard(pod.uid)
        self.changes |= Wake.FREED
        self.dirty[self.key_of(pod)] = None
        self.dirty |= self.nominated

    def back_off(self, record: GangRecord, now: float) -> None:
        """Lets a gang that failed wait before its next try, longer each time unless the last one is long ago."""
        if now < record.not_before:
            return  # another member of the same try
        if now - record.not_before > 5 * self.config.longest_back_off:
            record.failures = 0
        record.failures += 1
        record.not_before = now + backoff.exponential(record.failures, self.config.longest_back_off)
        self.schedule_timer(record.not_before, record.key)

    def _remember_backoff(self, record: GangRecord) -> None:
        """A gang without an object is gone for a moment when all its pods are made again: it must not start afresh."""
        if record.failures and record.key.dialect != LONE_POD:
            long_ago = record.not_before - 5 * self.config.longest_back_off
            self._backoffs = {key: kept for key, kept in self._backoffs.items() if kept[0] > long_ago}
            self._backoffs[record.key] = (record.not_before, record.failures)

    def track_live_priority(self, record: GangRecord, live: bool) -> None:
        """Keeps the table of priorities at which gangs run, so that a hopeless preemption costs nothing.

        A gang with binds on their way is not evicted: it counts once they have been seen.
        """
        priority = record.priority if live else None
        if priority == record.live_priority:
            return
        if priority is not None:
            self.note_new_victim(priority)
        for changed, step in ((record.live_priority, -1), (priority, +1)):
            if changed is not None:
                self.live_priorities[changed] = self.live_priorities.get(changed, 0) + step
                if not self.live_priorities[changed]:
                    del self.live_priorities[changed]
        record.live_priority = priority

    def could_start(self, key: GangKey, refused: Unplaceable) -> bool:
        """Whether a refused gang could start now: there is enough for it, or someone to evict. What is kept for it does
        not count as free."""
        record = self.records[key]
        if record.reserved or any(running < record.priority for running in self.live_priorities):
            return True
        if self.quota.may_reclaim(self.queue_of(record)):
            return True
        return all(capacity_of(self.cluster, shape).total >= wanted for shape, wanted in refused.short)

    def note_new_victim(self, priority: int) -> None:
        """A gang of this priority can be evicted from now on."""
        known = self.new_victim_priority
        self.new_victim_priority = priority if known is None else min(priority, known)

    def could_evict_new_victims(self, key: GangKey, _: Unplaceable) -> bool:
        """Whether one of those who can be evicted only now might make room for a gang."""
        record = self.records[key]
        if self.new_victim_priority is None:
            return False
        return self.new_victim_priority < record.priority or self.quota.may_reclaim(self.queue_of(record))

    def queue_of(self, record: GangRecord) -> str:
        """The queue a gang is charged to."""
        return record.gang.queue if record.gang is not None else ""

    def schedule_timer(self, when: float, key: GangKey) -> None:
        """Looks at a gang again at a time; once, however often it is asked for."""
        if (when, key) not in self._pending_timers:
            self._pending_timers.add((when, key))
            heapq.heappush(self._timers, (when, key))

    def fire_timers(self, now: float) -> None:
        """Marks the gangs whose time has come."""
        while self._timers and self._timers[0][0] <= now:
            self._pending_timers.discard(timer := heapq.heappop(self._timers))
            if (key := timer[1]) in self.records:
                self.dirty[key] = None

    def next_timer(self) -> float | None:
        """When something is next due, or None."""
        times = [*self.quarantined.values(), *self.ledger.retries.values()]
        if self._timers:
            times.append(self._timers[0][0])
        return min(times, default=None)

    # -- what pods use

    def occupy(self, pod: Pod, node: str, devices: tuple[int, ...] | None) -> None:
        """Counts a pod on a node, as seen or as decided; where it was counted before is room now."""
        before = self.cluster.usage.get(pod.uid)
        self.cluster.add(pod, node, devices)
        if before is not None and before.node != node:
            self.changes |= Wake.FREED
        if pod.ours and not pod.permanent:
            self.quota.charge((pod,), self.queue_of(self.record_of(self.key_of(pod))))

    def vacate(self, uid: str) -> None:
        """Frees what a pod used."""
        if self.cluster.forget(uid):
            self.changes |= Wake.FREED
        self.quota.refund(uid)

    def reserve_slots(self, record: GangRecord, pods: Iterable[tuple[Pod, Slot]]) -> None:
        """Keeps slots for members that are not there yet; `release_slots` gives them up."""
        kept = list(pods)
        for pod, slot in kept:
            self.cluster.add(pod, slot.node, slot.devices)
        self.mark_reserved(record, kept)

    def mark_reserved(self, record: GangRecord, pods: Iterable[tuple[Pod, Slot]]) -> None:
        """Notes that slots which are counted already are kept for a gang."""
        absent = [pod for pod, _ in pods]
        self.quota.charge(absent, self.queue_of(record))
        record.reserved += [pod.uid for pod in absent]

    def reserved_slots(self, record: GangRecord) -> list[tuple[Pod, Slot]]:
        """The slots that are kept for a gang now, each with who keeps it."""
        kept = [self.cluster.usage[uid] for uid in record.reserved]
        return [(usage.pod, Slot(usage.node, usage.devices, usage.pod.role)) for usage in kept]

    def release_slots(self, record: GangRecord) -> None:
        """Gives up the slots kept for a gang's absent members."""
        for uid in record.reserved:
            self.cluster.forget(uid)
            self.quota.refund(uid)
        record.reserved = []

    def clear_target(self, record: GangRecord) -> None:
        """Stops draining nodes for a gang."""
        if record.notes.target:
            record.update_notes(target=())
            self.changes |= Wake.FREED
        if self.target == record.key:
            self.target, self.drain_ended = None, True

    # -- nodes

    def put_node(self, node: Node) -> bool:
        """Adds or updates a node everywhere; False when nothing changed."""
        changed = self.cluster.put_node(node)
        if changed:
            self.empty.put_node(node)
        return changed

    def remove_node(self, name: str) -> None:
        """Takes a node out everywhere."""
        self.cluster.remove_node(name)
        self.empty.remove_node(name)

    def totals(self) -> Mapping[str, int]:
        """What the whole cluster has of every resource."""
        version, totals = self._totals
        if version != self.cluster.table.version:
            sums = self.cluster.allocatable.sum(axis=1)
            totals = {name: int(sums[row]) for name, row in self.cluster.row_of.items()}
            self._totals = (self.cluster.table.version, totals)
        return totals

    def share(self, queue: str) -> float:
        """How much of the cluster a queue uses, for its weight."""
        return self.quota.share(queue, self.totals())
