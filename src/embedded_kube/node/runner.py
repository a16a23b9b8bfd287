"""All nodes of the local cluster, from their objects to their pods, as one thing to run."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from embedded_kube import errors
from embedded_kube.client import Client
from embedded_kube.controllers.machinery.controller import keep_running
from embedded_kube.node.agent import Agent, make_node
from embedded_kube.node.fleet import FleetSettings, read_fleet
from embedded_kube.node.pods.logs import log_path, read_logs, runs
from embedded_kube.node.pods.sandbox import Shared
from embedded_kube.node.pods.terminal import converse
from embedded_kube.node.pods.volumes import AccountFiles
from embedded_kube.node.processes.launch import Launch
from embedded_kube.node.processes.network import PODS, SIMULATED, Addresses, Names, shared_addresses
from embedded_kube.node.registry import Registry
from embedded_kube.node.reports import Reports
from embedded_kube.node.simulated import SimulatedTools
from embedded_kube.node.timers import Timers
from embedded_kube.storage.store import Json
from embedded_kube.subresources.kubelet import Kubelets, LogOptions, Terminal

_FAREWELL = 2.0
"""How long processes may take to stop when the whole cluster does."""

_log = logging.getLogger(__name__)


class Fleet:
    """The nodes. FleetError when the settings make no sense; `ready` is set once all nodes are registered.

    `api` (host and port) and `account_files` may be set before `run`: they let pods reach the API server.
    """

    def __init__(self, client: Client, settings: FleetSettings) -> None:
        self._client = client
        self._settings = settings
        self._nodes = {spec.name: make_node(spec) for spec in read_fleet(settings)}
        self._agent: Agent | None = None
        self._launch: Launch | None = None
        self.api: tuple[str, int] | None = None
        self.account_files: AccountFiles | None = None
        self.ready = asyncio.Event()
        self.kubelets: Kubelets = dict.fromkeys(self._nodes, self)

    async def run(self) -> None:
        """Runs the nodes until cancelled; then every process that was started has ended."""
        self._settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        launch = self._launch = Launch()
        names = Names(self._settings.folder / "hosts")
        timers = Timers()
        reports = Reports(self._client)
        try:
            await launch.open(self.api, isolate=self._settings.isolate)
            if launch.why:
                _log.warning("Pods are not isolated from each other: %s", launch.why)
            addresses = Addresses(PODS) if launch.network else shared_addresses()
            shared = Shared(self._client, self._settings, launch, names, reports, addresses)
            shared.api, shared.account_files = self.api, self.account_files
            tools = SimulatedTools(reports, timers, Addresses(SIMULATED), self._settings)
            agent = self._agent = Agent(self._nodes, shared, tools)
            await self._serve(agent, reports, launch)
        finally:
            timers.close()
            names.close()
            if self._agent is not None:
                await self._agent.close()
            await self._end_processes(launch)

    async def _serve(self, agent: Agent, reports: Reports, launch: Launch) -> None:
        registry = Registry(self._client, self._nodes, self._settings.kubernetes)
        async with asyncio.TaskGroup() as group:
            group.create_task(reports.run())
            await keep_running("the registration of the nodes", registry.register)
            self.ready.set()
            for part in (registry.beat, registry.watch, agent.watch_services, agent.watch_pods):
                group.create_task(keep_running(f"{part.__qualname__} of the nodes", part))
            group.create_task(_guard(launch))

    async def _end_processes(self, launch: Launch) -> None:
        """Asks everything to stop, waits a little, and ends what is left."""
        processes = launch.processes()
        for process in processes:
            process.signal(signal.SIGTERM)
        if processes:
            await asyncio.wait([process.exited for process in processes], timeout=_FAREWELL)
        await launch.close()

    # -- Kubelet

    def _folder(self, pod: Json) -> Path:
        return self._settings.folder / str(pod["metadata"]["uid"])

    async def logs(self, pod: Json, options: LogOptions) -> AsyncIterator[bytes]:
        """A container's output, in pieces of any size."""
        name, uid = options.container, pod["metadata"]["uid"]
        _check_container(pod, name)
        status = _container_status(pod, name)
        if status.get("containerID", "").startswith("simulated://"):
            yield b"(simulated: this container has no process and writes nothing)\n"
            return
        folder = self._folder(pod)
        attempt = _previous(status) if options.previous else next(reversed(runs(folder, name)), None)
        if attempt is None or not log_path(folder, name, attempt).exists():
            where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
            why = f"previous terminated {where} not found" if options.previous else f"{where} is waiting to start"
            raise errors.bad_request(why if options.previous else f"{why}: ContainerCreating")
        process = f"{uid}/{name}/{attempt}"

        def ended() -> bool:
            return options.previous or self._launch is None or not self._launch.is_running(process)

        async for piece in read_logs(log_path(folder, name, attempt), options, ended):
            yield piece

    async def execute(self, pod: Json, terminal: Terminal) -> int:
        """Runs a command in a container; returns its exit code."""
        name, uid = terminal.container, pod["metadata"]["uid"]
        _check_container(pod, name)
        agent = self._agent
        if agent is None or _container_status(pod, name).get("containerID", "").startswith("simulated://"):
            raise errors.bad_request(f"pod {pod['metadata']['name']} is simulated: it has no process to enter")
        found = agent.processes.get(uid)
        worker = found.workers.get(name) if found is not None else None
        if found is None or worker is None or worker.process is None:
            raise errors.bad_request(f'container "{name}" of pod {pod["metadata"]["name"]} is not running')
        attempt = worker.attempt

        async def enter(command: list[str], files: list[int], tty: bool) -> object:
            return await found.sandbox.enter(name, attempt, command, files, tty)

        return await converse(terminal, enter)  # type: ignore[arg-type]


def _check_container(pod: Json, name: str) -> None:
    spec = pod["spec"]
    names = [item["name"] for key in ("containers", "initContainers") for item in spec.get(key) or ()]
    if name not in names:
        raise errors.bad_request(f"container {name} is not valid for pod {pod['metadata']['name']}")


def _container_status(pod: Json, name: str) -> Json:
    status = pod.get("status") or {}
    both = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((item for item in both if item["name"] == name), {})


def _previous(status: Json) -> int | None:
    """Which run of a container was the one before, by the name that its last state has."""
    number = ((status.get("lastState") or {}).get("terminated") or {}).get("containerID", "").rpartition("/")[2]
    return int(number) if number.isdecimal() else None


async def _guard(launch: Launch) -> None:
    """Ends the fleet when its launcher is gone: nothing could be started or stopped any more."""
    await launch.lost
    raise RuntimeError("the process that starts containers has ended unexpectedly")
