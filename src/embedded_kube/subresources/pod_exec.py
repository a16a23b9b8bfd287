"""pods/exec and pods/attach over WebSocket: the first byte of a message is the channel (v5.channel.k8s.io)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from aiohttp import WSMsgType, web

from embedded_kube import errors
from embedded_kube.errors import StatusError
from embedded_kube.subresources.kubelet import ExecSession, Kubelet, PodLogOptions
from embedded_kube.subresources.pod_logs import container_status, find_container, is_true
from gpu_scheduler.k8s.objects import Json

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_MAX_UNREAD_STDIN = 64
"""The number of stdin messages that are buffered until the command reads them."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodExecOptions:
    """The query parameters of pods/exec and pods/attach."""

    command: tuple[str, ...]
    container: str
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    @classmethod
    def read(cls, request: web.Request, pod: Json, attach: bool) -> PodExecOptions:
        """Parses the query; BadRequest (400) if it is invalid."""
        query = request.query
        command = () if attach else tuple(query.getall("command", ()))
        if not attach and not command:
            raise errors.bad_request("you must specify at least one word of a command: the query parameter command")
        flags = {name: is_true(query, name) for name in ("stdin", "stdout", "stderr", "tty")}
        if not any(flags[name] for name in ("stdin", "stdout", "stderr")):
            raise errors.bad_request("you must specify at least one of stdin, stdout, stderr")
        if attach and flags["stdin"]:
            raise errors.bad_request("attach shows what a container writes, stdin is not connected; use exec for that")
        if not pod["spec"].get("nodeName"):
            raise errors.bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        container = find_container(pod, query.get("container", ""))
        if "running" not in ((container_status(pod, container) or {}).get("state") or {}):
            raise errors.internal_error(f'unable to upgrade connection: container not found ("{container}")')
        return cls(command=command, container=container, **flags)

    def describe(self, kind: str) -> Json:
        """The options as an object, for admission."""
        flags = {name: getattr(self, name) for name in ("stdin", "stdout", "stderr", "tty")}
        command = {"command": list(self.command)} if self.command else {}
        return {"kind": kind, "apiVersion": "v1", **flags, "container": self.container, **command}


def check_upgrade(request: web.Request) -> None:
    """Raises BadRequest (400) unless the client requests a supported WebSocket protocol."""
    wanted = request.headers.get("Upgrade", "").lower()
    if wanted.startswith("spdy"):
        raise errors.bad_request(
            "exec and attach are served over WebSocket, not SPDY; use kubectl 1.31 or newer, "
            "and do not set KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false"
        )
    if wanted != "websocket":
        raise errors.bad_request("Upgrade request required: exec and attach are served over WebSocket")
    offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if not set(offered) & set(PROTOCOLS):
        raise errors.bad_request(f"the WebSocket protocol must be one of {', '.join(PROTOCOLS)}")


async def run_exec(request: web.Request, pod: Json, kubelet: Kubelet, options: PodExecOptions) -> web.StreamResponse:
    """Runs a command and streams its input and output until it ends or the client disconnects."""

    async def work(channels: _Channels) -> int:
        session = ExecSession(
            command=options.command,
            container=options.container,
            tty=options.tty,
            stdin=channels.stdin() if options.stdin else None,
            write=channels.write,
            sizes=channels.sizes() if options.tty else None,
        )
        return await kubelet.execute(pod, session)

    return await _serve(request, options, work)


async def run_attach(request: web.Request, pod: Json, kubelet: Kubelet, options: PodExecOptions) -> web.StreamResponse:
    """Streams the output of a container as stdout, from now until it ends or the client disconnects."""

    async def work(channels: _Channels) -> int:
        async for chunk in kubelet.logs(pod, PodLogOptions(options.container, follow=True, tail_lines=0)):
            await channels.write(_STDOUT, chunk)
        return 0

    return await _serve(request, options, work)


async def _serve(
    request: web.Request, options: PodExecOptions, work: Callable[[_Channels], Awaitable[int]]
) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0, compress=False)
    await socket.prepare(request)
    channels = _Channels(request, socket, options)
    command_task = asyncio.ensure_future(_command_status(work, channels))
    read_task = asyncio.ensure_future(channels.read())
    try:
        # Clients take the first message, even an empty one, as the sign that the command has started.
        await channels.send(_STDOUT if options.stdout else _STDERR if options.stderr else _ERROR, b"")
        await asyncio.wait({command_task, read_task}, return_when=asyncio.FIRST_COMPLETED)
        if command_task.done():
            await channels.send(_ERROR, msgspec.json.encode(command_task.result()))
            await socket.close()
    finally:
        for task in (command_task, read_task):
            task.cancel()
        await asyncio.gather(command_task, read_task, return_exceptions=True)
    return socket


async def _command_status(work: Callable[[_Channels], Awaitable[int]], channels: _Channels) -> Json:
    """Runs the command; returns the Status from which clients read its exit code."""
    try:
        code = await work(channels)
    except StatusError as error:
        return error.status()
    except Exception as error:
        _log.exception("exec failed")
        return errors.internal_error(f"error executing command in container: {error}").status()
    return exit_status(code)


def exit_status(code: int) -> Json:
    """The Status of an exit code."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


class _Channels:
    """The channels of one connection."""

    def __init__(self, request: web.Request, socket: web.WebSocketResponse, options: PodExecOptions) -> None:
        self._request = request
        self._socket = socket
        self._enabled = {_STDOUT: options.stdout, _STDERR: options.stderr and not options.tty}
        self._stdin: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._sizes: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self._stdin_enabled = options.stdin

    async def send(self, channel: int, data: bytes) -> None:
        """Sends a message; drops it if the connection is closed."""
        with suppress(ConnectionError):
            await self._socket.send_bytes(bytes((channel,)) + data)

    async def write(self, channel: int, data: bytes) -> None:
        """Sends output, if the client requested this stream."""
        if data and self._enabled.get(channel):
            await self.send(channel, data)

    async def stdin(self) -> AsyncIterator[bytes]:
        """The client's input, until it closes the channel or disconnects."""
        while (data := await self._stdin.get()) is not None:
            yield data

    async def sizes(self) -> AsyncIterator[tuple[int, int]]:
        """The sizes of the client's terminal window."""
        while True:
            yield await self._sizes.get()

    async def read(self) -> None:
        """Dispatches incoming messages; returns when the client disconnects."""
        async for message in self._socket:
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                continue
            data = message.data.encode() if message.type is WSMsgType.TEXT else message.data
            channel, payload = (data[0], data[1:]) if data else (_ERROR, b"")
            if channel == _STDIN and payload and self._stdin_enabled:
                await self._wait_for_stdin_buffer()
                self._stdin.put_nowait(payload)
            elif channel == _RESIZE:
                self._resize(payload)
            elif channel == _CLOSE and payload[:1] == bytes((_STDIN,)):
                self._stdin.put_nowait(None)
        self._stdin.put_nowait(None)

    async def _wait_for_stdin_buffer(self) -> None:
        """Applies backpressure while stdin is full; returns if the client disconnects."""
        while self._stdin.qsize() >= _MAX_UNREAD_STDIN:
            if self._request.transport is None or self._request.transport.is_closing():
                return
            await asyncio.sleep(0.02)

    def _resize(self, payload: bytes) -> None:
        with suppress(msgspec.DecodeError, msgspec.ValidationError):
            size = msgspec.json.decode(payload, type=_Size)
            self._sizes.put_nowait((size.Width, size.Height))


class _Size(msgspec.Struct):
    Width: int
    Height: int
