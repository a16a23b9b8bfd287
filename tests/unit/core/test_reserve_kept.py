"""Reserved slots: how long they last, which queue is charged, and who may use them."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model import Expected, Gang, PodPhase, Queue
from tests.unit.core.test_reserve import expecting
from tests.unit.core.world import GPU, a_key, a_node, a_pod, a_world, members, shape_of


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


def test_driver_evicts_for_its_executors_before_their_pods_exist() -> None:
    world = a_world(2)
    low = world.start("low", 2)
    world.settle()
    key = a_key("spark")
    world.submit(
        Gang(key, minimum=1, priority=9, expected=(Expected(shape_of(1), 2, "executor"),)),
        *members(key, 1, shape_of(0), role="driver", priority=9),
    )
    world.settle()
    assert (world.bound(low), [pod.role for pod in world.bound(key)]) == ([], ["driver"])


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
