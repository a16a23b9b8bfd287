"""`check-service`: reports over HTTP and in its log where it runs and which GPUs it has."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING

import click

from gpu_scheduler.cli.cluster_options import InvalidInputError

if TYPE_CHECKING:
    from aiohttp import web

    from gpu_scheduler.cli.check_page import PodIdentity
    from gpu_scheduler.cli.nvidia_smi import NvidiaSmi

EXAMPLES = """
\b
Examples:
  gpu-scheduler check-service                       in a pod: on port 8080 of every address
  gpu-scheduler check-service --listen 127.0.0.1:0  on a free local port, which it prints
\b
Endpoints:
  GET /         a page; with "Accept: application/json" the same as /api
  GET /api      pod, namespace, node, CUDA_VISIBLE_DEVICES and GPUs as JSON
  GET /health   liveness; also /healthz, /readyz

It reads CUDA_VISIBLE_DEVICES, and POD_NAME, POD_NAMESPACE and NODE_NAME, which the downward API can set.
"""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept",
}


@click.command("check-service", epilog=EXAMPLES)
@click.option("--listen", metavar="HOST:PORT", default=":8080", show_default=True, help="Address for HTTP.")
def check_service(listen: str) -> None:
    """Report over HTTP where this pod runs and which GPUs it has."""
    from gpu_scheduler.cli.check_page import read_identity
    from gpu_scheduler.k8s.errors import ConfigError

    identity = read_identity(os.environ, socket.gethostname())
    try:
        asyncio.run(_serve_until_signalled(identity, listen))
    except ConfigError as error:
        raise InvalidInputError(f"--listen: {error}") from error


async def _serve_until_signalled(identity: PodIdentity, listen: str) -> None:
    from gpu_scheduler.cli.check_page import SERVICE, describe
    from gpu_scheduler.cli.nvidia_smi import NvidiaSmi
    from gpu_scheduler.k8s.health import Health

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    smi = NvidiaSmi()
    async with Health(SERVICE, routes=make_routes(identity, smi)).serving(listen) as port:
        for line in (*describe(identity), f"Listening on port {port}"):
            print(line, flush=True)
        await stop.wait()
        await smi.close()  # first: a request that waits for it would delay the shutdown


def make_routes(identity: PodIdentity, smi: NvidiaSmi) -> list[web.RouteDef]:
    """The routes of the page and of its JSON."""
    from aiohttp import web

    from gpu_scheduler.cli.check_page import as_json, draw_page

    async def answer_json(_request: web.Request) -> web.Response:
        return web.json_response(as_json(identity, await smi.read()), headers=HEADERS)

    async def answer_page(request: web.Request) -> web.Response:
        accepted = request.headers.get("Accept", "")
        if "application/json" in accepted and "text/html" not in accepted:
            return await answer_json(request)
        return web.Response(text=draw_page(identity, await smi.read()), content_type="text/html", headers=HEADERS)

    return [web.get("/", answer_page), web.get("/api", answer_json)]
