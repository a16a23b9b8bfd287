"""Tries mutants: a process with everything imported forks for each mutant, and the child runs the relevant tests."""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple, NoReturn

import pytest

from tests.protocol.mutators import Mutant
from tests.protocol.reach import IMPORTING, Reach, functions_of

OPTIONS = (
    *("-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "--capture=sys"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # libraries are imported before pytest starts
)
MEMORY = 4 << 30
"""Memory limit of a trial, in bytes."""

_FAILED = 70
"""Exit code of a trial that failed outside a test."""


class Trial(NamedTuple):
    """A mutant, and the tests that run its lines, in order."""

    number: int
    mutant: Mutant
    tests: list[str]


class Outcome(NamedTuple):
    """How a trial ended, in which test or why, and after how many tests."""

    status: str
    test: str
    tests: int
    seconds: float


Announce = Callable[[str], object]
"""Called with the name of each test that begins."""

Report = Callable[[Trial, Outcome], None]


def swap_of(mutant: Mutant, text: str, path: str) -> CodeType | None:
    """The new code of the changed function; None if the module has to be imported with the change."""
    changed = (compile(version, path, "exec", dont_inherit=True) for version in (text, mutant.apply(text)))
    functions = (
        max(
            (function for function in functions_of(code) if function.co_firstlineno <= mutant.lines[0]),
            key=lambda function: function.co_firstlineno,
            default=None,
        )
        for code in changed
    )
    old, new = functions
    if old is None or new is None or old == new:
        return None
    same = old.co_freevars == new.co_freevars and old.co_flags == new.co_flags
    return new if same else None


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module from a given text instead of its file."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module with the given text."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._loader.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._loader.path, loader=self._loader)


class _Chosen:
    """A pytest plugin that runs the given tests in order, until one fails."""

    def __init__(self, names: list[str], announce: Announce) -> None:
        self._names = names
        self._announce = announce

    def pytest_runtestloop(self, session: pytest.Session) -> NoReturn:
        items = {item.nodeid: item for item in session.items}
        run_items(session, [items[name] for name in self._names if name in items], self._announce)


def run_items(session: pytest.Session, items: list[pytest.Item], announce: Announce) -> NoReturn:
    """Runs tests until one fails, and exits: with 1 if one did."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        announce(item.nodeid)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            os._exit(1)
    os._exit(0)


class Server:
    """A pytest plugin that, after collection, forks for each mutant and swaps the code of the changed function."""

    def __init__(self, trials: list[tuple[Trial, CodeType]], reach: Reach, report: Report) -> None:
        self._trials = trials
        self._reach = reach
        self._report = report

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions: dict[tuple[str, int, str], list[FunctionType]] = defaultdict(list)
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                code = found.__code__
                functions[code.co_filename, code.co_firstlineno, code.co_qualname].append(found)
        gc.collect()
        gc.freeze()
        for trial, new in self._trials:
            targets = functions[new.co_filename, new.co_firstlineno, new.co_qualname]
            chosen = [items[name] for name in trial.tests if name in items]
            run = partial(_run_swapped, session, chosen, targets, new)
            self._report(trial, attempt(run, trial, self._reach))
        return True


def _run_swapped(
    session: pytest.Session, items: list[pytest.Item], targets: list[FunctionType], new: CodeType, announce: Announce
) -> None:
    if not targets:
        raise LookupError(f"{new.co_qualname} of {new.co_filename} is not imported by any test")
    for function in targets:
        function.__code__ = new
    run_items(session, items, announce)


def attempt(run: Callable[[Announce], object], trial: Trial, reach: Reach) -> Outcome:
    """Runs a trial in a process of its own, with a time and a memory limit."""
    begun = time.monotonic()
    folder = tempfile.mkdtemp(prefix="mutant-")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setpgid(0, 0)
            os.close(reading)
            isolate(folder, 60 + round(5 * sum(reach[name].seconds for name in trial.tests)))
            run(lambda name: os.write(writing, f"{name}\n".encode()))
        except BaseException as error:
            os.write(writing, f"! {type(error).__name__}: {error}".replace("\n", " ")[:500].encode() + b"\n")
        finally:
            os._exit(_FAILED)
    os.close(writing)
    begun_tests: list[str] = []
    hangs = False
    with open(reading, "rb", buffering=0) as pipe:
        rest = b""
        while True:
            timeout = 60 + 20 * (reach[begun_tests[-1]].seconds if begun_tests and begun_tests[-1] in reach else 3)
            if not select.select([pipe], [], [], timeout)[0]:
                hangs = True
                break
            data = pipe.read(65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            begun_tests += [line.decode() for line in lines]
    for target in (child, -child):
        try:
            if hangs or target < 0:
                os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, status = os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    last = begun_tests[-1] if begun_tests else ""
    testing = bool(begun_tests) and not begun_tests[0].startswith("!")
    outcome = "timeout" if hangs else _name_end(os.waitstatus_to_exitcode(status), testing)
    return Outcome(outcome, last, len(begun_tests), time.monotonic() - begun)


def _name_end(code: int, testing: bool) -> str:
    """The status of a trial, from the exit code of its process and whether a test had begun."""
    if code == -signal.SIGKILL:
        return "error"  # killed from outside, for example by a system that is out of memory
    known = {0: "survived", 1: "killed", -signal.SIGXCPU: "timeout"}
    return known.get(code, "killed" if testing else "error")


def isolate(folder: str, seconds: int) -> None:
    """Sets the limits of this process, gives it its own temporary folder, and silences it."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    _silence()


def _silence() -> None:
    """Discards the output of this process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def run_fresh(trial: Trial, root: Path, announce: Announce) -> NoReturn:
    """Imports the module with the change, then the tests, and runs them; exits."""
    mutant = trial.mutant
    path = root / mutant.file
    name = ".".join(Path(mutant.file).relative_to("src").with_suffix("").parts)
    sys.meta_path.insert(0, _Finder(_Loader(name, str(path), mutant.apply(path.read_text()))))
    files = dict.fromkeys(test.split("::")[0] for test in trial.tests)
    pytest.main([*OPTIONS, *files], plugins=[_Chosen(trial.tests, announce)])
    announce("! the tests cannot be collected")  # collection works without the change
    os._exit(1)


def fork(work: Callable[[], int | None]) -> int:
    """Runs a function in a child process, which exits with the code that the function returns."""
    child = os.fork()
    if not child:
        code: int | None = _FAILED
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code or 0)
    return child


def _serve(tests: list[str], server: Server) -> None:
    _silence()
    pytest.main([*OPTIONS, *tests], plugins=[server])


def try_all(trials: Iterable[Trial], root: Path, tests: list[str], reach: Reach, report: Report) -> None:
    """Tries mutants one after the other, those that need a fresh import last. This process itself imports no change."""
    swaps: list[tuple[Trial, CodeType]] = []
    fresh: list[Trial] = []
    for trial in trials:
        path = root / trial.mutant.file
        new = swap_of(trial.mutant, path.read_text(), str(path))
        if new is None or _runs_early(trial.mutant, new, reach):
            fresh.append(trial)
        else:
            swaps.append((trial, new))
    os.waitpid(fork(partial(_serve, tests, Server(swaps, reach, report))), 0)
    for trial in fresh:
        report(trial, attempt(partial(run_fresh, trial, root), trial, reach))


def _runs_early(mutant: Mutant, function: CodeType, reach: Reach) -> bool:
    """Whether a function runs during imports; its results would not change with its code."""
    last = max(line for _, _, line in function.co_lines() if line is not None)
    early = reach[IMPORTING].lines.get(mutant.file, [])
    return any(function.co_firstlineno <= line <= last for line in early)
