"""The network between programs and the API: latency, and the faults that the fault injector decides on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self, cast

import aiohttp
import msgspec

from tests.worlds.faults import FaultInjector
from tests.worlds.loop import Process, WorldLoop
from tests.worlds.server import ApiServer, Reply, Request
from tests.worlds.trace import Trace

BOOKMARK_EVERY = 60.0
_READS = ("GET", "HEAD")
RequestHandler = Callable[[Process, Request, Reply], None]


class Network:
    """Transmits requests and replies. The request handlers see each request at the moment the API has processed it."""

    def __init__(self, loop: WorldLoop, server: ApiServer, injector: FaultInjector, trace: Trace) -> None:
        self.loop = loop
        self.server = server
        self.injector = injector
        self.trace = trace
        self.request_handlers: list[RequestHandler] = []
        self.disconnected = False
        """Once set, no program reaches the API."""
        self._process = loop.add("api")
        self._streams: list[Stream] = []
        self._published = 0
        self._later(BOOKMARK_EVERY, self._send_bookmarks)

    def open(self, _agent: str) -> aiohttp.ClientSession:
        """Opens the transport of a program's connection."""
        return cast(aiohttp.ClientSession, Session(self))

    def _later(self, seconds: float, work: Callable[..., None], *args: Any) -> None:
        self.loop.call_at(self.loop.now + seconds, work, *args, context=self._process.context)

    # -- requests

    def send(self, sender: Process, request: Request, answer: asyncio.Future[Reply]) -> None:
        """Sends a request."""
        if self.disconnected:
            answer.set_exception(aiohttp.ServerDisconnectedError())
            return
        if request.method not in _READS and "/leases/" not in request.path:
            sender.count_write()
        injector = self.injector
        delay = injector.latency()
        if injector.happens("slow"):
            delay += injector.amount("slow", 5.0)
        for fault, cut_after in (("lost-request", 20.0), ("late-request", 1.0)):
            if injector.happens(fault):
                self._trace_fault(sender, fault, request)
                if fault == "late-request":
                    late = delay + injector.amount(fault, 120.0)
                    self._later(late, self._arrive, sender, request, None)
                self._later(injector.amount(fault, cut_after), self._cut, answer)
                return
        self._later(delay, self._arrive, sender, request, answer)

    def _arrive(self, sender: Process, request: Request, answer: asyncio.Future[Reply] | None) -> None:
        """A request reaches the server."""
        refused = self._inject_refusal(sender, request)
        if refused is not None:
            self._reply(refused, answer)
            return
        if request.query.get("resourceVersion") == "0":
            request = self._make_stale(request)
        reply = self.server.answer(request)
        writes = request.method not in _READS
        record = self.trace.add if writes else self.trace.add_to_digest
        record(self.loop.now, sender.name, f"{request.method} {request.path} {reply.status}")
        for handle in self.request_handlers:
            handle(sender, request, reply)
        if writes:
            self.publish()
        self._return(sender, request, reply, answer)

    def _inject_refusal(self, sender: Process, request: Request) -> Reply | None:
        """The error reply of a server that does not process the request."""
        injector = self.injector
        if injector.happens("too-many"):
            self._trace_fault(sender, "too-many", request)
            return _fail(429, "TooManyRequests", retry=1 + int(injector.amount("too-many", 4.0)))
        if injector.happens("server-error"):
            self._trace_fault(sender, "server-error", request)
            return _fail(500, "InternalError")
        if request.method in ("PUT", "PATCH", "DELETE") and injector.happens("conflict"):
            self._trace_fault(sender, "conflict", request)
            return _fail(409, "Conflict")
        return None

    def _make_stale(self, request: Request) -> Request:
        """The same request about a past revision. Not a fault: a request with resourceVersion=0 allows stale data."""
        past = str(max(1, self.server.store.revision - self.injector.staleness()))
        return request._replace(query={**request.query, "resourceVersion": past, "resourceVersionMatch": "Exact"})

    def _return(self, sender: Process, request: Request, reply: Reply, answer: asyncio.Future[Reply] | None) -> None:
        """Sends the reply of a processed request."""
        injector = self.injector
        good = reply.status < 300 and reply.watch is None
        if injector.happens("lost-reply"):
            self._trace_fault(sender, "lost-reply", request)
            self._end(reply)
            self._later(injector.amount("lost-reply", 20.0), self._cut, answer)
            return
        if good and injector.happens("server-error-after"):
            self._trace_fault(sender, "server-error-after", request)
            reply = _fail(500, "InternalError")
        elif good and request.method not in _READS and injector.happens("conflict-after"):
            self._trace_fault(sender, "conflict-after", request)
            reply = _fail(409, "Conflict")
        self._reply(reply, answer)

    def _reply(self, reply: Reply, answer: asyncio.Future[Reply] | None) -> None:
        delay = self.injector.latency()
        if self.injector.happens("slow"):
            delay += self.injector.amount("slow", 5.0)
        self._later(delay, self._deliver, reply, answer)

    def _deliver(self, reply: Reply, answer: asyncio.Future[Reply] | None) -> None:
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

    def _trace_fault(self, sender: Process, fault: str, request: Request) -> None:
        self.trace.add(self.loop.now, sender.name, f"{fault}: {request.method} {request.path}")

    # -- watches

    def open_stream(self, reply: Reply, path: str) -> Stream:
        """Opens the stream of a watch."""
        stream = Stream(self, reply, self.loop.current_process(), path)
        self._streams.append(stream)
        if stream.watch.failure is not None:
            stream.deliver(b'{"type":"ERROR","object":%b}\n' % msgspec.json.encode(stream.watch.failure.status()))
            stream.finish()
        self._announce(stream)
        return stream

    def publish(self) -> None:
        """Announces new events to every watch."""
        if self._published != self.server.store.revision:
            self._published = self.server.store.revision
            for stream in self._streams:
                self._announce(stream)

    def _announce(self, stream: Stream) -> None:
        if not stream.due and stream.watch.subscription is not None and stream.watch.subscription.pending:
            stream.due = True
            delay = self.injector.latency()
            if self.injector.happens("watch-delay"):
                delay += self.injector.amount("watch-delay", 20.0)
            self._later(delay, stream.flush)

    def close_stream(self, stream: Stream) -> None:
        """Closes a stream whose reader is gone."""
        if stream in self._streams:
            self._streams.remove(stream)
            stream.watch.end()

    def cut_stalled_watches(self) -> None:
        """Cuts every watch that has stalled."""
        for stream in list(self._streams):
            stream.cut_if_stalled()

    def _send_bookmarks(self) -> None:
        for stream in list(self._streams):
            if stream.reader.dead:
                self.close_stream(stream)
            elif not stream.due:
                stream.deliver(stream.watch.bookmark({}))
        self._later(BOOKMARK_EVERY, self._send_bookmarks)


class Stream:
    """The events of one watch, in transit to its reader."""

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
        """Delivers the events since the last call, with the faults that happen."""
        self.due = False
        if not self._open or self.reader.dead:
            self._network.close_stream(self)
            return
        injector = self._network.injector
        data = b"".join(self.watch.take_chunks())
        for fault, act in (("watch-stall", self._stall), ("watch-drop", self._drop), ("watch-gone", self._expire)):
            if injector.happens(fault):
                self._trace_fault(fault)
                act()
                return
        lines = data.splitlines(keepends=True)
        if len(lines) > 1 and injector.happens("watch-reorder"):
            self._trace_fault("watch-reorder")
            injector.stream("watch-reorder").shuffle(lines)
        if lines and injector.happens("watch-duplicate"):
            self._trace_fault("watch-duplicate")
            lines.append(injector.stream("watch-duplicate").choice(lines))
        self.deliver(b"".join(lines))

    def deliver(self, data: bytes) -> None:
        """Delivers data to the reader."""
        if data and not self._stalled:
            self._inbox.append(data)
            self._wake()

    def finish(self) -> None:
        """Ends the stream as a server does."""
        self._open = False
        self._wake()

    async def read(self, limit: float | None) -> bytes:
        """Returns the next data; b"" at the end."""
        while not self._inbox:
            if self._broken:
                raise aiohttp.ClientPayloadError("the connection was cut")
            if not self._open:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(limit):
                    await self._waiter
            except TimeoutError:
                raise aiohttp.SocketTimeoutError("no data in time") from None
        return self._inbox.popleft()

    def cut_if_stalled(self) -> None:
        """Cuts the stream if it has stalled."""
        if self._stalled:
            self._drop()

    def _stall(self) -> None:
        self._stalled = True

    def _drop(self) -> None:
        self._broken = True
        self.finish()

    def _expire(self) -> None:
        gone = _fail(410, "Expired").body
        self.deliver(b'{"type":"ERROR","object":%b}\n' % gone)
        self.finish()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _trace_fault(self, fault: str) -> None:
        self._network.trace.add(self._network.loop.now, self.reader.name, f"{fault}: {self._path}")


class Session:
    """Stands for aiohttp's client session, without sockets."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def request(self, method: str, url: str, *, timeout: aiohttp.ClientTimeout, **given: Any) -> Exchange:
        """Prepares a request, which is sent when its block begins. Arguments that do not reach the server are
        ignored."""
        data = given["data"]
        body = data.getvalue() if hasattr(data, "getvalue") else data or b""
        sent = Request(method, url.removeprefix(SERVER), dict(given["params"] or {}), given["headers"], body)
        return Exchange(self._network, sent, timeout)

    async def close(self) -> None:
        """Does nothing: no socket is open."""


SERVER = "http://localhost"
"""The address of the simulated API server."""


class Exchange:
    """A request and its reply, with aiohttp's interface."""

    def __init__(self, network: Network, request: Request, limits: aiohttp.ClientTimeout) -> None:
        self._network = network
        self._request = request
        self._limits = limits
        self._stream: Stream | None = None
        self._reply = Reply(0, {}, b"")

    async def __aenter__(self) -> Self:
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._network.send(self._network.loop.current_process(), self._request, answer)
        try:
            async with asyncio.timeout(self._limits.total or self._limits.connect):
                self._reply = await answer
        except TimeoutError:
            raise aiohttp.ServerTimeoutError("no reply in time") from None
        if self._reply.watch is not None:
            self._stream = self._network.open_stream(self._reply, self._request.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            self._network.close_stream(self._stream)

    @property
    def status(self) -> int:
        """The status of the reply."""
        return self._reply.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the reply."""
        return self._reply.headers

    @property
    def content(self) -> Self:
        """The body as a stream."""
        return self

    async def read(self) -> bytes:
        """The whole body."""
        return self._reply.body

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The body in pieces, as they arrive."""
        assert self._stream is not None
        while piece := await self._stream.read(self._limits.sock_read):
            yield piece


def _fail(code: int, reason: str, retry: int | None = None) -> Reply:
    details = {"retryAfterSeconds": retry} if retry is not None else {}
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    body = msgspec.json.encode({**status, "message": f"{reason} (injected)", "details": details})
    return Reply(code, {"Retry-After": str(retry)} if retry is not None else {}, body)
