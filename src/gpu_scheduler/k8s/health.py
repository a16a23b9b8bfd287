"""HTTP server for health, readiness and metrics: /health, /healthz, /readyz, /metrics."""

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
    """Splits ":8080", "127.0.0.1:8080" or "[::1]:8080" into host and port; no host means all addresses."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in bare and bare == host):
        raise ConfigError(
            f'address "{text}" must be a port with or without a host, such as ":8080" or "127.0.0.1:8080"'
        )
    return bare or None, int(port)


def describe_os_error(error: OSError) -> str:
    """Why listening on an address failed."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _always() -> bool:
    return True


def _nothing() -> bytes:
    return b""


class Health:
    """Health endpoints of a service, beside its own `routes`. The callables run for every request and must be fast."""

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
        """Builds the aiohttp application."""
        app = web.Application()
        app.add_routes(self._routes)
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answers a request; a server with other paths may call this for the rest."""
        if request.path not in PATHS or request.method not in ("GET", "HEAD"):
            return self._unknown_path_response(request)
        match request.path:
            case "/health":
                return self._health_response()
            case "/healthz":
                return _text_response("ok") if self._healthy() else _text_response("unhealthy", 503)
            case "/readyz":
                return _text_response("ok") if self._healthy() and self._ready() else _text_response("not ready", 503)
            case _:
                return web.Response(body=self._metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncIterator[int]:
        """Serves on an address while the block runs; yields the port, which matters if 0 was given."""
        host, port = split_address(address)
        runner = web.AppRunner(self.make_app(), access_log=None)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                raise ConfigError(f'cannot listen on "{address}": {describe_os_error(error)}') from error
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    def _health_response(self) -> web.Response:
        healthy = self._healthy()
        body = {"service": self._service, "status": "healthy" if healthy else "unhealthy"}
        return web.json_response(body, status=200 if healthy else 503, dumps=_dump)

    def _unknown_path_response(self, request: web.BaseRequest) -> web.Response:
        paths = (*(route.path for route in self._routes), *PATHS)
        body = {"error": f"nothing answers {request.method} here; there is GET {', '.join(paths)}"}
        return web.json_response(body, status=405 if request.path in paths else 404)


def _dump(body: object) -> str:
    """Encodes without spaces: clients that compare the body as text expect none."""
    return json.dumps(body, separators=(",", ":"))


def _text_response(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status)
