"""Caches of what the API holds, fed by watches and by our own writes, with indexes and change handlers.

A controller's own writes are put into the cache when the API acknowledges them, so no decision is ever made on a cache
that has not seen an earlier decision carried out. That is why nothing is created twice, however slow a watch is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from embedded_kube.client import SYNCED, ClusterClient
from embedded_kube.controllers.machinery.objects import (
    EventView,
    FullObject,
    Key,
    NodeLeaseView,
    NodeView,
    ObjectView,
    PodView,
    read_event,
    read_full_object,
    read_lease,
    read_meta,
    read_node,
    read_object,
    read_pod,
)
from embedded_kube.errors import StatusError
from embedded_kube.storage.store import Json

T = TypeVar("T", bound=ObjectView)
Handler = Callable[[T | None, T | None], None]
"""StatusMessage of a change as (before, after): None before means new, None after means gone."""

_log = logging.getLogger(__name__)
_BREATH = 100
"""How many events are taken in one go before others get their turn on the loop."""


class CacheIndex(Generic[T]):
    """The objects of a cache by something other than their name."""

    def __init__(self, words: Callable[[T], tuple[str, ...]]) -> None:
        self._words = words
        self._found: dict[str, dict[Key, T]] = {}

    def change(self, before: T | None, after: T | None) -> None:
        """Follows the cache."""
        words = self._words(after) if after is not None else ()
        if before is not None:
            for word in self._words(before):
                if word in words:
                    continue
                held = self._found.get(word)
                if held is not None:
                    held.pop(before.meta.key, None)
                    if not held:
                        del self._found[word]
        if after is not None:
            for word in words:
                self._found.setdefault(word, {})[after.meta.key] = after

    def get(self, word: str) -> list[T]:
        """The objects under a word."""
        return list(self._found.get(word, {}).values())

    def count(self, word: str) -> int:
        """How many there are under a word."""
        return len(self._found.get(word, ()))


class LocalInformer(Generic[T]):
    """A cache of one resource."""

    def __init__(self, client: ClusterClient, resource: str, read: Callable[[Json], T]) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self._client = client
        self._read = read
        self._items: dict[Key, T] = {}
        self._indexes: list[CacheIndex[T]] = []
        self._handlers: list[Handler[T]] = []
        self._deleted_uids: set[str] = set()
        self._seen = 0

    def index(self, words: Callable[[T], tuple[str, ...]]) -> CacheIndex[T]:
        """A new index; words are computed from an object alone."""
        index = CacheIndex(words)
        for item in self._items.values():
            index.change(None, item)
        self._indexes.append(index)
        return index

    def add_event_handler(self, handler: Handler[T]) -> None:
        """Calls a handler for what there is and for every change from now on."""
        for item in list(self._items.values()):
            self._tell(handler, None, item)
        self._handlers.append(handler)

    def get(self, key: Key) -> T | None:
        """One object."""
        return self._items.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def on_written(self, found: Json) -> T:
        """Takes in what the API answered to a write, unless the watch is already past it."""
        item = self._read(found)
        if item.meta.revision > self._seen:
            self._put(item)
        return item

    def on_deleted(self, meta_uid: str, key: Key) -> None:
        """Marks an object whose deletion the API has acknowledged, until the watch says so too."""
        item = self._items.get(key)
        if item is None or item.meta.uid != meta_uid or item.meta.deleting:
            return
        self._deleted_uids.add(meta_uid)
        self._replace(item, self._mark(item))

    async def run(self) -> None:
        """Follows the API until cancelled; a broken watch raises, and the next run repairs what was missed."""
        listed: set[Key] | None = set()
        count = 0
        async for kind, found in self._client.watch(self.resource):
            if kind == SYNCED:
                await self._drop_missing(listed or set())
                listed = None
                self.synced.set()
            else:
                self._follow(kind, found)
                if listed is not None:
                    listed.add((found["metadata"].get("namespace", ""), found["metadata"]["name"]))
            count += 1
            if count % _BREATH == 0:
                await asyncio.sleep(0)
        raise RuntimeError(f"the watch of {self.resource} ended")

    def clear(self) -> None:
        """Forgets everything, as if all of it had been deleted."""
        for item in list(self._items.values()):
            self._replace(item, None)

    def _follow(self, kind: str, found: Json) -> None:
        if kind == "DELETED":
            meta = read_meta(found)
            self._seen = max(self._seen, meta.revision)
            self._deleted_uids.discard(meta.uid)
            held = self._items.get(meta.key)
            if held is not None and held.meta.revision <= meta.revision:
                self._replace(held, None)
            return
        meta = found["metadata"]
        revision = int(meta["resourceVersion"])
        self._seen = max(self._seen, revision)
        known = self._items.get((meta.get("namespace", ""), meta["name"]))
        # What we wrote ourselves is here already.
        if known is None or known.meta.revision < revision:
            self._put(self._read(found))

    async def _drop_missing(self, listed: set[Key]) -> None:
        """Removes what a new list no longer has; asked again, because we may have made it since."""
        for key, item in list(self._items.items()):
            if key in listed:
                continue
            try:
                found = await self._client.get(self.resource, *key)
            except StatusError as error:
                if error.code != 404:
                    raise
                if self._items.get(key) is item:
                    self._replace(item, None)
            else:
                self._put(self._read(found))

    def _put(self, item: T) -> None:
        held = self._items.get(item.meta.key)
        if held is not None and held.meta.revision >= item.meta.revision:
            return
        if item.meta.uid in self._deleted_uids:
            item = item if item.meta.deleting else self._mark(item)
        self._replace(held, item)

    def _mark(self, item: T) -> T:
        return msgspec.structs.replace(item, meta=msgspec.structs.replace(item.meta, deleting=time.time()))

    def _replace(self, before: T | None, after: T | None) -> None:
        if before is not None and after is not None and before.meta.uid != after.meta.uid:
            self._replace(before, None)
            before = None
        if after is not None:
            self._items[after.meta.key] = after
        elif before is not None:
            self._deleted_uids.discard(before.meta.uid)
            del self._items[before.meta.key]
        for index in self._indexes:
            index.change(before, after)
        for handler in self._handlers:
            self._tell(handler, before, after)

    def _tell(self, handler: Handler[T], before: T | None, after: T | None) -> None:
        try:
            handler(before, after)
        except Exception:
            _log.exception("a handler of %s failed", self.resource)


def _controller(item: ObjectView) -> tuple[str, ...]:
    owner = item.meta.controller
    return (owner.uid,) if owner is not None else ()


def _orphan_namespace(item: ObjectView) -> tuple[str, ...]:
    return (item.meta.namespace,) if item.meta.controller is None else ()


class InformerFactory:
    """The caches that all controllers share: one watch per resource, however many look."""

    def __init__(self, client: ClusterClient, start: Callable[[LocalInformer[Any]], asyncio.Task[None]]) -> None:
        self._client = client
        self._start = start
        self._all: dict[str, LocalInformer[Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.pods: LocalInformer[PodView] = self._informer("pods", read_pod)
        self.nodes: LocalInformer[NodeView] = self._informer("nodes", read_node)
        self.leases: LocalInformer[NodeLeaseView] = self._informer("leases.coordination.k8s.io", read_lease)
        self.events: LocalInformer[EventView] = self._informer("events", read_event)
        self.pods_of_controller = self.pods.index(_controller)
        self.pods_of_node = self.pods.index(lambda pod: (pod.node,) if pod.node else ())
        self.pods_of_namespace = self.pods.index(lambda pod: (pod.meta.namespace,))
        self.orphan_pods = self.pods.index(_orphan_namespace)

    def full(self, resource: str) -> LocalInformer[FullObject]:
        """Objects with their bodies. Ask for these before anyone asks for headers of the same resource."""
        return self._informer(resource, read_full_object)

    def metadata(self, resource: str) -> LocalInformer[Any]:
        """At least the metadata of the objects."""
        return self._all.get(resource) or self._informer(resource, read_object)

    def forget(self, resource: str) -> None:
        """Stops the watch of a resource that is served no more."""
        informer, task = self._all.pop(resource, None), self._tasks.pop(resource, None)
        if task is not None:
            task.cancel()
        if informer is not None:
            informer.clear()

    def find(self, resource: str) -> LocalInformer[Any] | None:
        """The cache of a resource, if anyone looks at it."""
        return self._all.get(resource)

    def __iter__(self) -> Iterator[LocalInformer[Any]]:
        return iter(list(self._all.values()))

    def _informer(self, resource: str, read: Callable[[Json], T]) -> LocalInformer[T]:
        known: LocalInformer[Any] | None = self._all.get(resource)
        if known is None:
            known = LocalInformer(self._client, resource, read)
            self._all[resource] = known
            self._tasks[resource] = self._start(known)
        return known
