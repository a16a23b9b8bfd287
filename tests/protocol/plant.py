"""Plants known bugs into a copy of the code, one at a time, and tells which tests catch them:
`python -m tests.protocol.plant [NUMBER...]`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.protocol.bugs import DEVICES, GANGS, PREEMPTION, Bug
from tests.protocol.commit_bugs import CACHES, COMMITS

BUGS = (*GANGS, *PREEMPTION, *DEVICES, *COMMITS, *CACHES)
ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "pyproject.toml", "charts", "examples")
PATIENCE = 900.0
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
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=no", suite]
    where = {**os.environ, "PYTHONPATH": f"{root / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=where, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return Catch(f"{suite} hangs", 0)
    if not done.returncode:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return Catch(failed[1] if failed else f"{suite}: {done.stdout[-300:]}", sum(counts.values()))


def catch(bug: Bug) -> Catch | None:
    """Plants a bug into a copy of the code and looks which of its suites notices."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, root / name)
        plant(bug, root)
        for suite in bug.suites:
            found = run_suite(root, suite)
            if found is not None:
                return found
    return None


def main(numbers: list[int]) -> int:
    """Plants the bugs of these numbers, or all; fails if one is not caught."""
    missed = 0
    for number in numbers or range(len(BUGS)):
        bug = BUGS[number]
        begun = time.perf_counter()
        found = catch(bug)
        missed += found is None
        told = f"caught by {found.test}, test {found.tests}" if found else "NOT CAUGHT"
        print(f"{number:2} {bug.name}: {told} ({time.perf_counter() - begun:.0f} s)", flush=True)
    print(f"{len(numbers or BUGS) - missed} of {len(numbers or BUGS)} planted bugs caught")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
