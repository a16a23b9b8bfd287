"""Plants known bugs into a copy of the code, one at a time, and tells which tests catch them and after how many seeds
the simulation sees them: `python -m tests.protocol.plant [--seeds N] [--results FILE] [NUMBER...]`."""

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

BUGS = (*GANGS, *PREEMPTION, *DEVICES, *COMMITS, *CACHES)
ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "pyproject.toml", "charts", "examples")
PATIENCE = 300.0
"""A suite that takes longer, in seconds, hangs: that is a catch, too."""


class Catch(NamedTuple):
    """The test that fails with a bug, and how many were run up to it."""

    test: str
    tests: int


def plant(bug: Bug, root: Path) -> None:
    """Puts a bug into the code below a folder; ValueError when the text is not there, or more than once."""
    path = root / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise ValueError(f'"{bug.name}": its text is {text.count(bug.old)} times in {bug.file}, and should be once')
    path.write_text(text.replace(bug.old, bug.new))


def run_suite(root: Path, suite: str, changed: str = "") -> Catch | None:
    """Runs tests below a folder until one fails, or cannot be collected for the file that was changed."""
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options, suite]
    try:
        done = subprocess.run(
            command, cwd=root, env=_surroundings(root), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return Catch(f"{suite} hangs", 0)
    if not done.returncode:
        return None
    if done.returncode != pytest.ExitCode.TESTS_FAILED:
        _insist_on(changed, done)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return Catch(failed[1] if failed else f"{suite}: {done.stdout[-300:]}", sum(counts.values()))


def _insist_on(changed: str, done: subprocess.CompletedProcess[str]) -> None:
    """What went wrong must be about the changed file: else it is no catch, and nothing that follows would be one."""
    said = done.stdout + done.stderr
    if not changed or changed not in said or done.returncode < 0:
        sys.exit(f"{' '.join(done.args[1:])}\nended with {done.returncode}:\n{said[-3000:]}")


SEEDS = """
import sys
from multiprocessing import get_context
from tests.worlds.world import run_seed
with get_context("spawn").Pool(int(sys.argv[2])) as pool:
    results = pool.imap(run_seed, range(1, int(sys.argv[1]) + 1))
    print(next((f"{found.seed} {found.promise}" for found in results if found.breach), "0 -"))
"""


class Sighting(NamedTuple):
    """The promise or rule that the simulation sees broken, and how many seeds that took."""

    promise: str
    seeds: int


def run_seeds(root: Path, seeds: int, jobs: int, changed: str = "") -> Sighting | None:
    """Runs the simulation below a folder until something is broken, or it does not start for the changed file."""
    command = [sys.executable, "-c", SEEDS, str(seeds), str(jobs)]
    where = {**_surroundings(root), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=root, env=where, capture_output=True, text=True, check=False)
    if done.returncode:
        _insist_on(changed, done)
        return Sighting("does not start", 1)
    seed, promise = done.stdout.splitlines()[-1].split(maxsplit=1)
    return Sighting(promise, int(seed)) if int(seed) else None


def _surroundings(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{root / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def planted(*bugs: Bug) -> Iterator[Path]:
    """A copy of the code with bugs in it, as long as the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, root / name)
        for bug in bugs:
            plant(bug, root)
        yield root


class Finding(NamedTuple):
    """What became of one bug."""

    number: int
    name: str
    caught: Catch | None
    seen: Sighting | None
    seeds: int
    """How many seeds the simulation was given."""
    seconds: float

    def __str__(self) -> str:
        tests = f"caught by {self.caught.test}, test {self.caught.tests}" if self.caught else "NOT CAUGHT by its tests"
        if self.seen:
            simulated = f"seen by the simulation ({self.seen.promise}) after {self.seen.seeds} seeds"
        elif unseen := BUGS[self.number].unseen:
            simulated = f"not to be seen by the simulation: {unseen}"
        else:
            simulated = f"not seen by {self.seeds} seeds"
        return f"{self.number:2} {self.name}: {tests}; {simulated} ({self.seconds:.0f} s)"


def try_bug(number: int, seeds: int, jobs: int) -> Finding:
    """Plants a bug; who notices it, among its tests and in the simulation."""
    bug = BUGS[number]
    begun = time.perf_counter()
    with planted(bug) as root:
        caught = next(filter(None, (run_suite(root, suite, bug.file) for suite in bug.suites)), None)
        given = 0 if bug.unseen else seeds
        seen = run_seeds(root, given, jobs, bug.file) if given else None
    return Finding(number, bug.name, caught, seen, given, time.perf_counter() - begun)


def find_failures(numbers: Iterable[int], seeds: int, jobs: int) -> list[str]:
    """What fails without any bug: it would seem to catch them all."""
    with planted() as root:
        seen = run_seeds(root, seeds, jobs) if seeds else None
        suites = {suite: None for number in numbers for suite in BUGS[number].suites}
        failed = [found.test for found in (run_suite(root, suite) for suite in suites) if found]
    return failed + ([f"seed {seen.seeds} of the simulation"] if seen else [])


EXAMPLES = """
examples:
  python -m tests.protocol.plant                       all bugs, each also in 200 worlds of the simulation
  python -m tests.protocol.plant 0 7 --seeds 0         two of them, and only their tests
  python -m tests.protocol.plant --results found.jsonl go on where a run was interrupted
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.protocol.plant",
        description="Plant known bugs into a copy of the code and see who catches them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("numbers", type=int, nargs="*", metavar="NUMBER", help="only these bugs")
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds may see each (default: 200; 0: none)")
    parser.add_argument("--jobs", type=int, default=2, help="how many worlds at once (default: 2)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep findings here, and go on where it ends")
    options = parser.parse_args(arguments)
    if unknown := [str(number) for number in options.numbers if not 0 <= number < len(BUGS)]:
        parser.error(f"no bug has the number {', '.join(unknown)}; they go from 0 to {len(BUGS) - 1}")
    if options.seeds < 0 or options.jobs < 1:
        parser.error("--seeds must be 0 or more, --jobs 1 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Plants the bugs that are named, or all; fails if the tests of one do not catch it."""
    options = parse(arguments)
    chosen = options.numbers or range(len(BUGS))
    known: dict[int, Finding] = {}
    if options.results is not None and options.results.exists():
        found = (msgspec.json.decode(line, type=Finding) for line in options.results.read_bytes().splitlines())
        known = {finding.number: finding for finding in found}
    left = [number for number in chosen if number not in known]
    if failures := find_failures(left, options.seeds, options.jobs) if left else []:
        print(f"without any bug there fails already: {', '.join(failures)}")
        return 1
    for number in left:
        known[number] = finding = try_bug(number, options.seeds, options.jobs)
        print(finding, flush=True)
        if options.results is not None:
            with options.results.open("ab") as kept:
                kept.write(msgspec.json.encode(finding) + b"\n")
    findings = [known[number] for number in chosen]
    caught, seen = sum(bool(one.caught) for one in findings), sum(bool(one.seen) for one in findings)
    print(f"{caught} of {len(findings)} planted bugs caught by their tests, {seen} seen by the simulation")
    return caught < len(findings)


if __name__ == "__main__":
    sys.exit(main())
