"""The cluster's end of the wire to the launcher: processes as objects that can be awaited, signalled and entered."""

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
from embedded_kube.node.processes.wire import Message, Wire


class StartError(Exception):
    """A program that could not be started, and why."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: an exit code as containers report it, and the signal that ended it (0: none)."""

    code: int
    signal: int = 0


class Process:
    """A started process."""

    def __init__(self, name: str, launch: Launch) -> None:
        self.name = name
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.notes: list[str] = []
        self._launch = launch

    def signal(self, number: int) -> None:
        """Signals its process group; nothing happens when it is gone."""
        self._launch.tell({"op": "signal", "id": self.name, "number": number})

    async def stop(self, grace: float) -> Exit:
        """SIGTERM, and after the grace period SIGKILL."""
        if grace > 0:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(self.exited), grace)
        self.signal(signal.SIGKILL)
        return await asyncio.shield(self.exited)


class Launch:
    """A running launcher. `mounts` and `network` say what the system lets it isolate, `why` what it does not."""

    def __init__(self) -> None:
        self.mounts = False
        self.network = False
        self.why = ""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._processes: dict[str, Process] = {}
        self._answers: dict[str, asyncio.Future[tuple[Message, list[int]]]] = {}
        self._dials = 0
        self._writing = False
        self._launcher: subprocess.Popen[bytes] | None = None

    async def open(self, api: tuple[str, int] | None, *, isolate: bool = True) -> None:
        """Starts the launcher and learns what it can do."""
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
            # -S and one folder to import from: the launcher needs nothing else, and is ready in 30 ms.
            command = [sys.executable, "-S", "-m", "embedded_kube.node.processes.launcher"]
            # Not asyncio's: the thread that starts the launcher must be the one it dies with.
            self._launcher = subprocess.Popen(  # noqa: ASYNC220
                [*command, str(theirs.fileno()), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": root},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._wire = Wire(ours)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._wire.fileno(), self._read)
        hello, _ = await self._answer("hello")
        self.mounts, self.network, self.why = hello["mounts"], hello["network"], hello["why"]

    async def close(self) -> None:
        """Ends everything that was started, then the launcher."""
        if self._launcher is not None:
            self._hang_up()
            await asyncio.to_thread(self._launcher.wait)

    def _hang_up(self) -> None:
        if self._wire.fileno() == -1:
            return
        self._loop.remove_reader(self._wire.fileno())
        if self._writing:
            self._loop.remove_writer(self._wire.fileno())
        self._wire.close()
        for process in self._processes.values():
            process.exited.set_result(Exit(137, signal.SIGKILL))
        self._processes.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_gone())

    # -- processes

    async def start(self, name: str, message: Message) -> Process:
        """Starts a container's process; StartError when its program cannot be run."""
        return await self._begin({**message, "op": "start", "id": name}, ())

    async def execute(self, name: str, message: Message, files: Sequence[int]) -> Process:
        """Starts a command inside a container (`into`) with these as its streams, or this as its terminal."""
        return await self._begin({**message, "op": "execute", "id": name}, files)

    async def _begin(self, message: Message, files: Sequence[int]) -> Process:
        name = message["id"]
        process = self._processes[name] = Process(name, self)
        self.tell(message, files)
        try:
            told, _ = await self._answer(name)
        except asyncio.CancelledError:
            process.signal(signal.SIGKILL)
            raise
        except StartError:
            self._processes.pop(name, None)
            raise
        if told["op"] == "failed":
            raise StartError(told["error"])
        process.notes = told["notes"]
        return process

    def processes(self) -> list[Process]:
        """Every process that is running now."""
        return list(self._processes.values())

    def is_running(self, name: str) -> bool:
        """Whether a process of that name is running."""
        return name in self._processes

    # -- network

    async def add_network(self, pod: str, address: str) -> None:
        """Gives a pod its network; StartError when it cannot be made."""
        self.tell({"op": "network", "pod": pod, "address": address})
        told, _ = await self._answer(f"network/{pod}")
        if told["error"]:
            raise StartError(f"the pod's network: {told['error']}")

    def remove_network(self, pod: str) -> None:
        """Takes a pod's network away; it is gone with the pod's last process."""
        self.tell({"op": "forget", "pod": pod})

    async def make_socket(self) -> socket.socket:
        """A TCP socket from which pods can be reached."""
        if self.network:
            self._dials += 1
            name = f"dial/{self._dials}"
            self.tell({"op": "dial", "id": name})
            _, files = await self._answer(name)
            if files:
                return socket.socket(fileno=files[0])
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    # -- the wire

    def tell(self, message: Message, files: Sequence[int] = ()) -> None:
        """Sends a message; nobody is there to hear it once the launcher is gone."""
        if self._wire.fileno() == -1:
            for file in files:
                os.close(file)
            return
        self._wire.send(message, files)
        self._write()

    def _write(self) -> None:
        done = self._wire.flush()
        if done and self._writing:
            self._loop.remove_writer(self._wire.fileno())
        elif not done and not self._writing:
            self._loop.add_writer(self._wire.fileno(), self._write)
        self._writing = not done

    async def _answer(self, name: str) -> tuple[Message, list[int]]:
        if self._wire.fileno() == -1:
            raise _gone()
        answer: asyncio.Future[tuple[Message, list[int]]] = self._loop.create_future()
        self._answers[name] = answer
        try:
            return await answer
        finally:
            self._answers.pop(name, None)

    def _read(self) -> None:
        try:
            messages = self._wire.receive()
        except EOFError:
            self._hang_up()
            self.lost.set_result(None)
            return
        for message, files in messages:
            name: str = message.get("id") or message["op"]
            # Also when nobody waits for the start any more: what failed to start will never be heard of again.
            process = self._processes.pop(name, None) if message["op"] in ("exited", "failed") else None
            if message["op"] == "exited":
                if process is not None:
                    process.exited.set_result(Exit(message["code"], message["signal"]))
                continue
            answer = self._answers.get(name)
            if answer is not None and not answer.done():
                answer.set_result((message, files))
            else:
                for file in files:
                    os.close(file)


def _gone() -> StartError:
    return StartError("the launcher is gone")
