"""A fault proxy: an HTTP proxy between a client and a cluster's API that injects faults by rule.

    with FaultProxy(cluster, seed=7) as proxy:
        proxy.inject(answer(500), method="POST", path="/binding$", nth=3)
        scheduler = Scheduler(proxy.kubeconfig, ...)

Every rule that matches a request applies, in the order of injection. A rule that ends the request (answer, drop,
lose_reply, stall) also ends the sequence.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import selectors
import socket
import ssl
import struct
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml
from aiohttp import web

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import TIMEOUT, Cluster

_NOT_PASSED_ON = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
_GLANCE = 0.05
"""How often a stream checks whether its client is still connected."""

_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


class Seen(NamedTuple):
    """A finished request. `status` is the reply of the API, 0 if the request never reached it; `client_status` is
    the status that the client got, 0 if none; `arrived` is when the proxy got it and `at` when it ended, by the clock
    that all proxies share."""

    method: str
    path: str
    body: bytes
    status: int
    client_status: int
    arrived: float
    at: float

    @property
    def object(self) -> Json:
        """The body as an object."""
        found: Json = json.loads(self.body or b"{}")
        return found


class Kind(Enum):
    """What can be done to a request."""

    ANSWER = auto()
    DELAY = auto()
    DROP = auto()
    LOSE_REPLY = auto()
    MISREPORT = auto()
    STALL = auto()
    BEFORE = auto()
    AFTER = auto()


@dataclass(frozen=True)
class Fault:
    """A fault; built by the functions below."""

    kind: Kind
    status: int = 0
    seconds: float = 0.0
    call: Callable[[], object] | None = None


def answer(status: int, retry_after: float | None = None) -> Fault:
    """Replies itself; the request does not reach the API."""
    return Fault(Kind.ANSWER, status, retry_after or 0.0)


def delay(seconds: float) -> Fault:
    """Delays the request."""
    return Fault(Kind.DELAY, seconds=seconds)


def drop() -> Fault:
    """Breaks the connection before the request reaches the API."""
    return Fault(Kind.DROP)


def lose_reply() -> Fault:
    """The API processes the request, and the connection breaks before the client gets the reply."""
    return Fault(Kind.LOSE_REPLY)


def misreport(status: int) -> Fault:
    """The API processes the request, and the client gets an error."""
    return Fault(Kind.MISREPORT, status)


def stall() -> Fault:
    """Sends nothing and keeps the connection open: no events of a watch, no reply to another request (which does not
    reach the API)."""
    return Fault(Kind.STALL)


def before(call: Callable[[], object]) -> Fault:
    """Calls a function when the request has arrived, before it is forwarded."""
    return Fault(Kind.BEFORE, call=call)


def after(call: Callable[[], object]) -> Fault:
    """Calls a function when the API has replied, before the client gets the reply."""
    return Fault(Kind.AFTER, call=call)


@dataclass
class Rule:
    """A fault and the requests that it applies to. `matched` counts matching requests, `hits` those that got the
    fault."""

    fault: Fault
    method: re.Pattern[str]
    path: re.Pattern[str]
    nth: int | None
    times: int | None
    chance: float
    body: re.Pattern[bytes]
    matched: int = 0
    hits: int = 0

    def applies_to(self, method: str, path: str, body: bytes, draw: Callable[[], float]) -> bool:
        """Whether the fault applies to this request; counts it."""
        if not self.method.fullmatch(method) or not self.path.search(path) or not self.body.search(body):
            return False
        self.matched += 1
        if self.nth is not None and self.matched != self.nth:
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        if self.chance < 1.0 and draw() >= self.chance:
            return False
        self.hits += 1
        return True


@dataclass(eq=False)
class _Watch:
    """An open stream."""

    path: str
    relay: asyncio.Task[None]
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    last_words: bytes | None = None


class FaultProxy:
    """The proxy, in its own thread; a context manager. `url` is its address, `kubeconfig` a file for its clients,
    `seen` every finished request in the order in which they ended. Its client is the scheduler, unless another
    kubeconfig is given."""

    def __init__(self, cluster: Cluster, seed: int = 0, signed_in: Path | None = None) -> None:
        self._server: str = cluster.announced()["server"]
        account = signed_in or cluster.scheduler_kubeconfig
        self._token = yaml.safe_load(account.read_text())["users"][0]["user"]["token"]
        self._trust = ssl.create_default_context(cafile=str(cluster.folder / "ca.crt"))
        self._random = random.Random(seed)
        self._folder = cluster.folder.parent
        self._rules: list[Rule] = []
        self._watches: set[_Watch] = set()
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self.seen: list[Seen] = []
        self.url = ""

    # -- rules

    def inject(
        self,
        fault: Fault,
        *,
        method: str = ".*",
        path: str = "",
        nth: int | None = None,
        times: int | None = None,
        chance: float = 1.0,
        body: str = "",
    ) -> Rule:
        """Adds a rule for requests whose method, path with query and body match these patterns: only the nth of
        them, at most so many times, each with a probability."""
        rule = Rule(fault, re.compile(method), re.compile(path), nth, times, chance, re.compile(body.encode()))
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Removes a rule."""
        self._rules.remove(rule)

    def clear(self) -> None:
        """Removes every rule; stalled watches stay stalled."""
        self._rules.clear()

    @property
    def writes(self) -> list[Seen]:
        """The requests that are not reads."""
        return [one for one in self.seen if one.method != "GET"]

    # -- open watches

    def watched(self, path: str = "") -> list[str]:
        """The paths of the open watches."""
        return [watch.path for watch in list(self._watches) if re.search(path, watch.path)]

    def stall_watches(self, path: str = "") -> int:
        """Stalls the open watches, and keeps them open; returns how many there are."""
        return self._tell_watches(path, lambda watch: watch.stalled.set())

    def cut_watches(self, path: str = "", last_words: bytes | None = None) -> int:
        """Cuts the open watches; with `last`, ends them after that event."""

        def cut(watch: _Watch) -> None:
            watch.last_words = last_words
            watch.relay.cancel()

        return self._tell_watches(path, cut)

    def expire_watches(self, path: str = "") -> int:
        """Ends the open watches with a 410 event."""
        event = {"type": "ERROR", "object": _status(410, "too old resource version")}
        return self.cut_watches(path, json.dumps(event).encode() + b"\n")

    def _tell_watches(self, path: str, tell: Callable[[_Watch], object]) -> int:
        async def tell_all() -> int:
            chosen = [watch for watch in self._watches if re.search(path, watch.path)]
            for watch in chosen:
                tell(watch)
            return len(chosen)

        count: int = self._run(tell_all())
        return count

    # -- start and stop

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        port = self._run(self._start())
        self.url = f"http://127.0.0.1:{port}"
        self.kubeconfig = self._write_kubeconfig(port)
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT)
        self._loop.close()
        # Both sides of this proxy are killed at any time: half-open connections are collected here, and not during
        # another test.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)

    async def _start(self) -> int:
        connector = aiohttp.TCPConnector(ssl=self._trust, limit=0)
        no_limit = aiohttp.ClientTimeout(total=None)
        self._upstream = aiohttp.ClientSession(
            self._server, connector=connector, timeout=no_limit, auto_decompress=False
        )
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        return int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        for watch in list(self._watches):
            watch.relay.cancel()
        await self._runner.cleanup()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._upstream.close()
        # Closed connections need some iterations of the loop to be gone; one file belongs to the loop.
        for _ in range(100):
            if len(self._selector.get_map()) <= 1:
                return
            await asyncio.sleep(0.02)

    def _write_kubeconfig(self, port: int) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "proxy", "user": {"token": self._token}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
            "current-context": "proxy",
        }
        path = self._folder / f"proxy-{port}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    # -- one request

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = str(request.rel_url)
        body = await request.read()
        request["arrived"] = time.monotonic()
        rules = [rule for rule in list(self._rules) if rule.applies_to(request.method, path, body, self._random.random)]
        watching = request.query.get("watch") in ("1", "true") or request.query.get("follow") == "true"
        lost, instead, calls = False, None, []
        for rule in rules:
            fault = rule.fault
            match fault.kind:
                case Kind.ANSWER:
                    self._record(request, body, 0, fault.status)
                    return _answer(fault)
                case Kind.DELAY:
                    await asyncio.sleep(fault.seconds)
                case Kind.DROP:
                    self._record(request, body, 0, 0)
                    return _break(request)
                case Kind.STALL if not watching:
                    self._record(request, body, 0, 0)
                    await asyncio.Event().wait()
                case Kind.LOSE_REPLY:
                    lost = True
                case Kind.MISREPORT:
                    instead = fault
                case Kind.BEFORE if fault.call is not None:
                    fault.call()
                case Kind.AFTER if fault.call is not None:
                    calls.append(fault.call)
        try:
            async with self._forward(request, body) as reply:
                if watching and reply.status == 200 and not lost and instead is None:
                    stalled = any(rule.fault.kind is Kind.STALL for rule in rules)
                    return await self._relay(request, reply, stalled)
                # A stream has no end to wait for.
                text = b"" if watching and reply.status == 200 else await reply.read()
        except aiohttp.ClientError:
            self._record(request, body, 0, 0)
            return _break(request)
        for call in calls:
            call()
        self._record(request, body, reply.status, 0 if lost else instead.status if instead else reply.status)
        if lost:
            return _break(request)
        if instead is not None:
            return _answer(instead)
        return web.Response(status=reply.status, body=text, headers=_headers(reply.headers))

    def _record(self, request: web.Request, body: bytes, status: int, client_status: int) -> None:
        url, arrived = str(request.rel_url), request["arrived"]
        self.seen.append(Seen(request.method, url, body, status, client_status, arrived, time.monotonic()))

    def _forward(self, request: web.Request, body: bytes) -> Any:
        headers = _headers(request.headers)
        # kubectl does not send its token to a server without TLS.
        headers.setdefault("Authorization", f"Bearer {self._token}")
        return self._upstream.request(request.method, request.rel_url, data=body or None, headers=headers)

    async def _relay(self, request: web.Request, reply: aiohttp.ClientResponse, stalled: bool) -> web.StreamResponse:
        """Forwards a stream until one side or the test ends it."""
        response = web.StreamResponse(status=reply.status, headers=_headers(reply.headers))
        path = str(request.rel_url)

        async def copy() -> None:
            await response.prepare(request)
            async for piece in reply.content.iter_any():
                if watch.stalled.is_set():
                    await asyncio.Event().wait()
                await response.write(piece)

        watch = _Watch(path, asyncio.ensure_future(copy()))
        if stalled:
            watch.stalled.set()
        self._watches.add(watch)
        try:
            while request.transport is not None and not watch.relay.done():
                await asyncio.wait([watch.relay], timeout=_GLANCE)
        finally:
            watch.relay.cancel()
            self._watches.discard(watch)
        with suppress(ConnectionError, asyncio.CancelledError):
            if watch.last_words is not None and response.prepared:
                await response.write(watch.last_words)
            else:
                await watch.relay
            await response.write_eof()
            return response
        return _break(request)


def _headers(found: Any) -> dict[str, str]:
    return {name: value for name, value in found.items() if name.lower() not in _NOT_PASSED_ON}


def _status(code: int, message: str) -> Json:
    reason = _REASONS.get(code, "Injected")
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _answer(fault: Fault) -> web.Response:
    headers = {"Retry-After": f"{fault.seconds:g}"} if fault.seconds else {}
    return web.json_response(_status(fault.status, "injected by a test"), status=fault.status, headers=headers)


def _break(request: web.Request) -> web.StreamResponse:
    """Resets the connection, so that the client cannot take it for a regular end."""
    if request.transport is not None:
        request.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        request.transport.abort()
    return web.Response()
