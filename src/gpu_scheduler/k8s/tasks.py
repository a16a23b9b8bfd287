"""Helpers for asyncio tasks: run until stopped, gather or cancel, retry forever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

import structlog

from gpu_scheduler.base import backoff
from gpu_scheduler.k8s.errors import ApiError

MAX_RETRY_DELAY = 30.0
"""The longest delay between two attempts of `retry_forever`, in seconds."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None], end: Callable[[], None]) -> None:
    """Runs work until `stop` is set or it ends; calls `end`, then cancels it. Raises what the work raises."""
    running = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        end()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if not running.cancelled():
        running.result()


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines concurrently and returns their results; a failure cancels the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def retry_forever(request: Callable[[], Awaitable[T]]) -> T:
    """Repeats a request with exponential backoff until the API server accepts it; returns its result."""
    failures = 0
    while True:
        try:
            return await request()
        except ApiError as error:
            _log.warning("request failed, retrying", error=error.message)
            await asyncio.sleep(max(backoff.exponential(failures, MAX_RETRY_DELAY), error.retry_after or 0.0))
            failures += 1
