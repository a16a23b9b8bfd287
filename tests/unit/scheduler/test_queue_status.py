"""What queues say about their use."""

from __future__ import annotations

import asyncio

import pytest

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import QueueSeen
from gpu_scheduler.core.lifecycle import GangRecord, Phase
from gpu_scheduler.core.model import Gang, Queue
from gpu_scheduler.gangs.contract import QUEUES
from gpu_scheduler.gangs.queues import QueueRegistry, QueueUse
from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.status import queue_status
from gpu_scheduler.scheduler.status.queue_status import count_use, report_queues
from tests.unit.core.world import GPU, a_key, a_pod, a_world, shape_of
from tests.unit.k8s.live_api import answer_with, proxied, running
from tests.unit.k8s.scripted_api import written
from tests.unit.scheduler.reporting import until


def engine_with(*gangs: tuple[str, Phase]) -> Engine:
    engine = Engine()
    state = engine.state
    for number, (queue, phase) in enumerate(gangs):
        key = a_key(f"g{number}")
        state.records[key] = GangRecord(key, Gang(key, queue=queue), phase=phase)
    return engine


@pytest.mark.parametrize(
    ("phase", "column"),
    [
        (Phase.GATHERING, "pending"),
        (Phase.BLOCKED, "pending"),
        (Phase.WAITING, "pending"),
        (Phase.NOMINATED, "pending"),
        (Phase.ORPHANED, "pending"),
        (Phase.RESERVED, "inqueue"),
        (Phase.COMMITTING, "running"),
        (Phase.BINDING, "running"),
        (Phase.RUNNING, "running"),
        (Phase.HOLDING, "running"),
        (Phase.RESTARTING, "running"),
        (Phase.DEGRADED, "running"),
        (Phase.FINISHED, "completed"),
        (Phase.FAILED, "completed"),
    ],
)
def test_gang_is_counted_by_its_phase(phase: Phase, column: str) -> None:
    assert count_use(engine_with(("q", phase))) == {"q": QueueUse(**{column: 1})}  # type: ignore[arg-type]


def test_pods_of_the_scheduler_itself_are_no_gangs_of_a_queue() -> None:
    engine = engine_with(("", Phase.RUNNING))
    own = a_key("webhook", namespace="gpu-scheduler-system")
    engine.state.records[own] = GangRecord(own, phase=Phase.RUNNING)
    assert count_use(engine, "gpu-scheduler-system") == {"": QueueUse(running=1)}


def test_every_phase_has_a_column() -> None:
    uses = count_use(engine_with(*[("q", phase) for phase in Phase]))["q"]
    assert uses.pending + uses.inqueue + uses.running + uses.completed == len(Phase)


def test_queues_are_counted_apart_with_what_their_pods_use() -> None:
    world = a_world(8)
    world.start("a", 3)
    world.settle()
    world.start("b", 9)
    world.create(a_pod("alone", shape_of(2)))
    world.settle()
    uses = count_use(world.engine)
    assert uses == {"": QueueUse(pending=1, running=2, allocated={"cpu": 4000, GPU: 5000})}


def test_a_queue_counts_the_queues_below_it() -> None:
    world = a_world(8)
    for queue in (Queue("company"), Queue("research", parent="company"), Queue("vision", parent="research")):
        world.engine.handle(QueueSeen(queue), world.now)
    world.start("a", 3, queue="vision")
    world.settle()
    world.start("b", 9, queue="vision")
    world.settle()
    counted = QueueUse(pending=1, running=1, allocated={"cpu": 3000, GPU: 3000})
    assert count_use(world.engine) == {"company": counted, "research": counted, "vision": counted}


async def test_use_is_written_when_it_changed_and_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_status, "STATUS_PERIOD", 0.02)
    async with proxied() as (client, proxy, bystander):
        book = QueueRegistry()
        for name in ("blue", "default"):
            made = await bystander.create(QUEUES, written(QUEUES, name, spec={}), type=RawObject)
            book.on_changed(QUEUES, made)
        engine = engine_with(("blue", Phase.WAITING), ("blue", Phase.RUNNING), ("", Phase.RUNNING))
        engine.state.quota.charge([a_pod("a", shape_of(2))], "blue")
        proxy.plan("PATCH", "queues/blue", answer_with(500))

        async def status(name: str) -> Json:
            found: Json = (await bystander.get(QUEUES, name)).get("status", {})
            return found

        async def told() -> bool:
            return bool(await status("blue")) and bool(await status("default"))

        async with running(report_queues(client, book, engine, Settings())):
            await until(told)
            found = await status("blue")
            assert (found["pending"], found["running"], found["allocated"]) == (1, 1, {"cpu": "1", GPU: "2"})
            assert (await status("default"))["running"] == 1
            for name in ("blue", "default"):
                book.on_changed(QUEUES, await bystander.get(QUEUES, name, type=RawObject))
            await asyncio.sleep(0.05)
            before = proxy.count("PATCH")
            await asyncio.sleep(0.1)
            assert proxy.count("PATCH") == before
            engine.state.quota.refund("a")
            engine.state.records.clear()

            async def idle() -> bool:
                return not (await status("blue")).get("allocated")

            await until(idle)
            assert (await status("blue"))["running"] == 0
