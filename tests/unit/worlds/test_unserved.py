"""Worlds without a scheduler: gangs that are never served and Placements that are left over are noticed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.worlds.faults import KINDS
from tests.worlds.loop import StuckError, WorldLoop
from tests.worlds.observer import Observer
from tests.worlds.plan import Action, Plan
from tests.worlds.steady_state import SteadyStateChecks
from tests.worlds.world import Result, run_plan

PATIENT, HASTY = 8, 2
"""A seed whose world waits until no Placement is left, and one whose world does not."""


def _run(*kinds: str, seed: int = HASTY) -> Result:
    actions = tuple(Action(1.0, kind, 0, 0.5) for kind in kinds)
    return run_plan(Plan(seed, (("node0", 2, True),), 0, 0, (), (), actions), KINDS)


def test_a_gang_that_never_starts_is_a_breach() -> None:
    assert _run("create-gang").breach.startswith("L1: after 300 s without faults these still wait: default.g0")


def test_a_gang_that_is_starved_by_small_pods_is_a_breach() -> None:
    assert _run("small-pod-stream").breach == "L2: default.g0 has not started, and small pods keep coming"


def test_a_pod_on_a_node_that_is_drained_for_another_gang_is_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteadyStateChecks, "find_drain_violation", lambda _self: "a pod is on a drained node")
    assert _run("create-gang").breach == "L2: a pod is on a drained node"


@pytest.mark.parametrize(
    ("seed", "left", "breach"),
    [
        (HASTY, "committed 1-1-0", "L2: left over: committed 1-1-0"),
        (PATIENT, "1-1-0", "L2: left over: 1-1-0"),
        (HASTY, "1-1-0", ""),
    ],
)
def test_a_left_over_placement_is_a_breach(seed: int, left: str, breach: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Observer, "find_left_over", lambda _self: [left])
    assert _run(seed=seed).breach == breach


def test_a_task_that_survives_every_cancellation_is_noticed() -> None:
    loop = WorldLoop(1)

    async def go_on() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1.0)

    loop.set_exception_handler(lambda *_: None)  # reports that a task is left
    loop.start(loop.add("stubborn"), go_on())
    loop.run_until_complete(asyncio.sleep(0.5))
    with pytest.raises(StuckError, match="1 tasks survive"):
        loop.end()
