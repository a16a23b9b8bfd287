"""Shrinks a breach: leaves out faults and actions as long as the same promise still breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.worlds.faults import FaultInjector
from tests.worlds.plan import Plan, make_plan
from tests.worlds.world import Result, run_plan


@dataclass(frozen=True, slots=True)
class Case:
    """A reduced seed: without some faults, and with some of its actions."""

    seed: int
    without: frozenset[str] = frozenset()
    keep: tuple[int, ...] | None = None
    """The numbers of the actions that are kept; all if None."""

    def plan(self) -> Plan:
        """The reduced plan."""
        plan = make_plan(self.seed)
        if self.keep is None:
            return plan
        return replace(plan, actions=tuple(plan.actions[number] for number in self.keep))

    def run(self) -> Result:
        """Runs the reduced plan."""
        return run_plan(self.plan(), self.without)

    @property
    def command(self) -> str:
        """The command that runs it again."""
        options = [f"--replay {self.seed}"]
        if self.without:
            options.append(f"--without {','.join(sorted(self.without))}")
        if self.keep is not None:
            options.append(f"--keep {','.join(map(str, self.keep)) or 'none'}")
        return f'make worlds ARGS="{" ".join(options)}"'


def shrink(seed: int, seconds: float = 120.0, clock: Callable[[], float] = time.monotonic) -> tuple[Case, Result]:
    """Returns the smallest case found in that time that breaks the same promise as the seed, and its result."""
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
    """Every smaller case, much smaller ones first."""
    used = frozenset(FaultInjector(case.seed, case.without).used)
    if len(used) > 1:
        yield replace(case, without=case.without | used)
    for name in sorted(used):
        yield replace(case, without=case.without | {name})
    keep = case.keep if case.keep is not None else tuple(range(len(make_plan(case.seed).actions)))
    half = len(keep) // 2
    if half > 1:
        yield replace(case, keep=keep[:half])
        yield replace(case, keep=keep[half:])
    for index in reversed(range(len(keep))):
        yield replace(case, keep=keep[:index] + keep[index + 1 :])
