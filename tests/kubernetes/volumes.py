"""Volumes for a real control plane: folders, as the local cluster creates them for its storage class."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from embedded_kube.client import SYNCED
from embedded_kube.controllers.machinery.objects import read_full_object
from embedded_kube.controllers.persistent_volumes import CLAIMS, CLASSES, PROVISIONER, VOLUMES
from embedded_kube.controllers.volume_binding import PROVISIONED_BY, SELECTED_NODE, new_volume
from embedded_kube.errors import StatusError
from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.nodes import HttpClient

_ASKED_OF = "volume.kubernetes.io/storage-provisioner"


async def provide_volumes(client: HttpClient, folder: Path) -> None:
    """Acts as an external provisioner; the control plane binds claims to the volumes created here. Runs until
    cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_make(client, folder))
        group.create_task(_remove(client, folder))


async def _make(client: HttpClient, folder: Path) -> None:
    """Creates a volume for every claim of our storage class, on the node of its first pod."""
    async for event, found in client.watch(CLAIMS):
        if event in (SYNCED, "DELETED") or found["spec"].get("volumeName"):
            continue
        claim = read_full_object(found)
        if claim.annotations.get(_ASKED_OF) != PROVISIONER or SELECTED_NODE not in claim.annotations:
            continue
        storage_class = read_full_object(await client.get(CLASSES, "", claim.spec["storageClassName"]))
        node = await client.get("nodes", "", claim.annotations[SELECTED_NODE])
        volume = new_volume(claim, storage_class, folder, node["metadata"]["labels"]["kubernetes.io/hostname"])
        (folder / volume["metadata"]["name"]).mkdir(parents=True, exist_ok=True)
        try:
            await client.create(VOLUMES, volume)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise


async def _remove(client: HttpClient, folder: Path) -> None:
    """Deletes volumes whose claims are gone."""
    async for event, found in client.watch(VOLUMES):
        if event not in (SYNCED, "DELETED") and _is_left(found):
            name = found["metadata"]["name"]
            shutil.rmtree(folder / name, ignore_errors=True)
            await client.delete(VOLUMES, "", name)


def _is_left(volume: Json) -> bool:
    ours = (volume["metadata"].get("annotations") or {}).get(PROVISIONED_BY) == PROVISIONER
    return bool(ours and volume.get("status", {}).get("phase") == "Released")
