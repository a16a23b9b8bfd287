"""Informer: a cache of all objects of one kind that follows the API server and reports changes."""

# ruff: noqa: A002
# `type` is the best name for the type that objects are decoded to.

from __future__ import annotations

import asyncio
import builtins
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

import structlog

from gpu_scheduler.base import backoff
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.codec import UNREADABLE, ObjectList, WatchEvent, read_revision
from gpu_scheduler.k8s.errors import ApiError, Gone, Undecided
from gpu_scheduler.k8s.objects import Meta
from gpu_scheduler.k8s.resources import Resource

GRACE = 0.1
"""How long a wait for a revision waits for an event before it lists, in seconds."""

_MIN_DELAY, _MAX_DELAY = 0.05, 30.0
"""The bounds of the delay before a watch is opened again, in seconds."""

_WATCH_SUCCESS = 10.0
"""A watch that lasted this long, in seconds, counts as successful even without an event."""

_MAX_DELETED = 4096
"""How many recently deleted objects are remembered, with the revision of their deletion."""

_log = structlog.get_logger(__name__)


class HasMetadata(Protocol):
    """An API object."""

    metadata: Meta


T = TypeVar("T", bound=HasMetadata)


class ChangeKind(Enum):
    """How an object changed."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class ObjectChange(NamedTuple, Generic[T]):
    """A change of an object. Of a deleted one it has the last state; that is `old` itself if no event showed it."""

    kind: ChangeKind
    object: T
    old: T | None


class Informer(Generic[T]):
    """Keeps `objects` as the API server has them. Reports each change once, even if events repeat, lag or get lost."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        type: builtins.type[T],
        on_changes: Callable[[Sequence[ObjectChange[T]]], None],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        quiet: float = 90.0,
    ) -> None:
        self.resource = resource
        self.objects: dict[tuple[str, str], T] = {}
        self.revision = 0
        """The cache shows everything up to this revision."""
        self.problem = ""
        """Why the last list or watch failed; "" once one succeeds."""
        self._client = client
        self._type = type
        self._on_changes = on_changes
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._quiet = quiet
        self._listed = 0
        self._deleted: dict[tuple[str, str], int] = {}
        self._listing = asyncio.Lock()
        self._synced = asyncio.Event()
        self._advanced = asyncio.Event()
        self._updated_at = time.monotonic()

    @property
    def lag(self) -> float:
        """Seconds since the last list, event or bookmark."""
        return time.monotonic() - self._updated_at

    async def wait_synced(self) -> None:
        """Waits for the first list."""
        await self._synced.wait()

    async def wait_for_revision(self, revision: int) -> None:
        """Waits until the cache has reached `revision`, which the server has reached already."""
        # A busy watch reaches it by itself. A quiet one has only a bookmark a minute, so list. A list shows a moment
        # after the call, hence after `revision`. It is merged while the watch goes on: anything older than the cache
        # changes nothing in it. One list serves all waiters.
        lists = 0
        while self.revision < revision:
            try:
                async with asyncio.timeout(backoff.exponential(lists, _MAX_DELAY, GRACE)):
                    await self._wait_for_event(revision)
            except TimeoutError:
                await self._list_if_behind(revision)
                lists += 1

    def give_up(self) -> None:
        """Releases all waiters: this informer will not see anything more."""
        self.revision = sys.maxsize
        self._advanced.set()

    async def _wait_for_event(self, revision: int) -> None:
        while self.revision < revision:
            await self._advanced.wait()

    async def _list_if_behind(self, revision: int) -> None:
        try:
            async with self._listing:
                if self.revision < revision:
                    await self._list()
        except ApiError as error:
            self._report(error)

    async def run(self) -> None:
        """Lists and watches until it is cancelled."""
        failures = 0
        must_list = True
        while True:
            retry_after = 0.0
            begun = time.monotonic()
            try:
                if must_list:
                    async with self._listing:
                        await self._list()
                    must_list = False
                    begun = time.monotonic()
                await self._watch()
            except Gone:
                must_list = True
            except ApiError as error:
                self._report(error)
                retry_after = error.retry_after or 0.0
            # Only a watch counts as success: a list that is followed by Gone at once is repeated with backoff.
            worked = self._updated_at > begun or time.monotonic() - begun > _WATCH_SUCCESS
            failures = 0 if worked else failures + 1
            delay = backoff.exponential(failures, _MAX_DELAY, _MIN_DELAY)
            await asyncio.sleep(max(retry_after, delay * random.uniform(0.5, 1.5)))

    async def _list(self) -> None:
        before = self.revision
        listed = await self._client.list(
            self.resource, self._namespace, type=self._type, labels=self._labels, fields=self._fields
        )
        if listed.resource_version < before:
            # This server lags behind the one that answered before: its list is out of date.
            raise Undecided(0, "Stale", f"the list is of revision {listed.resource_version}, older than {before}")
        self._merge(listed)
        self._synced.set()

    async def _watch(self) -> None:
        """Handles the events of a watch until it ends."""
        watch = self._client.watch(
            self.resource,
            self._namespace,
            type=self._type,
            since=str(self.revision),
            labels=self._labels,
            fields=self._fields,
            quiet=self._quiet,
        )
        async with aclosing(watch):
            async for events in watch:
                self._handle(events)

    def _merge(self, listed: ObjectList[T]) -> None:
        changes: list[ObjectChange[T]] = []
        present = set()
        for found in listed.items:
            present.add(_key(found.metadata))
            revision = self._read_revision(found.metadata)
            if revision is not None:
                self._put(found, revision, changes)
        missing = self.objects.keys() - present
        for key in missing:
            old = self.objects[key]
            # Objects newer than the list came from the watch meanwhile.
            if int(old.metadata.resource_version) <= listed.resource_version:
                self._drop(key, old, listed.resource_version, changes)
        self._listed = max(self._listed, listed.resource_version)
        self._finish(listed.resource_version, changes)

    def _handle(self, events: Sequence[WatchEvent[T]]) -> None:
        changes: list[ObjectChange[T]] = []
        latest = self.revision
        for event in events:
            meta = event.object.metadata
            revision = self._read_revision(meta)
            if revision is None:
                continue
            latest = max(latest, revision)
            # The list has shown it already.
            if event.type == "BOOKMARK" or revision <= self._listed:
                continue
            if event.type == "DELETED" or event.type == UNREADABLE:
                self._remove(event, revision, changes)
            else:
                self._put(event.object, revision, changes)
        self._finish(latest, changes)

    def _read_revision(self, meta: Meta) -> int | None:
        """The revision of an object; None, with a log line, if it is not a number and the object is skipped."""
        try:
            return read_revision(meta.resource_version)
        except Undecided as error:
            name = f"{meta.namespace}/{meta.name}"
            _log.warning("object skipped", resource=self.resource.plural, name=name, error=error.message)
            return None

    def _put(self, found: T, revision: int, changes: list[ObjectChange[T]]) -> None:
        key = _key(found.metadata)
        if revision <= self._deleted.get(key, 0):
            return
        old = self.objects.get(key)
        if old is None:
            changes.append(ObjectChange(ChangeKind.ADDED, found, None))
        elif revision <= int(old.metadata.resource_version):
            return
        elif old.metadata.uid == found.metadata.uid:
            changes.append(ObjectChange(ChangeKind.MODIFIED, found, old))
        else:
            self._drop(key, old, revision, changes)
            changes.append(ObjectChange(ChangeKind.ADDED, found, None))
        self.objects[key] = found

    def _remove(self, event: WatchEvent[T], revision: int, changes: list[ObjectChange[T]]) -> None:
        meta = event.object.metadata
        key = _key(meta)
        old = self.objects.get(key)
        self._deleted[key] = max(revision, self._deleted.get(key, 0))
        # An event of an earlier object of this name is late. One of a later object shows that this one is gone, too.
        if old is not None and revision >= int(old.metadata.resource_version):
            known = event.type == "DELETED" and meta.uid == old.metadata.uid
            self._drop(key, event.object if known else old, revision, changes)

    def _drop(self, key: tuple[str, str], last: T, revision: int, changes: list[ObjectChange[T]]) -> None:
        changes.append(ObjectChange(ChangeKind.DELETED, last, self.objects.pop(key)))
        self._deleted[key] = revision

    def _finish(self, revision: int, changes: list[ObjectChange[T]]) -> None:
        """Ends a batch: reports the changes, then wakes those that wait for the revision."""
        self._updated_at = time.monotonic()
        self.problem = ""
        # A list in progress may still show objects that were deleted since.
        while len(self._deleted) > _MAX_DELETED and not self._listing.locked():
            del self._deleted[next(iter(self._deleted))]
        if changes:
            self._notify(changes)
        if revision > self.revision:
            self.revision = revision
            self._advanced.set()
            self._advanced = asyncio.Event()

    def _notify(self, changes: Sequence[ObjectChange[T]]) -> None:
        try:
            self._on_changes(changes)
        except Exception:
            if len(changes) > 1:
                # One by one, some of them again: the other changes of the batch must not be lost.
                for change in changes:
                    self._notify([change])
                return
            meta = changes[0].object.metadata
            name = f"{meta.namespace}/{meta.name}"
            _log.exception("event handler failed", resource=self.resource.plural, name=name)

    def _report(self, error: ApiError) -> None:
        self.problem = error.message
        _log.warning("watch failed", resource=self.resource.plural, status=error.status, error=error.message)


def _key(meta: Meta) -> tuple[str, str]:
    return meta.namespace, meta.name
