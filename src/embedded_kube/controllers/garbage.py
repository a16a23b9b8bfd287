"""Garbage collection: what has lost its owners goes, and owners wait for what they asked to wait for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import Controller, Shared
from embedded_kube.controllers.machinery.edits import with_finalizer, without_finalizer, without_owners
from embedded_kube.controllers.machinery.objects import Held, Meta, Owner
from embedded_kube.controllers.machinery.recorder import About
from embedded_kube.controllers.machinery.resources import Resource, Resources
from embedded_kube.controllers.workloads.podsets import in_batches
from embedded_kube.errors import ApiError
from embedded_kube.storage.store import Json

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_UNCOLLECTED = ("events",)
_REMEMBERED_GONE = 20_000


class Tracked(NamedTuple):
    """An object and the resource it is of."""

    resource: Resource
    item: Held

    @property
    def meta(self) -> Meta:
        """Who it is."""
        return self.item.meta


class Fate(NamedTuple):
    """What becomes of an object: the owners it must forget, or that it must go (and wait for its own dependents)."""

    forget: tuple[str, ...] = ()
    delete: bool = False
    foreground: bool = False


def decide_fate(meta: Meta, gone: Collection[str], waiting: Collection[str], has_dependents: bool) -> Fate:
    """The fate of an object, by which of its owners are gone and which wait for it before they go."""
    uids = [owner.uid for owner in meta.owners]
    if any(uid not in gone and uid not in waiting for uid in uids):
        return Fate(forget=tuple(uid for uid in uids if uid in gone or uid in waiting))
    if not any(uid in gone for uid in uids) and not waiting:
        return Fate()
    return Fate(delete=True, foreground=bool(waiting) and has_dependents)


class Garbage(Controller[str]):
    """Follows every resource, and keeps who owns whom by uid."""

    name = "garbage-collector-controller"
    workers = 8

    def __init__(self, shared: Shared, resources: Resources) -> None:
        super().__init__(shared)
        self._resources = resources
        self._objects: dict[str, Tracked] = {}
        self._dependents: dict[str, set[str]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self.needs.append(resources.crds)
        resources.listen(self._resource_changed)

    async def begin(self) -> None:
        for resource in self._resources:
            informer = self.informers.find(resource.name)
            if informer is not None:
                await informer.synced.wait()

    def _resource_changed(self, resource: Resource, exists: bool) -> None:
        if resource.name in _UNCOLLECTED:
            return
        if exists:
            self.informers.held(resource.name).handle(partial(self._changed, resource))
        else:
            self.informers.forget(resource.name)

    def _changed(self, resource: Resource, before: Held | None, after: Held | None) -> None:
        if after is None:
            if before is not None:
                self._forget(before.meta)
            return
        meta = after.meta
        self._objects[meta.uid] = Tracked(resource, after)
        if before is not None and _standing(before.meta) == _standing(meta):
            return
        for owner in before.meta.owners if before is not None else ():
            if owner not in meta.owners:
                self._unlink(owner, meta.uid)
        for owner in meta.owners:
            self._dependents.setdefault(owner.uid, set()).add(meta.uid)
        if meta.owners or meta.deleting:
            self.queue.add(meta.uid)
        if meta.deleting and FOREGROUND in meta.finalizers:
            self._look_at_dependents(meta.uid)

    def _forget(self, meta: Meta) -> None:
        self._objects.pop(meta.uid, None)
        self._gone[meta.uid] = None
        if len(self._gone) > _REMEMBERED_GONE:
            self._gone.popitem(last=False)
        for owner in meta.owners:
            self._unlink(owner, meta.uid)
        self._look_at_dependents(meta.uid)

    def _unlink(self, owner: Owner, uid: str) -> None:
        held = self._dependents.get(owner.uid)
        if held is None:
            return
        held.discard(uid)
        if not held:
            del self._dependents[owner.uid]
        # An owner that waits for its dependents may have lost the last one.
        if owner.uid in self._objects and self._objects[owner.uid].meta.deleting:
            self.queue.add(owner.uid)

    def _look_at_dependents(self, uid: str) -> None:
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
        fate = decide_fate(meta, gone, waiting, bool(self._dependents.get(key)))
        await self._act(found, fate)
        return None

    async def _act(self, found: Tracked, fate: Fate) -> None:
        if fate.forget:
            await self._edit(found, partial(without_owners, uids=frozenset(fate.forget)))
        if not fate.delete:
            return
        if fate.foreground:
            await self._edit(found, partial(with_finalizer, name=FOREGROUND))
        await self.shared.delete(found.resource.name, found.item)

    async def _state_of(self, found: Tracked, owner: Owner) -> str:
        """present, waiting (for its dependents, before it goes), gone, or unknown (no such kind here)."""
        known = self._objects.get(owner.uid)
        resource = self._resources.of_kind(owner.api_version, owner.kind)
        if resource is not None and resource.namespaced and not found.meta.namespace:
            about = About(found.resource.group, found.resource.kind, found.meta)
            text = f"ownerRef [{owner.kind} {owner.name}] of a cluster-scoped object names a namespaced owner"
            self.warn(about, "OwnerRefInvalidNamespace", text)
            return "unknown"
        namespace = found.meta.namespace if resource is not None and resource.namespaced else ""
        if known is not None and known.meta.namespace in ("", found.meta.namespace):
            waits = known.meta.deleting and FOREGROUND in known.meta.finalizers
            return "waiting" if waits else "present"
        if known is None and owner.uid in self._gone:
            return "gone"
        if resource is None:
            return "unknown"
        # The cache may be behind, and a wrong answer here deletes somebody's work: ask.
        try:
            live = await self.shared.client.get(resource.name, namespace, owner.name)
        except ApiError as error:
            if error.code == 404:
                return "gone"
            raise
        return "present" if live["metadata"]["uid"] == owner.uid else "gone"

    async def _orphan(self, found: Tracked) -> None:
        """Makes the dependents ownerless, then lets the owner go."""
        dependents = [self._objects[uid] for uid in self._dependents.get(found.meta.uid, ()) if uid in self._objects]
        release = partial(without_owners, uids=frozenset((found.meta.uid,)))
        await in_batches([partial(self._edit, dependent, release) for dependent in dependents])
        await self._edit(found, partial(without_finalizer, name=ORPHAN))

    async def _wait_for_dependents(self, found: Tracked) -> None:
        uid = found.meta.uid
        dependents = [self._objects[one] for one in self._dependents.get(uid, ()) if one in self._objects]
        if not any(owner.uid == uid and owner.blocks for one in dependents for owner in one.meta.owners):
            await self._edit(found, partial(without_finalizer, name=FOREGROUND))

    async def _edit(self, found: Tracked, change: partial[Json | None]) -> None:
        try:
            await self.shared.edit(found.resource.name, found.item, change)
        except ApiError as error:
            if error.code != 404:
                raise


def _standing(meta: Meta) -> tuple[object, ...]:
    """What decides over an object's fate, beside the fate of its owners."""
    return meta.owners, meta.finalizers, bool(meta.deleting)
