"""Prometheus metrics: counters and histograms, and gauges that are read from the engine at each scrape."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gpu_scheduler.core.cycle.inventory import quarantines, report_eviction
from gpu_scheduler.core.events import Delete, DeleteCause
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import MILLI
from gpu_scheduler.core.state import State
from gpu_scheduler.gangs.options import DEFAULT_QUEUE_NAME

PREFIX = "gpu_scheduler"
GROUP_LEVELS = 2
"""GPUs are counted per domain of this many of the widest levels: a series for each node would be too many."""

_WAITS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)
_DECISIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_REQUESTS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


def _no_lags() -> Mapping[str, float]:
    return {}


class SchedulerMetrics:
    """The scheduler's metrics, in their own registry. `lags` returns the watch lag of each kind."""

    def __init__(
        self,
        state: State,
        lags: Callable[[], Mapping[str, float]] = _no_lags,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registry = CollectorRegistry()
        self.cycle = self._histogram("decision_seconds", "Time of one cycle of decisions.", _DECISIONS)
        self.wait = self._histogram("gang_wait_seconds", "Time from a gang's first wait to its decision.", _WAITS)
        self.bind = self._histogram("bind_seconds", "Time of one request to bind a pod.", _REQUESTS)
        self.binds = self._counter("binds", "Requests to bind a pod, by how they ended.", "outcome")
        self.swaps = self._counter("commit_swaps", "Swaps of the Lease, by how they ended.", "outcome")
        self.fences = self._counter("fences", "Times that another leader was found.")
        self.events_dropped = self._counter("events_dropped", "Events that were dropped, by cause.", "why")
        self.status_writes = self._counter(
            "status_writes", "Writes of status and conditions, by how they ended.", "outcome"
        )
        self._evictions = EvictionTally(state, clock)
        self.registry.register(_StateCollector(state, lags, clock, self._evictions))
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        """The metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def observe_bind(self, seconds: float, outcome: str) -> None:
        """Records duration and outcome of a bind request."""
        self.bind.observe(seconds)
        self.binds.labels(outcome).inc()

    def count_swap(self, outcome: str) -> None:
        """Counts a swap of the Lease by its outcome."""
        self.swaps.labels(outcome).inc()

    def observe_wait(self, seconds: float) -> None:
        """Records how long a gang waited for its decision."""
        self.wait.observe(max(0.0, seconds))

    def count_dropped_event(self, why: str) -> None:
        """Counts a dropped Event by its cause."""
        self.events_dropped.labels(why).inc()

    def count_status_write(self, outcome: str) -> None:
        """Counts a status write by its outcome."""
        self.status_writes.labels(outcome).inc()

    def count_eviction(self, delete: Delete) -> None:
        """Counts the eviction of a pod, and the work that is lost by it."""
        self._evictions.count(delete)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", about, registry=self.registry, buckets=tuple(buckets))


class EvictionTally:
    """Counts evictions by cause and queue, and GPU-seconds by cause. A queue that no longer exists has no count."""

    def __init__(self, state: State, clock: Callable[[], float]) -> None:
        self._state, self._clock = state, clock
        self._pods: Tally[tuple[DeleteCause, str]] = Tally()
        self._lost = dict.fromkeys(DeleteCause, 0.0)

    def count(self, delete: Delete) -> None:
        """Counts one eviction."""
        cost = report_eviction(self._state, delete.uid, self._clock())
        self._pods[delete.cause, cost.queue] += 1
        self._lost[delete.cause] += cost.gpu_seconds

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yields both counters."""
        queues = set(_queues(self._state))
        self._pods = Tally({labels: number for labels, number in self._pods.items() if labels[1] in queues})
        about = "Pods that were evicted or restarted, by cause and queue; counted when the request is first sent."
        pods = CounterMetricFamily(f"{PREFIX}_evictions", about, labels=("cause", "queue"))
        for (cause, queue), number in sorted(self._pods.items(), key=lambda item: (item[0][0].value, item[0][1])):
            pods.add_metric((cause.value, _show(queue)), number)
        yield pods
        about = "GPU-seconds of evicted pods since their start or the last checkpoint of their gang, by cause."
        lost = CounterMetricFamily(f"{PREFIX}_evicted_gpu_seconds", about, labels=("cause",))
        for cause, seconds in self._lost.items():
            lost.add_metric((cause.value,), seconds)
        yield lost


class _StateCollector(Collector):
    """Collects gauges from the engine's state at each scrape, and the counts of evictions."""

    def __init__(
        self,
        state: State,
        lags: Callable[[], Mapping[str, float]],
        clock: Callable[[], float],
        evictions: EvictionTally,
    ) -> None:
        self._state = state
        self._lags = lags
        self._clock = clock
        self._evictions = evictions

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yields all metrics."""
        yield from observe(self._state, self._clock())
        yield from self._evictions.collect()
        yield _gauge("watch_lag_seconds", "Time since the last list, event or bookmark of a kind.", ("resource",), [
            ((name,), lag) for name, lag in self._lags().items()
        ])  # fmt: skip


LabelledSample = tuple[tuple[str, ...], float]


def observe(state: State, now: float) -> Iterator[GaugeMetricFamily]:
    """Yields the gauges that are computed from the engine's state."""
    yield _gauge("leading", "Whether this replica decides.", (), [((), float(state.leading))])
    phases = Tally(record.phase for record in state.records.values())
    yield _gauge("gangs", "Gangs by phase.", ("phase",), [((phase.value,), phases[phase]) for phase in Phase])
    yield _gauge("queue_length", "Gangs that wait for a decision.", (), [((), len(state.queue))])
    since = [record.waiting_since for record in state.records.values() if record.waiting_since is not None]
    oldest = max(0.0, now - min(since)) if since else 0.0
    yield _gauge("longest_wait_seconds", "How long the gang that waits longest has waited.", (), [((), oldest)])
    yield _gauge("kept_slots", "Slots kept for missing members, by reason.", ("why",), _kept_slots(state))
    yield _gauge(
        "quarantined_pods",
        "Vanished pods whose GPUs stay reserved until their quarantine ends.",
        (),
        [((), len(state.quarantined))],
    )
    gpus = {(one.pod.node, device) for one in quarantines(state) for device in one.pod.devices or ()}
    yield _gauge(
        "quarantined_gpus",
        "GPUs of vanished pods that stay reserved until their quarantine ends.",
        (),
        [((), len(gpus))],
    )
    yield _gauge("open_binds", "Binds that are decided and not yet seen.", (), [((), len(state.ledger.binds))])
    yield _gauge("open_deletes", "Deletes that are decided and not yet seen.", (), [((), len(state.ledger.deletes))])
    refused = len(state.ledger.refused_deletes)
    yield _gauge("refused_deletes", "Open deletes that fail again and again.", (), [((), refused)])
    yield _gauge("open_commits", "Commits in progress.", (), [((), state.ledger.open_commits)])
    yield from _gpus(state)
    yield from _observe_queues(state, now)


def _kept_slots(state: State) -> list[LabelledSample]:
    kept = {"held": 0, "nominated": 0, "reserved": 0}
    for key, record in state.records.items():
        why = "held" if key in state.broken else "nominated" if key in state.nominated else "reserved"
        kept[why] += len(record.reserved)
    return [((why,), number) for why, number in kept.items()]


# -- queues: every number includes the queues below


def _queues(state: State) -> list[str]:
    """Returns the queues that exist: gangs can name any others, so those have no series."""
    return sorted({"", *state.quota.queues})


def _show(queue: str) -> str:
    return queue or DEFAULT_QUEUE_NAME


def _observe_queues(state: State, now: float) -> Iterator[GaugeMetricFamily]:
    quota, names = state.quota, _queues(state)
    in_milli = {"cpu", *state.config.gpu_resources}
    amounts: dict[str, list[LabelledSample]] = {"queue_usage": [], "queue_quota": [], "queue_borrowed": []}
    for name in names:
        queue = quota.queue(name)
        for resource in sorted({*quota.used(name), *(queue.quota if queue is not None else ())}):
            scale = MILLI if resource in in_milli else 1
            used, granted = quota.used(name).get(resource, 0), quota.quota_of(name, resource)
            for metric, amount in zip(amounts, (used, granted, max(0, used - granted)), strict=True):
                amounts[metric].append(((_show(name), resource), amount / scale))
    units = "cpu in cores, GPUs in cards"
    for metric, about in (
        ("queue_usage", f"What queues use; {units}."),
        ("queue_quota", f"The quotas of queues; {units}."),
        ("queue_borrowed", f"What queues use above their quota; {units}."),
    ):
        yield _gauge(metric, about, ("queue", "resource"), amounts[metric])
    gangs, since = _waiting(state)
    about = "Gangs of a queue that wait for a decision."
    yield _gauge("queue_waiting_gangs", about, ("queue",), [((_show(name),), gangs[name]) for name in names])
    about = "How long the gang of a queue that waits longest has waited."
    oldest = [((_show(name),), max(0.0, now - since.get(name, now))) for name in names]
    yield _gauge("queue_longest_wait_seconds", about, ("queue",), oldest)


def _waiting(state: State) -> tuple[Tally[str], dict[str, float]]:
    """Returns by queue how many gangs wait, and since when the first of them does."""
    gangs: Tally[str] = Tally()
    since: dict[str, float] = {}
    for record in state.records.values():
        if record.waiting_since is not None:
            for name in state.quota.path(state.queue_of(record)):
                gangs[name] += 1
                since[name] = min(since.get(name, record.waiting_since), record.waiting_since)
    return gangs, since


def _gpus(state: State) -> Iterator[GaugeMetricFamily]:
    """Yields the GPU gauges by group of nodes, computed with a few array operations on the node table."""
    cluster = state.cluster
    levels = state.config.levels[:GROUP_LEVELS]
    slots = np.flatnonzero(cluster.table.alive & (cluster.gpu_row >= 0))
    rows = cluster.gpu_row[slots]
    total = cluster.allocatable[rows, slots]
    free = np.clip(cluster.free[rows, slots], 0, total)
    split = np.where(free < total, free, 0)
    columns = [cluster.table.column(label) for _, label in levels]
    groups = np.stack([*(column.codes[slots] for column in columns), rows])
    found, group_of = np.unique(groups, axis=1, return_inverse=True)
    values = [{code: value for value, code in column.values.items()} for column in columns]
    resources = {row: name for name, row in cluster.row_of.items()}
    names = [
        (*(values[i].get(int(code), "") for i, code in enumerate(group[:-1])), resources[int(group[-1])])
        for group in found.T
    ]
    labels = (*(name for name, _ in levels), "resource")
    for name, about, amounts in (
        ("gpus_total", "GPUs that may be used.", total),
        ("gpus_allocated", "GPUs that are in use or decided for.", total - free),
        ("gpus_fragmented", "Free GPUs on nodes of which others are in use.", split),
    ):
        sums = np.bincount(group_of.reshape(-1), weights=amounts, minlength=len(names))
        yield _gauge(name, about, labels, zip(names, sums.tolist(), strict=True))


def _gauge(name: str, about: str, labels: tuple[str, ...], samples: Iterable[LabelledSample]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", about, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
