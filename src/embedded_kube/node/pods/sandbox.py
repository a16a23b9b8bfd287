"""Pod sandbox on this machine: folder, address, network, volumes, and processes in it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from embedded_kube.client import ClusterClient
from embedded_kube.node.fleet import FleetSettings
from embedded_kube.node.pods.environment import DownwardFields, EnvironmentResolver, command_line
from embedded_kube.node.pods.logs import delete_old_logs, log_path
from embedded_kube.node.pods.volumes import AccountFiles, PodVolumes, link_volumes
from embedded_kube.node.processes.bridge import GATEWAY, PROXY_PORT
from embedded_kube.node.processes.launcher_client import LaunchedProcess, LauncherClient, ProcessStartError
from embedded_kube.node.processes.message_socket import Message
from embedded_kube.node.processes.network import PODS, AddressPool, HostNames, host_name
from embedded_kube.node.status_manager import StatusManager
from gpu_scheduler.k8s.objects import Json

_MAX_EXEC_OUTPUT = 64 * 1024
_TERMINATION_PATH = "/dev/termination-log"


@dataclass(slots=True)
class AgentContext:
    """Dependencies of all pods that run as processes."""

    client: ClusterClient
    settings: FleetSettings
    launcher: LauncherClient
    host_names: HostNames
    status_manager: StatusManager
    addresses: AddressPool | None
    api: tuple[str, int] | None = None
    account_files: AccountFiles | None = None
    ports: dict[int, str] = field(default_factory=dict)

    def folder(self, uid: str) -> Path:
        """Returns a pod's folder."""
        return self.settings.folder / uid


class Sandbox:
    """The sandbox of one pod."""

    _executions: ClassVar[int] = 0

    def __init__(self, context: AgentContext, pod: Json, host: str, allocatable: Mapping[str, str]) -> None:
        self._context = context
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.folder = context.folder(self.uid)
        self._host = host
        self._allocatable = allocatable
        self._host_network = bool(pod["spec"].get("hostNetwork"))
        self.address = host
        self._networked = False
        self._links: list[str] = []
        self._ports: list[int] = []
        self._variables: dict[str, dict[str, str]] = {}
        self._folders: dict[str, str] = {}
        if not self._host_network and context.addresses is not None:
            self.address = context.addresses.take()

    @property
    def isolated(self) -> bool:
        """Whether the pod has its own network namespace."""
        return self._context.launcher.network and not self._host_network

    async def prepare(self) -> None:
        """Creates the folder and the network. Raises ProcessStartError when that fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.isolated:
            if not self._networked:
                self._networked = True  # before the answer: a pod deleted meanwhile must release the network too
                try:
                    await self._context.launcher.add_network(self.uid, self.address)
                except ProcessStartError:
                    self._networked = False
                    raise
        else:
            self._check_ports()

    def _check_ports(self) -> None:
        """Records an Event when another pod or program on the same network uses a container port."""
        for container in self.pod["spec"]["containers"]:
            for item in container.get("ports") or ():
                port = item["containerPort"]
                holder = self._context.ports.setdefault(port, self.uid)
                if holder == self.uid:
                    self._ports.append(port)
                if holder != self.uid or _is_port_in_use(port):
                    user = "another pod" if holder != self.uid else "another program"
                    why = (
                        self._context.launcher.not_isolated
                        if not self._host_network
                        else "the pod has hostNetwork: true"
                    )
                    text = f"port {port} of this machine is in use by {user}, and the pod shares its network ({why})"
                    self._context.status_manager.event(self.pod, "PortConflict", text, warning=True)

    def release(self) -> None:
        """Releases the address, the network and the ports. The folder with the logs stays."""
        if self._networked:
            self._context.launcher.remove_network(self.uid)
            self._networked = False
        for link in self._links:
            with contextlib.suppress(OSError):
                os.unlink(link)
        self._links.clear()
        for port in self._ports:
            self._context.ports.pop(port, None)
        self._ports.clear()
        if self._context.addresses is not None and self.address != self._host:
            self._context.addresses.free(self.address)

    # -- containers

    async def start(self, container: Json, attempt: int) -> LaunchedProcess:
        """Starts a container. Raises ContainerConfigError, or ProcessStartError if it cannot be executed."""
        name = container["name"]
        downward = DownwardFields(self.address, self._host, self._allocatable)
        account = self._context.account_files if self._context.launcher.mounts else None
        volumes = PodVolumes(self._context.client, self.pod, self.folder, downward, account)
        await volumes.prepare()
        environment = EnvironmentResolver(self._context.client, self._context.host_names, self.pod, downward)
        variables = await environment.resolve(container)
        self._add_standard_variables(variables, {item["name"] for item in container.get("env") or ()})
        mounts = [*await volumes.mounts(container), *self._termination_mount(container)]
        if not self._context.launcher.mounts:
            self._link_volumes(mounts, variables)
        elif self.isolated:
            mounts.append((str(self._context.host_names.hosts_file(self.pod)), "/etc/hosts", False))
            await self._context.host_names.flush()
        own = self.folder / "work" / name
        own.mkdir(parents=True, exist_ok=True)
        log = log_path(self.folder, name, attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        delete_old_logs(self.folder, name)
        self._variables[name] = variables
        self._folders[name] = container.get("workingDir") or str(own)
        message: Message = {
            "argv": command_line(container, variables),
            "env": variables,
            "folder": self._folders[name],
            "own": str(own),
            "log": str(log),
            "pod": self.uid if self.isolated else "",
            "host": host_name(self.pod) if self.isolated else "",
            "mounts": mounts,
            "scratch": str(self.folder / "root" / name),
        }
        process = await self._context.launcher.start(f"{self.uid}/{name}/{attempt}", message)
        for note in process.notes:
            self._context.status_manager.event(self.pod, "WorkingDirMissing", f"container {name}: {note}", warning=True)
        return process

    def _add_standard_variables(self, variables: dict[str, str], declared: set[str]) -> None:
        """Adds the variables of every container. On a shared network, replaces host names by addresses."""
        own = {"HOSTNAME": host_name(self.pod)}
        if self._context.api is not None:
            own |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._context.api[1])}
        if self.isolated:
            own["HTTPS_PROXY"] = own["https_proxy"] = f"http://{GATEWAY}:{PROXY_PORT}"
            own["NO_PROXY"] = own["no_proxy"] = f"localhost,127.0.0.1,{PODS},.svc,.cluster.local"
        variables |= {name: value for name, value in own.items() if name not in declared}
        if not self.isolated and not self._host_network:
            changed = self._context.host_names.replace_names(self.pod["metadata"]["namespace"], variables)
            if changed:
                text = f"{'; '.join(changed)}: host names do not resolve here ({self._context.launcher.not_isolated})"
                self._context.status_manager.event(self.pod, "NamesReplaced", text)

    def _termination_mount(self, container: Json) -> list[tuple[str, str, bool]]:
        path = container.get("terminationMessagePath") or _TERMINATION_PATH
        file = self._termination_file(container)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        if not self._context.launcher.mounts or (path == _TERMINATION_PATH and not _termination_path_exists()):
            return []
        return [(str(file), path, False)]

    def _termination_file(self, container: Json) -> Path:
        return self.folder / "termination" / str(container["name"])

    def termination_message(self, container: Json) -> str:
        """Returns the termination message that a container wrote."""
        try:
            with self._termination_file(container).open("rb") as file:
                return file.read(4096).decode("utf-8", "replace")
        except OSError:
            return ""

    def _link_volumes(self, mounts: list[tuple[str, str, bool]], variables: dict[str, str]) -> None:
        links, unlinked = link_volumes([mount for mount in mounts if "/termination/" not in mount[0]])
        self._links += links
        for source, target in unlinked:
            variable = "VOLUME" + "".join(c if c.isalnum() else "_" for c in target).upper()
            variables[variable] = source
            text = f"{target} cannot be mounted on this machine without namespaces; the volume is at ${variable}"
            self._context.status_manager.event(self.pod, "VolumeNotMounted", text, warning=True)

    # -- exec

    async def enter(
        self, container: str, attempt: int, command: list[str], files: list[int], tty: bool
    ) -> LaunchedProcess:
        """Starts a command in a container. Takes ownership of the files: three streams, or one terminal."""
        Sandbox._executions += 1
        message: Message = {
            "into": f"{self.uid}/{container}/{attempt}",
            "argv": command,
            "env": {**self._variables.get(container, {}), **({"TERM": "xterm"} if tty else {})},
            "folder": self._folders.get(container, "/"),
            "own": str(self.folder / "work" / container),
            "tty": tty,
        }
        name = f"{message['into']}/command/{Sandbox._executions}"
        return await self._context.launcher.execute(name, message, files)

    async def execute(self, container: str, attempt: int, command: list[str], seconds: float) -> tuple[int, bytes]:
        """Runs a command in a container and returns exit code and output, or raises TimeoutError."""
        reading, writing = os.pipe()
        files = [os.open(os.devnull, os.O_RDONLY), writing, os.dup(writing)]
        process = None
        try:
            process = await self.enter(container, attempt, command, files, False)
            exit_ = await asyncio.wait_for(asyncio.shield(process.exited), seconds)
            os.set_blocking(reading, False)
            with contextlib.suppress(BlockingIOError):
                return exit_.code, os.read(reading, _MAX_EXEC_OUTPUT)
            return exit_.code, b""
        except ProcessStartError as error:
            return 126, str(error).encode()
        finally:
            if process is not None:
                process.signal(signal.SIGKILL)
            os.close(reading)

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to a pod from the node's side of the network."""
        made = await self._context.launcher.make_socket() if self.isolated else socket.socket()
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, (address, port))
            return await asyncio.open_connection(sock=made)
        except BaseException:
            made.close()
            raise


def _is_port_in_use(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("0.0.0.0", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _termination_path_exists() -> bool:
    """Whether /dev/termination-log exists as a mount point; creates it, an empty file in memory, where allowed."""
    if not os.path.exists(_TERMINATION_PATH):
        with contextlib.suppress(OSError):
            os.close(os.open(_TERMINATION_PATH, os.O_CREAT | os.O_WRONLY, 0o666))
    return os.path.exists(_TERMINATION_PATH)
