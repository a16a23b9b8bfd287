"""Programs in a world of their own: what a process does when it is stopped, paused or killed at a chosen moment."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from gpu_scheduler.scheduler.commit.binder import Binder
from tests.worlds.chance import replaced
from tests.worlds.faults import KINDS, Chances
from tests.worlds.loop import Process, WorldLoop
from tests.worlds.network import Network
from tests.worlds.nodes import Nodes
from tests.worlds.programs import Programs
from tests.worlds.server import ApiServer, Reply, Request, prepare
from tests.worlds.story import Story
from tests.worlds.truth import Truth

LEASE = "/leases/gpu-scheduler"


class Stage:
    """Two schedulers and an API, without faults."""

    def __init__(self, loop: WorldLoop, seed: int = 1) -> None:
        self.loop = loop
        self.story = Story()
        self.complaints: list[str] = []
        self.network = Network(loop, ApiServer(), Chances(seed, KINDS), self.story)
        self.programs = Programs(loop, self.network, self.story, self.complaints.append)

    async def start(self) -> None:
        """The first scheduler leads, the second stands by."""
        self.programs.add("first", True, 1.0)
        await asyncio.sleep(3.0)
        self.programs.add("second", True, 1.0)
        await asyncio.sleep(3.0)

    async def fence(self) -> None:
        """The first scheduler stands still until the second has taken over, and has not heard of it."""
        self.programs.all[0].process.paused = True
        await asyncio.sleep(40.0)
        self.programs.all[0].process.paused = False


@pytest.mark.parametrize("steps", range(0, 60, 10))
def test_a_scheduler_that_is_told_to_stop_while_it_is_fenced_stops(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Binder.run

    async def end_slowly(carrier: Binder) -> None:
        try:
            await run(carrier)
        finally:
            for _ in range(50):
                await asyncio.sleep(0)

    monkeypatch.setattr(Binder, "run", end_slowly)
    prepare()
    loop = WorldLoop(1)
    with replaced(loop, 1):
        stage = Stage(loop)

        def stop_soon(sender: Process, request: Request, _reply: Reply) -> None:
            old = stage.programs.all[0]
            if loop.now > 40.0 and sender is old.process and request.method == "PUT" and request.path.endswith(LEASE):
                stage.network.onlookers.remove(stop_soon)
                sender.set_trap(old.stop.set, steps)

        async def play() -> None:
            await stage.start()
            stage.network.onlookers.append(stop_soon)
            await stage.fence()
            await asyncio.sleep(60.0)

        loop.run_until_complete(loop.start(loop.outside, play()))
        stage.network.broken = True
        loop.end()
    said = [line.what for line in stage.story.lines if line.who == "first.1"]
    assert "has stopped" in said
    assert not stage.complaints


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_scheduler_that_is_asked_to_compare_while_it_starts_finds_nothing_wrong(seed: int) -> None:
    prepare()
    loop = WorldLoop(seed)
    with replaced(loop, seed), structlog.testing.capture_logs() as logs:
        stage = Stage(loop, seed)
        server = stage.network.server
        Nodes(server, Truth(server.store, lambda: loop.now), {}).add("node0", 2, True)

        async def play() -> None:
            stage.programs.add("first", True, 1.0)
            await asyncio.sleep(3.0)
            stage.programs.add("second", True, 1.0)
            await asyncio.sleep(0.01)
            stage.programs.compare()
            await asyncio.sleep(5.0)

        loop.run_until_complete(loop.start(loop.outside, play()))
        stage.network.broken = True
        loop.end()
    assert [line["differences"] for line in logs if line["event"] == "compared"] == [0, 0]
    assert not [line for line in logs if line["event"] == "remembered wrongly"]
