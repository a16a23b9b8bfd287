"""Garbage collector: deletes objects whose owners are gone; foreground deletion waits for dependents."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import Controller, ControllerContext
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.metadata_edits import with_finalizer, without_finalizer, without_owners
from embedded_kube.controllers.machinery.objects import MetaView, ObjectView, OwnerView
from embedded_kube.controllers.machinery.rest_mapper import RestMapper, RestMapping
from embedded_kube.controllers.workloads.pod_control import slow_start_batch
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_IGNORED_RESOURCES = ("events",)
_ABSENT_OWNER_CACHE_SIZE = 20_000


class GraphNode(NamedTuple):
    """An object in the owner graph, and its resource."""

    resource: RestMapping
    item: ObjectView

    @property
    def meta(self) -> MetaView:
        """The metadata of the object."""
        return self.item.meta


class GcAction(NamedTuple):
    """What to do with an object: remove owner references, or delete it, in the foreground if it has dependents."""

    remove_owners: tuple[str, ...] = ()
    delete: bool = False
    foreground: bool = False


def decide_gc_action(meta: MetaView, gone: Collection[str], waiting: Collection[str], has_dependents: bool) -> GcAction:
    """Decides by which owners are gone, and which wait for their dependents (foreground deletion)."""
    uids = [owner.uid for owner in meta.owners]
    if any(uid not in gone and uid not in waiting for uid in uids):
        return GcAction(remove_owners=tuple(uid for uid in uids if uid in gone or uid in waiting))
    if not any(uid in gone for uid in uids) and not waiting:
        return GcAction()
    return GcAction(delete=True, foreground=bool(waiting) and has_dependents)


class GarbageCollector(Controller[str]):
    """Watches every resource and keeps the owner graph by uid."""

    name = "garbage-collector-controller"
    workers = 8

    def __init__(self, context: ControllerContext, mapper: RestMapper) -> None:
        super().__init__(context)
        self._mapper = mapper
        self._objects: dict[str, GraphNode] = {}
        self._dependents: dict[str, set[str]] = {}
        self._absent_owners: OrderedDict[str, None] = OrderedDict()
        self.cache_syncs.append(mapper.crds)
        mapper.add_listener(self._resource_changed)

    async def prepare(self) -> None:
        for resource in self._mapper:
            informer = self.informers.find(resource.name)
            if informer is not None:
                await informer.synced.wait()

    def _resource_changed(self, resource: RestMapping, exists: bool) -> None:
        if resource.name in _IGNORED_RESOURCES:
            return
        if exists:
            self.informers.metadata(resource.name).add_event_handler(partial(self._changed, resource))
        else:
            self.informers.forget(resource.name)

    def _changed(self, resource: RestMapping, before: ObjectView | None, after: ObjectView | None) -> None:
        if after is None:
            if before is not None:
                self._remove(before.meta)
            return
        meta = after.meta
        self._objects[meta.uid] = GraphNode(resource, after)
        if before is not None and _gc_fields(before.meta) == _gc_fields(meta):
            return
        for owner in before.meta.owners if before is not None else ():
            if owner not in meta.owners:
                self._unlink(owner, meta.uid)
        for owner in meta.owners:
            self._dependents.setdefault(owner.uid, set()).add(meta.uid)
        if meta.owners or meta.deleting:
            self.queue.add(meta.uid)
        if meta.deleting and FOREGROUND in meta.finalizers:
            self._enqueue_dependents(meta.uid)

    def _remove(self, meta: MetaView) -> None:
        self._objects.pop(meta.uid, None)
        self._absent_owners[meta.uid] = None
        if len(self._absent_owners) > _ABSENT_OWNER_CACHE_SIZE:
            self._absent_owners.popitem(last=False)
        for owner in meta.owners:
            self._unlink(owner, meta.uid)
        self._enqueue_dependents(meta.uid)

    def _unlink(self, owner: OwnerView, uid: str) -> None:
        held = self._dependents.get(owner.uid)
        if held is None:
            return
        held.discard(uid)
        if not held:
            del self._dependents[owner.uid]
        # The owner may wait for its last dependent.
        if owner.uid in self._objects and self._objects[owner.uid].meta.deleting:
            self.queue.add(owner.uid)

    def _enqueue_dependents(self, uid: str) -> None:
        for dependent in self._dependents.get(uid, ()):
            self.queue.add(dependent)

    async def reconcile(self, key: str) -> float | None:
        found = self._objects.get(key)
        if found is None:
            return None
        meta = found.meta
        if meta.deleting:
            if ORPHAN in meta.finalizers:
                await self._orphan(found)
                return None
            if FOREGROUND in meta.finalizers:
                await self._wait_for_dependents(found)
            return None
        if not meta.owners:
            return None
        gone, waiting = [], []
        for owner in meta.owners:
            state = await self._state_of(found, owner)
            if state == "unknown":
                return 30.0
            if state == "gone":
                gone.append(owner.uid)
            elif state == "waiting":
                waiting.append(owner.uid)
        action = decide_gc_action(meta, gone, waiting, bool(self._dependents.get(key)))
        await self._act(found, action)
        return None

    async def _act(self, found: GraphNode, action: GcAction) -> None:
        if action.remove_owners:
            await self._edit(found, partial(without_owners, uids=frozenset(action.remove_owners)))
        if not action.delete:
            return
        if action.foreground:
            await self._edit(found, partial(with_finalizer, name=FOREGROUND))
        await self.context.delete(found.resource.name, found.item)

    async def _state_of(self, found: GraphNode, owner: OwnerView) -> str:
        """Returns present, waiting (for its dependents), gone, or unknown (the kind is not served)."""
        known = self._objects.get(owner.uid)
        resource = self._mapper.mapping_for(owner.api_version, owner.kind)
        if resource is not None and resource.namespaced and not found.meta.namespace:
            about = InvolvedObject(found.resource.group, found.resource.kind, found.meta)
            text = f"ownerRef [{owner.kind} {owner.name}] of a cluster-scoped object names a namespaced owner"
            self.warning(about, "OwnerRefInvalidNamespace", text)
            return "unknown"
        namespace = found.meta.namespace if resource is not None and resource.namespaced else ""
        if known is not None and known.meta.namespace in ("", found.meta.namespace):
            waits = known.meta.deleting and FOREGROUND in known.meta.finalizers
            return "waiting" if waits else "present"
        if known is None and owner.uid in self._absent_owners:
            return "gone"
        if resource is None:
            return "unknown"
        # The cache may be stale, and a wrong answer deletes data: ask the API.
        try:
            live = await self.context.client.get(resource.name, namespace, owner.name)
        except StatusError as error:
            if error.code == 404:
                return "gone"
            raise
        return "present" if live["metadata"]["uid"] == owner.uid else "gone"

    async def _orphan(self, found: GraphNode) -> None:
        """Removes the owner reference from the dependents, then the finalizer from the owner."""
        dependents = [self._objects[uid] for uid in self._dependents.get(found.meta.uid, ()) if uid in self._objects]
        release = partial(without_owners, uids=frozenset((found.meta.uid,)))
        await slow_start_batch([partial(self._edit, dependent, release) for dependent in dependents])
        await self._edit(found, partial(without_finalizer, name=ORPHAN))

    async def _wait_for_dependents(self, found: GraphNode) -> None:
        uid = found.meta.uid
        dependents = [self._objects[one] for one in self._dependents.get(uid, ()) if one in self._objects]
        if not any(owner.uid == uid and owner.blocks for one in dependents for owner in one.meta.owners):
            await self._edit(found, partial(without_finalizer, name=FOREGROUND))

    async def _edit(self, found: GraphNode, change: partial[Json | None]) -> None:
        try:
            await self.context.edit(found.resource.name, found.item, change)
        except StatusError as error:
            if error.code != 404:
                raise


def _gc_fields(meta: MetaView) -> tuple[object, ...]:
    """Returns the fields that decide about an object's collection, besides the state of its owners."""
    return meta.owners, meta.finalizers, bool(meta.deleting)
