"""A copy of all objects of one kind that follows the API server, and tells what changed."""

# ruff: noqa: A002
# A parameter called `type` says what it is better than any other word.

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
"""How long a wait for a revision hopes for an event before it lists, in seconds."""

_SHORTEST, _LONGEST = 0.05, 30.0
"""The bounds of the pause before a watch is opened anew."""

_SETTLED = 10.0
"""A watch that lasted so long worked, even if there was nothing to hear."""

_REMEMBERED = 4096
"""The names of so many objects that were deleted last are remembered, and when that was."""

_log = structlog.get_logger(__name__)


class HasMetadata(Protocol):
    """An object of the API."""

    metadata: Meta


T = TypeVar("T", bound=HasMetadata)


class ChangeKind(Enum):
    """What happened to an object."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class ObjectChange(NamedTuple, Generic[T]):
    """A change of an object; a deleted one is shown as it was last, and is `old` itself if nobody told how it was."""

    kind: ChangeKind
    object: T
    old: T | None


class Informer(Generic[T]):
    """Keeps `objects` as the API server has them. Each change is told once, whatever is repeated, late or left out."""

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
        """Everything up to here has been seen."""
        self.problem = ""
        """Why nothing can be heard just now, or empty."""
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
        self._moved = asyncio.Event()
        self._heard_at = time.monotonic()

    @property
    def lag(self) -> float:
        """Seconds since anything was heard: a list, an event or a bookmark."""
        return time.monotonic() - self._heard_at

    async def wait_synced(self) -> None:
        """Returns once the first list is in."""
        await self._synced.wait()

    async def wait_for_revision(self, revision: int) -> None:
        """Returns once everything up to `revision`, which the server has reached already, has been seen."""
        # A busy watch passes it by itself. On a quiet one only bookmarks come, once a minute; so list. A list shows one
        # moment after the call, hence after `revision`, and is merged while the watch goes on, for whatever is older
        # than the copy changes nothing in it. One list serves all who wait.
        lists = 0
        while self.revision < revision:
            try:
                async with asyncio.timeout(backoff.exponential(lists, _LONGEST, GRACE)):
                    await self._pass(revision)
            except TimeoutError:
                await self._list_until(revision)
                lists += 1

    def give_up(self) -> None:
        """Nothing more will be seen: whoever waits for a revision need not."""
        self.revision = sys.maxsize
        self._moved.set()

    async def _pass(self, revision: int) -> None:
        while self.revision < revision:
            await self._moved.wait()

    async def _list_until(self, revision: int) -> None:
        try:
            async with self._listing:
                if self.revision < revision:
                    await self._list()
        except ApiError as error:
            self._tell(error)

    async def run(self) -> None:
        """Follows the API server for ever."""
        failures = 0
        must_list = True
        while True:
            asked_for = 0.0
            begun = time.monotonic()
            try:
                if must_list:
                    async with self._listing:
                        await self._list()
                    must_list = False
                    begun = time.monotonic()
                await self._follow()
            except Gone:
                must_list = True
            except ApiError as error:
                self._tell(error)
                asked_for = error.retry_after or 0.0
            # Only a watch counts as success: lists that are followed by Gone at once are to become rarer.
            worked = self._heard_at > begun or time.monotonic() - begun > _SETTLED
            failures = 0 if worked else failures + 1
            delay = backoff.exponential(failures, _LONGEST, _SHORTEST)
            await asyncio.sleep(max(asked_for, delay * random.uniform(0.5, 1.5)))

    async def _list(self) -> None:
        before = self.revision
        listed = await self._client.list(
            self.resource, self._namespace, type=self._type, labels=self._labels, fields=self._fields
        )
        if listed.resource_version < before:
            # Of a server that lags behind the one we heard before: what it shows was true once, and is no more.
            raise Undecided(0, "Stale", f"the list is of revision {listed.resource_version}, older than {before}")
        self._merge(listed)
        self._synced.set()

    async def _follow(self) -> None:
        """Takes what a watch tells until it ends."""
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
                self._take(events)

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
            # What is newer than the list came by the watch meanwhile.
            if int(old.metadata.resource_version) <= listed.resource_version:
                self._drop(key, old, listed.resource_version, changes)
        self._listed = max(self._listed, listed.resource_version)
        self._finish(listed.resource_version, changes)

    def _take(self, events: Sequence[WatchEvent[T]]) -> None:
        changes: list[ObjectChange[T]] = []
        latest = self.revision
        for event in events:
            meta = event.object.metadata
            revision = self._read_revision(meta)
            if revision is None:
                continue
            latest = max(latest, revision)
            # A list shows everything that happened before it.
            if event.type == "BOOKMARK" or revision <= self._listed:
                continue
            if event.type == "DELETED" or event.type == UNREADABLE:
                self._remove(event, revision, changes)
            else:
                self._put(event.object, revision, changes)
        self._finish(latest, changes)

    def _read_revision(self, meta: Meta) -> int | None:
        """When an object got as it is; None, and a line in the log, for one that is left out because it cannot tell."""
        try:
            return read_revision(meta.resource_version)
        except Undecided as error:
            name = f"{meta.namespace}/{meta.name}"
            _log.warning("object left out", resource=self.resource.plural, name=name, error=error.message)
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
        # An event about an earlier object of this name comes late; one about a later tells that this one is gone too.
        if old is not None and revision >= int(old.metadata.resource_version):
            known = event.type == "DELETED" and meta.uid == old.metadata.uid
            self._drop(key, event.object if known else old, revision, changes)

    def _drop(self, key: tuple[str, str], last: T, revision: int, changes: list[ObjectChange[T]]) -> None:
        changes.append(ObjectChange(ChangeKind.DELETED, last, self.objects.pop(key)))
        self._deleted[key] = revision

    def _finish(self, revision: int, changes: list[ObjectChange[T]]) -> None:
        """Ends a batch: tells the changes, then whoever waits for the revision."""
        self._heard_at = time.monotonic()
        self.problem = ""
        # While a list is under way it may yet show what has been deleted since.
        while len(self._deleted) > _REMEMBERED and not self._listing.locked():
            del self._deleted[next(iter(self._deleted))]
        if changes:
            self._hand_over(changes)
        if revision > self.revision:
            self.revision = revision
            self._moved.set()
            self._moved = asyncio.Event()

    def _hand_over(self, changes: Sequence[ObjectChange[T]]) -> None:
        try:
            self._on_changes(changes)
        except Exception:
            if len(changes) > 1:
                # One by one, so some a second time: what comes beside a change that nobody can take must not be lost.
                for change in changes:
                    self._hand_over([change])
                return
            meta = changes[0].object.metadata
            name = f"{meta.namespace}/{meta.name}"
            _log.exception("a change was not taken in", resource=self.resource.plural, name=name)

    def _tell(self, error: ApiError) -> None:
        self.problem = error.message
        _log.warning("cannot follow", resource=self.resource.plural, status=error.status, error=error.message)


def _key(meta: Meta) -> tuple[str, str]:
    return meta.namespace, meta.name
