"""A small cluster for controller tests: the real registry over a store in memory, and simulated nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from embedded_kube.admission.admission import Admission
from embedded_kube.client import SYNCED, ClusterClient, InProcessClient
from embedded_kube.controllers import ControllerSettings, run_controllers
from embedded_kube.errors import StatusError
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable
from embedded_kube.registry.options import SYSTEM, DeleteOptions, RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.registry.timestamps import timestamp
from embedded_kube.schema.schemas import Schemas
from embedded_kube.storage.store import Store
from embedded_kube.subresources.binding import bind
from gpu_scheduler.k8s.objects import Json

TIMEOUT = 60.0
"""Seconds after which a test fails."""


class _ErrorLog(logging.Handler):
    """Collects error logs of the controllers; a test must not cause any."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class World:
    """A registry, the controllers, and simulated nodes that also schedule pods."""

    def __init__(self, path: Path | None = None, **settings: Any) -> None:
        self.store = Store(path)
        self.kinds = KindTable(builtin_kinds("1.35"))
        schemas = Schemas("1.35")
        self.admission = Admission(self.store, self.kinds, schemas)
        self.api = ObjectRegistry(self.store, self.kinds, schemas, self.admission.admit, self.admission.validate)
        self.client = InProcessClient(self.api, SYSTEM)
        self.controllers_client: ClusterClient = self.client
        chosen = {
            "job_backoff": 0.0,
            "node_check": 0.05,
            "cleanup_period": 0.1,
            "orphan_grace": 0.1,
            "node_grace": 60.0,
        }
        self.settings = ControllerSettings(kinds=self.kinds, **(chosen | settings))
        self.starts = True
        """Whether pods become ready once they run."""
        self.outcome: Callable[[Json], str | None] = lambda _pod: None
        """The phase in which a pod ends: "Succeeded", "Failed", or None if it keeps running."""
        self.dead: set[str] = set()
        """Nodes that no longer act."""
        self.starts_pod: Callable[[Json], bool] = lambda _pod: self.starts
        self.error_log = _ErrorLog()
        self.controllers: asyncio.Task[None] | None = None
        self.nodes: asyncio.Task[None] | None = None

    # -- running

    async def begin(self) -> None:
        """Starts everything, with two nodes."""
        logging.getLogger("embedded_kube.controllers").addHandler(self.error_log)
        for name in ("default", "kube-node-lease"):
            await self.create("namespaces", {"metadata": {"name": name}}, exists=True)
        for name in ("node1", "node2"):
            await self.add_node(name)
        self.start_controllers()
        self.nodes = asyncio.create_task(self._run_nodes())

    def start_controllers(self) -> None:
        self.controllers = asyncio.create_task(run_controllers(self.controllers_client, self.settings))

    async def kill_controllers(self) -> None:
        await _end(self.controllers)
        self.controllers = None

    async def end(self) -> None:
        """Stops everything; raises errors of the controllers."""
        if self.controllers is not None and self.controllers.done():
            self.controllers.result()
        await _end(self.controllers)
        await _end(self.nodes)
        await self.admission.close()
        self.store.close()
        logging.getLogger("embedded_kube.controllers").removeHandler(self.error_log)
        assert not self.error_log.found, "\n".join(self.error_log.found)

    # -- objects

    async def create(self, resource: str, found: Json, *, exists: bool = False) -> Json:
        """Creates an object, by default in the namespace "default"."""
        plural, _, group = resource.partition(".")
        if self.api.find(plural, group).namespaced:
            found["metadata"].setdefault("namespace", "default")
        try:
            return await self.client.create(resource, found)
        except StatusError as error:
            if not exists or error.reason != "AlreadyExists":
                raise
            return found

    async def edit(self, resource: str, name: str, change: Callable[[Json], object], subresource: str = "") -> None:
        """Changes an object in place."""

        def changed(found: Json) -> Json:
            change(found)
            return found

        await self.client.edit(resource, self._namespace(resource), name, changed, subresource)

    def get(self, resource: str, name: str) -> Json | None:
        entry = self.store.get(resource, self._namespace(resource), name)
        return entry.object() if entry is not None else None

    def all(self, resource: str, namespace: str = "") -> list[Json]:
        return [entry.object() for entry in self.store.entries(resource, namespace)]

    def names(self, resource: str) -> list[str]:
        return [entry.name for entry in self.store.entries(resource)]

    def pods(self, *, alive: bool = True) -> list[Json]:
        """All pods, or (`alive`) those that have not ended and are not being deleted."""
        found = self.all("pods")
        if not alive:
            return found
        return [
            pod
            for pod in found
            if not pod["metadata"].get("deletionTimestamp")
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def reasons(self) -> set[str]:
        """The reasons of all Events so far."""
        return {event["reason"] for event in self.all("events")}

    async def delete(self, resource: str, name: str, propagation: str = "Background") -> None:
        plural, _, group = resource.partition(".")
        kind = self.api.find(plural, group)
        options = DeleteOptions(propagation=propagation)
        await self.api.delete(kind, self._namespace(resource), name, options, RequestOptions())

    async def until(self, true: Callable[[], object], what: str = "") -> None:
        """Waits until a condition is true."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + TIMEOUT
        while not true():
            if self.controllers is not None and self.controllers.done():
                self.controllers.result()
            assert loop.time() < limit, f"still waiting: {what}"
            await asyncio.sleep(0.005)

    async def settle(self) -> None:
        """Waits until nothing has changed for 60 iterations of the event loop, however long they take."""
        seen, quiet = -1, 0
        while quiet < 60:
            quiet = quiet + 1 if seen == self.store.revision else 0
            seen = self.store.revision
            await asyncio.sleep(0.005)

    def _namespace(self, resource: str) -> str:
        plural, _, group = resource.partition(".")
        return "default" if self.api.find(plural, group).namespaced else ""

    # -- nodes

    async def add_node(self, name: str) -> None:
        """Adds a ready node."""
        labels = {"kubernetes.io/hostname": name}
        await self.create("nodes", {"metadata": {"name": name, "labels": labels}}, exists=True)
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": timestamp(), "reason": "KubeletReady"}
        await self.edit(
            "nodes", name, lambda found: found.setdefault("status", {}).update(conditions=[ready]), "status"
        )

    async def _run_nodes(self) -> None:
        turn = 0
        async for kind, pod in self.client.watch("pods"):
            if kind in ("DELETED", SYNCED):
                continue
            try:
                turn += 1
                await self._act_on(pod, turn)
            except StatusError as error:
                if error.code not in (404, 409):
                    raise

    async def _act_on(self, pod: Json, turn: int) -> None:
        meta, node = pod["metadata"], pod["spec"].get("nodeName")
        if meta.get("deletionTimestamp"):
            if node and node not in self.dead:
                await self.client.delete("pods", meta["namespace"], meta["name"], uid=meta["uid"], grace=0)
        elif not node:
            free = [name for name in self.names("nodes") if name not in self.dead]
            tainted = [name for name in free if not (self.get("nodes", name) or {}).get("spec", {}).get("taints")]
            named = _named_node(pod)
            if tainted or named:
                target = {"kind": "Node", "name": named or tainted[turn % len(tainted)]}
                bind(self.api, meta["namespace"], meta["name"], {"metadata": {"uid": meta["uid"]}, "target": target})
        elif node not in self.dead and pod["status"].get("phase") == "Pending" and self.starts_pod(pod):
            await self._set_status(pod, {"phase": "Running", "podIP": f"10.0.0.{turn % 250}"}, ready=True)
        elif node not in self.dead and pod["status"].get("phase") == "Running":
            end = self.outcome(pod)
            if end is not None:
                await self._set_status(pod, {"phase": end}, ready=False)

    async def _set_status(self, pod: Json, values: Json, *, ready: bool) -> None:
        meta = pod["metadata"]

        def change(found: Json) -> Json:
            status = {**found["status"], **values}
            others = [one for one in status.get("conditions", ()) if one["type"] != "Ready"]
            now = {"type": "Ready", "status": str(ready), "lastTransitionTime": timestamp()}
            return {**found, "status": {**status, "conditions": [*others, now]}}

        await self.client.edit("pods", meta["namespace"], meta["name"], change, "status")


def _named_node(pod: Json) -> str:
    """The node that a pod of a DaemonSet requires."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])
    fields = terms[0].get("matchFields")
    return str(fields[0]["values"][0]) if fields else ""


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is None:
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def running_world(path: Path | None = None, **settings: Any) -> AsyncIterator[World]:
    """A running cluster, stopped at the end."""
    world = World(path, **settings)
    await world.begin()
    try:
        yield world
    finally:
        await world.end()


def template(app: str = "web", **spec: Any) -> Json:
    """A pod template of one container."""
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "main", "image": "one"}], **spec}}


def deployment(name: str = "web", replicas: int = 3, **spec: Any) -> Json:
    """A Deployment."""
    selector = {"matchLabels": {"app": name}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": template(name), **spec},
    }


def job(name: str = "train", **spec: Any) -> Json:
    """A Job."""
    return {"metadata": {"name": name}, "spec": {"template": template(name, restartPolicy="Never"), **spec}}


def stateful_set(name: str = "db", replicas: int = 3, **spec: Any) -> Json:
    """A StatefulSet."""
    made = deployment(name, replicas, serviceName=name)
    made["spec"] |= spec
    return made
