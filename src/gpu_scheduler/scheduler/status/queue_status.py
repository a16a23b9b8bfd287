"""What queues say about their use: counted from the engine's state every few seconds, written when it changed."""

from __future__ import annotations

import asyncio

import structlog

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.state import State
from gpu_scheduler.gangs.queues import QueueBook, QueueUse
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError

EVERY = 5.0

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


def count_use(state: State, system: str = "") -> dict[str, QueueUse]:
    """The use of every queue that gangs name. Pods of the namespace `system` are our own and count as no gangs."""
    counts: dict[str, dict[str, int]] = {}
    for record in state.records.values():
        column = counts.setdefault(state.queue_of(record), {})
        if record.key.namespace == system:
            continue
        name = _COLUMNS.get(record.phase, "pending")
        column[name] = column.get(name, 0) + 1
    return {name: QueueUse(**columns, allocated=dict(state.quota.used(name))) for name, columns in counts.items()}


async def report_queues(client: Client, book: QueueBook, state: State, system: str) -> None:
    """Keeps the status of all queues up to date, for ever."""
    while True:
        await asyncio.sleep(EVERY)
        uses = count_use(state, system)
        for name in book.names():
            for patch in book.encode(name, uses.get(name, QueueUse()), state.config.gpu_resources):
                try:
                    await client.patch(patch.resource, patch.name, patch.body, patch.namespace, patch.subresource)
                except ApiError as error:
                    _log.info("a queue's status was not written", queue=name or "default", error=error.message)
