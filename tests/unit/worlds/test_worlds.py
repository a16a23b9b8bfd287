"""Worlds by their seeds: the same seed gives the same trace, and no promise is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.worlds.determinism import deterministic
from tests.worlds.faults import KINDS, FaultInjector
from tests.worlds.loop import WorldLoop
from tests.worlds.plan import Action, Plan, make_plan
from tests.worlds.server import Request, prepare
from tests.worlds.shrink import Case
from tests.worlds.steady_state import PROPAGATION_TIME
from tests.worlds.world import TICK, World, run_plan

SEEDS = range(1, 25)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    result = run_plan(make_plan(seed))
    assert not result.breach, f"{result.breach}\nreplay: {Case(seed).command}"


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = run_plan(make_plan(10)), run_plan(make_plan(10))
    assert first.digest == second.digest
    assert first.lines == second.lines
    assert run_plan(make_plan(11)).digest != first.digest


def test_the_same_seed_gives_the_same_trace_in_another_interpreter() -> None:
    command = [sys.executable, "-m", "tests.worlds", "--replay", "10"]
    outputs = {
        subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "ANYTHING": text}).stdout
        for text in ("", "x" * 1000)
    }
    assert len(outputs) == 1
    assert "every promise kept" in outputs.pop()


def test_without_faults_gangs_run_without_warnings() -> None:
    plan = make_plan(4)
    plan = replace(plan, actions=tuple(Action(float(at), "create-gang", at, 0.1) for at in (1, 2, 3)))
    result = run_plan(plan, KINDS)
    assert not result.breach
    assert [*result.occurred] == ["create-gang"]
    assert not [line for line in result.lines if "warning" in line.what or "error" in line.what]
    assert any(line.what.endswith("/binding 201") for line in result.lines)


def test_an_action_without_effect_is_not_counted() -> None:
    """There is nothing to edit or delete, and the traps wait for an eighth write, which is never sent."""
    waits_for_write = 32 + 64 * 7
    idle = [Action(30.0, kind, waits_for_write, 0.5) for kind in ("edit-minimum", "delete-pod", "kill", "pause")]
    assert not run_plan(replace(make_plan(4), actions=tuple(idle)), KINDS).occurred
    kinds = ("kill", "pause", "jump-clock", "lose-node", "shrink-node", "delete-lease")
    busy = [Action(30.0 + number, kind, number, 0.5) for number, kind in enumerate(kinds)]
    assert {*run_plan(replace(make_plan(4), actions=tuple(busy)), KINDS).occurred} == {*kinds}


def test_leaving_out_one_kind_of_fault_keeps_the_others() -> None:
    seed = next(seed for seed in range(1, 100) if run_plan(make_plan(seed)).occurred.get("too-many"))
    assert "too-many" not in run_plan(make_plan(seed), {"too-many"}).occurred


def test_a_write_between_two_ticks_reaches_a_watch_within_the_propagation_time() -> None:
    """The checks of the steady state rely on that for every write, also for one that is no action of the plan."""
    prepare()
    loop = WorldLoop(2)
    arrived: list[float] = []
    with deterministic(loop, 2):
        world = World(Plan(2, (("node0", 2, True),), 0, 0, (), (), ()), loop, FaultInjector(2, KINDS))

        async def watch() -> None:
            path = "/api/v1/nodes"
            stream = world.network.open_stream(world.server.answer(Request("GET", path, {"watch": "1"}, {}, b"")), path)
            while await stream.read(None):
                arrived.append(loop.now)

        loop.start(loop.add("watcher"), watch())
        written = 20 * TICK + 0.01
        loop.call_at(written, world.nodes.set_gpus, "node0", 1)
        world.run()
        world.end()
        world.server.close()
    assert world.breach is None
    assert [at for at in arrived if written < at < written + PROPAGATION_TIME]
