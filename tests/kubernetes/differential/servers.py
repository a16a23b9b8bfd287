"""The two servers: a real API server without controllers, and the local one, in its own process, without controllers.

As a script it is the local one: it prints the path of a kubeconfig once it serves, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from embedded_kube.cluster import ClusterSettings, EmbeddedCluster
from embedded_kube.data_dir import DataDir
from embedded_kube.node import FleetSettings
from embedded_kube.registry.name_cooldown import NameCooldown
from gpu_scheduler.gangs.definitions import first_gang_objects, load_definitions
from tests.kubernetes.api import Api, read_access
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.differential.definitions import definitions
from tests.kubernetes.helpers import eventually


@dataclass(frozen=True)
class Pair:
    """Both servers, ready for requests."""

    minor: str
    real: Api
    local: Api


@asynccontextmanager
async def servers(minor: str) -> AsyncIterator[Pair]:
    """Starts both with the same custom kinds."""
    with ControlPlane(minor, controllers=False) as plane, _local(minor) as kubeconfig:
        async with Api(read_access(plane.kubeconfig())) as real, Api(read_access(kubeconfig)) as local:
            pair = Pair(minor, real, local)
            await _define(pair)
            yield pair


async def _define(pair: Pair) -> None:
    """Creates the missing custom kinds, and waits until they are served; neither server has a storage class."""
    await pair.local.must("DELETE", "/apis/storage.k8s.io/v1/storageclasses/standard")
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for definition in definitions():
        spec = definition["spec"]
        scope = "/namespaces/default" if spec["scope"] == "Namespaced" else ""
        for api in (pair.real, pair.local):
            found = await api.ask("POST", path, definition)
            assert found.code in (201, 409), f"{definition['metadata']['name']}: {found.message}"
            for version in spec["versions"]:
                objects = f"/apis/{spec['group']}/{version['name']}{scope}/{spec['names']['plural']}"

                async def served(api: Api = api, objects: str = objects) -> bool:
                    return (await api.ask("GET", objects)).code == 200

                await eventually(served, f"{objects} to be served")


@contextmanager
def _local(minor: str) -> Iterator[Path]:
    command = [sys.executable, "-m", "tests.kubernetes.differential.servers", minor]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            path = process.stdout.readline().strip()
            assert path, "the local API server did not start"
            yield Path(path)
        finally:
            process.stdin.close()
            process.wait(30)


async def _serve(minor: str) -> None:
    with tempfile.TemporaryDirectory(prefix="local-api-") as folder:
        home = DataDir(Path(folder))
        home.lock()
        fleet = FleetSettings(folder=home.pods, nodes=1, kubernetes=minor)
        cluster = EmbeddedCluster(
            ClusterSettings(home, fleet, minor, definitions=load_definitions(), objects=first_gang_objects())
        )
        cluster.registry.name_cooldown = NameCooldown()  # a grace period would only cost time
        try:
            authority, port = await cluster.start_api()
            kubeconfig = home.write_kubeconfig(f"https://127.0.0.1:{port}", authority)
            sys.stdout.write(f"{kubeconfig}\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
        finally:
            await cluster.stop()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
