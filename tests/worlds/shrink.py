"""The shortest way to the same breach: faults and actions are left out as long as the promise still breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.worlds.faults import Chances
from tests.worlds.plan import Plan, make_plan
from tests.worlds.world import Result, run_plan


@dataclass(frozen=True, slots=True)
class Case:
    """What of a seed is left: its faults without some, and its actions by number."""

    seed: int
    without: frozenset[str] = frozenset()
    keep: tuple[int, ...] | None = None
    """The numbers of the actions that are kept; all if None."""

    def plan(self) -> Plan:
        """The plan that is left."""
        plan = make_plan(self.seed)
        if self.keep is None:
            return plan
        return replace(plan, actions=tuple(plan.actions[number] for number in self.keep))

    def run(self) -> Result:
        """Runs what is left."""
        return run_plan(self.plan(), self.without)

    @property
    def command(self) -> str:
        """What runs it again."""
        words = [f"--replay {self.seed}"]
        if self.without:
            words.append(f"--without {','.join(sorted(self.without))}")
        if self.keep is not None:
            words.append(f"--keep {','.join(map(str, self.keep)) or 'none'}")
        return f'make simulate ARGS="{" ".join(words)}"'


def shrink(seed: int, seconds: float = 120.0, clock: Callable[[], float] = time.monotonic) -> tuple[Case, Result]:
    """The smallest case found in that time that breaks the same promise as the seed, and how it ended."""
    case = Case(seed)
    result = case.run()
    until = clock() + seconds
    smaller = bool(result.breach)
    while smaller:
        smaller = False
        for candidate in _simpler(case):
            if clock() > until:
                return case, result
            found = candidate.run()
            if found.promise == result.promise:
                case, result, smaller = candidate, found, True
                break
    return case, result


def _simpler(case: Case) -> Iterator[Case]:
    """Every case with less in it, those with much less first."""
    used = frozenset(Chances(case.seed, case.without).used)
    if len(used) > 1:
        yield replace(case, without=case.without | used)
    for name in sorted(used):
        yield replace(case, without=case.without | {name})
    keep = case.keep if case.keep is not None else tuple(range(len(make_plan(case.seed).actions)))
    half = len(keep) // 2
    if half > 1:
        yield replace(case, keep=keep[:half])
        yield replace(case, keep=keep[half:])
    for place in reversed(range(len(keep))):
        yield replace(case, keep=keep[:place] + keep[place + 1 :])
