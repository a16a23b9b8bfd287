"""Canned replies of an API server, served without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self, cast

import aiohttp

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.informer import Informer


class Reply(NamedTuple):
    """A reply; the events of a watch come in pieces."""

    body: bytes = b"{}"
    status: int = 200
    headers: Mapping[str, str] = {}
    pieces: Iterable[bytes] = ()


Answer = Callable[[str, str, Mapping[str, str], bytes], Reply | None]
"""The reply to a method, a path, its parameters and a body; None: no reply from then on."""


class Canned:
    """Stands for aiohttp's session. `over` is set once all canned replies have been served."""

    def __init__(self, answer: Answer) -> None:
        self.over = asyncio.Event()
        self._answer = answer

    def client(self) -> Client:
        """A client that gets the canned replies."""
        return Client(Connection("http://api", transport=lambda _agent: cast(aiohttp.ClientSession, self)))

    async def follow(self, informer: Informer[Any]) -> None:
        """Lets an informer list and watch until all replies are served; raises the error that ended it earlier."""
        self.over.clear()
        work, over = asyncio.ensure_future(informer.run()), asyncio.ensure_future(self.over.wait())
        await asyncio.wait((work, over), return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
            raise AssertionError("the informer has ended by itself")

    def request(self, method: str, url: str, **given: Any) -> _Exchange:
        """A request, which gets its reply when its block begins."""
        reply = self._answer(method, url.removeprefix("http://api"), given["params"] or {}, given["data"] or b"")
        return _Exchange(reply, self.over)

    async def close(self) -> None:
        """Does nothing: no socket is open."""


class _Exchange:
    def __init__(self, reply: Reply | None, over: asyncio.Event) -> None:
        self._reply = reply or Reply()
        self._silent = reply is None
        self._over = over
        self.status = self._reply.status
        self.headers = self._reply.headers

    async def __aenter__(self) -> Self:
        if self._silent:
            await self._stay_silent()
        return self

    async def _stay_silent(self) -> None:
        self._over.set()
        await asyncio.get_running_loop().create_future()

    async def __aexit__(self, *_: object) -> None: ...

    @property
    def content(self) -> Self:
        return self

    async def read(self) -> bytes:
        return self._reply.body

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self._reply.pieces:
            yield piece
        if self._reply.pieces:
            await self._stay_silent()  # a watch that ended would be reopened after a pause
