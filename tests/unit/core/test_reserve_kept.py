"""Reserved slots: how long they last, which queue is charged, which gangs use them, and what happens to unused ones."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Expected, Gang, GangKey, PodPhase, Queue
from tests.unit.core.test_reserve import expecting
from tests.unit.core.world import GPU, World, a_key, a_node, a_pod, a_world, members, shape_of


def test_members_larger_than_expected_start_on_reserved_slots_and_a_new_node() -> None:
    world = a_world(4)
    world.start("busy", 2)
    world.settle()
    key = a_key("a")
    world.submit(Gang(key, minimum=2, expected=(Expected(shape_of(1), 2, "worker"),)))
    world.settle()
    world.create(*members(key, 2, shape_of(2), role="worker"))
    world.settle()
    assert world.bound(key) == []
    world.put_node(a_node("new", 2))
    world.settle()
    assert sorted(pod.node or "" for pod in world.bound(key)) == ["n0", "new"]


def test_members_larger_than_expected_start_when_freed_and_reserved_capacity_suffices() -> None:
    world = a_world(4)
    busy = world.start("busy", 2)
    world.settle()
    key = a_key("a")
    world.submit(Gang(key, minimum=2, expected=(Expected(shape_of(1), 2, "worker"),)))
    world.settle()
    world.create(*members(key, 2, shape_of(2), role="worker"))
    world.settle()
    world.finish(busy)
    world.settle()
    assert len(world.bound(key)) == 2


@pytest.mark.parametrize("priority", [-5, -(1 << 31)])
def test_gang_of_the_lowest_priority_precedes_one_with_an_unused_reservation(priority: int) -> None:
    world = a_world(3)
    world.submit(expecting("a", 3, priority=5))
    world.settle()
    rival = world.start("b", 3, priority=priority)
    world.pass_time(301)
    assert len(world.bound(rival)) == 3


def test_driver_that_waits_for_capacity_for_its_executors_evicts_no_pod() -> None:
    world = a_world(2)
    low = world.start("low", 2)
    world.settle()
    key = a_key("spark")
    world.submit(
        Gang(key, minimum=1, priority=9, expected=(Expected(shape_of(1), 2, "executor"),)),
        *members(key, 1, shape_of(0), role="driver", priority=9),
    )
    world.settle()
    assert (len(world.bound(low)), world.bound(key)) == (2, [])


def test_slots_stay_reserved_for_a_gang_whose_only_member_failed_and_was_recreated() -> None:
    world = a_world(2)
    key = a_key("spark")
    world.submit(
        Gang(key, minimum=1, expected=(Expected(shape_of(1), 2, "executor"),)),
        *members(key, 1, shape_of(0), role="driver", controlled=False),
    )
    world.settle()
    rival = world.start("b", 2)
    world.end("spark-driver-0", PodPhase.FAILED)
    world.create(a_pod("spark-driver-1", shape_of(0), gang=key, role="driver"))
    world.pass_time(10)
    assert ([pod.name for pod in world.bound(key)], world.bound(rival)) == (["spark-driver-1"], [])


def test_slots_that_are_reserved_again_do_not_exceed_the_limit_of_their_queue() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    gang = expecting("a", 2, queue="q")
    world.submit(gang)
    world.settle()
    world.change_gang(gang.key, expected=(Expected(shape_of(1), 4, "worker"),))
    world.settle()
    assert world.engine.state.quota.used("q")[GPU] <= 2000


# -- used and unused reservations


def come(world: World, key: GangKey, count: int) -> None:
    """The pods of a group come; no controller recreates them without another reservation."""
    world.create(*members(key, count, role="worker", controlled=False))
    world.settle()


@pytest.mark.parametrize("new_leader", [False, True])
def test_gang_that_is_evicted_while_its_reservation_would_last_has_used_it(new_leader: bool) -> None:
    world = a_world(4)
    gang = expecting("a", 4)
    world.submit(gang)
    world.settle()
    come(world, gang.key, 4)
    assert world.gangs[gang.key].notes.admitted_at is None
    high = world.start("high", 4, priority=9)
    world.pass_time(60)
    assert (world.members(gang.key), len(world.bound(high))) == ([], 4)
    if new_leader:
        world.crash()
        world.settle()
    assert world.phase(gang.key) is Phase.WAITING
    world.pass_time(301)
    assert not world.engine.state.records[gang.key].reservation_unused
    assert world.gangs[gang.key].notes.target == ("n0",)


def test_gang_that_ran_after_its_pods_came_late_is_not_last_when_it_restarts() -> None:
    world = a_world(4)
    gang = expecting("a", 4)
    world.submit(gang)
    world.settle()
    other = world.start("other", 4)
    world.pass_time(301)
    assert (world.engine.state.records[gang.key].reservation_unused, len(world.bound(other))) == (True, 4)
    come(world, gang.key, 4)
    world.finish(other)
    world.settle()
    assert len(world.bound(gang.key)) == 4
    high = world.start("high", 4, priority=9)
    world.pass_time(360)
    assert (len(world.bound(high)), world.gangs[gang.key].notes.target) == (4, ("n0",))


@pytest.mark.parametrize("count", [3, 4], ids=["other request", "same request"])
@pytest.mark.parametrize("others", [{}, {"queue": "q"}], ids=["one queue", "queue of the smaller share"])
def test_gangs_with_unused_reservations_take_turns(others: dict[str, Any], count: int) -> None:
    world = a_world(4, 1)
    world.put_queue(Queue("q"))
    world.submit(Gang(a_key("runs")), a_pod("runs", gang=a_key("runs")))
    world.settle()
    idle, late = expecting("idle", count, **others), expecting("late", 4)
    world.submit(idle)
    world.pass_time(100)
    world.submit(late)
    world.pass_time(502)
    assert all(world.engine.state.records[gang.key].reservation_unused for gang in (idle, late))
    assert (world.phase(idle.key), world.phase(late.key)) == (Phase.RESERVED, Phase.WAITING)
    world.pass_time(300)
    assert (world.phase(idle.key), world.phase(late.key)) == (Phase.WAITING, Phase.RESERVED)
    come(world, late.key, 4)
    assert len(world.bound(late.key)) == 4


def test_slots_are_reserved_again_when_the_old_pods_are_gone() -> None:
    world = a_world(2, 2)
    gang = expecting("a", 2)
    world.submit(gang)
    world.settle()
    come(world, gang.key, 2)
    for pod in world.members(gang.key):
        world.change_pod(pod.uid, deleting=True)
    world.deliver_all()
    world.run_cycle()
    assert world.gangs[gang.key].notes.admitted_at is None
    assert world.phase(gang.key) is Phase.GATHERING
    world.pass_time(60)
    assert (world.members(gang.key), world.phase(gang.key)) == ([], Phase.RESERVED)
