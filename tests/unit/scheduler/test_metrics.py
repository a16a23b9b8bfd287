"""Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import (
    Commit,
    Committed,
    Delete,
    DeleteCause,
    GangSeen,
    NodeSeen,
    PodSeen,
    QueueGone,
    QueueSeen,
    TookOver,
)
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, Queue, Shape
from gpu_scheduler.scheduler.metrics import SchedulerMetrics
from tests.unit.core.effort import effort_of

GPU = "nvidia.com/gpu"


def machine(name: str, rack: str = "r1") -> Node:
    labels = {"topology.kubernetes.io/zone": "z1", "gpu-scheduler.io/rack": rack}
    allocatable = {"cpu": 64_000, "pods": 110, GPU: 8}
    return Node(name, allocatable, labels, gpu_resource=GPU, gpus=8, assigns_devices=True)


def submit(engine: Engine, name: str, members: int, gpus: int = 1, queue: str = "") -> None:
    key = GangKey("test", "ns", name)
    shape = Shape((("cpu", 500), (GPU, gpus)), gpu_resource=GPU, gpus=gpus)
    engine.handle(GangSeen(Gang(key, members, queue=queue)), 0.0)
    for i in range(members):
        engine.handle(PodSeen(Pod(f"{name}-{i}", "ns", f"{name}-{i}", shape, gang=key)), 0.0)


def busy_engine() -> Engine:
    """Two racks of GPU nodes and one plain node; one gang decided, one waiting."""
    engine = Engine()
    engine.handle(TookOver(), 0.0)
    for node in (machine("a"), machine("b"), machine("c", "r2"), Node("plain", {"cpu": 1000, "pods": 10})):
        engine.handle(NodeSeen(node), 0.0)
    engine.handle(QueueSeen(Queue("research")), 0.0)
    submit(engine, "small", 3, queue="research")
    for effect in engine.run_cycle(1.0):
        if isinstance(effect, Commit):
            engine.handle(Committed(effect.sequence), 1.0)
    submit(engine, "large", 100)
    engine.run_cycle(2.0)
    return engine


def read(metrics: SchedulerMetrics) -> Mapping[tuple[str, ...], float]:
    """All samples by name and label values, in alphabetical order of the labels."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found[(sample.name.removeprefix("gpu_scheduler_"), *sample.labels.values())] = sample.value
    return found


def test_gauges_are_read_from_the_engine_at_each_scrape() -> None:
    engine = busy_engine()
    found = read(SchedulerMetrics(engine.state, lambda: {"pods": 1.5}, lambda: 62.0))
    assert found["leading",] == 1
    assert (found["gangs", "waiting"], found["gangs", "binding"], found["gangs", "running"]) == (1, 1, 0)
    assert (found["queue_length",], found["open_binds",], found["open_commits",]) == (1, 3, 1)
    assert found["longest_wait_seconds",] == 62.0
    assert found["watch_lag_seconds", "pods"] == 1.5
    assert (found["queue_usage", "research", GPU], found["queue_usage", "research", "cpu"]) == (3, 1.5)
    assert found["kept_slots", "held"] == 0


def test_queues_have_quota_use_loans_and_waits_with_those_below_them() -> None:
    engine = busy_engine()
    engine.handle(QueueSeen(Queue("research", quota={GPU: 2, "memory": 1 << 30}, parent="company")), 2.0)
    engine.handle(QueueSeen(Queue("company", quota={GPU: 4})), 2.0)
    submit(engine, "misspelt", 1, queue="reserch")
    submit(engine, "larger", 99, queue="research")
    engine.run_cycle(3.0)
    found = read(SchedulerMetrics(engine.state, clock=lambda: 63.0))
    for queue, quota, borrowed in (("research", 2, 1), ("company", 4, 0)):
        assert (found["queue_quota", queue, GPU], found["queue_borrowed", queue, GPU]) == (quota, borrowed)
        assert (found["queue_usage", queue, GPU], found["queue_borrowed", queue, "cpu"]) == (3, 1.5)
        assert (found["queue_waiting_gangs", queue], found["queue_longest_wait_seconds", queue]) == (1, 63.0)
    assert found["queue_quota", "research", "memory"] == 1 << 30
    assert found["queue_waiting_gangs", "default"] == 1
    assert not any("reserch" in name or "" in name for name in found)  # any gang can name a queue that does not exist


def test_evictions_are_counted_with_the_work_that_they_cost() -> None:
    engine = busy_engine()
    running = [replace(pod, node="a", started=10.0, version="2") for pod in engine.state.pods.values() if pod.gang]
    small = [pod for pod in running if pod.name.startswith("small")]
    for pod in small:
        engine.handle(PodSeen(pod), 10.0)
    metrics = SchedulerMetrics(engine.state, clock=lambda: 70.0)
    metrics.count_eviction(Delete(small[0].uid, "ns", small[0].name, DeleteCause.RECLAIMED))
    engine.handle(GangSeen(Gang(GangKey("test", "ns", "small"), 3, queue="research", checkpointed_at=60.0)), 70.0)
    metrics.count_eviction(Delete(small[1].uid, "ns", small[1].name, DeleteCause.PREEMPTED))
    metrics.count_eviction(Delete("large-0", "ns", "large-0", DeleteCause.PREEMPTED))  # it has not started
    found = read(metrics)
    assert (found["evictions_total", "reclaimed", "research"], found["evictions_total", "preempted", "research"]) == (
        1,
        1,
    )
    assert found["evictions_total", "preempted", "default"] == 1
    lost = {cause.value: found["evicted_gpu_seconds_total", cause.value] for cause in DeleteCause}
    assert lost == {"reclaimed": 60.0, "preempted": 10.0, "restart": 0.0}
    engine.handle(QueueGone("research"), 70.0)
    assert not any("research" in name for name in read(metrics))


def test_gpus_are_counted_by_rack_with_those_free_on_partly_used_nodes() -> None:
    found = read(SchedulerMetrics(busy_engine().state))
    used = [rack for rack in ("r1", "r2") if found["gpus_allocated", rack, GPU, "z1"]]
    assert len(used) == 1
    assert (found["gpus_total", "r1", GPU, "z1"], found["gpus_total", "r2", GPU, "z1"]) == (16, 8)
    assert found["gpus_allocated", used[0], GPU, "z1"] == 3
    assert found["gpus_fragmented", used[0], GPU, "z1"] == 5


def test_an_empty_cluster_has_metrics() -> None:
    found = read(SchedulerMetrics(Engine().state))
    assert (found["leading",], found["gangs", "waiting"], found["longest_wait_seconds",]) == (0, 0, 0)
    assert not any(name[0].startswith("gpus_") for name in found)


def test_counters_and_histograms_are_updated() -> None:
    metrics = SchedulerMetrics(Engine().state)
    metrics.observe_bind(0.01, "bound")
    metrics.observe_bind(0.02, "moved")
    metrics.observe_wait(42.0)
    metrics.cycle.observe(0.001)
    metrics.count_swap("landed")
    metrics.fences.inc()
    metrics.count_dropped_event("full")
    metrics.count_status_write("written")
    found = read(metrics)
    assert (found["binds_total", "bound"], found["binds_total", "moved"], found["bind_seconds_count",]) == (1, 1, 2)
    assert (found["gang_wait_seconds_sum",], found["decision_seconds_count",]) == (42.0, 1)
    assert (found["commit_swaps_total", "landed"], found["fences_total",]) == (1, 1)
    assert (found["events_dropped_total", "full"], found["status_writes_total", "written"]) == (1, 1)


def test_each_instance_has_its_own_registry() -> None:
    one, other = SchedulerMetrics(Engine().state), SchedulerMetrics(Engine().state)
    one.fences.inc()
    assert read(other)["fences_total",] == 0


def test_cost_of_a_scrape_is_small_per_gang_and_zero_per_node() -> None:
    engine = Engine()
    metrics = SchedulerMetrics(engine.state)
    costs = []
    for nodes, gangs in ((200, 0), (1000, 0), (0, 1000)):
        for i in range(nodes):
            engine.handle(NodeSeen(machine(f"n{nodes}-{i}")), 0.0)
        for i in range(gangs):
            submit(engine, f"g{i}", 1)
        costs.append(effort_of(metrics.text))
    assert costs[1] < costs[0] + 800  # less than a line for each
    assert costs[2] - costs[1] < 20 * 1000
