"""The process that starts containers: small, so that forking is cheap, and the ancestor of all of them.

Where the system allows it, it is the first process of a PID namespace and dies with the cluster: the kernel then ends
everything that was ever started in it, whatever it did to get away. Elsewhere it adopts orphans, and when the cluster
hangs up it ends everything that carries its mark.
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

from embedded_kube.node.pods.output import Output
from embedded_kube.node.processes.process_spec import Birth, give_birth
from embedded_kube.node.processes.wire import Message, Wire

if TYPE_CHECKING:
    from embedded_kube.node.processes.bridge import Bridge

MARK = "GPU_SCHEDULER_CONTAINER"
"""The environment variable by which a container's processes are known where it has no mount namespace."""

_PIECE = 1 << 16
_LINUX = sys.platform == "linux"


@dataclass(slots=True)
class _Running:
    """A started process: a container's own, or a command inside one."""

    name: str
    pid: int
    report: int
    own: bool
    heard: bytes = b""
    output: Output | None = None
    pipes: dict[int, str] = field(default_factory=dict)
    mounts: int = -1
    """Its mount namespace, open: else the kernel could give the number that it is known by to the next container."""


class Launcher:
    """Does what comes over the wire, one thing at a time, and tells what became of it."""

    def __init__(self, wire: Wire, settings: Message) -> None:
        self._wire = wire
        self._settings = settings
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, _Running] = {}
        self._by_pid: dict[int, _Running] = {}
        self._networks: dict[str, int] = {}
        self._gateway: Wire | None = None
        self._bridge: Bridge | None = None
        if settings["network"]:
            self._open_network()

    def _open_network(self) -> None:
        from embedded_kube.node.processes.bridge import Bridge

        try:
            self._bridge = Bridge()
        except OSError as error:
            self._settings["why"] = f"pods share this machine's network: {error}"
            return
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            from embedded_kube.node.processes import gateway

            ours.close()
            os.closerange(self._wire.fileno(), self._wire.fileno() + 1)
            gateway.run(theirs, (self._settings["api_host"], self._settings["api_port"]))
            os._exit(0)
        theirs.close()
        self._gateway = Wire(ours)
        self._gateway.send({"pod": ""}, [self._bridge.proxy.detach()])
        self._gateway.flush()

    def run(self) -> None:
        """Serves until the cluster hangs up; then nothing that was started is left."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # Ctrl-C reaches the cluster, which decides
            signal.signal(ignored, signal.SIG_IGN)
        self._watch(self._wire.fileno(), self._obey)
        self._watch(reading, lambda: self._reap(reading))
        self._tell(
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
                    if now is not None and now.data == key.data:  # else it was closed by one before it
                        key.data()
        except EOFError:
            pass
        finally:
            self._end_everything()

    def _watch(self, descriptor: int, act: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def _tell(self, message: Message, files: list[int] | None = None) -> None:
        self._wire.send(message, files or ())

    def _flush(self) -> None:
        wanted = selectors.EVENT_READ if self._wire.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(self._wire.fileno(), wanted, self._obey)

    def _obey(self) -> None:
        for message, files in self._wire.receive():
            handle: Callable[[Message, list[int]], None] = getattr(self, f"_do_{message['op']}")
            try:
                handle(message, files)
            except OSError as error:
                # Whatever is wrong with one pod (its folder is gone, say) must not end the processes of all others.
                self._tell({"op": "failed", "id": message.get("id", ""), "error": str(error)})
            self._wire.flush()

    # -- what the cluster asks for

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
        self._tell({"op": "network", "id": f"network/{pod}", "error": error})

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
        self._tell({"op": "dial", "id": message["id"]}, files)

    def _do_start(self, message: Message, _: list[int]) -> None:
        output = Output(message["log"])  # before anything runs: a pod that was deleted meanwhile has no folder for it
        out_reading, out_writing = os.pipe()
        err_reading, err_writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        message["open_files"] = self._settings["open_files"]
        if not self._settings["isolated"]:
            message["env"][MARK] = self._mark(message["id"]).partition("=")[2]
        birth = Birth(
            message,
            (nothing, out_writing, err_writing),
            isolated=self._settings["isolated"],
            network=self._networks.get(message["pod"]) if message["pod"] else None,
        )
        found = self._launch(birth)
        for done in (nothing, out_writing, err_writing):
            os.close(done)
        found.output = output
        for reading, stream in ((out_reading, "stdout"), (err_reading, "stderr")):
            os.set_blocking(reading, False)
            found.pipes[reading] = stream
            self._watch(reading, lambda reading=reading: self._read(found, reading))  # type: ignore[misc]

    def _do_execute(self, message: Message, files: list[int]) -> None:
        home = self._running.get(message["into"])
        try:
            if home is None:
                self._tell({"op": "failed", "id": message["id"], "error": "the container is not running"})
                return
            if not self._settings["isolated"]:
                message["env"][MARK] = self._mark(message["into"]).partition("=")[2]
            streams = (files[0], files[1], files[2]) if len(files) == 3 else (files[0],) * 3
            self._launch(Birth(message, streams, isolated=self._settings["isolated"], into=home.pid))
        finally:
            for file in files:
                os.close(file)

    def _do_signal(self, message: Message, _: list[int]) -> None:
        found = self._running.get(message["id"])
        if found is not None:
            try:
                os.killpg(found.pid, message["number"])
            except ProcessLookupError:  # so new that it does not lead a group yet
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found.pid, message["number"])

    # -- processes

    def _launch(self, birth: Birth) -> _Running:
        name = birth.message["id"]
        pid, report = give_birth(birth)
        found = _Running(name, pid, report, own=birth.into is None)
        self._running[name] = self._by_pid[pid] = found
        self._watch(report, lambda: self._listen(found))
        return found

    def _listen(self, found: _Running) -> None:
        """Takes in what a new process reports; its end means that the program is running."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(found.report, 4096):
                found.heard += data
            self._selector.unregister(found.report)
            os.close(found.report)
            found.report = -1
            told = [json.loads(line) for line in found.heard.splitlines()]
            error = next((line["error"] for line in told if "error" in line), None)
            if error is None:
                if self._settings["isolated"] and found.own:
                    with contextlib.suppress(OSError):
                        found.mounts = os.open(f"/proc/{found.pid}/ns/mnt", os.O_RDONLY)
                self._tell({"op": "started", "id": found.name, "notes": [line["note"] for line in told]})
            else:
                self._forget(found)
                self._tell({"op": "failed", "id": found.name, "error": error})

    def _forget(self, found: _Running) -> None:
        """Reads what is still in a process's pipes and lets go of them and of it."""
        self._by_pid.pop(found.pid, None)
        self._running.pop(found.name, None)
        for descriptor in list(found.pipes):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(descriptor, _PIECE):
                    self._note(found, descriptor, data)
            self._selector.unregister(descriptor)
            os.close(descriptor)
        found.pipes.clear()
        if found.mounts != -1:
            os.close(found.mounts)
        if found.output is not None:
            found.output.close()

    def _read(self, found: _Running, descriptor: int) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, _PIECE)
            if data:
                self._note(found, descriptor, data)
            else:
                self._selector.unregister(descriptor)
                os.close(descriptor)
                del found.pipes[descriptor]

    def _note(self, found: _Running, descriptor: int, data: bytes) -> None:
        if found.output is not None:
            found.output.add(found.pipes[descriptor], data)

    def _reap(self, reading: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(reading, 4096)
        ended: list[tuple[_Running, int]] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                found = self._by_pid.get(pid)
                if found is not None:
                    ended.append((found, status))
        for found, _ in ended:
            if found.report != -1:  # whoever waits for the start hears of it before the end
                self._listen(found)
        alive = [(found, status) for found, status in ended if found.name in self._running]
        self._sweep([found for found, _ in alive if found.own])
        for found, status in alive:
            self._forget(found)
            code = os.waitstatus_to_exitcode(status)
            exit_code, number = (128 - code, -code) if code < 0 else (code, 0)
            self._tell({"op": "exited", "id": found.name, "code": exit_code, "signal": number})

    def _sweep(self, ended: list[_Running]) -> None:
        """Ends what main processes left behind, as the end of a container does."""
        for found in ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(found.pid, signal.SIGKILL)
        if not self._settings["sees_processes"]:
            return
        mounts = {os.fstat(found.mounts).st_ino for found in ended if found.mounts != -1}
        if mounts:
            _kill_all(lambda pid: _mounts_of(pid) in mounts)
        marks = {self._mark(found.name).encode() for found in ended if found.mounts == -1}
        if marks:
            _kill_all(lambda pid: not marks.isdisjoint(_environment(pid)))

    def _mark(self, name: str) -> str:
        return f"{MARK}={self._settings['token']}/{name}"

    def _end_everything(self) -> None:
        for found in list(self._running.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(found.pid, signal.SIGKILL)
        if not self._settings["isolated"]:
            prefix = self._mark("").encode()
            _kill_all(lambda pid: any(item.startswith(prefix) for item in _environment(pid)))


def _mounts_of(pid: int) -> int:
    """The identity of a process's mount namespace; 0 when it cannot be told."""
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
    """Kills every chosen process, again until there is none: one may fork while we look."""
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
        time.sleep(0.001)  # the kernel needs a moment; what is left then is looked at again


def main() -> None:
    """`launcher <descriptor of the wire> <settings as JSON>`."""
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
            first = os.fork()
            if first:
                os.close(descriptor)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                os.waitpid(first, 0)
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
    Launcher(Wire(socket.socket(fileno=descriptor)), settings).run()
    os._exit(0)


if __name__ == "__main__":
    main()
