"""Explores the commit protocol, whole and with one rule taken away: `python -m tests.protocol.explore`."""

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
    1: "intents are written down before anything is done, and cannot be lost",
    2: "one swap of the Lease commits, and an answer that is lost decides nothing",
    3: "a bind is for one pod at one attempt, and carries its devices",
    4: "an entry is over when that is seen",
    5: "giving up is raising the attempt",
    6: "deletes are commits too, and winners are bound later",
    7: "who takes over looks first, and rolls forward",
    8: "holds are derived",
}
"""The rules of a commit."""


class Removal(NamedTuple):
    """A rule, what is done instead of it, where that does harm, and the promise that it breaks."""

    rule: int
    instead: str
    scenario: str
    breaks: str


REMOVALS = (
    Removal(1, "nothing is written down", "two gangs want the same GPUs", "S1"),
    Removal(1, "intents have no finalizer", "two gangs want the same GPUs", "L1"),
    Removal(2, "an intent counts without a swap", "two gangs want the same GPUs", "S1"),
    Removal(2, "a swap without an answer is forgotten", "two gangs want the same GPUs", "S1"),
    Removal(2, "the Lease has no finalizer", "two gangs want the same GPUs", "S1"),
    Removal(3, "binds go by name", "pods are deleted and made again", "S1"),
    Removal(3, "binds carry no version", "binds are refused", "S1"),
    Removal(3, "devices are recorded after the bind", "two gangs want the same GPUs", "S3"),
    Removal(3, "binds and deletes go by name", "pods are made again for another scheduler", "S5"),
    Removal(4, "a commit is over on the replies", "two gangs want the same GPUs", "S1"),
    Removal(5, "giving up is forgetting", "binds are refused", "S1"),
    Removal(6, "deletes are not committed", "pods are deleted and made again", "S2"),
    Removal(6, "the winner is bound in the commit that evicts", "a gang of higher priority comes", "S1"),
    Removal(7, "a standby decides by what it saw last", "two gangs want the same GPUs", "S1"),
    Removal(7, "open entries are not counted", "two gangs want the same GPUs", "S1"),
    Removal(7, "half-bound gangs are rolled back", "two gangs want the same GPUs", "S1"),
    Removal(8, "holds are remembered", "bare pods are deleted and made again", "S2"),
    Removal(8, "succeeded members do not count", "two gangs want the same GPUs", "S2"),
)


class Verdict(NamedTuple):
    """How many worlds were looked at; the promise that is broken, if one is, and the shortest way there."""

    worlds: int
    breach: str = ""
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.worlds:,} worlds, {self.breach or 'no breach'}"]
        return "\n".join(lines + [f"    {number:2}. {line}" for number, line in enumerate(self.story, 1)])


def explore(model: Model, promise: str = "") -> Verdict:
    """Looks at every world that can be reached, the nearest first, for a breach of any promise or of that one."""
    start = model.scenario.start
    numbers = {start: 0}
    worlds = [start]
    came_by: list[tuple[int, str]] = [(-1, "")]
    # For every world, those from which it is one step without a fault away.
    before: list[list[int]] = [[]]

    def tell(number: int) -> tuple[str, ...]:
        story = []
        while number:
            number, text = came_by[number]
            story.append(text)
        return tuple(reversed(story))

    for number, world in enumerate(worlds):  # grows while it is walked through
        breach = model.breach(world)
        if breach and breach.startswith(promise):
            return Verdict(len(worlds), breach, tell(number))
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
    return Verdict(len(worlds), model.unsettled(worlds[stuck]), tell(stuck))


def _find_stuck(model: Model, worlds: list[World], before: list[list[int]]) -> int | None:
    """The nearest world from which no way without faults leads to one that is settled."""
    hopeful = [not model.unsettled(world) for world in worlds]
    news = deque(number for number, good in enumerate(hopeful) if good)
    while news:
        for number in before[news.popleft()]:
            if not hopeful[number]:
                hopeful[number] = True
                news.append(number)
    return next((number for number, good in enumerate(hopeful) if not good), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what was found; fails if the protocol breaks a promise, or does without one of its rules."""
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
