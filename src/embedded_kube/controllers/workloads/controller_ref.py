"""Which objects belong to a controller: owner references decide, labels say what to adopt and what to let go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from embedded_kube.controllers.machinery.controller import ControllerContext
from embedded_kube.controllers.machinery.metadata_edits import without_owners
from embedded_kube.controllers.machinery.objects import FullObject, ObjectView
from embedded_kube.registry.label_selectors import matches
from embedded_kube.storage.store import Json

T = TypeVar("T", bound=ObjectView)


def owner_reference(api_version: str, kind: str, item: ObjectView) -> Json:
    """The reference by which an object says that `item` controls it."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": item.meta.name,
        "uid": item.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


class ControllerRefManager:
    """What a controller object owns of one resource, after adopting and releasing by its selector."""

    def __init__(
        self, context: ControllerContext, resource: str, home: str, owner: FullObject, reference: Json
    ) -> None:
        self._context = context
        self._resource = resource
        self._home = home
        self._owner = owner
        self._reference = reference
        self._selector: Json | None = owner.spec.get("selector")

    async def claim(
        self, owned: Iterable[T], loose: Iterable[T], accept: Callable[[T], bool] = lambda _: True
    ) -> list[T]:
        """Lets go of what no longer matches, adopts what does, and returns what is left."""
        mine: list[T] = []
        for item in owned:
            if item.meta.deleting or matches(self._selector, item.meta.labels):
                mine.append(item)
            elif not self._owner.meta.deleting:
                await self._context.edit(self._resource, item, partial(without_owners, uids=(self._owner.meta.uid,)))
        if self._owner.meta.deleting:
            return mine
        wanted = [
            item
            for item in loose
            if not item.meta.deleting and matches(self._selector, item.meta.labels) and accept(item)
        ]
        if wanted:
            # What an owner that is gone adopts would be collected with it, so ask whether it is still there.
            live = await self._context.client.get(self._home, *self._owner.meta.key)
            if live["metadata"]["uid"] != self._owner.meta.uid or live["metadata"].get("deletionTimestamp"):
                return mine
        for item in wanted:
            await self._context.edit(self._resource, item, self._adopted)
        informer = self._context.informers.find(self._resource)
        fresh = (informer.get(item.meta.key) for item in wanted) if informer is not None else ()
        return mine + [item for item in fresh if item is not None]

    def _adopted(self, found: Json) -> Json | None:
        meta = found["metadata"]
        owners = meta.get("ownerReferences") or []
        if meta.get("deletionTimestamp") or any(owner.get("controller") for owner in owners):
            return None
        meta["ownerReferences"] = [*owners, self._reference]
        return found
