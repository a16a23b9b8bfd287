"""Helpers for asyncio tasks."""

from __future__ import annotations

import asyncio

import pytest

from gpu_scheduler.k8s.tasks import gather_or_cancel


async def test_gather_returns_results_in_order() -> None:
    assert await gather_or_cancel(asyncio.sleep(0, number) for number in range(3)) == [0, 1, 2]


async def test_a_failure_cancels_the_others() -> None:
    went_on = asyncio.Event()

    async def fail() -> None:
        raise ValueError("no")

    async def go_on() -> None:
        await asyncio.sleep(0.01)
        went_on.set()

    with pytest.raises(ValueError, match="no"):
        await gather_or_cancel([fail(), go_on()])
    await asyncio.sleep(0.05)
    assert not went_on.is_set()
