"""Plants known bugs into a copy of the code, one at a time, and reports which tests catch each one and how many seeds
the fault simulator needs to find it: `python -m tests.protocol.plant [--seeds N] [--results FILE] [NUMBER...]`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.protocol.bugs import DEVICES, GANGS, PREEMPTION, Bug
from tests.protocol.commit_bugs import CACHES, COMMITS
from tests.protocol.queue_bugs import CHARGES, HOLDS, LIMITS, UNABLE
from tests.protocol.sharing_bugs import CLAIMS, NOMINATIONS, TREES, VICTIMS

_QUEUES = (*LIMITS, *CHARGES, *HOLDS, *UNABLE, *TREES, *CLAIMS, *VICTIMS, *NOMINATIONS)
BUGS = (*GANGS, *PREEMPTION, *DEVICES, *COMMITS, *CACHES, *_QUEUES)
ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "pyproject.toml", "charts", "examples")
SUITE_TIMEOUT = 300.0
"""A suite that takes longer, in seconds, hangs; that counts as a catch."""


class Catch(NamedTuple):
    """The test that fails with a bug, and how many tests ran up to it."""

    test: str
    tests: int


def plant(bug: Bug, root: Path) -> None:
    """Puts a bug into the code below a folder; ValueError unless its text occurs exactly once."""
    path = root / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise ValueError(f'"{bug.name}": its text occurs {text.count(bug.old)} times in {bug.file} instead of once')
    path.write_text(text.replace(bug.old, bug.new))


def run_suite(root: Path, suite: str, changed: str = "") -> Catch | None:
    """Runs tests below a folder until one fails, or cannot be collected because of the changed file."""
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options, suite]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=_environment(root),
            capture_output=True,
            text=True,
            timeout=SUITE_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Catch(f"{suite} hangs", 0)
    if not done.returncode:
        return None
    if done.returncode != pytest.ExitCode.TESTS_FAILED:
        _require_blame(changed, done)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    counts = {status: int(number) for number, status in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return Catch(failed[1] if failed else f"{suite}: {done.stdout[-300:]}", sum(counts.values()))


def _require_blame(changed: str, done: subprocess.CompletedProcess[str]) -> None:
    """Exits unless the failure names the changed file: any other failure is no catch, and would spoil all that
    follow."""
    output = done.stdout + done.stderr
    if not changed or changed not in output or done.returncode < 0:
        sys.exit(f"{' '.join(done.args[1:])}\nended with {done.returncode}:\n{output[-3000:]}")


SEEDS = """
import sys
from multiprocessing import get_context
from tests.worlds.world import run_seed
with get_context("spawn").Pool(int(sys.argv[2])) as pool:
    results = pool.imap(run_seed, range(1, int(sys.argv[1]) + 1))
    print(next((f"{found.seed} {found.promise}" for found in results if found.breach), "0 -"))
"""


class Sighting(NamedTuple):
    """The promise or rule that the fault simulator finds broken, and how many seeds that took."""

    promise: str
    seeds: int


def run_seeds(root: Path, seeds: int, jobs: int, changed: str = "") -> Sighting | None:
    """Runs the fault simulator below a folder until a promise is broken, or it does not start because of the changed
    file."""
    command = [sys.executable, "-c", SEEDS, str(seeds), str(jobs)]
    where = {**_environment(root), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=root, env=where, capture_output=True, text=True, check=False)
    if done.returncode:
        _require_blame(changed, done)
        return Sighting("does not start", 1)
    seed, promise = done.stdout.splitlines()[-1].split(maxsplit=1)
    return Sighting(promise, int(seed)) if int(seed) else None


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{root / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def planted(*bugs: Bug) -> Iterator[Path]:
    """Within the block, a copy of the code with bugs in it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, root / name)
        for bug in bugs:
            plant(bug, root)
        yield root


class Finding(NamedTuple):
    """The result of one bug."""

    number: int
    name: str
    caught: Catch | None
    seen: Sighting | None
    seeds: int
    """How many seeds the fault simulator was given."""
    seconds: float

    def __str__(self) -> str:
        tests = f"caught by {self.caught.test}, test {self.caught.tests}" if self.caught else "NOT CAUGHT by its tests"
        if self.seen:
            simulated = f"found by the fault simulator ({self.seen.promise}) after {self.seen.seeds} seeds"
        elif unseen := BUGS[self.number].unseen:
            simulated = f"not for the fault simulator: {unseen}"
        else:
            simulated = f"not found in {self.seeds} seeds"
        return f"{self.number:2} {self.name}: {tests}; {simulated} ({self.seconds:.0f} s)"


def try_bug(number: int, seeds: int, jobs: int) -> Finding:
    """Plants a bug; reports which of its tests catches it, and whether the fault simulator finds it."""
    bug = BUGS[number]
    begun = time.perf_counter()
    with planted(bug) as root:
        caught = next(filter(None, (run_suite(root, suite, bug.file) for suite in bug.suites)), None)
        given = 0 if bug.unseen else seeds
        seen = run_seeds(root, given, jobs, bug.file) if given else None
    return Finding(number, bug.name, caught, seen, given, time.perf_counter() - begun)


def find_failures(numbers: Iterable[int], seeds: int, jobs: int) -> list[str]:
    """What fails without any bug, and would seem to catch every bug."""
    with planted() as root:
        seen = run_seeds(root, seeds, jobs) if seeds else None
        suites = {suite: None for number in numbers for suite in BUGS[number].suites}
        failed = [found.test for found in (run_suite(root, suite) for suite in suites) if found]
    return failed + ([f"seed {seen.seeds} of the fault simulator"] if seen else [])


EXAMPLES = """
examples:
  python -m tests.protocol.plant                       all bugs, each also in 200 simulated worlds
  python -m tests.protocol.plant 0 7 --seeds 0         two of them, with their tests only
  python -m tests.protocol.plant --results found.jsonl continue an interrupted run
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.protocol.plant",
        description="Plant known bugs into a copy of the code and report which tests catch them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("numbers", type=int, nargs="*", metavar="NUMBER", help="only these bugs")
    parser.add_argument(
        "--seeds", type=int, default=200, help="how many worlds to try for each (default: 200; 0: none)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many worlds at once (default: 2)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep results here, and continue after them")
    options = parser.parse_args(arguments)
    if unknown := [str(number) for number in options.numbers if not 0 <= number < len(BUGS)]:
        parser.error(f"unknown bug {', '.join(unknown)}; the numbers go from 0 to {len(BUGS) - 1}")
    if options.seeds < 0 or options.jobs < 1:
        parser.error("--seeds must be 0 or more, --jobs 1 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Plants the named bugs, or all; returns 1 if the tests of one do not catch it."""
    options = parse(arguments)
    chosen = options.numbers or range(len(BUGS))
    known: dict[int, Finding] = {}
    if options.results is not None and options.results.exists():
        found = (msgspec.json.decode(line, type=Finding) for line in options.results.read_bytes().splitlines())
        known = {finding.number: finding for finding in found}
    left = [number for number in chosen if number not in known]
    if failures := find_failures(left, options.seeds, options.jobs) if left else []:
        print(f"fails without any bug: {', '.join(failures)}")
        return 1
    for number in left:
        known[number] = finding = try_bug(number, options.seeds, options.jobs)
        print(finding, flush=True)
        if options.results is not None:
            with options.results.open("ab") as kept:
                kept.write(msgspec.json.encode(finding) + b"\n")
    findings = [known[number] for number in chosen]
    caught, seen = sum(bool(one.caught) for one in findings), sum(bool(one.seen) for one in findings)
    print(f"{caught} of {len(findings)} planted bugs caught by their tests, {seen} found by the fault simulator")
    return caught < len(findings)


if __name__ == "__main__":
    sys.exit(main())
