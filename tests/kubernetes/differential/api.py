"""The local API server against a real one: the same requests to both, every answer compared.

    python -m tests.kubernetes.differential.api --version 1.35 --sequences 2000 --start 1    # all of it
    python -m tests.kubernetes.differential.api --version 1.35 --sequences 1 --start 137     # one seed again

Progress goes to standard error, the last line sums up, and the exit code is 1 when there is a difference that known.py
does not explain.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.kubernetes import binaries
from tests.kubernetes.differential.catalogue import catalogue
from tests.kubernetes.differential.generate import LENGTH, sequence
from tests.kubernetes.differential.known import KNOWN, Known
from tests.kubernetes.differential.known_bad_inputs import marks
from tests.kubernetes.differential.play import Finding, Outcome, play, shrink
from tests.kubernetes.differential.servers import Pair, servers
from tests.kubernetes.differential.steps import Step

AT_ONCE = 24


@dataclass
class Report:
    """What all of it showed."""

    problems: list[str] = field(default_factory=list)
    passing: int = 0
    """Differences that were gone when the sequence was played again: a busy machine, not the server."""
    used: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    sequences: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    marks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests of the catalogue that are known to be answered otherwise, with the manner in which."""

    def add(self, outcome: Outcome) -> None:
        """Counts what was played."""
        self.sequences += 1
        self.requests += outcome.requests
        self.used.update(rule.why for rule in outcome.used)
        self.codes.update(outcome.codes)

    def unused(self, minor: str) -> list[Known]:
        """Rules that explained nothing, and should go."""
        return [rule for rule in KNOWN if rule.why not in self.used and re.fullmatch(rule.minor or ".*", minor)]


async def run_catalogue(pair: Pair, report: Report) -> None:
    """Every entry of the catalogue, each in a namespace of its own."""
    limit = asyncio.Semaphore(AT_ONCE)
    entries = catalogue(pair.minor)
    known = marks(pair.minor, entries)

    async def one(name: str, steps: Sequence[Step]) -> None:
        async with limit:
            outcome = await play(pair, steps, to_the_end=True)
        report.add(outcome)
        for finding in outcome.findings:
            mark = (finding.manner, f"{name} #{finding.number + 1}")
            if mark in known:
                report.marks[mark] += 1
            else:
                report.problems.append(f"catalogue, {name} ({finding.manner}): {finding.show()}")

    await asyncio.gather(*(one(name, steps) for name, steps in entries.items()))
    for manner, mark in sorted(marks(pair.minor, entries, always=True) - report.marks.keys()):
        report.problems.append(f"catalogue, {mark} ({manner}): known to differ, and does not")


async def run_sequences(pair: Pair, seeds: Sequence[int], report: Report, most: int = 10) -> None:
    """Random sequences by their seeds; after `most` problems no new ones are begun."""
    limit = asyncio.Semaphore(AT_ONCE)
    begun = time.monotonic()

    async def one(seed: int) -> None:
        async with limit:
            if len(report.problems) >= most:
                return
            steps = sequence(pair.minor, seed)
            outcome = await play(pair, steps)
            report.add(outcome)
            if outcome.findings:
                await _explain(pair, seed, steps, outcome.findings[0], report)
            if report.sequences % 100 == 0:
                sys.stderr.write(f"{report.sequences} played in {time.monotonic() - begun:.0f} s\n")

    await asyncio.gather(*(one(seed) for seed in seeds))


async def _explain(pair: Pair, seed: int, steps: list[Step], finding: Finding, report: Report) -> None:
    again = await play(pair, steps)
    if not again.findings:
        report.passing += 1
        sys.stderr.write(f"seed {seed} differed once, and not again:\n{finding.show()}\n")
        return
    short, found = await shrink(pair, steps, again.findings[0])
    lines = [f"seed {seed}, shrunk to {len(short)} of {LENGTH} requests:"]
    lines += [f"  {number + 1}. {step.show()}" for number, step in enumerate(short[:-1])]
    report.problems.append("\n".join([*lines, found.show()]))
    sys.stderr.write(report.problems[-1] + "\n")


async def _main(told: argparse.Namespace) -> Report:
    report = Report()
    async with servers(told.version) as pair:
        if not told.no_catalogue:
            await run_catalogue(pair, report)
            sys.stderr.write(f"catalogue: {report.sequences} entries, {len(report.problems)} differences\n")
        await run_sequences(pair, range(told.start, told.start + told.sequences), report, told.most)
    return report


def main() -> int:
    """Runs what is asked for; 1 when something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.differential.api")
    parser.add_argument("--version", required=True, choices=binaries.versions())
    parser.add_argument("--sequences", type=int, default=100, help=f"how many, of {LENGTH} requests each")
    parser.add_argument("--start", type=int, default=1, help="the seed of the first one; the others follow")
    parser.add_argument("--no-catalogue", action="store_true", help="leave out the catalogue of bad inputs")
    parser.add_argument("--most", type=int, default=10, help="stop after so many differences")
    told = parser.parse_args()
    begun = time.monotonic()
    report = asyncio.run(_main(told))
    for problem in report.problems:
        sys.stdout.write(f"{problem}\n\n")
    for why, count in report.used.most_common():
        sys.stdout.write(f"known, {count} times: {why}\n")
    for rule in report.unused(told.version):
        sys.stdout.write(f"known, but never seen: {rule.why}\n")
    if report.marks:
        manners = Counter(manner for manner, _ in report.marks)
        sys.stdout.write(f"bad inputs known to be answered otherwise: {dict(manners)}\n")
    sys.stdout.write(f"answers by code: {dict(sorted(report.codes.items()))}\n")
    took = f"{time.monotonic() - begun:.0f} s"
    counts = f"{report.sequences} sequences, {report.requests} requests, {len(report.problems)} unexplained differences"
    sys.stdout.write(f"Kubernetes {told.version}: {counts}, {report.passing} that passed, {took}\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
