"""Namespace controller: deletes the contents of a terminating namespace, then finalizes it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import NamedTuple

from embedded_kube.controllers.machinery.conditions import condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, ControllerContext, copy_json, object_key
from embedded_kube.controllers.machinery.objects import FullObject, Key, ObjectView, read_object
from embedded_kube.controllers.machinery.rest_mapper import RestMapper, RestMapping
from embedded_kube.controllers.workloads.pod_control import slow_start_batch
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json

NAMESPACES = "namespaces"
FINALIZER = "kubernetes"
_REQUEUE_DELAY = 5.0


class RemainingContent(NamedTuple):
    """What is left in a namespace: objects by resource and by finalizer, and failed deletions."""

    resources: Counter[str]
    finalizers: Counter[str]
    failures: list[str]


def deletion_conditions(left: RemainingContent) -> list[Json]:
    """Returns the deletion conditions of a namespace."""
    failure = condition(
        "NamespaceDeletionContentFailure",
        bool(left.failures),
        "ContentDeletionFailed" if left.failures else "ContentDeleted",
        "; ".join(left.failures) or "All content successfully deleted, may be waiting on finalization",
    )
    some = "Some resources are remaining: " + ", ".join(
        f"{name} has {count} resource instances" for name, count in sorted(left.resources.items())
    )
    held = "Some content in the namespace has finalizers remaining: " + ", ".join(
        f"{name} in {count} resource instances" for name, count in sorted(left.finalizers.items())
    )
    return [
        failure,
        condition(
            "NamespaceContentRemaining",
            bool(left.resources),
            "SomeResourcesRemain" if left.resources else "ContentRemoved",
            some if left.resources else "All content successfully removed",
        ),
        condition(
            "NamespaceFinalizersRemaining",
            bool(left.finalizers),
            "SomeFinalizersRemain" if left.finalizers else "ContentHasNoFinalizers",
            held if left.finalizers else "All content-preserving finalizers finished",
        ),
    ]


class NamespaceController(Controller[Key]):
    """Deletes the contents of every terminating namespace."""

    name = "namespace-controller"

    def __init__(self, context: ControllerContext, mapper: RestMapper) -> None:
        super().__init__(context)
        self._mapper = mapper
        self._namespaces = self.informers.full(NAMESPACES)
        self.cache_syncs.append(mapper.crds)
        self.enqueue_on_change(self._namespaces, object_key)
        mapper.add_listener(self._resource_changed)

    def _resource_changed(self, resource: RestMapping, exists: bool) -> None:
        if exists and resource.namespaced:
            self.informers.metadata(resource.name).add_event_handler(self._content_changed)

    def _content_changed(self, before: ObjectView | None, after: ObjectView | None) -> None:
        if after is not None or before is None:
            return
        namespace = self._namespaces.get(("", before.meta.namespace))
        if namespace is not None and namespace.meta.deleting:
            # One reconcile for all deletions of the same moment.
            self.queue.add_after(namespace.meta.key, 0.05)

    async def reconcile(self, key: Key) -> float | None:
        found = self._namespaces.get(key)
        if found is None or not found.meta.deleting or FINALIZER not in (found.spec.get("finalizers") or ()):
            return None
        left = await self._delete_content(key[1])
        if left.resources or left.failures:
            await self._report(found, left)
            return _REQUEUE_DELAY
        await self._finalize(found)
        return None

    async def _delete_content(self, namespace: str) -> RemainingContent:
        """Deletes the objects of a namespace, and returns what is left."""
        left = RemainingContent(Counter(), Counter(), [])
        for resource in self._mapper:
            if not resource.namespaced:
                continue
            items = await self._items(resource.name, namespace)
            to_delete = [item for item in items if not item.meta.deleting]
            try:
                await slow_start_batch([partial(self.context.delete, resource.name, item) for item in to_delete])
            except StatusError as error:
                left.failures.append(f"{resource.name}: {error.message}")
            for item in await self._items(resource.name, namespace) if items else ():
                left.resources[resource.name] += 1
                left.finalizers.update(item.meta.finalizers)
        return left

    async def _items(self, resource: str, namespace: str) -> list[ObjectView]:
        return [read_object(found) for found in await self.context.client.list(resource, namespace)]

    async def _report(self, found: FullObject, left: RemainingContent) -> None:
        status = copy_json(found.status)
        status["phase"] = "Terminating"
        for one in deletion_conditions(left):
            set_condition(status, one)
        if status != found.status:
            await self.context.set_status(NAMESPACES, found, status)

    async def _finalize(self, found: FullObject) -> None:
        live = await self.context.client.get(NAMESPACES, "", found.meta.name)
        if live["metadata"]["uid"] != found.meta.uid:
            return
        spec = live.setdefault("spec", {})
        spec["finalizers"] = [name for name in spec.get("finalizers") or () if name != FINALIZER]
        await self.context.client.update(NAMESPACES, live, subresource="finalize")
