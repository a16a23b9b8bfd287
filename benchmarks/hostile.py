"""What a tenant can cost the engine on purpose: the longest cycle of each hostile input, in CPU seconds.

    make bench NAME=hostile
    python benchmarks/hostile.py --only roles

Pods and groups are decoded as the scheduler decodes them, so ceilings apply. Each input runs in its own process. Prints
a table and, as its last line, the same figures as JSON. The aim is 0.5 s for every input.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, Committed, Effect, GangSeen, NodeSeen, PodSeen, TookOver
from gpu_scheduler.core.model import Gang, GangKey, Node, Pod, PodPhase
from gpu_scheduler.core.state import Config
from gpu_scheduler.gangs.dialects import GangContext, dialect_of
from gpu_scheduler.gangs.pods.shapes import read_shape
from gpu_scheduler.k8s.objects import Json, Meta, PodSpec, RawObject

GPU = "nvidia.com/gpu"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CYCLES = 30
"""At most so many cycles are run after the input has arrived."""


class Run:
    """An engine with its clock; remembers the longest cycle."""

    def __init__(self, nodes: int) -> None:
        self.engine = Engine(Config())
        self.longest = 0.0
        self.engine.handle(TookOver(), 1_000.0)
        allocatable = {"cpu": 128_000, "pods": 110, GPU: 8}
        for i in range(nodes):
            labels = {"kubernetes.io/hostname": f"node-{i}", "zone": f"z{i % 4}"}
            node = Node(f"node-{i}", allocatable, labels, gpu_resource=GPU, gpus=8, assigns_devices=True)
            self.engine.handle(NodeSeen(node), 1_000.0)

    def add(self, name: str, spec: Json, gang: GangKey | None = None, role: str = "", priority: int = 0) -> None:
        """Creates a pod, decoded from its spec."""
        meta = Meta(name=name, namespace="team", uid=name)
        shape, gates = read_shape(msgspec.convert(spec, PodSpec), meta, (GPU,))
        pod = Pod(name, "team", name, shape, gang=gang, role=role, priority=priority, gates=gates)
        self.engine.handle(PodSeen(pod), 1_000.0)

    def add_group(self, name: str, spec: Json, priority: int | None = None) -> GangKey:
        """Creates a PodGroup of Volcano."""
        key = GangKey("volcano", "team", name)
        raw = RawObject(metadata=Meta(name=name, namespace="team", uid=name), spec=spec)
        gang = dialect_of(key).decode(key, raw, (), GangContext(frozenset({"gpu-scheduler"})))
        assert isinstance(gang, Gang)
        self.engine.handle(GangSeen(replace(gang, priority=priority)), 1_000.0)
        return key

    def cycles(self) -> None:
        """Runs cycles until nothing is decided any more."""
        for _ in range(CYCLES):
            begun = time.process_time()
            effects = self.engine.run_cycle(1_000.0)
            self.longest = max(self.longest, time.process_time() - begun)
            if not self._carry_out(effects) and not self.engine.has_changes:
                return

    def _carry_out(self, effects: list[Effect]) -> int:
        """Acts as the API server: every committed bind lands and is seen."""
        commits = [effect for effect in effects if isinstance(effect, Commit)]
        for commit in commits:
            self.engine.handle(Committed(commit.sequence), 1_000.0)
        binds = [bind for commit in commits for bind in commit.binds]
        for bind in binds:
            pod = self.engine.state.pods[bind.uid]
            seen = replace(pod, node=bind.node, devices=bind.devices, phase=PodPhase.RUNNING, version="2")
            self.engine.handle(PodSeen(seen), 1_000.0)
        return len(binds)


def asking(gpus: int, cpu: int = 1, **rules: object) -> Json:
    """The spec of a pod."""
    amounts = {"cpu": f"{cpu}m", **({GPU: str(gpus)} if gpus else {})}
    return {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}], **rules}


def apart(numbers: range) -> Json:
    """An anti-affinity to pods of every namespace, with a term for each number."""
    return {"podAntiAffinity": {REQUIRED: [_term(number) for number in numbers]}}


def _term(number: int) -> Json:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": f"v{number}"}}, "namespaceSelector": {}}


def kinds() -> Iterator[Run]:
    """Ten gangs of 1,000 pods of which no two are equal."""
    run = Run(200)
    for i in range(1_500):
        run.add(f"busy-{i}", asking(1))
    yield run
    for g in range(10):
        key = run.add_group(f"g{g}", {"minMember": 1_000})
        for i in range(1_000):
            run.add(f"g{g}-{i}", asking(1, 1 + g * 1_000 + i), key)


def roles() -> Iterator[Run]:
    """Ten groups of 1,000 roles."""
    run = Run(200)
    yield run
    for g in range(10):
        tasks = {f"r{i}": 1 for i in range(1_000)}
        key = run.add_group(f"g{g}", {"minMember": 1_000, "minTaskMember": tasks})
        for i in range(1_000):
            run.add(f"g{g}-{i}", asking(1, 1 + g), key, f"r{i}")


def terms() -> Iterator[Run]:
    """Ten pods each with 32 and 1,000 spread constraints, and with as many anti-affinity terms."""
    run = Run(200)
    for i in range(500):
        run.add(f"busy-{i}", asking(0))
    yield run
    for i in range(10):
        for number in (32, 1_000):
            spread = [{**_term(i * number + j), "maxSkew": 1} for j in range(number)]
            run.add(f"spread{number}-{i}", asking(9, 1 + i, topologySpreadConstraints=spread))
            run.add(f"apart{number}-{i}", asking(9, 1 + i, affinity=apart(range(i * number, (i + 1) * number))))


def carried() -> Iterator[Run]:
    """Ten gangs of eight, next to 20 running pods of another scheduler with 5,000 anti-affinity terms each."""
    run = Run(200)
    for i in range(20):
        run.add(f"evil-{i}", asking(0))
    run.cycles()
    for i in range(20):
        name = f"evil-{i}"
        shape = read_shape(
            msgspec.convert(asking(0, affinity=apart(range(i * 5_000, (i + 1) * 5_000))), PodSpec),
            Meta(name=name, namespace="team", uid=name),
            (GPU,),
            ours=False,
        ).shape
        run.engine.handle(PodSeen(replace(run.engine.state.pods[name], shape=shape, version="3")), 1_000.0)
    yield run
    for g in range(10):
        key = run.add_group(f"g{g}", {"minMember": 8})
        for i in range(8):
            run.add(f"g{g}-{i}", asking(1), key)


def preemptors() -> Iterator[Run]:
    """Forty gangs of 300 pods that would need pods of higher priority gone, too."""
    run = Run(500)
    for i in range(2_000):
        run.add(f"low-{i}", asking(1))
    run.cycles()
    for i in range(250):
        run.add(f"high-{i}", asking(8), priority=100)
    yield run
    for g in range(40):
        key = run.add_group(f"g{g}", {"minMember": 300}, priority=10)
        for i in range(300):
            run.add(f"g{g}-{i}", asking(8, 1 + g), key, priority=10)


def broken() -> Iterator[Run]:
    """A thousand running gangs whose minimum was raised, each with 20 members that fit nowhere."""
    run = Run(1_000)
    for g in range(1_000):
        run.add(f"g{g}-live", asking(0), run.add_group(f"g{g}", {"minMember": 1}))
    yield run
    for g in range(1_000):
        key = run.add_group(f"g{g}", {"minMember": 21})
        for i in range(20):
            run.add(f"g{g}-{i}", asking(9, 1 + g * 20 + i), key)


INPUTS: tuple[Callable[[], Iterator[Run]], ...] = (kinds, roles, terms, carried, preemptors, broken)


def main() -> None:
    """Runs every input in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [make.__name__ for make in INPUTS]
    parser.add_argument("--only", choices=names, help="run this input alone, in this process")
    only = parser.parse_args().only
    if only is not None:
        steps = next(make for make in INPUTS if make.__name__ == only)()
        run = next(steps)
        run.cycles()
        run.longest = 0.0
        next(steps, None)
        run.cycles()
        print(json.dumps({only: round(run.longest, 3)}))
        return
    results: dict[str, float] = {}
    for make in INPUTS:
        command = [sys.executable, __file__, "--only", make.__name__]
        out = subprocess.run(command, check=True, capture_output=True, text=True)
        results |= json.loads(out.stdout)
        print(f"{make.__name__:<12} {results[make.__name__]:>8.3f} s   {make.__doc__}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
