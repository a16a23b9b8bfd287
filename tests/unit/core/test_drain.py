"""Drain targets: nodes that run empty for a gang that would otherwise never start."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cycle import drain
from gpu_scheduler.core.events import Report
from gpu_scheduler.core.lifecycle import GangRecord, Phase
from gpu_scheduler.core.model import (
    HOSTNAME,
    Expected,
    Gang,
    GangKey,
    HostPort,
    OnMemberLost,
    Pod,
    PodPhase,
    PodTerm,
    Queue,
    Role,
    Shape,
)
from gpu_scheduler.core.placement.domains import Bid, Placement
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.selectors import labels_equal
from gpu_scheduler.core.state import Config, State
from tests.unit.core.clusters import apps
from tests.unit.core.world import (
    GPU,
    NAMESPACE,
    World,
    a_key,
    a_node,
    a_pod,
    a_world,
    binds_in,
    members,
    sent,
    shape_of,
)


def small_job(world: World, number: int, **changes: Any) -> GangKey:
    return world.start(f"small-{number}", 1, controlled=False, **changes)


@settings(max_examples=25, deadline=None)
@given(pick=st.randoms(use_true_random=False))
def test_large_gang_starts_under_an_endless_stream_of_small_ones(pick: Random) -> None:
    nodes, gpus = pick.randint(1, 3), pick.randint(2, 4)
    world = a_world(*[gpus] * nodes)
    running = [small_job(world, i) for i in range(nodes * gpus)]
    world.settle()
    large = world.start("large", pick.randint(1, nodes), shape_of(gpus))
    for number in range(1000, 1080):
        # The run time of the small gangs is unknown: any of them may end next, and another one comes at once.
        ended = pick.choice([key for key in running if world.bound(key)])
        world.finish(ended)
        running[running.index(ended)] = small_job(world, number)
        world.pass_time(pick.choice([5.0, 30.0, 60.0]))
        if world.bound(large):
            break
    assert len(world.bound(large)) == len(world.members(large))
    world.finish(large)
    world.settle()
    assert all(world.bound(key) for key in running)


def test_large_gang_with_a_short_timeout_does_not_starve() -> None:
    world = a_world(2, 2)
    running = [small_job(world, i) for i in range(4)]
    world.settle()
    large = world.start("large", 2, shape_of(2), timeout=60.0)
    number = 4
    for _ in range(60):
        world.finish(running.pop(0))
        running.append(small_job(world, number))
        number += 1
        world.pass_time(30)
        if world.bound(large):
            break
    assert len(world.bound(large)) == 2


def test_owner_of_a_target_is_not_refused_with_an_older_pod_with_the_same_request() -> None:
    world = a_world(2)
    world.create(a_pod("occupant", priority=1))
    world.settle()
    world.create(a_pod("owner", shape_of(2), created=world.now - 10))
    world.pass_time(301)
    assert world.engine.state.target is not None
    world.create(a_pod("older", shape_of(2), created=1.0))
    world.settle()
    world.end("occupant")
    world.settle()
    assert world.pods["owner"].node == "n0"


def drained(*gpus: int, deadline: float | None = None) -> tuple[World, GangKey]:
    """A world whose first node is drained for a gang, with one pod on it that has this deadline."""
    world = a_world(*gpus)
    occupant = Pod("occupant", NAMESPACE, "occupant", shape_of(1), deadline=deadline)
    world.create(occupant)
    world.settle()
    large = world.start("large", 1, shape_of(gpus[0]), created=1.0)
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0",)
    return world, large


def test_no_gang_enters_a_target_on_which_a_pod_has_no_enforced_end() -> None:
    world, _ = drained(2)
    world.create(a_pod("brief", deadline=1.0))
    world.settle()
    assert world.pods["brief"].node is None


@pytest.mark.parametrize(("deadline", "enters"), [(690.0, True), (710.0, False), (None, False)])
def test_only_a_gang_that_ends_before_the_pods_on_a_target_enters_it(deadline: float | None, enters: bool) -> None:
    world, _ = drained(2, deadline=1000.0)
    world.create(a_pod("next", deadline=deadline))
    world.settle()
    assert (world.pods["next"].node is not None) is enters


def test_gang_that_ends_in_time_does_not_wait_behind_one_that_does_not() -> None:
    world, _ = drained(2, deadline=1000.0)
    world.create(a_pod("long", deadline=5000.0))
    world.settle()
    world.create(a_pod("brief", deadline=100.0))
    world.settle()
    assert (world.pods["long"].node, world.pods["brief"].node) == (None, "n0")


def test_no_other_gang_enters_a_target_that_has_run_empty() -> None:
    world, large = drained(2, deadline=1000.0)
    world.put_queue(Queue("idle"))
    world.end("occupant")
    world.create(a_pod("early", deadline=500.0, created=0.5))
    world.settle()
    assert len(world.bound(large)) == 1


def test_gang_below_its_minimum_may_grow_back_into_a_target_up_to_its_minimum() -> None:
    world = a_world(2, 2)
    shrunk = world.start("a", 3, on_member_lost=OnMemberLost.SHRINK)
    world.settle()
    large = world.start("large", 2, shape_of(2))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0", "n1")
    world.lose(world.bound(shrunk)[0].uid)
    world.create(*members(shrunk, 1, index=3, role="late"))
    world.settle()
    assert len(world.bound(shrunk)) == 3


def test_lost_member_is_replaced_on_a_target_and_members_of_a_raised_minimum_are_not() -> None:
    world = a_world(4)
    key = world.start("a", 2, controlled=False, hold=3600.0)
    large = world.start("large", 1, shape_of(4))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0",)
    world.end("a-1", PodPhase.FAILED)
    world.change_gang(key, minimum=4)
    world.pass_time(60)
    world.create(*(a_pod(f"more-{i}", gang=key) for i in range(3)))
    world.pass_time(60)
    assert (len(world.bound(key)), world.phase(key)) == (2, Phase.HOLDING)
    assert world.reasons(key) == {Reason.RESERVED}
    world.remove_job(large)
    world.settle()
    assert (len(world.bound(key)), world.phase(key)) == (4, Phase.RUNNING)


@pytest.mark.parametrize("hold", [0.0, 3600.0], ids=["hold over", "hold"])
@pytest.mark.parametrize("policy", [OnMemberLost.HOLD, OnMemberLost.SHRINK])
def test_owner_of_a_target_starts_although_a_running_gang_raises_its_minimum(hold: float, policy: OnMemberLost) -> None:
    world = a_world(4, 4)
    fillers = [world.start(f"filler-{i}", 1) for i in range(7)]
    key = world.start("a", 1, controlled=False, hold=hold, on_member_lost=policy)
    world.settle()
    large = world.start("large", 4)
    world.pass_time(301)
    assert world.gangs[large].notes.target
    world.change_gang(key, minimum=8)
    for filler in fillers:
        world.create(a_pod(f"more-{filler.name}", gang=key))
        world.finish(filler)
        world.settle()
    assert len(world.bound(large)) == 4


def test_gang_of_higher_priority_enters_a_target_and_one_of_equal_priority_does_not() -> None:
    world, _ = drained(2)
    equal, high = world.start("equal", 1), world.start("high", 1, priority=1)
    world.settle()
    assert (len(world.bound(equal)), len(world.bound(high))) == (0, 1)


def test_new_leader_keeps_the_target() -> None:
    world, large = drained(2)
    world.crash()
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == []
    world.end("occupant")
    world.settle()
    assert len(world.bound(large)) == 1


def drained_beside_a_driver() -> tuple[World, GangKey]:
    """n1 is drained for a gang, and on n0 a slot is reserved for the executor of a driver."""
    world = a_world(4, 4)
    ends = world.start("a", 1, shape_of(2), controlled=False)
    world.start("b", 1, shape_of(2), controlled=False)
    world.settle()
    world.start("c", 1, shape_of(3), controlled=False)
    world.settle()
    large = world.start("large", 1, shape_of(4))
    world.pass_time(310)
    assert world.engine.state.records[large].notes.target == ("n1",)
    world.finish(ends)
    key = a_key("spark")
    driver = members(key, 1, shape_of(0), role="driver")
    world.submit(Gang(key, expected=(Expected(shape_of(1), 1, "executor"),)), *driver)
    world.settle()
    assert nodes_kept(world, key) == ["n0"]
    return world, key


def nodes_kept(world: World, key: GangKey) -> list[str]:
    state = world.engine.state
    return [state.cluster.usage[uid].node for uid in state.records[key].reserved]


def test_executors_do_not_enter_a_target_under_a_new_leader() -> None:
    world, key = drained_beside_a_driver()
    world.crash(succeed=True)
    world.settle()
    world.create(*members(key, 1, role="executor"))
    world.settle()
    assert [pod.node for pod in world.bound(key) if pod.role == "executor"] == ["n0"]


def test_executors_do_not_enter_a_target_when_more_of_them_are_expected() -> None:
    world, key = drained_beside_a_driver()
    world.change_gang(key, expected=(Expected(shape_of(1), 2, "executor"),))
    world.settle()
    assert nodes_kept(world, key) == ["n0", "n0"]
    world.change_gang(key, expected=(Expected(shape_of(1), 3, "executor"),))
    world.settle()
    assert nodes_kept(world, key) == []


def test_drain_ends_when_its_gang_is_deleted() -> None:
    world, large = drained(2)
    rival = world.start("b", 1)
    world.settle()
    world.remove_job(large)
    world.settle()
    assert len(world.bound(rival)) == 1


def test_drain_for_a_lone_pod_ends_when_the_pod_is_deleted() -> None:
    world = a_world(2)
    world.create(a_pod("occupant"))
    world.settle()
    world.create(a_pod("large", shape_of(2)))
    world.pass_time(301)
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == []
    world.remove_pod("large")
    world.settle()
    assert len(world.bound(rival)) == 1


def pause(world: World, key: GangKey) -> None:
    world.change_gang(key, paused=True)


def lose_members(world: World, key: GangKey) -> None:
    for pod in world.members(key):
        del world.templates[pod.namespace, pod.name]
        world.remove_pod(pod.uid)


def close_queue(world: World, key: GangKey) -> None:
    world.put_queue(Queue("shut", open=False))
    world.change_gang(key, queue="shut")


def lose_node(world: World, key: GangKey) -> None:
    world.put_node(a_node("n9", 1))
    world.remove_node("n0")


@pytest.mark.parametrize("event", [pause, lose_members, close_queue, lose_node])
def test_drain_ends_when_its_gang_can_no_longer_use_the_target(event: Any) -> None:
    world, large = drained(2)
    rival = world.start("b", 1)
    world.settle()
    event(world, large)
    world.pass_time(5)
    assert len(world.bound(rival)) == 1


def test_gang_whose_target_lost_a_node_gets_another() -> None:
    world = a_world(2, 2)
    for i in range(4):
        small_job(world, i)
    world.settle()
    large = world.start("large", 1, shape_of(2))
    world.pass_time(310)
    (node,) = world.gangs[large].notes.target
    world.remove_node(node)
    world.pass_time(10)
    assert world.gangs[large].notes.target == (("n1",) if node == "n0" else ("n0",))


def test_target_is_kept_although_another_node_is_emptier_and_nodes_have_changed() -> None:
    world = a_world()
    for name, pods in (("n0", 2), ("n1", 3)):
        world.put_node(a_node(name, 4, labels={"name": name}))
        shape = shape_of(1, node_labels=labels_equal({"name": name}))
        world.create(*(a_pod(f"{name}-{i}", shape) for i in range(pods)))
    world.settle()
    large = world.start("large", 1, shape_of(4))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0",)
    world.end("n1-0")
    world.end("n1-1")
    world.put_node(a_node("n2", 1))
    world.settle()
    assert world.gangs[large].notes.target == ("n0",)


def agent_on(node: str, gpus: int) -> Pod:
    """A pod of a DaemonSet: permanent, of another scheduler."""
    return a_pod(f"agent-{node}", shape_of(gpus), ours=False, node=node, permanent=True)


def test_drain_ends_when_a_permanent_pod_takes_the_capacity_of_its_target() -> None:
    world, large = drained(2)
    rival = world.start("b", 1, shape_of(0, host_ports=(HostPort(80),)))
    world.settle()
    assert world.bound(rival) == []
    world.create(agent_on("n0", 1))
    world.settle()
    assert len(world.bound(rival)) == 1
    assert world.gangs[large].notes.target == ()
    assert Reason.TOO_LARGE in world.reasons(large)


def test_gang_that_waited_for_nodes_of_a_target_starts_when_the_drain_ends() -> None:
    world = a_world(4, 2)
    for name in ("a", "b"):
        world.start(name, 1, shape_of(2), controlled=False)
        world.settle()
    large = world.start("large", 1, shape_of(4))
    world.pass_time(310)
    assert world.engine.state.records[large].notes.target == ("n0",)
    world.start("small", 1)
    world.settle()
    world.create(replace(agent_on("n0", 1), devices=(3,)))
    world.deliver_all()
    assert binds_in(world.run_cycle())


def test_gang_that_no_longer_fits_does_not_block_the_next_gang_from_a_target() -> None:
    world = a_world(4, 2)
    world.create(*(a_pod(f"stranger-{node}", shape_of(1), ours=False, node=node) for node in ("n0", "n1")))
    first = world.start("first", 1, shape_of(4), created=1.0)
    world.settle()
    world.create(agent_on("n0", 1))
    second = world.start("second", 1, shape_of(2), created=2.0)
    world.pass_time(400)
    assert (world.gangs[first].notes.target, world.gangs[second].notes.target) == ((), ("n1",))
    assert Reason.TOO_LARGE in world.reasons(first)


def test_gang_larger_than_the_limit_of_its_queue_drains_no_nodes() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    waiting = world.start("a", 3, queue="q")
    world.pass_time(400)
    assert world.status[waiting].notes.target == ()
    other = world.start("b", 4)
    world.settle()
    assert len(world.bound(other)) == 4


def test_gang_that_waits_for_quota_drains_no_nodes() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    world.start("a", 2, queue="q")
    world.settle()
    waiting = world.start("b", 2, queue="q")
    world.pass_time(400)
    assert world.gangs[waiting].notes.target == ()
    other = world.start("c", 2)
    world.settle()
    assert len(world.bound(other)) == 2


def test_members_beyond_the_minimum_drain_no_nodes() -> None:
    world = a_world(2, 2)
    world.start("a", 1)
    world.settle()
    elastic = world.start("b", 2, shape_of(2), minimum=1)
    world.pass_time(400)
    assert (len(world.bound(elastic)), world.status[elastic].waiting) == (1, 1)
    assert world.gangs[elastic].notes.target == ()
    small = world.start("c", 1)
    world.settle()
    assert len(world.bound(small)) == 1


def test_drain_ends_when_its_gang_starts() -> None:
    world = a_world(4)
    world.create(a_pod("occupant", shape_of(2)))
    world.settle()
    large = world.start("large", 1, shape_of(3))
    world.pass_time(301)
    small = world.start("small", 1)
    world.settle()
    assert (world.gangs[large].notes.target, world.bound(small)) == (("n0",), [])
    world.end("occupant")
    world.deliver_all()
    assert {bind.name for bind in binds_in(world.run_cycle())} == {"large-0", "small-0"}
    assert world.status[large].notes.target == ()


@pytest.mark.parametrize(("priority", "owner"), [(1, "rival"), (0, "large")], ids=["higher", "equal"])
def test_target_is_taken_over_only_by_strictly_higher_priority_and_both_gangs_are_reported(
    priority: int, owner: str
) -> None:
    world = a_world(2)
    world.create(a_pod("occupant", priority=5))
    world.settle()
    large = world.start("large", 1, shape_of(2))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0",)
    rival = world.start("rival", 1, shape_of(2), priority=priority)
    world.pass_time(301)
    targets = {key.name: world.gangs[key].notes.target for key in (large, rival)}
    assert targets == {"large": (), "rival": ()} | {owner: ("n0",)}


def test_waiting_gangs_may_use_the_nodes_of_a_target_that_was_taken_over() -> None:
    world = World(None, a_node("n0", 2), a_node("n1", 2, labels={"kind": "new"}))
    world.create(
        a_pod("stranger-0", ours=False, node="n0", devices=(0,)),
        a_pod("stranger-1", shape_of(2), ours=False, node="n1", devices=(0, 1)),
    )
    large = world.start("large", 1, shape_of(2))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0",)
    rival = world.start("rival", 1, shape_of(2, node_labels=labels_equal({"kind": "new"})), priority=1)
    world.pass_time(200)
    small = world.start("small", 1)
    world.settle()
    assert world.bound(small) == []
    world.pass_time(101)
    assert world.gangs[rival].notes.target == ("n1",)
    assert [pod.node for pod in world.bound(small)] == ["n0"]


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "parked"])
def test_former_target_is_drained_again_before_later_gangs_enter_it(asks: bool) -> None:
    world = a_world(4)
    world.create(a_pod("leaves", shape_of(3), priority=5), a_pod("stays", priority=5))
    world.settle()
    large = world.start("large", 1, shape_of(4))
    world.pass_time(301)
    rival, small = world.start("rival", 1, shape_of(2), priority=1), world.start("small", 1)
    world.pass_time(301)
    assert [world.gangs[key].notes.target for key in (large, rival)] == [(), ("n0",)]
    if asks:
        world.put_node(a_node("n1", 0))
    world.end("leaves")
    world.settle()
    assert (len(world.bound(rival)), world.bound(small), world.gangs[large].notes.target) == (1, [], ("n0",))


def test_of_two_gangs_that_waited_too_long_the_one_of_higher_priority_gets_a_target() -> None:
    world = a_world(2)
    world.create(a_pod("occupant", priority=5))
    world.settle()
    gangs = [world.start(name, 1, shape_of(2), priority=priority) for name, priority in (("a", 0), ("b", 1), ("c", 0))]
    world.pass_time(301)
    assert [world.gangs[key].notes.target for key in gangs] == [(), ("n0",), ()]


def test_drain_starts_by_a_timer_when_a_gang_has_waited_too_long() -> None:
    world = a_world(2)
    world.create(a_pod("occupant"))
    world.settle()
    large = world.start("large", 1, shape_of(2))
    world.pass_time(1000)
    reports = [(time, effect) for time, _, effects in world.journal for effect in sent(effects, Report)]
    assert [time for time, report in reports if report.key == large and report.status.notes.target] == [1300.0]


def test_waiting_time_counts_from_the_creation_of_the_last_member() -> None:
    world = a_world(2)
    world.create(a_pod("occupant", priority=5))
    world.settle()
    key = a_key("a")
    pods = [replace(pod, created=created) for pod, created in zip(members(key, 2), (500.0, 900.0), strict=True)]
    world.submit(Gang(key, minimum=2), *pods)
    world.settle()
    assert world.gangs[key].notes.target == ()
    world.pass_time(201)
    assert world.gangs[key].notes.target == ("n0",)


def test_waiting_time_starts_again_when_all_members_are_recreated() -> None:
    world = a_world(2)
    world.create(a_pod("occupant", priority=5))
    world.settle()
    key = world.start("a", 1, shape_of(2), controlled=False)
    world.pass_time(200)
    world.remove_pod("a-0")
    world.settle()
    world.create(*members(key, 1, shape_of(2), controlled=False))
    world.pass_time(200)
    assert world.gangs[key].notes.target == ()
    world.pass_time(101)
    assert world.gangs[key].notes.target == ("n0",)


def test_almost_full_node_is_drained_before_a_full_one() -> None:
    world = a_world()
    for name, gpus in (("n0", 2), ("n1", 1)):
        world.put_node(a_node(name, 2, labels={"name": name}))
        world.create(a_pod(f"on-{name}", shape_of(gpus, node_labels=labels_equal({"name": name}))))
    world.settle()
    large = world.start("large", 1, shape_of(2))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n1",)


def test_emptiest_nodes_are_drained() -> None:
    world = a_world(4, 4, 4)
    for i, gpus in enumerate((3, 1, 2)):
        world.put_node(a_node(f"n{i}", 4, labels={"name": f"n{i}"}))
        world.create(a_pod(f"p{i}", shape_of(gpus, node_labels=labels_equal({"name": f"n{i}"}))))
    world.settle()
    large = world.start("large", 1, shape_of(4))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n1",)


def test_node_whose_only_gpu_is_free_counts_as_empty() -> None:
    world = a_world()
    for name, gpus, used in (("n0", 1, 400), ("n1", 2, 450)):
        world.put_node(a_node(name, gpus, cpu=1000))
        world.create(a_pod(f"on-{name}", Shape(request=(("cpu", used),)), ours=False, node=name))
    large = world.start("large", 1, shape_of(1))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0",)


def test_target_is_not_taken_over_by_a_gang_of_higher_priority_that_does_not_fit() -> None:
    world, large = drained(2)
    world.put_queue(Queue("q", limit={GPU: 1}))
    world.start("x", 1, queue="q", priority=7)
    world.settle()
    world.start("y", 1, queue="q", priority=7)
    world.pass_time(400)
    assert world.gangs[large].notes.target == ("n0",)


def test_stale_target_of_a_running_gang_is_dropped_by_the_next_leader() -> None:
    world = a_world(2, 2)
    key = world.start("a", 2)
    world.settle()
    world.change_notes(key, target=("n0", "n1"))
    world.crash()
    rival = world.start("b", 1)
    world.settle()
    assert len(world.bound(rival)) == 1


def test_new_leader_that_finds_two_targets_keeps_one_and_can_choose_another_later() -> None:
    world = a_world(2, 2)
    for i in range(4):
        small_job(world, i)
    world.settle()
    keys = [world.start(name, 1, shape_of(2)) for name in ("x", "y")]
    world.pass_time(310)
    for key, node in zip(keys, ("n0", "n1"), strict=True):
        world.change_notes(key, target=(node,))
    world.crash()
    world.settle()
    assert sum(len(world.gangs[key].notes.target) for key in keys) == 1
    for i in range(4):
        world.finish(a_key(f"small-{i}"))
    world.settle()
    assert [len(world.bound(key)) for key in keys] == [1, 1]


def test_new_leader_keeps_the_target_of_the_gang_of_higher_priority() -> None:
    world = a_world(2, 2)
    for i in range(4):
        small_job(world, i, priority=9)
    world.settle()
    low, high = (world.start(name, 1, shape_of(2), priority=priority) for name, priority in (("x", 1), ("y", 2)))
    world.pass_time(310)
    world.change_notes(low, target=("n0",))
    world.change_notes(high, target=("n1",))
    world.crash()
    world.settle()
    assert (world.gangs[low].notes.target, world.gangs[high].notes.target) == ((), ("n1",))


def test_gang_that_can_never_fit_gets_no_target_and_delays_no_other_gang() -> None:
    world = a_world(2)
    giant = world.start("giant", 9, priority=3)
    world.settle()
    assert Reason.TOO_LARGE in world.reasons(giant)
    world.pass_time(1000)
    small = world.start("small", 2)
    world.settle()
    assert len(world.bound(small)) == 2
    assert world.gangs[giant].notes.target == ()


def test_gang_too_large_beside_a_permanent_pod_starts_when_the_pod_is_deleted() -> None:
    world = a_world(2)
    world.create(a_pod("daemon", ours=False, permanent=True, node="n0", devices=(0,)))
    key = world.start("a", 2)
    world.settle()
    assert Reason.TOO_LARGE in world.reasons(key)
    world.remove_pod("daemon")
    world.settle()
    assert len(world.bound(key)) == 2


def test_too_large_beside_one_permanent_pod_is_not_cached_for_another() -> None:
    world = a_world(2, 1)
    world.create(a_pod("occupant", ours=False, node="n0", devices=(0,)))
    world.create(a_pod("daemon", ours=False, permanent=True, phase=PodPhase.RUNNING, node="n0", devices=(1,)))
    key = world.start("a", 1, shape_of(2))
    world.settle()
    assert Reason.TOO_LARGE in world.reasons(key)
    world.remove_pod("daemon")
    world.create(a_pod("other", ours=False, permanent=True, phase=PodPhase.RUNNING, node="n1", devices=(0,)))
    world.settle()
    assert Reason.TOO_LARGE not in world.reasons(key)
    world.end("occupant")
    world.settle()
    assert [pod.node for pod in world.bound(key)] == ["n0"]


def test_too_large_for_a_gang_with_roles_is_not_cached_for_one_with_other_roles() -> None:
    world = World(None, a_node("gpu", 2), a_node("cpu", 0))
    shapes = {"a": shape_of(2), "b": shape_of(1)}
    strict, loose = a_key("strict"), a_key("loose")
    world.start("busy", 1, shape_of(2))
    world.settle()
    for key, roles in (
        (strict, (Role("a", minimum=1), Role("b", minimum=1))),
        (loose, (Role("a"), Role("b"))),
    ):
        pods = [pod for role, shape in shapes.items() for pod in members(key, 1, shape, role=role)]
        world.submit(Gang(key, minimum=1, roles=roles), *pods)
        world.settle()
    assert Reason.TOO_LARGE in world.reasons(strict)
    assert Reason.TOO_LARGE not in world.reasons(loose)


@pytest.mark.parametrize("driver", [False, True], ids=["alone", "behind a driver that ends in time"])
def test_expected_members_without_an_enforced_end_do_not_enter_a_target(driver: bool) -> None:
    world, _ = drained(4, deadline=1000.0)
    key = a_key("a")
    pods = members(key, 1, shape_of(0), role="driver", deadline=100.0) if driver else []
    world.submit(Gang(key, minimum=1, expected=(Expected(shape_of(1), 2, "worker"),)), *pods)
    world.settle()
    assert (world.bound(key), world.phase(key) is Phase.RESERVED) == ([], False)


def count_searches(monkeypatch: pytest.MonkeyPatch) -> list[GangKey]:
    """The gangs for which a target is searched from now on."""
    found: list[GangKey] = []
    search = drain.place_on_empty

    def counted(state: State, record: GangRecord, *rest: Any, **changes: Any) -> Placement | None:
        found.append(record.key)
        return search(state, record, *rest, **changes)

    monkeypatch.setattr(drain, "place_on_empty", counted)
    return found


def alone(world: World, name: str, priority: int = 0) -> GangKey:
    """Starts a gang that waits for a pod that does not exist, and would fit empty nodes otherwise."""
    shape = shape_of(1, affinity=(PodTerm(apps("missing"), HOSTNAME),))
    return world.start(name, 1, shape, priority=priority)


def test_target_is_not_searched_again_until_nodes_or_the_request_change(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Config(), a_node("n0", 2, labels={HOSTNAME: "n0"}))
    world.create(a_pod("occupant", shape_of(2)))
    world.settle()
    key = alone(world, "a")
    searched = count_searches(monkeypatch)
    world.pass_time(301)
    assert searched == [key]
    for number in range(5):
        world.start(f"more-{number}", 1, shape_of(2), priority=-1 - number)
        world.settle()
    assert searched == [key]
    world.put_node(a_node("n1", 0, labels={HOSTNAME: "n1"}))
    world.settle()
    assert searched == [key] * 2


def test_cycle_whose_work_is_used_up_searches_a_target_for_one_gang_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(Config(), a_node("n0", 2, labels={HOSTNAME: "n0"}))
    world.create(a_pod("occupant", shape_of(2), priority=9))
    world.settle()
    keys = [alone(world, f"a{number}", 5 - number) for number in range(3)]
    large = world.start("large", 1, shape_of(2))
    world.pass_time(299)
    searched = count_searches(monkeypatch)
    state = world.engine.state
    monkeypatch.setattr(state.budget, "has_work_left", lambda _: False)
    chosen = [drain.choose_target(state, world.now + 2) for _ in range(4)]
    assert (searched, chosen) == ([*keys, large], [None, None, None, large])


def test_least_use_of_nodes_does_not_decide_whether_a_gang_gets_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_preferences(cluster: Cluster, bid: Bid) -> Placement | None:
        return None if bid.tie_break is not None else place_gang(cluster, bid)

    monkeypatch.setattr(drain, "place_gang", refuse_preferences)
    _, large = drained(2)
    assert large == a_key("large")
