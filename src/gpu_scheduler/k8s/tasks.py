"""Work that goes on until it is told to stop, or until a part of it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None], end: Callable[[], None]) -> None:
    """Runs work until it fails, which is raised, or is told to stop; `end` is called before it is cancelled."""
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


async def gather_or_end(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of them returns; one that fails ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
