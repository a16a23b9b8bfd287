"""Plays sequences of requests on both servers, and shortens those that fail."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kubernetes.differential.compare import Difference, compare, manner
from tests.kubernetes.differential.known import Known
from tests.kubernetes.differential.normalise import Names, normalise
from tests.kubernetes.differential.servers import Pair
from tests.kubernetes.differential.steps import Reply, ServerValues, Step, send

_numbers = itertools.count(1)

# Only a real server mounts tokens, so pods opt out.
_SETUP = (
    Step("POST", "/api/v1/namespaces", {"metadata": {"name": "$NS"}}),
    Step(
        "POST",
        "/api/v1/namespaces/$NS/serviceaccounts",
        {"metadata": {"name": "default"}, "automountServiceAccountToken": False},
    ),
)


@dataclass(frozen=True)
class Finding:
    """A request with different replies."""

    number: int
    step: Step
    differences: list[Difference]
    real: Reply
    local: Reply
    manner: str = ""
    """How the replies differ: see known_bad_inputs.py."""

    def show(self) -> str:
        """The finding as text."""
        lines = [
            f"step {self.number + 1}: {self.step.show()}",
            f"  codes: real {self.real.code}, local {self.local.code}",
        ]
        return "\n".join([*lines, *(one.show() for one in self.differences)])


@dataclass
class Outcome:
    """The outcome of a sequence."""

    findings: list[Finding] = field(default_factory=list)
    used: list[Known] = field(default_factory=list)
    requests: int = 0
    codes: dict[int, int] = field(default_factory=dict)


class _Side:
    """One server in one sequence."""

    def __init__(self, namespace: str) -> None:
        self.values = ServerValues(namespace)
        self.names = Names(namespace)


async def play(pair: Pair, steps: Sequence[Step], *, to_the_end: bool = False) -> Outcome:
    """Sends every request to both servers, until they differ in an unknown way."""
    namespace = f"d{next(_numbers)}-{os.getpid()}"
    sides = (_Side(namespace), _Side(namespace))
    outcome = Outcome()
    for step in _SETUP:
        for reply in await _ask(pair, step, sides):
            assert reply.code == 201, f"{step.show()}: {reply.code} {reply.body}"
    for number, step in enumerate(steps):
        real, local = await _ask(pair, step, sides)
        outcome.requests += 1
        outcome.codes[real.code] = outcome.codes.get(real.code, 0) + 1
        answers = _normalised(step, (real, local), sides)
        left, used = compare(pair.minor, step, *answers)
        outcome.used += used
        if left:
            outcome.findings.append(Finding(number, step, left, real, local, manner(*answers)))
            if not to_the_end:
                break
    return outcome


async def _ask(pair: Pair, step: Step, sides: tuple[_Side, _Side]) -> tuple[Reply, Reply]:
    real, local = sides
    return await asyncio.gather(send(pair.real, step, real.values), send(pair.local, step, local.values))


def _normalised(step: Step, replies: tuple[Reply, Reply], sides: tuple[_Side, _Side]) -> tuple[Any, Any]:
    real, local = replies
    return normalise(step, real, sides[0].names), normalise(step, local, sides[1].names)


async def shrink(pair: Pair, steps: Sequence[Step], finding: Finding) -> tuple[list[Step], Finding]:
    """The shortest sequence that still ends in a difference, and that difference."""
    kept = list(steps[: finding.number + 1])
    size = max(1, len(kept) // 2)
    while True:
        place = 0
        shorter = False
        while place < len(kept) - 1:
            tried = kept[:place] + kept[min(place + size, len(kept) - 1) :]
            again = await play(pair, tried)
            if again.findings:
                finding = again.findings[0]
                kept = tried[: finding.number + 1]
                shorter = True
            else:
                place += size
        if size == 1 and not shorter:
            return kept, finding
        size = max(1, size // 2)
