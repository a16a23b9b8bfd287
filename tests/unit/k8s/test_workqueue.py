"""The work queue: deduplication, priorities, locks, delays, retries, and fairness between owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpu_scheduler.k8s.workqueue import FairLimiter, FairQueue, Priority, WorkQueue


async def until(condition: Callable[[], object]) -> None:
    """Lets other tasks run until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - other tasks make it true
            await asyncio.sleep(0)


# -- fair queue and limiter


def pop_all(queue: FairQueue[str], limiter: FairLimiter) -> list[str]:
    """All items that are within the limits."""
    found = []
    while (popped := queue.pop(limiter)) is not None:
        found.append(popped[0])
    return found


def fair_queue(*items: str) -> FairQueue[str]:
    """Items whose first letter is their owner."""
    queue: FairQueue[str] = FairQueue()
    for item in items:
        queue.add(item, item[0])
    return queue


def test_owners_take_turns_and_each_is_served_in_its_order() -> None:
    queue = fair_queue("a1", "a2", "a3", "b1", "c1", "b2")
    assert pop_all(queue, FairLimiter(100)) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not queue


def test_an_owner_uses_at_most_as_many_as_it_leaves_free() -> None:
    limiter = FairLimiter(8)
    assert pop_all(fair_queue(*(f"a{number}" for number in range(9))), limiter) == ["a0", "a1", "a2", "a3"]
    assert pop_all(fair_queue("a9", *(f"b{number}" for number in range(9))), limiter) == ["b0", "b1"]
    assert pop_all(fair_queue("c0", "c1"), limiter) == ["c0"]
    limiter.release("a")
    limiter.release("a")
    assert pop_all(fair_queue("a9", "b9", "d0"), limiter) == ["a9", "d0"]


def test_a_limit_of_one_serves_owners_one_after_the_other() -> None:
    limiter = FairLimiter(1)
    queue = fair_queue("a1", "b1")
    assert pop_all(queue, limiter) == ["a1"]
    limiter.release("a")
    assert pop_all(queue, limiter) == ["b1"]


def test_fair_queue_holds_an_item_once_and_forgets_discarded_ones() -> None:
    queue = fair_queue("a1", "a2", "a1", "b1")
    queue.discard("b1")
    queue.discard("b1")
    assert ("a1" in queue, "b1" in queue, len(queue)) == (True, False, 2)
    assert pop_all(queue, FairLimiter(100)) == ["a1", "a2"]
    queue = fair_queue("a1", "b1")
    queue.clear()
    assert (len(queue), pop_all(queue, FairLimiter(100))) == (0, [])


def test_an_item_that_is_not_ready_lets_others_pass() -> None:
    queue = fair_queue("a1", "a2", "b1")
    limiter = FairLimiter(100)
    assert queue.pop(limiter, lambda item: item != "a1") == ("a2", "a")
    assert queue.pop(limiter, lambda item: item[0] != "a") == ("b1", "b")
    assert queue.pop(limiter, lambda item: item[0] != "a") is None
    assert pop_all(queue, limiter) == ["a1"]


# -- get and done


def work_queue(workers: int = 100) -> WorkQueue[str]:
    """Items whose first letter is their lock; their owner follows a slash."""
    return WorkQueue(workers, lambda item: item.partition("/")[2], lambda item: item[0])


async def get(queue: WorkQueue[str], count: int = 1) -> list[str]:
    """The next items, each processed before the next one."""
    found = []
    for _ in range(count):
        async with asyncio.timeout(60):
            item = await queue.get()
        queue.done(item)
        found.append(item)
    return found


async def test_urgent_items_go_first_and_the_others_alternate() -> None:
    queue = work_queue()
    for item in ("p1", "p2", "p3"):
        queue.add(item)
    for item in ("b1", "b2"):
        queue.add(item, Priority.BACKGROUND)
    queue.add("u", Priority.URGENT)
    found = await get(queue, 6)
    assert found[0] == "u"
    assert found[1:] == ["b1", "p1", "b2", "p2", "p3"]


async def test_an_item_waits_once_with_its_highest_priority() -> None:
    queue = work_queue()
    queue.add("a")
    queue.add("b")
    queue.add("b", Priority.URGENT)
    queue.add("b")
    assert len(queue) == 2
    assert await get(queue, 2) == ["b", "a"]
    assert ("a" in queue, "b" in queue, len(queue)) == (False, False, 0)


async def test_items_with_the_same_lock_are_processed_one_after_the_other() -> None:
    queue = work_queue()
    queue.add("a1")
    queue.add("a2")
    queue.add("b")
    first = await queue.get()
    assert await get(queue) == ["b"]
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    queue.done(first)
    assert await waiting == "a2"


async def test_an_owner_whose_items_hang_leaves_workers_to_others_at_every_priority() -> None:
    queue = work_queue(workers=4)
    for item in ("a/slow", "b/slow", "c/slow"):
        queue.add(item, Priority.URGENT)
    hanging = [await queue.get(), await queue.get()]
    queue.add("d/fine")
    assert await get(queue) == ["d/fine"]
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    queue.done(hanging[0])
    assert await waiting == "c/slow"


async def test_an_item_that_is_added_while_it_is_processed_is_processed_again_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue(4)
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.01)
    queue.done("a")
    assert await get(queue) == ["a"]


async def test_items_without_owners_can_use_all_workers_in_their_order() -> None:
    queue: WorkQueue[str] = WorkQueue(3)
    for item in "abcd":
        queue.add(item)
    assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]


# -- delays and retries


async def test_a_delayed_item_is_added_at_the_earliest_of_its_times() -> None:
    queue = work_queue()
    queue.add_after("a", 60.0)
    queue.add_after("a", 0.01, Priority.URGENT)
    queue.add_after("a", 30.0)
    assert await get(queue) == ["a"]
    assert "a" not in queue


async def test_adding_an_item_ends_its_delay() -> None:
    queue = work_queue()
    queue.add_after("a", 0.01)
    queue.add("a")
    assert await get(queue) == ["a"]
    await asyncio.sleep(0.03)
    assert "a" not in queue


async def test_a_discarded_item_is_not_processed() -> None:
    queue = work_queue()
    queue.add_after("a", 0.01)
    queue.add("b")
    queue.add("c")
    queue.discard("a")
    queue.discard("b")
    assert await get(queue) == ["c"]
    queue.add_after("d", 0.01)
    queue.clear()
    await asyncio.sleep(0.03)
    assert "d" not in queue


async def test_the_delay_of_a_failing_item_doubles_until_it_is_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue(1)
    loop, delays = asyncio.get_running_loop(), []

    def fail() -> float:
        queue.add_rate_limited("a")
        delay = queue._timers["a"].when() - loop.time()
        queue._cancel_timer("a")
        return delay

    delays = [fail() for _ in range(12)]
    assert delays[0] < 0.3 < delays[2] < delays[5] < delays[-1] <= 60
    queue.forget("a")
    assert fail() < 0.3


# -- run


@asynccontextmanager
async def running(queue: WorkQueue[str], process: Callable[[str], Awaitable[None]]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(queue.run(process))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_item_is_processed_by_one_worker_at_a_time() -> None:
    queue: WorkQueue[str] = WorkQueue(3, lambda item: item[0])
    gate, active, most, processed = asyncio.Event(), 0, 0, 0

    async def process(item: str) -> None:
        nonlocal active, most, processed
        active += 1
        processed += 1
        most = max(most, active)
        await gate.wait()
        active -= 1

    async with running(queue, process):
        queue.add("a")
        await until(lambda: processed == 1)
        for _ in range(5):
            queue.add("a")
        await asyncio.sleep(0)
        gate.set()
        await until(lambda: processed == 2 and active == 0)
    assert most == 1


async def test_slow_items_of_one_owner_do_not_delay_those_of_others() -> None:
    queue: WorkQueue[str] = WorkQueue(4, lambda item: item[0])
    gate = asyncio.Event()
    begun: list[str] = []
    done: list[str] = []

    async def process(item: str) -> None:
        begun.append(item)
        if item[0] == "s":
            await gate.wait()
        done.append(item)

    async with running(queue, process):
        queue.add("s0")
        queue.add("s1")
        await until(lambda: len(begun) == 2)
        for item in ("s2", "s3", "a", "b"):
            queue.add(item)
        await until(lambda: done == ["a", "b"])
        assert begun == ["s0", "s1", "a", "b"]
        gate.set()
        await until(lambda: sorted(done[2:]) == ["s0", "s1", "s2", "s3"])


async def test_an_item_whose_worker_is_cancelled_before_it_starts_waits_again() -> None:
    queue: WorkQueue[str] = WorkQueue(1)
    processed: list[str] = []

    async def process(item: str) -> None:
        processed.append(item)
        raise ValueError(item)

    queue.add("a")
    queue.add("b")
    with pytest.raises(ExceptionGroup):
        await queue.run(process)
    assert (processed, "b" in queue) == (["a"], True)
    assert await get(queue) == ["b"]
