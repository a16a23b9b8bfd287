"""A live scheduler against a local cluster: the process, the cluster as a test sees it, and the invariants."""

from __future__ import annotations

import http.client
import itertools
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import urlopen

from gpu_scheduler.cli.local_cluster import SCHEDULER_NAMES
from gpu_scheduler.k8s.objects import Json
from tests.integration.fault_proxy import FaultProxy
from tests.integration.running import PROGRAM, TIMEOUT, Cluster, Http, eventually

DEVICES = "gpu-scheduler.io/devices"
SYSTEM = "gpu-scheduler-system"
_INDEX = re.compile(r"(?<![\w.-])\d+(?![\w.-])")
_CLUSTER_WIDE = {"Node": "nodes", "PriorityClass": "priorityclasses", "Queue": "queues", "Namespace": "namespaces"}
_ENDED = ("Succeeded", "Failed")
_WORKERS = 16
"""How many workers have their own port range."""


# -- our programs


class Program:
    """A long-running `gpu-scheduler` command as a process. `log` is its output and that of its predecessors."""

    def __init__(self, name: str, kubeconfig: Path, folder: Path, *flags: str) -> None:
        self._name = name
        self._kubeconfig = kubeconfig
        self._flags = flags
        self.log = folder / f"{name}-{secrets.token_hex(4)}.log"
        self.process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self) -> None:
        """Starts the process without waiting for it."""
        self.port = free_port()
        command = [*PROGRAM, self._name, "--kubeconfig", str(self._kubeconfig), "--listen", f"127.0.0.1:{self.port}"]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([*command, *self._flags], stdout=log, stderr=log, text=True)

    def wait_ready(self) -> None:
        """Waits until it is ready: its caches have synced."""
        eventually(lambda: self.is_ready() or not self.is_alive(), f"the {self._name} to be ready")
        assert self.is_alive(), f"the {self._name} ended: {self.text()}"

    def run(self) -> Self:
        """Starts the process and waits until it is ready."""
        self.start()
        self.wait_ready()
        return self

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def is_ready(self) -> bool:
        return self.ask("/readyz")[0] == 200

    def ask(self, path: str) -> tuple[int, str]:
        """A status code and a text of its health server; 0 without a reply."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=TIMEOUT) as reply:
                return reply.status, reply.read().decode()
        except OSError as error:
            return getattr(error, "code", 0), ""

    def stop(self) -> int:
        """Stops the process as a kubelet would; returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(TIMEOUT)

    def kill(self) -> None:
        """Kills the process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(TIMEOUT)

    def pause(self) -> None:
        """Suspends the process; `resume` continues it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Makes sure that the process is gone."""
        if self.is_alive():
            self.kill()

    def end_allowed(self) -> None:
        """Makes sure that the process is gone, and that its account was refused nothing."""
        self.end()
        refused = [line for line in self.text().splitlines() if "forbidden: User" in line]
        assert not refused, refused

    def text(self) -> str:
        """Its output."""
        return self.log.read_text() if self.log.exists() else ""


class Scheduler(Program):
    """A `gpu-scheduler scheduler` for every scheduler name in use."""

    def __init__(self, kubeconfig: Path, folder: Path, *flags: str) -> None:
        names = [word for name in SCHEDULER_NAMES for word in ("--scheduler-name", name)]
        super().__init__("scheduler", kubeconfig, folder, *names, *flags)


class Operator(Program):
    """A `gpu-scheduler operator`, which installs missing job definitions."""

    def __init__(self, kubeconfig: Path, folder: Path, *flags: str) -> None:
        super().__init__("operator", kubeconfig, folder, "--install-crds", *flags)


def _own_ports() -> Iterator[int]:
    """The ports of this worker in turn: none belongs to another worker, and none is reused before the others."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    ours = range(20_000 + worker, 32_000, _WORKERS)
    first = random.SystemRandom().randrange(len(ours))  # other test runs may share the machine
    return itertools.cycle((*ours[first:], *ours[:first]))


_ports = _own_ports()


def free_port() -> int:
    """A free port outside the system's ephemeral range."""
    for port in _ports:
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable: there is always a next port")


# -- the cluster as a test sees it


@dataclass
class Live:
    """One namespace of a cluster with a scheduler."""

    cluster: Cluster
    namespace: str
    http: Http = field(init=False)

    def __post_init__(self) -> None:
        self.http = Http(self.cluster.folder)

    def ask(self, method: str, path: str, body: Json | None = None, **headers: str | None) -> Json:
        """A request that must succeed."""
        status, found = self.http.ask(method, path, body, **headers)
        assert status < 300, f"{method} {path}: {status} {found}"
        return found

    def path(self, kind: str, version: str = "v1", name: str = "") -> str:
        """The path of objects of a kind, in this namespace if the kind is namespaced."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        plural = _CLUSTER_WIDE.get(kind) or f"namespaces/{self.namespace}/{kind.lower()}s"
        return f"{root}/{plural}" + (f"/{name}" if name else "")

    def create(self, *objects: Json) -> None:
        """Creates objects, one after the other."""
        for found in objects:
            self.ask("POST", self.path(found["kind"], found["apiVersion"]), found)

    def get(self, kind: str, name: str, version: str = "v1") -> Json:
        """Reads one object."""
        return self.ask("GET", self.path(kind, version, name))

    def patch(self, kind: str, name: str, body: Json, version: str = "v1", subresource: str = "") -> Json:
        """Merges fields into an object."""
        path = self.path(kind, version, name) + (f"/{subresource}" if subresource else "")
        return self.ask("PATCH", path, body, content_type="application/merge-patch+json")

    def change_node(self, name: str, change: Json) -> None:
        """Merges fields into a node, and waits until the scheduler has seen it: nodes and pods have separate
        watches, so events of pods may arrive first."""
        word, meta = secrets.token_hex(8), change.get("metadata", {})
        labels = {**meta.get("labels", {}), "heard": word}
        self.patch("Node", name, {**change, "metadata": {**meta, "labels": labels}})
        pods, asked = "/api/v1/namespaces/default/pods", f"asked-{word}"
        spec: Json = {"schedulerName": "gpu-scheduler", "containers": [{"name": "main", "image": "any"}]}
        spec |= {"nodeSelector": {"heard": word}, "tolerations": [{"operator": "Exists"}]}
        self.ask("POST", pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": asked}, "spec": spec})
        try:
            eventually(
                lambda: self.ask("GET", f"{pods}/{asked}")["spec"].get("nodeName"), f"the change of {name} to be seen"
            )
        finally:
            self.ask("DELETE", f"{pods}/{asked}", {"gracePeriodSeconds": 0})

    def delete(self, kind: str, name: str, version: str = "v1", grace: int | None = None) -> None:
        """Deletes an object; one that is gone already is fine."""
        body: Json | None = {"gracePeriodSeconds": grace} if grace is not None else None
        status, found = self.http.ask("DELETE", self.path(kind, version, name), body)
        assert status < 300 or status == 404, found

    # -- pods

    def pods(self) -> dict[str, Json]:
        """All pods of the namespace by name."""
        return {pod["metadata"]["name"]: pod for pod in self.ask("GET", self.path("Pod"))["items"]}

    def bound(self) -> dict[str, str]:
        """The node of every bound pod."""
        return {name: pod["spec"]["nodeName"] for name, pod in self.pods().items() if pod["spec"].get("nodeName")}

    def devices(self, name: str) -> tuple[int, ...]:
        """The GPU indices of a pod."""
        return devices_of(self.get("Pod", name))

    def wait_bound(self, *names: str) -> dict[str, str]:
        """Waits until these pods are bound; without names, until all pods are bound and there is one."""

        def look() -> dict[str, str]:
            pods = self.pods()
            wanted: Collection[str] = names or pods
            nodes = {name: pods.get(name, {}).get("spec", {}).get("nodeName") for name in wanted}
            return nodes if nodes and all(nodes.values()) else {}

        return eventually(look, f"nodes for {names or 'every pod'} of {self.namespace}")

    def wait_reason(self, name: str, *patterns: str) -> str:
        """Waits until the PodScheduled condition of a pod contains all these texts; returns the message."""

        said = ""

        def look() -> str:
            nonlocal said
            conditions = self.pods().get(name, {}).get("status", {}).get("conditions", ())
            said = next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled"), "")
            return said if all(re.search(pattern, said) for pattern in patterns) else ""

        try:
            return eventually(look)
        except AssertionError:
            raise AssertionError(
                f"pod {name} should say {' and '.join(map(repr, patterns))}; it says {said!r}"
            ) from None

    def stays_unbound(self, *names: str, seconds: float = 1.0) -> None:
        """Checks that none of these pods is bound for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            early = self.bound().keys() & set(names)
            assert not early, f"{sorted(early)} should have waited"
            time.sleep(0.05)

    def events_of(self, name: str) -> list[tuple[str, str]]:
        """The reason and message of every Event about an object."""
        found = self.ask("GET", self.path("Event"))["items"]
        return [(one["reason"], one["message"]) for one in found if one["involvedObject"]["name"] == name]

    def wait_event(self, name: str, reason: str) -> str:
        """Waits for an Event about an object; returns its message."""

        def look() -> list[str]:
            return [message for said, message in self.events_of(name) if said == reason]

        return eventually(look, f"an Event {reason} of {name}")[0]


class World:
    """Clusters, proxies and schedulers for one test; all are removed afterwards."""

    def __init__(self, own: Callable[..., Cluster], stack: ExitStack) -> None:
        self._own = own
        self._stack = stack

    def cluster(self, *arguments: str) -> Live:
        """Starts a cluster of simulated nodes without a scheduler, and returns its default namespace; takes the
        arguments of `up`."""
        cluster = self._own("--runtime", "simulated", *arguments)
        cluster.start()
        found = Live(cluster, "default")
        self._stack.callback(found.http.close)
        return found

    def proxy(self, live: Live, seed: int = 0) -> FaultProxy:
        """A fault proxy for a cluster."""
        return self._stack.enter_context(FaultProxy(live.cluster, seed))

    def scheduler(self, wire: FaultProxy | Live, *flags: str) -> Scheduler:
        """A scheduler behind such a proxy or directly on a cluster, not started yet."""
        if isinstance(wire, FaultProxy):
            found = Scheduler(wire.kubeconfig, wire.kubeconfig.parent, *flags)
        else:
            found = Scheduler(wire.cluster.scheduler_kubeconfig, wire.cluster.folder.parent, *flags)
        self._stack.callback(found.end_allowed)
        return found


# -- promises


def devices_of(pod: Json) -> tuple[int, ...]:
    """The GPU indices in a pod's annotation."""
    text = pod["metadata"].get("annotations", {}).get(DEVICES, "")
    return tuple(sorted({int(number) for number in _INDEX.findall(text)}))


def double_devices(pods: Collection[Json]) -> list[str]:
    """Every GPU that live pods use beyond its capacity, without having asked to share it."""
    held: dict[tuple[str, int], list[Json]] = {}
    for pod in pods:
        node, phase = pod["spec"].get("nodeName"), pod.get("status", {}).get("phase")
        if node and phase not in _ENDED:
            for index in devices_of(pod):
                held.setdefault((node, index), []).append(pod)
    found = []
    for (node, index), holders in held.items():
        maps = {_map_of(pod) for pod in holders}
        if sum(_milli_of(pod) for pod in holders) > 1000 and (len(maps) > 1 or maps == {("", "")}):
            names = sorted(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in holders)
            found.append(f"{node} GPU {index}: {', '.join(names)}")
    return found


def _milli_of(pod: Json) -> int:
    return int(pod["metadata"].get("annotations", {}).get("gpu-scheduler.io/gpu-milli", "1000"))


def _map_of(pod: Json) -> tuple[str, str]:
    text = pod["metadata"].get("annotations", {}).get("gpu-scheduling-map", "")
    lines = sorted("".join(line.split()) for line in text.splitlines() if line.strip())
    return (pod["metadata"]["namespace"], "\n".join(lines)) if lines else ("", "")


def no_double_devices(cluster: Cluster) -> None:
    """Checks promise S1 now."""
    talk = Http(cluster.folder)
    _, pods = talk.ask("GET", "/api/v1/pods")
    talk.close()
    assert double_devices(pods["items"]) == []


class DeviceGuard:
    """Checks for doubly used GPUs throughout a block; fails at the end of the block if some were found."""

    def __init__(self, cluster: Cluster) -> None:
        self._http = Http(cluster.folder)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="device guard", daemon=True)
        self.looks = 0
        self.found: set[str] = set()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            with suppress(OSError, http.client.HTTPException):
                _, pods = self._http.ask("GET", "/api/v1/pods")
                self.found.update(double_devices(pods.get("items", [])))
                self.looks += 1

    def __enter__(self) -> DeviceGuard:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(TIMEOUT)
        self._http.close()
        if error is None:
            assert not self.found, f"used twice: {sorted(self.found)}"


def leader(cluster: Cluster) -> Json:
    """The scheduler's Lease; {} if there is none."""
    talk = Http(cluster.folder)
    _, found = talk.ask("GET", f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases")
    talk.close()
    return next(iter(found.get("items", [])), {})


def processes_of(cluster: Cluster, command: str = "") -> list[int]:
    """The processes with the cluster's folder in their environment: its own parts, or the process of a command."""
    mark, word = f"KUBECONFIG={cluster.folder}/".encode(), f"\0{command}\0".encode() if command else b""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            process = Path(f"/proc/{name}")
            if mark in (process / "environ").read_bytes() and word in (process / "cmdline").read_bytes():
                found.append(int(name))
    return found
