"""One event loop for a whole world: virtual time, processes that take turns by a seed, no threads and no I/O."""

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

BUSY = 100_000
"""So many steps while no time passes are a program that turns in circles."""

STUBBORN = 100
"""Who has been cancelled so often and goes on never ends."""


class CircleError(Exception):
    """A program works without end and without waiting for anything."""


class Process:
    """One program of the world: its steps in order, its clocks, and whether it may run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.paused = False
        self.dead = False
        self.jump = 0.0
        """How far the wall clock is off, in seconds."""
        self.rate = 1.0
        """How fast its clocks run."""
        self.steps_left = -1
        """After so many steps `then` is done to it; never, if below 0."""
        self.writes_left = -1
        """With its next write but so many, the steps begin to be counted."""
        self.then: Callable[[], None] = lambda: None
        self._steps_after = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._many = 64
        self.context = contextvars.copy_context()
        self.context.run(_current.set, self)

    def set_trap(self, then: Callable[[], None], steps: int, writes: int = -1) -> None:
        """Will do something to it after so many steps; with `writes`, so many steps after it has sent a write."""
        self.then = then
        self.writes_left, self._steps_after = writes, steps
        self.steps_left = steps if writes < 0 else -1

    def note_write(self) -> None:
        """It sends a write."""
        if self.writes_left == 0:
            self.steps_left = self._steps_after
        self.writes_left = max(-1, self.writes_left - 1)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Keeps a task until it is done: a coroutine that is forgotten is closed, and its `finally` would run."""
        self._tasks.append(task)
        if len(self._tasks) > self._many:
            self._tasks = self.tasks_left()
            self._many = 64 + 2 * len(self._tasks)

    def tasks_left(self) -> list[asyncio.Task[Any]]:
        """What it has begun and not finished."""
        return [task for task in self._tasks if not task.done()]

    def kill(self) -> None:
        """Ends it as SIGKILL does: nothing of it runs any more, no `finally`, no farewell."""
        self.dead = True


_current: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class NumberedTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on where it lies in memory."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **more: Any) -> None:
        self._number = next(NumberedTask._numbers)
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number


class _Step(asyncio.Handle):
    """What a process has to do next. asyncio's own asks twice for things that never change here."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: WorldLoop, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled = False
        self._repr = self._source_traceback = None


class _NoSocket:
    """What a server listens on: nothing, for nobody outside this world asks."""

    def getsockname(self) -> tuple[str, int]:
        """An address of no meaning."""
        return "127.0.0.1", 1


class _NoServer:
    sockets = (_NoSocket(),)

    def close(self) -> None:
        """Nothing is open."""

    async def wait_closed(self) -> None:
        """Nothing is open."""


class WorldLoop(asyncio.BaseEventLoop):
    """Runs the steps of every process, each process in its own order, and lets time pass when all wait."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        NumberedTask._numbers = itertools.count()
        self.now = 0.0
        self.after_step: Callable[[], None] = lambda: None
        self._turns = random.Random(f"{seed} turns")
        self._timers: list[tuple[float, int, Process, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._idle = 0
        self.outside = Process("world")
        self.processes = [self.outside]

    def add(self, name: str) -> Process:
        """A new process, which has nothing to do yet."""
        process = Process(name)
        self.processes.append(process)
        return process

    def start(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins a coroutine as a part of a process."""
        return process.context.run(self.create_task, work)

    # -- what asyncio asks of a loop

    def time(self) -> float:
        """Seconds by the clock of the process that asks."""
        return self.now * self.here().rate

    def here(self) -> Process:
        """The process whose code runs."""
        return _current.get(self.outside)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Will run in its process, after what that has to do already."""
        handle = _Step(callback, args, self, context)
        handle._context.get(_current, self.outside).ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Will run in its process, once its clock shows that time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        process: Process = timer._context.get(_current, self.outside)  # type: ignore[attr-defined]
        heappush(self._timers, (when / process.rate, next(self._numbers), process, timer))
        return timer

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: object = None, context: Any = None
    ) -> asyncio.Task[T]:
        """A task of the process that asks."""
        task: asyncio.Task[T] = NumberedTask(coro, loop=self, name=name or "task", context=context)
        self.here().add_task(task)
        return task

    async def create_server(self, *_args: Any, **_more: Any) -> Any:
        """Nobody outside this world asks, so nothing listens."""
        return _NoServer()

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """It stays where it is until its time has come."""

    def _process_events(self, _events: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    # -- turns

    def _run_once(self) -> None:
        """WorkQueue until somebody says stop: asyncio would do no more between two turns than ask whether to."""
        timers, choose = self._timers, self._turns.random
        while not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][0] <= self.now:
                _, _, process, timer = heappop(timers)
                if not timer._cancelled and not process.dead:
                    process.ready.append(timer)
            waiting = [found for found in self.processes if found.ready and not (found.paused or found.dead)]
            if waiting:
                self._step(waiting[0] if len(waiting) == 1 else waiting[int(choose() * len(waiting))])
            elif timers:
                self.now = max(self.now, timers[0][0])
                self._idle = 0
            else:
                raise CircleError("everything waits, and nothing will ever happen")

    def _step(self, process: Process) -> None:
        if process.steps_left == 0:
            process.steps_left = -1
            process.then()
            return
        process.steps_left -= process.steps_left > 0
        handle = process.ready.popleft()
        if not handle._cancelled:
            self._idle += 1
            if self._idle > BUSY:
                raise CircleError(f"{process.name} turns in circles")
            handle._run()
            self.after_step()

    def end(self) -> None:
        """Clears up: whatever is left of any process is cancelled, in a world in which nothing can be done any more."""
        self.after_step = lambda: None
        self._timers.clear()
        left = []
        for process in self.processes:
            process.dead = process.paused = False
            process.steps_left = process.writes_left = -1
            left += process.tasks_left()
        self._idle = 0
        # More than once: who is cancelled while it fails may take the failure for all that happened.
        for _ in range(STUBBORN):
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.wait(left, timeout=1.0))
            left = [task for task in left if not task.done()]
        self.close()
        if left:
            raise CircleError(f"{len(left)} tasks go on, however often they are cancelled")
