"""A reader under test, and one input given to it: understood, refused in one line, or a failure."""

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
"""The CPU time that one input may take, in seconds."""
MOST_AT_ONCE, MOST = 96 << 20, 256 << 20
"""The memory that one input may take, and that all of them together may leave behind, in bytes."""
LONGEST_LINE = 8192

_STATUS = Path("/proc/self/status")


class Input(NamedTuple):
    """What a reader is given. The head says how it is meant (a kind, a path) and is never changed."""

    head: str
    body: bytes


@dataclass(frozen=True)
class Target:
    """A reader. `read` says in a word what came of an input; `refusals` are the errors that it may raise instead.

    `inputs` are valid, each must be understood. What is `odd` may be refused; it, too, is damaged further.
    """

    name: str
    read: Callable[[Input], str]
    inputs: Sequence[Input]
    refusals: tuple[type[Exception], ...] = ()
    odd: Sequence[Input] = ()

    @property
    def starts(self) -> tuple[Input, ...]:
        """All that damaged inputs are made from."""
        return (*self.inputs, *self.odd)


class Refused(Exception):  # noqa: N818 - named for what happened
    """What a reader raises about an input that was refused without an error, with the word for it."""


class Failure(Exception):  # noqa: N818 - named for what happened
    """An input that broke its reader: how (crash, hang, memory), where, and all there is to see. One place is one."""

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
    """The CPU time is used up."""


@dataclass(frozen=True)
class Outcome:
    """What came of an input, and what it cost."""

    word: str
    seconds: float
    refused: bool


def give(target: Target, given: Input) -> Outcome:
    """Gives an input to its reader; raises Failure."""
    begun, before = time.process_time(), peak_memory()
    errors: list[BaseException] = []
    try:
        with _listening(errors), _limited():
            word, refused = _read(target, given)
    except _HangError as error:
        raise Failure("hang", _place(error), f"over {LONGEST:g} s of CPU time\n{_story(error)}") from None
    except Exception as error:
        raise Failure("crash", f"{type(error).__name__} at {_place(error)}", _story(error)) from None
    if errors:
        logged = errors[0]
        raise Failure("crash", f"logged {type(logged).__name__} at {_place(logged)}", _story(logged))
    grown = peak_memory() - before
    if grown > MOST_AT_ONCE:
        raise Failure("memory", f"{target.name}", f"one input took {grown >> 20} MiB")
    return Outcome(word, time.process_time() - begun, refused)


def _read(target: Target, given: Input) -> tuple[str, bool]:
    """What came of an input, and whether it was refused."""
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
    """The most memory that this process ever had, in bytes."""
    try:
        # What getrusage says on Linux outlives exec: the size of a parent would hide all growth.
        return int(_STATUS.read_bytes().partition(b"VmHWM:")[2].split(maxsplit=1)[0]) << 10
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def _limited() -> Iterator[None]:
    """Ends the block when it has used too much CPU time; the clock on the wall does not count."""

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
def _listening(errors: list[BaseException]) -> Iterator[None]:
    """Notes the exceptions that somebody caught and logged: those are crashes too."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                errors.append(record.exc_info[1])

    def hear(_logger: Any, _method: str, entry: Any) -> Any:
        found = sys.exc_info()[1] if entry.get("exc_info") else None
        if found is not None:
            errors.append(found)
        raise structlog.DropEvent

    root, ear = logging.getLogger(), Ear()
    config = structlog.get_config()
    handlers, root.handlers = root.handlers, [ear]
    structlog.configure(processors=[hear])
    try:
        yield
    finally:
        root.handlers = handlers
        structlog.configure(**config)


def _place(error: BaseException) -> str:
    """Where in the project an error comes from, so that two inputs with one cause are one failure."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "gpu_scheduler" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('gpu_scheduler/')[2]}:{ours[-1].name}" if ours else "?"


def _story(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-12))[-6000:]
