"""The webhook put together: certificate, node names and server, from start to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from gpu_scheduler.base import certificates
from gpu_scheduler.base.certificates import Certificate
from gpu_scheduler.gangs.contract import WEBHOOK
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.webhook import reviews
from gpu_scheduler.webhook.metrics import Metrics
from gpu_scheduler.webhook.nodes import NodeNames
from gpu_scheduler.webhook.renewal import Place, Renewal
from gpu_scheduler.webhook.rotation import Policy, make_pair
from gpu_scheduler.webhook.rules import Rules
from gpu_scheduler.webhook.server import Server
from gpu_scheduler.webhook.serving_files import ServingFiles

_AFTER_ERROR = 5.0

_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


@dataclass(frozen=True, slots=True)
class Options:
    """How one webhook is set up. Its certificate is in `folder`, or else kept by itself in `place`."""

    rules: Rules
    policy: Policy
    place: Place
    folder: Path | None = None
    listen: str = ":8443"
    linger: float = 2.0


async def run_webhook(connection: Connection, options: Options, stop: asyncio.Event) -> None:
    """Serves until told to stop, and then finishes what it has begun. ConfigError: it cannot even start."""
    metrics = Metrics()
    # Until there is a certificate that somebody trusts, the server can at least be asked how it is.
    context = certificates.server_context(make_pair(options.policy.names, 86_400.0).pair)

    def show(pair: Certificate) -> None:
        certificates.load_certificate(context, pair)
        metrics.show(pair)

    async with Client(connection, in_flight=4, agent=WEBHOOK) as client:
        nodes = NodeNames(client)
        keep, ready = _choose_certificate(client, options, show)
        server = Server(
            lambda path, body: reviews.answer(path, body, options.rules, nodes.known()),
            metrics,
            ready,
            options.linger,
        )
        async with _kept_running(nodes.run, keep), server.serving(options.listen, context) as port:
            _log.info("serving", port=port, certificate=str(options.folder or options.place.secret))
            await stop.wait()
            _log.info("stopping")


def _choose_certificate(
    client: Client, options: Options, show: Callable[[Certificate], None]
) -> tuple[Callable[[], Awaitable[None]], Callable[[], bool]]:
    """Who looks after the certificate, and whether there is one that is trusted."""
    if options.folder is not None:
        files = ServingFiles(options.folder, show)
        files.look()
        return files.run, lambda: True
    renewal = Renewal(client, options.place, options.policy, show)
    return renewal.run, lambda: renewal.shown is not None


@asynccontextmanager
async def _kept_running(*works: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs works beside the block. An error that nobody expected is logged; reviews are answered all the same."""

    async def keep(work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                _log.exception("an unexpected error; going on")
            await asyncio.sleep(_AFTER_ERROR)

    tasks = [asyncio.create_task(keep(work)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
