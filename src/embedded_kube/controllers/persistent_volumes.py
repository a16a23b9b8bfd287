"""Persistent volume controllers: bind claims to volumes, and provision folders for the local storage class.

Left out: protection finalizers (a claim that a pod still uses is deleted at once), resizing and snapshots.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from embedded_kube.controllers.machinery.controller import Controller, ControllerContext, object_key
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.objects import FullObject, Key
from embedded_kube.controllers.volume_binding import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    PROVISIONED_BY,
    SELECTED_NODE,
    claim_reference,
    class_of,
    is_claimed_by,
    is_reachable_from,
    new_volume,
    pick_volume,
)
from embedded_kube.errors import StatusError, conflict
from gpu_scheduler.k8s.objects import Json

CLAIMS = "persistentvolumeclaims"
VOLUMES = "persistentvolumes"
CLASSES = "storageclasses.storage.k8s.io"
PROVISIONER = "gpu-scheduler.io/local"


class VolumeClaimController(Controller[Key]):
    """Binds every claim; provisions a volume for claims of the local storage class."""

    name = "persistentvolume-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._claims = self.informers.full(CLAIMS)
        self._volumes = self.informers.full(VOLUMES)
        self._classes = self.informers.full(CLASSES)
        self._pending = self._claims.index(lambda claim: () if claim.spec.get("volumeName") else ("",))
        self.enqueue_on_change(self._claims, object_key)
        self.enqueue_on_change(self._volumes, _claim_key)
        self.cache_syncs += [self._classes, self.informers.nodes]
        self._classes.add_event_handler(lambda _, after: self._enqueue_pending() if after is not None else None)
        self._volumes.add_event_handler(self._volume_changed)

    def _volume_changed(self, before: FullObject | None, after: FullObject | None) -> None:
        if after is not None and before is None and not after.spec.get("claimRef"):
            self._enqueue_pending()

    def _enqueue_pending(self) -> None:
        for claim in self._pending.get(""):
            self.queue.add(claim.meta.key)

    async def reconcile(self, key: Key) -> float | None:
        claim = self._claims.get(key)
        if claim is None or claim.meta.deleting:
            return None
        if claim.spec.get("volumeName"):
            await self._complete_binding(claim)
            return None
        class_name = class_of(claim, self._classes)
        storage_class = self._classes.get(("", class_name)) if class_name else None
        waits = storage_class is not None and storage_class.body.get("volumeBindingMode") == "WaitForFirstConsumer"
        volume = pick_volume(claim, self._candidates(claim, waits), class_name)
        if volume is None and storage_class is not None and (not waits or SELECTED_NODE in claim.annotations):
            volume = await self._provision(claim, storage_class)
        if volume is not None:
            await self._bind(claim, volume, class_name)
            return None
        await self._set_pending(claim, waits, class_name)
        return None

    def _candidates(self, claim: FullObject, waits: bool) -> list[FullObject]:
        """Returns the volumes that may be bound to a claim.

        After a node is selected: the volumes that it can use. Before that, if the class waits for it: only volumes
        reserved for the claim.
        """
        node = self.informers.nodes.get(("", claim.annotations.get(SELECTED_NODE, "")))
        if node is not None:
            return [one for one in self._volumes if is_reachable_from(one, node.meta.labels)]
        return [one for one in self._volumes if not waits or _is_reserved_for(one, claim)]

    async def _set_pending(self, claim: FullObject, waits: bool, class_name: str) -> None:
        about = InvolvedObject("v1", "PersistentVolumeClaim", claim.meta)
        if waits:
            text = "waiting for first consumer to be created before binding"
            self.event(about, "WaitForFirstConsumer", text)
        elif class_name and self._classes.get(("", class_name)) is None:
            text = f'storageclass.storage.k8s.io "{class_name}" not found'
            self.warning(about, "ProvisioningFailed", text)
        elif not class_name:
            text = "no persistent volumes available for this claim and no storage class is set"
            self.event(about, "FailedBinding", text)
        if claim.status.get("phase") != "Pending":
            await self.context.set_status(CLAIMS, claim, {"phase": "Pending"})

    async def _provision(self, claim: FullObject, storage_class: FullObject) -> FullObject | None:
        about = InvolvedObject("v1", "PersistentVolumeClaim", claim.meta)
        provisioner, folder = storage_class.body.get("provisioner"), self.settings.volumes
        if provisioner != PROVISIONER or folder is None:
            text = f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or by hand"
            self.event(about, "ExternalProvisioning", text)
            return None
        node = self.informers.nodes.get(("", claim.annotations.get(SELECTED_NODE, "")))
        host = node.meta.labels.get("kubernetes.io/hostname", node.meta.name) if node is not None else ""
        wanted = new_volume(claim, storage_class, folder, host)
        name = wanted["metadata"]["name"]
        held = self._volumes.get(("", name))
        if held is None:
            await asyncio.to_thread(_make_folder, folder / name)
            try:
                await self.context.create(VOLUMES, wanted)
            except StatusError as error:
                if error.reason != "AlreadyExists":
                    self.warning(about, "ProvisioningFailed", error.message)
                    raise
            self.event(about, "ProvisioningSucceeded", f"Successfully provisioned volume {name}")
        return self._volumes.get(("", name))

    async def _bind(self, claim: FullObject, volume: FullObject, class_name: str) -> None:
        def set_claim(found: Json) -> Json | None:
            reference = found["spec"].get("claimRef")
            if reference and reference.get("uid") == claim.meta.uid:
                return None
            if reference and (
                reference.get("uid") or (reference.get("namespace"), reference["name"]) != claim.meta.key
            ):
                raise conflict(VOLUMES, "", volume.meta.name, "the volume was bound to another claim")
            found["spec"]["claimRef"] = claim_reference(claim)
            found["metadata"].setdefault("annotations", {})[BOUND_BY_CONTROLLER] = "yes"
            return found

        def set_volume(found: Json) -> Json | None:
            spec = found["spec"]
            if spec.get("volumeName"):
                return None
            spec["volumeName"] = volume.meta.name
            if "storageClassName" not in spec and class_name:
                spec["storageClassName"] = class_name
            found["metadata"].setdefault("annotations", {}).update({BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"})
            return found

        await self.context.edit(VOLUMES, volume, set_claim)
        await self.context.edit(CLAIMS, claim, set_volume)
        fresh = self._claims.get(claim.meta.key)
        if fresh is not None:
            await self._complete_binding(fresh)

    async def _complete_binding(self, claim: FullObject) -> None:
        """Updates the status of a claim that has a volume."""
        volume = self._volumes.get(("", claim.spec["volumeName"]))
        if volume is None:
            if claim.status.get("phase") == "Bound":
                about = InvolvedObject("v1", "PersistentVolumeClaim", claim.meta)
                self.warning(
                    about, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
                )
                await self.context.set_status(CLAIMS, claim, {"phase": "Lost"})
            elif not claim.status.get("phase"):
                await self.context.set_status(CLAIMS, claim, {"phase": "Pending"})
            return
        if not volume.spec.get("claimRef"):
            await self.context.edit(
                VOLUMES, volume, lambda found: {**found, "spec": {**found["spec"], "claimRef": claim_reference(claim)}}
            )
        elif not is_claimed_by(volume, claim):
            if claim.status.get("phase") != "Pending":
                await self.context.set_status(CLAIMS, claim, {"phase": "Pending"})
            return
        if BIND_COMPLETED not in claim.annotations:
            # The user named the volume: schedulers wait for the controller's annotation.
            await self.context.edit(CLAIMS, claim, _mark_bind_completed)
        status = {
            "phase": "Bound",
            "accessModes": list(volume.spec.get("accessModes") or ()),
            "capacity": dict(volume.spec.get("capacity") or {}),
        }
        if status != claim.status:
            await self.context.set_status(CLAIMS, claim, status)


class PersistentVolumeController(Controller[Key]):
    """Updates the phase of every volume, and reclaims released volumes."""

    name = "persistentvolume-binder"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._volumes = self.informers.full(VOLUMES)
        self._claims = self.informers.full(CLAIMS)
        self._by_claim = self._volumes.index(lambda volume: ("/".join(key),) if (key := _claim_key(volume)) else ())
        self.enqueue_on_change(self._volumes, object_key)
        self.cache_syncs.append(self._claims)
        self._claims.add_event_handler(self._claim_changed)

    def _claim_changed(self, before: FullObject | None, after: FullObject | None) -> None:
        for claim in (before, after):
            for volume in self._by_claim.get("/".join(claim.meta.key)) if claim is not None else ():
                self.queue.add(volume.meta.key)

    async def reconcile(self, key: Key) -> float | None:
        volume = self._volumes.get(key)
        if volume is None or volume.meta.deleting:
            return None
        phase = self._phase(volume)
        if volume.status.get("phase") != phase:
            await self.context.set_status(VOLUMES, volume, {**volume.status, "phase": phase})
        if phase == "Released" and volume.spec.get("persistentVolumeReclaimPolicy") == "Delete":
            await self._reclaim(volume)
        return None

    def _phase(self, volume: FullObject) -> str:
        key = _claim_key(volume)
        if key is None:
            return "Available"
        claim = self._claims.get(key)
        uid = (volume.spec.get("claimRef") or {}).get("uid")
        if claim is None or (uid and claim.meta.uid != uid):
            # With a uid its claim is gone; without one it is reserved for a claim that does not exist yet.
            return "Released" if uid else "Available"
        return "Bound" if claim.spec.get("volumeName") == volume.meta.name else "Available"

    async def _reclaim(self, volume: FullObject) -> None:
        folder = self.settings.volumes
        path = Path((volume.spec.get("hostPath") or {}).get("path", ""))
        ours = volume.annotations.get(PROVISIONED_BY) == PROVISIONER
        # Only a provisioned folder: directly in the volumes folder, with the name of the volume.
        if ours and folder is not None and path == folder / volume.meta.name:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
            await self.context.delete(VOLUMES, volume)


def _mark_bind_completed(found: Json) -> Json:
    found["metadata"].setdefault("annotations", {})[BIND_COMPLETED] = "yes"
    return found


def _make_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)


def _claim_key(volume: FullObject) -> Key | None:
    reference = volume.spec.get("claimRef")
    return (reference.get("namespace", ""), reference["name"]) if reference else None


def _is_reserved_for(volume: FullObject, claim: FullObject) -> bool:
    """Whether a volume is reserved for a claim. Other volumes must wait until the scheduler selects a node."""
    return bool(volume.spec.get("claimRef")) and is_claimed_by(volume, claim)
