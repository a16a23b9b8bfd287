"""Whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gpu_scheduler.operator.turns import WorkQueue


async def until(look: Callable[[], object]) -> None:
    """Lets others work until something is so."""
    async with asyncio.timeout(60):
        while not look():  # noqa: ASYNC110 - what is waited for is the work of others
            await asyncio.sleep(0)


def make_turns(workers: int) -> WorkQueue[str]:
    """Keys whose first letter says whose they are."""
    return WorkQueue(workers, lambda key: key[0])


@asynccontextmanager
async def at_work(turns: WorkQueue[str], take: Callable[[str], Awaitable[None]]) -> AsyncIterator[None]:
    worker = asyncio.ensure_future(turns.run(take))
    yield
    turns.close()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_a_key_is_worked_on_by_one_at_a_time_and_gets_another_turn() -> None:
    turns = make_turns(3)
    gate, busy, most, taken = asyncio.Event(), 0, 0, 0

    async def take(key: str) -> None:
        nonlocal busy, most, taken
        busy += 1
        taken += 1
        most = max(most, busy)
        await gate.wait()
        busy -= 1

    async with at_work(turns, take):
        turns.add("a")
        await until(lambda: taken == 1)
        for _ in range(5):
            turns.add("a")
        await asyncio.sleep(0)
        gate.set()
        await until(lambda: taken == 2 and busy == 0)
    assert most == 1


async def test_others_wait_neither_for_a_key_that_takes_long_nor_for_an_owner_whose_keys_all_do() -> None:
    turns = make_turns(4)
    gate = asyncio.Event()
    begun: list[str] = []
    done: list[str] = []

    async def take(key: str) -> None:
        begun.append(key)
        if key[0] == "s":
            await gate.wait()
        done.append(key)

    async with at_work(turns, take):
        turns.add("s0")
        turns.add("s1")
        await until(lambda: len(begun) == 2)
        for key in ("s2", "s3", "a", "b"):
            turns.add(key)
        await until(lambda: done == ["a", "b"])
        assert begun == ["s0", "s1", "a", "b"]
        gate.set()
        await until(lambda: sorted(done[2:]) == ["s0", "s1", "s2", "s3"])


async def test_a_key_comes_when_its_time_has_come_and_the_last_word_counts() -> None:
    turns = make_turns(1)
    done: list[str] = []

    async def take(key: str) -> None:
        done.append(key)

    async with at_work(turns, take):
        turns.add_after("never", 0)
        turns.add_after("never", 3600)
        turns.add_after("forgotten", 0)
        turns.forget("forgotten")
        turns.add_after("soon", 0)
        await until(lambda: done)
        assert done == ["soon"]


async def test_a_key_that_fails_comes_later_each_time() -> None:
    turns = make_turns(1)
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
