"""Scripted API servers, and clients of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.credentials import Credential, StaticCredential
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import Resource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Watch = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


@asynccontextmanager
async def client_of(handler: Handler, credential: Credential | None = None, **options: Any) -> AsyncIterator[Client]:
    """A client of a server with one handler."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app, shutdown_timeout=0) as server:
        connection = Connection(str(server.make_url("")), credential=credential or StaticCredential())
        async with Client(connection, **options) as client:
            yield client


def status(code: int, reason: str = "", message: str = "", **details: Any) -> Json:
    """A Status object of an error."""
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def refuse(code: int, retry_after: str | None = None, **more: Any) -> web.Response:
    """An error response."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return web.json_response(status(code, **more), status=code, headers=headers)


def thing(name: str, revision: int, uid: str = "", **spec: Any) -> Json:
    """A small object."""
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": str(revision)},
        "spec": spec,
    }


def listing(revision: int, items: Iterable[Json] = (), following: str = "") -> web.Response:
    """A page of a list."""
    metadata = {"resourceVersion": str(revision), "continue": following}
    return web.json_response({"metadata": metadata, "items": list(items)})


def line(kind: str, found: Json) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def bookmark(revision: int) -> bytes:
    """A bookmark as API servers send it for pods: with a spec that no pod could have."""
    return line("BOOKMARK", {"metadata": {"resourceVersion": str(revision)}, "spec": {"containers": None}})


class Script:
    """Answers lists and watches in order. The last list is repeated; watches after the last one are silent."""

    def __init__(self, *lists: tuple[int, Iterable[Json]] | web.Response) -> None:
        self.lists = list(lists)
        self.watches: list[Watch | bytes] = []
        self.listed = 0
        self.since: list[int] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            found = self.lists[min(self.listed, len(self.lists) - 1)]
            self.listed += 1
            return found if isinstance(found, web.Response) else listing(*found)
        self.since.append(int(request.query["resourceVersion"]))
        response = web.StreamResponse()
        await response.prepare(request)
        if len(self.since) > len(self.watches):
            await asyncio.sleep(3600)
        act = self.watches[len(self.since) - 1]
        if isinstance(act, bytes):
            await response.write(act)
        else:
            await act(request, response)
        return response


def then_silence(*pieces: bytes) -> Watch:
    """A watch that sends data and then stays silent."""

    async def act(_request: web.Request, response: web.StreamResponse) -> None:
        for piece in pieces:
            await response.write(piece)
        await asyncio.sleep(3600)

    return act


def then_reset(*pieces: bytes) -> Watch:
    """A watch whose connection breaks."""

    async def act(request: web.Request, response: web.StreamResponse) -> None:
        for piece in pieces:
            await response.write(piece)
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()

    return act


def written(resource: Resource, name: str, **rest: Any) -> Json:
    """An object as users write it, with apiVersion and kind."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}, **rest}
