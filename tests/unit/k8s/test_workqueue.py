"""Whose turn it is, and how fast."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gpu_scheduler.k8s import rate_limiter as pace_module
from gpu_scheduler.k8s.rate_limiter import RateLimiter
from gpu_scheduler.k8s.workqueue import Priority, PriorityWorkQueue


def lanes(workers: int = 100) -> PriorityWorkQueue[str]:
    """Items whose first letter is their lock; what follows a slash says whose they are."""
    return PriorityWorkQueue(workers, lambda item: item[0], lambda item: item.partition("/")[2])


async def take(work: PriorityWorkQueue[str], count: int = 1) -> list[str]:
    found = []
    for _ in range(count):
        async with asyncio.timeout(60):
            taken = await work.take()
        work.release(taken)
        found.append(taken.item)
    return found


async def test_urgent_goes_first_and_the_others_take_turns() -> None:
    work = lanes()
    for item in ("p1", "p2", "p3"):
        work.add(item, Priority.NORMAL)
    for item in ("b1", "b2"):
        work.add(item, Priority.BACKGROUND)
    work.add("u", Priority.URGENT)
    found = await take(work, 6)
    assert found[0] == "u"
    assert found[1:] == ["b1", "p1", "b2", "p2", "p3"]


async def test_item_waits_once_and_in_the_better_lane() -> None:
    work = lanes()
    work.add("a", Priority.NORMAL)
    work.add("b", Priority.NORMAL)
    work.add("b", Priority.URGENT)
    work.add("b", Priority.NORMAL)
    assert await take(work, 2) == ["b", "a"]
    assert "a" not in work
    assert "b" not in work


async def test_items_with_one_lock_are_taken_one_after_the_other() -> None:
    work = lanes()
    work.add("a1", Priority.NORMAL)
    work.add("a2", Priority.NORMAL)
    work.add("b", Priority.NORMAL)
    first = await work.take()
    assert await take(work) == ["b"]
    waiting = asyncio.create_task(work.take())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    work.release(first)
    assert (await waiting).item == "a2"


async def test_what_hangs_of_one_owner_leaves_workers_to_others_in_every_lane() -> None:
    work = lanes(workers=4)
    for item in ("a/slow", "b/slow", "c/slow"):
        work.add(item, Priority.URGENT)
    hanging = [await work.take(), await work.take()]
    work.add("d/fine", Priority.NORMAL)
    assert await take(work) == ["d/fine"]
    waiting = asyncio.create_task(work.take())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    work.release(hanging[0])
    assert (await waiting).item == "c/slow"


async def test_item_added_while_it_is_worked_on_comes_again() -> None:
    work = lanes()
    work.add("a", Priority.NORMAL)
    first = await work.take()
    work.add("a", Priority.NORMAL)
    work.release(first)
    assert await take(work) == ["a"]


async def test_later_item_comes_at_the_earliest_of_its_times() -> None:
    work = lanes()
    work.add_in("a", 60.0, Priority.NORMAL)
    work.add_in("a", 0.01, Priority.URGENT)
    work.add_in("a", 30.0, Priority.NORMAL)
    assert await take(work) == ["a"]
    assert "a" not in work


async def test_item_that_was_dropped_never_comes() -> None:
    work = lanes()
    work.add_in("a", 0.01, Priority.NORMAL)
    work.add("b", Priority.NORMAL)
    work.add("c", Priority.NORMAL)
    work.drop("a")
    work.drop("b")
    assert await take(work) == ["c"]
    work.add_in("d", 0.01, Priority.NORMAL)
    work.clear()
    await asyncio.sleep(0.03)
    assert "d" not in work


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a pace has made others wait, by a clock that stands still."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(round(seconds, 6))

    monkeypatch.setattr(pace_module, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    monkeypatch.setattr(pace_module, "asyncio", SimpleNamespace(sleep=sleep))
    return found


async def test_pace_lets_a_burst_through_and_then_so_many_a_second(slept: list[float]) -> None:
    pace = RateLimiter(rate=50, burst=5)
    for _ in range(5):
        await pace.take()
    assert slept == []
    for _ in range(4):
        await pace.take()
    assert slept == [0.02, 0.04, 0.06, 0.08]


async def test_pace_is_slower_while_something_more_important_is_done_but_for_who_is_in_a_hurry(
    slept: list[float],
) -> None:
    pace = RateLimiter(rate=100, burst=10, busy=lambda: True)
    await pace.take()  # a tenth of the burst
    assert slept == []
    await pace.take()
    assert slept == [0.1]
    quick = RateLimiter(rate=100, burst=10, busy=lambda: True)
    for _ in range(10):
        await quick.take(hurry=True)
    assert slept == [0.1]
