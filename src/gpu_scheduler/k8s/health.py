"""The small HTTP server that says whether a service is well: /health, /healthz, /readyz, /metrics."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gpu_scheduler.k8s.errors import ConfigError

PATHS = ("/health", "/healthz", "/readyz", "/metrics")


def split_address(text: str) -> tuple[str | None, int]:
    """Host and port of ":8080", "127.0.0.1:8080" or "[::1]:8080"; no host means every address of the machine."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in bare and bare == host):
        raise ConfigError(
            f'address "{text}" must be a port with or without a host, such as ":8080" or "127.0.0.1:8080"'
        )
    return bare or None, int(port)


def describe_os_error(error: OSError) -> str:
    """Why an address cannot be listened on."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _always() -> bool:
    return True


def _nothing() -> bytes:
    return b""


class Health:
    """What one service says about itself, beside what it serves (`routes`). The callables are asked for every request,
    so they should be quick."""

    def __init__(
        self,
        service: str,
        *,
        healthy: Callable[[], bool] = _always,
        ready: Callable[[], bool] = _always,
        metrics: Callable[[], bytes] = _nothing,
        routes: Sequence[web.RouteDef] = (),
    ) -> None:
        self._service = service
        self._healthy = healthy
        self._ready = ready
        self._metrics = metrics
        self._routes = routes

    def make_app(self) -> web.Application:
        """The server's routes."""
        app = web.Application()
        app.add_routes(self._routes)
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The answer to any request, also for a server that has other paths besides."""
        if request.path not in PATHS or request.method not in ("GET", "HEAD"):
            return self._answer_unknown(request)
        match request.path:
            case "/health":
                return self._answer_health()
            case "/healthz":
                return _say("ok") if self._healthy() else _say("unhealthy", 503)
            case "/readyz":
                return _say("ok") if self._healthy() and self._ready() else _say("not ready", 503)
            case _:
                return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncIterator[int]:
        """Serves at an address while the block runs; yields the port, which matters where 0 was asked for."""
        host, port = split_address(address)
        runner = web.AppRunner(self.make_app(), access_log=None)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                raise ConfigError(f'address "{address}" cannot be listened on: {describe_os_error(error)}') from error
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    def _answer_health(self) -> web.Response:
        well = self._healthy()
        body = {"service": self._service, "status": "healthy" if well else "unhealthy"}
        return web.json_response(body, status=200 if well else 503, dumps=_dump)

    def _answer_unknown(self, request: web.BaseRequest) -> web.Response:
        paths = (*(route.path for route in self._routes), *PATHS)
        body = {"error": f"nothing answers {request.method} here; there is GET {', '.join(paths)}"}
        return web.json_response(body, status=405 if request.path in paths else 404)


def _dump(body: object) -> str:
    """Without blanks: those who compare the body as text expect none."""
    return json.dumps(body, separators=(",", ":"))


def _say(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status)
