"""Whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpu_scheduler.operator.turns import Turns


async def until(look: Callable[[], object]) -> None:
    """Lets others work until something is so."""
    async with asyncio.timeout(60):
        while not look():  # noqa: ASYNC110 - what is waited for is the work of others
            await asyncio.sleep(0)


async def test_a_key_is_worked_on_by_one_at_a_time_and_gets_another_turn() -> None:
    turns: Turns[str] = Turns()
    gate, busy, most, taken = asyncio.Event(), 0, 0, 0

    async def take(key: str) -> None:
        nonlocal busy, most, taken
        busy += 1
        taken += 1
        most = max(most, busy)
        await gate.wait()
        busy -= 1

    workers = [asyncio.ensure_future(turns.work(take)) for _ in range(3)]
    turns.add("a")
    await until(lambda: taken == 1)
    for _ in range(5):
        turns.add("a")
    await asyncio.sleep(0)
    gate.set()
    await until(lambda: taken == 2 and busy == 0)
    assert most == 1
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def test_others_do_not_wait_for_a_key_that_takes_long() -> None:
    turns: Turns[str] = Turns()
    gate, done = asyncio.Event(), []

    async def take(key: str) -> None:
        if key == "slow":
            await gate.wait()
        done.append(key)

    workers = [asyncio.ensure_future(turns.work(take)) for _ in range(2)]
    for key in ("slow", "a", "b"):
        turns.add(key)
    await until(lambda: done == ["a", "b"])
    gate.set()
    await until(lambda: done[-1] == "slow")
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


async def test_a_key_comes_when_its_time_has_come_and_the_last_word_counts() -> None:
    turns: Turns[str] = Turns()
    done: list[str] = []

    async def take(key: str) -> None:
        done.append(key)

    worker = asyncio.ensure_future(turns.work(take))
    turns.add_after("never", 0)
    turns.add_after("never", 3600)
    turns.add_after("forgotten", 0)
    turns.forget("forgotten")
    turns.add_after("soon", 0)
    await until(lambda: done)
    assert done == ["soon"]
    turns.close()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_a_key_that_fails_comes_later_each_time() -> None:
    turns: Turns[str] = Turns()
    loop, waits = asyncio.get_running_loop(), []

    def wait() -> float:
        timer = turns._timers["a"]
        return timer.when() - loop.time()

    for _ in range(12):
        turns.put_off("a")
        waits.append(wait())
    assert waits[0] < 0.3 < waits[2] < waits[5] < waits[-1] <= 60
    turns.went_well("a")
    turns.put_off("a")
    assert wait() < 0.3
    turns.close()
