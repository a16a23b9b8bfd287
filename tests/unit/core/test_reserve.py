"""Reservations: slots for expected members whose pods do not exist yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Expected, Gang, GangKey, PodPhase, Queue
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import Config
from tests.unit.core.world import GPU, NAMESPACE, a_key, a_node, a_world, members, shape_of


def expecting(name: str, count: int, **changes: Any) -> Gang:
    key = a_key(name)
    return Gang(key, **{"minimum": count, "expected": (Expected(shape_of(1), count, "worker"),), **changes})


def test_slots_of_expected_members_are_reserved_before_their_pods_exist() -> None:
    world = a_world(3)
    gang = expecting("a", 3)
    world.submit(gang)
    world.settle()
    assert world.phase(gang.key) is Phase.RESERVED
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == []
    world.create(*members(gang.key, 3, role="worker"))
    world.settle()
    assert len(world.bound(gang.key)) == 3


def test_slots_stay_reserved_while_expected_members_come_one_by_one() -> None:
    world = a_world(3)
    gang = expecting("a", 3)
    world.submit(gang)
    world.settle()
    rival = world.start("b", 1)
    for pod in members(gang.key, 3, role="worker"):
        world.create(pod)
        world.settle()
        assert world.bound(rival) == []
    assert len(world.bound(gang.key)) == 3


def test_existing_members_are_not_counted_again_as_expected() -> None:
    world = a_world(2)
    gang = expecting("a", 3, minimum=1)
    world.submit(gang, *members(gang.key, 1, role="worker"))
    world.settle()
    assert world.bound(gang.key) == []
    world.put_node(a_node("more", 1))
    world.settle()
    assert len(world.bound(gang.key)) == 1


def test_reservation_for_members_that_never_come_expires() -> None:
    world = a_world(3, config=Config(reserve=300))
    gang = expecting("a", 3)
    world.submit(gang)
    world.settle()
    rival = world.start("b", 3)
    world.pass_time(299)
    assert world.bound(rival) == []
    world.pass_time(2)
    assert len(world.bound(rival)) == 3


def test_unused_reservations_do_not_starve_a_gang_that_backs_off_repeatedly() -> None:
    world = a_world(3)
    world.submit(expecting("a", 3, priority=5))
    world.settle()
    rival = world.start("b", 3, timeout=40.0)
    world.pass_time(1000)
    assert len(world.bound(rival)) == 3


def test_many_gangs_with_unused_reservations_do_not_starve_one_with_members() -> None:
    world = a_world(3)
    for name in "acd":
        world.submit(expecting(name, 3, priority=5))
        world.pass_time(100)
    world.pass_time(2000)
    rival = world.start("b", 3, timeout=40.0)
    world.pass_time(1000)
    assert len(world.bound(rival)) == 3


@pytest.mark.parametrize(("sizes", "apart"), [((2, 1), 150.0), ((1, 1, 1, 1), 225.0)])
def test_gangs_with_unused_reservations_leave_their_queue_to_one_that_needs_all_of_it(
    sizes: tuple[int, ...], apart: float
) -> None:
    world = a_world(6)
    world.put_queue(Queue("q", limit={GPU: sum(sizes)}))
    for number, size in enumerate(sizes):
        world.submit(expecting(f"a{number}", size, priority=5, queue="q"))
        world.pass_time(apart)
    rival = world.start("b", sum(sizes), queue="q", timeout=40.0)
    world.pass_time(1500)
    assert len(world.bound(rival)) == sum(sizes)


def test_gang_that_yields_its_turn_says_so_and_starts_when_none_waits_or_its_turn_comes() -> None:
    world = a_world(6)
    world.now = 900.0  # the first round of a rotation
    world.put_queue(Queue("q", limit={GPU: 3}))
    gang = expecting("a", 2, queue="q")
    world.submit(gang)
    world.settle()
    runs = world.start("c", 1, queue="q")
    world.settle()
    rival = world.start("b", 3, queue="q")
    world.pass_time(300)
    assert (world.phase(gang.key), world.reasons(gang.key)) == (Phase.WAITING, {Reason.YIELDS_TURN})
    world.pass_time(599)
    assert world.phase(gang.key) is Phase.WAITING
    world.pass_time(100)
    assert world.gangs[gang.key].notes.admitted_at == 1800.0  # the other gang waits for a running one
    world.pass_time(300)
    assert world.phase(gang.key) is Phase.WAITING
    for pod in world.members(rival):
        world.remove_pod(pod.uid)
    world.settle()
    assert (len(world.bound(runs)), world.phase(gang.key)) == (1, Phase.RESERVED)


def test_no_gang_yields_in_a_queue_without_limits() -> None:
    world = a_world(6)
    world.now = 900.0
    gang = expecting("a", 2)
    world.submit(gang)
    world.settle()
    world.start("runs", 1)
    world.settle()
    world.start("waits", 6)
    world.pass_time(300)
    assert world.phase(gang.key) is Phase.RESERVED


def test_gang_that_ran_after_an_expired_reservation_does_not_yield_when_it_restarts() -> None:
    world = a_world(6)
    world.now = 900.0
    world.put_queue(Queue("q", limit={GPU: 3}))
    gang = expecting("a", 2, queue="q")
    world.submit(gang)
    world.settle()
    world.create(*members(gang.key, 2, role="worker"))
    world.start("runs", 1, queue="q")
    world.pass_time(400)
    world.start("waits", 3, queue="q")
    world.settle()
    for pod in world.members(gang.key):
        world.remove_pod(pod.uid)
    world.pass_time(60, controllers=False)  # until the quarantine has ended
    assert world.phase(gang.key) is Phase.RESERVED


def test_members_that_come_after_their_reservation_expired_do_not_wait_for_the_next() -> None:
    world = a_world(3)
    gang = expecting("a", 3)
    world.submit(gang)
    world.pass_time(310)
    world.create(*members(gang.key, 3, role="worker"))
    world.settle()
    assert len(world.bound(gang.key)) == 3


def test_new_leader_keeps_the_reservation_and_its_end() -> None:
    world = a_world(3)
    gang = expecting("a", 3)
    world.submit(gang)
    world.settle()
    world.pass_time(200)
    world.crash()
    rival = world.start("b", 3)
    world.pass_time(50)
    assert world.bound(rival) == []
    assert world.phase(gang.key) is Phase.RESERVED
    world.pass_time(60)
    assert len(world.bound(rival)) == 3


def test_expected_members_whose_request_changes_get_other_slots() -> None:
    world = a_world(3)
    gang = expecting("a", 3)
    world.submit(gang)
    world.settle()
    world.change_gang(gang.key, minimum=1, expected=(Expected(shape_of(2), 1, "worker"),))
    world.settle()
    assert world.phase(gang.key) is Phase.RESERVED
    rivals = [world.start(name, 1) for name in "bc"]
    world.settle()
    assert [len(world.bound(rival)) for rival in rivals] == [1, 0]
    world.create(*members(gang.key, 1, shape_of(2), role="worker"))
    world.settle()
    assert len(world.bound(gang.key)) == 1


def test_driver_starts_only_with_capacity_for_its_executors_and_reserves_it() -> None:
    world = a_world(2)
    key = a_key("spark")
    gang = Gang(key, minimum=1, expected=(Expected(shape_of(1), 2, "executor"),))
    world.submit(gang, *members(key, 1, shape_of(0), role="driver"))
    blocker = world.start("blocker", 1, priority=1)
    world.settle()
    assert world.bound(key) == []
    world.finish(blocker)
    world.settle()
    assert [pod.role for pod in world.bound(key)] == ["driver"]
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == []
    world.create(*members(key, 2, role="executor"))
    world.settle()
    assert sorted(pod.role for pod in world.bound(key)) == ["driver", "executor", "executor"]


def test_gang_that_was_refused_starts_when_its_driver_needs_less_than_expected() -> None:
    world = a_world(8, 8, 8)
    blocker = world.start("blocker", 1, shape_of(8), priority=1)
    world.settle()
    key = a_key("spark")
    world.submit(Gang(key, minimum=1, expected=(Expected(shape_of(6), 3),)))
    world.settle()
    assert world.phase(key) is not Phase.RESERVED
    world.change_gang(key, expected=(Expected(shape_of(4), 3, "executor"),))
    world.create(*members(key, 1, shape_of(0), role="driver"))
    world.settle()
    assert len(world.bound(blocker)) == 1
    assert [pod.role for pod in world.bound(key)] == ["driver"]


def test_executors_larger_than_expected_start_although_the_rest_does_not_fit() -> None:
    world = a_world(4)
    key = a_key("spark")
    gang = Gang(key, minimum=1, expected=(Expected(shape_of(1), 4, "executor"),))
    world.submit(gang, *members(key, 1, shape_of(0), role="driver"))
    world.settle()
    world.put_gang(replace(gang, expected=(Expected(shape_of(3), 4, "executor"),)))
    world.create(*members(key, 1, shape_of(3), role="executor"))
    world.settle()
    assert sorted(pod.role for pod in world.bound(key)) == ["driver", "executor"]


def test_second_driver_waits_for_the_first_application_to_end_if_only_one_fits() -> None:
    world = a_world(3)
    expected = (Expected(shape_of(1), 3, "executor"),)
    for name in "ab":
        world.submit(
            Gang(a_key(name), minimum=1, expected=expected), *members(a_key(name), 1, shape_of(0), role="driver")
        )
    world.settle()
    assert [len(world.bound(a_key(name))) for name in "ab"] == [1, 0]
    world.create(*members(a_key("a"), 3, role="executor"))
    world.pass_time(1000)
    assert [len(world.bound(a_key(name))) for name in "ab"] == [4, 0]
    world.finish(a_key("a"))
    world.settle()
    assert [pod.role for pod in world.bound(a_key("b"))] == ["driver"]


def test_reservation_of_a_driver_without_executors_expires_and_it_runs_on() -> None:
    world = a_world(2)
    key = a_key("spark")
    world.submit(
        Gang(key, minimum=1, expected=(Expected(shape_of(1), 2, "executor"),)),
        *members(key, 1, shape_of(0), role="driver"),
    )
    world.settle()
    rival = world.start("b", 2)
    world.pass_time(301)
    assert len(world.bound(rival)) == 2
    assert [pod.role for pod in world.bound(key)] == ["driver"]


def test_two_kinds_of_expected_members_of_one_role_reserve_a_slot_each() -> None:
    world = a_world(4)
    key = a_key("a")
    expected = (Expected(shape_of(1), 1, "worker"), Expected(shape_of(3), 1, "worker"))
    world.submit(Gang(key, minimum=2, expected=expected))
    world.settle()
    assert world.phase(key) is Phase.RESERVED
    world.remove_gang(key)
    world.settle()
    rival = world.start("b", 4)
    world.settle()
    assert len(world.bound(rival)) == 4


def test_gangs_of_two_dialects_with_one_name_reserve_a_slot_each() -> None:
    world = a_world(2)
    for dialect in ("one", "two"):
        world.put_gang(Gang(GangKey(dialect, NAMESPACE, "a"), expected=(Expected(shape_of(1), 1, "worker"),)))
    world.settle()
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == []


def test_reservation_of_an_ended_gang_is_released_at_once() -> None:
    world = a_world(2)
    key = a_key("spark")
    world.submit(
        Gang(key, minimum=1, expected=(Expected(shape_of(1), 2, "executor"),)),
        *members(key, 1, shape_of(0), role="driver"),
    )
    world.settle()
    rival = world.start("b", 2)
    world.settle()
    assert world.bound(rival) == []
    world.finish(key)
    world.settle()
    assert len(world.bound(rival)) == 2


@pytest.mark.parametrize("phase", [PodPhase.SUCCEEDED, PodPhase.FAILED])
def test_no_slot_is_reserved_again_for_an_ended_gang(phase: PodPhase) -> None:
    world = a_world(2)
    key = a_key("spark")
    world.submit(
        Gang(key, minimum=1, expected=(Expected(shape_of(1), 2, "executor"),)),
        *members(key, 1, shape_of(0), role="driver", controlled=False),
    )
    world.settle()
    world.end("spark-driver-0", phase)
    world.pass_time(10)
    rival = world.start("b", 2)
    world.settle()
    assert len(world.bound(rival)) == 2


def test_gang_that_no_longer_fits_has_a_refusal_with_reserved_slots_and_another_drain() -> None:
    world = a_world(8, config=Config(drain_after=10))
    world.start("busy", 4)
    gang = expecting("a", 3)
    world.submit(gang)
    world.settle()
    waiting = world.start("b", 8)
    world.pass_time(20)
    world.create(*members(gang.key, 3, shape_of(2), role="worker"))
    world.settle()
    state = world.engine.state
    assert state.target == waiting
    assert state.records[gang.key].reserved
    report = world.engine.report(gang.key, world.now)
    assert report is not None
    assert report.refusal is not None
    assert report.refusal.short
    assert world.engine.explain(gang.key, world.now) is not None


def test_members_of_two_shapes_in_one_role_each_get_a_slot() -> None:
    world = a_world(8)
    expected = (Expected(shape_of(1), 2, "worker"), Expected(shape_of(2), 3, "worker"))
    world.submit(Gang(a_key("a"), minimum=5, expected=expected))
    world.settle()
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == [], "all eight GPUs are kept"
    world.remove_job(a_key("b"))
    large = world.start("c", 1, shape_of(8))
    world.pass_time(1000)
    assert len(world.bound(large)) == 1, "and all eight are given back"


def test_reserved_slots_of_a_gang_whose_object_is_deleted_are_released() -> None:
    world = a_world(3)
    gang = expecting("a", 3)
    world.submit(gang)
    world.settle()
    rival = world.start("b", 3)
    world.settle()
    assert world.bound(rival) == []
    world.remove_gang(gang.key)
    world.settle()
    assert len(world.bound(rival)) == 3


def test_reserved_slots_are_charged_to_their_queue_only_while_reserved() -> None:
    world = a_world(6, config=Config(reserve=300))
    world.put_queue(Queue("q", limit={GPU: 3}))
    world.submit(expecting("a", 3, queue="q"))
    world.settle()
    other = world.start("b", 3, queue="q")
    world.pass_time(299)
    assert world.bound(other) == []
    world.pass_time(2)
    assert len(world.bound(other)) == 3


# -- one reservation at a time


def test_groups_without_pods_get_one_reservation_at_a_time_after_one_that_was_not_used() -> None:
    world = a_world(8, 8)
    world.put_queue(Queue("q", limit={GPU: 16}))

    def reserved(number: int) -> int:
        """The GPUs that are reserved for 16 groups under new names."""
        groups = [expecting(f"a{number}-{i}", 1, queue="q") for i in range(16)]
        for group in groups:
            world.submit(group)
        world.settle()
        found = world.engine.state.quota.used("q")[GPU] // 1000
        world.pass_time(305)
        for group in groups:
            world.remove_gang(group.key)
        world.settle()
        return found

    assert [reserved(number) for number in range(3)] == [16, 1, 1]


@pytest.mark.parametrize("deleted", [False, True], ids=["expired", "deleted"])
@pytest.mark.parametrize(
    ("other", "both"),
    [({}, False), ({"namespace": "other"}, True), ({"queue": "q"}, True)],
    ids=["same", "other namespace", "other queue"],
)
def test_one_reservation_at_a_time_holds_for_the_queue_and_namespace_of_the_unused_one(
    deleted: bool, other: dict[str, str], both: bool
) -> None:
    world = a_world(8)
    world.put_queue(Queue("q"))
    wasted = expecting("wasted", 1)
    world.submit(wasted)
    world.settle()
    if not deleted:
        world.pass_time(301)
    world.remove_gang(wasted.key)
    keys = [a_key(name, other.get("namespace", NAMESPACE)) for name in "ab"]
    for key in keys:
        world.submit(Gang(key, expected=(Expected(shape_of(1), 1, "worker"),), queue=other.get("queue", "")))
    world.settle()
    phases = [world.phase(key) for key in keys]
    assert phases == [Phase.RESERVED, Phase.RESERVED if both else Phase.WAITING]
    assert (Reason.ONE_RESERVATION in world.reasons(keys[1])) is not both


def test_groups_that_wait_for_a_reservation_take_turns_until_pods_come() -> None:
    world = a_world(8)
    wasted = expecting("wasted", 1)
    world.submit(wasted)
    world.settle()
    world.remove_gang(wasted.key)
    groups = [expecting(name, size) for name, size in (("a", 1), ("b", 2), ("c", 3))]
    for group in groups:
        world.submit(group)
    world.settle()
    assert [world.phase(group.key) for group in groups] == [Phase.RESERVED, Phase.WAITING, Phase.WAITING]
    world.pass_time(301)
    assert [world.phase(group.key) for group in groups] == [Phase.WAITING, Phase.RESERVED, Phase.WAITING]
    world.create(*members(groups[1].key, 2, role="worker"))
    world.settle()
    assert [world.phase(group.key) for group in groups] == [Phase.RESERVED, Phase.RUNNING, Phase.RESERVED]
    assert world.engine.state.admitted_groups.keys() == {("", NAMESPACE)}


def test_gang_with_pods_starts_beside_groups_that_get_one_reservation_at_a_time() -> None:
    world = a_world(8)
    wasted = expecting("wasted", 1)
    world.submit(wasted)
    world.settle()
    world.remove_gang(wasted.key)
    world.submit(expecting("a", 1))
    world.settle()
    gang = world.start("b", 2)
    world.settle()
    assert len(world.bound(gang)) == 2


def test_many_groups_that_wait_for_a_reservation_cause_no_further_cycles() -> None:
    world = a_world(64)
    wasted = expecting("wasted", 1)
    world.submit(wasted)
    world.settle()
    world.remove_gang(wasted.key)
    for size in range(1, 60):
        world.submit(expecting(f"a{size}", size))
    world.settle()
    assert not world.engine.has_changes


def test_groups_that_were_admitted_are_forgotten_when_their_pods_have_come() -> None:
    world = a_world(8)
    group = expecting("a", 1)
    world.submit(group)
    world.settle()
    assert world.engine.state.admitted_groups == {("", NAMESPACE): {group.key: None}}
    world.create(*members(group.key, 1, role="worker"))
    world.settle()
    assert world.engine.state.admitted_groups == {}
