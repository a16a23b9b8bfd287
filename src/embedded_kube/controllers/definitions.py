"""CustomResourceDefinitions that are being deleted: their objects go first."""

from __future__ import annotations

from functools import partial

from embedded_kube.controllers.machinery.conditions import condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, Shared, copy_json, own_key
from embedded_kube.controllers.machinery.edits import with_finalizer, without_finalizer
from embedded_kube.controllers.machinery.objects import Key, Whole, read_held
from embedded_kube.controllers.machinery.resources import CRDS, resource_of
from embedded_kube.controllers.workloads.podsets import in_batches

FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_LOOK_AGAIN = 0.2


class Definitions(Controller[Key]):
    """Holds every CRD until its last object is gone, so that none of them comes back with a namesake."""

    name = "crd-finalizer"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._definitions = self.informers.whole(CRDS)
        self.follow(self._definitions, own_key)

    async def reconcile(self, key: Key) -> float | None:
        found = self._definitions.get(key)
        if found is None:
            return None
        if not found.meta.deleting:
            if FINALIZER not in found.meta.finalizers:
                await self.shared.edit(CRDS, found, partial(with_finalizer, name=FINALIZER))
            return None
        if FINALIZER not in found.meta.finalizers:
            return None
        resource = resource_of(found).name
        items = [read_held(one) for one in await self.shared.client.list(resource)]
        if items:
            await self._say(found)
            doomed = [item for item in items if not item.meta.deleting]
            await in_batches([partial(self.shared.delete, resource, item) for item in doomed])
            return _LOOK_AGAIN
        await self.shared.edit(CRDS, found, partial(without_finalizer, name=FINALIZER))
        return None

    async def _say(self, found: Whole) -> None:
        status = copy_json(found.status)
        text = "CustomResource deletion is in progress"
        set_condition(status, condition("Terminating", True, "InstanceDeletionInProgress", text))
        if status != found.status:
            await self.shared.set_status(CRDS, found, status)
