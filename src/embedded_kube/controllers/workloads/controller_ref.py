"""Adoption: owner references decide what a controller owns, its selector what it adopts and releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from embedded_kube.controllers.machinery.controller import ControllerContext
from embedded_kube.controllers.machinery.metadata_edits import without_owners
from embedded_kube.controllers.machinery.objects import FullObject, ObjectView
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json

T = TypeVar("T", bound=ObjectView)


def owner_reference(api_version: str, kind: str, item: ObjectView) -> Json:
    """Returns the owner reference of objects that `item` controls."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": item.meta.name,
        "uid": item.meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


class ControllerRefManager:
    """Adopts and releases objects of one resource for a controller object."""

    def __init__(
        self, context: ControllerContext, resource: str, owner_resource: str, owner: FullObject, reference: Json
    ) -> None:
        self._context = context
        self._resource = resource
        self._owner_resource = owner_resource
        self._owner = owner
        self._reference = reference
        self._selector: Json | None = owner.spec.get("selector")

    async def claim(
        self, owned: Iterable[T], orphans: Iterable[T], accept: Callable[[T], bool] = lambda _: True
    ) -> list[T]:
        """Releases owned objects that no longer match, adopts orphans that do, and returns what is owned then."""
        claimed: list[T] = []
        for item in owned:
            if item.meta.deleting or matches(self._selector, item.meta.labels):
                claimed.append(item)
            elif not self._owner.meta.deleting:
                await self._context.edit(self._resource, item, partial(without_owners, uids=(self._owner.meta.uid,)))
        if self._owner.meta.deleting:
            return claimed
        matching = [
            item
            for item in orphans
            if not item.meta.deleting and matches(self._selector, item.meta.labels) and accept(item)
        ]
        if matching:
            # The garbage collector deletes what a deleted owner adopts: ask the API whether the owner still exists.
            live = await self._context.client.get(self._owner_resource, *self._owner.meta.key)
            if live["metadata"]["uid"] != self._owner.meta.uid or live["metadata"].get("deletionTimestamp"):
                return claimed
        for item in matching:
            await self._context.edit(self._resource, item, self._adopted)
        informer = self._context.informers.find(self._resource)
        fresh = (informer.get(item.meta.key) for item in matching) if informer is not None else ()
        return claimed + [item for item in fresh if item is not None]

    def _adopted(self, found: Json) -> Json | None:
        meta = found["metadata"]
        owners = meta.get("ownerReferences") or []
        if meta.get("deletionTimestamp") or any(owner.get("controller") for owner in owners):
            return None
        meta["ownerReferences"] = [*owners, self._reference]
        return found
