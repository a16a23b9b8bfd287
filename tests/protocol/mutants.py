"""Mutation testing: changes the code at random places, one at a time, and reports the changes that no test notices:
`python -m tests.protocol.mutants [--count N] [--seed N]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

from tests.protocol import reach as reaching
from tests.protocol.equivalents import EQUIVALENT
from tests.protocol.mutators import Mutant, choose_mutants, find_mutants
from tests.protocol.plant import ROOT
from tests.protocol.reach import IMPORTING, Reach, Recorder
from tests.protocol.trials import OPTIONS, Outcome, Trial, fork, isolate, try_all

PACKAGE = "src/gpu_scheduler/"
CHANGED = tuple(
    f"{PACKAGE}{name}" for name in ("core/*.py", "core/*/*.py", "scheduler/commit/committer.py", "webhook/*.py")
)
TESTS = ("tests/unit/*/test_*.py", "tests/protocol/test_*.py")
IRRELEVANT = ("*/operator/*", "*/cli/*", "*/base/*", "*/project/*", "*/k8s/*", *(f"*/test_{name}.py" for name in (
    "model", "plant", "mutants", "definitions", "metrics", "commit_log", "dialect_*", "options", "annotations",
    "settings", "owners", "shrink",
)))  # fmt: skip
"""Tests that run almost none of the changed code, or run it in other processes."""

BUILD = ROOT / "build" / "mutants"
SURVIVED = ("survived", "not run")
COLUMNS = ("killed", "timeout", *SURVIVED, "equivalent", "gone", "error")
REQUIRED_SHARE = 0.85
"""The share of mutants that tests must kill."""

_NO_OUTCOME = Outcome("", "", 0, 0.0)


class Result(NamedTuple):
    """The result of a mutant."""

    file: str
    function: str
    diff: str
    line: int
    status: str
    test: str
    tests: int
    seconds: float


def is_irrelevant(test: str) -> bool:
    """Whether a test file is irrelevant for mutants."""
    return any(fnmatch(test, pattern) for pattern in IRRELEVANT)


def order_tests(names: set[str], reach: Reach, budget: float) -> list[str]:
    """Selects tests up to a time budget: fast ones first, and the cases of one test spread out, as later ones kill
    less."""
    cases: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names, key=lambda name: (reach[name].seconds, name)):
        cases[name.split("[")[0]].append(name)
    costs = {
        name: turn * max(0.01, reach[name].seconds) for part in cases.values() for turn, name in enumerate(part, 1)
    }
    chosen: list[str] = []
    spent = 0.0
    for name in sorted(costs, key=lambda name: (costs[name], name)):
        spent += reach[name].seconds
        if chosen and spent > budget:
            break
        chosen.append(name)
    return chosen


class Index:
    """Finds the tests that run the lines of a mutant."""

    def __init__(self, root: Path, files: list[str], reach: Reach) -> None:
        self._reach = reach
        self._by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        for name, test in reach.items():
            for file, lines in test.lines.items():
                for line in lines:
                    self._by_line[file, line].add(name)
        for tests in self._by_line.values():
            tests.discard(IMPORTING)
        self._texts = {file: (root / file).read_text().splitlines() for file in files}
        of_tests = {name.split("::")[0] for name in reach if name != IMPORTING}
        self._test_texts = {file: (root / file).read_text() for file in of_tests}

    def find_tests(self, mutant: Mutant, budget: float) -> list[str]:
        """The tests that run its lines; for lines that only run at import, the tests that run or name what is
        defined there."""
        first, last = mutant.lines
        names = set[str]().union(*(self._by_line.get((mutant.file, line), ()) for line in range(first, last + 1)))
        if not names and mutant.name:
            used = re.compile(rf"\b{re.escape(mutant.name)}\b")
            for file, lines in self._texts.items():
                for number in (number for number, line in enumerate(lines, 1) if used.search(line)):
                    names |= self._by_line.get((file, number), set())
            saying = {file for file, text in self._test_texts.items() if used.search(text)}
            names |= {name for name in self._reach if name.split("::")[0] in saying}
        return order_tests(names, self._reach, budget)


def find_reach(root: Path, files: list[str], tests: list[str], folder: Path, jobs: int) -> Reach:
    """Finds which lines each test runs, in separate processes, for test files without a stored result."""
    paths = {test: folder / f"{Path(test).stem}-{reaching.digest(root, [test])}.json" for test in tests}
    unknown = [test for test, path in paths.items() if not path.exists()]
    parts = filter(None, (unknown[i::jobs] for i in range(jobs)))
    with tempfile.TemporaryDirectory() as place:
        workers = [fork(partial(_record, part, Recorder(root, files, paths), place)) for part in parts]
        codes = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
    if any(codes):
        sys.exit(f"cannot find which lines each test runs: pytest ended with {max(codes, key=abs)}")
    return reaching.join(reaching.load(path) for path in paths.values() if path.exists())


def _record(tests: list[str], recorder: Recorder, place: str) -> int:
    isolate(place, 3600)
    recorder.start()
    code = pytest.main([*OPTIONS, *tests], plugins=[recorder])
    return 0 if code == pytest.ExitCode.TESTS_FAILED else code


def try_mutants(trials: list[Trial], root: Path, tests: list[str], reach: Reach, jobs: int) -> Iterator[Result]:
    """Tries mutants in parallel processes, and yields each result when it is ready."""
    yield from (_make_result(root, trial, Outcome("not run", "", 0, 0.0)) for trial in trials if not trial.tests)
    tried = [trial for trial in trials if trial.tests]
    reading, writing = os.pipe()
    send = partial(_send, writing)
    workers = [fork(partial(try_all, tried[part::jobs], root, tests, reach, send)) for part in range(jobs)]
    os.close(writing)
    by_number = {trial.number: trial for trial in tried}
    with open(reading) as pipe:
        for line in pipe:
            number, *outcome = json.loads(line)
            yield _make_result(root, by_number.pop(number), Outcome(*outcome))
    for worker in workers:
        os.waitpid(worker, 0)
    lost = Outcome("error", "! its worker ended early", 0, 0.0)
    yield from (_make_result(root, trial, lost) for trial in by_number.values())


def _send(pipe: int, trial: Trial, outcome: Outcome) -> None:
    os.write(pipe, (json.dumps([trial.number, *outcome]) + "\n").encode())


def _make_result(root: Path, trial: Trial, outcome: Outcome) -> Result:
    mutant = trial.mutant
    return Result(
        mutant.file, mutant.function, mutant.diff((root / mutant.file).read_text()), mutant.lines[0], *outcome
    )


def load_results(path: Path) -> list[Result]:
    """Reads results, one per line."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def report(results: list[Result]) -> bool:
    """Prints the survivors, the failed trials and a table; returns whether all were tried and enough were killed."""
    equal = {(f"{PACKAGE}{one.file}", one.function, f"-{one.old}\n+{one.new}") for one in EQUIVALENT}
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    for result in sorted(results):
        status = result.status
        if status in SURVIVED and (result.file, result.function, squeeze(result.diff)) in equal:
            status = "equivalent"
        elif status in SURVIVED:
            print(f"\n{result.file}:{result.line} {result.function}: {status}\n{result.diff}")
        elif status == "error":
            print(f"\n{result.file}:{result.line} {result.function}: could not be tried {result.test}")
        statuses[result.file][status] += 1
    print(f"\n{'file':28}" + "".join(f"{column:>12}" for column in COLUMNS))
    for file, counts in sorted(statuses.items()):
        print(f"{file.removeprefix(PACKAGE):28}" + "".join(f"{counts[column]:12}" for column in COLUMNS))
    total = sum(statuses.values(), Counter[str]())
    killed = total["killed"] + total["timeout"]
    judged = killed + sum(total[status] for status in SURVIVED)
    share = killed / judged if judged else 0.0
    print(
        f"{killed} of {judged} mutants killed ({share:.1%}), {total['timeout']} of them by timeout; "
        f"{total['survived']} survived, {total['not run']} are in lines that no test runs; "
        f"{total['equivalent']} more are equivalent, the code of {total['gone']} is gone, "
        f"{total['error']} could not be tried"
    )
    return share >= REQUIRED_SHARE and not total["error"]


def squeeze(diff: str) -> str:
    """Removes the indentation from a diff."""
    return "\n".join(line[0] + line[1:].strip() for line in diff.splitlines())


def find_again(root: Path, results: list[Result]) -> tuple[list[Mutant], list[Result]]:
    """The earlier survivors as they are in the present code, and the other results."""
    mutants: list[Mutant] = []
    standing = [result for result in results if result.status not in SURVIVED]
    for result in results:
        if result.status in SURVIVED:
            text = (root / result.file).read_text()
            same = [
                m
                for m in find_mutants(result.file, text)
                if (m.function, m.diff(text)) == (result.function, result.diff)
            ]
            mutants += sorted(same, key=lambda mutant: abs(mutant.lines[0] - result.line))[:1]
            standing += [] if same else [result._replace(status="gone")]
    return mutants, standing


EXAMPLES = """
examples:
  python -m tests.protocol.mutants --count 500 --seed 1 --jobs 2
  python -m tests.protocol.mutants --count 20 --seed 3 --budget 5
  python -m tests.protocol.mutants --again build/mutants/seed-1-0123456789abcdef.jsonl
"""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.protocol.mutants",
        description="Change the code at random places and report whether tests notice.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=500, help="how many mutants (default 500)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default 1)")
    parser.add_argument(
        "--budget", type=float, default=40.0, help="seconds of tests a mutant must survive (default 40)"
    )
    parser.add_argument("--without", metavar="PATTERN", default="^$", help="leave out test files whose path matches")
    parser.add_argument("--again", type=Path, metavar="RESULTS", help="only the survivors in this file of results")
    options = parser.parse_args(arguments)
    for name in ("count", "jobs", "budget"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} {getattr(options, name)}: must be more than 0")
    if options.again and not options.again.is_file():
        parser.error(f"--again {options.again}: there is no such file")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the mutants of a seed, and continues an interrupted run; returns 1 if too few are killed."""
    options = parse(arguments)
    again = load_results(options.again) if options.again else []
    os.chdir(ROOT)
    files = sorted(str(path.relative_to(ROOT)) for pattern in CHANGED for path in ROOT.glob(pattern))
    tests = [str(path.relative_to(ROOT)) for pattern in TESTS for path in sorted(ROOT.glob(pattern))]
    tests = [test for test in tests if not is_irrelevant(test) and not re.search(options.without, test)]
    python = [str(path.relative_to(ROOT)) for folder in ("src", "tests/unit") for path in (ROOT / folder).rglob("*.py")]
    code = [file for file in python if not Path(file).name.startswith("test_")]
    state, key = reaching.digest(ROOT, code), reaching.digest(ROOT, [*code, *tests])
    path = BUILD / f"seed-{options.seed}-{key}.jsonl"
    print(f"results: {path.relative_to(ROOT)}; finding which lines each test runs ...", flush=True)
    prepare()
    begun = time.monotonic()
    reach = find_reach(ROOT, files, tests, BUILD / f"reach-{state}", options.jobs)
    print(f"{len(reach) - 1} tests pass without a mutant ({time.monotonic() - begun:.0f} s)", flush=True)
    if options.again:
        chosen, known = find_again(ROOT, again)
    else:
        chosen = choose_mutants(ROOT, files, options.count, options.seed)
        keys = {_make_result(ROOT, Trial(0, mutant, []), _NO_OUTCOME)[:4] for mutant in chosen}
        known = [result for result in load_results(path) if result[:4] in keys] if path.exists() else []
    index = Index(ROOT, files, reach)
    done = {result[:4] for result in known}
    trials = [Trial(number, mutant, index.find_tests(mutant, options.budget)) for number, mutant in enumerate(chosen)]
    trials = [trial for trial in trials if _make_result(ROOT, trial, _NO_OUTCOME)[:4] not in done]
    counts: Counter[str] = Counter()
    with path.open("a") as lines:
        if options.again:
            lines.writelines(json.dumps(result._asdict()) + "\n" for result in known)
        for result in try_mutants(trials, ROOT, tests, reach, options.jobs):
            if result.status != "error":  # the next run tries it again
                lines.write(json.dumps(result._asdict()) + "\n")
                lines.flush()
            known.append(result)
            counts[result.status] += 1
            summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            print(f"{counts.total()}/{len(trials)} ({summary}) {result.file}:{result.line} {result.status}", flush=True)
    print(f"{(time.monotonic() - begun) / 60:.0f} minutes")
    return not report(known)


def prepare() -> None:
    """Imports the libraries that all tests use; makes property tests deterministic and stops them at the first
    failure."""
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutants")
    for name in ("aiohttp.web", "cryptography.x509", "msgspec", "numpy", "prometheus_client", "structlog", "yaml"):
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
