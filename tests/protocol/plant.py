"""Plants known bugs into a copy of the code, one at a time, and tells which tests catch them, or after how many seeds
the simulation does: `python -m tests.protocol.plant [--seeds N] [NUMBER...]`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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


def run_suite(root: Path, suite: str) -> Catch | None:
    """Runs tests below a folder until one fails."""
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=no"]
    command = [sys.executable, "-m", "pytest", *options, suite]
    try:
        done = subprocess.run(
            command, cwd=root, env=_surroundings(root), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return Catch(f"{suite} hangs", 0)
    if not done.returncode:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return Catch(failed[1] if failed else f"{suite}: {done.stdout[-300:]}", sum(counts.values()))


SEEDS = """
import sys
from gpu_scheduler.sim.plan import make_plan
from gpu_scheduler.sim.world import run_plan
print(next((seed for seed in range(1, int(sys.argv[1]) + 1) if run_plan(make_plan(seed)).breach), 0))
"""


def run_seeds(root: Path, seeds: int) -> int:
    """How many seeds the simulation below a folder takes to break a promise; 0 when it keeps them all."""
    command = [sys.executable, "-c", SEEDS, str(seeds)]
    where = {**_surroundings(root), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=root, env=where, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


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


def catch(bug: Bug) -> Catch | None:
    """The first test of the bug's suites that notices it."""
    with planted(bug) as root:
        return next(filter(None, (run_suite(root, suite) for suite in bug.suites)), None)


def simulate(bug: Bug, seeds: int) -> int:
    """After how many seeds the simulation notices a bug; 0 if it does not."""
    with planted(bug) as root:
        return run_seeds(root, seeds)


def find_failures(bugs: Iterable[Bug], seeds: int) -> list[str]:
    """What fails without any bug: it would seem to catch them all."""
    with planted() as root:
        if seeds:
            return [f"seed {seed} of the simulation" for seed in [run_seeds(root, seeds)] if seed]
        suites = {suite: None for bug in bugs for suite in bug.suites}
        return [found.test for found in (run_suite(root, suite) for suite in suites) if found]


def main() -> int:
    """Plants the bugs that are named, or all; fails if one is not caught."""
    parser = argparse.ArgumentParser(description="Plant known bugs into a copy of the code and see who catches them.")
    parser.add_argument("numbers", type=int, nargs="*", metavar="NUMBER", help="only these bugs")
    parser.add_argument("--seeds", type=int, default=0, help="ask the simulation with so many seeds, not the tests")
    options = parser.parse_args()
    chosen = options.numbers or range(len(BUGS))
    if failures := find_failures([BUGS[number] for number in chosen], options.seeds):
        print(f"without any bug there fails already: {', '.join(failures)}")
        return 1
    missed = 0
    for number in chosen:
        bug = BUGS[number]
        begun = time.perf_counter()
        if options.seeds:
            seeds = simulate(bug, options.seeds)
            told = f"caught after {seeds} seeds" if seeds else f"not caught by {options.seeds} seeds"
            missed += not seeds
        else:
            found = catch(bug)
            told = f"caught by {found.test}, test {found.tests}" if found else "NOT CAUGHT"
            missed += not found
        print(f"{number:2} {bug.name}: {told} ({time.perf_counter() - begun:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs caught")
    return missed > 0 and not options.seeds


if __name__ == "__main__":
    sys.exit(main())
