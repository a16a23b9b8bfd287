"""How often `place_gang` misses a possible placement of a gang of several shapes, over seeded random cases.

Run as `python -m tests.unit.core.miss_rate --cases 5000`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from gpu_scheduler.core.placement.place import place_gang
from tests.unit.core.clusters import Problem, build_cluster, picking, random_problem
from tests.unit.core.oracle import can_place


@dataclass
class Tally:
    """The results of the cases."""

    cases: int = 0
    feasible: int = 0
    missed: list[int] = field(default_factory=list)
    """The seeds of the cases that brute force places and `place_gang` does not."""

    @property
    def rate(self) -> float:
        return len(self.missed) / max(1, self.feasible)


def mixed_problem(seed: int) -> Problem:
    """The problem of a seed: two or three groups of different shapes."""
    pick = picking(Random(seed))
    return random_problem(pick, groups=pick([2, 3]))


def measure(seeds: Iterable[int]) -> Tally:
    """Places the problem of every seed, and checks refusals by brute force."""
    tally = Tally()
    for seed in seeds:
        problem = mixed_problem(seed)
        tally.cases += 1
        if place_gang(build_cluster(problem.fleet), problem.bid) is not None:
            tally.feasible += 1
        elif can_place(problem.fleet, problem.asks, problem.bid.topology):
            tally.feasible += 1
            tally.missed.append(seed)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    tally = measure(range(options.first, options.first + options.cases))
    sys.stdout.write(
        f"{tally.cases} cases, {tally.feasible} feasible, {len(tally.missed)} missed: {tally.rate:.3%}"
        f"{' (seeds ' + ', '.join(map(str, tally.missed)) + ')' if tally.missed else ''}\n"
    )


if __name__ == "__main__":
    main()
