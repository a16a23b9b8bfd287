"""Base class of controllers: a work queue of keys, workers that reconcile them, and the controllers' context."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from embedded_kube.client import ClusterClient
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject, LocalEventRecorder
from embedded_kube.controllers.machinery.informer import InformerFactory, LocalInformer
from embedded_kube.controllers.machinery.objects import Key, ObjectView
from embedded_kube.controllers.settings import ControllerSettings
from embedded_kube.errors import MODIFIED, StatusError, conflict
from gpu_scheduler.base import backoff
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=ObjectView)
_log = logging.getLogger(__name__)

FIRST_RESTART_DELAY = 0.5
MAX_RESTART_DELAY = 30.0
_RETRY = (0.02, 60.0)
"""The shortest and the longest delay before a failed reconciliation is retried, in seconds."""


async def keep_running(name: str, start: Callable[[], Awaitable[None]]) -> None:
    """Runs something until it returns. A failure is logged and it is started again, with exponential backoff."""
    failures = 0
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            await start()
            return
        except Exception:
            _log.exception("%s failed, restarting it", name)
        failures = 0 if loop.time() - began > MAX_RESTART_DELAY else failures + 1
        await asyncio.sleep(backoff.exponential(failures, MAX_RESTART_DELAY, FIRST_RESTART_DELAY))


def copy_json(found: Json) -> Json:
    """Returns a deep copy."""
    copied: Json = msgspec.json.decode(msgspec.json.encode(found))
    return copied


class ControllerContext:
    """Settings, informers and event recorder of all controllers, and writes that update the informers' caches."""

    def __init__(self, client: ClusterClient, settings: ControllerSettings, informers: InformerFactory) -> None:
        self.client = client
        self.settings = settings
        self.informers = informers
        self.recorder = LocalEventRecorder(client)

    async def create(self, resource: str, found: Json) -> Json:
        """Creates an object; it is in the cache when this returns."""
        made = await self.client.create(resource, found)
        self._on_written(resource, made)
        return made

    async def edit(
        self, resource: str, item: ObjectView, change: Callable[[Json], Json | None], subresource: str = ""
    ) -> Json:
        """Edits an object with a uid precondition. A change that returns None leaves it as it is."""
        key, uid = item.meta.key, item.meta.uid

        def checked(found: Json) -> Json:
            if found["metadata"]["uid"] != uid:
                raise conflict(resource, "", key[1], "the object was replaced by another of its name")
            changed = change(found)
            if changed is None:
                raise _Unchanged(found)
            return changed

        try:
            found = await self.client.edit(resource, *key, checked, subresource)
        except _Unchanged as unchanged:
            return unchanged.found
        self._on_written(resource, found)
        return found

    async def set_status(self, resource: str, item: ObjectView, status: Json, *, pinned: bool = False) -> Json:
        """Replaces the status. If `pinned`, it conflicts unless the object has the cached resourceVersion."""
        key, revision = item.meta.key, item.meta.revision

        def change(found: Json) -> Json:
            if pinned and int(found["metadata"]["resourceVersion"]) != revision:
                raise conflict(resource, "", key[1], MODIFIED)
            return {**found, "status": status}

        return await self.edit(resource, item, change, "status")

    async def delete(self, resource: str, item: ObjectView, grace: int | None = None) -> None:
        """Deletes an object with a uid precondition; the cache shows it as deleting when this returns."""
        meta = item.meta
        try:
            await self.client.delete(resource, *meta.key, uid=meta.uid, grace=grace)
        except StatusError as error:
            # Another object has the name now: the one to delete is gone.
            if error.reason != "Conflict":
                raise
        informer = self.informers.find(resource)
        if informer is not None:
            informer.on_deleted(meta.uid, meta.key)

    def _on_written(self, resource: str, found: Json) -> None:
        informer = self.informers.find(resource)
        if informer is not None:
            informer.on_written(found)


class _Unchanged(Exception):  # noqa: N818
    """Control flow: leaves an edit that has nothing to change."""

    def __init__(self, found: Json) -> None:
        super().__init__()
        self.found = found


def is_terminating_namespace(error: StatusError) -> bool:
    """Whether a create failed because its namespace is terminating; that is neither reported nor retried."""
    return error.code == 403 and "being terminated" in error.message


class Controller(ABC, Generic[K]):
    """A reconcile loop. Subclasses add keys to the queue and implement `reconcile`."""

    name: ClassVar[str] = ""
    workers: ClassVar[int] = 4

    def __init__(self, context: ControllerContext) -> None:
        self.context = context
        self.settings = context.settings
        self.informers = context.informers
        self.queue: WorkQueue[K] = WorkQueue(self.workers, retry=_RETRY)
        self.cache_syncs: list[LocalInformer[Any]] = []

    @abstractmethod
    async def reconcile(self, key: K) -> float | None:
        """Reconciles one key; returns the delay in seconds after which to requeue it, if any."""

    async def prepare(self) -> None:
        """Runs once, after the caches have synced and before the workers start."""

    async def tick(self) -> None:
        """Runs every `period` seconds."""

    @property
    def period(self) -> float | None:
        """Seconds between two calls of `tick`; None for never."""
        return None

    async def run(self) -> None:
        """Waits for the caches, then runs the workers until cancelled."""
        for informer in self.cache_syncs:
            await informer.synced.wait()
        await self.prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run(self._process))
            if self.period is not None:
                group.create_task(keep_running(f"the ticker of {self.name}", self._run_ticks))

    def enqueue_on_change(self, informer: LocalInformer[T], key_of: Callable[[T], K | None]) -> None:
        """Enqueues the key of every object that changes in a cache. The workers wait for the cache to sync."""
        self.cache_syncs.append(informer)

        def on_change(before: T | None, after: T | None) -> None:
            for item in (before, after):
                key = key_of(item) if item is not None else None
                if key is not None:
                    self.queue.add(key)

        informer.add_event_handler(on_change)

    async def create_pod(self, pod: Json, about: InvolvedObject) -> None:
        """Creates a pod and records an Event on its owner, except for failures in a terminating namespace."""
        try:
            made = await self.context.create("pods", pod)
        except StatusError as error:
            if not is_terminating_namespace(error):
                self.warning(about, "FailedCreate", f"Error creating: {error.message}")
            raise
        self.event(about, "SuccessfulCreate", f"Created pod: {made['metadata']['name']}")

    def event(self, about: InvolvedObject, reason: str, message: str) -> None:
        """Records a Normal Event."""
        self.context.recorder.event(self.name, about, reason, message)

    def warning(self, about: InvolvedObject, reason: str, message: str) -> None:
        """Records a Warning Event."""
        self.context.recorder.warning(self.name, about, reason, message)

    async def _run_ticks(self) -> None:
        while self.period is not None:
            await asyncio.sleep(self.period)
            await self.tick()

    async def _process(self, key: K) -> None:
        try:
            again = await self.reconcile(key)
        except StatusError as error:
            # A conflict means that the cache was stale: the retry uses a newer one.
            level = logging.DEBUG if error.code in (404, 409) else logging.WARNING
            _log.log(level, "%s: reconcile of %s failed, retrying: %s", self.name, key, error.message)
            self.queue.add_rate_limited(key)
        except Exception:
            _log.exception("%s: reconcile of %s failed, retrying", self.name, key)
            self.queue.add_rate_limited(key)
        else:
            self.queue.forget(key)
            if again is not None:
                self.queue.add_after(key, max(again, 0.01))


def object_key(item: ObjectView) -> Key:
    """Returns the key of an object."""
    return item.meta.key


def controller_key(item: ObjectView, kind: str, group: str) -> Key | None:
    """Returns the key of the object's controller, if it is of this kind."""
    owner = item.meta.controller
    if owner is None or owner.kind != kind or owner.api_version.rpartition("/")[0] != group:
        return None
    return item.meta.namespace, owner.name
