"""The way between programs and the API: it takes time, and does to messages what the faults say."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self, cast

import aiohttp
import msgspec

from tests.worlds.faults import Chances
from tests.worlds.loop import Process, WorldLoop
from tests.worlds.server import ApiServer, Reply, Request
from tests.worlds.story import Story

BOOKMARK_EVERY = 60.0
_READS = ("GET", "HEAD")
Onlooker = Callable[[Process, Request, Reply], None]


class Network:
    """Carries requests and answers. Whoever looks on is told of each request the moment it is done."""

    def __init__(self, loop: WorldLoop, server: ApiServer, chances: Chances, story: Story) -> None:
        self.loop = loop
        self.server = server
        self.chances = chances
        self.story = story
        self.onlookers: list[Onlooker] = []
        self.broken = False
        """Once set, nobody reaches the API any more."""
        self._place = loop.add("api")
        self._streams: list[Stream] = []
        self._published = 0
        self._later(BOOKMARK_EVERY, self._mark_all)

    def open(self, _agent: str) -> aiohttp.ClientSession:
        """The transport of a program's connection."""
        return cast(aiohttp.ClientSession, Session(self))

    def _later(self, seconds: float, work: Callable[..., None], *args: Any) -> None:
        self.loop.call_at(self.loop.now + seconds, work, *args, context=self._place.context)

    # -- requests

    def send(self, sender: Process, request: Request, answer: asyncio.Future[Reply]) -> None:
        """Sends a request on its way."""
        if self.broken:
            answer.set_exception(aiohttp.ServerDisconnectedError())
            return
        if request.method not in _READS and "/leases/" not in request.path:
            sender.note_write()
        chances = self.chances
        delay = chances.latency()
        if chances.strikes("slow"):
            delay += chances.amount("slow", 5.0)
        for fault, cut_after in (("lost-request", 20.0), ("late-request", 1.0)):
            if chances.strikes(fault):
                self._tell(sender, fault, request)
                if fault == "late-request":
                    late = delay + chances.amount(fault, 120.0)
                    self._later(late, self._arrive, sender, request, None)
                self._later(chances.amount(fault, cut_after), self._cut, answer)
                return
        self._later(delay, self._arrive, sender, request, answer)

    def _arrive(self, sender: Process, request: Request, answer: asyncio.Future[Reply] | None) -> None:
        """A request has come to the server."""
        refused = self._refuse(sender, request)
        if refused is not None:
            self._reply(refused, answer)
            return
        if request.query.get("resourceVersion") == "0":
            request = self._look_back(request)
        reply = self.server.answer(request)
        writes = request.method not in _READS
        record = self.story.tell if writes else self.story.note
        record(self.loop.now, sender.name, f"{request.method} {request.path} {reply.status}")
        for look in self.onlookers:
            look(sender, request, reply)
        if writes:
            self.publish()
        self._return(sender, request, reply, answer)

    def _refuse(self, sender: Process, request: Request) -> Reply | None:
        """An answer of a server that does nothing."""
        chances = self.chances
        if chances.strikes("too-many"):
            self._tell(sender, "too-many", request)
            return _fail(429, "TooManyRequests", retry=1 + int(chances.amount("too-many", 4.0)))
        if chances.strikes("server-error"):
            self._tell(sender, "server-error", request)
            return _fail(500, "InternalError")
        if request.method in ("PUT", "PATCH", "DELETE") and chances.strikes("conflict"):
            self._tell(sender, "conflict", request)
            return _fail(409, "Conflict")
        return None

    def _look_back(self, request: Request) -> Request:
        """The same request about the past: no fault, but what whoever sends resourceVersion=0 asks for."""
        past = str(max(1, self.server.store.revision - self.chances.past()))
        return request._replace(query={**request.query, "resourceVersion": past, "resourceVersionMatch": "Exact"})

    def _return(self, sender: Process, request: Request, reply: Reply, answer: asyncio.Future[Reply] | None) -> None:
        """Sends an answer on its way."""
        chances = self.chances
        good = reply.status < 300 and reply.watch is None
        if chances.strikes("lost-reply"):
            self._tell(sender, "lost-reply", request)
            self._end(reply)
            self._later(chances.amount("lost-reply", 20.0), self._cut, answer)
            return
        if good and chances.strikes("server-error-after"):
            self._tell(sender, "server-error-after", request)
            reply = _fail(500, "InternalError")
        elif good and request.method not in _READS and chances.strikes("conflict-after"):
            self._tell(sender, "conflict-after", request)
            reply = _fail(409, "Conflict")
        self._reply(reply, answer)

    def _reply(self, reply: Reply, answer: asyncio.Future[Reply] | None) -> None:
        delay = self.chances.latency()
        if self.chances.strikes("slow"):
            delay += self.chances.amount("slow", 5.0)
        self._later(delay, self._settle, reply, answer)

    def _settle(self, reply: Reply, answer: asyncio.Future[Reply] | None) -> None:
        if answer is None or answer.done():
            self._end(reply)
        else:
            answer.set_result(reply)

    def _cut(self, answer: asyncio.Future[Reply] | None) -> None:
        if answer is not None and not answer.done():
            answer.set_exception(aiohttp.ServerDisconnectedError())

    def _end(self, reply: Reply) -> None:
        if reply.watch is not None:
            reply.watch.end()

    def _tell(self, sender: Process, fault: str, request: Request) -> None:
        self.story.tell(self.loop.now, sender.name, f"{fault}: {request.method} {request.path}")

    # -- watches

    def follow(self, reply: Reply, path: str) -> Stream:
        """Begins to tell what a watch sees."""
        stream = Stream(self, reply, self.loop.here(), path)
        self._streams.append(stream)
        if stream.watch.failure is not None:
            stream.give(b'{"type":"ERROR","object":%b}\n' % msgspec.json.encode(stream.watch.failure.status()))
            stream.finish()
        self._announce(stream)
        return stream

    def publish(self) -> None:
        """Lets every watch know that something may have happened."""
        if self._published != self.server.store.revision:
            self._published = self.server.store.revision
            for stream in self._streams:
                self._announce(stream)

    def _announce(self, stream: Stream) -> None:
        if not stream.due and stream.watch.subscription is not None and stream.watch.subscription.pending:
            stream.due = True
            delay = self.chances.latency()
            if self.chances.strikes("watch-delay"):
                delay += self.chances.amount("watch-delay", 20.0)
            self._later(delay, stream.flush)

    def forget(self, stream: Stream) -> None:
        """Nobody reads it any more."""
        if stream in self._streams:
            self._streams.remove(stream)
            stream.watch.end()

    def heal(self) -> None:
        """Ends every connection on which nothing comes any more."""
        for stream in list(self._streams):
            stream.heal()

    def _mark_all(self) -> None:
        for stream in list(self._streams):
            if stream.reader.dead:
                self.forget(stream)
            elif not stream.due:
                stream.give(stream.watch.bookmark({}))
        self._later(BOOKMARK_EVERY, self._mark_all)


class Stream:
    """What one watch tells, on its way to who reads it."""

    def __init__(self, network: Network, reply: Reply, reader: Process, path: str) -> None:
        assert reply.watch is not None
        self.watch = reply.watch
        self.reader = reader
        self.due = False
        self._network = network
        self._path = path
        self._inbox: deque[bytes] = deque()
        self._open = True
        self._stalled = False
        self._broken = False
        self._waiter: asyncio.Future[None] | None = None

    def flush(self) -> None:
        """Tells what has happened since the last time, with the faults that strike."""
        self.due = False
        if not self._open or self.reader.dead:
            self._network.forget(self)
            return
        chances = self._network.chances
        data = b"".join(self.watch.take())
        for fault, act in (("watch-stall", self._stall), ("watch-drop", self._drop), ("watch-gone", self._expire)):
            if chances.strikes(fault):
                self._tell(fault)
                act()
                return
        lines = data.splitlines(keepends=True)
        if len(lines) > 1 and chances.strikes("watch-reorder"):
            self._tell("watch-reorder")
            chances.choice("watch-reorder").shuffle(lines)
        if lines and chances.strikes("watch-duplicate"):
            self._tell("watch-duplicate")
            lines.append(chances.choice("watch-duplicate").choice(lines))
        self.give(b"".join(lines))

    def give(self, data: bytes) -> None:
        """FairLimiter something to the reader."""
        if data and not self._stalled:
            self._inbox.append(data)
            self._wake()

    def finish(self) -> None:
        """Ends it as a server does."""
        self._open = False
        self._wake()

    async def read(self, patience: float | None) -> bytes:
        """What comes next; b"" at the end."""
        while not self._inbox:
            if self._broken:
                raise aiohttp.ClientPayloadError("the connection was cut")
            if not self._open:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(patience):
                    await self._waiter
            except TimeoutError:
                raise aiohttp.SocketTimeoutError("nothing came") from None
        return self._inbox.popleft()

    def heal(self) -> None:
        """Cuts it off if it says nothing any more."""
        if self._stalled:
            self._drop()

    def _stall(self) -> None:
        self._stalled = True

    def _drop(self) -> None:
        self._broken = True
        self.finish()

    def _expire(self) -> None:
        gone = _fail(410, "Expired").body
        self.give(b'{"type":"ERROR","object":%b}\n' % gone)
        self.finish()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _tell(self, fault: str) -> None:
        self._network.story.tell(self._network.loop.now, self.reader.name, f"{fault}: {self._path}")


class Session:
    """What aiohttp's session is to a client, without sockets."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def request(self, method: str, url: str, *, timeout: aiohttp.ClientTimeout, **given: Any) -> Exchange:
        """A request that is sent when its block begins; of what else aiohttp takes, only what reaches the server."""
        data = given["data"]
        body = data.getvalue() if hasattr(data, "getvalue") else data or b""
        asked = Request(method, url.removeprefix(SERVER), dict(given["params"] or {}), given["headers"], body)
        return Exchange(self._network, asked, timeout)

    async def close(self) -> None:
        """Nothing is open."""


SERVER = "http://localhost"
"""The address of the simulated API server."""


class Exchange:
    """A request and its answer, as aiohttp shows them."""

    def __init__(self, network: Network, request: Request, limits: aiohttp.ClientTimeout) -> None:
        self._network = network
        self._request = request
        self._limits = limits
        self._stream: Stream | None = None
        self._reply = Reply(0, {}, b"")

    async def __aenter__(self) -> Self:
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._network.send(self._network.loop.here(), self._request, answer)
        try:
            async with asyncio.timeout(self._limits.total or self._limits.connect):
                self._reply = await answer
        except TimeoutError:
            raise aiohttp.ServerTimeoutError("no answer in time") from None
        if self._reply.watch is not None:
            self._stream = self._network.follow(self._reply, self._request.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            self._network.forget(self._stream)

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self._reply.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        return self._reply.headers

    @property
    def content(self) -> Self:
        """The body, to be read piece by piece."""
        return self

    async def read(self) -> bytes:
        """The body."""
        return self._reply.body

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        assert self._stream is not None
        while piece := await self._stream.read(self._limits.sock_read):
            yield piece


def _fail(code: int, reason: str, retry: int | None = None) -> Reply:
    details = {"retryAfterSeconds": retry} if retry is not None else {}
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    body = msgspec.json.encode({**status, "message": f"{reason} on purpose", "details": details})
    return Reply(code, {"Retry-After": str(retry)} if retry is not None else {}, body)
