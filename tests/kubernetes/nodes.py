"""Nodes for a real control plane: the local cluster's node agent, connected to any Kubernetes API.

Pods go through their phases by their `gpu-scheduler.io/simulate-...` annotations, without processes.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from embedded_kube.client import SYNCED
from embedded_kube.errors import StatusError
from embedded_kube.node.fleet import FleetSettings, read_fleet
from embedded_kube.node.runner import FleetRunner
from gpu_scheduler.gangs.pods.device_claim import read_device_claim
from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.api import Api

_TIMEOUT = 180.0
_FAREWELL = 20.0


class HttpClient:
    """The client of the node agent over HTTP; see `embedded_kube.client`."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._groups: dict[str, str] = {}

    async def _path(self, resource: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
        plural, _, group = resource.partition(".")
        root = "/api/v1"
        if group:
            if group not in self._groups:
                known = await self._ask("GET", f"/apis/{group}")
                self._groups[group] = known["preferredVersion"]["groupVersion"]
            root = f"/apis/{self._groups[group]}"
        space = f"namespaces/{namespace}" if namespace else ""
        return "/".join(part for part in (root, space, plural, name, subresource) if part)

    async def _ask(self, method: str, path: str, body: Json | None = None) -> Json:
        """Sends a request, and retries while the API is unreachable: nodes outlive its restarts."""
        while True:
            try:
                answer = await self._api.ask(method, path, body)
                break
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(1)
        if answer.code >= 300:
            raise StatusError(answer.code, answer.reason, answer.message, answer.body.get("details"))
        return answer.body

    async def get(self, resource: str, namespace: str, name: str) -> Json:
        """Reads one object."""
        return await self._ask("GET", await self._path(resource, namespace, name))

    async def list(self, resource: str, namespace: str = "") -> list[Json]:
        """Reads all objects, of one namespace if given."""
        found: list[Json] = (await self._ask("GET", await self._path(resource, namespace)))["items"]
        return found

    async def create(self, resource: str, found: Json) -> Json:
        """Creates an object in the namespace that it names."""
        path = await self._path(resource, found["metadata"].get("namespace", ""))
        return await self._ask("POST", path, found)

    async def update(self, resource: str, found: Json, subresource: str = "") -> Json:
        """Updates an object; fails with a conflict if it has changed since it was read."""
        meta = found["metadata"]
        path = await self._path(resource, meta.get("namespace", ""), meta["name"], subresource)
        return await self._ask("PUT", path, found)

    async def edit(
        self, resource: str, namespace: str, name: str, change: Callable[[Json], Json], subresource: str = ""
    ) -> Json:
        """Applies `change` to the latest version; repeated after a conflict."""
        while True:
            changed = change(await self.get(resource, namespace, name))
            try:
                return await self.update(resource, changed, subresource)
            except StatusError as error:
                if error.reason != "Conflict":
                    raise

    async def delete(
        self, resource: str, namespace: str, name: str, *, uid: str | None = None, grace: int | None = None
    ) -> None:
        """Deletes an object; one that is gone already is fine."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self._ask("DELETE", await self._path(resource, namespace, name), options)
        except StatusError as error:
            if error.code != 404:
                raise

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the API."""
        found = urlsplit(self._api.server)
        return found.hostname or "", found.port or 443

    async def account_files(self, namespace: str, account: str) -> Json:
        """The files that a pod of a service account needs to reach the API."""
        path = await self._path("serviceaccounts", namespace, account, "token")
        found = await self._ask("POST", path, {"spec": {"expirationSeconds": 3600}})
        trusted = await self.get("configmaps", namespace, "kube-root-ca.crt")
        return {"token": found["status"]["token"], "namespace": namespace, **trusted["data"]}

    async def watch(self, resource: str) -> AsyncIterator[tuple[str, Json]]:
        """Every existing object as ADDED, then SYNCED, then every change; reconnects when the connection breaks."""
        path = await self._path(resource)
        seen: dict[str, Json] = {}
        synced = False
        while True:
            listed = await self._ask("GET", path)
            before, seen = seen, {item["metadata"]["uid"]: item for item in listed["items"]}
            for uid, item in before.items():
                if uid not in seen:
                    yield "DELETED", item
            for uid, item in seen.items():
                yield ("MODIFIED" if uid in before else "ADDED"), item
            if not synced:
                synced = True
                yield SYNCED, {}
            async for event, item in self._follow(path, listed["metadata"]["resourceVersion"]):
                uid = item["metadata"]["uid"]
                if event == "DELETED":
                    seen.pop(uid, None)
                else:
                    seen[uid] = item
                yield event, item

    async def _follow(self, path: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        """Every change after a version, until the API no longer has that version."""
        while True:
            try:
                async with self._api.watch(path, {"resourceVersion": version}) as events:
                    async for event in events:
                        item: Json = event["object"]
                        if event["type"] == "ERROR":
                            return
                        version = item["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            yield event["type"], item
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(1)


@asynccontextmanager
async def simulated_nodes(api: Api, count: int = 4, **group: Any) -> AsyncIterator[list[str]]:
    """Within the block, nodes that pods can be bound to, by name; ready and without taints.

    `group` is a node group of a fleet file: gpus, cpu, memory, pods, labels, taints, racks, zones, prefix.
    """
    group_spec: Json = {"prefix": f"simulated-{secrets.token_hex(3)}-", "runtime": "simulated", "count": count, **group}
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        file = Path(folder) / "fleet.json"  # JSON is YAML
        file.write_text(json.dumps([group_spec]))
        client = HttpClient(api)
        names: list[str] = []
        try:
            pods = Path(folder) / "pods"
            settings = FleetSettings(pods, file=file, isolate=False, read_device_claim=read_device_claim)
            async with running_nodes(client, settings) as names:
                yield names
        finally:
            for start in range(0, count, 50):
                await asyncio.gather(*(_remove(client, name) for name in names[start : start + 50]))


@asynccontextmanager
async def running_nodes(client: HttpClient, settings: FleetSettings) -> AsyncIterator[list[str]]:
    """Runs nodes within the block, from when they are ready; yields their names. Their objects stay."""
    fleet = FleetRunner(client, settings)
    fleet.api, fleet.account_files = client.address, client.account_files
    wanted = {spec.name: {taint["key"] for taint in spec.group.taints} for spec in read_fleet(settings)}
    task = asyncio.create_task(fleet.run())
    try:
        async with asyncio.timeout(_TIMEOUT + len(wanted) / 20):
            await _until_registered(task, fleet)
            await _until_untainted(client, wanted)
        yield list(wanted)
    finally:
        task.cancel()
        await asyncio.wait((task,), timeout=_FAREWELL)  # a failing API server must not keep them


async def _until_registered(task: asyncio.Task[None], fleet: FleetRunner) -> None:
    ready = asyncio.create_task(fleet.ready.wait())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        ready.cancel()
        await task


async def _until_untainted(client: HttpClient, wanted: Mapping[str, set[str]]) -> None:
    """A new node is tainted as not ready until the node controller has seen its condition."""
    while True:
        nodes = {item["metadata"]["name"]: item["spec"].get("taints") or () for item in await client.list("nodes")}
        if all(name in nodes and {taint["key"] for taint in nodes[name]} <= keys for name, keys in wanted.items()):
            return
        await asyncio.sleep(0.1)


async def _remove(client: HttpClient, name: str) -> None:
    await client.delete("nodes", "", name)
    await client.delete("leases.coordination.k8s.io", "kube-node-lease", name)
