"""Cluster watcher: runs an informer for each kind that scheduling depends on, and collects the engine's events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from gpu_scheduler.core.events import Bind, Event
from gpu_scheduler.gangs.contract import CHARGED_QUEUE, QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.dialects import GangContext, choose_resources
from gpu_scheduler.gangs.dialects.workload import Workloads
from gpu_scheduler.gangs.owners import Owners
from gpu_scheduler.gangs.pods.annotations import bind_annotations
from gpu_scheduler.gangs.pods.shapes import read_shape
from gpu_scheduler.gangs.queues import QueueRegistry
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.discovery import Served, find_served
from gpu_scheduler.k8s.errors import ApiError, Refused
from gpu_scheduler.k8s.informer import ChangeKind, Informer, ObjectChange
from gpu_scheduler.k8s.objects import (
    ClaimObject,
    NodeObject,
    Object,
    PodObject,
    PriorityClassObject,
    RawObject,
    StorageClassObject,
    VolumeObject,
)
from gpu_scheduler.k8s.resources import (
    CLAIMS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from gpu_scheduler.scheduler.decoding.decode import DecodeOptions
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.translate import Translator

DISCOVERY_PERIOD = 10.0
"""How often API discovery looks for kinds that were installed or removed, in seconds."""

OWNER_BATCH_DELAY = 0.05
"""How long new owner objects are gathered, in seconds: each batch makes all gangs be read again."""

_log = structlog.get_logger(__name__)

Handler = Callable[[Sequence[ObjectChange[Any]]], None]
WatchedKind = tuple[Resource, type[Any], Handler]
"""A kind, the type that its objects are decoded to, and the handler of its changes."""


def make_translator(settings: Settings, owners: Owners | None = None) -> Translator:
    """Builds a translator with the scheduler names, GPU resources, topology levels and ceilings of the settings."""
    names, gpus, ceilings = frozenset(settings.scheduler_names), settings.core.gpu_resources, settings.ceilings

    def shape_of(spec: Any, meta: Any) -> Any:
        shaped = read_shape(spec, meta, gpus)
        return shaped.shape if not shaped.gates else None

    levels = tuple(name for name, _ in settings.core.levels)
    context = GangContext(names, levels=levels, shape_of=shape_of, ceilings=ceilings)
    if owners is not None:
        context.owner_of = owners.find
    return Translator(DecodeOptions(names, gpus, ceilings), GangRegistry(context), QueueRegistry())


def required_kinds(translator: Translator) -> list[WatchedKind]:
    """The kinds that every API server has, each after those that it refers to: pods come last."""
    return [
        (NAMESPACES, Object, translator.on_namespaces_changed),
        (CLAIMS, ClaimObject, translator.on_claims_changed),
        (VOLUMES, VolumeObject, translator.on_volumes_changed),
        (STORAGE_CLASSES, StorageClassObject, translator.on_volumes_changed),
        (PRIORITY_CLASSES, PriorityClassObject, translator.on_priority_classes_changed),
        (NODES, NodeObject, translator.on_nodes_changed),
        (PODS, PodObject, translator.on_pods_changed),
    ]


def optional_kinds(translator: Translator, served: Served) -> list[WatchedKind]:
    """The kinds of gangs and queues that the API server serves."""
    context = translator.registry.context
    context.resources = choose_resources(served.has)
    workloads = context.resources.get(Workloads.name)
    context.workload_status = workloads is not None and served.has(workloads, "status")
    queues: list[WatchedKind] = [
        (kind, RawObject, partial(translator.on_queues_changed, kind)) for kind in (QUEUES, VOLCANO_QUEUES)
    ]
    groups: list[WatchedKind] = [
        (kind, RawObject, partial(translator.on_groups_changed, dialect)) for dialect, kind in context.resources.items()
    ]
    return [kind for kind in queues if served.has(kind[0])] + groups


class ClusterWatcher:
    """Watches the cluster. Calls `wake` whenever there are new events to take."""

    def __init__(self, client: Client, settings: Settings, wake: Callable[[], None]) -> None:
        self._client = client
        self._settings = settings
        self._wake = wake
        self._owners = Owners(client, self._reread_groups_soon)
        self.translator = make_translator(settings, self._owners)
        self.registry = self.translator.registry
        self.queues = self.translator.queues
        self.served = Served(())
        self._informers: dict[Resource, Informer[Any]] = {}
        self._optional: dict[Resource, tuple[Handler, asyncio.Task[None]]] = {}
        self._forbidden: set[Resource] = set()
        self._reread_timer: asyncio.TimerHandle | None = None
        self._batch_delay = OWNER_BATCH_DELAY
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether all kinds have been listed."""
        return self._synced.is_set()

    def pod(self, uid: str) -> PodObject | None:
        """The pod with a uid, if it exists."""
        return self.translator.pods.get(uid)

    def bind_annotations(self, pod: PodObject, bind: Bind) -> dict[str, str]:
        """The annotations that a bind writes to its pod."""
        return {CHARGED_QUEUE: bind.queue, **bind_annotations(pod, bind.devices, self._settings.core.gpu_resources)}

    def deletion_grace(self, pod: PodObject) -> int:
        """The grace period in seconds with which a pod is deleted."""
        return self.registry.context.ceilings.deletion_grace(pod.spec)

    def unbound_claims(self, pod: PodObject) -> dict[str, str]:
        """The claims that must become Bound before the pod is bound, with the node selected for each, if any."""
        return self.translator.claims.unbound(pod)

    def lags(self) -> dict[str, float]:
        """The seconds since the last list, event or bookmark, for each kind."""
        return {resource.plural: informer.lag for resource, informer in self._informers.items()}

    def take_events(self) -> list[Event]:
        """Returns the events since the last call."""
        return self.translator.take_events()

    async def wait_synced(self) -> None:
        """Waits until all kinds have been listed."""
        await self._synced.wait()

    async def newest_revision(self) -> int:
        """Returns the newest revision of the API server."""
        return (await self._client.list(NAMESPACES, type=Object)).resource_version

    async def wait_for_revision(self, revision: int) -> None:
        """Waits until the caches of all kinds have reached a revision."""
        await self.wait_synced()
        await asyncio.gather(*[informer.wait_for_revision(revision) for informer in self._informers.values()])

    async def catch_up(self) -> None:
        """Waits until the caches show everything that happened before the call."""
        await self.wait_for_revision(await self.newest_revision())

    async def run(self) -> None:
        """Watches until it is cancelled: first the kinds that pods refer to, then pods, and kinds installed later."""
        *first, last = required_kinds(self.translator)
        async with asyncio.TaskGroup() as group:
            try:
                await self._discover(group)
                for kind in first:
                    self._start(group, *kind)
                await self._wait_for_all()
                self._start(group, *last)
                await self._wait_for_all()
                self._synced.set()
                self._wake()
                while True:
                    await asyncio.sleep(DISCOVERY_PERIOD)
                    await self._discover(group)
            finally:
                self._owners.close()
                if self._reread_timer is not None:
                    self._reread_timer.cancel()

    async def _wait_for_all(self) -> None:
        for informer in list(self._informers.values()):
            await informer.wait_synced()

    def _start(
        self, group: asyncio.TaskGroup, resource: Resource, form: type[Any], handler: Handler
    ) -> asyncio.Task[None]:
        def on_changes(changes: Sequence[ObjectChange[Any]]) -> None:
            handler(changes)
            self._wake()

        self._informers[resource] = informer = Informer(self._client, resource, form, on_changes)
        return group.create_task(informer.run())

    # -- kinds that may be installed and removed

    async def _discover(self, group: asyncio.TaskGroup) -> None:
        """Starts watching kinds that are newly served, and stops watching those that no longer are."""
        while True:
            try:
                served = await find_served(self._client)
                break
            except ApiError as error:
                _log.warning("API discovery failed", error=error.message)
                if self.synced:
                    return
                await asyncio.sleep(1.0)
        changed = served != self.served
        if not changed and not self._forbidden:
            return
        self.served = self._owners.served = served
        wanted = optional_kinds(self.translator, served)
        for resource in self._optional.keys() - {resource for resource, _, _ in wanted}:
            self._stop(resource)
        for resource, form, handler in wanted:
            if resource not in self._optional and await self._may_watch(resource):
                _log.info("watching kind", kind=resource.kind, api=resource.api_version)
                self._optional[resource] = (handler, self._start(group, resource, form, handler))
                changed = True
        if changed:
            self._reread_groups()

    async def _may_watch(self, resource: Resource) -> bool:
        """Whether we are permitted to list a kind.

        Gangs of a forbidden kind wait and all others go on. Queues are watched in any case: without them gangs would
        exceed their quota, so nothing is scheduled until they can be listed.
        """
        try:
            await self._client.request("GET", resource.path(), params={"limit": "1"})
        except Refused as error:
            if resource not in (QUEUES, VOLCANO_QUEUES):
                if resource not in self._forbidden:
                    _log.warning("kind not watched", kind=resource.kind, api=resource.api_version, error=error.message)
                self._forbidden.add(resource)
                return False
        except ApiError:
            pass  # the informer reports it
        self._forbidden.discard(resource)
        return True

    def _stop(self, resource: Resource) -> None:
        """Stops watching a kind that is no longer served, and handles its objects as deleted."""
        handler, task = self._optional.pop(resource)
        task.cancel()
        _log.info("kind no longer served", kind=resource.kind, api=resource.api_version)
        informer = self._informers.pop(resource)
        informer.give_up()
        handler([ObjectChange(ChangeKind.DELETED, found, found) for found in informer.objects.values()])
        self._wake()

    def _reread_groups_soon(self) -> None:
        if self._reread_timer is None:
            self._reread_timer = asyncio.get_running_loop().call_later(self._batch_delay, self._reread_groups)

    def _reread_groups(self) -> None:
        self._reread_timer = None
        begun = time.perf_counter()
        self.translator.reread_groups()
        self._owners.forget_unused()
        self._batch_delay = OWNER_BATCH_DELAY + 10 * (time.perf_counter() - begun)
        self._wake()
