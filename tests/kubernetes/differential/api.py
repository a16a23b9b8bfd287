"""Compares the local API server with a real one: sends the same requests to both, and compares every reply.

    python -m tests.kubernetes.differential.api --version 1.35 --sequences 2000 --start 1    # all of it
    python -m tests.kubernetes.differential.api --version 1.35 --sequences 1 --start 137     # one seed again

Progress goes to standard error, the last line is the summary, and the exit code is 1 if known.py does not explain a
difference.
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
    """The results of a run."""

    problems: list[str] = field(default_factory=list)
    passing: int = 0
    """Differences that were gone when the sequence was replayed: caused by a busy machine, not by the server."""
    used: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    sequences: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    marks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests of the catalogue with a known difference, and its manner."""

    def add(self, outcome: Outcome) -> None:
        """Adds the outcome of a sequence."""
        self.sequences += 1
        self.requests += outcome.requests
        self.used.update(rule.why for rule in outcome.used)
        self.codes.update(outcome.codes)

    def unused(self, minor: str) -> list[Known]:
        """Rules that explained nothing, and should be removed."""
        return [rule for rule in KNOWN if rule.why not in self.used and re.fullmatch(rule.minor or ".*", minor)]


async def run_catalogue(pair: Pair, report: Report) -> None:
    """Plays every entry of the catalogue, each in its own namespace."""
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
    """Plays random sequences by their seeds; starts no new one after `most` problems."""
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


async def _main(options: argparse.Namespace) -> Report:
    report = Report()
    async with servers(options.version) as pair:
        if not options.no_catalogue:
            await run_catalogue(pair, report)
            sys.stderr.write(f"catalogue: {report.sequences} entries, {len(report.problems)} differences\n")
        await run_sequences(pair, range(options.start, options.start + options.sequences), report, options.most)
    return report


def main() -> int:
    """Runs what the command line asks for; returns 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.differential.api")
    parser.add_argument("--version", required=True, choices=binaries.versions())
    parser.add_argument("--sequences", type=int, default=100, help=f"how many, of {LENGTH} requests each")
    parser.add_argument("--start", type=int, default=1, help="the seed of the first one; the others follow")
    parser.add_argument("--no-catalogue", action="store_true", help="leave out the catalogue of bad inputs")
    parser.add_argument("--most", type=int, default=10, help="stop after so many differences")
    options = parser.parse_args()
    begun = time.monotonic()
    report = asyncio.run(_main(options))
    for problem in report.problems:
        sys.stdout.write(f"{problem}\n\n")
    for why, count in report.used.most_common():
        sys.stdout.write(f"known, {count} times: {why}\n")
    for rule in report.unused(options.version):
        sys.stdout.write(f"known, but never seen: {rule.why}\n")
    if report.marks:
        manners = Counter(manner for manner, _ in report.marks)
        sys.stdout.write(f"bad inputs with a known difference: {dict(manners)}\n")
    sys.stdout.write(f"answers by code: {dict(sorted(report.codes.items()))}\n")
    took = f"{time.monotonic() - begun:.0f} s"
    counts = f"{report.sequences} sequences, {report.requests} requests, {len(report.problems)} unexplained differences"
    sys.stdout.write(f"Kubernetes {options.version}: {counts}, {report.passing} that passed, {took}\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
