"""Our scheduler next to kube-scheduler on a real control plane: the same nodes, the same native gangs.

Usage: side_by_side.py [--version 1.35|1.37] [--nodes N] [--pods N] [--runs N] [--gangs N]
       side_by_side.py --nodes 50 --pods 256 --gangs 10    for a quick run

etcd, kube-apiserver and the controllers that the pods need are started for the run. For gangs of 8, gangs of 64 and
plain pods, all of which exist before anything starts, three are timed in turn: a bare client that decides nothing (the
ceiling, with an open watch of pods and its best number of requests in flight), kube-scheduler and ours, each from the
start of its process to the last bind that a watch shows. Pods differ only in their schedulerName; gangs are native
ones, Workloads on 1.35 and PodGroups on 1.37. Then, with all those pods bound, single gangs of 8 are created one after
the other: the time is from the last create to the last bind.

kube-scheduler runs with its defaults, but without client rate limits and without leader election; ours runs with its
defaults, including the Lease. The API server may have more requests in flight than by default, or it would reject many
of kube-scheduler's. Figures are medians over the runs, ratios are taken within each run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._binding import (
    GPU,
    NAMESPACE,
    TIMEOUT,
    compile_program,
    describe_pod,
    make_pods,
    measure_ceiling,
    measure_scheduler,
    our_scheduler,
    remove_all,
    send_all,
    watched,
)
from gpu_scheduler.cli.scheduler import run_loop
from gpu_scheduler.gangs.contract import ASSIGNS_DEVICES, PLACEMENTS, SYSTEM
from gpu_scheduler.gangs.definitions import DEFINITIONS, load_definitions
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import load_connection
from gpu_scheduler.k8s.errors import NotFound
from gpu_scheduler.k8s.objects import Json, Object
from gpu_scheduler.k8s.resources import NAMESPACES, NODES, PODS, Resource
from tests.kubernetes.control_plane import ControlPlane

SIZES = {"gang8": 8, "gang64": 64, "plain": 0}
GPUS = 8
IN_FLIGHT = (16, 32, 64)
WARM_UP = 5
USER = "gpu-scheduler"
SCHEDULERS = {"kube_scheduler": "default-scheduler", "gpu_scheduler": "gpu-scheduler"}
"""What is measured, and the schedulerName of its pods."""

GROUPS = {
    "1.35": Resource("scheduling.k8s.io", "v1alpha1", "workloads", "Workload"),
    "1.37": Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup"),
}
CONTROLLERS = {
    "1.35": "serviceaccount-controller",
    "1.37": "serviceaccount-controller,podgroup-protection-controller",
}
"""The controllers that the pods need, and no others: these nodes have no kubelet, so the node controller would soon
evict the pods."""
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False)
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")


@dataclass
class Bench:
    """A control plane with nodes, and two of its users: an admin, and the user of our scheduler and the bare client.

    API priority and fairness exempts admins, which would be unfair.
    """

    plane: ControlPlane
    admin: Client
    user: Client
    pods: int
    nodes: list[str] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=count)

    def start(self, scheduler: str) -> AbstractAsyncContextManager[int]:
        """Starts one of SCHEDULERS as a process."""
        starts: dict[str, Callable[[], AbstractAsyncContextManager[int]]] = {
            "kube_scheduler": self._kube_scheduler,
            "gpu_scheduler": lambda: our_scheduler(self.plane.kubeconfig(USER)),
        }
        return starts[scheduler]()

    @asynccontextmanager
    async def _kube_scheduler(self) -> AsyncIterator[int]:
        try:
            await asyncio.to_thread(self.plane.start, "kube-scheduler")
            yield self.plane.pid("kube-scheduler")
        finally:
            self.plane.stop("kube-scheduler")

    # -- objects

    async def prepare(self, nodes: int) -> None:
        """Creates nodes, namespaces, kinds and permissions."""
        for name in (NAMESPACE, SYSTEM):
            await self.admin.create(NAMESPACES, {"metadata": {"name": name}})
        for definition in load_definitions():
            await self.admin.create(DEFINITIONS, definition)
        role = {"apiGroup": BINDINGS.group, "kind": "ClusterRole", "name": "cluster-admin"}
        subjects = [{"apiGroup": BINDINGS.group, "kind": "User", "name": USER}]
        await self.admin.create(BINDINGS, {"metadata": {"name": USER}, "roleRef": role, "subjects": subjects})
        self.nodes = [f"node-{number:04}" for number in range(nodes)]
        await send_all(self._make_node(name) for name in self.nodes)
        await self._until_served(ACCOUNTS.path(NAMESPACE, "default"))
        await self._until_served(PLACEMENTS.path(SYSTEM))

    async def _make_node(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name, ASSIGNS_DEVICES: "true"}
        await self.admin.create(NODES, {"metadata": {"name": name, "labels": labels}})
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(GPUS)}
        ready = {"type": "Ready", "status": "True", "reason": "Benchmark", "message": ""}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        await self.admin.patch(NODES, name, {"status": status}, "", "status")
        # A new node is tainted until the node controller has seen it.
        await self.admin.patch(NODES, name, {"spec": {"taints": None}})

    async def _until_served(self, path: str) -> None:
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    await self.admin.request("GET", path)
                    return
                except NotFound:
                    await asyncio.sleep(0.2)

    async def fill(self, scheduler: str, size: int) -> None:
        """Creates all pods in gangs of one size; 0 for plain pods."""
        await self.clear()
        if not size:
            await make_pods(self.admin, (describe_pod(f"pod-{n:05}", scheduler) for n in range(self.pods)))
        else:
            await send_all((self.make_gang(scheduler, size) for _ in range(self.pods // size)), 64 // size)

    async def make_gang(self, scheduler: str, size: int) -> None:
        """Creates a native gang and its pods. No name is used twice: the deletion of a PodGroup takes time."""
        name = f"gang-{next(self.names):05}"
        policy = {"gang": {"minCount": size}}
        spec: Json
        membership: Json
        if self.plane.minor == "1.35":
            spec = {"podGroups": [{"name": "workers", "policy": policy}]}
            membership = {"workloadRef": {"name": name, "podGroup": "workers"}}
        else:
            spec, membership = {"schedulingPolicy": policy}, {"schedulingGroup": {"podGroupName": name}}
        await self.admin.create(self._groups, {"metadata": {"name": name}, "spec": spec}, NAMESPACE, type=Object)
        await make_pods(self.admin, (describe_pod(f"{name}-{n}", scheduler, **membership) for n in range(size)))

    async def clear(self) -> None:
        """Deletes all pods and gangs."""
        await remove_all(self.admin, PODS)
        await remove_all(self.admin, self._groups)

    @property
    def _groups(self) -> Resource:
        return GROUPS[self.plane.minor]


async def find_in_flight(bench: Bench) -> int:
    """The number of requests in flight with which the bare client is fastest."""
    rates = {}
    for in_flight in IN_FLIGHT:
        await bench.fill(USER, 0)
        rates[in_flight] = round(await measure_ceiling(bench.user, bench.nodes, in_flight))
    best = max(rates, key=lambda in_flight: rates[in_flight])
    print(f"bare client, pods/s by requests in flight: {rates}", flush=True)
    return best


async def measure_turn(bench: Bench, size: int, in_flight: int, settle: float) -> Json:
    """Measures the ceiling and both schedulers, one after the other."""
    await bench.fill(USER, size)
    found: Json = {"ceiling_per_s": round(await measure_ceiling(bench.user, bench.nodes, in_flight))}
    for scheduler, name in SCHEDULERS.items():
        await bench.fill(name, size)
        found[scheduler] = await measure_scheduler(bench.admin, bench.start(scheduler), bench.pods, settle)
    ours, theirs = found["gpu_scheduler"], found["kube_scheduler"]
    found["speed_up"] = ours["pods_per_s"] / theirs["pods_per_s"]
    found["cpu_ratio"] = ours["cpu_s"] / theirs["cpu_s"]
    found["of_ceiling"] = ours["pods_per_s"] / found["ceiling_per_s"]
    return found


async def measure_latency(bench: Bench, scheduler: str, gangs: int) -> Json:
    """The time that single gangs of 8 take on the loaded cluster, in ms."""
    took: list[float] = []
    async with watched(bench.admin) as pods, bench.start(scheduler) as process:
        for _ in range(WARM_UP + gangs):
            wanted = len(pods.bound) + 8
            await bench.make_gang(SCHEDULERS[scheduler], 8)
            made = time.perf_counter()
            await pods.wait_bound(wanted, process)
            took.append(max(0.0, pods.last - made) * 1000)
    took = sorted(took[WARM_UP:])
    return {"p50_ms": round(statistics.median(took)), "p99_ms": round(took[int(0.99 * len(took))])}


def summarise(turns: list[Json]) -> Json:
    """The median of each measurement."""

    def middle(values: list[float], digits: int) -> float:
        found = round(statistics.median(values), digits)
        return found if digits else int(found)

    first = turns[0]
    found: Json = {"ceiling_per_s": middle([turn["ceiling_per_s"] for turn in turns], 0)}
    for scheduler in SCHEDULERS:
        found[scheduler] = {
            key: middle([turn[scheduler][key] for turn in turns if key in turn[scheduler]], 2 if "cpu" in key else 0)
            for key in first[scheduler]
        }
    return found | {key: middle([turn[key] for turn in turns], 2) for key in ("speed_up", "cpu_ratio", "of_ceiling")}


async def run(bench: Bench, options: argparse.Namespace) -> Json:
    """Runs all measurements, in turns."""
    await bench.prepare(options.nodes)
    in_flight = await find_in_flight(bench)
    turns: dict[str, list[Json]] = {kind: [] for kind in SIZES}
    for number in range(options.runs):
        for kind, size in SIZES.items():
            # Events have a lower priority: wait once for their cost.
            settle = 60.0 if kind == "gang8" and not number else 0.0
            turns[kind].append(await measure_turn(bench, size, in_flight, settle))
            print(f"{kind}: {turns[kind][-1]}", flush=True)
    found: Json = {kind: summarise(turns[kind]) for kind in SIZES}
    gangs = min(options.gangs, (options.nodes * GPUS - options.pods) // 8 - WARM_UP)
    latency: Json = {"gangs": gangs}
    for scheduler in SCHEDULERS:
        await bench.fill(USER, 8)
        await measure_ceiling(bench.user, bench.nodes, in_flight)
        latency[scheduler] = await measure_latency(bench, scheduler, gangs)
    await bench.clear()
    return {
        "version": await bench.admin.server_version(),
        "nodes": options.nodes,
        "pods": options.pods,
        "runs": options.runs,
        "in_flight": in_flight,
        **found,
        "latency": latency,
        "refused_requests": await count_refused(bench.admin),
    }


async def count_refused(client: Client) -> int:
    """Requests that API priority and fairness rejected."""
    text = (await client.request("GET", "/metrics")).decode()
    lines = [line for line in text.splitlines() if line.startswith("apiserver_flowcontrol_rejected_requests_total")]
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def show(found: Json) -> None:
    """Prints a table."""
    print(f"\nKubernetes {found['version']}, {found['nodes']} nodes, {found['pods']} pods, runs: {found['runs']}")
    print(f"{'':<9}{'pods/s':>24}{'':>23}{'CPU seconds':>19}{'':>7}{'memory (MB)':>15}")
    heads = ("ceiling", "kube", "ours", "of kube", "of ceiling", "kube", "ours", "of kube", "kube", "ours")
    widths = (9, 8, 8, 9, 12, 9, 8, 9, 8, 7)
    print(" " * 8 + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for kind in SIZES:
        row, kube, ours = found[kind], found[kind]["kube_scheduler"], found[kind]["gpu_scheduler"]
        cells = (
            *(row["ceiling_per_s"], kube["pods_per_s"], ours["pods_per_s"], row["speed_up"], row["of_ceiling"]),
            *(kube["cpu_s"], ours["cpu_s"], row["cpu_ratio"], kube["rss_mb"], ours["rss_mb"]),
        )
        print(f"{kind:<8}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
    rest = [f"{name} {found['gang8'][name]['cpu_s_at_rest']} s" for name in SCHEDULERS]
    print(f"CPU once all Events of gang8 are written: {', '.join(rest)}")
    times = [
        f"{name} {found['latency'][name]['p50_ms']} / {found['latency'][name]['p99_ms']} ms" for name in SCHEDULERS
    ]
    print(f"one gang of 8 at a time, {found['latency']['gangs']} of them, p50 / p99: {', '.join(times)}")
    print(f"requests refused by the API server: {found['refused_requests']}\n")


def main() -> None:
    """Parses the command line and runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", choices=sorted(GROUPS), default="1.37")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=3072)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--gangs", type=int, default=100, help="single gangs whose latency is measured")
    options = parser.parse_args()
    if options.pods % 64 or options.pods + 8 * (WARM_UP + 1) > options.nodes * GPUS:
        parser.error(f"--pods has to be a multiple of 64, and fit on the nodes, of {GPUS} GPUs each")
    compile_program()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind
    found: list[Json] = []

    async def work() -> None:
        more = {
            "kube-apiserver": ["--max-requests-inflight=4000", "--max-mutating-requests-inflight=2000"],
            "kube-controller-manager": [f"--controllers={CONTROLLERS[options.version]}"],
            "kube-scheduler": ["--kube-api-qps=5000", "--kube-api-burst=5000"],
        }
        with ControlPlane(options.version, more=more) as plane:
            admin, user = (load_connection(plane.kubeconfig(*name)) for name in ((), (USER,)))
            async with Client(admin, in_flight=256, timeout=60.0) as one, Client(user, in_flight=256) as other:
                found.append(await run(Bench(plane, one, other, options.pods), options))

    run_loop(work())
    show(found[0])
    print(json.dumps(found[0]))


if __name__ == "__main__":
    main()
