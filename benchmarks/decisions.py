"""The speed of the engine's decisions: no I/O, one core, from the first cycle to the last effect.

    make bench NAME=decisions
    python benchmarks/decisions.py --only 3000x3

Prints a table and, as its last line, the same figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, Committed, Effect, Event, GangSeen, NodeSeen, PodGone, PodSeen, TookOver
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, PodPhase, Shape, TopologyRule
from gpu_scheduler.core.state import Config

GPU = "nvidia.com/gpu"
GIB = 1 << 30
OPEN = Config(
    max_open_binds=1_000_000, max_binds_at_once=1_000_000, max_open_commits=100_000, max_cycle_work=1_000_000_000
)


@dataclass(frozen=True, slots=True)
class Case:
    """Equal gangs on an empty cluster."""

    name: str
    nodes: int
    gangs: int
    members: int
    racks: int = 0
    aim: str = ""


CASES = (
    Case("3000x3", 5_000, 3_000, 3, aim="50,000 pods/s"),
    Case("9x1000", 5_000, 9, 1_000, aim="250,000 pods/s"),
    Case("racks-2250x4", 5_000, 2_250, 4, racks=50, aim="30,000 pods/s"),
    Case("20k-10000x8", 20_000, 10_000, 8, aim="cost a gang <= 4x that of 5,000 nodes"),
    Case("5k-2500x8", 5_000, 2_500, 8, aim="(to compare with)"),
)


def nodes(count: int, racks: int = 0) -> Iterator[Event]:
    """Nodes of eight GPUs with the labels of a cloud."""
    allocatable = {"cpu": 128_000, "memory": 1024 * GIB, "ephemeral-storage": 1024 * GIB, "pods": 110, GPU: 8}
    for i in range(count):
        labels = {"kubernetes.io/hostname": f"node-{i}", "kubernetes.io/arch": "amd64", "gpu": "h100"}
        if racks:
            labels |= {"gpu-scheduler.io/rack": f"rack-{i % racks}", "topology.kubernetes.io/zone": "a"}
        yield NodeSeen(Node(f"node-{i}", allocatable, labels, gpu_resource=GPU, gpus=8, assigns_devices=True))


def shape(gpus: int = 1) -> Shape:
    """The shape of a training worker."""
    return Shape((("cpu", 4_000), ("memory", 16 * GIB), (GPU, gpus)), gpu_resource=GPU, gpus=gpus)


def gang(number: int, members: int, what: Shape, *, racks: bool = False, priority: int = 0) -> Iterator[Event]:
    """A gang object and its pods."""
    key = GangKey("bench", "default", f"gang-{number}")
    topology = (TopologyRule("rack"),) if racks else ()
    yield GangSeen(Gang(key, members, created=float(number), topology=topology, priority=priority))
    for i in range(members):
        yield PodSeen(Pod(f"{number}-{i}", "default", f"gang-{number}-{i}", what, gang=key, index=i))


def load(engine: Engine, events: list[Event]) -> float:
    """Feeds events; returns how long it took."""
    start = time.perf_counter()
    for event in events:
        engine.handle(event, 0.0)
    return time.perf_counter() - start


def drain_effects(engine: Engine, now: float) -> tuple[int, list[Effect]]:
    """Runs cycles until nothing more is decided; returns the placed pods."""
    placed, effects = 0, []
    while True:
        fresh = engine.run_cycle(now)
        effects += fresh
        binds = sum(len(effect.binds) for effect in fresh if isinstance(effect, Commit))
        if not binds:
            return placed, effects
        placed += binds


def run_case(case: Case) -> dict[str, float]:
    """All gangs of a case at once, then once more gang by gang for the distribution of decision times."""
    engine, events = prepare(case)
    loading = load(engine, events)
    start = time.perf_counter()
    placed, _ = drain_effects(engine, 1.0)
    took = time.perf_counter() - start
    assert placed == case.gangs * case.members, f"{placed} pods placed"
    each = one_by_one(case)
    return {
        "pods_per_s": round(placed / took),
        "p50_us": round(statistics.median(each) * 1e6, 1),
        "p99_us": round(sorted(each)[int(len(each) * 0.99)] * 1e6, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "events_per_s": round(len(events) / loading),
    }


def prepare(case: Case) -> tuple[Engine, list[Event]]:
    """A leading engine and the events to load it with."""
    engine = Engine(OPEN)
    engine.handle(TookOver(), 0.0)
    events = list(nodes(case.nodes, case.racks))
    what = shape()
    for number in range(case.gangs):
        events += gang(number, case.members, what, racks=bool(case.racks))
    return engine, events


def one_by_one(case: Case) -> list[float]:
    """The time of one cycle for every gang that arrives alone."""
    engine = Engine(OPEN)
    engine.handle(TookOver(), 0.0)
    load(engine, list(nodes(case.nodes, case.racks)))
    what = shape()
    times = []
    for number in range(min(case.gangs, 2_000)):
        load(engine, list(gang(number, case.members, what, racks=bool(case.racks))))
        start = time.perf_counter()
        effects = engine.run_cycle(1.0)
        times.append(time.perf_counter() - start)
        for commit in [effect for effect in effects if isinstance(effect, Commit)]:
            engine.handle(Committed(commit.sequence), 1.0)
    return times[len(times) // 10 :]


def run_saturated() -> dict[str, float]:
    """A full cluster with 10,000 waiting gangs of every size; one node is freed at a time."""
    rng = random.Random(1)
    engine = Engine(OPEN)
    engine.handle(TookOver(), 0.0)
    events = list(nodes(1_000))
    whole = shape(8)
    for number in range(1_000):
        events += gang(number, 1, whole, priority=10)
    load(engine, events)
    _, effects = drain_effects(engine, 1.0)
    bound: dict[str, Pod] = {}
    carry_out(engine, effects, bound, 2.0)
    shapes = [shape(n) for n in (1, 2, 4, 8)]
    for number in range(1_000, 11_000):
        what, members = rng.choice(shapes), rng.choice((1, 2, 4, 8, 16, 32, 64))
        load(engine, list(gang(number, members, what, priority=rng.choice((0, 5, 10)))))
    start = time.perf_counter()
    engine.run_cycle(3.0)
    first = time.perf_counter() - start
    times = []
    for turn, uid in enumerate(rng.sample(sorted(bound), 200)):
        pod = bound.pop(uid)
        engine.handle(PodSeen(replace(pod, phase=PodPhase.SUCCEEDED, version="9")), 4.0 + turn)
        start = time.perf_counter()
        effects = engine.run_cycle(4.0 + turn)
        times.append(time.perf_counter() - start)
        carry_out(engine, effects, bound, 4.0 + turn)
        engine.handle(PodGone(uid), 4.0 + turn)
    times.sort()
    return {
        "p50_ms": round(statistics.median(times) * 1e3, 2),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 2),
        "first_look_ms": round(first * 1e3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def carry_out(engine: Engine, effects: list[Effect], bound: dict[str, Pod], now: float) -> None:
    """Acts as the API server: every committed bind lands and is seen."""
    for effect in effects:
        if isinstance(effect, Commit):
            engine.handle(Committed(effect.sequence), now)
            for bind in effect.binds:
                pod = engine.state.pods[bind.uid]
                seen = replace(pod, node=bind.node, devices=bind.devices, phase=PodPhase.RUNNING, version="2")
                bound[bind.uid] = seen
                engine.handle(PodSeen(seen), now)


def main() -> None:
    """Runs every case in its own process, so that peak memory is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run this case alone and print its figures as JSON")
    only = parser.parse_args().only
    runs: dict[str, Callable[[], dict[str, float]]] = {case.name: partial(run_case, case) for case in CASES}
    runs["saturated"] = run_saturated
    if only is not None:
        if only not in runs:
            parser.error(f"--only: {only!r} is not one of {', '.join(runs)}")
        print(json.dumps(runs[only]()))
        return
    results: dict[str, dict[str, float]] = {}
    for name in runs:
        out = subprocess.run([sys.executable, __file__, "--only", name], check=True, capture_output=True, text=True)
        results[name] = json.loads(out.stdout)
        show(name, results[name])
    slowest = min(r.pop("events_per_s") for r in results.values() if "events_per_s" in r)
    print(json.dumps({**results, "events_per_s": slowest}))


def show(name: str, figures: dict[str, float]) -> None:
    """Prints one row of the table."""
    aim = next((case.aim for case in CASES if case.name == name), "p99 under 5 ms")
    cells = "  ".join(f"{key} {value:>10,}" for key, value in figures.items())
    print(f"{name:<14} {cells}   aim: {aim}", flush=True)


if __name__ == "__main__":
    main()
