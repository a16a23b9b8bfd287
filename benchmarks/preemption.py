"""The cost of finding victims: 2,000 running gangs on 5,000 full nodes, in a tree of 50 queues, and 200 waiting gangs.

    make bench NAME=preemption
    python benchmarks/preemption.py --only reclaim --profile

Each waiting gang asks for its victims alone; nothing is evicted. Prints a table and, as its last line, the same figures
as JSON: CPU milliseconds of one search at p50 and p99, and the numbers of victims. The aim is a p99 below 50 ms.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import pstats
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from gpu_scheduler.core.cycle.preemption import Eviction, find_victims
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Event, GangSeen, NodeSeen, PodSeen, QueueSeen, TookOver
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, PodPhase, Queue, Shape, TopologyRule
from gpu_scheduler.core.queueing.bid import make_bid, minimum_of
from gpu_scheduler.core.reasons import FULL_QUEUE
from gpu_scheduler.core.state import Config

GPU = "nvidia.com/gpu"
GIB = 1 << 30
NOW = 1_000_000.0
NODES, GPUS, RACKS = 5_000, 8, 50
RUNNING, WAITING = 2_000, 200
MOST_VICTIMS = 16
BRANCHES = (2, 4, 5)
"""Divisions, teams of each, and queues of each team: 50 queues, of which 40 have gangs."""
AIM = 50.0
SEED = 20


def nodes() -> Iterator[Event]:
    """Nodes of eight GPUs in racks."""
    allocatable = {"cpu": 128_000, "memory": 1024 * GIB, "ephemeral-storage": 1024 * GIB, "pods": 110, GPU: GPUS}
    for i in range(NODES):
        labels = {"kubernetes.io/hostname": f"node-{i}", "gpu-scheduler.io/rack": f"rack-{i % RACKS}"}
        yield NodeSeen(Node(f"node-{i}", allocatable, labels, gpu_resource=GPU, gpus=GPUS, assigns_devices=True))


USE = (0.5, 0.6, 1.0, 1.2, 1.7)
"""What the leaves of a team use, in parts of their quota: two lend, one is at its limit, two borrow."""
FULL = 2


def queues() -> Iterator[Event]:
    """The tree: a quota is divided equally between the children."""
    divisions, teams, number = BRANCHES
    part = NODES * GPUS // divisions
    own = part // teams // number
    for d in range(divisions):
        yield QueueSeen(Queue(f"division-{d}", quota={GPU: part}))
        for t in range(teams):
            yield QueueSeen(Queue(f"team-{d}-{t}", quota={GPU: part // teams}, parent=f"division-{d}"))
            for i in range(number):
                name, limit = f"q-{d}-{t}-{i}", {GPU: own} if i == FULL else {}
                queue = Queue(name, weight=1 + i % 2, quota={GPU: own}, limit=limit, parent=f"team-{d}-{t}")
                yield QueueSeen(queue)


def shape(gpus: int) -> Shape:
    """The shape of a worker."""
    return Shape((("cpu", 4_000), ("memory", 16 * GIB), (GPU, gpus)), gpu_resource=GPU, gpus=gpus)


def leaves(place: int) -> list[str]:
    """The queues at one place of every team."""
    divisions, teams, _ = BRANCHES
    return [f"q-{d}-{t}-{place}" for d in range(divisions) for t in range(teams)]


def pods_of(key: GangKey, number: int, what: Shape, **about: Any) -> Iterator[Pod]:
    """The members of a gang."""
    for i in range(number):
        name = f"{key.name}-{i}"
        yield Pod(name, key.namespace, name, what, gang=key, index=i, **about)


def running(rng: random.Random) -> Iterator[Event]:
    """Gangs of one to four nodes that fill the cluster, with pods of 8 or 4 GPUs; a tenth has a surplus member."""
    free = rng.sample(range(NODES), NODES)
    shapes = {gpus: shape(gpus) for gpus in (4, 8)}
    places = [name for place, use in enumerate(USE) for name in leaves(place) for _ in range(round(use * 10))]
    rng.shuffle(places)
    sizes = rng.sample([1, 2, 3, 4] * (RUNNING // 4), RUNNING)
    for number, (size, queue) in enumerate(zip(sizes, cycle(places), strict=False)):
        gpus, taken = rng.choice((4, 8)), [free.pop() for _ in range(size)]
        members = size * GPUS // gpus
        key = GangKey("bench", "team", f"run-{number}")
        minimum = members - 1 if number % 10 == 0 and members > 1 else members
        yield GangSeen(Gang(key, minimum, queue=queue, created=NOW - 5_000 + number, priority=rng.randrange(3)))
        started = NOW - rng.uniform(60.0, 86_400.0)
        about = {"phase": PodPhase.RUNNING, "charged_queue": queue, "started": started}
        for pod in pods_of(key, members, shapes[gpus], **about):
            first = pod.index * gpus % GPUS
            node, devices = f"node-{taken[pod.index * gpus // GPUS]}", tuple(range(first, first + gpus))
            yield PodSeen(replace(pod, node=node, devices=devices))


@dataclass(frozen=True, slots=True)
class Case:
    """Waiting gangs of one kind. `places` are the places of their queues in the team, and `priority` is theirs."""

    name: str
    places: tuple[int, ...]
    priority: int = 0
    rack: bool = False


CASES = (
    Case("reclaim", (0, 1)),  # within the quota, from all that borrow
    Case("rack", (0, 1), rack=True),  # the same, in one rack
    Case("own queue", (2,), priority=5),  # the queue is full: lower priorities of its own
    Case("share", (3,)),  # beyond the quota: from queues with a larger share
)


def waiting(case: Case) -> Iterator[tuple[GangKey, list[Event]]]:
    """The gangs of a case: 1 to 16 pods of a whole node each."""
    names = [name for place in case.places for name in leaves(place)]
    topology = (TopologyRule("rack"),) if case.rack else ()
    for number, queue in zip(range(WAITING // len(CASES)), cycle(names), strict=False):
        key = GangKey("bench", "team", f"{case.name.replace(' ', '-')}-{number}")
        members = 1 + number % MOST_VICTIMS
        gang = Gang(key, members, queue=queue, created=NOW, priority=case.priority, topology=topology)
        yield key, [GangSeen(gang), *(PodSeen(pod) for pod in pods_of(key, members, shape(GPUS), created=NOW))]


def build() -> Engine:
    """The cluster with everything that runs."""
    engine = Engine(Config(max_cycle_work=1_000_000_000))
    engine.handle(TookOver(), NOW)
    for event in (*queues(), *nodes(), *running(random.Random(SEED))):
        engine.handle(event, NOW)
    while True:
        engine.run_cycle(NOW)
        if not engine.has_changes:
            return engine


def search(engine: Engine, key: GangKey) -> tuple[float, Eviction | None]:
    """Finds the victims of one gang; returns the CPU milliseconds of that, too."""
    state = engine.state
    record = state.records[key]
    bid = make_bid(state, record, state.facts_of(record), NOW)
    wanted = state.quota.charge_of_shapes(minimum_of(state, bid).shapes)
    refusal = state.quota.refuse(state.queue_of(record), key.namespace, wanted)
    limit = refusal if refusal is not None and refusal.reason in FULL_QUEUE else None
    begun = time.process_time()
    found = find_victims(state, record, bid, NOW, limit)
    return (time.process_time() - begun) * 1e3, found


def percentile(values: list[float], part: float) -> float:
    """The smallest value that so large a part of the values does not exceed."""
    return round(sorted(values)[max(0, math.ceil(part * len(values)) - 1)], 2)


def summarize(results: list[tuple[float, Eviction | None]]) -> dict[str, float]:
    """Times, and how many victims the gangs needed."""
    times = [spent for spent, _ in results]
    victims = [len(found.victims) for _, found in results if found is not None]
    return {
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
        "found": len(victims),
        "gangs": len(results),
        "victims": sum(victims),
        "mean_victims": round(statistics.mean(victims), 1) if victims else 0.0,
        "most_victims": max(victims, default=0),
    }


def main() -> None:
    """Measures every case on one cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[case.name for case in CASES], help="measure this case alone")
    parser.add_argument("--profile", action="store_true", help="print the functions that take most of the time")
    given = parser.parse_args()
    engine = build()
    chosen = {case: list(waiting(case)) for case in CASES if given.only in (None, case.name)}
    for event in (event for gangs in chosen.values() for _, events in gangs for event in events):
        engine.handle(event, NOW)
    profile = cProfile.Profile()
    every: list[tuple[float, Eviction | None]] = []
    results: dict[str, dict[str, float]] = {}
    for case, gangs in chosen.items():
        if given.profile:
            profile.enable()
        found = [search(engine, key) for key, _ in gangs]
        profile.disable()
        every += found
        results[case.name] = summarize(found)
    results["all"] = summarize(every)
    for name, figures in results.items():
        cells = "  ".join(f"{key} {value:>6,}" for key, value in figures.items())
        print(f"{name:<10} {cells}   aim: p99 below {AIM:g} ms", flush=True)
    if given.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
