"""Watches: every change that a client asked to see, in order, none left out, as lines of JSON.

A client that asks for a WebSocket, as those written in Java do first, gets each line as a message.

A change is encoded once for all watchers that get the same bytes, and changes that come in quick succession go out in
one write: an idle watch hears of a change at once, a busy one at most PACE later. All watches write at the same ticks,
so that those which see the same changes share not only lines but whole writes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Iterator, Sequence

from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import ApiError
from embedded_kube.server.listing import forbidden, parse_revision, select, too_large
from embedded_kube.server.routes import Call
from embedded_kube.server.selectors import Selection
from embedded_kube.server.views import View
from embedded_kube.server.wire import JSON, encode
from embedded_kube.storage.store import Change, Entry, Json, Store, Subscription

PACE = 0.01
"""The shortest time between two writes of one watch, in seconds."""

BOOKMARK_EVERY = 60.0
PATIENCE = 60.0
"""How long a client may take to read what is on the wire before it is cut off."""

_LOOK = 10.0
"""How often an idle watch looks whether its client is still there."""

_LONGEST = (1800, 3600)
_CHUNK = 256 * 1024
_KEPT_LINES = 4096
_KEPT_WRITES = 64
_SHARED = 256
"""More changes than this are a backlog, which no two watches share."""


class Lines:
    """Watch events as bytes, kept for a while so that many watchers share them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, int], bytes] = {}
        self._writes: dict[tuple[str, str, int, int], bytes] = {}

    def line(self, view: View, version: str, kind: str, entry: Entry) -> bytes:
        """The event that tells of an entry."""
        if not view.same_for_all:
            return _event(kind, view.entry(entry))
        key = (version, kind, entry.revision)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= _KEPT_LINES:
                self._kept.clear()
            found = self._kept[key] = _event(kind, view.entry(entry))
        return found

    def together(self, view: View, version: str, namespace: str, changes: Sequence[Change]) -> bytes:
        """The events of consecutive changes of a resource, of one namespace if given."""
        key = (version, namespace, changes[0].entry.revision, changes[-1].entry.revision)
        found = self._writes.get(key)
        if found is None:
            if len(self._writes) >= _KEPT_WRITES:
                self._writes.clear()
            wanted = (change for change in changes if not namespace or change.entry.namespace == namespace)
            found = b"".join([self.line(view, version, change.kind, change.entry) for change in wanted])
            self._writes[key] = found
        return found


def _event(kind: str, body: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), body)


class Watches:
    """All watches that are being served."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines = Lines()
        self._tasks: set[asyncio.Task[object]] = set()

    async def serve(self, request: web.Request, call: Call, view: View) -> web.StreamResponse:
        """Answers a watch until it ends."""
        watch = Watch(self._store, call, view, self._lines)
        response = _response_to(request)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # The start is fixed before the first await: nothing that happens from here on is missed.
            watch.begin()
            await response.prepare(request)
            if isinstance(response, web.WebSocketResponse):
                await _run_until_closed(response, watch.run(request, response))
            else:
                await watch.run(request, response)
            await response.write_eof()
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            watch.end()
            self._tasks.discard(task)
        return response

    async def stop(self) -> None:
        """Ends every watch."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _response_to(request: web.Request) -> web.StreamResponse:
    if request.headers.get("Upgrade", "").lower() == "websocket":
        return web.WebSocketResponse(compress=False)
    response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
    response.enable_chunked_encoding()
    return response


async def _run_until_closed(socket: web.WebSocketResponse, telling: Coroutine[None, None, None]) -> None:
    """Tells until there is no more to tell, or the client closes. Only who reads learns of that."""

    async def read() -> None:
        async for _ in socket:
            pass

    tasks = [asyncio.ensure_future(telling), asyncio.ensure_future(read())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Watch:
    """One watch: where it starts, and what there is to tell of what has happened since."""

    def __init__(self, store: Store, call: Call, view: View, lines: Lines) -> None:
        self._store = store
        self._resource = call.kind.resource
        self._version = call.kind.api_version + call.kind.resource
        self._view = view
        self._lines = lines
        self._selection: Selection = select(call)
        self._bookmarks = call.flag("allowWatchBookmarks")
        self._timeout = float(call.number("timeoutSeconds") or random.randint(*_LONGEST))
        self._since, self._initial, self._marked = _start(call)
        self.subscription: Subscription | None = None
        self._first: list[Entry] = []
        self.failure: ApiError | None = None
        self._told = store.revision

    def begin(self) -> None:
        """Fixes where the watch starts."""
        latest = self._store.revision
        try:
            if self._since is not None and self._since > latest:
                raise too_large(self._since, latest)
            self.subscription = self._store.subscribe(self._resource, None if self._initial else self._since)
        except ApiError as error:
            # A client that watches learns of errors by an event, like those of a real server.
            self.failure = error
            return
        if self._initial:
            entries = self._store.entries(self._resource, self._selection.namespace)
            self._first = [entry for entry in entries if self._selection.matches(entry)]

    def end(self) -> None:
        """Stops listening."""
        if self.subscription is not None:
            self.subscription.close()

    async def run(self, request: web.Request, response: web.StreamResponse) -> None:
        """Tells what there was, then what happens."""
        if self.failure is not None:
            await self._write(response, _event("ERROR", encode(self.failure.status())))
            return
        for chunk in _chunks(self._line("ADDED", entry) for entry in self._first):
            await self._write(response, chunk)
        self._first = []
        if self._marked:
            await self._write(response, self.bookmark({"k8s.io/initial-events-end": "true"}))
        await self._follow(request, response)

    async def _follow(self, request: web.Request, response: web.StreamResponse) -> None:
        subscription = self.subscription
        assert subscription is not None
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout
        mark = loop.time() + BOOKMARK_EVERY
        while (now := loop.time()) < end:
            if now >= mark:
                mark = now + BOOKMARK_EVERY
                if self._bookmarks:
                    await self._write(response, self.bookmark({}))
            if not await subscription.wait(max(0.001, min(end - now, mark - now, _LOOK))):
                if request.transport is None or request.transport.is_closing():
                    return
                continue
            if subscription.overrun:
                failure = errors.gone("too old resource version: the watch fell too far behind")
                await self._write(response, _event("ERROR", encode(failure.status())))
                return
            for chunk in self.take():
                await self._write(response, chunk)
            # What comes until the next tick shares one write.
            await asyncio.sleep(PACE - loop.time() % PACE)
        if self._bookmarks:
            await self._write(response, self.bookmark({}))

    def take(self) -> Iterator[bytes]:
        """What is pending, in pieces to write."""
        assert self.subscription is not None
        subscription = self.subscription
        pending = subscription.pending
        if not pending:
            return
        if self._selection.selective or not self._view.same_for_all or len(pending) > _SHARED:
            yield from _chunks(self._events(subscription))
            return
        self._told = pending[-1].entry.revision
        data = self._lines.together(self._view, self._version, self._selection.namespace, pending)
        pending.clear()
        if data:
            yield data

    def _events(self, subscription: Subscription) -> Iterator[bytes]:
        pending = subscription.pending
        while pending:
            change = pending.popleft()
            self._told = change.entry.revision
            line = self._translate(change)
            if line:
                yield line

    def _translate(self, change: Change) -> bytes:
        """A change as this watcher sees it: an object that leaves the selection is gone, one that enters is new."""
        selection = self._selection
        if not selection.selective:
            if selection.namespace and change.entry.namespace != selection.namespace:
                return b""
            return self._line(change.kind, change.entry)
        before = change.before is not None and selection.matches(change.before)
        if change.kind == "DELETED":
            return self._line("DELETED", change.entry) if before else b""
        after = selection.matches(change.entry)
        if after:
            return self._line("MODIFIED" if before else "ADDED", change.entry)
        if not before or change.before is None:
            return b""
        return self._line("DELETED", _at(change.before, change.entry.revision))

    def _line(self, kind: str, entry: Entry) -> bytes:
        return self._lines.line(self._view, self._version, kind, entry)

    def bookmark(self, annotations: Json) -> bytes:
        """How far this watcher has been told."""
        # With nothing left to tell, this watcher is as far as the store, whatever other resources did meanwhile.
        waits = self.subscription is not None and self.subscription.pending
        meta: Json = {"resourceVersion": str(self._told if waits else self._store.revision)}
        if annotations:
            meta["annotations"] = annotations
        return _event("BOOKMARK", self._view.bookmark(meta))

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            if isinstance(response, web.WebSocketResponse):
                for line in data.decode().rstrip("\n").split("\n"):
                    await response.send_str(line)
            else:
                await response.write(data)


def _at(entry: Entry, revision: int) -> Entry:
    """An entry with a later resourceVersion: what is sent when an object leaves a selection."""
    found = entry.object()
    found["metadata"]["resourceVersion"] = str(revision)
    return Entry((entry.namespace, entry.name), revision, encode(found), entry.labels)


def _chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines in pieces of a size that is good to write."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _start(call: Call) -> tuple[int | None, bool, bool]:
    """Where a watch begins: after which revision, whether with all that exists, whether a bookmark ends that part."""
    query = call.query
    since = parse_revision(query.get("resourceVersion", ""))
    wanted = query.get("sendInitialEvents", "")
    match = query.get("resourceVersionMatch", "")
    causes = []
    if match and not wanted:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.append(forbidden("resourceVersionMatch", why))
    if match not in ("", "NotOlderThan"):
        told = f'Unsupported value: "{match}": supported values: "NotOlderThan"'
        causes.append(errors.Cause("resourceVersionMatch", told, "FieldValueNotSupported"))
    if wanted and not match:
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(forbidden("resourceVersionMatch", why))
    if causes:
        raise errors.invalid_options("ListOptions", *causes)
    if not wanted:
        return since, not since, False
    if not call.flag("sendInitialEvents"):
        return since or None, False, False
    # Without bookmarks nobody would learn where the initial events end.
    return since, True, call.flag("allowWatchBookmarks")
