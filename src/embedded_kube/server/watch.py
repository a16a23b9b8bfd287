"""Watches: all selected changes of a resource, in order, as lines of JSON.

A client that requests a WebSocket, as Java clients do first, gets each line as a message.

A change is encoded once for all watches that get the same bytes. Changes in quick succession are batched: an idle watch
sends a change at once, a busy one at most MIN_WRITE_INTERVAL later. All watches write at the same ticks, so that
watches of the same changes share whole batches, not only events.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Iterator, Sequence

from aiohttp import HttpVersion11, web

from embedded_kube import errors
from embedded_kube.errors import StatusError
from embedded_kube.server.codec import JSON, encode
from embedded_kube.server.encoders import ResponseEncoder
from embedded_kube.server.listing import forbidden_parameter, make_predicate, parse_revision, resource_version_too_large
from embedded_kube.server.request_info import RequestInfo
from embedded_kube.server.selectors import SelectionPredicate
from embedded_kube.storage.store import Store, StoreChange, StoreEntry, Subscription
from gpu_scheduler.k8s.objects import Json

MIN_WRITE_INTERVAL = 0.01
"""Seconds between two writes of one watch, at least."""

BOOKMARK_INTERVAL = 60.0
WRITE_TIMEOUT = 60.0
"""Seconds after which a client that does not read is disconnected."""

_IDLE_CHECK_INTERVAL = 10.0
"""Seconds between checks whether the client of an idle watch is still connected."""

_DEFAULT_TIMEOUT = (1800, 3600)
_CHUNK_BYTES = 256 * 1024
_MAX_CACHED_EVENTS = 4096
_MAX_CACHED_BATCHES = 64
_MAX_SHARED_BATCH = 256
"""Larger batches are a backlog of one watch, and not cached."""


class WatchEventCache:
    """A cache of encoded watch events and batches, shared by all watches."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, str, int], bytes] = {}
        self._batches: dict[tuple[str, str, int, int], bytes] = {}

    def event(self, encoder: ResponseEncoder, version: str, kind: str, entry: StoreEntry) -> bytes:
        """The encoded event of an entry."""
        if not encoder.shareable:
            return _event(kind, encoder.encode_entry(entry))
        key = (version, kind, entry.revision)
        found = self._events.get(key)
        if found is None:
            if len(self._events) >= _MAX_CACHED_EVENTS:
                self._events.clear()
            found = self._events[key] = _event(kind, encoder.encode_entry(entry))
        return found

    def batch(self, encoder: ResponseEncoder, version: str, namespace: str, changes: Sequence[StoreChange]) -> bytes:
        """The encoded events of consecutive changes of a resource, of one namespace if given."""
        key = (version, namespace, changes[0].entry.revision, changes[-1].entry.revision)
        found = self._batches.get(key)
        if found is None:
            if len(self._batches) >= _MAX_CACHED_BATCHES:
                self._batches.clear()
            wanted = (change for change in changes if not namespace or change.entry.namespace == namespace)
            found = b"".join([self.event(encoder, version, change.kind, change.entry) for change in wanted])
            self._batches[key] = found
        return found


def _event(kind: str, body: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), body)


class WatchServer:
    """Serves watches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache = WatchEventCache()
        self._tasks: set[asyncio.Task[object]] = set()

    async def serve(self, request: web.Request, info: RequestInfo, encoder: ResponseEncoder) -> web.StreamResponse:
        """Serves a watch until it ends."""
        watch = WatchStream(self._store, info, encoder, self._cache)
        response = _response_to(request)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Subscribe before the first await, so that no change is missed.
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
    if request.version >= HttpVersion11:  # to HTTP/1.0 the end of the connection is the end of the response
        response.enable_chunked_encoding()
    return response


async def _run_until_closed(socket: web.WebSocketResponse, sending: Coroutine[None, None, None]) -> None:
    """Runs `sending` until it ends or the client closes the socket, which only a read detects."""

    async def read() -> None:
        async for _ in socket:
            pass

    tasks = [asyncio.ensure_future(sending), asyncio.ensure_future(read())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class WatchStream:
    """One watch: its start, and the events since then."""

    def __init__(self, store: Store, info: RequestInfo, encoder: ResponseEncoder, cache: WatchEventCache) -> None:
        self._store = store
        self._resource = info.kind.resource
        self._version = info.kind.api_version + info.kind.resource
        self._encoder = encoder
        self._cache = cache
        self._predicate: SelectionPredicate = make_predicate(info)
        self._bookmarks = info.flag("allowWatchBookmarks")
        self._timeout = float(info.number("timeoutSeconds") or random.randint(*_DEFAULT_TIMEOUT))
        self._since, self._send_initial, self._mark_end = _parse_start(info)
        self.subscription: Subscription | None = None
        self._initial_entries: list[StoreEntry] = []
        self.failure: StatusError | None = None
        self._sent_revision = store.revision

    def begin(self) -> None:
        """Subscribes to the store at the start of the watch."""
        latest = self._store.revision
        try:
            if self._since is not None and self._since > latest:
                raise resource_version_too_large(self._since, latest)
            self.subscription = self._store.subscribe(self._resource, None if self._send_initial else self._since)
        except StatusError as error:
            # As on a real server, the client gets this error as an event.
            self.failure = error
            return
        if self._send_initial:
            entries = self._store.entries(self._resource, self._predicate.namespace)
            self._initial_entries = [entry for entry in entries if self._predicate.matches(entry)]

    def end(self) -> None:
        """Unsubscribes."""
        if self.subscription is not None:
            self.subscription.close()

    async def run(self, request: web.Request, response: web.StreamResponse) -> None:
        """Sends the initial objects, then all changes."""
        if self.failure is not None:
            await self._write(response, _event("ERROR", encode(self.failure.status())))
            return
        for chunk in _chunks(self._encode_event("ADDED", entry) for entry in self._initial_entries):
            await self._write(response, chunk)
        self._initial_entries = []
        if self._mark_end:
            await self._write(response, self.bookmark({"k8s.io/initial-events-end": "true"}))
        await self._follow(request, response)

    async def _follow(self, request: web.Request, response: web.StreamResponse) -> None:
        subscription = self.subscription
        assert subscription is not None
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout
        next_bookmark = loop.time() + BOOKMARK_INTERVAL
        while (now := loop.time()) < end:
            if now >= next_bookmark:
                next_bookmark = now + BOOKMARK_INTERVAL
                if self._bookmarks:
                    await self._write(response, self.bookmark({}))
            if not await subscription.wait(max(0.001, min(end - now, next_bookmark - now, _IDLE_CHECK_INTERVAL))):
                if request.transport is None or request.transport.is_closing():
                    return
                continue
            if subscription.overrun:
                failure = errors.expired("too old resource version: the watch fell too far behind")
                await self._write(response, _event("ERROR", encode(failure.status())))
                return
            for chunk in self.take_chunks():
                await self._write(response, chunk)
            # Changes until the next tick share one write.
            await asyncio.sleep(MIN_WRITE_INTERVAL - loop.time() % MIN_WRITE_INTERVAL)
        if self._bookmarks:
            await self._write(response, self.bookmark({}))

    def take_chunks(self) -> Iterator[bytes]:
        """Takes the pending changes; yields encoded chunks to write."""
        assert self.subscription is not None
        subscription = self.subscription
        pending = subscription.pending
        if not pending:
            return
        if self._predicate.selective or not self._encoder.shareable or len(pending) > _MAX_SHARED_BATCH:
            yield from _chunks(self._events(subscription))
            return
        self._sent_revision = pending[-1].entry.revision
        data = self._cache.batch(self._encoder, self._version, self._predicate.namespace, pending)
        pending.clear()
        if data:
            yield data

    def _events(self, subscription: Subscription) -> Iterator[bytes]:
        pending = subscription.pending
        while pending:
            change = pending.popleft()
            self._sent_revision = change.entry.revision
            line = self._translate(change)
            if line:
                yield line

    def _translate(self, change: StoreChange) -> bytes:
        """The event of a change: an object that leaves the selection is DELETED, one that enters it is ADDED."""
        predicate = self._predicate
        if not predicate.selective:
            if predicate.namespace and change.entry.namespace != predicate.namespace:
                return b""
            return self._encode_event(change.kind, change.entry)
        before = change.before is not None and predicate.matches(change.before)
        if change.kind == "DELETED":
            return self._encode_event("DELETED", change.entry) if before else b""
        after = predicate.matches(change.entry)
        if after:
            return self._encode_event("MODIFIED" if before else "ADDED", change.entry)
        if not before or change.before is None:
            return b""
        return self._encode_event("DELETED", _with_revision(change.before, change.entry.revision))

    def _encode_event(self, kind: str, entry: StoreEntry) -> bytes:
        return self._cache.event(self._encoder, self._version, kind, entry)

    def bookmark(self, annotations: Json) -> bytes:
        """A bookmark event with the revision up to which all events have been sent."""
        # Without pending changes, that is the store's revision, because later changes are of other resources.
        waits = self.subscription is not None and self.subscription.pending
        meta: Json = {"resourceVersion": str(self._sent_revision if waits else self._store.revision)}
        if annotations:
            meta["annotations"] = annotations
        return _event("BOOKMARK", self._encoder.encode_bookmark(meta))

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT):
            if isinstance(response, web.WebSocketResponse):
                for line in data.decode().rstrip("\n").split("\n"):
                    await response.send_str(line)
            else:
                await response.write(data)


def _with_revision(entry: StoreEntry, revision: int) -> StoreEntry:
    """An entry with a later resourceVersion, for an object that leaves the selection."""
    found = entry.object()
    found["metadata"]["resourceVersion"] = str(revision)
    return StoreEntry((entry.namespace, entry.name), revision, encode(found), entry.labels)


def _chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Joins lines to chunks of about _CHUNK_BYTES."""
    buffered: list[bytes] = []
    size = 0
    for line in lines:
        buffered.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            yield b"".join(buffered)
            buffered, size = [], 0
    if buffered:
        yield b"".join(buffered)


def _parse_start(info: RequestInfo) -> tuple[int | None, bool, bool]:
    """The start of a watch: its revision, whether it sends initial objects, and whether a bookmark follows them."""
    query = info.query
    since = parse_revision(query.get("resourceVersion", ""))
    wanted = query.get("sendInitialEvents", "")
    match = query.get("resourceVersionMatch", "")
    causes = []
    if match and not wanted:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.append(forbidden_parameter("resourceVersionMatch", why))
    if match not in ("", "NotOlderThan"):
        message = f'Unsupported value: "{match}": supported values: "NotOlderThan"'
        causes.append(errors.Cause("resourceVersionMatch", message, "FieldValueNotSupported"))
    if wanted and not match:
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(forbidden_parameter("resourceVersionMatch", why))
    if causes:
        raise errors.invalid_options("ListOptions", *causes)
    if not wanted:
        return since, not since, False
    if not info.flag("sendInitialEvents"):
        return since or None, False, False
    # The end of the initial events is marked only for clients that accept bookmarks.
    return since, True, info.flag("allowWatchBookmarks")
