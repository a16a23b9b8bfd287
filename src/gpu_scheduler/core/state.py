"""The state of the engine, and the operations that keep its parts consistent."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_scheduler.base import backoff
from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.topology import DEFAULT_LEVELS, Levels
from gpu_scheduler.core.cycle.ledger import Ledger
from gpu_scheduler.core.lifecycle import GangFacts, GangRecord, Setback, collect_facts
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, Slot
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.queueing.budget import CycleBudget
from gpu_scheduler.core.queueing.queue import GangQueue
from gpu_scheduler.core.queueing.quota import QuotaTracker
from gpu_scheduler.core.queueing.sharing import QueueOrder
from gpu_scheduler.core.reasons import Refusal, Unplaceable, Wake

LONE_POD = "pod"
"""The dialect of a pod that belongs to no gang: it is a gang of one."""


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of the engine, named after the keys of the settings file. Durations are in seconds."""

    levels: Levels = DEFAULT_LEVELS
    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu")
    gangs: bool = True
    hold: float = 300.0
    reserve: float = 300.0
    drain_after: float = 300.0
    max_podless_drain: float = 21_600.0
    nominate: float = 600.0
    refused_for: float = 60.0
    quarantine: float = 30.0
    max_grace: float = 3600.0
    retry: float = 1.0
    longest_back_off: float = 60.0
    max_open_binds: int = 2000
    max_binds_at_once: int = 500
    max_open_commits: int = 500
    min_runtime: float = 0.0
    cluster_priority: bool = False
    max_cycle_work: int = 20_000
    max_podless_shapes: int = 32


class State:
    """The cluster, the gangs, the queues and the open decisions, as derived from events."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.cluster = Cluster(config.levels)
        # The same nodes with only permanent pods on them: what can fit at all.
        self.empty = Cluster(config.levels, cached_shapes=64)
        self.empty_version = 0
        self.pods: dict[str, Pod] = {}
        self.records: dict[GangKey, GangRecord] = {}
        self.queue = GangQueue()
        self.budget = CycleBudget(config.max_cycle_work, config.max_podless_shapes)
        # Whether the last cycle ended before every ready gang was tried, and the next one can go on.
        self.unfinished = False
        self.quota = QuotaTracker(config.gpu_resources)
        self.ledger = Ledger()
        self.leading = False
        self.dirty: dict[GangKey, None] = {}
        self.changes = Wake.NOTHING
        self.quarantined: dict[str, float] = {}
        self.broken: dict[GangKey, None] = {}
        self.nominated: dict[GangKey, None] = {}
        # Gangs that an earlier leader nominated: it may not have committed their evictions.
        self.inherited_nominations: dict[GangKey, None] = {}
        # Admitted gangs whose slots have to be reserved again.
        self.reservations_to_renew: dict[GangKey, None] = {}
        self.target: GangKey | None = None
        self.target_version: Hashable = None
        # What its owner needs of the nodes; belongs to cycle/let_in.py.
        self.owner_needs: tuple[Hashable, Any] = (None, None)
        # Whether a drain has ended since the last gang was taken from the queue.
        self.drain_ended = False
        # Queues and namespaces whose groups without pods get no drain target: the last one got nodes and no pods came.
        # True once a reservation was not used: then they get one reservation at a time.
        self.barred_from_drains: dict[tuple[str, str], bool] = {}
        # By queue and namespace, the groups that got slots before their pods; some of these may have expired since.
        self.admitted_groups: dict[tuple[str, str], dict[GangKey, None]] = {}
        self.live_priorities: dict[int, int] = {}
        # The lowest priority of gangs that became evictable: gangs that may preempt them are tried again.
        self.new_victim_priority: int | None = None
        # Gangs with members beyond their minimum, by queue.
        self.surplus_gangs: dict[str, set[GangKey]] = {}
        self._reclaimers: tuple[int, dict[str, bool]] = (-1, {})
        self.empty_fits: dict[Hashable, tuple[object, bool]] = {}
        # The backoff of gangs that are gone: when they may be tried again, and how often they failed.
        self._backoffs: dict[GangKey, tuple[float, int]] = {}
        self._timers: list[tuple[float, GangKey]] = []
        self._pending_timers: set[tuple[float, GangKey]] = set()
        self._totals: tuple[int, dict[str, int]] = (-1, {})

    # -- gangs

    def key_of(self, pod: Pod) -> GangKey:
        """The gang of a pod; a gang of one for a pod without a gang, and for every pod if gangs are disabled."""
        if pod.gang is not None and self.config.gangs and pod.gang.namespace == pod.namespace:
            return pod.gang
        return GangKey(LONE_POD, pod.namespace, pod.uid)

    def record_of(self, key: GangKey) -> GangRecord:
        """The record of a gang, created on first use."""
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = GangRecord(key)
            record.not_before, record.failures = self._backoffs.pop(key, (0.0, 0))
        return record

    def join(self, pod: Pod) -> GangRecord:
        """Adds a pod to its gang."""
        record = self.record_of(self.key_of(pod))
        if record.key.dialect == LONE_POD and (record.gang is None or record.gang.queue != pod.queue):
            record.gang = Gang(record.key, queue=pod.queue, priority=pod.priority, created=pod.created)
        record.members[pod.uid] = pod
        self.dirty[record.key] = None
        return record

    def drop_if_empty(self, record: GangRecord) -> bool:
        """Removes a gang without members and object; False if it has either."""
        if record.members or (record.gang is not None and record.key.dialect != LONE_POD):
            return False
        self.queue.remove(record.key)
        self.release_slots(record)
        self.track_live_priority(record, False)
        self.track_surplus(record, False)
        self._remember_backoff(record)
        self.records.pop(record.key, None)
        self.broken.pop(record.key, None)
        self.nominated.pop(record.key, None)
        if self.target == record.key:
            self.clear_target(record)
        return True

    def facts_of(self, record: GangRecord) -> GangFacts:
        """The facts about a gang's members."""
        return collect_facts(record, self.ledger.committed, self.ledger.deleting)

    def stop_counting_on_delete(self, pod: Pod) -> None:
        """A delete keeps failing: the pod's gang runs on, and gangs that wait for it look for other victims."""
        self.ledger.deleting.discard(pod.uid)
        self.changes |= Wake.FREED
        self.dirty[self.key_of(pod)] = None
        self.dirty |= self.nominated

    def back_off(self, record: GangRecord, now: float, setback: Setback) -> None:
        """Starts the exponential backoff of a gang that failed; one long after the last counts as the first."""
        if now < record.not_before:
            return  # another member of the same attempt
        if now - record.not_before > 5 * self.config.longest_back_off:
            record.failures = 0
        record.failures += 1
        record.setback = setback
        record.not_before = now + backoff.exponential(record.failures, self.config.longest_back_off)
        self.schedule_timer(record.not_before, record.key)

    def _remember_backoff(self, record: GangRecord) -> None:
        """Remembers the backoff of a removed gang: a gang without an object vanishes while its pods are recreated."""
        if record.failures and record.key.dialect != LONE_POD:
            long_ago = record.not_before - 5 * self.config.longest_back_off
            self._backoffs = {key: kept for key, kept in self._backoffs.items() if kept[0] > long_ago}
            self._backoffs[record.key] = (record.not_before, record.failures)

    def track_live_priority(self, record: GangRecord, live: bool) -> None:
        """Updates the table of priorities at which gangs run, so that a hopeless preemption costs nothing.

        A gang with binds in flight is not evicted: it counts once they are observed.
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
        """Whether a refused gang could start now: enough capacity is free for it, slots are reserved for it, or it can
        evict."""
        record = self.records[key]
        if record.reserved or any(running < record.priority for running in self.live_priorities):
            return True
        queue = self.queue_of(record)
        if self.surplus_gangs.get(queue) or self.could_reclaim(queue):
            return True
        return all(capacity_of(self.cluster, shape).total >= wanted for shape, wanted in refused.short)

    def might_start(self, key: GangKey, refused: Unplaceable) -> bool:
        """`could_start` as far as it is known without a look at all nodes for every shape."""
        known = self.cluster.capacity_cache
        return any(shape not in known for shape, _ in refused.short) or self.could_start(key, refused)

    def note_new_victim(self, priority: int) -> None:
        """Notes that a gang of this priority has become evictable."""
        known = self.new_victim_priority
        self.new_victim_priority = priority if known is None else min(priority, known)

    def could_evict_new_victims(self, key: GangKey, _: Unplaceable) -> bool:
        """Whether a gang may preempt one of the gangs that became evictable."""
        record = self.records[key]
        if self.new_victim_priority is None:
            return False
        queue = self.queue_of(record)
        equal = self.new_victim_priority == record.priority and bool(self.surplus_gangs.get(queue))
        return self.new_victim_priority < record.priority or equal or self.could_reclaim(queue)

    def could_reclaim(self, queue: str) -> bool:
        """Whether gangs of a queue may take something from other queues; computed once for each state of the queues."""
        version, known = self._reclaimers
        if version != self.quota.version:
            known = {}
            self._reclaimers = (self.quota.version, known)
        if queue not in known:
            known[queue] = self.quota.could_reclaim(queue, self.totals())
        return known[queue]

    def track_surplus(self, record: GangRecord, surplus: bool) -> None:
        """Updates the gangs with members beyond their minimum, by queue: a waiting minimum may take these back."""
        queue = self.queue_of(record) if surplus else None
        if queue == record.surplus_in:
            return
        if record.surplus_in is not None:
            self.surplus_gangs[record.surplus_in].discard(record.key)
        if queue is not None:
            self.surplus_gangs.setdefault(queue, set()).add(record.key)
            self.note_new_victim(record.priority)
        record.surplus_in = queue

    def queue_of(self, record: GangRecord) -> str:
        """The queue that a gang is charged to: the one that admitted its members, until they have ended.

        A changed queue of its object takes effect after that: no member is charged to a queue that did not admit it.
        """
        return self.quota.queue_of_gang(record.key, record.gang.queue if record.gang is not None else "")

    def has_limits(self, record: GangRecord) -> bool:
        """Whether the queue of a gang can refuse it anything."""
        return self.quota.has_limits(self.queue_of(record)) or (record.gang is not None and not record.gang.preemptible)

    def refuse(self, record: GangRecord, wanted: Mapping[str, int]) -> Refusal | None:
        """Why the queue of a gang may not use `wanted` in addition; None if it may."""
        name, quota = self.queue_of(record), self.quota
        refusal = quota.refuse(name, record.key.namespace, wanted)
        if refusal is not None:
            return refusal
        path = quota.path(name)
        if record.gang is not None and not record.gang.preemptible and not quota.within_quota(path, wanted):
            return quota.refuse_beyond_quota(path, wanted)
        return quota.refuse_kept(name, wanted, self.totals()) if quota.keeps_quota else None

    def schedule_timer(self, when: float, key: GangKey) -> None:
        """Schedules a refresh of a gang at a time; deduplicates equal timers."""
        if (when, key) not in self._pending_timers:
            self._pending_timers.add((when, key))
            heapq.heappush(self._timers, (when, key))

    def fire_timers(self, now: float) -> None:
        """Marks the gangs whose timers are due for a refresh."""
        while self._timers and self._timers[0][0] <= now:
            self._pending_timers.discard(timer := heapq.heappop(self._timers))
            if (key := timer[1]) in self.records:
                self.dirty[key] = None

    def next_timer(self) -> float | None:
        """When the next timer, quarantine end or retry is due, or None."""
        times = [*self.quarantined.values(), *self.ledger.retries.values()]
        if self._timers:
            times.append(self._timers[0][0])
        return min(times, default=None)

    # -- usage of pods

    def occupy(self, pod: Pod, node: str, devices: tuple[int, ...] | None, queue: str | None = None) -> None:
        """Counts a pod on a node, observed or decided; a node on which it was counted before is freed.

        It is charged to the queue that its bind names, and stays there until it ends.
        """
        before = self.cluster.usage.get(pod.uid)
        self.cluster.add(pod, node, devices)
        if before is not None and before.node != node:
            self.changes |= Wake.FREED
        if pod.ours:
            record = self.record_of(self.key_of(pod))
            recorded = queue if queue is not None else pod.charged_queue
            if recorded is not None:
                self.quota.charge((pod,), recorded, record.key)
            else:  # bound by another client
                self.quota.charge((pod,), self.queue_of(record))

    def vacate(self, uid: str) -> None:
        """Frees the usage of a pod."""
        if self.cluster.forget(uid):
            self.changes |= Wake.FREED
        self.quota.refund(uid)

    def reserve_slots(self, record: GangRecord, pods: Iterable[tuple[Pod, Slot]], charged: int | None = None) -> None:
        """Reserves slots for a gang by placeholder pods, and charges so many of them; `release_slots` frees them."""
        kept = list(pods)
        for pod, slot in kept:
            self.cluster.add(pod, slot.node, slot.devices)
        self.mark_reserved(record, kept, charged)

    def mark_reserved(self, record: GangRecord, pods: Iterable[tuple[Pod, Slot]], charged: int | None = None) -> None:
        """Marks slots whose placeholders are counted on the nodes already as reserved for a gang."""
        absent = [pod for pod, _ in pods]
        self.quota.charge(absent[:charged], self.queue_of(record))
        record.reserved += [pod.uid for pod in absent]

    def reserved_slots(self, record: GangRecord) -> list[tuple[Pod, Slot]]:
        """The reserved slots of a gang, each with its placeholder."""
        kept = [self.cluster.usage[uid] for uid in record.reserved]
        return [(usage.pod, Slot(usage.node, usage.devices, usage.pod.role)) for usage in kept]

    def keep_charges(self, record: GangRecord, pods: Sequence[Pod]) -> None:
        """Charges placeholders for which there is no slot; `release_slots` refunds them."""
        self.quota.charge(pods, self.queue_of(record))
        record.unplaced += [pod.uid for pod in pods]

    def release_slots(self, record: GangRecord) -> None:
        """Releases the reserved slots of a gang, and the charges that it keeps."""
        for uid in record.reserved:
            self.cluster.forget(uid)
        for uid in (*record.reserved, *record.unplaced):
            self.quota.refund(uid)
        record.reserved, record.unplaced = [], []

    def clear_target(self, record: GangRecord) -> None:
        """Ends the drain for a gang, and releases what it is charged for."""
        self.release_target_charge(record)
        if record.notes.target:
            record.update_notes(target=(), target_since=None)
            self.changes |= Wake.FREED
        if self.target == record.key:
            self.target, self.drain_ended = None, True

    def charge_target(self, record: GangRecord, amounts: Mapping[str, int]) -> None:
        """Charges a gang for what its drain target is kept for; released with the target, or with its slots."""
        uid = _target_uid(record)
        self.quota.charge_amounts(uid, self.queue_of(record), amounts)
        record.unplaced.append(uid)

    def release_target_charge(self, record: GangRecord) -> None:
        """Releases what a gang is charged for its drain target."""
        if (uid := _target_uid(record)) in record.unplaced:
            record.unplaced.remove(uid)
            self.quota.refund(uid)

    # -- nodes

    def put_node(self, node: Node) -> bool:
        """Adds or updates a node; False when nothing changed."""
        changed = self.cluster.put_node(node)
        if changed:
            self.empty.put_node(node)
        return changed

    def remove_node(self, name: str) -> None:
        """Removes a node."""
        self.cluster.remove_node(name)
        self.empty.remove_node(name)

    @property
    def work(self) -> int:
        """The work that placements took so far, in steps: see `Cluster.note_work`."""
        return self.cluster.work + self.empty.work

    def totals(self) -> Mapping[str, int]:
        """The allocatable amount of every resource in the whole cluster."""
        version, totals = self._totals
        if version != self.cluster.table.version:
            sums = self.cluster.allocatable.sum(axis=1)
            totals = {name: int(sums[row]) for name, row in self.cluster.row_of.items()}
            self._totals = (self.cluster.table.version, totals)
        return totals

    @property
    def queue_order(self) -> QueueOrder:
        """The order of queues by what they use now."""
        return QueueOrder(self.quota, self.totals(), self.config.cluster_priority)


def _target_uid(record: GangRecord) -> str:
    return f"{'/'.join(record.key)}//target"
