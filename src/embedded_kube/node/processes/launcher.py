"""Launcher: the process that starts containers. It is small, so that forking is cheap, and the ancestor of them all.

Where the system allows it, the launcher is the init process of a PID namespace and dies with the cluster: the kernel
then kills every process in the namespace. Elsewhere it is a child subreaper, and when the cluster disconnects it kills
every process that has its marker variable in the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedded_kube.node.pods.log_writer import LogWriter
from embedded_kube.node.processes.message_socket import Message, MessageSocket
from embedded_kube.node.processes.process_spec import ProcessSpec, spawn

if TYPE_CHECKING:
    from embedded_kube.node.processes.bridge import PodBridge

MARKER = "GPU_SCHEDULER_CONTAINER"
"""The environment variable that identifies a container's processes where it has no mount namespace."""

_CHUNK_SIZE = 1 << 16
_LINUX = sys.platform == "linux"


@dataclass(slots=True)
class _ChildProcess:
    """A started process: a container's main process, or a command inside a container."""

    name: str
    pid: int
    report: int
    is_main: bool
    reported: bytes = b""
    output: LogWriter | None = None
    pipes: dict[int, str] = field(default_factory=dict)
    mounts: int = -1
    """Its mount namespace, kept open: otherwise the kernel could reuse the inode number for the next container."""


class Launcher:
    """Executes the requests that arrive on the socket, one at a time, and reports the results."""

    def __init__(self, client: MessageSocket, settings: Message) -> None:
        self._client = client
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, _ChildProcess] = {}
        self._by_pid: dict[int, _ChildProcess] = {}
        self._networks: dict[str, int] = {}
        self._gateway: MessageSocket | None = None
        self._bridge: PodBridge | None = None
        if settings["network"]:
            self._open_network()

    def _open_network(self) -> None:
        from embedded_kube.node.processes.bridge import PodBridge

        try:
            self._bridge = PodBridge()
        except OSError as error:
            self._settings["why"] = f"pods share this machine's network: {error}"
            return
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            from embedded_kube.node.processes import gateway

            ours.close()
            os.closerange(self._client.fileno(), self._client.fileno() + 1)
            gateway.run(theirs, (self._settings["api_host"], self._settings["api_port"]))
            os._exit(0)
        theirs.close()
        self._gateway = MessageSocket(ours)
        self._gateway.send({"pod": ""}, [self._bridge.proxy.detach()])
        self._gateway.flush()

    def run(self) -> None:
        """Serves until the cluster disconnects, then kills everything that it started."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the cluster handles Ctrl-C
            signal.signal(ignored, signal.SIG_IGN)
        self._watch(self._client.fileno(), self._on_messages)
        self._watch(reading, lambda: self._reap(reading))
        self._send(
            {
                "op": "hello",
                "mounts": self._settings["isolated"],
                "network": self._bridge is not None,
                "why": self._settings["why"],
            }
        )
        try:
            while True:
                self._flush()
                for key, _ in self._selector.select():
                    now = self._selector.get_map().get(key.fileobj)
                    if now is not None and now.data == key.data:  # not if an earlier callback closed it
                        key.data()
        except EOFError:
            pass
        finally:
            self._kill_everything()

    def _watch(self, descriptor: int, act: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def _send(self, message: Message, files: list[int] | None = None) -> None:
        self._client.send(message, files or ())

    def _flush(self) -> None:
        wanted = selectors.EVENT_READ if self._client.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(self._client.fileno(), wanted, self._on_messages)

    def _on_messages(self) -> None:
        for message, files in self._client.receive():
            handle: Callable[[Message, list[int]], None] = getattr(self, f"_do_{message['op']}")
            try:
                handle(message, files)
            except OSError as error:
                # A fault of one pod, for example a missing folder, must not end the processes of all others.
                self._send({"op": "failed", "id": message.get("id", ""), "error": str(error)})
            self._client.flush()

    # -- requests

    def _do_network(self, message: Message, _: list[int]) -> None:
        pod, error = message["pod"], ""
        try:
            if self._bridge is not None and self._gateway is not None:
                network, listener = self._bridge.add_pod(message["address"], self._settings["api_port"])
                self._networks[pod] = network
                if listener is not None:
                    self._gateway.send({"pod": pod}, [listener.detach()])
                    self._gateway.flush()
        except OSError as found:
            error = str(found)
        self._send({"op": "network", "id": f"network/{pod}", "error": error})

    def _do_forget(self, message: Message, _: list[int]) -> None:
        network = self._networks.pop(message["pod"], None)
        if network is not None:
            os.close(network)
        if self._gateway is not None:
            self._gateway.send({"gone": message["pod"]})
            self._gateway.flush()

    def _do_dial(self, message: Message, _: list[int]) -> None:
        files: list[int] = []
        if self._bridge is not None:
            with contextlib.suppress(OSError):
                files = [self._bridge.make_socket()]
        self._send({"op": "dial", "id": message["id"]}, files)

    def _do_start(self, message: Message, _: list[int]) -> None:
        output = LogWriter(message["log"])  # before the start: the folder of a deleted pod is gone
        out_reading, out_writing = os.pipe()
        err_reading, err_writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        message["open_files"] = self._settings["open_files"]
        if not self._settings["isolated"]:
            message["env"][MARKER] = self._marker(message["id"]).partition("=")[2]
        spec = ProcessSpec(
            message,
            (nothing, out_writing, err_writing),
            isolated=self._settings["isolated"],
            network=self._networks.get(message["pod"]) if message["pod"] else None,
        )
        found = self._launch(spec)
        for done in (nothing, out_writing, err_writing):
            os.close(done)
        found.output = output
        for reading, stream in ((out_reading, "stdout"), (err_reading, "stderr")):
            os.set_blocking(reading, False)
            found.pipes[reading] = stream
            self._watch(reading, lambda reading=reading: self._read(found, reading))  # type: ignore[misc]

    def _do_execute(self, message: Message, files: list[int]) -> None:
        main = self._running.get(message["into"])
        try:
            if main is None:
                self._send({"op": "failed", "id": message["id"], "error": "the container is not running"})
                return
            if not self._settings["isolated"]:
                message["env"][MARKER] = self._marker(message["into"]).partition("=")[2]
            streams = (files[0], files[1], files[2]) if len(files) == 3 else (files[0],) * 3
            self._launch(ProcessSpec(message, streams, isolated=self._settings["isolated"], into=main.pid))
        finally:
            for file in files:
                os.close(file)

    def _do_signal(self, message: Message, _: list[int]) -> None:
        found = self._running.get(message["id"])
        if found is not None:
            try:
                os.killpg(found.pid, message["number"])
            except ProcessLookupError:  # it has not called setsid yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found.pid, message["number"])

    # -- processes

    def _launch(self, spec: ProcessSpec) -> _ChildProcess:
        name = spec.message["id"]
        pid, report = spawn(spec)
        found = _ChildProcess(name, pid, report, is_main=spec.into is None)
        self._running[name] = self._by_pid[pid] = found
        self._watch(report, lambda: self._read_report(found))
        return found

    def _read_report(self, found: _ChildProcess) -> None:
        """Reads what a new process reports before exec; EOF means that the program is running."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(found.report, 4096):
                found.reported += data
            self._selector.unregister(found.report)
            os.close(found.report)
            found.report = -1
            lines = [json.loads(line) for line in found.reported.splitlines()]
            error = next((line["error"] for line in lines if "error" in line), None)
            if error is None:
                if self._settings["isolated"] and found.is_main:
                    with contextlib.suppress(OSError):
                        found.mounts = os.open(f"/proc/{found.pid}/ns/mnt", os.O_RDONLY)
                self._send({"op": "started", "id": found.name, "notes": [line["note"] for line in lines]})
            else:
                self._forget(found)
                self._send({"op": "failed", "id": found.name, "error": error})

    def _forget(self, found: _ChildProcess) -> None:
        """Reads the rest of a process's output and closes its files."""
        self._by_pid.pop(found.pid, None)
        self._running.pop(found.name, None)
        for descriptor in list(found.pipes):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, _CHUNK_SIZE):
                    self._write_log(found, descriptor, data)
            self._selector.unregister(descriptor)
            os.close(descriptor)
        found.pipes.clear()
        if found.mounts != -1:
            os.close(found.mounts)
        if found.output is not None:
            found.output.close()

    def _read(self, found: _ChildProcess, descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, _CHUNK_SIZE)
            if data:
                self._write_log(found, descriptor, data)
            else:
                self._selector.unregister(descriptor)
                os.close(descriptor)
                del found.pipes[descriptor]

    def _write_log(self, found: _ChildProcess, descriptor: int, data: bytes) -> None:
        if found.output is not None:
            found.output.add(found.pipes[descriptor], data)

    def _reap(self, reading: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(reading, 4096)
        ended: list[tuple[_ChildProcess, int]] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                found = self._by_pid.get(pid)
                if found is not None:
                    ended.append((found, status))
        for found, _ in ended:
            if found.report != -1:  # report the start before the exit
                self._read_report(found)
        alive = [(found, status) for found, status in ended if found.name in self._running]
        self._kill_descendants([found for found, _ in alive if found.is_main])
        for found, status in alive:
            self._forget(found)
            code = os.waitstatus_to_exitcode(status)
            exit_code, number = (128 - code, -code) if code < 0 else (code, 0)
            self._send({"op": "exited", "id": found.name, "code": exit_code, "signal": number})

    def _kill_descendants(self, ended: list[_ChildProcess]) -> None:
        """Kills the processes that main processes left behind, as the end of a container does."""
        for found in ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(found.pid, signal.SIGKILL)
        if not self._settings["sees_processes"]:
            return
        mounts = {os.fstat(found.mounts).st_ino for found in ended if found.mounts != -1}
        if mounts:
            _kill_all(lambda pid: _mounts_of(pid) in mounts)
        markers = {self._marker(found.name).encode() for found in ended if found.mounts == -1}
        if markers:
            _kill_all(lambda pid: not markers.isdisjoint(_environment(pid)))

    def _marker(self, name: str) -> str:
        return f"{MARKER}={self._settings['token']}/{name}"

    def _kill_everything(self) -> None:
        for found in list(self._running.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(found.pid, signal.SIGKILL)
        if not self._settings["isolated"]:
            prefix = self._marker("").encode()
            _kill_all(lambda pid: any(item.startswith(prefix) for item in _environment(pid)))


def _mounts_of(pid: int) -> int:
    """Returns the inode of a process's mount namespace; 0 if it cannot be read."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return 0


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _kill_all(chosen: Callable[[int], bool]) -> None:
    """Kills every chosen process, repeatedly until none is left: one may fork meanwhile."""
    for _ in range(20):
        try:
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except OSError:
            return
        found = [pid for pid in pids if pid != os.getpid() and chosen(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)  # give the kernel time, then check again


def main() -> None:
    """Runs the launcher: `launcher <socket descriptor> <settings as JSON>`."""
    descriptor, settings = int(sys.argv[1]), json.loads(sys.argv[2])
    settings["sees_processes"] = True
    isolated, why = False, "this system has no namespaces"
    if _LINUX:
        from embedded_kube.node.processes import linux, namespaces

        why = "isolation is switched off"
        if settings["isolate"]:
            isolated, why = namespaces.isolate()
        if isolated:
            linux.die_with_parent(signal.SIGKILL)
            init = os.fork()
            if init:
                os.close(descriptor)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                os.waitpid(init, 0)
                os._exit(0)
            linux.die_with_parent(signal.SIGKILL)
            settings["sees_processes"] = namespaces.mount_processes()
        else:
            linux.adopt_orphans()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    settings.update(
        isolated=isolated, why="" if isolated else why, open_files=soft, network=isolated and settings["network"]
    )
    Launcher(MessageSocket(socket.socket(fileno=descriptor)), settings).run()
    os._exit(0)


if __name__ == "__main__":
    main()
