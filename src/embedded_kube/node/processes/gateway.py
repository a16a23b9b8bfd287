"""Gateway from the pod network to the machine: forwards to the API server, and is an HTTPS proxy to everything else.

It is a separate process on the machine's network. It serves listeners that were created inside the pod network.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from embedded_kube.node.processes.message_socket import MessageSocket

_CHUNK_SIZE = 1 << 16
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def run(control: socket.socket, api: tuple[str, int]) -> None:
    """Serves the listeners that arrive over `control` ("pod": add one, "gone": close one) until it is closed."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        asyncio.run(_serve(MessageSocket(control), api))


async def _serve(control: MessageSocket, api: tuple[str, int]) -> None:
    servers: dict[str, asyncio.Server] = {}
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(control.fileno(), arrived.set)

    async def serve_api(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _relay(reader, writer, await asyncio.open_connection(*api))

    while True:
        await arrived.wait()
        arrived.clear()
        for message, files in control.receive():
            if "gone" in message:
                server = servers.pop(message["gone"], None)
                if server is not None:
                    server.close()
                continue
            name = message["pod"]
            serve = _guarded(serve_api if name else _serve_proxy)
            servers[name] = await asyncio.start_server(serve, sock=socket.socket(fileno=files[0]))


def _guarded(serve: Serve) -> Serve:
    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            writer.close()

    return guarded


async def _serve_proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serves one CONNECT request, through the machine's own proxy if it uses one."""
    request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    method, target, _ = request.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    if method != "CONNECT":
        writer.write(b"HTTP/1.1 405 Only CONNECT is supported\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        return
    host, _, port = target.rpartition(":")
    upstream = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or ""
    try:
        if upstream:
            far = await _open_upstream(upstream, request)
        else:
            far = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    except (OSError, ValueError) as error:
        text = str(error).replace("\r", " ").replace("\n", " ")
        writer.write(f"HTTP/1.1 502 {text}\r\nContent-Length: 0\r\n\r\n".encode("latin-1", "replace"))
        await writer.drain()
        return
    await _relay(reader, writer, far)


async def _open_upstream(proxy: str, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    place = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    reader, writer = await asyncio.open_connection(place.hostname, place.port or 3128)
    if place.username:
        secret = base64.b64encode(f"{place.username}:{place.password or ''}".encode())
        request = request[:-2] + b"Proxy-Authorization: Basic " + secret + b"\r\n\r\n"
    writer.write(request)
    return reader, writer


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Copies in both directions until both sides are closed."""
    far_reader, far_writer = far
    try:
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
    finally:
        far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_SIZE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
