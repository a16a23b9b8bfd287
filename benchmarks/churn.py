"""Long-term churn compressed: thousands of gangs are created, run and deleted. Does the scheduler stay the same?

Usage: churn.py [--gangs N] [--at-once N] [--nodes N | --kubeconfig FILE [--scheduler-kubeconfig FILE]]

Starts a local cluster with simulated nodes, or uses an existing one, and a scheduler beside it. Gangs of 1 to 8 pods,
half of them as Volcano PodGroups and half by annotations, run for a moment and are deleted. The memory of the scheduler
is sampled meanwhile; at the end its self-check must find no mismatch, no Placement may be left and the Lease must name
none. The last line is JSON; the exit code is 1 if something was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gpu_scheduler.gangs.contract import GANG, GANG_MIN, GROUP, PLACEMENTS, SYSTEM
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import load_connection
from gpu_scheduler.k8s.errors import Conflict, NotFound
from gpu_scheduler.k8s.informer import ChangeKind, Informer, ObjectChange
from gpu_scheduler.k8s.objects import Json, Object, PodObject
from gpu_scheduler.k8s.resources import LEASES, PODS, Resource
from gpu_scheduler.scheduler.commit.commit_log import CommitLease

PROGRAM = (sys.executable, "-m", "gpu_scheduler.cli.main")
PODGROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
GROUP_NAME = "scheduling.k8s.io/group-name"
GPU = "nvidia.com/gpu"
NAMESPACE = "default"
TIMEOUT = 600.0


class Ended:
    """Follows the pods; knows when all pods of a gang have ended, and when they are gone."""

    def __init__(self, client: Client) -> None:
        self.left: dict[str, int] = {}
        self.present: dict[str, int] = {}
        self.events: dict[str, asyncio.Event] = {}
        self._over: set[str] = set()
        self.informer = Informer(client, PODS, PodObject, self._on_event, namespace=NAMESPACE)

    def _on_event(self, changes: Sequence[ObjectChange[PodObject]]) -> None:
        for kind, pod, _ in changes:
            gang = (pod.metadata.labels or {}).get("gang", "")
            if kind is ChangeKind.DELETED:
                self._over.discard(pod.metadata.uid)
                self.present[gang] -= 1
            elif pod.status.phase == "Succeeded" and pod.metadata.uid not in self._over:
                self._over.add(pod.metadata.uid)
                self.left[gang] -= 1
            if (not self.left.get(gang) or not self.present.get(gang)) and gang in self.events:
                self.events[gang].set()

    async def wait(self, gang: str, counts: dict[str, int]) -> None:
        """Returns once the count of a gang is zero."""
        while counts[gang] > 0:
            self.events[gang].clear()
            try:
                async with asyncio.timeout(TIMEOUT):
                    await self.events[gang].wait()
            except TimeoutError:
                raise SystemExit("\n".join([f"{gang} hangs for {TIMEOUT:g} s", *self._describe(gang)])) from None

    def _describe(self, gang: str) -> Iterator[str]:
        """The state of each pod of a gang."""
        for pod in self.informer.objects.values():
            if (pod.metadata.labels or {}).get("gang") == gang:
                messages = [found.message for found in pod.status.conditions or ()]
                yield f"{pod.metadata.name}: {pod.status.phase}, {pod.spec.node_name or 'no node'}, {messages}"


def make_gang(number: int) -> tuple[str, list[Json], Json | None]:
    """A gang's name, its pods, and its PodGroup if it has one."""
    chosen = random.Random(number)
    name, size = f"gang-{number}", chosen.randint(1, 8)
    volcano = number % 2 == 0
    notes = {GROUP_NAME: name} if volcano else {GANG: name, GANG_MIN: str(size)}
    notes[f"{GROUP}/simulate-duration"] = f"{chosen.uniform(0.1, 0.5):.2f}"
    resources = {"limits": {GPU: str(chosen.choice([1, 1, 2, 4]))}}
    pods = [
        {
            "metadata": {"name": f"{name}-{index}", "labels": {"gang": name}, "annotations": notes},
            "spec": {
                "schedulerName": "volcano" if volcano else "gpu-scheduler",
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "any", "resources": resources}],
            },
        }
        for index in range(size)
    ]
    group = {"metadata": {"name": name}, "spec": {"minMember": size}} if volcano else None
    return name, pods, group


async def live(client: Client, ended: Ended, number: int) -> None:
    """Creates a gang, waits for its end, and deletes it."""
    name, pods, group = make_gang(number)
    ended.left[name] = ended.present[name] = len(pods)
    ended.events[name] = asyncio.Event()
    if group is not None:
        await client.create(
            PODGROUPS, {"apiVersion": PODGROUPS.api_version, "kind": "PodGroup", **group}, NAMESPACE, type=Object
        )
    for pod in pods:
        await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, NAMESPACE, type=Object)
    await ended.wait(name, ended.left)
    for pod in pods:
        with suppress(NotFound, Conflict):
            await client.delete(PODS, pod["metadata"]["name"], NAMESPACE, grace=0)
    if group is not None:
        await client.delete(PODGROUPS, name, NAMESPACE)
    await ended.wait(name, ended.present)
    del ended.left[name], ended.present[name], ended.events[name]


async def churn(client: Client, scheduler: subprocess.Popen[bytes], options: argparse.Namespace) -> list[float]:
    """Runs all gangs, some at a time; returns samples of the scheduler's memory in MB."""
    ended = Ended(client)
    watch = asyncio.create_task(ended.informer.run())
    await ended.informer.wait_synced()
    numbers, memory = iter(range(options.gangs)), []
    step = max(1, options.gangs // 20)

    async def work() -> None:
        for number in numbers:
            await live(client, ended, number)
            if number % step == step - 1:
                memory.append(_memory(scheduler.pid))
                print(f"{number + 1} gangs, {memory[-1]:.0f} MB", flush=True)

    await asyncio.gather(*[work() for _ in range(options.at_once)])
    watch.cancel()
    return memory


def _memory(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def find_leftovers(client: Client, scheduler: subprocess.Popen[bytes], log: Path) -> list[str]:
    """What should be gone, and the mismatches of the self-check."""
    end = time.monotonic() + 30
    while True:
        placements = (await client.list(PLACEMENTS, SYSTEM, type=Object)).items
        lease = await client.get(LEASES, "gpu-scheduler", SYSTEM, type=CommitLease)
        if (not placements and not lease.committed) or time.monotonic() > end:
            break
        await asyncio.sleep(0.5)
    found = [f"Placement {placement.metadata.name}" for placement in placements]
    found += [f"the Lease names {name}" for name in lease.committed]
    scheduler.send_signal(signal.SIGUSR1)
    while "self-check finished" not in _text_of(log):
        if time.monotonic() > end + 60:
            return [*found, "the self-check did not finish"]
        await asyncio.sleep(0.2)
    return found + [line for line in _text_of(log).splitlines() if "self-check found a difference" in line]


def _text_of(log: Path) -> str:
    return log.read_text()


async def run(options: argparse.Namespace, folder: Path) -> Json:
    """Runs the churn, then looks for leftovers."""
    log = folder / "scheduler.log"
    flags = (
        "--kubeconfig",
        str(options.scheduler_kubeconfig or options.kubeconfig),
        "--listen",
        "127.0.0.1:0",
        "--scheduler-name",
        "volcano",
    )
    async with Client(load_connection(options.kubeconfig), in_flight=64, timeout=60.0) as client:
        with _running([*PROGRAM, "scheduler", *flags], log) as scheduler:
            begun = time.monotonic()
            memory = await churn(client, scheduler, options)
            took = time.monotonic() - begun
            left = await find_leftovers(client, scheduler, log)
    return {
        "gangs": options.gangs,
        "gangs_per_s": round(options.gangs / took, 1),
        "rss_mb": [round(value) for value in memory],
        "leftovers": left,
    }


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Within the block, a running process."""
    with open(log, "ab") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def _local_cluster(folder: Path, nodes: int) -> Iterator[None]:
    """Within the block, a local cluster without a scheduler."""
    flags = ("--port", "0", "--data-dir", str(folder / "cluster"), "--no-scheduler")
    size = ("--runtime", "simulated", "--nodes", str(nodes))
    with _running([*PROGRAM, "up", *flags, *size], folder / "cluster.log") as cluster:
        while not (folder / "cluster/running.json").exists():
            if cluster.poll() is not None:
                raise SystemExit(f"the local cluster did not start: {(folder / 'cluster.log').read_text()}")
            time.sleep(0.05)
        yield


def main() -> None:
    """Parses the command line and runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gangs", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--kubeconfig", type=Path, help="a cluster that is there")
    parser.add_argument("--scheduler-kubeconfig", type=Path, help="the scheduler's own account in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="churn-") as name, ExitStack() as stack:
        folder = Path(name)
        if options.kubeconfig is None:
            stack.enter_context(_local_cluster(folder, options.nodes))
            options.kubeconfig = folder / "cluster/kubeconfig"
        result = asyncio.run(run(options, folder))
    print(json.dumps(result))
    if result["leftovers"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
