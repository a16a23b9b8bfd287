"""The local API server with the scheduler's own kinds, behind a proxy that loses, delays or refuses requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from aiohttp import ClientError, web

from embedded_kube.registry.kinds import ServedKind
from embedded_kube.schema.crds import kinds_of
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.request_info import SubresourceHandler
from embedded_kube.server.tokens import Tokens
from embedded_kube.subresources.subresources import make_subresources
from gpu_scheduler.gangs.definitions import load_definitions
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.servers import ApiClient, api_server
from tests.unit.k8s.scripted_api import client_of, refuse

SCHEMAS = Schemas("1.35")
OUR_KINDS = tuple(kind for found in load_definitions() for kind in kinds_of(found))

Forward = Callable[[], Awaitable[web.Response]]
RequestHandler = Callable[[Forward], Awaitable[web.Response | None]]
"""Handles one request: `forward` passes it to the server; without a response the connection breaks."""


class Sent(NamedTuple):
    """A request that the proxy received."""

    method: str
    path: str
    body: Any
    size: int


class Proxy:
    """Forwards requests to the server, except those for which a test has made plans."""

    def __init__(self, server: ApiClient) -> None:
        self.server = server
        self.sent: list[Sent] = []
        self._plans: list[tuple[str, str, RequestHandler]] = []

    def plan(self, method: str, part: str, *acts: RequestHandler) -> None:
        """Sets how the next requests with this method and path part are handled, one after the other."""
        self._plans += [(method, part, act) for act in acts]

    def drop_plans(self) -> None:
        """Forwards every request from now on."""
        self._plans.clear()

    def count(self, method: str, part: str = "") -> int:
        """How many such requests were received."""
        return len(self.bodies(method, part))

    def bodies(self, method: str, part: str = "") -> list[Any]:
        """The bodies of such requests."""
        return [sent.body for sent in self.sent if sent.method == method and part in sent.path]

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        read = json.loads(body) if body else None
        self.sent.append(Sent(request.method, request.path, read, len(body)))

        async def forward() -> web.Response:
            kept = {name: request.headers[name] for name in ("Content-Type", "Accept") if name in request.headers}
            answer = await self.server.client.request(request.method, request.path_qs, data=body, headers=kept)
            data = await answer.read()
            return web.Response(body=data, status=answer.status, content_type=answer.content_type)

        if "watch" in request.query:
            return await self._stream(request)
        for plan in self._plans:
            if plan[0] == request.method and plan[1] in request.path:
                self._plans.remove(plan)
                found = await plan[2](forward)
                if found is None:
                    assert request.transport is not None
                    request.transport.abort()
                    return web.Response()
                return found
        return await forward()

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Forwards watches as a stream, regardless of plans."""
        response = web.StreamResponse()
        async with self.server.client.request("GET", request.path_qs) as answer:
            response.set_status(answer.status)
            with suppress(OSError, ClientError):
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
        return response


async def lose_request(_forward: Forward) -> None:
    """Drops the request."""


async def lose_response(forward: Forward) -> None:
    """Forwards the request and drops the response."""
    await forward()


def answer_with(code: int, retry_after: str | None = None, **more: Any) -> RequestHandler:
    """Answers with an error instead of forwarding."""

    async def act(_forward: Forward) -> web.Response:
        return refuse(code, retry_after, **more)

    return act


def after(first: Callable[[], Awaitable[Any]]) -> RequestHandler:
    """Runs something else just before the request is forwarded."""

    async def act(forward: Forward) -> web.Response:
        await first()
        return await forward()

    return act


@asynccontextmanager
async def live_server(*kinds: ServedKind) -> AsyncIterator[tuple[Client, ApiClient]]:
    """A local API server that serves the scheduler's own kinds, and a client of it."""
    table: dict[str, SubresourceHandler] = {}
    async with (
        api_server(kinds=(*OUR_KINDS, *kinds), subresources=table) as server,
        Client(Connection(str(server.client.make_url("")))) as client,
    ):
        table |= make_subresources(server.registry, {}, SCHEMAS, Tokens({}, "secret"))
        yield client, server


@asynccontextmanager
async def proxied(*kinds: ServedKind) -> AsyncIterator[tuple[Client, Proxy, Client]]:
    """A client behind a proxy, the proxy, and a client without it."""
    async with live_server(*kinds) as (bystander, server):
        proxy = Proxy(server)
        async with client_of(proxy) as client:
            yield client, proxy, bystander


@asynccontextmanager
async def running(work: Awaitable[Any]) -> AsyncIterator[asyncio.Future[Any]]:
    """Runs a coroutine while the block runs; raises what it raises."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def gpu_node(name: str = "n0", gpus: int = 4) -> Json:
    """A ready node whose GPUs the scheduler assigns."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name, "labels": {"gpu-scheduler.io/assigns-devices": "true"}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "x"}],
        },
    }


def gpu_pod(name: str, gpus: int = 1, **spec: Any) -> Json:
    """A pod of ours that requests GPUs."""
    meta: Json = {"name": name} | spec.pop("meta", {})
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}}
    containers = [{"name": "main", "image": "x", "resources": limits if gpus else {}}]
    return {"metadata": meta, "spec": {"schedulerName": "gpu-scheduler", "containers": containers} | spec}
