"""CRD finalizer: deletes the objects of a CRD before the CRD itself."""

from __future__ import annotations

from functools import partial

from embedded_kube.controllers.machinery.conditions import condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, ControllerContext, copy_json, object_key
from embedded_kube.controllers.machinery.metadata_edits import with_finalizer, without_finalizer
from embedded_kube.controllers.machinery.objects import FullObject, Key, read_object
from embedded_kube.controllers.machinery.rest_mapper import CRDS, mapping_of
from embedded_kube.controllers.workloads.pod_control import slow_start_batch

FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_REQUEUE_DELAY = 0.2


class CrdFinalizer(Controller[Key]):
    """Keeps every CRD until its last object is gone, so that a new CRD of its name starts empty."""

    name = "crd-finalizer"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._definitions = self.informers.full(CRDS)
        self.enqueue_on_change(self._definitions, object_key)

    async def reconcile(self, key: Key) -> float | None:
        found = self._definitions.get(key)
        if found is None:
            return None
        if not found.meta.deleting:
            if FINALIZER not in found.meta.finalizers:
                await self.context.edit(CRDS, found, partial(with_finalizer, name=FINALIZER))
            return None
        if FINALIZER not in found.meta.finalizers:
            return None
        resource = mapping_of(found).name
        items = [read_object(one) for one in await self.context.client.list(resource)]
        if items:
            await self._report(found)
            to_delete = [item for item in items if not item.meta.deleting]
            await slow_start_batch([partial(self.context.delete, resource, item) for item in to_delete])
            return _REQUEUE_DELAY
        await self.context.edit(CRDS, found, partial(without_finalizer, name=FINALIZER))
        return None

    async def _report(self, found: FullObject) -> None:
        status = copy_json(found.status)
        text = "CustomResource deletion is in progress"
        set_condition(status, condition("Terminating", True, "InstanceDeletionInProgress", text))
        if status != found.status:
            await self.context.set_status(CRDS, found, status)
