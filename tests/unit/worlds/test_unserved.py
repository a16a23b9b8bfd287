"""Worlds without a scheduler: whoever waits in vain, and whatever is left in the end, is noticed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.worlds.faults import KINDS
from tests.worlds.loop import CircleError, WorldLoop
from tests.worlds.observer import Observer
from tests.worlds.plan import Action, Plan
from tests.worlds.settled import Settled
from tests.worlds.world import Result, run_plan

PATIENT, HASTY = 8, 2
"""Seeds of worlds that wait until nothing is left, and of others."""


def _run(*kinds: str, seed: int = HASTY) -> Result:
    actions = tuple(Action(1.0, kind, 0, 0.5) for kind in kinds)
    return run_plan(Plan(seed, (("node0", 2, True),), 0, 0, (), actions), KINDS)


def test_a_gang_that_waits_for_ever_is_a_breach() -> None:
    assert _run("create-gang").breach.startswith("L1: after 300 s of calm there wait: default.g0")


def test_a_gang_that_small_pods_starve_is_a_breach() -> None:
    assert _run("stream").breach == "L2: default.g0 has not started, and small pods keep coming"


def test_who_enters_what_is_drained_for_another_is_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settled, "find_trespass", lambda _self: "somebody is where nobody may be")
    assert _run("create-gang").breach == "L2: somebody is where nobody may be"


@pytest.mark.parametrize(
    ("seed", "left", "breach"),
    [
        (HASTY, "committed 1-1-0", "L2: left over: committed 1-1-0"),
        (PATIENT, "1-1-0", "L2: left over: 1-1-0"),
        (HASTY, "1-1-0", ""),
    ],
)
def test_what_is_left_over_is_a_breach(seed: int, left: str, breach: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Observer, "left_over", lambda _self: [left])
    assert _run(seed=seed).breach == breach


def test_who_goes_on_however_often_it_is_cancelled_is_noticed() -> None:
    loop = WorldLoop(1)

    async def go_on() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1.0)

    loop.set_exception_handler(lambda *_: None)  # it says that a task is left
    loop.start(loop.add("stubborn"), go_on())
    loop.run_until_complete(asyncio.sleep(0.5))
    with pytest.raises(CircleError, match="1 tasks go on"):
        loop.end()
