"""One event loop for a whole world: virtual time, seeded interleaving of processes, no threads and no I/O."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")

MAX_STEPS_AT_ONE_TIME = 100_000
"""A program that takes more steps than this while no time passes is in a busy loop."""

MAX_CANCELS = 100
"""A task that survives more cancellations than this never ends."""


class StuckError(Exception):
    """A program is in a busy loop, cannot be cancelled, or nothing will ever happen again."""


class Process:
    """One program of the world: its queue of steps, its clocks, and whether it may run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.paused = False
        self.dead = False
        self.clock_offset = 0.0
        """Offset of its wall clock, in seconds."""
        self.rate = 1.0
        """Rate of its clocks; 1.0 is exact."""
        self.steps_left = -1
        """Call `then` after this many steps; never if negative."""
        self.writes_left = -1
        """Start to count steps after this many further writes."""
        self.then: Callable[[], None] = lambda: None
        self._steps_after = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)

    def set_trap(self, then: Callable[[], None], steps: int, writes: int = -1) -> None:
        """Calls `then` after this many steps; with `writes`, this many steps after that many further writes."""
        self.then = then
        self.writes_left, self._steps_after = writes, steps
        self.steps_left = steps if writes < 0 else -1

    def count_write(self) -> None:
        """Counts a write that the process sends."""
        if self.writes_left == 0:
            self.steps_left = self._steps_after
        self.writes_left = max(-1, self.writes_left - 1)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Holds a task until it is done: garbage collection would close a lost coroutine and run its `finally`."""
        self._tasks.append(task)
        if len(self._tasks) > self._prune_at:
            self._tasks = self.tasks_left()
            self._prune_at = 64 + 2 * len(self._tasks)

    def tasks_left(self) -> list[asyncio.Task[Any]]:
        """Its unfinished tasks."""
        return [task for task in self._tasks if not task.done()]

    def kill(self) -> None:
        """Ends it as SIGKILL does: none of its code runs again, not even `finally`."""
        self.dead = True


_current: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class NumberedTask(asyncio.Task[T]):
    """A task whose order in a set does not depend on its address in memory."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **more: Any) -> None:
        self._number = next(NumberedTask._numbers)
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number


class _Step(asyncio.Handle):
    """One step of a process; cheaper than asyncio's own handle, which supports debug mode."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: WorldLoop, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _NoSocket:
    """Stands for a listening socket; no connection arrives."""

    def getsockname(self) -> tuple[str, int]:
        """A placeholder address."""
        return "127.0.0.1", 1


class _NoServer:
    sockets = (_NoSocket(),)

    def close(self) -> None:
        """Does nothing: no socket is open."""

    async def wait_closed(self) -> None:
        """Does nothing: no socket is open."""


class WorldLoop(asyncio.BaseEventLoop):
    """Runs the steps of every process, each process in its own order, and advances the clock when all wait."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        NumberedTask._numbers = itertools.count()
        self.now = 0.0
        self.after_step: Callable[[], None] = lambda: None
        self._rng = random.Random(f"{seed} turns")
        self._timers: list[tuple[float, int, Process, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._steps_now = 0
        self.root = Process("world")
        self.processes = [self.root]

    def add(self, name: str) -> Process:
        """Adds a process without tasks."""
        process = Process(name)
        self.processes.append(process)
        return process

    def start(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a coroutine as a task of a process."""
        return process.context.run(self.create_task, work)

    # -- the interface of asyncio's event loops

    def time(self) -> float:
        """Seconds by the clock of the process that asks."""
        return self.now * self.current_process().rate

    def current_process(self) -> Process:
        """The process whose code runs now."""
        return _current.get(self.root)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Queues a step of its process."""
        handle = _Step(callback, args, self, context)
        handle._context.get(_current, self.root).ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Queues a step of its process for when the clock of that process shows this time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        process: Process = timer._context.get(_current, self.root)  # type: ignore[attr-defined]
        heappush(self._timers, (when / process.rate, next(self._numbers), process, timer))
        return timer

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: object = None, context: Any = None
    ) -> asyncio.Task[T]:
        """Creates a task of the current process."""
        task: asyncio.Task[T] = NumberedTask(coro, loop=self, name=name or "task", context=context)
        self.current_process().add_task(task)
        return task

    async def create_server(self, *_args: Any, **_more: Any) -> Any:
        """Returns a server that listens on nothing."""
        return _NoServer()

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap until its time has come."""

    def _process_events(self, _events: Any) -> None:
        """Without a selector there are no events."""

    def _write_to_self(self) -> None:
        """Without a selector nothing has to be woken."""

    # -- scheduling of steps

    def _run_once(self) -> None:
        """Runs steps until the loop is stopped; asyncio does nothing between two calls but check for that."""
        timers, random_float = self._timers, self._rng.random
        while not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][0] <= self.now:
                _, _, process, timer = heappop(timers)
                if not timer._cancelled and not process.dead:
                    process.ready.append(timer)
            waiting = [found for found in self.processes if found.ready and not (found.paused or found.dead)]
            if waiting:
                self._step(waiting[0] if len(waiting) == 1 else waiting[int(random_float() * len(waiting))])
            elif timers:
                self.now = max(self.now, timers[0][0])
                self._steps_now = 0
            else:
                raise StuckError("every process waits, and no timer is set")

    def _step(self, process: Process) -> None:
        if process.steps_left == 0:
            process.steps_left = -1
            process.then()
            return
        process.steps_left -= process.steps_left > 0
        handle = process.ready.popleft()
        if not handle._cancelled:
            self._steps_now += 1
            if self._steps_now > MAX_STEPS_AT_ONE_TIME:
                raise StuckError(f"{process.name} is in a busy loop")
            handle._run()
            self.after_step()

    def end(self) -> None:
        """Cancels the remaining tasks of every process, and closes the loop. Nothing may have an effect any more."""
        self.after_step = lambda: None
        self._timers.clear()
        left = []
        for process in self.processes:
            process.dead = process.paused = False
            process.steps_left = process.writes_left = -1
            left += process.tasks_left()
        self._steps_now = 0
        # Repeated, because a task that is cancelled while it handles an error may swallow the cancellation.
        for _ in range(MAX_CANCELS):
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.wait(left, timeout=1.0))
            left = [task for task in left if not task.done()]
        self.close()
        if left:
            raise StuckError(f"{len(left)} tasks survive every cancellation")
