"""How fast the live scheduler is, next to what the API server lets a bare client bind.

Usage: live.py [--kubeconfig FILE] [--nodes N] [--gpus N] [--pods N] [--in-flight N] [--runs N]

Without a kubeconfig a local cluster with simulated nodes is started for the time of the run. Elsewhere the nodes are
made if the cluster has too few with GPUs; a cluster with a node controller would soon call those not ready, so it has
to be a control plane for tests.

For each size of gang the pods exist before anything starts. First a bare client binds them all, with a pod watch open:
the ceiling. Then they are made anew, and the scheduler is started as a process: the time is from its start to the last
bind that is seen, its interpreter's start included. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from gpu_scheduler.kube.client import Client
from gpu_scheduler.kube.connection import load_connection
from gpu_scheduler.kube.errors import Conflict, NotFound
from gpu_scheduler.kube.informer import Change, Informer
from gpu_scheduler.kube.objects import NodeObject, Object, PodObject
from gpu_scheduler.kube.resources import GANG, GANG_MIN, NAMESPACES, NODES, PODS, SYSTEM

NAMESPACE = "live-benchmark"
GPU = "nvidia.com/gpu"
PATIENCE = 300.0
SIZES = (8, 64)
PROGRAM = (sys.executable, "-m", "gpu_scheduler.cli.main")

Json = dict[str, Any]


class Pods:
    """The pods of the benchmark, followed by a watch: how many have a node."""

    def __init__(self, client: Client) -> None:
        self.bound: set[str] = set()
        self.last = 0.0
        self.informer = Informer(client, PODS, PodObject, self._see, namespace=NAMESPACE)

    def _see(self, changes: Sequence[Change[PodObject]]) -> None:
        for change in changes:
            if change.object.spec.node_name and change.object.metadata.uid not in self.bound:
                self.bound.add(change.object.metadata.uid)
                self.last = time.perf_counter()

    async def wait_bound(self, count: int, alive: Any = None) -> None:
        """Returns once so many have a node."""
        end = time.monotonic() + PATIENCE
        while len(self.bound) < count:
            if time.monotonic() > end or (alive is not None and alive.poll() is not None):
                raise SystemExit(f"only {len(self.bound)} of {count} pods were bound")
            await asyncio.sleep(0.02)


@asynccontextmanager
async def watched(client: Client) -> AsyncIterator[Pods]:
    """A pod watch that is open while the block runs."""
    pods = Pods(client)
    task = asyncio.create_task(pods.informer.run())
    try:
        await pods.informer.wait_synced()
        yield pods
    finally:
        task.cancel()


async def make_pods(client: Client, count: int, size: int) -> None:
    """Pods of one GPU, in gangs of one size."""
    await _all(client.create(PODS, _pod(number, size), NAMESPACE, type=Object) for number in range(count))


def _pod(number: int, size: int) -> Json:
    gang = {GANG: f"gang-{number // size}", GANG_MIN: str(size)}
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {GPU: "1"}}
    spec = {
        "schedulerName": "gpu-scheduler",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "any", "resources": resources}],
        "tolerations": [{"operator": "Exists"}],
    }
    meta = {"name": f"pod-{number:05}", "namespace": NAMESPACE, "annotations": gang}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


async def remove_pods(client: Client) -> None:
    """Deletes the pods and waits until they are gone."""
    while True:
        found = (await client.list(PODS, NAMESPACE, type=Object)).items
        if not found:
            return
        await _all(_remove(client, pod.metadata.name) for pod in found)


async def _remove(client: Client, name: str) -> None:
    with suppress(NotFound, Conflict):
        await client.delete(PODS, name, NAMESPACE, grace=0)


async def _all(requests: Any, at_once: int = 64) -> None:
    """Sends requests, some at a time."""
    pending = iter(list(requests))

    async def work() -> None:
        for request in pending:
            await request

    await asyncio.gather(*[work() for _ in range(at_once)])


async def prepare(client: Client, nodes: int, gpus: int) -> list[str]:
    """The namespaces, and nodes with GPUs: those that are there, or new ones."""
    for name in (NAMESPACE, SYSTEM):
        with suppress(Conflict):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
    end = time.monotonic() + 20
    while True:
        listed = (await client.list(NODES, type=NodeObject)).items
        ready = [n.metadata.name for n in listed if int((n.status.allocatable or {}).get(GPU, 0)) >= gpus]
        if len(ready) >= nodes or not ready or time.monotonic() > end:
            break
        await asyncio.sleep(0.2)
    if len(ready) < nodes:
        await _all(_make_node(client, f"live-{number:04}", gpus) for number in range(nodes - len(ready)))
        ready += [f"live-{number:04}" for number in range(nodes - len(ready))]
    return ready[:nodes]


async def _make_node(client: Client, name: str, gpus: int) -> None:
    labels = {"kubernetes.io/hostname": name, "gpu-scheduler.io/assigns-devices": "true"}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(gpus)}
    ready = {"type": "Ready", "status": "True", "reason": "Benchmark", "message": ""}
    with suppress(Conflict):
        await client.create(NODES, {"metadata": {"name": name, "labels": labels}})
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    await client.patch(NODES, name, status, "", "status")
    # A real server taints new nodes until their own controller has seen them.
    await client.patch(NODES, name, {"spec": {"taints": None}})


async def measure_ceiling(client: Client, count: int, nodes: list[str], in_flight: int) -> float:
    """Pods bound a second by a client that decides nothing, with a pod watch open."""
    async with watched(client) as pods:
        waiting = sorted(pods.informer.objects.values(), key=lambda pod: pod.metadata.name)
        begun = time.perf_counter()
        await _all((_bind(client, pod, nodes[n % len(nodes)]) for n, pod in enumerate(waiting)), in_flight)
        await pods.wait_bound(count)
        return count / (pods.last - begun)


async def _bind(client: Client, pod: PodObject, node: str) -> None:
    meta = pod.metadata
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "annotations": {"gpu-scheduler.io/devices": "0", "gpu-scheduler.io/visible-devices": "0"},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await client.request("POST", PODS.path(meta.namespace, meta.name, "binding"), body=body)


async def measure_scheduler(client: Client, kubeconfig: Path, count: int, in_flight: int) -> Json:
    """Starts the scheduler, and waits for the last pod; what it took."""
    async with watched(client) as pods:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config, tempfile.TemporaryFile() as log:
            config.write(f"inFlight: {in_flight}\n")
            config.flush()
            flags = ("--kubeconfig", str(kubeconfig), "--config", config.name, "--listen", "127.0.0.1:0")
            begun = time.perf_counter()
            process = subprocess.Popen([*PROGRAM, "scheduler", *flags], stdout=log, stderr=log)  # noqa: ASYNC220
            try:
                await pods.wait_bound(count, process)
                cpu, memory = _usage(process.pid)
                await asyncio.sleep(3.0)  # what it tells people follows on a slower lane
                cpu_later, memory = _usage(process.pid)
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait, 30)
        return {
            "pods_per_s": round(count / (pods.last - begun)),
            "scheduler_cpu_s": round(cpu, 2),
            "scheduler_cpu_s_with_status": round(cpu_later, 2),
            "rss_mb": round(memory),
        }


def _usage(process: int) -> tuple[float, float]:
    """Seconds of processor time and the most memory, in MB, of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) / 1024


async def run(options: argparse.Namespace, kubeconfig: Path) -> Json:
    """Both measurements for each size of gang, one after the other."""
    found: Json = {}
    async with Client(load_connection(kubeconfig), in_flight=256, timeout=60.0) as client:
        nodes = await prepare(client, options.nodes, options.gpus)
        for size in SIZES:
            results = []
            for _ in range(options.runs):
                await remove_pods(client)
                await make_pods(client, options.pods, size)
                ceiling = await measure_ceiling(client, options.pods, nodes, options.in_flight)
                await remove_pods(client)
                await make_pods(client, options.pods, size)
                result = await measure_scheduler(client, kubeconfig, options.pods, options.in_flight)
                result["ceiling_per_s"] = round(ceiling)
                result["of_ceiling"] = round(result["pods_per_s"] / ceiling, 2)
                results.append(result)
                print(f"gangs of {size}: {result}", flush=True)
            found[f"gang{size}"] = sorted(results, key=lambda result: result["of_ceiling"])[len(results) // 2]
        await remove_pods(client)
    return found


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--pods", type=int, default=3072)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    if options.kubeconfig is not None:
        print(json.dumps(asyncio.run(run(options, options.kubeconfig))))
        return
    with tempfile.TemporaryDirectory(prefix="live-") as folder:
        flags = ("--runtime", "simulated", "--nodes", str(options.nodes), "--gpus", str(options.gpus), "--no-scheduler")
        command = [*PROGRAM, "up", "--port", "0", "--data-dir", folder, *flags]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as cluster:
            try:
                kubeconfig = Path(folder) / "kubeconfig"
                while not (Path(folder) / "running.json").exists():
                    if cluster.poll() is not None:
                        raise SystemExit("the local cluster did not start")
                    time.sleep(0.05)
                print(json.dumps(asyncio.run(run(options, kubeconfig))))
            finally:
                cluster.terminate()


if __name__ == "__main__":
    main()
