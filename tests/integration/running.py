"""A running local cluster, and the ways in which tests use it: kubectl, plain HTTP, commands."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gpu_scheduler.k8s.objects import Json

Found = TypeVar("Found")

TIMEOUT = 180.0
"""Timeout of every wait, in seconds; on an idle machine almost everything takes less than a second."""

_SILENT = 10.0
"""The age in seconds from which a connection is not reused: servers close idle ones."""

PROGRAM = (sys.executable, "-m", "gpu_scheduler.cli.main")

kubernetes = ""
"""The version of the real control plane of every cluster (`--cluster=kubernetes`); empty for local clusters."""


def version() -> str:
    """The default version of Kubernetes."""
    return kubernetes or "1.35"


def _poll_period() -> float:
    """The time between two polls: each is expensive for a real API server."""
    return 0.1 if kubernetes else 0.05


def eventually(look: Callable[[], Found], what: str = "", patience: float = TIMEOUT) -> Found:
    """Polls until the function returns something, and returns it."""
    end = time.monotonic() + patience
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"waited {patience:g} s for {what or look.__name__}; at last: {found!r}"
        time.sleep(_poll_period())


def run_program(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a `gpu-scheduler` command to its end."""
    return subprocess.run(
        [*PROGRAM, *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def processes_with(text: str) -> list[str]:
    """The command lines on this machine that contain a text, except those that search for it."""
    # -ww: a line that is cut at the width of a terminal would hide the text.
    shown = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if text in line]


class Http:
    """Plain requests to a cluster: what kubectl would not send, and exact knowledge of when a write was
    acknowledged."""

    def __init__(self, folder: Path) -> None:
        running = json.loads((folder / "running.json").read_text())
        self.address = urlsplit(running["server"])
        self._token = (folder / "token").read_text().strip()
        trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._open = http.client.HTTPSConnection(
            self.address.hostname or "", self.address.port, timeout=TIMEOUT, context=trust
        )
        self._used = time.monotonic()

    def ask(self, method: str, path: str, body: Json | None = None, **headers: str | None) -> tuple[int, Json]:
        """Sends a request. A header that is None is left out; `content_type` means Content-Type."""
        given: dict[str, str | None] = {
            "authorization": f"Bearer {self._token}",
            "content-type": "application/json",
        }
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in given.items() if value is not None}
        try:
            reply, text = self._send(method, path, body, sent)
        except http.client.RemoteDisconnected:
            # Servers close idle connections. The outcome of a write is unknown then, but a read can be repeated.
            if method != "GET":
                raise
            reply, text = self._send(method, path, body, sent)
        try:
            return reply.status, json.loads(text)
        except ValueError:
            return reply.status, {"text": text.decode()}

    def _send(
        self, method: str, path: str, body: Json | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        if time.monotonic() - self._used > _SILENT:
            self._open.close()  # the server may be about to close it
        try:
            self._open.request(method, path, json.dumps(body) if body is not None else None, headers)
            reply = self._open.getresponse()
            text = reply.read()
            self._used = time.monotonic()
            return reply, text
        except (OSError, http.client.HTTPException):
            self._open.close()  # it contains half a reply: the next request needs a new connection
            raise

    def follow(self, path: str) -> Iterator[Json]:
        """The events of a watch, until the server ends it or the caller stops."""
        try:
            self._open.request("GET", path, headers={"authorization": f"Bearer {self._token}"})
            with self._open.getresponse() as reply:
                assert reply.status == 200, f"GET {path}: {reply.status} {reply.read()!r}"
                yield from map(json.loads, reply)
        finally:
            self._open.close()

    def close(self) -> None:
        self._open.close()


@dataclass
class Follower:
    """A running kubectl, such as `get -w` or `logs -f`."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern: str, times: int = 1) -> list[str]:
        """Waits until so many lines match; returns those lines."""

        def look() -> list[str]:
            found = [line for line in self.lines if re.search(pattern, line)]
            return found if len(found) >= times else []

        return eventually(look, f"{times} lines like {pattern!r} among {self.lines}")


@dataclass
class Cluster:
    """A running `gpu-scheduler up` in its own folder; or its equivalent with a real control plane."""

    folder: Path
    arguments: tuple[str, ...] = ()
    apart: bool = False
    """Whether it has its own session, as in its own terminal."""
    scheduled: bool = False
    """Whether a scheduler runs inside."""
    emptied: bool = False
    """Whether tests empty its namespaces themselves: a control plane would list every kind twice for each of them."""
    process: subprocess.Popen[str] = field(init=False)

    @property
    def log(self) -> Path:
        """The output of the cluster."""
        return self.folder.parent / f"{self.folder.name}.log"

    def launch(self) -> None:
        """Starts the cluster without waiting for it."""
        if kubernetes:
            command = [sys.executable, "-m", "tests.kubernetes.cluster", "--version", kubernetes]
            command += ["--without-controller", "namespace-controller"] if self.emptied else []
        else:
            command = [*PROGRAM, "up", "--port", "0", *(() if self.scheduled else ("--no-scheduler",))]
        command += ["--data-dir", str(self.folder), *self.arguments]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=self.apart)

    def start(self) -> None:
        """Starts the cluster and waits until it has announced its address."""
        self.launch()
        eventually(
            lambda: self.announced().get("pid") == self.process.pid or self.process.poll() is not None,
            "the cluster to start",
            3 * TIMEOUT if kubernetes else TIMEOUT,
        )
        assert self.process.poll() is None, f"the cluster did not start: {self.log.read_text()}"

    def announced(self) -> Json:
        """What the cluster announces to other commands."""
        try:
            found: Json = json.loads((self.folder / "running.json").read_text())
        except (OSError, ValueError):
            return {}
        return found

    @property
    def scheduler_kubeconfig(self) -> Path:
        """The kubeconfig of a scheduler: where there are accounts, one with exactly the permissions that it needs."""
        return self._kubeconfig_of("scheduler")

    @property
    def operator_kubeconfig(self) -> Path:
        """The kubeconfig of an operator, likewise."""
        return self._kubeconfig_of("operator")

    def _kubeconfig_of(self, part: str) -> Path:
        return self.folder / (f"{part}.kubeconfig" if kubernetes else "kubeconfig")

    def stop(self) -> int:
        """Stops the cluster as Ctrl-C does; returns its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(TIMEOUT)

    def kill(self) -> None:
        """Kills the cluster."""
        self.process.kill()
        self.process.wait(TIMEOUT)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for kubectl with this cluster and its own cache."""
        return {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig"), "HOME": f"{self.folder}-home"}

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs the real kubectl, whatever its result."""
        return subprocess.run(
            ["kubectl", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
            env=self.environment,
            check=False,
        )

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs the real kubectl, which must succeed; returns its output."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def following(self, *arguments: str) -> Iterator[Follower]:
        """Within the block, a running kubectl, with its errors."""
        command, pipe, same = ["kubectl", *arguments], subprocess.PIPE, subprocess.STDOUT
        with subprocess.Popen(command, stdout=pipe, stderr=same, text=True, env=self.environment) as process:
            follower = Follower(process)
            reader = threading.Thread(target=follower.read)
            reader.start()
            try:
                yield follower
            finally:
                process.kill()
                reader.join(TIMEOUT)


@dataclass(frozen=True)
class Kube:
    """kubectl in one namespace of a cluster."""

    cluster: Cluster
    namespace: str

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl, which must succeed; returns its output."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs kubectl, whatever its result."""
        return self.cluster.run("-n", self.namespace, *arguments, stdin=stdin)

    def fails(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs kubectl, which must fail; returns its error output."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} should have failed: {done.stdout}"
        return done.stdout + done.stderr

    def get(self, *arguments: str) -> Any:
        """Reads an object or a list."""
        return json.loads(self("get", *arguments, "-o", "json"))

    def names(self, *arguments: str) -> list[str]:
        """The names of the objects, sorted."""
        return sorted(item["metadata"]["name"] for item in self.get(*arguments)["items"])

    def apply(self, *objects: Json) -> str:
        """Applies objects as a user would with a file."""
        return self("apply", "-f", "-", stdin=as_list(*objects))

    def create(self, *objects: Json) -> str:
        """Creates objects as a user would with a file."""
        return self("create", "-f", "-", stdin=as_list(*objects))

    def path(self, resource: str, group: str = "") -> str:
        """The path of a resource of this namespace; the group includes its version, such as apps/v1."""
        return f"/{f'apis/{group}' if group else 'api/v1'}/namespaces/{self.namespace}/{resource}"

    def wait(self, what: str, *conditions: str) -> None:
        """Waits until each condition holds for one or several objects."""
        for condition in conditions:
            self("wait", f"--for={condition}", f"--timeout={TIMEOUT:g}s", *what.split())

    def wait_ready(self, *pods: str) -> None:
        """Waits until pods are ready."""
        self("wait", "--for=condition=Ready", f"--timeout={TIMEOUT:g}s", *(f"pod/{name}" for name in pods))

    def following(self, *arguments: str) -> Any:
        """Within the block, a running kubectl."""
        return self.cluster.following("-n", self.namespace, *arguments)


@contextmanager
def opened(cluster: Cluster, namespace: str) -> Iterator[Kube]:
    """Within the block, kubectl in a new namespace that is ready for pods."""
    server = Http(cluster.folder)
    place = f"/api/v1/namespaces/{namespace}"
    made: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    status, answer = server.ask("POST", "/api/v1/namespaces", made)
    assert status == 201, answer
    account = f"{place}/serviceaccounts/default"
    eventually(lambda: server.ask("GET", account)[0] == 200, "the account without which there are no pods")
    server.close()  # a test may last longer than servers keep idle connections
    yield Kube(cluster, namespace)
    server.ask("DELETE", place)
    server.close()


def as_list(*objects: Json) -> str:
    """Objects as the text of one file."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def container(script: str | None = None, name: str = "main", **more: Any) -> Json:
    """A container that runs a shell script; without one, a sleeper."""
    command = {"command": ["sh", "-c", script]} if script is not None else {}
    return {"name": name, "image": "any", **command, **more}


def pod(name: str, script: str | None = None, *, meta: Json | None = None, **spec: Any) -> Json:
    """A pod of one container by default. The binder of the tests binds it."""
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container(script)], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **(meta or {})}, "spec": spec}


def workload(kind: str, name: str, script: str | None = None, *, template: Json | None = None, **spec: Any) -> Json:
    """A Deployment, StatefulSet or Job of such pods; `template` adds to the spec of the pods."""
    inner: Json = pod(name, script, **(template or {}))["spec"]
    labels = {"app": name}
    if kind == "Job":
        inner.setdefault("restartPolicy", "Never")
    else:
        spec = {"selector": {"matchLabels": labels}, "replicas": 1, **spec}
    spec["template"] = {"metadata": {"labels": labels}, "spec": inner}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}


def headless(name: str, **selector: str) -> Json:
    """A headless Service, for the names of pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": selector},
    }


class Binder(threading.Thread):
    """Binds every pod of the default scheduler to the next schedulable node: these tests are not about placement."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="binder", daemon=True)
        self._http = Http(cluster.folder)
        self._over = threading.Event()

    def run(self) -> None:
        turn = itertools.count()
        while not self._over.wait(_poll_period()):
            with suppress(OSError, http.client.HTTPException):
                self._bind_all(turn)
        self._http.close()

    def _bind_all(self, turn: Iterator[int]) -> None:
        pending = self._list("/api/v1/pods?fieldSelector=spec.nodeName%3D")
        nodes = self._list("/api/v1/nodes?fieldSelector=spec.unschedulable%3Dfalse") if pending else []
        names = [node["metadata"]["name"] for node in nodes]
        for item in pending if names else ():
            meta, spec = item["metadata"], item["spec"]
            if spec["schedulerName"] != "default-scheduler" or spec.get("schedulingGates"):
                continue
            target = {"apiVersion": "v1", "kind": "Node", "name": names[next(turn) % len(names)]}
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
            body: Json = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
            self._http.ask("POST", path, body)

    def _list(self, path: str) -> list[Json]:
        """A list; empty while the cluster does not reply, the next poll tries again."""
        found: list[Json] = self._http.ask("GET", path)[1].get("items", [])
        return found

    def stop(self) -> None:
        self._over.set()
        self.join(TIMEOUT)
