"""Nodes for tests: an API over a store, a fleet that runs pods, and helpers to inspect them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from embedded_kube.admission.admission import Admission
from embedded_kube.client import InProcessClient
from embedded_kube.errors import StatusError
from embedded_kube.node import FleetRunner, FleetSettings
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable
from embedded_kube.registry.options import SYSTEM
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.schema.schemas import Schemas
from embedded_kube.storage.store import Store
from embedded_kube.subresources.binding import bind
from embedded_kube.subresources.kubelet import ExecSession, PodLogOptions
from gpu_scheduler.gangs.pods.device_claim import read_device_claim
from gpu_scheduler.k8s.objects import Json

TIMEOUT = 60.0
"""Seconds after which a test fails."""

T = TypeVar("T")


class Nodes:
    """A fleet and its API."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.store = Store(folder / "state.db")
        kinds = KindTable(builtin_kinds("1.35"))
        schemas = Schemas("1.35")
        self.admission = Admission(self.store, kinds, schemas)
        self.api = ObjectRegistry(self.store, kinds, schemas, self.admission.admit, self.admission.validate)
        self.client = InProcessClient(self.api, SYSTEM)
        chosen = {"nodes": 2, "cpu": "64", "memory": "256Gi", "back_off": 0.3, "back_off_limit": 0.6, **settings}
        self.fleet = FleetRunner(
            self.client, FleetSettings(folder=folder / "pods", read_device_claim=read_device_claim, **chosen)
        )

    # -- objects

    async def create(self, resource: str, found: Json) -> Json:
        if resource not in ("namespaces", "nodes", "persistentvolumes"):
            found["metadata"].setdefault("namespace", "default")
        return await self.client.create(resource, found)

    async def run(self, name: str, script: str = "", *, node: str = "node1", **spec: Any) -> Json:
        """Creates a pod of one container that runs a shell script, and binds it to a node as a scheduler does."""
        meta: Json = {"name": name, **spec.pop("metadata", {})}
        container: Json = {"name": "main", "image": "x", **spec.pop("container", {})}
        if script:
            container["command"] = ["sh", "-c", script]
        await self.create("pods", {"metadata": meta, "spec": {"containers": [container], **spec}})
        return await self.bind(name, node)

    async def bind(self, name: str, node: str, annotations: dict[str, str] | None = None) -> Json:
        binding = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "target": {"kind": "Node", "name": node},
        }
        bind(self.api, "default", name, binding)
        return await self.pod(name)

    async def pod(self, name: str) -> Json:
        return await self.client.get("pods", "default", name)

    async def container(self, name: str, container: str = "main") -> Json:
        status = (await self.pod(name)).get("status") or {}
        both = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        return next((item for item in both if item["name"] == container), {})

    async def events(self, name: str) -> list[tuple[str, str]]:
        found = await self.client.list("events")
        return [(item["reason"], item["message"]) for item in found if item["involvedObject"]["name"] == name]

    # -- waiting

    async def until(self, ask: Callable[[], Awaitable[T | None]]) -> T:
        """Waits until `ask` returns a true value, and returns it."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await ask()
                if answer:
                    return answer
                if self.running.done():
                    self.running.result()
                await asyncio.sleep(0.01)

    async def until_phase(self, name: str, *phases: str) -> Json:
        async def ask() -> Json | None:
            pod = await self.pod(name)
            return pod if (pod.get("status") or {}).get("phase") in phases else None

        return await self.until(ask)

    async def until_gone(self, name: str) -> None:
        async def ask() -> bool:
            try:
                await self.pod(name)
            except StatusError as error:
                return error.code == 404
            return False

        await self.until(ask)

    async def until_event(self, name: str, reason: str) -> str:
        async def ask() -> str | None:
            return next((text for found, text in await self.events(name) if found == reason), None)

        return await self.until(ask)

    async def until_log(self, name: str, text: str, **options: Any) -> str:
        async def ask() -> str | None:
            with contextlib.suppress(StatusError):
                found = await self.logs(name, **options)
                return found if text in found else None
            return None

        return await self.until(ask)

    # -- logs and exec

    async def logs(self, name: str, container: str = "main", **options: Any) -> str:
        pod = await self.pod(name)
        kubelet = self.fleet.kubelets[pod["spec"]["nodeName"]]
        pieces = [piece async for piece in kubelet.logs(pod, PodLogOptions(container, **options))]
        return b"".join(pieces).decode()

    async def execute(self, name: str, *command: str, stdin: bytes | None = None, tty: bool = False) -> tuple[int, str]:
        pod = await self.pod(name)
        output: list[bytes] = []

        async def write(_stream: int, data: bytes) -> None:
            output.append(data)

        async def feed() -> AsyncIterator[bytes]:
            if stdin is not None:
                yield stdin

        terminal = ExecSession(command, "main", tty, feed() if stdin is not None else None, write)
        code = await self.fleet.kubelets[pod["spec"]["nodeName"]].execute(pod, terminal)
        return code, b"".join(output).decode()

    # -- running

    async def begin(self) -> None:
        for name in ("default", "kube-node-lease", "other"):
            with contextlib.suppress(StatusError):
                await self.client.create("namespaces", {"metadata": {"name": name}})
        self.running = asyncio.create_task(self.fleet.run())
        await self.until(self._is_ready)

    async def _is_ready(self) -> bool:
        return self.fleet.ready.is_set()

    async def end(self) -> None:
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running
        await self.admission.close()
        self.store.close()


@contextlib.asynccontextmanager
async def nodes(folder: Path, **settings: Any) -> AsyncIterator[Nodes]:
    """Runs a fleet in a folder; the same folder again is the same cluster after a restart."""
    found = Nodes(folder, **settings)
    await found.begin()
    try:
        yield found
    finally:
        await found.end()


def processes_with(mark: str) -> list[int]:
    """Returns the processes whose command line contains a text."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
    return found
