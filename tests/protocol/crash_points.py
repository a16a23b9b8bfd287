"""Kills leaders at every API call of a commit, alone and in pairs: `python -m tests.protocol.crash_points`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.protocol.deaths import Death, Fate, Outcome, Remains, at, play
from tests.protocol.scenes import SCENES

PROGRESS_PERIOD = 10.0
"""How often the progress of a scene is printed, in seconds."""


class Tally(NamedTuple):
    """Second deaths after one first death: how many, of how many kinds, and the traces of those that cause a breach."""

    deaths: int
    kinds: int
    breaches: list[str]


def sort_deaths(points: dict[Death, Remains]) -> dict[Death, int]:
    """One death of each kind, with the number of its kind: deaths that leave the API in the same state, with the
    same writes in flight."""
    chosen: dict[tuple[Remains, Fate], Death] = {}
    counts: dict[Death, int] = {}
    for death, remains in points.items():
        first = chosen.setdefault((remains, death.fate), death)
        counts[first] = counts.get(first, 0) + 1
    return counts


def find_deaths(scene: str) -> dict[Death, int]:
    """One of each kind of deaths of the first scheduler, with the number of its kind."""
    return sort_deaths(play(SCENES[scene]()).points)


def try_deaths(scene: str, *deaths: Death) -> str:
    """Returns the trace of a breach, or nothing."""
    outcome = play(SCENES[scene](), [at(death) for death in deaths])
    assert not outcome.missed, f"{scene}: no scheduler reached {deaths[-1]}"
    return _format_breach(scene, outcome)


def sweep(scene: str, first: Death) -> Tally:
    """Tries every second death after a first one, and the first one alone.

    Where a second death of a new kind could happen, the total process forks: it happens in the child only.
    """
    known: set[tuple[Remains, Fate]] = set()
    breaches: list[str] = []
    report: int | None = None

    def fork_here(death: Death, remains: Remains) -> bool:
        nonlocal report
        kind = (remains, death.fate)
        if kind in known:
            return False
        known.add(kind)
        loop = asyncio.get_running_loop()
        inlet, outlet = os.pipe()
        other = os.fork()
        if not other:
            asyncio._set_running_loop(loop)  # asyncio remembers the process of a loop
            report = outlet
            return True
        os.close(outlet)
        with os.fdopen(inlet) as pipe:
            text = pipe.read()
        if os.waitpid(other, 0)[1]:
            text = f"{scene}: {first}, then {death}: the process failed"
        breaches.extend([text] if text else [])
        return False

    outcome = play(SCENES[scene](), [at(first), fork_here])
    text = _format_breach(scene, outcome)
    if report is not None:
        os.write(report, text.encode())
        os._exit(0)
    return Tally(len(outcome.points), len(known), [*breaches, *([text] if text else [])])


def _format_breach(scene: str, outcome: Outcome) -> str:
    return f"{scene}:\n{outcome.trace}" if outcome.breaches else ""


class Figures(NamedTuple):
    """What was tried in a scene, and the breaches found."""

    deaths: int
    kinds: int
    pairs: int
    pair_kinds: int
    breaches: int

    def __str__(self) -> str:
        return (
            f"{self.deaths} deaths of {self.kinds} kinds, {self.pairs} pairs of {self.pair_kinds} kinds, "
            f"{self.breaches} breaches"
        )


def try_scene(scene: str, pool: Executor) -> Figures:
    """Tries every pair in a scene, and prints the first breaches."""
    firsts = find_deaths(scene)
    tallies: list[Tally] = []
    reported = time.monotonic()
    for tally in pool.map(partial(sweep, scene), firsts):
        tallies.append(tally)
        if time.monotonic() - reported > PROGRESS_PERIOD:
            reported = time.monotonic()
            print(f"{scene}: {len(tallies)} of {len(firsts)} first deaths", flush=True)
    breaches = [trace for tally in tallies for trace in tally.breaches]
    for trace in breaches[:5]:
        print(trace, end="\n\n")
    pairs = sum(count * tally.deaths for count, tally in zip(firsts.values(), tallies, strict=True))
    kinds = sum(tally.kinds for tally in tallies)
    return Figures(sum(firsts.values()), len(firsts), pairs, kinds, len(breaches))


def main() -> int:
    """Tries every pair in the named scenes, or in all, and prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.crash_points", description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"only these of {', '.join(SCENES)}")
    names = parser.parse_args().scenes or [*SCENES]
    if unknown := [name for name in names if name not in SCENES]:
        parser.error(f"unknown scene {', '.join(unknown)}; the scenes are {', '.join(SCENES)}")
    begun = time.monotonic()
    found: list[Figures] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for scene in names:
            found.append(try_scene(scene, pool))
            print(f"{scene}: {found[-1]}, {time.monotonic() - begun:.0f} s so far", flush=True)
    total = Figures(*map(sum, zip(*found, strict=True)))
    print(f"{len(names)} scenes: {total}, {time.monotonic() - begun:.0f} s")
    return total.breaches > 0


if __name__ == "__main__":
    sys.exit(main())
