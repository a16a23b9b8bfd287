"""A fuzz target, and one input for it: understood, refused in one line, or a failure."""

from __future__ import annotations

import logging
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import structlog

LONGEST = 2.0
"""CPU time limit of one input, in seconds."""
MOST_AT_ONCE, MOST = 96 << 20, 256 << 20
"""Memory limit of one input, and of the growth over all inputs, in bytes."""
LONGEST_LINE = 8192

_STATUS = Path("/proc/self/status")


class Input(NamedTuple):
    """The input of a target. The head says what the body is (a kind, a path) and is never damaged."""

    head: str
    body: bytes


@dataclass(frozen=True)
class Target:
    """A parser under test. `read` returns a name for the result; `refusals` are the errors that it may raise instead.

    `inputs` are valid, and each must be understood. `odd` inputs may be refused; they are damaged further as well.
    """

    name: str
    read: Callable[[Input], str]
    inputs: Sequence[Input]
    refusals: tuple[type[Exception], ...] = ()
    odd: Sequence[Input] = ()

    @property
    def starts(self) -> tuple[Input, ...]:
        """The inputs that damaged ones are derived from."""
        return (*self.inputs, *self.odd)


class Refused(Exception):  # noqa: N818 - named for what happened
    """Raised by a target for an input that was refused without an error, with a name for the refusal."""


class Failure(Exception):  # noqa: N818 - named for what happened
    """An input that broke its target: how (crash, hang, memory), where, and the details. Failures at one place are
    equal."""

    def __init__(self, how: str, where: str, details: str = "") -> None:
        super().__init__(how, where, details)
        self.how = how
        self.where = where
        self.details = details

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failure) and (self.how, self.where) == (other.how, other.where)

    def __hash__(self) -> int:
        return hash((self.how, self.where))


class _HangError(BaseException):
    """The CPU time limit is exceeded."""


@dataclass(frozen=True)
class Outcome:
    """The result of an input, and its cost."""

    result: str
    seconds: float
    refused: bool


def give(target: Target, given: Input) -> Outcome:
    """Gives an input to its target; raises Failure."""
    begun, before = time.process_time(), peak_memory()
    errors: list[BaseException] = []
    try:
        with _collecting_logged_errors(errors), _limited():
            result, refused = _read(target, given)
    except _HangError as error:
        raise Failure("hang", _place(error), f"over {LONGEST:g} s of CPU time\n{_format_error(error)}") from None
    except Exception as error:
        raise Failure("crash", f"{type(error).__name__} at {_place(error)}", _format_error(error)) from None
    if errors:
        logged = errors[0]
        raise Failure("crash", f"logged {type(logged).__name__} at {_place(logged)}", _format_error(logged))
    grown = peak_memory() - before
    if grown > MOST_AT_ONCE:
        raise Failure("memory", f"{target.name}", f"one input took {grown >> 20} MiB")
    return Outcome(result, time.process_time() - begun, refused)


def _read(target: Target, given: Input) -> tuple[str, bool]:
    """The result of an input, and whether it was refused."""
    try:
        return target.read(given), False
    except Refused as refused:
        return str(refused), True
    except target.refusals as error:
        line = str(error)
        if not line or not line.isprintable() or len(line) > LONGEST_LINE:
            raise AssertionError(f"a refusal must be one line that can be shown: {line[:300]!r}") from error
        return type(error).__name__, True


def peak_memory() -> int:
    """The peak memory of this process, in bytes."""
    try:
        # On Linux the value of getrusage survives exec: the size of a parent would hide all growth.
        return int(_STATUS.read_bytes().partition(b"VmHWM:")[2].split(maxsplit=1)[0]) << 10
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def _limited() -> Iterator[None]:
    """Interrupts the block when it has used too much CPU time; wall time does not count."""

    def end(*_: object) -> None:
        raise _HangError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _collecting_logged_errors(errors: list[BaseException]) -> Iterator[None]:
    """Collects exceptions that were caught and logged: those count as crashes too."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                errors.append(record.exc_info[1])

    def process(_logger: Any, _method: str, entry: Any) -> Any:
        found = sys.exc_info()[1] if entry.get("exc_info") else None
        if found is not None:
            errors.append(found)
        raise structlog.DropEvent

    root, handler = logging.getLogger(), Handler()
    config = structlog.get_config()
    handlers, root.handlers = root.handlers, [handler]
    structlog.configure(processors=[process])
    try:
        yield
    finally:
        root.handlers = handlers
        structlog.configure(**config)


def _place(error: BaseException) -> str:
    """The place in the project that an error comes from, so that inputs with one cause are one failure."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "gpu_scheduler" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('gpu_scheduler/')[2]}:{ours[-1].name}" if ours else "?"


def _format_error(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-12))[-6000:]
