"""Gives damaged inputs to all that reads from outside, to as many readers at once as there are cores."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.fuzz.drive import Tally, drive, make_input, minimise
from tests.fuzz.target import Failure, Input, Target, give
from tests.fuzz.targets import TARGETS

EXAMPLES = """
examples:
  make fuzz SECONDS=600 SEED=2                     all readers, for ten minutes
  python -m tests.fuzz --seconds 600 --seed 2      the same
  make fuzz COUNT=1000 ARGS="--target pods"        a thousand inputs for one reader
  make fuzz REPLAY=.fuzz/pods-0123456789ab         one that failed, again
"""

FOUND = Path(".fuzz")
"""Where inputs that failed are kept."""
_TELL_EVERY = 0.5
_SHOW_EVERY = 10.0
_SILENT = 120.0
"""A reader that has not come back for so long, in seconds, is stuck where no signal reaches it."""
_MOST_MEMORY = 4 << 30
"""A process may not take more than this, in bytes: then it fails, and not the machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; 1 when an input failed."""
    args = _read_arguments(arguments)
    try:
        return _replay(*args.replay) if args.replay else _run_all(args)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


def _run_all(args: argparse.Namespace) -> int:
    wanted = {name: TARGETS[name] for name in args.target or TARGETS}
    cores = os.cpu_count() or 1
    share = args.seconds * min(1.0, cores / len(wanted))
    runs = [Run(target, args.seed, share, args.count) for target in wanted.values()]
    begun = shown = time.monotonic()
    while left := [run for run in runs if not run.ended]:
        for run in left[:cores]:
            run.look()
        if time.monotonic() - shown > _SHOW_EVERY:
            shown = time.monotonic()
            inputs, failed = sum(run.tally.inputs for run in runs), sum(len(run.tally.failures) for run in runs)
            print(f"{shown - begun:4.0f} s: {inputs} inputs, {failed} failures", flush=True)
        time.sleep(0.1)
    return _report(runs, args.seed, time.monotonic() - begun)


def _read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, epilog=EXAMPLES, formatter_class=formatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long the run takes; each reader gets its share (default: 60)"
    )
    parser.add_argument("--count", type=int, help="so many inputs for each reader, however long that takes")
    parser.add_argument("--seed", type=int, default=1, help="which inputs are made (default: 1)")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="this reader; all if none is named")
    parser.add_argument("--replay", type=Path, help="a file with an input that failed")
    args = parser.parse_args(arguments)
    if args.seconds <= 0 or (args.count is not None and args.count < 1):
        parser.error("--seconds and --count must be more than 0")
    if args.replay:
        try:
            args.replay = load(args.replay)
        except (OSError, KeyError, ValueError):
            parser.error(f"--replay: {args.replay} is no file with an input that failed")
    return args


@dataclass
class Run:
    """One reader in a process of its own, which begins with the first look."""

    target: Target
    seed: int
    seconds: float
    count: int | None
    tally: Tally = field(default_factory=Tally)
    ended: bool = False
    _process: Any = None

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe(duplex=False)
        self._number: Any = context.Value("q", 0, lock=False)
        given = (self.target, self.seed, self.seconds, self.count, theirs, self._number)
        self._process = context.Process(target=_work, args=given, daemon=True)
        # It does not hear Ctrl-C: we end it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        self._heard = (0, time.monotonic())

    def look(self) -> None:
        """Takes what the process has told; ends it when it is stuck."""
        if self._process is None:
            self._start()
        try:
            while self._pipe.poll():
                self.tally = self._pipe.recv()
        except EOFError:
            self._process.join()
            self.ended = True
            if self._process.exitcode:
                self._blame("crash", f"the process ended with {self._process.exitcode}")
            return
        number = int(self._number.value)
        if number != self._heard[0]:
            self._heard = (number, time.monotonic())
        elif time.monotonic() - self._heard[1] > _SILENT:
            self._process.kill()
            self._blame("hang", f"it did not come back within {_SILENT:g} s")
            self._process.join()
            self.ended = True

    def _blame(self, how: str, what: str) -> None:
        """The input that was being read when the process died."""
        self.tally.failures[Failure(how, self.target.name, what)] = int(self._number.value)


def _work(target: Target, seed: int, seconds: float, count: int | None, pipe: Connection, number: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))

    def before(found: int) -> None:
        number.value = found

    begun = told = time.monotonic()
    tally = Tally()
    for tally in drive(target, seed, count=count, before=before):
        now = time.monotonic()
        if now - told > _TELL_EVERY:
            pipe.send(tally)
            told = now
        if count is None and now - begun > seconds:
            break
    pipe.send(tally)
    pipe.close()


# -- what came of it


def _report(runs: list[Run], seed: int, seconds: float) -> int:
    print(f"\n{'reader':<14}{'inputs':>9}{'outcomes':>10}{'slowest':>11}{'input':>9}{'memory':>10}{'failures':>10}")
    for run in sorted(runs, key=lambda run: run.target.name):
        tally = run.tally
        slowest, grown = f"{tally.slowest * 1000:.0f} ms", f"{tally.grown / (1 << 20):.0f} MiB"
        print(
            f"{run.target.name:<14}{tally.inputs:>9}{len(tally.outcomes):>10}{slowest:>11}{tally.slowest_input:>9}"
            f"{grown:>10}{len(tally.failures):>10}"
        )
    for run in runs:
        for failure, number in run.tally.failures.items():
            _show(run.target, make_input(run.target, seed, number), failure)
    failed = sum(len(run.tally.failures) for run in runs)
    inputs = sum(run.tally.inputs for run in runs)
    print(f"\n{inputs} inputs for {len(runs)} readers in {seconds:.0f} s, seed {seed}: {failed} failures")
    return 1 if failed else 0


def _show(target: Target, given: Input, failure: Failure) -> None:
    print(f"\n{failure.how} of {target.name}: {failure.where}\n{failure.details}")
    # What ended or stopped its process would do the same to this one.
    survives = failure.how == "crash" and failure.where != target.name
    kept = save(target, minimise(target, given, failure) if survives else given)
    print(f"the input is in {kept}; again: make fuzz REPLAY={kept}", flush=True)


def save(target: Target, given: Input, folder: Path = FOUND) -> Path:
    """Keeps an input in a file that can be replayed."""
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(given.body).hexdigest()[:12]
    file = folder / f"{target.name}-{name}"
    file.write_bytes(f"{target.name}\n{given.head}\n".encode() + given.body)
    return file


def load(file: Path) -> tuple[Target, Input]:
    """An input that was kept, and whose it is."""
    name, head, body = file.read_bytes().split(b"\n", 2)
    return TARGETS[name.decode()], Input(head.decode(), body)


def _replay(target: Target, given: Input) -> int:
    try:
        outcome = give(target, given)
    except Failure as failure:
        print(f"{failure.how} of {target.name}: {failure.where}\n{failure.details}")
        return 1
    print(f"{target.name}: {outcome.word}, in {outcome.seconds * 1000:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
