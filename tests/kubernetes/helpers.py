"""Helpers for tests on a real API: waiting, pods, binds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.api import Answer, Api

Found = TypeVar("Found")

TIMEOUT = 180.0
"""Timeout of every wait, in seconds; enough for a busy machine."""


async def eventually(look: Callable[[], Awaitable[Found]], what: str, patience: float = TIMEOUT) -> Found:
    """Polls until the function returns something, and returns it."""
    end = asyncio.get_running_loop().time() + patience
    while True:
        found = await look()
        if found:
            return found
        assert asyncio.get_running_loop().time() < end, f"waited {patience:g} s for {what}; at last: {found!r}"
        await asyncio.sleep(0.1)


def pod(name: str, *, meta: Json | None = None, **spec: Any) -> Json:
    """A pod without a scheduler, unless `schedulerName` is given."""
    plain = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "any"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **(meta or {})}, "spec": {**plain, **spec}}


def binding(name: str, node: str, **meta: Any) -> Json:
    """A Binding of a pod; `meta` is further metadata."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **meta}, "target": target}


class Pods:
    """The pods of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    async def create(self, found: Json) -> Json:
        """Creates a pod."""
        return await self._api.must("POST", self.path, found)

    async def get(self, name: str) -> Json:
        """Reads a pod."""
        return await self._api.must("GET", f"{self.path}/{name}")

    async def bind(self, name: str, node: str, **meta: Any) -> Answer:
        """Binds a pod to a node."""
        return await self._api.ask("POST", f"{self.path}/{name}/binding", binding(name, node, **meta))

    async def delete(self, name: str, **options: Any) -> Answer:
        """Deletes a pod; `options` is the body."""
        return await self._api.ask("DELETE", f"{self.path}/{name}", options)

    async def gone(self, name: str) -> bool:
        """Whether there is no pod of that name."""
        return (await self._api.ask("GET", f"{self.path}/{name}")).code == 404

    async def wait(self, name: str, phase: str) -> Json:
        """Waits until a pod is in a phase; returns the pod."""

        async def look() -> Json | None:
            found = await self.get(name)
            return found if (found.get("status") or {}).get("phase") == phase else None

        found = await eventually(look, f"pod {name} to be {phase}")
        assert found is not None
        return found
