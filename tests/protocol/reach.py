"""Which lines of the code each test runs, and how long it takes; stored for a state of code and tests."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

IMPORTING = "(importing)"
"""Stands for a test's name where functions run during imports and test collection."""


class Test(NamedTuple):
    """The lines that a test runs, by file."""

    seconds: float
    lines: dict[str, list[int]]


Reach = dict[str, Test]
"""Passing tests by name."""


class Recorder:
    """A pytest plugin that records which lines of some files each test runs, and saves them by test file."""

    def __init__(self, root: Path, files: list[str], paths: dict[str, Path]) -> None:
        self._seen: dict[str, set[int]] = {file: set() for file in files}
        self._notes = {str(root / file): _make_tracer(lines) for file, lines in self._seen.items()}
        self._paths = paths
        self._importing: Reach = {}
        self._reach: Reach = {}
        self._failed = False

    def start(self) -> None:
        """Starts tracing; lines that run before the first test count as importing."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        return self._notes.get(code.co_filename) if code.co_flags & CO_OPTIMIZED else None

    def _take(self, seconds: float) -> Test:
        taken = Test(seconds, {file: sorted(lines) for file, lines in self._seen.items() if lines})
        for lines in self._seen.values():
            lines.clear()
        return taken

    def pytest_collection_finish(self) -> None:
        self._importing = {IMPORTING: self._take(0.0)}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        begun = time.process_time()
        self._failed = False
        # A test or a library that traces ends our own tracing.
        sys.settrace(self._enter)
        done = yield
        taken = self._take(time.process_time() - begun)
        if not self._failed:
            self._reach[item.nodeid] = taken
        file = item.nodeid.split("::")[0]
        if nextitem is None or nextitem.nodeid.split("::")[0] != file:
            save(self._importing | self._reach, self._paths[file])
            self._reach.clear()
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.outcome != "passed"


def _make_tracer(lines: set[int]) -> Callable[[FrameType, str, object], Any]:
    def trace(frame: FrameType, event: str, _: object) -> Any:
        lines.add(frame.f_lineno)
        return trace

    return trace


def digest(root: Path, files: Iterable[str]) -> str:
    """A short digest of the contents of files."""
    state = hashlib.sha256()
    for file in sorted(files):
        state.update(f"{file}\0".encode() + (root / file).read_bytes())
    return state.hexdigest()[:16]


def join(parts: Iterable[Reach]) -> Reach:
    """Merges the results of several test files."""
    whole: Reach = {}
    early: dict[str, set[int]] = defaultdict(set)
    for part in parts:
        for file, lines in part[IMPORTING].lines.items():
            early[file].update(lines)
        whole |= part
    return whole | {IMPORTING: Test(0.0, {file: sorted(lines) for file, lines in early.items()})}


def save(reach: Reach, path: Path) -> None:
    """Writes a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(reach))


def load(path: Path) -> Reach:
    """Reads a result."""
    return {name: Test(*test) for name, test in json.loads(path.read_text()).items()}


def functions_of(code: CodeType) -> list[CodeType]:
    """The functions of a module and of its classes, without nested functions."""
    found: list[CodeType] = []
    for part in code.co_consts:
        if isinstance(part, CodeType):
            found += [part] if part.co_flags & CO_OPTIMIZED else functions_of(part)
    return found
