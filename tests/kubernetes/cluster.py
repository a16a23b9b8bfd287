"""A cluster like the one of `gpu-scheduler up`, with its flags and its files, but with a real control plane inside.

The integration tests start it in place of the local cluster: `pytest tests/integration --cluster=kubernetes`. Its nodes
are the local cluster's node agent. The scheduler signs in as the account of deploy/rbac.yaml, which may do what is
written there and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from gpu_scheduler.kube.crds import load_definitions
from gpu_scheduler.local import tls
from gpu_scheduler.local.bootstrap import bootstrap
from gpu_scheduler.local.errors import ApiError
from gpu_scheduler.local.node_agent.fleet import FleetSettings
from tests.kubernetes import binaries
from tests.kubernetes.api import Access, Api, Json
from tests.kubernetes.control_plane import ControlPlane, StartError
from tests.kubernetes.nodes import HttpClient, running_nodes

ROLES = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
SYSTEM, ACCOUNT = "gpu-scheduler-system", "gpu-scheduler"
_PATIENCE = 60.0
_RESOURCES = {
    "ServiceAccount": "serviceaccounts",
    "ClusterRole": "clusterroles.rbac.authorization.k8s.io",
    "ClusterRoleBinding": "clusterrolebindings.rbac.authorization.k8s.io",
    "Role": "roles.rbac.authorization.k8s.io",
    "RoleBinding": "rolebindings.rbac.authorization.k8s.io",
}
_FLAGS = {"kube-controller-manager": ["--node-monitor-grace-period=40s", "--node-monitor-period=1s"]}


async def run(plane: ControlPlane, settings: FleetSettings, stop: asyncio.Event) -> None:
    """Furnishes the cluster, gives it nodes, says where it is, and goes on until told to stop."""
    trust = ssl.create_default_context(cafile=str(plane.folder / "ca.crt"))
    token = json.loads(plane.kubeconfig().read_text())["users"][0]["user"]["token"]
    async with Api(Access(plane.server, f"Bearer {token}", trust)) as api:
        client = HttpClient(api)
        await furnish(client)
        tls.write_private(plane.folder / "token", token.encode())
        config = json.loads(plane.kubeconfig().read_text())
        tls.write_private(plane.folder / "kubeconfig", json.dumps(config).encode())
        config["users"][0]["user"]["token"] = await sign_in(api)
        tls.write_private(plane.folder / "scheduler.kubeconfig", json.dumps(config).encode())
        async with running_nodes(client, settings):
            announced = {"pid": os.getpid(), "server": plane.server}
            (plane.folder / "running.json").write_text(json.dumps(announced))
            await stop.wait()


async def furnish(client: HttpClient) -> None:
    """What the local cluster has from the start, and the scheduler's roles."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            try:
                await bootstrap(client, lambda: None, load_definitions())
                break
            except ApiError as error:
                if error.code != 404:  # a kind that was defined just now is served a moment later
                    raise
                await asyncio.sleep(0.1)
    for found in yaml.safe_load_all(ROLES.read_text()):
        try:
            await client.create(_RESOURCES[found["kind"]], found)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise


async def sign_in(api: Api) -> str:
    """A token of the scheduler's account."""
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{ACCOUNT}/token"
    found: Json = await api.must("POST", path, {"spec": {"expirationSeconds": 7200}})
    token: str = found["status"]["token"]
    return token


async def _until_signalled(plane: ControlPlane, settings: FleetSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(plane, settings, stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cluster until Ctrl-C or SIGTERM; the folder stays."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.cluster", description=__doc__)
    parser.add_argument("--version", "--kubernetes", required=True, choices=binaries.versions())
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--runtime", default="process")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--racks", type=int, default=1)
    parser.add_argument("--zones", type=int, default=1)
    parser.add_argument("--cpu", default="4")
    parser.add_argument("--memory", default="8Gi")
    parser.add_argument("--fleet", type=Path)
    told = vars(parser.parse_args(arguments))
    version, folder = told.pop("version"), told.pop("data_dir")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = FleetSettings(folder=folder / "pods", file=told.pop("fleet"), kubernetes=version, **told)
    try:
        with ControlPlane(version, folder=folder, more=_FLAGS) as plane:
            asyncio.run(_until_signalled(plane, settings))
    except (binaries.BuildError, StartError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
