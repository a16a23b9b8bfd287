"""The HTTPS server that tests use."""

from __future__ import annotations

import asyncio
import socket
import ssl

from aiohttp import web

from gpu_scheduler.base.certificates import issue, make_authority, server_context
from tests.tls_server import serving


async def test_all_connections_close_if_the_client_does_not_close_its_own() -> None:
    authority = make_authority()
    sockets = []

    async def answer(request: web.Request) -> web.Response:
        sockets.append(request.get_extra_info("socket"))
        return web.Response()

    def ask(port: int) -> ssl.SSLSocket:
        trust = ssl.create_default_context(cadata=authority.certificate.decode())
        client = trust.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        return client

    app = web.Application()
    app.router.add_get("/", answer)
    async with serving(app, server_context(issue(authority, "server"))) as port:
        client = await asyncio.to_thread(ask, port)
    with client:
        (left,) = sockets
        assert left.fileno() == -1
