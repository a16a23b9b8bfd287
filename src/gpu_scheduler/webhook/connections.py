"""Connections of the server: how many there may be, how long silent, and the room for what arrives on them.

Everybody who reaches the port can connect, and API servers must get through all the same. So nobody is turned away
because others were there first: whoever has got nowhere for the longest time goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.streams import StreamReader

RequestFunction = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class BoundedServer(web.Server):
    """Serves up to `most` connections; each has `first` seconds to send the head of its first request."""

    def __init__(self, handle: RequestFunction, most: int, first: float, **how: Any) -> None:
        super().__init__(self._answer, **how)
        self._handle = handle
        self._most = most
        self._first = first
        # In the order in which each got on last: it connected, sent the head of a request, or was answered.
        self._order: dict[web.RequestHandler, asyncio.Transport] = {}
        self._deadlines: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """One more: when there are too many, the first in order makes room for it."""
        super().connection_made(handler, transport)
        if len(self._order) >= self._most:
            self._drop(next(iter(self._order)))
        self._order[handler] = transport
        self._deadlines[handler] = self._loop.call_later(self._first, self._drop, handler)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """One less."""
        self._forget(handler)
        super().connection_lost(handler, exc)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = request.protocol
        deadline = self._deadlines.pop(handler, None)
        if deadline is not None:
            deadline.cancel()
        self._move_to_end(handler)
        response = await self._handle(request)
        self._move_to_end(handler)
        return response

    def _move_to_end(self, handler: web.RequestHandler) -> None:
        transport = self._order.pop(handler, None)
        if transport is not None:
            self._order[handler] = transport

    def _forget(self, handler: web.RequestHandler) -> asyncio.Transport | None:
        deadline = self._deadlines.pop(handler, None)
        if deadline is not None:
            deadline.cancel()
        return self._order.pop(handler, None)

    def _drop(self, handler: web.RequestHandler) -> None:
        transport = self._forget(handler)
        if transport is not None:
            transport.abort()  # to close it politely would mean to wait for the other side


class BodyTooLarge(Exception):
    """A body has more bytes than it may."""


class BodyTimeout(Exception):
    """A body did not arrive in time."""


class BodyMemoryExhausted(Exception):
    """Other bodies left no room for too long."""


class BodyReader:
    """Collects bodies, in `room` for all that are arriving; the oldest of them goes on even when it is full.

    Only bytes that are there take room. So who announces much and sends little keeps nobody else waiting.
    """

    def __init__(self, room: int, wait: float) -> None:
        self._room = room
        self._wait = wait
        self._arriving: dict[object, None] = {}
        self._freed = asyncio.Event()

    async def collect(self, content: StreamReader, most: int, within: float) -> bytes:
        """A body of at most so many bytes, for which we waited so many seconds; not counted is waiting for room."""
        clock = asyncio.get_running_loop().time
        body, taken, me = bytearray(), 0, object()
        self._arriving[me] = None
        try:
            while not content.at_eof():
                begun = clock()
                async with asyncio.timeout(within):
                    piece = await content.readany()
                within -= clock() - begun
                if len(body) + len(piece) > most:
                    raise BodyTooLarge
                await self._take(len(piece), me)
                taken += len(piece)
                body += piece
            return bytes(body)
        except TimeoutError:
            raise BodyTimeout from None
        except RuntimeError as error:
            # So aiohttp tells of a connection that was closed before anybody read from it.
            raise ConnectionError(str(error)) from None
        finally:
            del self._arriving[me]
            self._room += taken
            self._freed.set()
            self._freed.clear()  # wakes those who wait now, and nobody later

    async def _take(self, size: int, me: object) -> None:
        try:
            if not self._has_room(size, me):
                async with asyncio.timeout(self._wait):
                    while not self._has_room(size, me):
                        await self._freed.wait()
        except TimeoutError:
            raise BodyMemoryExhausted from None
        self._room -= size

    def _has_room(self, size: int, me: object) -> bool:
        return size <= self._room or next(iter(self._arriving)) is me
