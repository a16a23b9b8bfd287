"""What groups without pods cost the engine: 60 groups of 20,000 expected members each, next to running gangs.

    make bench NAME=pod_less_groups
    python benchmarks/pod_less_groups.py --only different

Each case runs in its own process, once with and once without the groups. Prints a table and, as its last line, the same
figures as JSON: the memory that the groups add, and the longest cycle and report in CPU time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, Committed, Effect, Event, GangSeen, NodeSeen, PodGone, PodSeen, TookOver
from gpu_scheduler.core.model import Expected, Gang, GangKey, Node, Pod, PodPhase, Shape
from gpu_scheduler.core.state import Config

GPU = "nvidia.com/gpu"
GIB = 1 << 30
GROUPS, MEMBERS = 60, 20_000
RUNNING = 100
"""Gangs of eight pods that run from the beginning; one of them ends in every later cycle."""


@dataclass(frozen=True, slots=True)
class Case:
    """Groups without pods on a cluster."""

    name: str
    nodes: int
    different: bool = False
    """Whether every group asks for something else."""
    leader: bool = False
    """Whether each group has a role of one more member."""


CASES = (
    Case("equal", 1_000),
    Case("different", 1_000, different=True),
    Case("roles", 1_000, different=True, leader=True),
    Case("fitting", 5_000, different=True),
    Case("fitting-roles", 5_000, different=True, leader=True),
)


def nodes(count: int) -> Iterator[Event]:
    """Nodes of eight GPUs."""
    allocatable = {"cpu": 128_000, "memory": 1024 * GIB, "ephemeral-storage": 1024 * GIB, "pods": 110, GPU: 8}
    for i in range(count):
        labels = {"kubernetes.io/hostname": f"node-{i}"}
        yield NodeSeen(Node(f"node-{i}", allocatable, labels, gpu_resource=GPU, gpus=8, assigns_devices=True))


def shape(cpu: int = 4_000, gpus: int = 1) -> Shape:
    """The shape of a worker."""
    return Shape((("cpu", cpu), ("memory", 4 * GIB), (GPU, gpus)), gpu_resource=GPU, gpus=gpus)


def running() -> Iterator[Event]:
    """Gangs of eight pods."""
    what = shape()
    for number in range(RUNNING):
        key = GangKey("bench", "default", f"gang-{number}")
        yield GangSeen(Gang(key, 8, created=float(number)))
        for i in range(8):
            yield PodSeen(Pod(f"{number}-{i}", "default", f"gang-{number}-{i}", what, gang=key, index=i))


def groups(case: Case) -> Iterator[Event]:
    """The groups without pods."""
    for number in range(GROUPS):
        workers = Expected(shape(1_000 + number * case.different), MEMBERS, "worker")
        leader = (Expected(shape(2_000 + number * case.different), 1, "master"),) if case.leader else ()
        key = GangKey("bench", "team", f"group-{number}")
        yield GangSeen(Gang(key, MEMBERS, expected=(*leader, workers), created=1_000.0 + number))


class Run:
    """An engine with its clock; remembers the longest cycle and the longest report."""

    def __init__(self) -> None:
        self.engine = Engine(Config())
        self.now = 1_000.0
        self.bound: dict[str, Pod] = {}
        self.longest = {"cycle_ms": 0.0, "report_ms": 0.0}
        self.engine.handle(TookOver(), self.now)

    def cycles(self) -> None:
        """Runs cycles until nothing is decided any more."""
        while True:
            begun = time.process_time()
            effects = self.engine.run_cycle(self.now)
            self.note("cycle_ms", begun)
            if not self._carry_out(effects) and not self.engine.has_changes:
                return

    def note(self, what: str, begun: float) -> None:
        """Notes how long something took."""
        self.longest[what] = max(self.longest[what], (time.process_time() - begun) * 1e3)

    def _carry_out(self, effects: list[Effect]) -> int:
        """Acts as the API server: every committed bind lands and is seen."""
        binds = [bind for effect in effects if isinstance(effect, Commit) for bind in effect.binds]
        for effect in effects:
            if isinstance(effect, Commit):
                self.engine.handle(Committed(effect.sequence), self.now)
        for bind in binds:
            pod = self.engine.state.pods[bind.uid]
            seen = replace(pod, node=bind.node, devices=bind.devices, phase=PodPhase.RUNNING, version="2")
            self.bound[bind.uid] = seen
            self.engine.handle(PodSeen(seen), self.now)
        return len(binds)


def run_case(case: Case, with_groups: bool) -> dict[str, float]:
    """One process: running gangs, then the groups, then one change after another for half an hour."""
    run = Run()
    for event in (*nodes(case.nodes), *running()):
        run.engine.handle(event, run.now)
    run.cycles()
    keys = []
    for event in groups(case) if with_groups else ():
        run.engine.handle(event, run.now)
        if isinstance(event, GangSeen):
            keys.append(event.gang.key)
    run.cycles()
    for number in range(RUNNING):
        run.now += 20.0
        for i in range(8):
            uid = f"{number}-{i}"
            run.engine.handle(PodSeen(replace(run.bound[uid], phase=PodPhase.SUCCEEDED, version="9")), run.now)
            run.engine.handle(PodGone(uid), run.now)
        run.cycles()
        for key in keys[number % 10 :: 10]:
            begun = time.process_time()
            run.engine.report(key, run.now)
            run.note("report_ms", begun)
    for key in keys[:3]:
        begun = time.process_time()
        run.engine.explain(key, run.now)
        run.note("report_ms", begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**{name: round(value, 1) for name, value in run.longest.items()}, "peak_mb": round(peak, 1)}


def main() -> None:
    """Runs every case in processes of its own, so that peak memory is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--only", choices=names, help="run this case alone")
    parser.add_argument("--part", choices=("with", "without"), help="run one process of the case and print its figures")
    given = parser.parse_args()
    if given.part is not None:
        case = next(case for case in CASES if case.name == (given.only or names[0]))
        print(json.dumps(run_case(case, given.part == "with")))
        return
    results: dict[str, dict[str, float]] = {}
    for name in [given.only] if given.only else names:
        parts = {}
        for part in ("without", "with"):
            command = [sys.executable, __file__, "--only", name, "--part", part]
            out = subprocess.run(command, check=True, capture_output=True, text=True)
            parts[part] = json.loads(out.stdout)
        results[name] = {
            "added_mb": round(parts["with"]["peak_mb"] - parts["without"]["peak_mb"], 1),
            "cycle_ms": parts["with"]["cycle_ms"],
            "cycle_without_ms": parts["without"]["cycle_ms"],
            "report_ms": parts["with"]["report_ms"],
        }
        cells = "  ".join(f"{key} {value:>9,}" for key, value in results[name].items())
        print(f"{name:<14} {cells}   aim: 50 MB, 500 ms", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
