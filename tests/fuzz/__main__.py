"""Fuzzes every parser of external input, as many targets at once as there are cores."""

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
  make fuzz SECONDS=600 SEED=2                     all targets, for ten minutes
  python -m tests.fuzz --seconds 600 --seed 2      the same
  make fuzz COUNT=1000 ARGS="--target pods"        a thousand inputs for one target
  make fuzz REPLAY=.fuzz/pods-0123456789ab         replay a failing input
"""

FOUND = Path(".fuzz")
"""Where failing inputs are kept."""
_REPORT_PERIOD = 0.5
_PROGRESS_PERIOD = 10.0
_HANG_TIMEOUT = 120.0
"""A target that does not return for this many seconds hangs where no signal reaches it."""
_MEMORY_LIMIT = 4 << 30
"""Memory limit of a process, in bytes, so that a leak fails the process and not the machine."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; returns 1 if an input failed."""
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
            run.poll()
        if time.monotonic() - shown > _PROGRESS_PERIOD:
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
        "--seconds", type=float, default=60.0, help="how long the run takes; each target gets its share (default: 60)"
    )
    parser.add_argument("--count", type=int, help="this many inputs for each target, however long that takes")
    parser.add_argument("--seed", type=int, default=1, help="seed of the inputs (default: 1)")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this target; may be repeated")
    parser.add_argument("--replay", type=Path, help="a file with a failing input")
    args = parser.parse_args(arguments)
    if args.seconds <= 0 or (args.count is not None and args.count < 1):
        parser.error("--seconds and --count must be more than 0")
    if args.replay:
        try:
            args.replay = load(args.replay)
        except (OSError, KeyError, ValueError):
            parser.error(f"--replay: {args.replay} is not a file with a failing input")
    return args


@dataclass
class Run:
    """One target in its own process, which starts with the first poll."""

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
        # The child ignores Ctrl-C; the parent ends it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        self._last_progress = (0, time.monotonic())

    def poll(self) -> None:
        """Receives the results of the process; ends it when it hangs."""
        if self._process is None:
            self._start()
        try:
            while self._pipe.poll():
                self.tally = self._pipe.recv()
        except EOFError:
            self._process.join()
            self.ended = True
            if self._process.exitcode:
                self._record_failure("crash", f"the process ended with {self._process.exitcode}")
            return
        number = int(self._number.value)
        if number != self._last_progress[0]:
            self._last_progress = (number, time.monotonic())
        elif time.monotonic() - self._last_progress[1] > _HANG_TIMEOUT:
            self._process.kill()
            self._record_failure("hang", f"no result within {_HANG_TIMEOUT:g} s")
            self._process.join()
            self.ended = True

    def _record_failure(self, how: str, what: str) -> None:
        """Records the input that was being read when the process died."""
        self.tally.failures[Failure(how, self.target.name, what)] = int(self._number.value)


def _work(target: Target, seed: int, seconds: float, count: int | None, pipe: Connection, number: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))

    def before(found: int) -> None:
        number.value = found

    begun = reported = time.monotonic()
    tally = Tally()
    for tally in drive(target, seed, count=count, before=before):
        now = time.monotonic()
        if now - reported > _REPORT_PERIOD:
            pipe.send(tally)
            reported = now
        if count is None and now - begun > seconds:
            break
    pipe.send(tally)
    pipe.close()


# -- results


def _report(runs: list[Run], seed: int, seconds: float) -> int:
    print(f"\n{'target':<14}{'inputs':>9}{'outcomes':>10}{'slowest':>11}{'input':>9}{'memory':>10}{'failures':>10}")
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
    print(f"\n{inputs} inputs for {len(runs)} targets in {seconds:.0f} s, seed {seed}: {failed} failures")
    return 1 if failed else 0


def _show(target: Target, given: Input, failure: Failure) -> None:
    print(f"\n{failure.how} of {target.name}: {failure.where}\n{failure.details}")
    # An input that killed or hung its process would do the same to this one.
    survives = failure.how == "crash" and failure.where != target.name
    kept = save(target, minimise(target, given, failure) if survives else given)
    print(f"the input is in {kept}; replay: make fuzz REPLAY={kept}", flush=True)


def save(target: Target, given: Input, folder: Path = FOUND) -> Path:
    """Saves an input to a file that can be replayed."""
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256(given.body).hexdigest()[:12]
    file = folder / f"{target.name}-{name}"
    file.write_bytes(f"{target.name}\n{given.head}\n".encode() + given.body)
    return file


def load(file: Path) -> tuple[Target, Input]:
    """Loads a saved input with its target."""
    name, head, body = file.read_bytes().split(b"\n", 2)
    return TARGETS[name.decode()], Input(head.decode(), body)


def _replay(target: Target, given: Input) -> int:
    try:
        outcome = give(target, given)
    except Failure as failure:
        print(f"{failure.how} of {target.name}: {failure.where}\n{failure.details}")
        return 1
    print(f"{target.name}: {outcome.result}, in {outcome.seconds * 1000:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
