"""Runs all nodes of the local cluster: registration, node agent, status manager and launcher."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from embedded_kube import errors
from embedded_kube.client import ClusterClient
from embedded_kube.controllers.machinery.controller import keep_running
from embedded_kube.node.agent import NodeAgent, make_node
from embedded_kube.node.fleet import FleetSettings, read_fleet
from embedded_kube.node.pods.logs import log_path, logged_attempts, read_logs
from embedded_kube.node.pods.sandbox import AgentContext
from embedded_kube.node.pods.terminal import run_terminal
from embedded_kube.node.pods.volumes import AccountFiles
from embedded_kube.node.processes.launcher_client import LauncherClient
from embedded_kube.node.processes.network import PODS, SIMULATED, AddressPool, HostNames, shared_addresses
from embedded_kube.node.registration import NodeRegistrar
from embedded_kube.node.simulated import SimulationContext
from embedded_kube.node.status_manager import StatusManager
from embedded_kube.node.timers import Timers
from embedded_kube.subresources.kubelet import ExecSession, Kubelets, PodLogOptions
from gpu_scheduler.k8s.objects import Json

_SHUTDOWN_GRACE = 2.0
"""Seconds that processes have to stop when the cluster stops."""

_log = logging.getLogger(__name__)


class FleetRunner:
    """Runs the nodes, and serves logs and exec as their kubelet. Raises FleetError for invalid settings.

    `ready` is set once all nodes are registered. Set `api` (host and port) and `account_files` before `run` to let pods
    reach the API server.
    """

    def __init__(self, client: ClusterClient, settings: FleetSettings) -> None:
        self._client = client
        self._settings = settings
        self._nodes = {spec.name: make_node(spec) for spec in read_fleet(settings)}
        self._agent: NodeAgent | None = None
        self._launcher: LauncherClient | None = None
        self.api: tuple[str, int] | None = None
        self.account_files: AccountFiles | None = None
        self.ready = asyncio.Event()
        self.kubelets: Kubelets = dict.fromkeys(self._nodes, self)

    async def run(self) -> None:
        """Runs the nodes until cancelled. When it returns, every process that it started has ended."""
        self._settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        launcher = self._launcher = LauncherClient()
        host_names = HostNames(self._settings.folder / "hosts")
        timers = Timers()
        status_manager = StatusManager(self._client)
        try:
            await launcher.open(self.api, isolate=self._settings.isolate)
            if launcher.not_isolated:
                _log.warning("pods are not isolated from each other: %s", launcher.not_isolated)
            addresses = AddressPool(PODS) if launcher.network else shared_addresses()
            context = AgentContext(self._client, self._settings, launcher, host_names, status_manager, addresses)
            context.api, context.account_files = self.api, self.account_files
            simulation = SimulationContext(status_manager, timers, AddressPool(SIMULATED), self._settings)
            agent = self._agent = NodeAgent(self._nodes, context, simulation)
            await self._serve(agent, status_manager, launcher)
        finally:
            timers.close()
            host_names.close()
            if self._agent is not None:
                await self._agent.close()
            await self._end_processes(launcher)

    async def _serve(self, agent: NodeAgent, status_manager: StatusManager, launcher: LauncherClient) -> None:
        registrar = NodeRegistrar(self._client, self._nodes, self._settings.kubernetes)
        async with asyncio.TaskGroup() as group:
            group.create_task(status_manager.run())
            await keep_running("node registration", registrar.register)
            self.ready.set()
            for loop in (registrar.send_heartbeats, registrar.watch, agent.watch_services, agent.watch_pods):
                group.create_task(keep_running(loop.__qualname__, loop))
            group.create_task(_fail_without(launcher))

    async def _end_processes(self, launcher: LauncherClient) -> None:
        """Sends SIGTERM to every process; after the grace period the launcher kills the rest."""
        processes = launcher.processes()
        for process in processes:
            process.signal(signal.SIGTERM)
        if processes:
            await asyncio.wait([process.exited for process in processes], timeout=_SHUTDOWN_GRACE)
        await launcher.close()

    # -- kubelet interface

    def _folder(self, pod: Json) -> Path:
        return self._settings.folder / str(pod["metadata"]["uid"])

    async def logs(self, pod: Json, options: PodLogOptions) -> AsyncIterator[bytes]:
        """Streams a container's log in pieces of any size."""
        name, uid = options.container, pod["metadata"]["uid"]
        _check_container(pod, name)
        status = _container_status(pod, name)
        if status.get("containerID", "").startswith("simulated://"):
            yield b"(simulated: this container has no process and writes nothing)\n"
            return
        folder = self._folder(pod)
        attempt = _previous_attempt(status) if options.previous else next(reversed(logged_attempts(folder, name)), None)
        if attempt is None or not log_path(folder, name, attempt).exists():
            where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
            why = f"previous terminated {where} not found" if options.previous else f"{where} is waiting to start"
            raise errors.bad_request(why if options.previous else f"{why}: ContainerCreating")
        process = f"{uid}/{name}/{attempt}"

        def has_ended() -> bool:
            return options.previous or self._launcher is None or not self._launcher.is_running(process)

        async for piece in read_logs(log_path(folder, name, attempt), options, has_ended):
            yield piece

    async def execute(self, pod: Json, terminal: ExecSession) -> int:
        """Runs a command in a container and returns its exit code."""
        name, uid = terminal.container, pod["metadata"]["uid"]
        _check_container(pod, name)
        agent = self._agent
        if agent is None or _container_status(pod, name).get("containerID", "").startswith("simulated://"):
            raise errors.bad_request(f"pod {pod['metadata']['name']} is simulated: it has no process to enter")
        pod_worker = agent.process_pods.get(uid)
        worker = pod_worker.workers.get(name) if pod_worker is not None else None
        if pod_worker is None or worker is None or worker.process is None:
            raise errors.bad_request(f'container "{name}" of pod {pod["metadata"]["name"]} is not running')
        attempt = worker.attempt

        async def enter(command: list[str], files: list[int], tty: bool) -> object:
            return await pod_worker.sandbox.enter(name, attempt, command, files, tty)

        return await run_terminal(terminal, enter)  # type: ignore[arg-type]


def _check_container(pod: Json, name: str) -> None:
    spec = pod["spec"]
    names = [item["name"] for key in ("containers", "initContainers") for item in spec.get(key) or ()]
    if name not in names:
        raise errors.bad_request(f"container {name} is not valid for pod {pod['metadata']['name']}")


def _container_status(pod: Json, name: str) -> Json:
    status = pod.get("status") or {}
    both = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((item for item in both if item["name"] == name), {})


def _previous_attempt(status: Json) -> int | None:
    """Reads the number of the previous attempt from the container ID of the last state."""
    number = ((status.get("lastState") or {}).get("terminated") or {}).get("containerID", "").rpartition("/")[2]
    return int(number) if number.isdecimal() else None


async def _fail_without(launcher: LauncherClient) -> None:
    """Stops the fleet when the launcher process ends: without it no process can be started or stopped."""
    await launcher.lost
    raise RuntimeError("the launcher process has ended unexpectedly")
