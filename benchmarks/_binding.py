"""Shared by live.py and side_by_side.py: pods, a watch that counts bound ones, a bare client, a scheduler process."""

from __future__ import annotations

import asyncio
import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import gpu_scheduler
from gpu_scheduler.gangs.contract import DEVICES, VISIBLE_DEVICES
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import Conflict, NotFound
from gpu_scheduler.k8s.informer import Informer, ObjectChange
from gpu_scheduler.k8s.objects import Json, Object, PodObject
from gpu_scheduler.k8s.resources import PODS, Resource

NAMESPACE = "benchmark"
GPU = "nvidia.com/gpu"
TIMEOUT = 300.0
PROGRAM = (sys.executable, "-m", "gpu_scheduler.cli.main")


class Pods:
    """The pods of the benchmark, followed by a watch: how many are bound."""

    def __init__(self, client: Client) -> None:
        self.bound: set[str] = set()
        self.last = 0.0
        self.informer = Informer(client, PODS, PodObject, self._on_event, namespace=NAMESPACE)

    def _on_event(self, changes: Sequence[ObjectChange[PodObject]]) -> None:
        for change in changes:
            if change.object.spec.node_name and change.object.metadata.uid not in self.bound:
                self.bound.add(change.object.metadata.uid)
                self.last = time.perf_counter()

    async def wait_bound(self, count: int, process: int | None = None) -> None:
        """Returns once so many are bound; `process` is the scheduler that binds them, and has to stay alive."""
        end = time.monotonic() + TIMEOUT
        while len(self.bound) < count:
            if time.monotonic() > end or (process is not None and not _is_alive(process)):
                raise SystemExit(f"only {len(self.bound)} of {count} pods were bound")
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(client: Client) -> AsyncIterator[Pods]:
    """Within the block, an open watch of pods."""
    pods = Pods(client)
    task = asyncio.create_task(pods.informer.run())
    try:
        await pods.informer.wait_synced()
        yield pods
    finally:
        task.cancel()


async def send_all(requests: Iterable[Awaitable[object]], at_once: int = 64) -> None:
    """Sends requests, some at a time."""
    pending = iter(list(requests))

    async def work() -> None:
        for request in pending:
            await request

    await asyncio.gather(*[work() for _ in range(at_once)])


async def make_pods(client: Client, pods: Iterable[Json]) -> None:
    """Creates pods."""
    await send_all(client.create(PODS, pod, NAMESPACE, type=Object) for pod in pods)


def describe_pod(name: str, scheduler: str, annotations: dict[str, str] | None = None, **spec: object) -> Json:
    """A pod with one GPU; `spec` is further fields of its spec."""
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {GPU: "1"}}
    whole = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "any", "resources": resources}],
        **spec,
    }
    meta = {"name": name, "namespace": NAMESPACE, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": whole}


async def remove_all(client: Client, resource: Resource) -> None:
    """Deletes all objects of a kind and waits until they are gone."""
    while found := (await client.list(resource, NAMESPACE, type=Object)).items:
        await send_all(_remove(client, resource, each.metadata.name) for each in found)


async def _remove(client: Client, resource: Resource, name: str) -> None:
    with suppress(NotFound, Conflict):
        await client.delete(resource, name, NAMESPACE, grace=0)


async def measure_ceiling(client: Client, nodes: Sequence[str], in_flight: int) -> float:
    """Pods bound per second by a client that decides nothing, with an open watch of pods."""
    async with watched(client) as pods:
        waiting = sorted(pods.informer.objects.values(), key=lambda pod: pod.metadata.name)
        begun = time.perf_counter()
        await send_all(
            (_bind(client, pod, nodes[n % len(nodes)], n // len(nodes)) for n, pod in enumerate(waiting)), in_flight
        )
        await pods.wait_bound(len(waiting))
        return len(waiting) / (pods.last - begun)


async def _bind(client: Client, pod: PodObject, node: str, device: int) -> None:
    """Sends the request that the scheduler sends."""
    meta = pod.metadata
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": {DEVICES: str(device), VISIBLE_DEVICES: str(device)},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await client.request("POST", PODS.path(meta.namespace, meta.name, "binding"), body=body)


@asynccontextmanager
async def our_scheduler(kubeconfig: Path) -> AsyncIterator[int]:
    """Our scheduler as a process, with its defaults; yields its pid."""
    with tempfile.TemporaryFile() as log:
        command = [*PROGRAM, "scheduler", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220
        try:
            yield process.pid
        except SystemExit:
            log.seek(0)
            sys.stderr.buffer.write(log.read()[-5000:])
            raise
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, 30)


def compile_program() -> None:
    """Compiles the scheduler's modules, as its installation does."""
    compileall.compile_dir(str(Path(gpu_scheduler.__file__).parent), quiet=2)


async def measure_scheduler(
    client: Client, running: AbstractAsyncContextManager[int], count: int, settle: float = 0.0
) -> Json:
    """Starts a scheduler on waiting pods, and waits for the last bind; returns the time that took, and the usage
    once the process has become idle, at most `settle` seconds after that."""
    async with watched(client) as pods:
        begun = time.perf_counter()
        async with running as process:
            await pods.wait_bound(count, process)
            cpu, memory = usage(process)
            found = {"pods_per_s": round(count / (pods.last - begun)), "cpu_s": round(cpu, 2), "rss_mb": round(memory)}
            if settle:
                found["cpu_s_at_rest"] = round(await _rest(process, settle), 2)
            return found


async def _rest(process: int, longest: float) -> float:
    """The processor time of a process once it is idle."""
    end = time.monotonic() + longest
    used, _ = usage(process)
    while time.monotonic() < end:
        await asyncio.sleep(2.0)
        before, (used, _) = used, usage(process)
        if used - before < 0.04:
            break
    return used


def usage(process: int) -> tuple[float, float]:
    """Processor time in seconds and peak memory in MB of a process."""
    fields = _stat(process)
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) / 1024


def _is_alive(process: int) -> bool:
    try:
        return _stat(process)[0] not in "ZX"
    except OSError:
        return False


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
