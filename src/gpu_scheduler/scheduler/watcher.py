"""All that is watched: informers for every kind that matters here, each turned into the engine's events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from gpu_scheduler.core.events import Bind, Event
from gpu_scheduler.gangs.contract import QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.dialects import GangContext, choose_resources
from gpu_scheduler.gangs.dialects.workload import Workloads
from gpu_scheduler.gangs.owners import Owners
from gpu_scheduler.gangs.pods.annotations import bind_annotations
from gpu_scheduler.gangs.pods.shapes import read_shape
from gpu_scheduler.gangs.queues import QueueBook
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
from gpu_scheduler.scheduler.commit.binder import Sight
from gpu_scheduler.scheduler.decoding.decode import DecodeOptions
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.translate import Translator

DISCOVERY_PERIOD = 10.0
"""How soon a kind that was installed meanwhile is noticed, in seconds."""

OWNER_BATCH_DELAY = 0.05
"""How long owners that have come wait for others, in seconds: for each of them every gang is read anew."""

_log = structlog.get_logger(__name__)

Handler = Callable[[Sequence[ObjectChange[Any]]], None]
Kind = tuple[Resource, type[Any], Handler]
"""A kind, the form in which it is kept, and who takes its changes in."""


def make_translator(settings: Settings, owners: Owners | None = None) -> Translator:
    """A translator that reads what the settings say."""
    names, gpus = frozenset(settings.scheduler_names), settings.core.gpu_resources

    def shape_of(spec: Any, meta: Any) -> Any:
        shaped = read_shape(spec, meta, gpus)
        return shaped.shape if not shaped.gates else None

    context = GangContext(names, levels=tuple(name for name, _ in settings.core.levels), shape_of=shape_of)
    if owners is not None:
        context.owner_of = owners.find
    return Translator(DecodeOptions(names, gpus), GangRegistry(context), QueueBook())


def required_kinds(see: Translator) -> list[Kind]:
    """The kinds that every API server has, in the order in which they build on each other: pods come last."""
    return [
        (NAMESPACES, Object, see.see_namespaces),
        (CLAIMS, ClaimObject, see.see_claims),
        (VOLUMES, VolumeObject, see.see_volumes),
        (STORAGE_CLASSES, StorageClassObject, see.see_volumes),
        (PRIORITY_CLASSES, PriorityClassObject, see.see_priority_classes),
        (NODES, NodeObject, see.see_nodes),
        (PODS, PodObject, see.see_pods),
    ]


def optional_kinds(see: Translator, served: Served) -> list[Kind]:
    """The kinds of gangs and queues that are served here."""
    context = see.book.context
    context.resources = choose_resources(served.has)
    workloads = context.resources.get(Workloads.name)
    context.workload_status = workloads is not None and served.has(workloads, "status")
    queues: list[Kind] = [(kind, RawObject, partial(see.see_queues, kind)) for kind in (QUEUES, VOLCANO_QUEUES)]
    groups: list[Kind] = [
        (kind, RawObject, partial(see.see_groups, dialect)) for dialect, kind in context.resources.items()
    ]
    return [kind for kind in queues if served.has(kind[0])] + groups


class ClusterWatcher:
    """The watched cluster. `wake` is called whenever there are new events to take."""

    def __init__(self, client: Client, settings: Settings, wake: Callable[[], None]) -> None:
        self._client = client
        self._settings = settings
        self._wake = wake
        self._owners = Owners(client, self._read_groups_soon)
        self.translator = make_translator(settings, self._owners)
        self.book = self.translator.book
        self.queues = self.translator.queues
        self.served = Served(())
        self._informers: dict[Resource, Informer[Any]] = {}
        self._optional: dict[Resource, tuple[Handler, asyncio.Task[None]]] = {}
        self._forbidden: set[Resource] = set()
        self._reading: asyncio.TimerHandle | None = None
        self._gather = OWNER_BATCH_DELAY
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether everything has been listed."""
        return self._synced.is_set()

    @property
    def sight(self) -> Sight:
        """What carrying out decisions needs to see."""
        gpus = self._settings.core.gpu_resources

        def annotations(pod: PodObject, bind: Bind) -> dict[str, str]:
            return bind_annotations(pod, bind.devices, gpus)

        return Sight(self.translator.pods.get, annotations, self.translator.claims.unbound)

    def lags(self) -> dict[str, float]:
        """For every kind, the seconds since anything was heard of it."""
        return {resource.plural: informer.lag for resource, informer in self._informers.items()}

    def take(self) -> list[Event]:
        """The events since the last call."""
        return self.translator.take()

    async def wait_synced(self) -> None:
        """Returns once everything has been listed."""
        await self._synced.wait()

    async def find_newest(self) -> int:
        """The revision of the newest thing that has happened."""
        return (await self._client.list(NAMESPACES, type=Object)).resource_version

    async def wait_passed(self, revision: int) -> None:
        """Returns once everything up to a revision has been seen, of every kind."""
        await self.wait_synced()
        await asyncio.gather(*[informer.wait_passed(revision) for informer in self._informers.values()])

    async def catch_up(self) -> None:
        """Returns once everything that happened before the call has been seen."""
        await self.wait_passed(await self.find_newest())

    async def run(self) -> None:
        """Watches for ever: first what pods are read by, then nodes and pods, and what is installed later."""
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
                if self._reading is not None:
                    self._reading.cancel()

    async def _wait_for_all(self) -> None:
        for informer in list(self._informers.values()):
            await informer.wait_synced()

    def _start(
        self, group: asyncio.TaskGroup, resource: Resource, form: type[Any], handler: Handler
    ) -> asyncio.Task[None]:
        def take_in(changes: Sequence[ObjectChange[Any]]) -> None:
            handler(changes)
            self._wake()

        self._informers[resource] = informer = Informer(self._client, resource, form, take_in)
        return group.create_task(informer.run())

    # -- kinds that may come and go

    async def _discover(self, group: asyncio.TaskGroup) -> None:
        """Follows the kinds that are served now, and lets go of those that no longer are."""
        while True:
            try:
                served = await find_served(self._client)
                break
            except ApiError as error:
                _log.warning("cannot ask what is served", error=error.message)
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
            if resource not in self._optional and await self._may_follow(resource):
                _log.info("following", kind=resource.kind, api=resource.api_version)
                self._optional[resource] = (handler, self._start(group, resource, form, handler))
                changed = True
        if changed:
            self._read_groups_again()

    async def _may_follow(self, resource: Resource) -> bool:
        """Whether we may read a kind. Gangs of one that we may not wait, and all others go on; but without their queues
        gangs would get more than is theirs, so those are waited for."""
        try:
            await self._client.request("GET", resource.path(), params={"limit": "1"})
        except Refused as error:
            if resource not in (QUEUES, VOLCANO_QUEUES):
                if resource not in self._forbidden:
                    _log.warning("not following", kind=resource.kind, api=resource.api_version, error=error.message)
                self._forbidden.add(resource)
                return False
        except ApiError:
            pass  # whoever follows it will tell
        self._forbidden.discard(resource)
        return True

    def _stop(self, resource: Resource) -> None:
        """A kind is no longer served: its objects are gone."""
        handler, task = self._optional.pop(resource)
        task.cancel()
        _log.info("no longer served", kind=resource.kind, api=resource.api_version)
        informer = self._informers.pop(resource)
        informer.give_up()
        handler([ObjectChange(ChangeKind.DELETED, found, found) for found in informer.objects.values()])
        self._wake()

    def _read_groups_soon(self) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().call_later(self._gather, self._read_groups_again)

    def _read_groups_again(self) -> None:
        self._reading = None
        begun = time.perf_counter()
        self.translator.read_groups_again()
        self._owners.forget_unasked()
        self._gather = OWNER_BATCH_DELAY + 10 * (time.perf_counter() - begun)
        self._wake()
