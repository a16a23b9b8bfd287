"""A leader may die at any API call of a commit: the next one finishes what was committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
import structlog

from tests.protocol import deaths
from tests.protocol.crash_points import find_deaths, sort_deaths, try_deaths
from tests.protocol.deaths import at, play
from tests.protocol.scenes import SCENES

PAIRS = 8
"""How many pairs are tried in each scene; `make crash-points` tries all."""


@pytest.mark.parametrize("scene", SCENES)
def test_no_promise_is_broken_without_a_death(scene: str) -> None:
    outcome = play(SCENES[scene]())
    assert not outcome.breaches, outcome.trace


@pytest.mark.parametrize("part", range(4))
def test_a_gang_of_eight_survives_every_death_of_its_leader(part: int) -> None:
    for death in list(find_deaths("start"))[part::4]:
        trace = try_deaths("start", death)
        assert not trace, trace


@pytest.mark.parametrize("scene", ["restart", "preempt"])
def test_deletes_are_finished_after_the_death_of_a_leader(scene: str) -> None:
    for death in random.Random(1).sample(list(find_deaths(scene)), 15):
        trace = try_deaths(scene, death)
        assert not trace, trace


@pytest.mark.parametrize("scene", SCENES)
def test_the_next_leader_may_die_too(scene: str) -> None:
    chance = random.Random(2)
    firsts = chance.sample(list(find_deaths(scene)), PAIRS)
    for first in firsts:
        second = chance.choice(list(sort_deaths(play(SCENES[scene](), [at(first)]).points)))
        trace = try_deaths(scene, first, second)
        assert not trace, trace


async def _fail(*_: object) -> None:
    raise KeyError("gone")


async def _stop(*_: object) -> None:
    pass


async def _log(*_: object) -> None:
    try:
        await _fail()
    except KeyError:
        structlog.get_logger().exception("unexpected")
    await asyncio.Event().wait()


async def _fail_later(*_: object) -> None:
    asyncio.get_running_loop().call_soon(list[int]().pop)
    await asyncio.Event().wait()


@pytest.mark.parametrize("scheduler", [_fail, _stop, _log, _fail_later])
def test_a_scheduler_that_fails_or_ends_is_a_breach(
    scheduler: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "run_scheduler", scheduler)
    assert play(SCENES["start"]()).breaches[0].startswith("crash: ")
