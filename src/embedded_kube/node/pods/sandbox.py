"""A pod's place on this machine: folder, address, network and volumes, and processes in it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from embedded_kube.client import Client
from embedded_kube.node.fleet import FleetSettings
from embedded_kube.node.pods.environment import ConfigError, Environment, Facts, command_line
from embedded_kube.node.pods.logs import forget_old_runs, log_path
from embedded_kube.node.pods.volumes import AccountFiles, Volumes, link_volumes
from embedded_kube.node.processes.bridge import GATEWAY, PROXY_PORT
from embedded_kube.node.processes.launch import Launch, Process, StartError
from embedded_kube.node.processes.network import PODS, Addresses, Names, host_name
from embedded_kube.node.processes.wire import Message
from embedded_kube.node.reports import Reports
from embedded_kube.storage.store import Json

_OUTPUT = 64 * 1024
_TERMINATION_PATH = "/dev/termination-log"


@dataclass(slots=True)
class Shared:
    """What all process pods use."""

    client: Client
    settings: FleetSettings
    launch: Launch
    names: Names
    reports: Reports
    addresses: Addresses | None
    api: tuple[str, int] | None = None
    account_files: AccountFiles | None = None
    ports: dict[int, str] = field(default_factory=dict)

    def folder(self, uid: str) -> Path:
        """A pod's folder."""
        return self.settings.folder / uid


class Sandbox:
    """One pod's place."""

    _executions: ClassVar[int] = 0

    def __init__(self, shared: Shared, pod: Json, host: str, allocatable: Mapping[str, str]) -> None:
        self._shared = shared
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.folder = shared.folder(self.uid)
        self._host = host
        self._allocatable = allocatable
        self._on_host = bool(pod["spec"].get("hostNetwork"))
        self.address = host
        self._networked = False
        self._links: list[str] = []
        self._ports: list[int] = []
        self._variables: dict[str, dict[str, str]] = {}
        self._folders: dict[str, str] = {}
        if not self._on_host and shared.addresses is not None:
            self.address = shared.addresses.take()

    @property
    def isolated(self) -> bool:
        """Whether it has a network of its own."""
        return self._shared.launch.network and not self._on_host

    async def prepare(self) -> None:
        """Makes the folder and the network; StartError when that fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.isolated:
            if not self._networked:
                self._networked = True  # before the answer: whoever is deleted while waiting for it gives it back too
                try:
                    await self._shared.launch.add_network(self.uid, self.address)
                except StartError:
                    self._networked = False
                    raise
        else:
            self._claim_ports()

    def _claim_ports(self) -> None:
        """Says so when two pods on one network want the same port; the second one will find out by itself."""
        for container in self.pod["spec"]["containers"]:
            for item in container.get("ports") or ():
                port = item["containerPort"]
                holder = self._shared.ports.setdefault(port, self.uid)
                if holder == self.uid:
                    self._ports.append(port)
                if holder != self.uid or _is_taken(port):
                    user = "another pod" if holder != self.uid else "another program"
                    why = self._shared.launch.why if not self._on_host else "the pod has hostNetwork: true"
                    text = f"port {port} of this machine is in use by {user}, and the pod shares its network ({why})"
                    self._shared.reports.event(self.pod, "PortConflict", text, warning=True)

    def clean(self) -> None:
        """Gives back the address and the network; the folder with the logs stays."""
        if self._networked:
            self._shared.launch.remove_network(self.uid)
            self._networked = False
        for link in self._links:
            with contextlib.suppress(OSError):
                os.unlink(link)
        self._links.clear()
        for port in self._ports:
            self._shared.ports.pop(port, None)
        self._ports.clear()
        if self._shared.addresses is not None and self.address != self._host:
            self._shared.addresses.free(self.address)

    # -- containers

    async def start(self, container: Json, attempt: int) -> Process:
        """Starts a container; ConfigError when something it needs is missing, StartError when it cannot be run."""
        name = container["name"]
        facts = Facts(self.address, self._host, self._allocatable)
        account = self._shared.account_files if self._shared.launch.mounts else None
        volumes = Volumes(self._shared.client, self.pod, self.folder, facts, account)
        await volumes.prepare()
        environment = Environment(self._shared.client, self._shared.names, self.pod, facts)
        variables = await environment.resolve(container)
        self._add_own(variables, {item["name"] for item in container.get("env") or ()})
        mounts = [*await volumes.mounts(container), *self._termination_mount(container)]
        if not self._shared.launch.mounts:
            self._link(mounts, variables)
        elif self.isolated:
            mounts.append((str(self._shared.names.hosts_file(self.pod)), "/etc/hosts", False))
            await self._shared.names.settle()
        own = self.folder / "work" / name
        own.mkdir(parents=True, exist_ok=True)
        log = log_path(self.folder, name, attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        forget_old_runs(self.folder, name)
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
        process = await self._shared.launch.start(f"{self.uid}/{name}/{attempt}", message)
        for note in process.notes:
            self._shared.reports.event(self.pod, "WorkingDirMissing", f"container {name}: {note}", warning=True)
        return process

    def _add_own(self, variables: dict[str, str], told: set[str]) -> None:
        """Adds what every container gets, and in a shared network puts addresses in place of names."""
        own = {"HOSTNAME": host_name(self.pod)}
        if self._shared.api is not None:
            own |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._shared.api[1])}
        if self.isolated:
            own["HTTPS_PROXY"] = own["https_proxy"] = f"http://{GATEWAY}:{PROXY_PORT}"
            own["NO_PROXY"] = own["no_proxy"] = f"localhost,127.0.0.1,{PODS},.svc,.cluster.local"
        variables |= {name: value for name, value in own.items() if name not in told}
        if not self.isolated and not self._on_host:
            changed = self._shared.names.replace_names(self.pod["metadata"]["namespace"], variables)
            if changed:
                text = f"{'; '.join(changed)}: names do not resolve here ({self._shared.launch.why})"
                self._shared.reports.event(self.pod, "NamesReplaced", text)

    def _termination_mount(self, container: Json) -> list[tuple[str, str, bool]]:
        path = container.get("terminationMessagePath") or _TERMINATION_PATH
        file = self._termination_file(container)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        if not self._shared.launch.mounts or (path == _TERMINATION_PATH and not _has_termination_path()):
            return []
        return [(str(file), path, False)]

    def _termination_file(self, container: Json) -> Path:
        return self.folder / "termination" / str(container["name"])

    def termination_message(self, container: Json) -> str:
        """What a container left as its last words."""
        try:
            with self._termination_file(container).open("rb") as file:
                return file.read(4096).decode("utf-8", "replace")
        except OSError:
            return ""

    def _link(self, mounts: list[tuple[str, str, bool]], variables: dict[str, str]) -> None:
        made, hidden = link_volumes([mount for mount in mounts if "/termination/" not in mount[0]])
        self._links += made
        for source, target in hidden:
            variable = "VOLUME" + "".join(c if c.isalnum() else "_" for c in target).upper()
            variables[variable] = source
            text = f"{target} cannot be made on this machine without namespaces; the volume is at ${variable}"
            self._shared.reports.event(self.pod, "VolumeNotMounted", text, warning=True)

    # -- commands in containers

    async def enter(self, container: str, attempt: int, command: list[str], files: list[int], tty: bool) -> Process:
        """Starts a command in a container; the files (three, or one terminal) are handed over."""
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
        return await self._shared.launch.execute(name, message, files)

    async def execute(self, container: str, attempt: int, command: list[str], seconds: float) -> tuple[int, bytes]:
        """Runs a command in a container to its end: exit code and output. TimeoutError when it takes too long."""
        reading, writing = os.pipe()
        files = [os.open(os.devnull, os.O_RDONLY), writing, os.dup(writing)]
        process = None
        try:
            process = await self.enter(container, attempt, command, files, False)
            ended = await asyncio.wait_for(asyncio.shield(process.exited), seconds)
            os.set_blocking(reading, False)
            with contextlib.suppress(BlockingIOError):
                return ended.code, os.read(reading, _OUTPUT)
            return ended.code, b""
        except StartError as error:
            return 126, str(error).encode()
        finally:
            if process is not None:
                process.signal(signal.SIGKILL)
            os.close(reading)

    async def connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to a pod, from where a node would."""
        made = await self._shared.launch.make_socket() if self.isolated else socket.socket()
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, (address, port))
            return await asyncio.open_connection(sock=made)
        except BaseException:
            made.close()
            raise

    def remove(self) -> None:
        """Deletes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_taken(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("0.0.0.0", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _has_termination_path() -> bool:
    """Whether there is a file to mount the termination log on; made once, as an empty file in memory, where allowed."""
    if not os.path.exists(_TERMINATION_PATH):
        with contextlib.suppress(OSError):
            os.close(os.open(_TERMINATION_PATH, os.O_CREAT | os.O_WRONLY, 0o666))
    return os.path.exists(_TERMINATION_PATH)


__all__ = ["ConfigError", "Sandbox", "Shared"]
