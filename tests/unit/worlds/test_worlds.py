"""Worlds by their seeds: the same seed is the same story, and no promise is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.worlds.faults import KINDS
from tests.worlds.plan import Action, make_plan
from tests.worlds.shrink import Case
from tests.worlds.world import run_plan

SEEDS = range(1, 25)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    result = run_plan(make_plan(seed))
    assert not result.breach, f"{result.breach}\nreplay: {Case(seed).command}"


def test_the_same_seed_is_the_same_story() -> None:
    first, second = run_plan(make_plan(10)), run_plan(make_plan(10))
    assert first.mark == second.mark
    assert first.lines == second.lines
    assert run_plan(make_plan(11)).mark != first.mark


def test_the_same_seed_is_the_same_story_in_another_interpreter() -> None:
    command = [sys.executable, "-m", "tests.worlds", "--replay", "10"]
    stories = {
        subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "ANYTHING": text}).stdout
        for text in ("", "x" * 1000)
    }
    assert len(stories) == 1
    assert "every promise kept" in stories.pop()


def test_without_faults_and_actions_of_others_gangs_run_and_nothing_is_said() -> None:
    plan = make_plan(3)
    calm = replace(plan, actions=tuple(Action(float(at), "create-gang", at, 0.1) for at in (1, 2, 3)))
    result = run_plan(calm, KINDS)
    assert not result.breach
    assert [*result.struck] == ["create-gang"]
    assert not [line for line in result.lines if "warning" in line.what or "error" in line.what]
    assert any(line.what.endswith("/binding 201") for line in result.lines)


def test_what_has_no_effect_has_not_happened() -> None:
    """Nobody is there to be edited or deleted, and the traps wait for an eighth write that nobody sends."""
    waits_for_write = 32 + 64 * 7
    idle = [Action(30.0, kind, waits_for_write, 0.5) for kind in ("edit-minimum", "delete-pod", "kill", "pause")]
    assert not run_plan(replace(make_plan(3), actions=tuple(idle)), KINDS).struck
    kinds = ("kill", "pause", "jump-clock", "lose-node", "shrink-node", "delete-lease")
    busy = [Action(30.0 + number, kind, number, 0.5) for number, kind in enumerate(kinds)]
    assert {*run_plan(replace(make_plan(3), actions=tuple(busy)), KINDS).struck} == {*kinds}


def test_a_seed_without_one_kind_of_fault_keeps_the_others() -> None:
    seed = next(seed for seed in range(1, 100) if run_plan(make_plan(seed)).struck.get("too-many"))
    assert "too-many" not in run_plan(make_plan(seed), {"too-many"}).struck
