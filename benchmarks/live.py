"""The throughput of the live scheduler on the local cluster, next to that of a bare client on the same API server.

Usage: live.py [--nodes N] [--gpus N] [--pods N] [--in-flight N] [--runs N]

A local cluster with simulated nodes is started for the run; side_by_side.py does the same on a real control plane. For
each gang size the pods exist before anything starts. First a bare client binds them all, with an open watch of pods:
the ceiling. Then they are recreated, and the scheduler is started as a process: the time is from its start to the last
visible bind, including the start of its interpreter. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._binding import (
    GPU,
    NAMESPACE,
    PROGRAM,
    compile_program,
    describe_pod,
    make_pods,
    measure_ceiling,
    measure_scheduler,
    our_scheduler,
    remove_all,
)
from gpu_scheduler.gangs.contract import GANG, GANG_MIN
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import load_connection
from gpu_scheduler.k8s.objects import Json, NodeObject
from gpu_scheduler.k8s.resources import NAMESPACES, NODES, PODS

SIZES = (8, 64)


async def make_gangs(client: Client, count: int, size: int) -> None:
    """Pods in gangs of one size."""
    await make_pods(
        client,
        (
            describe_pod(f"pod-{n:05}", "gpu-scheduler", {GANG: f"gang-{n // size}", GANG_MIN: str(size)})
            for n in range(count)
        ),
    )


async def find_nodes(client: Client) -> list[str]:
    """The nodes that have reported their capacity."""
    listed = (await client.list(NODES, type=NodeObject)).items
    return [node.metadata.name for node in listed if GPU in (node.status.allocatable or {})]


async def run(options: argparse.Namespace, kubeconfig: Path) -> Json:
    """Both measurements for each gang size, one after the other."""
    found: Json = {}
    async with Client(load_connection(kubeconfig), in_flight=256, timeout=60.0) as client:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        while len(names := await find_nodes(client)) < options.nodes:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
        for size in SIZES:
            results = []
            for _ in range(options.runs):
                await make_gangs(client, options.pods, size)
                ceiling = await measure_ceiling(client, names, options.in_flight)
                await remove_all(client, PODS)
                await make_gangs(client, options.pods, size)
                result = await measure_scheduler(client, our_scheduler(kubeconfig), options.pods, settle=3.0)
                await remove_all(client, PODS)
                result["ceiling_per_s"] = round(ceiling)
                result["of_ceiling"] = round(result["pods_per_s"] / ceiling, 2)
                results.append(result)
                print(f"gangs of {size}: {result}", flush=True)
            found[f"gang{size}"] = sorted(results, key=lambda result: result["of_ceiling"])[len(results) // 2]
    return found


def main() -> None:
    """Parses the command line and runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--pods", type=int, default=3072)
    parser.add_argument("--in-flight", type=int, default=32, help="requests of the bare client")
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    compile_program()
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
