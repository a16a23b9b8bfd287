"""Queue status: the use of every queue, written to its object when it changed."""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.gangs.queues import QueueRegistry, QueueUse
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError
from gpu_scheduler.scheduler.settings import Settings

STATUS_PERIOD = 5.0
"""Seconds between two updates of all queues."""

_log = structlog.get_logger(__name__)

_COLUMNS = {
    Phase.RESERVED: "inqueue",
    Phase.COMMITTING: "running",
    Phase.BINDING: "running",
    Phase.RUNNING: "running",
    Phase.HOLDING: "running",
    Phase.RESTARTING: "running",
    Phase.DEGRADED: "running",
    Phase.FINISHED: "completed",
    Phase.FAILED: "completed",
}


def count_use(engine: Engine, system: str = "") -> dict[str, QueueUse]:
    """The use of every queue with its children. Pods of the namespace `system` are our own and count as no gangs."""
    found = {}
    for report in engine.queues(hidden=system):
        columns: Counter[str] = Counter()
        for phase, number in report.phases.items():
            columns[_COLUMNS.get(phase, "pending")] += number
        found[report.name] = QueueUse(**columns, allocated=dict(report.used))
    return found


async def report_queues(client: Client, book: QueueRegistry, engine: Engine, settings: Settings) -> None:
    """Keeps the status of all queues up to date until it is cancelled."""
    while True:
        await asyncio.sleep(STATUS_PERIOD)
        uses = count_use(engine, settings.namespace)
        for name in book.names():
            for patch in book.encode(name, uses.get(name, QueueUse()), settings.core.gpu_resources):
                try:
                    await client.patch(patch.resource, patch.name, patch.body, patch.namespace, patch.subresource)
                except ApiError as error:
                    _log.info("queue status write failed", queue=name or "default", error=error.message)
