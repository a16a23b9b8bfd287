"""The speed of the local API server, over TLS, as its clients see it.

Usage: local_api.py [--pods N] [--nodes N] [--watchers N] [--rate EVENTS_PER_SECOND] [--seconds N]

The server runs in its own process with a data folder on disk, the clients in two others: one with 32 requests in
flight, one with the watchers. Events go to all watchers while the writer keeps the rate; one that is missing, duplicate
or out of order counts as lost. One watcher parses every event; the others count them and must have received the same
bytes, which leaves the processors to the server. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import ssl
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from embedded_kube.admission.admission import Admission
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable
from embedded_kube.registry.options import RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.server import ADMIN, ApiServerConfig, make_app
from embedded_kube.server.tokens import Tokens
from embedded_kube.storage.store import Store
from embedded_kube.subresources.subresources import make_subresources
from gpu_scheduler.base import certificates
from gpu_scheduler.k8s.objects import Json

IN_FLIGHT = 32
VERSION = "1.35"
TOKEN = "benchmark"
TIMEOUT = 120.0
"""How long watchers wait for the last event, in seconds."""
REVISION = re.compile(rb'"resourceVersion":"(\d+)"')


# -- the server's process


async def serve(folder: Path) -> None:
    """Serves until it is stopped; writes its port to the folder."""
    store = Store(folder / "state.db")
    kinds = KindTable(builtin_kinds(VERSION))
    schemas = Schemas(VERSION)
    admission = Admission(store, kinds, schemas)
    api = ObjectRegistry(store, kinds, schemas, admission.admit, admission.validate)
    tokens = Tokens({TOKEN: ADMIN}, "secret")
    for name in ("default", "fan-out"):
        await api.create(api.find("namespaces"), "", {"metadata": {"name": name}}, RequestOptions())
    handlers = make_subresources(api, {}, schemas, tokens)
    app = make_app(api, ApiServerConfig(schemas, VERSION, tokens, subresources=handlers))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    authority = certificates.make_authority()
    (folder / "ca.crt").write_bytes(authority.certificate)
    context = certificates.server_context(certificates.issue(authority, "kube-apiserver"))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    (folder / "port.new").write_text(str(port))
    (folder / "port.new").rename(folder / "port")
    await asyncio.Event().wait()


# -- a client


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the server."""

    folder: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{(self.folder / 'port').read_text()}"

    def is_ready(self) -> bool:
        return (self.folder / "port").exists()

    def session(self, connections: int) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        return aiohttp.ClientSession(
            self.url,
            connector=aiohttp.TCPConnector(limit=connections, ssl=context),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
        )


def make_node(index: int) -> Json:
    """A node like those of a fleet."""
    capacity = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}
    labels = {"kubernetes.io/hostname": f"node-{index}", "topology.kubernetes.io/rack": f"rack-{index // 16}"}
    status = {"capacity": capacity, "allocatable": capacity}
    return {"metadata": {"name": f"node-{index}", "labels": labels}, "spec": {}, "status": status}


def make_pod(name: str) -> Json:
    """A pod of a training job, about 1.5 KB in storage."""
    env = [{"name": key, "value": value} for key, value in (("MASTER_ADDR", "job-master-0"), ("WORLD_SIZE", "64"))]
    container = {
        "name": "pytorch",
        "image": "training:latest",
        "command": ["python", "-m", "torch.distributed.run", "train.py"],
        "env": [*env, {"name": "NCCL_DEBUG", "value": "INFO"}],
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4", "memory": "32Gi"}},
    }
    labels = {"app": "train", "training.kubeflow.org/job-name": "job", "training.kubeflow.org/replica-type": "worker"}
    annotations = {"scheduling.k8s.io/group-name": "job", "volcano.sh/task-spec": "worker"}
    spec = {"schedulerName": "gpu-scheduler", "restartPolicy": "Never", "containers": [container]}
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": spec}


async def in_flight(jobs: Iterable[Callable[[], Awaitable[None]]], width: int = IN_FLIGHT) -> float:
    """Runs jobs, so many at a time; returns how long it took."""
    waiting = iter(jobs)
    began = time.perf_counter()

    async def work() -> None:
        for job in waiting:
            await job()

    await asyncio.gather(*(work() for _ in range(width)))
    return time.perf_counter() - began


def post(session: aiohttp.ClientSession, path: str, found: Json) -> Callable[[], Awaitable[None]]:
    """Sends a request that must succeed."""
    data = json.dumps(found).encode()

    async def send() -> None:
        async with session.post(path, data=data) as response:
            answer = await response.read()
            if response.status != 201:
                raise RuntimeError(f"{path}: {response.status} {answer[:300]!r}")

    return send


def binding(name: str, node: int) -> Json:
    """A Binding with devices."""
    annotations = {"gpu-scheduler.io/devices": "0", "gpu-scheduler.io/visible-devices": "0"}
    target = {"kind": "Node", "name": f"node-{node}"}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations},
        "target": target,
    }


def resident(pid: int) -> int:
    """The memory of a process, in KB."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


def processor_time(pid: int) -> float:
    """The processor time of a process in seconds; more reliable than a rate on a busy machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_objects(place: Address, pid: int, nodes: int, pods: int) -> Json:
    """Measures creates, binds, lists and memory."""
    found: Json = {}
    home = "/api/v1/namespaces/default/pods"
    async with place.session(IN_FLIGHT) as session:
        took = await in_flight(post(session, "/api/v1/nodes", make_node(index)) for index in range(nodes))
        found["nodes_per_s"] = nodes / took
        before, used = resident(pid), processor_time(pid)
        took = await in_flight(post(session, home, make_pod(f"pod-{index}")) for index in range(pods))
        found["creates_per_s"] = pods / took
        found["create_cpu_us"], used = (processor_time(pid) - used) / pods * 1e6, processor_time(pid)
        jobs = (post(session, f"{home}/pod-{i}/binding", binding(f"pod-{i}", i % nodes)) for i in range(pods))
        found["binds_per_s"] = pods / await in_flight(jobs)
        found["bind_cpu_us"] = (processor_time(pid) - used) / pods * 1e6
        found["kb_per_pod"] = (resident(pid) - before) / pods
        times, size = [], 0
        for _ in range(5):
            began = time.perf_counter()
            async with session.get(home) as response:
                size = len(await response.read())
            times.append(time.perf_counter() - began)
        found["list_s"], found["list_mb"] = statistics.median(times), size / 1e6
        found["bytes_per_pod"] = size / pods
    return found


# -- watchers


async def write_events(place: Address, count: int, rate: float) -> float:
    """Creates objects of 1.5 KB at a rate; returns the rate that was reached."""
    home = "/api/v1/namespaces/fan-out/configmaps"
    began = time.perf_counter()
    async with place.session(IN_FLIGHT) as session:

        async def create(index: int) -> None:
            late = began + index / rate - time.perf_counter()
            if late > 0:
                await asyncio.sleep(late)
            await post(session, home, {"metadata": {"name": f"event-{index}"}, "data": {"x": "x" * 1_250}})()

        await in_flight(lambda index=index: create(index) for index in range(count))  # type: ignore[misc]
    return count / (time.perf_counter() - began)


@dataclass(slots=True)
class Received:
    """The events that one watcher received."""

    reads: bool
    events: int = 0
    checksum: int = 0
    parts: list[bytes] = field(default_factory=list)

    def add(self, chunk: bytes) -> None:
        self.events += chunk.count(b"\n")
        self.checksum = zlib.crc32(chunk, self.checksum)
        if self.reads:
            self.parts.append(chunk)

    def missed(self, count: int) -> int:
        """How many events of the parsing watcher are missing, duplicate or out of order."""
        revisions = [int(number) for number in REVISION.findall(b"".join(self.parts))]
        return count - len(set(revisions)) + sum(a >= b for a, b in itertools.pairwise(revisions))


async def watch(place: Address, watchers: int, count: int) -> None:
    """The process of the watchers: prints when all of them watch, and then what they received."""
    listening = 0
    everybody = asyncio.Event()

    async def follow(session: aiohttp.ClientSession, revision: str, received: Received) -> None:
        nonlocal listening
        path = f"/api/v1/namespaces/fan-out/configmaps?watch=true&resourceVersion={revision}"
        async with session.get(path) as response:
            listening += 1
            if listening == watchers:
                everybody.set()
            async for chunk in response.content.iter_any():
                received.add(chunk)
                if received.events >= count:
                    break

    async with place.session(watchers + 1) as session:
        async with session.get("/api/v1/namespaces/fan-out/configmaps") as response:
            revision = (await response.json())["metadata"]["resourceVersion"]
        all_received = [Received(reads=index == 0) for index in range(watchers)]
        tasks = [asyncio.create_task(follow(session, revision, received)) for received in all_received]
        await everybody.wait()
        print("listening", flush=True)
        _, waiting = await asyncio.wait(tasks, timeout=TIMEOUT)
        for task in waiting:
            task.cancel()
        lost = sum(abs(count - one.events) + (one.checksum != all_received[0].checksum) for one in all_received)
        lost += all_received[0].missed(count)
        print(json.dumps({"watch_lost": lost, "watch_events": sum(one.events for one in all_received)}), flush=True)


async def measure_watches(place: Address, pid: int, watchers: int, rate: float, seconds: float) -> Json:
    """Measures the delivery of events to many watchers."""
    count = int(rate * seconds)
    arguments = ["--role", "watch", "--folder", str(place.folder), "--watchers", str(watchers), "--count", str(count)]
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    began, used = time.perf_counter(), processor_time(pid)
    reached = await write_events(place, count, rate)
    results = json.loads(await process.stdout.readline())
    took = time.perf_counter() - began
    await process.wait()
    results["told_cpu_us"] = (processor_time(pid) - used) / max(1, results["watch_events"]) * 1e6
    return {**results, "events_per_s": reached, "told_per_s": results["watch_events"] / took}


# -- together


@asynccontextmanager
async def running_server() -> AsyncIterator[tuple[Address, int]]:
    """A server in its own process."""
    with tempfile.TemporaryDirectory(prefix="local-api-") as folder:
        place = Address(Path(folder))
        arguments = ["--role", "serve", "--folder", folder]
        process = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments)
        try:
            while not place.is_ready():
                if process.returncode is not None:
                    raise RuntimeError("the server did not start")
                await asyncio.sleep(0.02)
            yield place, process.pid
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


ROWS = (
    ("creates_per_s", "pod creates/s, 32 in flight", "{:,.0f}"),
    ("binds_per_s", "pod binds/s, 32 in flight", "{:,.0f}"),
    ("create_cpu_us", "server CPU per create, us", "{:,.0f}"),
    ("bind_cpu_us", "server CPU per bind, us", "{:,.0f}"),
    ("nodes_per_s", "node creates/s, 32 in flight", "{:,.0f}"),
    ("list_s", "list of all pods, seconds", "{:.3f}"),
    ("list_mb", "list of all pods, MB", "{:.1f}"),
    ("bytes_per_pod", "a pod on the wire, bytes", "{:,.0f}"),
    ("kb_per_pod", "memory per pod, KB", "{:.1f}"),
    ("events_per_s", "events/s written while watched", "{:,.0f}"),
    ("told_per_s", "events/s delivered, all watchers", "{:,.0f}"),
    ("told_cpu_us", "server CPU per delivered event, us", "{:,.1f}"),
    ("watch_lost", "events lost", "{:,.0f}"),
)


async def main(options: argparse.Namespace) -> None:
    """Runs all measurements and prints the results."""
    async with running_server() as (place, pid):
        found = await measure_objects(place, pid, options.nodes, options.pods)
        found |= await measure_watches(place, pid, options.watchers, options.rate, options.seconds)
    for name, title, form in ROWS:
        print(f"{title:<34} {form.format(found[name]):>12}")
    shown = {"creates_per_s": 0, "binds_per_s": 0, "watch_lost": 0, "kb_per_pod": 1}
    print(json.dumps({name: round(found[name], digits or None) for name, digits in shown.items()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--watchers", type=int, default=50)
    parser.add_argument("--rate", type=float, default=2_000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--role", choices=("main", "serve", "watch"), default="main", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role == "serve":
        asyncio.run(serve(chosen.folder))
    elif chosen.role == "watch":
        asyncio.run(watch(Address(chosen.folder), chosen.watchers, chosen.count))
    else:
        asyncio.run(main(chosen))
