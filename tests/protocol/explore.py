"""Explores the model of the commit protocol, complete and with one rule removed: `python -m tests.protocol.explore`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tests.protocol.model import Model
from tests.protocol.world import SCENARIOS, WIDER, World

RULES = {
    1: "intents are written before anything is done, and cannot be lost",
    2: "one swap of the Lease commits, and a lost reply decides nothing",
    3: "a bind is for one pod at one attempt, and carries its devices",
    4: "an entry is over when its outcome is seen",
    5: "a bind is given up by raising the attempt",
    6: "deletes are committed too, and preemptors are bound later",
    7: "a new leader lists first, and rolls forward",
    8: "holds are derived",
}
"""The rules of the commit protocol."""


class Removal(NamedTuple):
    """A removed rule, its replacement, a scenario that shows the harm, and the promise that it breaks."""

    rule: int
    instead: str
    scenario: str
    breaks: str


REMOVALS = (
    Removal(1, "nothing is written", "two gangs want the same GPUs", "S1"),
    Removal(1, "intents have no finalizer", "two gangs want the same GPUs", "L1"),
    Removal(2, "an intent counts without a swap", "two gangs want the same GPUs", "S1"),
    Removal(2, "a swap without a reply is forgotten", "two gangs want the same GPUs", "S1"),
    Removal(2, "the Lease has no finalizer", "two gangs want the same GPUs", "S1"),
    Removal(3, "binds go by name", "pods are deleted and recreated", "S1"),
    Removal(3, "binds carry no version", "binds are refused", "S1"),
    Removal(3, "devices are recorded after the bind", "two gangs want the same GPUs", "S3"),
    Removal(3, "binds and deletes go by name", "pods are recreated for another scheduler", "S5"),
    Removal(4, "a commit is over on the replies", "two gangs want the same GPUs", "S1"),
    Removal(5, "a bind is given up by forgetting it", "binds are refused", "S1"),
    Removal(6, "deletes are not committed", "pods are deleted and recreated", "S2"),
    Removal(6, "the preemptor is bound in the commit that evicts", "a gang of higher priority arrives", "S1"),
    Removal(7, "a new leader decides from an old cache", "two gangs want the same GPUs", "S1"),
    Removal(7, "open entries are not counted", "two gangs want the same GPUs", "S1"),
    Removal(7, "half-bound gangs are rolled back", "two gangs want the same GPUs", "S1"),
    Removal(8, "holds are remembered", "bare pods are deleted and recreated", "S2"),
    Removal(8, "succeeded members do not count", "two gangs want the same GPUs", "S2"),
)


class Verdict(NamedTuple):
    """How many worlds were explored; the broken promise, if any, and the shortest trace to it."""

    worlds: int
    breach: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.worlds:,} worlds, {self.breach or 'no breach'}"]
        return "\n".join(lines + [f"    {number:2}. {line}" for number, line in enumerate(self.trace, 1)])


def explore(model: Model, promise: str = "") -> Verdict:
    """Searches every reachable world, the nearest first, for a breach of any promise or of this one."""
    start = model.scenario.start
    numbers = {start: 0}
    worlds = [start]
    came_by: list[tuple[int, str]] = [(-1, "")]
    # For every world, those that lead to it by one step without a fault.
    before: list[list[int]] = [[]]

    def trace_to(number: int) -> tuple[str, ...]:
        trace = []
        while number:
            number, text = came_by[number]
            trace.append(text)
        return tuple(reversed(trace))

    for number, world in enumerate(worlds):  # grows during the loop
        breach = model.breach(world)
        if breach and breach.startswith(promise):
            return Verdict(len(worlds), breach, trace_to(number))
        for text, fault, found in model.steps(world):
            after = model.without_useless(found)
            place = numbers.setdefault(after, len(worlds))
            if place == len(worlds):
                worlds.append(after)
                came_by.append((number, text))
                before.append([])
            if not fault:
                before[place].append(number)
    stuck = _find_stuck(model, worlds, before)
    if stuck is None:
        return Verdict(len(worlds))
    return Verdict(len(worlds), model.unsettled(worlds[stuck]), trace_to(stuck))


def _find_stuck(model: Model, worlds: list[World], before: list[list[int]]) -> int | None:
    """The nearest world from which no path without faults leads to a settled one."""
    can_settle = [not model.unsettled(world) for world in worlds]
    queue = deque(number for number, good in enumerate(can_settle) if good)
    while queue:
        for number in before[queue.popleft()]:
            if not can_settle[number]:
                can_settle[number] = True
                queue.append(number)
    return next((number for number, good in enumerate(can_settle) if not good), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 if the protocol breaks a promise, or keeps all of them without one of its rules."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.explore", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="without the wider scenarios, which take minutes")
    scenarios = SCENARIOS if parser.parse_args(arguments).quick else SCENARIOS | WIDER
    wrong = 0
    for name, scenario in scenarios.items():
        begun = time.perf_counter()
        verdict = explore(Model(scenario))
        wrong += bool(verdict.breach)
        print(f"{name}: {verdict} ({time.perf_counter() - begun:.1f} s)", flush=True)
    for removal in REMOVALS:
        verdict = explore(Model(SCENARIOS[removal.scenario], removal.instead), removal.breaks)
        wrong += not verdict.breach.startswith(removal.breaks)
        print(f"\nrule {removal.rule}, {RULES[removal.rule]}; instead: {removal.instead}\n  {verdict}", flush=True)
    print(f"\n{len(scenarios)} scenarios, {len(REMOVALS)} removals of {len(RULES)} rules, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
