"""A cluster like the one of `gpu-scheduler up`, with its flags and files, but with a real control plane inside.

The integration tests start it in place of the local cluster: `pytest tests/integration --cluster=kubernetes`. Its nodes
are the local cluster's node agent. The scheduler and the operator use their service accounts of the chart, which have
the permissions in charts/gpu-scheduler/files and no others.

SIGUSR1 kills and restarts kube-apiserver, SIGUSR2 etcd as well; running.json counts the finished restarts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from embedded_kube.node.fleet import FleetSettings
from gpu_scheduler.base import certificates
from gpu_scheduler.gangs.pods.device_claim import read_device_claim
from gpu_scheduler.k8s.objects import Json
from tests.kubernetes import binaries
from tests.kubernetes.api import Api
from tests.kubernetes.control_plane import ControlPlane, StartError
from tests.kubernetes.initial_store import write_initial_store
from tests.kubernetes.nodes import HttpClient, running_nodes
from tests.kubernetes.volumes import provide_volumes

SYSTEM = "gpu-scheduler-system"
ACCOUNTS = {"scheduler": "gpu-scheduler", "operator": "gpu-scheduler-operator"}
"""Programs with a kubeconfig of their own, by their service account in the chart."""
_RESTARTED = {signal.SIGUSR1: ("kube-apiserver",), signal.SIGUSR2: ("etcd", "kube-apiserver")}
_FLAGS = {
    "kube-controller-manager": ["--node-monitor-grace-period=40s", "--node-monitor-period=1s"],
}


async def run(plane: ControlPlane, settings: FleetSettings, stop: asyncio.Event) -> None:
    """Gives the cluster nodes and volumes, announces its address, and runs until signalled."""
    async with Api(plane.access) as api:
        client = HttpClient(api)
        config = json.loads(plane.kubeconfig().read_text())
        certificates.write_private(plane.folder / "token", config["users"][0]["user"]["token"].encode())
        certificates.write_private(plane.folder / "kubeconfig", json.dumps(config).encode())
        for part, account in ACCOUNTS.items():
            config["users"][0]["user"]["token"] = await sign_in(api, account)
            certificates.write_private(plane.folder / f"{part}.kubeconfig", json.dumps(config).encode())
        async with running_nodes(client, settings):
            announce(plane, 0)
            volumes = asyncio.create_task(provide_volumes(client, plane.folder / "volumes"))
            await asyncio.wait((volumes, asyncio.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
            if volumes.done():
                await volumes
            volumes.cancel()


def announce(plane: ControlPlane, restarts: int) -> None:
    """Writes the address of the cluster, and how often its API server was restarted."""
    announced = {"pid": os.getpid(), "server": plane.server, "restarts": restarts}
    file = plane.folder / "running.json"
    file.with_suffix(".new").write_text(json.dumps(announced))
    file.with_suffix(".new").rename(file)


class Restarts:
    """Kills and restarts programs, one restart after the other, while the nodes keep running."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._count = 0
        self._last: asyncio.Task[None] | None = None

    def begin(self, *programs: str) -> None:
        """Kills them all at once, and starts them in order."""
        self._last = asyncio.create_task(self._restart(self._last, programs))

    async def _restart(self, before: asyncio.Task[None] | None, programs: Sequence[str]) -> None:
        if before is not None:
            await before
        for program in reversed(programs):
            self._plane.stop(program)
        for program in programs:
            await asyncio.to_thread(self._plane.start, program)
        self._count += 1
        announce(self._plane, self._count)


async def sign_in(api: Api, account: str) -> str:
    """A token of one of our service accounts."""
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
    found: Json = await api.must("POST", path, {"spec": {"expirationSeconds": 7200}})
    token: str = found["status"]["token"]
    return token


async def _until_signalled(plane: ControlPlane, settings: FleetSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    restarts = Restarts(plane)
    for number, programs in _RESTARTED.items():
        asyncio.get_running_loop().add_signal_handler(number, restarts.begin, *programs)
    await run(plane, settings, stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cluster until Ctrl-C or SIGTERM; the folder stays."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.cluster", description=__doc__)
    parser.add_argument("--version", "--kubernetes", required=True, choices=binaries.versions())
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--runtime", default="process")
    parser.add_argument("--port", type=int, help="not needed: whatever starts in a folder again has the port of before")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--racks", type=int, default=1)
    parser.add_argument("--zones", type=int, default=1)
    parser.add_argument("--cpu", default="4")
    parser.add_argument("--memory", default="8Gi")
    parser.add_argument("--fleet", type=Path)
    parser.add_argument("--audit", action="store_true", help="write every request to audit.log")
    parser.add_argument("--strict-owners", action="store_true", help="owned objects need a right to their owner")
    parser.add_argument("--without-controller", metavar="NAME", help="one that kube-controller-manager does not run")
    options = vars(parser.parse_args(arguments))
    version, folder, _ = options.pop("version"), options.pop("data_dir"), options.pop("port")
    flags = dict(_FLAGS)
    flags["kube-apiserver"] = [] if options.pop("audit") else ["--audit-log-path="]
    if options.pop("strict_owners"):
        flags["kube-apiserver"].append("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
    if left_out := options.pop("without_controller"):
        flags["kube-controller-manager"] = [*flags["kube-controller-manager"], f"--controllers=*,-{left_out}"]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    options |= {"file": options.pop("fleet"), "kubernetes": version, "read_device_claim": read_device_claim}
    settings = FleetSettings(folder=folder / "pods", **options)
    try:
        if not (folder / "ports.json").exists():
            write_initial_store(version, folder)
        with ControlPlane(version, folder=folder, more=flags) as plane:
            asyncio.run(_until_signalled(plane, settings))
    except (binaries.BuildError, StartError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
