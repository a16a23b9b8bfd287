"""Programs in a world: what a process does when it is stopped, paused or killed at a given moment."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from gpu_scheduler.scheduler.commit.binder import Binder
from tests.worlds.api_mirror import ApiMirror
from tests.worlds.determinism import deterministic
from tests.worlds.faults import KINDS, FaultInjector
from tests.worlds.loop import Process, WorldLoop
from tests.worlds.network import Network
from tests.worlds.nodes import Nodes
from tests.worlds.programs import Programs
from tests.worlds.server import ApiServer, Reply, Request, prepare
from tests.worlds.trace import Trace

LEASE = "/leases/gpu-scheduler"


class Stage:
    """Two schedulers and an API, without faults."""

    def __init__(self, loop: WorldLoop, seed: int = 1) -> None:
        self.loop = loop
        self.trace = Trace()
        self.failures: list[str] = []
        self.network = Network(loop, ApiServer(), FaultInjector(seed, KINDS), self.trace)
        self.programs = Programs(loop, self.network, self.trace, self.failures.append)

    async def start(self) -> None:
        """The first scheduler leads, the second is on standby."""
        self.programs.add("first", True, 1.0)
        await asyncio.sleep(3.0)
        self.programs.add("second", True, 1.0)
        await asyncio.sleep(3.0)

    async def fence(self) -> None:
        """The first scheduler is suspended until the second leads, and does not know it."""
        self.programs.all[0].process.paused = True
        await asyncio.sleep(40.0)
        self.programs.all[0].process.paused = False


@pytest.mark.parametrize("steps", range(0, 60, 10))
def test_a_scheduler_stops_when_asked_to_while_being_fenced(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Binder.run

    async def end_slowly(binder: Binder) -> None:
        try:
            await run(binder)
        finally:
            for _ in range(50):
                await asyncio.sleep(0)

    monkeypatch.setattr(Binder, "run", end_slowly)
    prepare()
    loop = WorldLoop(1)
    with deterministic(loop, 1):
        stage = Stage(loop)

        def stop_soon(sender: Process, request: Request, _reply: Reply) -> None:
            old = stage.programs.all[0]
            if loop.now > 40.0 and sender is old.process and request.method == "PUT" and request.path.endswith(LEASE):
                stage.network.request_handlers.remove(stop_soon)
                sender.set_trap(old.stop.set, steps)

        async def play() -> None:
            await stage.start()
            stage.network.request_handlers.append(stop_soon)
            await stage.fence()
            await asyncio.sleep(60.0)

        loop.run_until_complete(loop.start(loop.root, play()))
        stage.network.disconnected = True
        loop.end()
    entries = [line.what for line in stage.trace.lines if line.who == "first.1"]
    assert "has stopped" in entries
    assert not stage.failures


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_self_check_during_the_start_of_a_scheduler_finds_no_mismatch(seed: int) -> None:
    prepare()
    loop = WorldLoop(seed)
    with deterministic(loop, seed), structlog.testing.capture_logs() as logs:
        stage = Stage(loop, seed)
        server = stage.network.server
        Nodes(server, ApiMirror(server.store, lambda: loop.now), {}).add("node0", 2, True)

        async def play() -> None:
            stage.programs.add("first", True, 1.0)
            await asyncio.sleep(3.0)
            stage.programs.add("second", True, 1.0)
            await asyncio.sleep(0.01)
            stage.programs.compare()
            await asyncio.sleep(5.0)

        loop.run_until_complete(loop.start(loop.root, play()))
        stage.network.disconnected = True
        loop.end()
    assert [line["differences"] for line in logs if line["event"] == "self-check finished"] == [0, 0]
    assert not [line for line in logs if line["event"] == "self-check found a difference"]
