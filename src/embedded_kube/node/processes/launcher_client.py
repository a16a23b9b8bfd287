"""Client of the launcher process: starts processes, waits for them, signals them and runs commands in them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import embedded_kube
from embedded_kube.node.processes.message_socket import Message, MessageSocket


class ProcessStartError(Exception):
    """A program could not be started; the message says why."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended: the exit code as containers report it, and the signal that killed it (0: none)."""

    code: int
    signal: int = 0


class LaunchedProcess:
    """A started process."""

    def __init__(self, name: str, launcher: LauncherClient) -> None:
        self.name = name
        self.exited: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        self.notes: list[str] = []
        self._launcher = launcher

    def signal(self, number: int) -> None:
        """Signals the process group; does nothing when it is gone."""
        self._launcher.send({"op": "signal", "id": self.name, "number": number})

    async def stop(self, grace: float) -> ProcessExit:
        """Sends SIGTERM, and after the grace period SIGKILL; returns how the process ended."""
        if grace > 0:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(self.exited), grace)
        self.signal(signal.SIGKILL)
        return await asyncio.shield(self.exited)


class LauncherClient:
    """A launcher process. `mounts` and `network` say what the system isolates, `not_isolated` why it does not."""

    def __init__(self) -> None:
        self.mounts = False
        self.network = False
        self.not_isolated = ""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._processes: dict[str, LaunchedProcess] = {}
        self._replies: dict[str, asyncio.Future[tuple[Message, list[int]]]] = {}
        self._dials = 0
        self._writing = False
        self._process: subprocess.Popen[bytes] | None = None

    async def open(self, api: tuple[str, int] | None, *, isolate: bool = True) -> None:
        """Starts the launcher process and reads what it can isolate."""
        ours, theirs = socket.socketpair()
        settings = {
            "isolate": isolate,
            "network": isolate,
            "api_host": api[0] if api else "",
            "api_port": api[1] if api else 0,
            "token": secrets.token_hex(8),
        }
        root = str(Path(embedded_kube.__file__).parents[1])
        with theirs:
            # -S and one import path: the launcher needs nothing else, and is ready in 30 ms.
            command = [sys.executable, "-S", "-m", "embedded_kube.node.processes.launcher"]
            # Not asyncio's: the launcher gets a signal when the thread that started it ends.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [*command, str(theirs.fileno()), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": root},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket = MessageSocket(ours)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._read)
        hello, _ = await self._reply("hello")
        self.mounts, self.network, self.not_isolated = hello["mounts"], hello["network"], hello["why"]

    async def close(self) -> None:
        """Ends the launcher and with it all processes that it started."""
        if self._process is not None:
            self._disconnect()
            await asyncio.to_thread(self._process.wait)

    def _disconnect(self) -> None:
        if self._socket.fileno() == -1:
            return
        self._loop.remove_reader(self._socket.fileno())
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for process in self._processes.values():
            process.exited.set_result(ProcessExit(137, signal.SIGKILL))
        self._processes.clear()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(_launcher_gone())

    # -- processes

    async def start(self, name: str, message: Message) -> LaunchedProcess:
        """Starts a container's process. Raises ProcessStartError when its program cannot be executed."""
        return await self._start({**message, "op": "start", "id": name}, ())

    async def execute(self, name: str, message: Message, files: Sequence[int]) -> LaunchedProcess:
        """Starts a command inside a container (`into`); `files` are its three streams or its terminal."""
        return await self._start({**message, "op": "execute", "id": name}, files)

    async def _start(self, message: Message, files: Sequence[int]) -> LaunchedProcess:
        name = message["id"]
        process = self._processes[name] = LaunchedProcess(name, self)
        self.send(message, files)
        try:
            reply, _ = await self._reply(name)
        except asyncio.CancelledError:
            process.signal(signal.SIGKILL)
            raise
        except ProcessStartError:
            self._processes.pop(name, None)
            raise
        if reply["op"] == "failed":
            raise ProcessStartError(reply["error"])
        process.notes = reply["notes"]
        return process

    def processes(self) -> list[LaunchedProcess]:
        """Returns the running processes."""
        return list(self._processes.values())

    def is_running(self, name: str) -> bool:
        """Whether a process is running."""
        return name in self._processes

    # -- network

    async def add_network(self, pod: str, address: str) -> None:
        """Creates a pod's network. Raises ProcessStartError when that fails."""
        self.send({"op": "network", "pod": pod, "address": address})
        reply, _ = await self._reply(f"network/{pod}")
        if reply["error"]:
            raise ProcessStartError(f"pod network: {reply['error']}")

    def remove_network(self, pod: str) -> None:
        """Releases a pod's network; it disappears with the pod's last process."""
        self.send({"op": "forget", "pod": pod})

    async def make_socket(self) -> socket.socket:
        """Returns a TCP socket that can connect to pods."""
        if self.network:
            self._dials += 1
            name = f"dial/{self._dials}"
            self.send({"op": "dial", "id": name})
            _, files = await self._reply(name)
            if files:
                return socket.socket(fileno=files[0])
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    # -- messages

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Sends a message. Once the launcher is gone, messages are dropped."""
        if self._socket.fileno() == -1:
            for file in files:
                os.close(file)
            return
        self._socket.send(message, files)
        self._write()

    def _write(self) -> None:
        done = self._socket.flush()
        if done and self._writing:
            self._loop.remove_writer(self._socket.fileno())
        elif not done and not self._writing:
            self._loop.add_writer(self._socket.fileno(), self._write)
        self._writing = not done

    async def _reply(self, name: str) -> tuple[Message, list[int]]:
        if self._socket.fileno() == -1:
            raise _launcher_gone()
        reply: asyncio.Future[tuple[Message, list[int]]] = self._loop.create_future()
        self._replies[name] = reply
        try:
            return await reply
        finally:
            self._replies.pop(name, None)

    def _read(self) -> None:
        try:
            messages = self._socket.receive()
        except EOFError:
            self._disconnect()
            self.lost.set_result(None)
            return
        for message, files in messages:
            name: str = message.get("id") or message["op"]
            # Also when no caller waits for the start any more: a process that failed to start sends nothing else.
            process = self._processes.pop(name, None) if message["op"] in ("exited", "failed") else None
            if message["op"] == "exited":
                if process is not None:
                    process.exited.set_result(ProcessExit(message["code"], message["signal"]))
                continue
            reply = self._replies.get(name)
            if reply is not None and not reply.done():
                reply.set_result((message, files))
            else:
                for file in files:
                    os.close(file)


def _launcher_gone() -> ProcessStartError:
    return ProcessStartError("the launcher is gone")
