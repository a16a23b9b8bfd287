"""Pod volumes as folders, and where containers see them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from embedded_kube.client import ClusterClient
from embedded_kube.controllers.volume_binding import SELECTED_NODE
from embedded_kube.errors import StatusError
from embedded_kube.node.pods.environment import (
    ContainerConfigError,
    DownwardFields,
    field_value,
    read_data,
    resource_value,
)
from gpu_scheduler.k8s.objects import Json

ACCOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"

AccountFiles = Callable[[str, str], Awaitable[dict[str, str]]]
"""Maps (namespace, service account) to the contents of the files token, ca.crt and namespace."""


class PodVolumes:
    """Creates the volumes of one pod in its folder. Raises ContainerConfigError if one cannot be created yet."""

    def __init__(
        self, client: ClusterClient, pod: Json, folder: Path, downward: DownwardFields, account: AccountFiles | None
    ) -> None:
        self._client = client
        self._pod = pod
        self._folder = folder / "volumes"
        self._fields = downward
        self._account = account
        self._namespace: str = pod["metadata"]["namespace"]
        self.places: dict[str, Path] = {}

    async def prepare(self) -> None:
        """Creates every volume, and updates the ones that exist."""
        for volume in self._pod["spec"].get("volumes") or ():
            kind = next((name for name in volume if name != "name"), "emptyDir")
            make: Callable[[str, Json], Awaitable[Path]] | None = getattr(self, f"_make_{kind}", None)
            if make is None:
                raise ContainerConfigError(f'volume "{volume["name"]}": {kind} is not supported by the local cluster')
            self.places[volume["name"]] = await make(volume["name"], volume.get(kind) or {})

    async def mounts(self, container: Json) -> list[tuple[str, str, bool]]:
        """Returns the mounts of one container as (source, mountPath, read-only)."""
        found = []
        for mount in container.get("volumeMounts") or ():
            place = self.places.get(mount["name"])
            if place is None:
                raise ContainerConfigError(f'volumeMounts: unknown volume "{mount["name"]}"')
            inner = mount.get("subPath", "")
            if inner:
                if ".." in Path(inner).parts or Path(inner).is_absolute():
                    raise ContainerConfigError(f"subPath {inner}: write a path inside the volume")
                place = place / inner
                if not place.exists():
                    place.mkdir(parents=True)
            found.append((str(place), mount["mountPath"], bool(mount.get("readOnly"))))
        taken = {target for _, target, _ in found}
        if self._account is not None and ACCOUNT_PATH not in taken and self._automounts():
            found.append((str(await self._make_account_volume()), ACCOUNT_PATH, True))
        return found

    def _automounts(self) -> bool:
        return self._pod["spec"].get("automountServiceAccountToken") is not False

    async def _make_account_volume(self) -> Path:
        place = self._volume_folder("service-account-files")
        _write(place, {name: text.encode() for name, text in (await self._account_files()).items()}, 0o600)
        return place

    async def _account_files(self) -> dict[str, str]:
        assert self._account is not None
        return await self._account(self._namespace, self._pod["spec"].get("serviceAccountName") or "default")

    def _volume_folder(self, name: str) -> Path:
        place = self._folder / name
        place.mkdir(parents=True, exist_ok=True)
        return place

    async def _make_emptyDir(self, name: str, _: Json) -> Path:  # noqa: N802, named like the field
        place = self._volume_folder(name)
        place.chmod(0o777)
        return place

    async def _make_configMap(self, name: str, source: Json) -> Path:  # noqa: N802
        place = self._volume_folder(name)
        _write(place, await self._data("configmaps", source, source.get("name", "")), source.get("defaultMode", 0o644))
        return place

    async def _make_secret(self, name: str, source: Json) -> Path:
        place = self._volume_folder(name)
        data = await self._data("secrets", source, source.get("secretName") or source.get("name", ""))
        _write(place, data, source.get("defaultMode", 0o644))
        return place

    async def _make_downwardAPI(self, name: str, source: Json) -> Path:  # noqa: N802
        place = self._volume_folder(name)
        _write(place, self._downward(source), source.get("defaultMode", 0o644))
        return place

    async def _make_projected(self, name: str, source: Json) -> Path:
        place = self._volume_folder(name)
        data: dict[str, bytes] = {}
        for part in source.get("sources") or ():
            if "configMap" in part:
                data |= await self._data("configmaps", part["configMap"], part["configMap"].get("name", ""))
            elif "secret" in part:
                data |= await self._data("secrets", part["secret"], part["secret"].get("name", ""))
            elif "downwardAPI" in part:
                data |= self._downward(part["downwardAPI"])
            elif "serviceAccountToken" in part and self._account is not None:
                data[part["serviceAccountToken"]["path"]] = (await self._account_files())["token"].encode()
        _write(place, data, source.get("defaultMode", 0o644))
        return place

    async def _make_hostPath(self, _: str, source: Json) -> Path:  # noqa: N802
        place, kind = Path(source["path"]), source.get("type") or ""
        if not await asyncio.to_thread(_ensure_host_path, place, kind):
            raise ContainerConfigError(f"hostPath {place}: the path does not exist on this machine")
        return place

    async def _make_persistentVolumeClaim(self, _: str, source: Json) -> Path:  # noqa: N802
        return await self._claim_folder(source["claimName"])

    async def _make_ephemeral(self, name: str, _: Json) -> Path:
        return await self._claim_folder(f"{self._pod['metadata']['name']}-{name}")

    async def _claim_folder(self, name: str) -> Path:
        try:
            claim = await self._client.get("persistentvolumeclaims", self._namespace, name)
            bound = claim["spec"].get("volumeName")
            if not bound:
                await self._select_node(claim)
                raise ContainerConfigError(f'persistentvolumeclaim "{name}" is not bound')
            volume = await self._client.get("persistentvolumes", "", bound)
        except StatusError as error:
            raise ContainerConfigError(error.message) from None
        spec = volume["spec"]
        path = (spec.get("hostPath") or spec.get("local") or {}).get("path")
        if path is None:
            raise ContainerConfigError(f'persistentvolume "{bound}": only hostPath and local volumes can be used here')
        await asyncio.to_thread(os.makedirs, path, exist_ok=True)
        return Path(path)

    async def _select_node(self, claim: Json) -> None:
        """Sets the selected node of a WaitForFirstConsumer claim. A scheduler should, but not every scheduler knows
        volumes, and the pod is already bound."""
        if SELECTED_NODE not in (claim["metadata"].get("annotations") or {}):
            node = self._pod["spec"]["nodeName"]

            def select(found: Json) -> Json:
                found["metadata"].setdefault("annotations", {}).setdefault(SELECTED_NODE, node)
                return found

            await self._client.edit("persistentvolumeclaims", self._namespace, claim["metadata"]["name"], select)

    async def _data(self, resource: str, source: Json, name: str) -> dict[str, bytes]:
        data = await read_data(self._client, resource, self._namespace, name)
        if data is None:
            if source.get("optional"):
                return {}
            raise ContainerConfigError(f'{resource[:-1]} "{name}" not found')
        items = source.get("items")
        if not items:
            return data
        missing = [item["key"] for item in items if item["key"] not in data]
        if missing and not source.get("optional"):
            raise ContainerConfigError(f'{resource[:-1]} "{name}" references non-existent config key: {missing[0]}')
        return {item["path"]: data[item["key"]] for item in items if item["key"] in data}

    def _downward(self, source: Json) -> dict[str, bytes]:
        found = {}
        for item in source.get("items") or ():
            if "fieldRef" in item:
                text = field_value(self._pod, item["fieldRef"]["fieldPath"], self._fields)
            else:
                wanted = item["resourceFieldRef"].get("containerName")
                container = next(one for one in self._pod["spec"]["containers"] if one["name"] == wanted)
                text = resource_value(item["resourceFieldRef"], container, self._fields)
            found[item["path"]] = text.encode()
        return found


def _ensure_host_path(place: Path, kind: str) -> bool:
    if kind == "DirectoryOrCreate":
        place.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        place.touch()
    return place.exists()


def _write(place: Path, data: dict[str, bytes], mode: int) -> None:
    for name, content in data.items():
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise ContainerConfigError(f"path {name}: write a path inside the volume")
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(mode)


def link_volumes(mounts: list[tuple[str, str, bool]]) -> tuple[list[str], list[tuple[str, str]]]:
    """Creates symlinks at free mountPaths, instead of mounts. Returns the links, and the mounts left out."""
    links, unlinked = [], []
    for source, target, _ in mounts:
        if os.path.lexists(target):
            if os.path.realpath(target) != os.path.realpath(source):
                unlinked.append((source, target))
            continue
        try:
            os.symlink(source, target)
            links.append(target)
        except OSError:
            unlinked.append((source, target))
    return links, unlinked
