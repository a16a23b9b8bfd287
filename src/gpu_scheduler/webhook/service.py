"""Runs the webhook: certificate, node cache, queue lister and server, from start to stop."""

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
from gpu_scheduler.webhook.certificate_files import CertificateFiles
from gpu_scheduler.webhook.metrics import WebhookMetrics
from gpu_scheduler.webhook.nodes import NodeCache
from gpu_scheduler.webhook.policy import AdmissionPolicy
from gpu_scheduler.webhook.queues.listing import QueueLister
from gpu_scheduler.webhook.renewal import CertificateLocation, CertificateRenewal
from gpu_scheduler.webhook.reviews import AdmissionResponse, respond
from gpu_scheduler.webhook.rotation import RotationPolicy, make_pair
from gpu_scheduler.webhook.server import ReviewPath, WebhookServer

_RESTART_DELAY = 5.0

_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """The setup of one webhook. It reads its certificate from `folder`, else it renews its own in `location`."""

    admission: AdmissionPolicy
    rotation: RotationPolicy
    location: CertificateLocation
    folder: Path | None = None
    listen: str = ":8443"
    linger: float = 2.0


async def run_webhook(connection: Connection, options: WebhookOptions, stop: asyncio.Event) -> None:
    """Serves until `stop` is set, then finishes the reviews in progress; raises ConfigError when it cannot start."""
    metrics = WebhookMetrics()
    # A temporary certificate, for health checks until the configurations trust the real one.
    context = certificates.server_context(make_pair(options.rotation.names, 86_400.0).pair)

    def serve(pair: Certificate) -> None:
        certificates.load_certificate(context, pair)
        metrics.set_certificate(pair)

    async with Client(connection, in_flight=4, agent=WEBHOOK) as client:
        nodes, queues = NodeCache(client), QueueLister(client)
        keep_certificate, ready = _certificate_source(client, options, serve)

        async def review(path: ReviewPath, body: bytes) -> AdmissionResponse:
            tree = await queues.tree_for(body)
            return respond(path, body, options.admission, nodes.known(), tree)

        server = WebhookServer(review, metrics, ready, options.linger)
        async with _background_tasks(nodes.run, keep_certificate), server.serving(options.listen, context) as port:
            _log.info("serving", port=port, certificate=str(options.folder or options.location.secret))
            await stop.wait()
            _log.info("stopping")


def _certificate_source(
    client: Client, options: WebhookOptions, serve: Callable[[Certificate], None]
) -> tuple[Callable[[], Awaitable[None]], Callable[[], bool]]:
    """The task that keeps the certificate current, and the check whether a trusted one is served."""
    if options.folder is not None:
        files = CertificateFiles(options.folder, serve)
        files.reload()
        return files.run, lambda: True
    renewal = CertificateRenewal(client, options.location, options.rotation, serve)
    return renewal.run, lambda: renewal.served is not None


@asynccontextmanager
async def _background_tasks(*runs: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs tasks while the block runs. An unexpected error is logged and the task restarted."""

    async def keep_running(run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
            except Exception:
                _log.exception("unexpected error; restarting the task")
            await asyncio.sleep(_RESTART_DELAY)

    tasks = [asyncio.create_task(keep_running(run)) for run in runs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
