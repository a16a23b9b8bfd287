"""Connection and body limits of the server: how many connections, how long idle, and memory for partial bodies.

Every client that reaches the port can connect, and API servers must still get through. So a new connection is never
refused: the connection that has made no progress for the longest time is closed instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.streams import StreamReader

RequestFunction = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class BoundedServer(web.Server):
    """Serves at most `max_connections`; each must send its first request within `first_request_timeout` seconds."""

    def __init__(
        self, handle: RequestFunction, max_connections: int, first_request_timeout: float, **options: Any
    ) -> None:
        super().__init__(self._handle_request, **options)
        self._handle = handle
        self._max_connections = max_connections
        self._first_request_timeout = first_request_timeout
        # Ordered by last progress, oldest first: connected, sent the head of a request, or got a response.
        self._by_progress: dict[web.RequestHandler, asyncio.Transport] = {}
        self._deadlines: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Adds a connection; above the limit, closes the one without progress for the longest time."""
        super().connection_made(handler, transport)
        if len(self._by_progress) >= self._max_connections:
            self._drop(next(iter(self._by_progress)))
        self._by_progress[handler] = transport
        self._deadlines[handler] = self._loop.call_later(self._first_request_timeout, self._drop, handler)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Removes a connection."""
        self._forget(handler)
        super().connection_lost(handler, exc)

    async def _handle_request(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = request.protocol
        deadline = self._deadlines.pop(handler, None)
        if deadline is not None:
            deadline.cancel()
        self._move_to_end(handler)
        response = await self._handle(request)
        self._move_to_end(handler)
        return response

    def _move_to_end(self, handler: web.RequestHandler) -> None:
        transport = self._by_progress.pop(handler, None)
        if transport is not None:
            self._by_progress[handler] = transport

    def _forget(self, handler: web.RequestHandler) -> asyncio.Transport | None:
        deadline = self._deadlines.pop(handler, None)
        if deadline is not None:
            deadline.cancel()
        return self._by_progress.pop(handler, None)

    def _drop(self, handler: web.RequestHandler) -> None:
        transport = self._forget(handler)
        if transport is not None:
            transport.abort()  # a clean close would wait for the client


class BodyTooLarge(Exception):
    """A body has more bytes than allowed."""


class BodyTimeout(Exception):
    """A body did not arrive in time."""


class BodyMemoryExhausted(Exception):
    """Other bodies used up the memory for too long."""


class BodyReader:
    """Reads bodies within `memory` bytes for all partial bodies; the oldest one goes on even when it is used up.

    Only bytes that have arrived are counted: a client that announces a large body and sends little blocks no other.
    """

    def __init__(self, memory: int, memory_timeout: float) -> None:
        self._memory = memory
        self._memory_timeout = memory_timeout
        self._reading: dict[object, None] = {}
        self._released = asyncio.Event()

    async def read(self, content: StreamReader, max_bytes: int, timeout: float) -> bytes:  # noqa: ASYNC109
        """Reads a body of at most `max_bytes`. Waiting for memory does not count towards the timeout."""
        clock = asyncio.get_running_loop().time
        body, reserved, reader = bytearray(), 0, object()
        self._reading[reader] = None
        try:
            while not content.at_eof():
                started = clock()
                async with asyncio.timeout(timeout):
                    piece = await content.readany()
                timeout -= clock() - started
                if len(body) + len(piece) > max_bytes:
                    raise BodyTooLarge
                await self._reserve(len(piece), reader)
                reserved += len(piece)
                body += piece
            return bytes(body)
        except TimeoutError:
            raise BodyTimeout from None
        except RuntimeError as error:
            # aiohttp reports a connection that was closed before the first read in this way.
            raise ConnectionError(str(error)) from None
        finally:
            del self._reading[reader]
            self._memory += reserved
            self._released.set()
            self._released.clear()  # wakes the readers that are waiting now

    async def _reserve(self, size: int, reader: object) -> None:
        try:
            if not self._fits(size, reader):
                async with asyncio.timeout(self._memory_timeout):
                    while not self._fits(size, reader):
                        await self._released.wait()
        except TimeoutError:
            raise BodyMemoryExhausted from None
        self._memory -= size

    def _fits(self, size: int, reader: object) -> bool:
        return size <= self._memory or next(iter(self._reading)) is reader
