"""The engine's rules, one small story each: events in, effects out, no wall clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpu_scheduler.core import decide
from gpu_scheduler.core.cluster import Cluster
from gpu_scheduler.core.domains import Bid
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import (
    BindFailed,
    BindFailure,
    Commit,
    Committed,
    Effect,
    Fenced,
    GangSeen,
    NodeSeen,
    PodSeen,
    RaiseAttempt,
    Release,
    Report,
    SendBind,
    SendDelete,
    TookOver,
)
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import (
    DeviceMap,
    Expected,
    Gang,
    GangKey,
    Gate,
    GateKind,
    OnMemberLost,
    Pod,
    PodPhase,
    Queue,
    Role,
    Shape,
)
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import Config
from tests.unit.world import (
    GPU,
    NAMESPACE,
    Fate,
    World,
    a_key,
    a_node,
    a_pod,
    binds_in,
    members,
    shape_of,
    share_of,
)


def a_world(*gpus: int, config: Config | None = None) -> World:
    """A world with one node for every number of GPUs: n0, n1, ..."""
    return World(config, *(a_node(f"n{i}", count) for i, count in enumerate(gpus)))


def sent(effects: list[Effect], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def taken(world: World, node: str = "n0") -> list[int]:
    return sorted(d for pod in world.pods.values() if pod.live and pod.node == node for d in pod.devices or ())


# -- all or nothing


def test_gang_that_fits_starts_with_all_its_members_on_distinct_devices() -> None:
    world = a_world(4)
    key = world.start("a", 4)
    world.settle()
    assert world.phase(key) is Phase.RUNNING
    assert taken(world) == [0, 1, 2, 3]


def test_gang_one_gpu_short_stays_parked_until_a_node_appears() -> None:
    world = a_world(3)
    key = world.start("a", 4)
    world.settle()
    assert world.bound(key) == []
    assert world.phase(key) is Phase.WAITING
    assert world.status[key].refusal is not None
    world.put_node(a_node("n1", 1))
    world.settle()
    assert len(world.bound(key)) == 4


def test_two_gangs_that_would_lock_each_other_run_one_after_the_other() -> None:
    world = a_world(4)
    first, second = world.start("a", 3), world.start("b", 3)
    world.settle()
    assert (len(world.bound(first)), len(world.bound(second))) == (3, 0)
    world.finish(first)
    world.settle()
    assert len(world.bound(second)) == 3


def test_without_gangs_the_same_two_jobs_lock_each_other() -> None:
    world = a_world(4, config=Config(gangs=False))
    for i, pair in enumerate(zip(*(members(a_key(name), 3) for name in "ab"), strict=True)):
        world.create(*(replace(pod, created=float(i + 1)) for pod in pair))
    world.settle()
    assert [len(world.bound(a_key(name))) for name in "ab"] == [2, 2]


def test_gang_waits_for_its_members_to_appear() -> None:
    world = a_world(4)
    pods = members(a_key("a"), 2)
    world.submit(Gang(a_key("a"), minimum=2), pods[0])
    world.settle()
    assert world.phase(a_key("a")) is Phase.GATHERING
    assert world.reasons(a_key("a")) == {Reason.MEMBERS_MISSING}
    world.create(pods[1])
    world.settle()
    assert len(world.bound(a_key("a"))) == 2


def test_gang_starts_with_its_minimum_and_takes_the_rest_when_there_is_room() -> None:
    world = a_world(3)
    key = world.start("a", 5, minimum=2)
    world.settle()
    assert len(world.bound(key)) == 3
    assert world.phase(key) is Phase.RUNNING
    world.put_node(a_node("n1", 4))
    world.settle()
    assert len(world.bound(key)) == 5


def test_gang_does_not_start_below_the_minimum_of_a_role() -> None:
    world = a_world(4)
    key = a_key("a")
    roles = (Role("master", minimum=1), Role("worker", minimum=2))
    world.submit(Gang(key, minimum=3, roles=roles), *members(key, 4, role="worker"))
    world.settle()
    assert world.bound(key) == []
    world.create(*members(key, 1, role="master"))
    world.settle()
    assert sorted(pod.role for pod in world.bound(key)) == ["master", "worker", "worker", "worker"]


def test_members_are_bound_in_the_order_of_their_roles_ranks() -> None:
    world = a_world(4)
    key = a_key("a")
    roles = (Role("worker", minimum=2, rank=1), Role("master", minimum=1, rank=0))
    world.submit(Gang(key, minimum=3, roles=roles), *members(key, 2, role="worker"), *members(key, 1, role="master"))
    while world.streams:
        world.deliver()
    assert [bind.name for bind in binds_in(world.run_cycle())] == ["a-master-0", "a-worker-0", "a-worker-1"]


def test_succeeded_members_count_towards_the_minimum() -> None:
    world = a_world(4)
    key = world.start("a", 3)
    world.settle()
    world.end("a-0")
    world.pass_time(1000)
    assert world.phase(key) is Phase.RUNNING
    assert {pod.uid for pod in world.bound(key)} == {"a-1", "a-2"}
    world.finish(key)
    world.settle()
    assert world.phase(key) is Phase.FINISHED


def test_pod_that_names_a_gang_of_another_namespace_is_alone() -> None:
    world = a_world(4)
    world.submit(Gang(a_key("a", "other"), minimum=2), a_pod("spy", gang=a_key("a", "other"), controlled=True))
    world.settle()
    assert world.pods["spy"].node == "n0"
    assert world.status[a_key("a", "other")].running == 0


def test_member_that_changes_its_gang_leaves_the_old_one() -> None:
    world = a_world(4)
    world.submit(Gang(a_key("old"), minimum=2), *members(a_key("old"), 1))
    world.put_gang(Gang(a_key("new"), minimum=2))
    world.settle()
    world.change_pod("old-0", gang=a_key("new"))
    world.settle()
    assert world.status[a_key("old")].waiting == 0
    assert world.status[a_key("new")].waiting == 1


def test_gated_member_keeps_its_gang_waiting_and_says_by_what() -> None:
    world = a_world(4)
    key = a_key("a")
    pods = members(key, 2)
    gate = Gate(GateKind.SCHEDULING_GATE, "wait.example.com")
    world.submit(Gang(key, minimum=2), pods[0], replace(pods[1], gates=(gate,)))
    world.settle()
    assert world.reasons(key) == {Reason.GATED}
    world.change_pod("a-1", gates=())
    world.settle()
    assert len(world.bound(key)) == 2


def test_paused_gang_waits_until_it_goes_on() -> None:
    world = a_world(4)
    key = world.start("a", 2, paused=True)
    world.settle()
    assert world.reasons(key) == {Reason.PAUSED}
    world.change_gang(key, paused=False)
    world.settle()
    assert len(world.bound(key)) == 2


# -- commit, then bind


def test_binds_are_sent_only_after_their_commit_is_in_the_lease() -> None:
    world = a_world(4)
    world.start("a", 2)
    while world.streams:
        world.deliver()
    effects = world.run_cycle()
    (commit,) = sent(effects, Commit)
    assert [bind.uid for bind in commit.binds] == ["a-0", "a-1"]
    assert sent(effects, SendBind) == []
    assert sent(world.run_cycle(), SendBind) == []
    follow = world.handle(Committed(commit.sequence))
    assert [effect.bind for effect in sent(follow, SendBind)] == list(commit.binds)


def test_commit_is_released_only_when_every_bind_has_been_seen() -> None:
    world = a_world(4)
    world.start("a", 2)
    while world.streams:
        world.deliver()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    first, second = commit.binds
    world.handle(PodSeen(replace(world.pods[first.uid], node=first.node, devices=first.devices)))
    assert sent(world.run_cycle(), Release) == []
    world.handle(PodSeen(replace(world.pods[second.uid], node=second.node, devices=second.devices)))
    assert sent(world.run_cycle(), Release) == [Release(commit.sequence)]


def test_fence_drops_what_was_only_decided() -> None:
    world = a_world(4)
    world.start("a", 2)
    while world.streams:
        world.deliver()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Fenced())
    assert world.handle(Committed(commit.sequence)) == []
    assert world.run_cycle() == []
    assert world.engine.state.cluster.usage == {}
    assert not any(world.engine.state.quota.used("").values())


def test_leader_that_was_fenced_and_leads_again_decides_afresh() -> None:
    world = a_world(4)
    key = world.start("a", 2)
    while world.streams:
        world.deliver()
    world.run_cycle()
    world.handle(Fenced())
    world.flights.clear()
    world.handle(TookOver((), 7))
    (commit,) = sent(world.run_cycle(), Commit)
    assert commit.sequence == 7
    world.settle()
    assert len(world.bound(key)) == 2


def test_new_leader_rolls_forward_to_the_same_node_and_devices() -> None:
    world = a_world(4, 4)
    key = world.start("a", 3)
    while world.streams:
        world.deliver()
    (commit,) = sent(world.run_cycle(), Commit)
    world.carry_out(world.flights.pop(0))
    world.crash()
    again = [flight.effect.bind for flight in world.flights if isinstance(flight.effect, SendBind)]
    assert again == list(commit.binds)
    rival = world.start("b", 4)
    world.settle()
    assert {(p.uid, p.node, p.devices) for p in world.bound(key)} == {(b.uid, b.node, b.devices) for b in commit.binds}
    assert len(world.bound(rival)) == 4
    assert world.lease == {}


def test_commit_that_never_reached_the_lease_is_void() -> None:
    world = a_world(4)
    key = world.start("a", 2)
    while world.streams:
        world.deliver()
    world.run_cycle()
    world.crash()
    assert world.lease == {}
    world.settle()
    assert len(world.bound(key)) == 2


@pytest.mark.parametrize("newest_first", [False, True])
def test_new_leader_that_finds_two_commits_for_one_pod_follows_the_later(newest_first: bool) -> None:
    """The first was given up and over; its leader died before its name left the Lease."""
    world = a_world(4, 4)
    key = world.start("a", 1)
    while world.streams:
        world.deliver()
    world.run_cycle()
    world.carry_out(world.flights.pop(0))
    (first,) = world.lease.values()
    world.change_pod("a-0", attempt=1)
    other = "n1" if first.binds[0].node == "n0" else "n0"
    second = Commit(first.sequence + 1, (first.binds[0]._replace(attempt=1, node=other),))
    world.lease[second.sequence] = second
    if newest_first:
        world.lease = dict(reversed(world.lease.items()))
    world.crash()
    world.settle()
    assert [pod.node for pod in world.bound(key)] == [other]
    assert world.lease == {}


def test_deciding_pauses_while_too_many_binds_are_open() -> None:
    world = a_world(8, config=Config(max_open_binds=2))
    keys = [world.start(name, 2) for name in "abc"]
    while world.streams:
        world.deliver()
    (commit,) = sent(world.run_cycle(), Commit)
    assert len(commit.binds) == 2
    assert sent(world.run_cycle(), Commit) == []
    world.settle()
    assert [len(world.bound(key)) for key in keys] == [2, 2, 2]


# -- binds that fail


def test_bind_refused_for_a_minute_is_given_up_and_decided_again() -> None:
    world = a_world(4)
    key = world.start("a", 1)
    while world.streams:
        world.deliver()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    world.flights.clear()
    raised: list[float] = []
    start = world.now
    while not raised and world.now < start + 120:
        world.handle(BindFailed("a-0", BindFailure.REFUSED))
        timer = world.engine.next_timer()
        assert timer is not None
        world.now = timer
        if sent(world.run_cycle(), RaiseAttempt):
            raised.append(world.now - start)
    assert 60 <= raised[0] <= 63
    world.pass_time(70)
    assert world.pods["a-0"].attempt == 1
    assert len(world.bound(key)) == 1


def test_pod_bound_elsewhere_is_believed() -> None:
    world = a_world(4, 4)
    world.start("a", 1)
    while world.streams:
        world.deliver()
    (bind,) = binds_in(world.run_cycle())
    other = "n1" if bind.node == "n0" else "n0"
    world.change_pod("a-0", node=other, devices=(3,))
    world.settle()
    usage = world.engine.state.cluster.usage["a-0"]
    assert (usage.node, usage.devices) == (other, (3,))
    assert world.lease == {}


def test_bind_whose_reply_was_lost_counts_once() -> None:
    world = a_world(4)
    key = world.start("a", 2)
    while world.streams:
        world.deliver()
    world.run_cycle()
    world.carry_out(world.flights.pop(0))
    world.deliver()
    while world.flights:
        world.carry_out(world.flights.pop(0), Fate.REPLY_LOST)
    world.pass_time(5)
    assert len(taken(world)) == len(world.bound(key)) == 2
    assert world.lease == {}


def node_gone(world: World, node: str) -> None:
    world.remove_node(node)


def node_not_ready(world: World, node: str) -> None:
    world.change_node(node, ready=False)


def node_filled(world: World, node: str) -> None:
    world.create(a_pod("stranger", shape_of(4), ours=False, node=node))


def node_shrunk(world: World, node: str) -> None:
    world.change_node(node, gpus=0, allocatable={"cpu": 64_000, "pods": 110, GPU: 0})


def device_broken(world: World, node: str) -> None:
    world.change_node(node, unhealthy=frozenset(range(4)), allocatable={"cpu": 64_000, "pods": 110, GPU: 0})


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not yet committed"])
@pytest.mark.parametrize("event", [node_gone, node_not_ready, node_filled, node_shrunk, device_broken])
def test_bind_to_a_node_that_can_no_longer_take_it_is_given_up(event: Any, committed: bool) -> None:
    world = a_world(4, 4)
    key = world.start("a", 2)
    while world.streams:
        world.deliver()
    (first, _) = binds_in(world.run_cycle())
    (flight,) = [f for f in world.flights if isinstance(f.effect, Commit)]
    world.flights.clear()
    if committed:
        world.carry_out(flight)
        world.deliver()
        world.flights.clear()
    event(world, first.node)
    while world.streams:
        world.deliver()
    if not committed:
        world.carry_out(flight)
        world.deliver()
    assert [f.effect for f in world.flights if isinstance(f.effect, SendBind)] == []
    assert {f.effect.uid for f in world.flights if isinstance(f.effect, RaiseAttempt)} == {"a-0", "a-1"}
    world.pass_time(30)
    assert {pod.node for pod in world.bound(key)} == {"n0", "n1"} - {first.node}
    assert world.lease == {}


def test_engine_that_waits_for_its_commit_asks_for_no_timer_in_the_past() -> None:
    world = a_world(4)
    world.start("a", 2)
    while world.streams:
        world.deliver()
    world.run_cycle()
    world.change_node("n0", ready=False)
    while world.streams:
        world.deliver()
    world.now += 10
    world.run_cycle()
    timer = world.engine.next_timer()
    assert timer is None or timer > world.now


# -- members are lost


def lose(world: World, uid: str) -> None:
    """A member is lost in an orderly way, and its controller is slow."""
    world.change_pod(uid, deleting=True)
    world.settle(controllers=False)


def test_lost_slot_is_held_for_the_replacement_and_a_rival_does_not_get_it() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    slot = (world.pods["a-1"].node, world.pods["a-1"].devices)
    lose(world, "a-1")
    assert world.phase(key) is Phase.HOLDING
    rival = world.start("b", 1)
    world.settle(controllers=False)
    assert world.bound(rival) == []
    world.settle()
    assert world.phase(key) is Phase.RUNNING
    assert slot in [(pod.node, pod.devices) for pod in world.bound(key) if pod.uid != "a-0"]


def test_new_leader_keeps_the_slot_of_a_lost_member_and_its_deadline() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    lose(world, "a-1")
    since = world.status[key].below_since
    world.pass_time(100, controllers=False)
    world.crash()
    rival = world.start("b", 1)
    world.settle(controllers=False)
    assert world.bound(rival) == []
    assert world.status[key].below_since == since


def test_replacement_of_one_role_finds_its_slot_behind_a_waiting_member_of_another() -> None:
    world = a_world(3)
    key = a_key("a")
    roles = (Role("extra"), Role("worker", minimum=2))
    world.submit(Gang(key, minimum=2, roles=roles), *members(key, 2, role="worker"))
    world.settle()
    world.create(*members(key, 1, shape_of(2), role="extra"))
    world.settle()
    devices = world.pods["a-worker-0"].devices
    world.create(a_pod("filler", priority=-1))
    lose(world, "a-worker-0")
    world.settle()
    assert devices in [pod.devices for pod in world.bound(key)]
    assert world.phase(key) is Phase.RUNNING


def test_surplus_member_does_not_take_the_slot_that_is_held_for_a_lost_one() -> None:
    world = a_world(2)
    key = a_key("a")
    roles = (Role("master", minimum=1), Role("worker", minimum=1))
    world.submit(Gang(key, minimum=2, roles=roles), *members(key, 1, role="master"), *members(key, 2, role="worker"))
    world.settle()
    assert len(world.bound(key)) == 2
    lose(world, "a-master-0")
    world.pass_time(10, controllers=False)
    assert [pod.role for pod in world.bound(key)] == ["worker"]
    world.settle()
    assert sorted(pod.role for pod in world.bound(key)) == ["master", "worker"]


def test_hold_that_expires_restarts_the_members_that_a_controller_recreates() -> None:
    world = a_world(2, config=Config(hold=300))
    key = world.start("a", 2)
    world.settle()
    lose(world, "a-1")
    world.pass_time(299, controllers=False)
    assert [pod.uid for pod in world.bound(key)] == ["a-0"]
    world.pass_time(2, controllers=False)
    assert "a-0" not in world.pods
    world.pass_time(60)
    assert len(world.bound(key)) == 2


def test_hold_that_expires_leaves_bare_pods_running_and_reports_degraded() -> None:
    world = a_world(2)
    key = world.start("a", 2, controlled=False)
    world.settle()
    lose(world, "a-1")
    rival = world.start("b", 1)
    world.pass_time(310)
    assert world.phase(key) is Phase.DEGRADED
    assert [pod.uid for pod in world.bound(key)] == ["a-0"]
    assert len(world.bound(rival)) == 1


def test_gang_may_set_its_own_hold() -> None:
    world = a_world(2)
    key = world.start("a", 2, hold=20.0)
    world.settle()
    lose(world, "a-1")
    world.pass_time(21, controllers=False)
    assert world.bound(key) == []


def test_gang_that_restarts_on_loss_does_so_at_once() -> None:
    world = a_world(2)
    key = world.start("a", 2, on_member_lost=OnMemberLost.RESTART)
    world.settle()
    lose(world, "a-1")
    assert "a-0" not in world.pods
    world.pass_time(60)
    assert len(world.bound(key)) == 2


def test_gang_that_shrinks_on_loss_runs_on_and_holds_nothing() -> None:
    world = a_world(2)
    key = world.start("a", 2, on_member_lost=OnMemberLost.SHRINK)
    world.settle()
    lose(world, "a-1")
    rival = world.start("b", 1)
    world.settle(controllers=False)
    assert world.phase(key) is Phase.RUNNING
    assert len(world.bound(rival)) == 1


def test_restart_is_committed_before_the_first_delete_and_finished_by_the_next_leader() -> None:
    world = a_world(2)
    world.start("a", 2, on_member_lost=OnMemberLost.RESTART)
    world.settle()
    world.change_pod("a-1", deleting=True)
    while world.streams:
        world.deliver()
    effects = world.run_cycle()
    assert sent(effects, SendDelete) == []
    (commit,) = sent(effects, Commit)
    assert [delete.uid for delete in commit.deletes] == ["a-0"]
    world.carry_out(world.flights.pop(0))
    world.crash()
    assert [f.effect.delete.uid for f in world.flights if isinstance(f.effect, SendDelete)] == ["a-0"]
    world.settle(controllers=False)
    assert world.lease == {}


def test_refused_delete_is_tried_again_until_the_pod_is_seen_going() -> None:
    world = a_world(2)
    world.start("a", 2, on_member_lost=OnMemberLost.RESTART)
    world.settle()
    world.change_pod("a-1", deleting=True)
    while world.streams:
        world.deliver()
    world.run_cycle()
    for _ in range(3):
        for flight in [*world.flights]:
            world.flights.remove(flight)
            world.carry_out(flight, Fate.REFUSED if isinstance(flight.effect, SendDelete) else Fate.LANDS)
        while world.streams:
            world.deliver()
        world.now += 1
        world.run_cycle()
        assert len(world.lease) == 1
    world.settle(controllers=False)
    assert "a-0" not in world.pods
    assert world.lease == {}


def test_member_that_keeps_failing_is_not_bound_again_in_a_hot_loop() -> None:
    world = a_world(4, 4)
    world.start("a", 2)
    world.settle()
    failures = 0
    start = world.now
    while world.now < start + 120:
        for pod in world.bound(a_key("a")):
            if pod.index == 1:
                world.end(pod.uid, PodPhase.FAILED)
                failures += 1
        world.pass_time(1)
    assert failures < 15


def test_hold_survives_a_gang_object_that_a_standby_saw_before_the_loss() -> None:
    """A warm standby has seen every object long before it leads; what the leader noted since must not be lost."""
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    standby = Engine(world.config)
    for node in world.nodes.values():
        standby.handle(NodeSeen(node), world.now)
    for pod in world.pods.values():
        standby.handle(PodSeen(pod), world.now)
    standby.handle(GangSeen(world.gangs[key]), world.now)
    lose(world, "a-1")
    noted = world.gangs[key]
    assert noted.below_since is not None
    standby.handle(GangSeen(noted), world.now)
    standby.handle(PodSeen(replace(world.pods["a-0"], version="later")), world.now)
    standby.handle(PodSeen(a_pod("a-1", gang=key, node="n0", deleting=True)), world.now)
    world.now += 200
    standby.handle(TookOver(), world.now)
    reports = {e.key: e.status for e in standby.run_cycle(world.now) if isinstance(e, Report)}
    assert reports[key].below_since == noted.below_since


# -- the gang itself changes


def test_deleted_gang_object_leaves_running_members_and_frees_what_was_held() -> None:
    world = a_world(2)
    key = world.start("a", 2, controlled=False)
    world.settle()
    lose(world, "a-1")
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == []
    world.remove_gang(key)
    world.settle()
    assert world.pods["a-0"].live
    assert len(world.bound(rival)) == 1
    assert world.phase(key) is Phase.ORPHANED


def test_deleted_gang_object_leaves_waiting_members_waiting_with_that_reason() -> None:
    world = a_world(1)
    key = world.start("a", 2)
    world.settle()
    world.remove_gang(key)
    world.put_node(a_node("n1", 4))
    world.settle()
    assert world.bound(key) == []
    assert world.reasons(key) == {Reason.GANG_GONE}


def test_gang_object_deleted_while_binds_are_on_their_way_lets_them_land() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    while world.streams:
        world.deliver()
    world.run_cycle()
    world.remove_gang(key)
    world.settle()
    assert len(world.bound(key)) == 2
    assert world.lease == {}


def test_raised_minimum_of_a_running_gang_is_held_for_and_lowered_one_is_enough() -> None:
    world = a_world(3)
    key = world.start("a", 3, minimum=2)
    world.start("b", 1)
    world.settle()
    lose(world, "a-2")
    assert world.phase(key) is Phase.RUNNING
    world.change_gang(key, minimum=3)
    world.settle(controllers=False)
    assert world.phase(key) is Phase.HOLDING
    world.change_gang(key, minimum=2)
    world.settle(controllers=False)
    assert world.phase(key) is Phase.RUNNING


def test_lowered_minimum_lets_a_waiting_gang_start() -> None:
    world = a_world(2)
    key = world.start("a", 3)
    world.settle()
    world.change_gang(key, minimum=2)
    world.settle()
    assert len(world.bound(key)) == 2


def test_gang_that_waits_too_long_is_reported_backs_off_and_is_queued_again() -> None:
    world = a_world(2)
    first = world.start("a", 2)
    world.settle()
    second = world.start("b", 2, timeout=100.0)
    world.settle()
    world.pass_time(99)
    assert not world.status[second].timed_out
    world.pass_time(1.5)
    assert world.status[second].timed_out
    assert world.reasons(second) == {Reason.BACK_OFF}
    world.pass_time(60)
    world.finish(first)
    world.settle()
    assert len(world.bound(second)) == 2
    assert not world.status[second].timed_out


# -- members that do not exist yet


def expecting(name: str, count: int, **changes: Any) -> Gang:
    key = a_key(name)
    return Gang(key, **{"minimum": count, "expected": (Expected(shape_of(1), count, "worker"),), **changes})


def test_expected_members_get_their_slots_before_their_pods_exist() -> None:
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


def test_expected_members_that_come_one_by_one_keep_their_slots_meanwhile() -> None:
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


def test_members_that_never_come_do_not_starve_a_gang_that_backs_off_now_and_then() -> None:
    world = a_world(3)
    world.submit(expecting("a", 3, priority=5))
    world.settle()
    rival = world.start("b", 3, timeout=40.0)
    world.pass_time(1000)
    assert len(world.bound(rival)) == 3


def test_many_gangs_whose_members_never_come_do_not_starve_one_whose_members_are_there() -> None:
    world = a_world(3)
    for name in "acd":
        world.submit(expecting(name, 3, priority=5))
        world.pass_time(100)
    world.pass_time(2000)
    rival = world.start("b", 3, timeout=40.0)
    world.pass_time(1000)
    assert len(world.bound(rival)) == 3


def test_members_that_come_after_their_reservation_expired_need_not_wait_for_the_next() -> None:
    world = a_world(3)
    gang = expecting("a", 3)
    world.submit(gang)
    world.pass_time(310)
    world.create(*members(gang.key, 3, role="worker"))
    world.settle()
    assert len(world.bound(gang.key)) == 3


def test_new_leader_finds_the_reservation_again_and_its_end() -> None:
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


def test_driver_starts_only_with_room_for_its_executors_and_keeps_it_for_them() -> None:
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


def test_two_kinds_of_expected_members_of_one_role_keep_a_slot_each() -> None:
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


def test_gangs_of_two_dialects_with_one_name_keep_a_slot_each() -> None:
    world = a_world(2)
    for dialect in ("one", "two"):
        world.put_gang(Gang(GangKey(dialect, NAMESPACE, "a"), expected=(Expected(shape_of(1), 1, "worker"),)))
    world.settle()
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == []


# -- preemption


def test_only_lower_priority_is_evicted() -> None:
    world = a_world(2)
    equal = world.start("a", 2, priority=5)
    world.settle()
    late = world.start("b", 2, priority=5)
    world.settle()
    assert (len(world.bound(equal)), len(world.bound(late))) == (2, 0)
    urgent = world.start("c", 2, priority=6)
    world.settle()
    assert (len(world.bound(equal)), len(world.bound(urgent))) == (0, 2)


def test_surplus_members_are_evicted_before_a_whole_gang() -> None:
    world = a_world(4)
    elastic = world.start("a", 3, minimum=1, priority=1)
    fixed = world.start("b", 1, priority=1)
    world.settle()
    urgent = world.start("c", 2, priority=2)
    world.settle()
    assert [len(world.bound(key)) for key in (elastic, fixed, urgent)] == [1, 1, 2]


def test_smallest_victim_that_makes_room_is_chosen() -> None:
    world = a_world(4, 4)
    large, small = world.start("a", 1, shape_of(4)), world.start("b", 1, shape_of(2))
    other = world.start("c", 1, shape_of(2), priority=9)
    world.settle()
    urgent = world.start("d", 1, shape_of(2), priority=5)
    world.settle()
    bound = [len(world.bound(key)) for key in (large, small, other, urgent)]
    assert sum(bound) == 3
    assert bound[2:] == [1, 1]


def test_nobody_is_evicted_for_a_gang_that_would_not_fit_even_then() -> None:
    world = a_world(4)
    low = world.start("a", 2)
    world.start("b", 2, priority=9)
    world.settle()
    world.start("c", 3, priority=5)
    world.settle()
    assert len(world.bound(low)) == 2


def test_pod_that_never_preempts_evicts_nobody() -> None:
    world = a_world(2)
    low = world.start("a", 2)
    world.settle()
    world.start("b", 2, priority=9, preempts=False)
    world.settle()
    assert len(world.bound(low)) == 2


def test_winner_is_bound_only_after_its_victims_are_seen_gone() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    urgent = world.start("b", 2, priority=9)
    while world.streams:
        world.deliver()
    (commit,) = sent(world.run_cycle(), Commit)
    assert commit.binds == ()
    assert len(commit.deletes) == 2
    assert world.phase(urgent) is Phase.NOMINATED
    world.carry_out_all()
    while world.streams:
        world.deliver()
    world.carry_out_all()
    while world.streams:
        world.deliver()
    assert all(pod.deleting for pod in world.members(a_key("a")))
    assert binds_in(world.run_cycle()) == []
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 2


def test_nominated_slots_are_not_taken_by_others() -> None:
    world = a_world(2)
    world.start("a", 1)
    world.start("x", 1)
    world.settle()
    urgent = world.start("b", 2, priority=9)
    while world.streams:
        world.deliver()
    world.run_cycle()
    world.carry_out_all()
    while world.streams:
        world.deliver()
    world.carry_out_all()
    world.change_pod("a-0", phase=PodPhase.FAILED)
    rival = world.start("c", 1, priority=1)
    while world.streams:
        world.deliver()
    assert binds_in(world.run_cycle()) == []
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 2
    assert world.bound(rival) == []


def test_nomination_and_drain_target_on_one_node_do_not_wait_for_each_other() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    first = world.start("b", 1, shape_of(2), priority=9, preempts=False)
    world.pass_time(200)
    second = world.start("c", 1, shape_of(2), priority=9)
    while world.streams:
        world.deliver()
    world.run_cycle()
    assert world.phase(second) is Phase.NOMINATED
    world.flights.clear()
    world.now += 150
    world.engine.state.dirty[first] = None
    world.run_cycle()
    assert world.status[first].target == ("n0",)
    world.finish(a_key("a"))
    world.pass_time(30)
    assert len(world.bound(first)) + len(world.bound(second)) == 1


def test_new_leader_keeps_a_nomination_and_lets_it_expire() -> None:
    world = a_world(2, config=Config(nominate=600))
    world.start("a", 2)
    world.settle()
    urgent = world.start("b", 2, priority=9)
    while world.streams:
        world.deliver()
    world.run_cycle()
    for flight in [f for f in world.flights if isinstance(f.effect, Report)]:
        world.carry_out(flight)
    world.flights.clear()
    world.crash()
    assert world.gangs[urgent].nomination
    while world.streams:
        world.deliver()
    world.run_cycle()
    assert world.phase(urgent) is Phase.NOMINATED
    timer = world.engine.next_timer()
    assert timer is not None
    assert timer <= world.now + 600


def test_two_winners_of_one_cycle_evict_a_victim_once() -> None:
    world = a_world(4)
    world.start("a", 1, shape_of(4))
    world.settle()
    winners = [world.start(name, 1, shape_of(2), priority=9) for name in "bc"]
    world.settle()
    assert [len(world.bound(key)) for key in winners] == [1, 1]
    assert world.lease == {}


def test_gang_that_restarts_and_is_preempted_in_one_cycle_is_deleted_once() -> None:
    world = a_world(2)
    world.start("a", 2, on_member_lost=OnMemberLost.RESTART)
    world.settle()
    world.change_pod("a-1", deleting=True)
    urgent = world.start("b", 2, priority=9)
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 2
    assert world.lease == {}


def test_room_that_is_being_freed_is_not_freed_twice() -> None:
    """Victims of a first winner are on their way out; their room is enough for a second one too."""
    world = a_world(4, 4)
    world.start("a", 1, shape_of(4))
    low = world.start("z", 1, shape_of(4))
    world.settle()
    world.start("b", 1, shape_of(2), priority=9)
    while world.streams:
        world.deliver()
    world.run_cycle()
    world.carry_out_all()
    world.start("c", 1, shape_of(2), priority=8)
    world.settle()
    assert len(world.bound(low)) + len(world.bound(a_key("a"))) == 1


def test_slots_held_for_a_broken_gang_do_not_protect_it_from_higher_priority() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    lose(world, "a-1")
    urgent = world.start("b", 2, priority=9)
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 2


def test_stale_nomination_of_a_running_gang_is_dropped_by_the_next_leader() -> None:
    """The leader died after the winner was committed and before its nomination was taken off the gang object."""
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    urgent = world.start("b", 1, shape_of(2), priority=9)
    while world.streams:
        world.deliver()
    world.run_cycle()
    nominated = next(f.effect.status for f in world.flights if isinstance(f.effect, Report) and f.effect.key == urgent)
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 1
    world.change_gang(urgent, nomination=nominated.nomination, nominated_at=nominated.nominated_at)
    world.crash()
    world.settle(controllers=False)
    assert world.gangs[urgent].nomination == ()


# -- queues


def test_gang_within_quota_gets_back_what_another_queue_borrowed() -> None:
    world = a_world(4)
    world.put_queue(Queue("lender", quota={GPU: 2}))
    world.put_queue(Queue("borrower", quota={GPU: 2}))
    borrowers = [world.start(f"x{i}", 1, queue="borrower") for i in range(4)]
    world.settle()
    lender = world.start("a", 2, queue="lender")
    world.settle()
    assert len(world.bound(lender)) == 2
    assert sum(len(world.bound(key)) for key in borrowers) == 2


def test_reclaim_never_pushes_a_queue_below_its_quota() -> None:
    world = a_world(4)
    world.put_queue(Queue("lender", quota={GPU: 2}))
    world.put_queue(Queue("borrower", quota={GPU: 2}))
    borrower = world.start("x", 1, shape_of(3), queue="borrower")
    world.settle()
    lender = world.start("a", 2, queue="lender")
    world.settle()
    assert len(world.bound(borrower)) == 1
    assert world.bound(lender) == []


def test_reclaim_and_preemption_together_never_push_a_queue_below_its_quota() -> None:
    world = a_world(4)
    world.put_queue(Queue("lender", quota={GPU: 4}))
    world.put_queue(Queue("borrower", quota={GPU: 2}))
    low = world.start("x", 1, shape_of(2), queue="borrower", priority=1)
    equal = world.start("y", 1, shape_of(2), queue="borrower", priority=5)
    world.settle()
    world.start("a", 1, shape_of(4), queue="lender", priority=5)
    world.settle()
    assert [len(world.bound(key)) for key in (low, equal)] == [1, 1]


def test_queue_that_keeps_what_it_borrowed_is_not_reclaimed_from() -> None:
    world = a_world(2)
    world.put_queue(Queue("lender", quota={GPU: 2}))
    world.put_queue(Queue("borrower", quota={GPU: 0}, reclaimable=False))
    borrower = world.start("x", 2, queue="borrower")
    world.settle()
    world.start("a", 2, queue="lender")
    world.settle()
    assert len(world.bound(borrower)) == 2


def test_raised_quota_lets_a_waiting_gang_reclaim() -> None:
    world = a_world(2)
    world.put_queue(Queue("lender"))
    world.put_queue(Queue("borrower", quota={GPU: 0}))
    world.start("x", 2, queue="borrower")
    world.settle()
    lender = world.start("a", 2, queue="lender")
    world.settle()
    assert world.bound(lender) == []
    world.put_queue(Queue("lender", quota={GPU: 2}))
    world.settle()
    assert len(world.bound(lender)) == 2


@dataclass(frozen=True)
class QueueCase:
    id: str
    queue: Queue | None
    reason: Reason
    cure: Queue
    busy: int = 0
    gpus: int = field(default=2)


QUEUE_CASES = [
    QueueCase("no such queue", None, Reason.NO_QUEUE, Queue("q")),
    QueueCase("closed", Queue("q", open=False), Reason.QUEUE_CLOSED, Queue("q")),
    QueueCase("other namespaces only", Queue("q", namespaces=("x",)), Reason.QUEUE_FORBIDDEN, Queue("q")),
    QueueCase("larger than the limit", Queue("q", limit={GPU: 1}), Reason.OVER_QUOTA, Queue("q", limit={GPU: 2})),
    QueueCase("limit used up", Queue("q", limit={GPU: 3}), Reason.QUOTA, Queue("q", limit={GPU: 4}), busy=2),
    QueueCase(
        "quota used up without borrowing",
        Queue("q", quota={GPU: 3}, borrowing=False),
        Reason.QUOTA,
        Queue("q", quota={GPU: 3}),
        busy=2,
    ),
]


@pytest.mark.parametrize("case", QUEUE_CASES, ids=lambda case: case.id)
def test_queue_that_may_not_take_a_gang_says_why_and_takes_it_when_that_changes(case: QueueCase) -> None:
    world = a_world(8)
    if case.queue is not None:
        world.put_queue(case.queue)
    if case.busy:
        world.start("busy", case.busy, queue="q")
        world.settle()
    key = world.start("a", case.gpus, queue="q")
    world.settle()
    assert world.bound(key) == []
    assert world.reasons(key) == {case.reason}
    world.put_queue(case.cure)
    world.settle()
    assert len(world.bound(key)) == case.gpus


def test_queue_borrows_beyond_its_quota_while_there_is_room() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", quota={GPU: 1}))
    key = world.start("a", 4, queue="q")
    world.settle()
    assert len(world.bound(key)) == 4


def test_members_beyond_the_minimum_stay_out_when_the_limit_is_reached() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    key = world.start("a", 4, minimum=2, queue="q")
    world.settle()
    assert len(world.bound(key)) == 2


def test_member_beyond_the_minimum_starts_when_the_limit_has_room_for_it_alone() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    key = world.start("a", 4, minimum=1, queue="q")
    world.settle()
    assert len(world.bound(key)) == 2
    world.end("a-0")
    world.settle()
    assert {pod.uid for pod in world.bound(key)} == {"a-1", "a-2"}


def test_pod_seen_before_its_gang_is_charged_to_the_gangs_queue() -> None:
    engine = Engine()
    key = a_key("a")
    engine.handle(PodSeen(a_pod("a-0", gang=key, node="n0", devices=(0,))), 0.0)
    engine.handle(GangSeen(Gang(key, queue="q")), 0.0)
    assert engine.state.quota.used("q").get(GPU) == 1000
    assert not engine.state.quota.used("").get(GPU)


def test_gang_that_changes_its_queue_takes_its_usage_along() -> None:
    world = a_world(4)
    world.put_queue(Queue("old"))
    world.put_queue(Queue("new"))
    key = world.start("a", 2, queue="old")
    world.settle()
    world.change_gang(key, queue="new")
    world.settle()
    assert world.engine.state.quota.used("new").get(GPU) == 2000
    assert not world.engine.state.quota.used("old").get(GPU)


def test_what_ended_gangs_used_is_given_back_to_their_queue() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 4}))
    for turn in range(3):
        key = world.start(f"a{turn}", 4, queue="q")
        world.settle()
        assert len(world.bound(key)) == 4
        world.finish(key)
        world.settle()
    assert not any(world.engine.state.quota.used("q").values())


def test_queue_with_the_smallest_weighted_share_goes_first() -> None:
    world = a_world(6)
    world.put_queue(Queue("small", weight=1))
    world.put_queue(Queue("large", weight=2))
    keys = {(q, i): a_key(f"{q}{i}") for i in range(6) for q in ("small", "large")}
    for (queue, i), key in keys.items():
        world.submit(Gang(key, queue=queue, created=float(i + 1)), *members(key, 1))
    world.settle()
    running = [queue for (queue, _), key in keys.items() if world.bound(key)]
    assert (running.count("small"), running.count("large")) == (2, 4)


def test_higher_priority_goes_before_a_smaller_share_and_age() -> None:
    world = a_world(2)
    old = world.start("a", 2)
    high = world.start("b", 2, priority=1)
    world.settle()
    assert (len(world.bound(old)), len(world.bound(high))) == (0, 2)


# -- draining


def small_job(world: World, number: int, **changes: Any) -> GangKey:
    return world.start(f"small-{number}", 1, controlled=False, **changes)


def test_large_gang_starts_under_an_endless_stream_of_small_ones() -> None:
    world = a_world(2, 2)
    running = [small_job(world, i) for i in range(4)]
    world.settle()
    large = world.start("large", 2, shape_of(2))
    number = 4
    for _ in range(40):
        world.finish(running.pop(0))
        running.append(small_job(world, number))
        number += 1
        world.pass_time(30)
        if world.bound(large):
            break
    assert len(world.bound(large)) == 2
    world.finish(large)
    world.settle()
    assert all(world.bound(key) for key in running)


def test_large_gang_with_a_short_timeout_does_not_starve_either() -> None:
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


def drained(*gpus: int, deadline: float | None = None) -> tuple[World, GangKey]:
    """A world whose first node is being drained for a gang, with one occupant that has this enforced end."""
    world = a_world(*gpus)
    occupant = Pod("occupant", NAMESPACE, "occupant", shape_of(1), deadline=deadline)
    world.create(occupant)
    world.settle()
    large = world.start("large", 1, shape_of(gpus[0]), created=1.0)
    world.pass_time(301)
    assert world.gangs[large].target == ("n0",)
    return world, large


def test_nothing_enters_a_target_whose_occupant_has_no_enforced_end() -> None:
    world, _ = drained(2)
    world.create(a_pod("brief", deadline=1.0))
    world.settle()
    assert world.pods["brief"].node is None


@pytest.mark.parametrize(("deadline", "enters"), [(100.0, True), (5000.0, False), (None, False)])
def test_only_what_is_sure_to_end_before_the_occupants_enters_a_target(deadline: float | None, enters: bool) -> None:
    world, _ = drained(2, deadline=1000.0)
    world.create(a_pod("next", deadline=deadline))
    world.settle()
    assert (world.pods["next"].node is not None) is enters


def test_nothing_enters_a_target_that_has_just_run_empty() -> None:
    world, large = drained(2, deadline=1000.0)
    world.put_queue(Queue("idle"))
    world.end("occupant")
    world.create(a_pod("early", deadline=500.0, created=0.5))
    world.settle()
    assert len(world.bound(large)) == 1


def test_higher_priority_enters_a_target_and_equal_does_not() -> None:
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


def test_target_is_given_up_when_its_gang_goes() -> None:
    world, large = drained(2)
    rival = world.start("b", 1)
    world.settle()
    world.remove_job(large)
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
def test_target_is_given_up_when_its_gang_can_no_longer_use_it(event: Any) -> None:
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
    (node,) = world.gangs[large].target
    world.remove_node(node)
    world.pass_time(10)
    assert world.gangs[large].target == (("n1",) if node == "n0" else ("n0",))


def test_gang_that_waits_for_quota_drains_no_nodes() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    world.start("a", 2, queue="q")
    world.settle()
    waiting = world.start("b", 2, queue="q")
    world.pass_time(400)
    assert world.gangs[waiting].target == ()
    other = world.start("c", 2)
    world.settle()
    assert len(world.bound(other)) == 2


def test_members_beyond_the_minimum_drain_no_nodes() -> None:
    world = a_world(2, 2)
    elastic = world.start("a", 2, shape_of(2), minimum=1)
    blocker = world.start("b", 1)
    world.settle()
    world.finish(blocker)
    world.start("c", 1, shape_of(1))
    world.settle()
    world.pass_time(400)
    assert world.gangs[elastic].target == ()


def test_target_is_not_taken_by_a_higher_gang_that_could_not_use_it() -> None:
    world, large = drained(2)
    world.put_queue(Queue("q", limit={GPU: 1}))
    world.start("x", 1, queue="q", priority=7)
    world.settle()
    world.start("y", 1, queue="q", priority=7)
    world.pass_time(400)
    assert world.gangs[large].target == ("n0",)


def test_stale_target_of_a_running_gang_is_dropped_by_the_next_leader() -> None:
    world = a_world(2, 2)
    key = world.start("a", 2)
    world.settle()
    world.change_gang(key, target=("n0", "n1"))
    world.crash()
    rival = world.start("b", 1)
    world.settle()
    assert len(world.bound(rival)) == 1


def test_new_leader_that_finds_two_targets_keeps_one_and_may_give_the_other_anew() -> None:
    world = a_world(2, 2)
    for i in range(4):
        small_job(world, i)
    world.settle()
    keys = [world.start(name, 1, shape_of(2)) for name in ("x", "y")]
    world.pass_time(310)
    for key, node in zip(keys, ("n0", "n1"), strict=True):
        world.change_gang(key, target=(node,))
    world.crash()
    world.settle()
    for i in range(4):
        world.finish(a_key(f"small-{i}"))
    world.settle()
    assert [len(world.bound(key)) for key in keys] == [1, 1]


def test_gang_that_can_never_fit_gets_no_target_and_delays_nobody() -> None:
    world = a_world(2)
    giant = world.start("giant", 9, priority=3)
    world.settle()
    assert Reason.TOO_LARGE in world.reasons(giant)
    world.pass_time(1000)
    small = world.start("small", 2)
    world.settle()
    assert len(world.bound(small)) == 2
    assert world.gangs[giant].target == ()


def test_gang_too_large_beside_a_permanent_pod_starts_when_that_pod_goes() -> None:
    world = a_world(2)
    world.create(a_pod("daemon", ours=False, permanent=True, node="n0", devices=(0,)))
    key = world.start("a", 2)
    world.settle()
    assert Reason.TOO_LARGE in world.reasons(key)
    world.remove_pod("daemon")
    world.settle()
    assert len(world.bound(key)) == 2


def test_what_is_too_large_for_one_gang_with_roles_is_not_believed_of_another() -> None:
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


# -- devices of pods that vanish, and pods of others


def test_devices_of_a_pod_that_vanished_are_quarantined() -> None:
    world = a_world(1)
    world.create(a_pod("a", grace=30.0))
    world.settle()
    world.remove_pod("a")
    world.create(a_pod("b"))
    world.pass_time(59)
    assert world.pods["b"].node is None
    world.pass_time(2)
    assert world.pods["b"].node == "n0"


def test_devices_of_a_pod_whose_end_was_written_are_free_at_once() -> None:
    world = a_world(1)
    world.create(a_pod("a"))
    world.settle()
    world.end("a", PodPhase.FAILED)
    world.remove_pod("a")
    world.create(a_pod("b"))
    world.settle()
    assert world.pods["b"].node == "n0"


def test_pods_of_other_schedulers_only_count() -> None:
    world = World(None, a_node("n0", 2, assigns=False))
    world.create(a_pod("stranger", ours=False, node="n0"), a_pod("waiting-stranger", ours=False))
    world.create(a_pod("a"), a_pod("b"))
    world.settle()
    assert [world.pods[uid].node for uid in ("a", "b")] == ["n0", None]
    assert world.pods["waiting-stranger"].node is None
    world.remove_pod("stranger")
    world.settle()
    assert world.pods["b"].node == "n0"


def test_node_that_another_scheduler_nominated_a_pod_for_counts_as_used() -> None:
    world = World(None, a_node("n0", 1, assigns=False))
    world.create(a_pod("stranger", ours=False, nominated_node="n0"), a_pod("a"))
    world.settle()
    assert world.pods["a"].node is None


def test_pod_without_recorded_devices_keeps_gpu_pods_off_a_node_whose_devices_we_assign() -> None:
    world = a_world(4)
    world.create(a_pod("stranger", ours=False, node="n0"), a_pod("a"))
    world.settle()
    assert world.pods["a"].node is None
    world.end("stranger")
    world.settle()
    assert world.pods["a"].node == "n0"


def test_shares_fill_one_device_before_the_next() -> None:
    world = a_world(2)
    world.create(*(a_pod(f"p{i}", share_of(300)) for i in range(4)))
    world.settle()
    assert sorted(taken(world)) == [0, 0, 0, 1]


def test_pods_of_one_map_share_their_device_and_others_wait() -> None:
    def mapped(group: str) -> Shape:
        return Shape(request=(("cpu", 1000),), device_map=DeviceMap("n0", (1,), group))

    world = a_world(2)
    world.create(a_pod("a", mapped("x")), a_pod("b", mapped("x")), a_pod("c", mapped("y")))
    world.settle()
    assert [world.pods[uid].devices for uid in "abc"] == [(1,), (1,), None]


# -- waking


def test_parked_gang_is_not_tried_again_by_what_cannot_cure_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world(2)
    world.start("a", 2)
    world.put_queue(Queue("q"))
    world.settle()
    world.start("b", 2)
    world.settle()
    tried: list[Bid] = []

    def refuse(_: Cluster, bid: Bid) -> None:
        tried.append(bid)

    monkeypatch.setattr(decide, "place_gang", refuse)
    world.put_queue(Queue("q", weight=3))
    world.change_pod("a-0", labels={"x": "y"})
    world.create(a_pod("stranger", shape_of(0), ours=False, node="n0"))
    world.settle()
    assert tried == []
    world.end("a-0")
    world.end("a-1")
    world.settle()
    assert tried


def test_gang_edited_while_it_waits_takes_its_new_place_in_the_order() -> None:
    world = a_world(2)
    blocker = world.start("blocker", 2)
    world.settle()
    keys = []
    for name in "xy":
        key = a_key(name)
        pods = [replace(pod, deadline=100.0) for pod in members(key, 2)]
        world.submit(Gang(key, minimum=2, priority=-1), *pods)
        keys.append(key)
        world.now += 1
    world.settle()
    world.change_gang(keys[1], priority=0)
    world.settle()
    world.finish(blocker)
    world.settle()
    assert [len(world.bound(key)) for key in keys] == [0, 2]
