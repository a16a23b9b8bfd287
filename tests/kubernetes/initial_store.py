"""The initial store of a cluster: the objects of the local cluster and the accounts of the chart, built once per
version."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from functools import partial
from pathlib import Path

from embedded_kube.bootstrap import bootstrap, first_objects
from embedded_kube.errors import StatusError
from gpu_scheduler.gangs.definitions import first_gang_objects, load_definitions
from gpu_scheduler.k8s.objects import Json
from tests.kubernetes import binaries
from tests.kubernetes.api import Access, Api
from tests.kubernetes.charts import CHARTS, render
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.helpers import eventually
from tests.kubernetes.nodes import HttpClient

SYSTEM = "gpu-scheduler-system"
_TIMEOUT = 180.0
_RESOURCES = {
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles.rbac.authorization.k8s.io",
    "ClusterRoleBinding": "clusterrolebindings.rbac.authorization.k8s.io",
    "Role": "roles.rbac.authorization.k8s.io",
    "RoleBinding": "rolebindings.rbac.authorization.k8s.io",
}
_DECIDE = ("files/*-rules.yaml", "templates/roles.yaml", "templates/_helpers.tpl")
"""The files of the chart that define the permissions of its accounts."""

_KEPT = ("ca.*", "server.*", "accounts.*", "tokens.csv", "audit-policy.json", "etcd")


def write_initial_store(version: str, folder: Path) -> None:
    """Fills the folder of a control plane that has never run: secrets and store."""
    made = binaries.build(version) / f"initial-store-{_fingerprint()}"
    if not made.exists():
        with binaries.only_one(made.parent):
            if not made.exists():
                _make(version, made)
    shutil.copytree(made, folder, dirs_exist_ok=True)


def _fingerprint() -> str:
    """A digest of everything in the initial store."""
    found = hashlib.sha256(json.dumps([first_objects(), first_gang_objects(), load_definitions()]).encode())
    for path in sorted(path for pattern in _DECIDE for path in (CHARTS / "gpu-scheduler").glob(pattern)):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _accounts() -> list[Json]:
    """The service accounts of the chart, and their permissions."""
    values = {"webhook": {"separate": True}, "operator": {"enabled": True}}
    return [found for found in render("gpu-scheduler", SYSTEM, values) if found["kind"] in _RESOURCES]


def _make(version: str, made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent) as name:
        plane_folder, kept = Path(name) / "plane", Path(name) / "kept"
        plane_folder.mkdir()
        kept.mkdir(mode=0o700)
        with ControlPlane(version, folder=plane_folder) as plane:
            asyncio.run(_create_all(plane.access))
        for path in (path for pattern in _KEPT for path in plane_folder.glob(pattern)):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, kept / path.name)
        (kept / "etcd/member/wal/0.tmp").unlink(missing_ok=True)  # preallocated space, and large
        kept.rename(made)


async def _create_all(access: Access) -> None:
    async with Api(access) as api, asyncio.timeout(_TIMEOUT):
        client = HttpClient(api)
        while True:
            try:
                await bootstrap(client, lambda: None, load_definitions(), first_gang_objects())
                break
            except StatusError as error:
                if error.code != 404:  # a new kind is served a moment later
                    raise
                await asyncio.sleep(0.1)
        for found in _accounts():
            await client.create(_RESOURCES[found["kind"]], found)
        for namespace in await client.list("namespaces"):
            accounts = partial(client.list, "serviceaccounts", namespace["metadata"]["name"])
            await eventually(accounts, "the accounts without which there are no pods")
