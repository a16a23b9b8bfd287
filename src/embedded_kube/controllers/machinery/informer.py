"""Informers: caches fed by watches and by the controllers' own writes, with indexes and event handlers.

A controller's own write enters the cache when the API acknowledges it. So no controller decides on a cache that misses
its own earlier writes, and nothing is created twice, however slow a watch is. This replaces the expectations of
kube-controller-manager.
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
from gpu_scheduler.k8s.objects import Json

T = TypeVar("T", bound=ObjectView)
EventHandler = Callable[[T | None, T | None], None]
"""Called for a change with (before, after): before is None for a new object, after is None for a deleted one."""

_log = logging.getLogger(__name__)
_EVENTS_PER_TURN = 100
"""How many watch events are handled before other tasks get a turn on the event loop."""


class CacheIndex(Generic[T]):
    """The objects of a cache by computed index values."""

    def __init__(self, values: Callable[[T], tuple[str, ...]]) -> None:
        self._values = values
        self._objects: dict[str, dict[Key, T]] = {}

    def update(self, before: T | None, after: T | None) -> None:
        """Applies a change of the cache."""
        values = self._values(after) if after is not None else ()
        if before is not None:
            for value in self._values(before):
                if value in values:
                    continue
                objects = self._objects.get(value)
                if objects is not None:
                    objects.pop(before.meta.key, None)
                    if not objects:
                        del self._objects[value]
        if after is not None:
            for value in values:
                self._objects.setdefault(value, {})[after.meta.key] = after

    def get(self, value: str) -> list[T]:
        """Returns the objects with an index value."""
        return list(self._objects.get(value, {}).values())

    def count(self, value: str) -> int:
        """Returns the number of objects with an index value."""
        return len(self._objects.get(value, ()))


class LocalInformer(Generic[T]):
    """Watches one resource and caches its objects."""

    def __init__(self, client: ClusterClient, resource: str, read: Callable[[Json], T]) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self._client = client
        self._read = read
        self._items: dict[Key, T] = {}
        self._indexes: list[CacheIndex[T]] = []
        self._handlers: list[EventHandler[T]] = []
        self._deleted_uids: set[str] = set()
        self._seen = 0

    def index(self, values: Callable[[T], tuple[str, ...]]) -> CacheIndex[T]:
        """Adds an index; its values are computed from an object alone."""
        index = CacheIndex(values)
        for item in self._items.values():
            index.update(None, item)
        self._indexes.append(index)
        return index

    def add_event_handler(self, handler: EventHandler[T]) -> None:
        """Calls a handler for every cached object and for every later change."""
        for item in list(self._items.values()):
            self._notify(handler, None, item)
        self._handlers.append(handler)

    def get(self, key: Key) -> T | None:
        """Returns an object by key."""
        return self._items.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def on_written(self, found: Json) -> T:
        """Puts the result of an own write into the cache, unless the watch is already past it."""
        item = self._read(found)
        if item.meta.revision > self._seen:
            self._put(item)
        return item

    def on_deleted(self, uid: str, key: Key) -> None:
        """Marks an object as deleting after an own delete, until the watch shows it."""
        item = self._items.get(key)
        if item is None or item.meta.uid != uid or item.meta.deleting:
            return
        self._deleted_uids.add(uid)
        self._replace(item, self._mark_deleting(item))

    async def run(self) -> None:
        """Watches until cancelled. A broken watch raises; the next run lists again and repairs the cache."""
        listed: set[Key] | None = set()
        count = 0
        async for kind, found in self._client.watch(self.resource):
            if kind == SYNCED:
                await self._drop_missing(listed or set())
                listed = None
                self.synced.set()
            else:
                self._on_event(kind, found)
                if listed is not None:
                    listed.add((found["metadata"].get("namespace", ""), found["metadata"]["name"]))
            count += 1
            if count % _EVENTS_PER_TURN == 0:
                await asyncio.sleep(0)
        raise RuntimeError(f"the watch of {self.resource} has ended")

    def clear(self) -> None:
        """Empties the cache, as if all objects had been deleted."""
        for item in list(self._items.values()):
            self._replace(item, None)

    def _on_event(self, kind: str, found: Json) -> None:
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
        # The result of an own write is in the cache already.
        if known is None or known.meta.revision < revision:
            self._put(self._read(found))

    async def _drop_missing(self, listed: set[Key]) -> None:
        """Removes objects that a new list does not have. Gets each once more: it may have been created since."""
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
            item = item if item.meta.deleting else self._mark_deleting(item)
        self._replace(held, item)

    def _mark_deleting(self, item: T) -> T:
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
            index.update(before, after)
        for handler in self._handlers:
            self._notify(handler, before, after)

    def _notify(self, handler: EventHandler[T], before: T | None, after: T | None) -> None:
        try:
            handler(before, after)
        except Exception:
            _log.exception("event handler failed: %s", self.resource)


def _controller(item: ObjectView) -> tuple[str, ...]:
    owner = item.meta.controller
    return (owner.uid,) if owner is not None else ()


def _orphan_namespace(item: ObjectView) -> tuple[str, ...]:
    return (item.meta.namespace,) if item.meta.controller is None else ()


class InformerFactory:
    """Shared informers: one watch per resource for all controllers."""

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
        """Returns the informer of full objects. Must be called before `metadata` for the same resource."""
        return self._informer(resource, read_full_object)

    def metadata(self, resource: str) -> LocalInformer[Any]:
        """Returns an informer that has at least the metadata of the objects."""
        return self._all.get(resource) or self._informer(resource, read_object)

    def forget(self, resource: str) -> None:
        """Stops the watch of a resource that is no longer served."""
        informer, task = self._all.pop(resource, None), self._tasks.pop(resource, None)
        if task is not None:
            task.cancel()
        if informer is not None:
            informer.clear()

    def find(self, resource: str) -> LocalInformer[Any] | None:
        """Returns the informer of a resource, if there is one."""
        return self._all.get(resource)

    def _informer(self, resource: str, read: Callable[[Json], T]) -> LocalInformer[T]:
        known: LocalInformer[Any] | None = self._all.get(resource)
        if known is None:
            known = LocalInformer(self._client, resource, read)
            self._all[resource] = known
            self._tasks[resource] = self._start(known)
        return known
