"""The engine: gangs start whole, are committed before they are bound, and are bound only as decided."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cycle import decide
from gpu_scheduler.core.events import (
    BindFailed,
    BindFailure,
    Commit,
    Committed,
    Fenced,
    PodGone,
    PodSeen,
    RaiseAttempt,
    Release,
    SendBind,
    TookOver,
)
from gpu_scheduler.core.lifecycle import Phase, Setback
from gpu_scheduler.core.model import (
    HOSTNAME,
    DeviceMap,
    Gang,
    GangKey,
    Gate,
    GateKind,
    PodPhase,
    PodTerm,
    Queue,
    Role,
    Shape,
    Spread,
)
from gpu_scheduler.core.placement.domains import Bid
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.selectors import LabelSelector, PodMatch, labels_equal
from gpu_scheduler.core.state import Config, State
from tests.unit.core.world import (
    GPU,
    NAMESPACE,
    Flight,
    Outcome,
    World,
    a_key,
    a_node,
    a_pod,
    a_world,
    binds_in,
    members,
    sent,
    shape_of,
    share_of,
)


def taken(world: World, node: str = "n0") -> list[int]:
    return sorted(d for pod in world.pods.values() if pod.live and pod.node == node for d in pod.devices or ())


# -- all or nothing
def test_gang_that_fits_starts_with_all_its_members_on_distinct_devices() -> None:
    world = a_world(4)
    key = world.start("a", 4)
    world.settle()
    assert world.phase(key) is Phase.RUNNING
    assert taken(world) == [0, 1, 2, 3]


def test_gang_one_gpu_short_stays_parked_until_a_node_is_added() -> None:
    world = a_world(3)
    key = world.start("a", 4)
    world.settle()
    assert world.bound(key) == []
    assert world.phase(key) is Phase.WAITING
    assert world.status[key].refusal is not None
    world.put_node(a_node("n1", 1))
    world.settle()
    assert len(world.bound(key)) == 4


def test_two_gangs_that_would_deadlock_run_one_after_the_other() -> None:
    world = a_world(4)
    first, second = world.start("a", 3), world.start("b", 3)
    world.settle()
    assert (len(world.bound(first)), len(world.bound(second))) == (3, 0)
    world.finish(first)
    world.settle()
    assert len(world.bound(second)) == 3


def test_with_gangs_disabled_the_same_two_jobs_deadlock() -> None:
    world = a_world(4, config=Config(gangs=False))
    for i, pair in enumerate(zip(*(members(a_key(name), 3) for name in "ab"), strict=True)):
        world.create(*(replace(pod, created=float(i + 1)) for pod in pair))
    world.settle()
    assert [len(world.bound(a_key(name))) for name in "ab"] == [2, 2]


def test_gang_waits_until_its_members_exist() -> None:
    world = a_world(4)
    pods = members(a_key("a"), 2)
    world.submit(Gang(a_key("a"), minimum=2), pods[0])
    world.settle()
    assert world.phase(a_key("a")) is Phase.GATHERING
    assert world.reasons(a_key("a")) == {Reason.MEMBERS_MISSING}
    world.create(pods[1])
    world.settle()
    assert len(world.bound(a_key("a"))) == 2


def test_gang_starts_with_its_minimum_and_grows_when_capacity_is_free() -> None:
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


def test_members_are_bound_in_the_order_of_the_ranks_of_their_roles() -> None:
    world = a_world(4)
    key = a_key("a")
    roles = (Role("worker", minimum=2, rank=1), Role("master", minimum=1, rank=0))
    world.submit(Gang(key, minimum=3, roles=roles), *members(key, 2, role="worker"), *members(key, 1, role="master"))
    world.deliver_all()
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


def test_pod_that_names_a_gang_of_another_namespace_is_a_lone_pod() -> None:
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


def test_gated_member_keeps_its_gang_waiting_and_the_refusal_names_the_gate() -> None:
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


def test_paused_gang_waits_until_it_is_resumed() -> None:
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
    world.deliver_all()
    effects = world.run_cycle()
    (commit,) = sent(effects, Commit)
    assert [bind.uid for bind in commit.binds] == ["a-0", "a-1"]
    assert sent(effects, SendBind) == []
    assert sent(world.run_cycle(), SendBind) == []
    follow = world.handle(Committed(commit.sequence))
    assert [effect.bind for effect in sent(follow, SendBind)] == list(commit.binds)


def test_commit_is_released_only_when_every_bind_is_observed() -> None:
    world = a_world(4)
    world.start("a", 2)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    first, second = commit.binds
    world.handle(PodSeen(replace(world.pods[first.uid], node=first.node, devices=first.devices)))
    assert sent(world.run_cycle(), Release) == []
    world.handle(PodSeen(replace(world.pods[second.uid], node=second.node, devices=second.devices)))
    assert sent(world.run_cycle(), Release) == [Release(commit.sequence)]


def test_fenced_leader_drops_uncommitted_decisions() -> None:
    world = a_world(4)
    world.start("a", 2)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Fenced())
    assert world.handle(Committed(commit.sequence)) == []
    assert world.run_cycle() == []
    assert world.engine.state.cluster.usage == {}
    assert not any(world.engine.state.quota.used("").values())


def test_leader_that_was_fenced_and_leads_again_decides_again() -> None:
    world = a_world(4)
    key = world.start("a", 2)
    world.deliver_all()
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
    world.deliver_all()
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
    world.deliver_all()
    world.run_cycle()
    world.crash()
    assert world.lease == {}
    world.settle()
    assert len(world.bound(key)) == 2


@pytest.mark.parametrize("newest_first", [False, True])
def test_new_leader_that_finds_two_commits_for_one_pod_follows_the_later(newest_first: bool) -> None:
    """The first bind was given up and is over; its leader stopped before the commit was released from the Lease."""
    world = a_world(4, 4)
    key = world.start("a", 1)
    world.deliver_all()
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
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    assert len(commit.binds) == 2
    assert sent(world.run_cycle(), Commit) == []
    world.settle()
    assert [len(world.bound(key)) for key in keys] == [2, 2, 2]


def test_gangs_that_arrive_while_a_commit_is_written_are_decided_together() -> None:
    world = a_world(8)
    world.start("a", 2)
    world.deliver_all()
    (first,) = sent(world.run_cycle(), Commit)
    for name in "bc":
        world.start(name, 2)
        world.deliver_all()
        assert sent(world.run_cycle(), Commit) == []
    world.handle(Committed(first.sequence))
    (second,) = sent(world.run_cycle(), Commit)
    assert len(second.binds) == 4


def test_commit_takes_gangs_up_to_the_limit_of_binds() -> None:
    world = a_world(8, config=Config(max_binds_at_once=3))
    keys = [world.start(name, 2) for name in "abc"]
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    assert len(commit.binds) == 4
    world.settle()
    assert [len(world.bound(key)) for key in keys] == [2, 2, 2]


def test_deciding_resumes_when_half_of_the_open_binds_are_over() -> None:
    world = a_world(8, config=Config(max_open_binds=4))
    for name in "abcd":
        world.start(name, 2)
    world.deliver_all()
    (first,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(first.sequence))
    for bind, decides in zip(first.binds[:2], (False, True), strict=True):
        world.handle(PodSeen(replace(world.pods[bind.uid], node=bind.node, devices=bind.devices, version="9")))
        assert bool(sent(world.run_cycle(), Commit)) is decides


# -- binds that fail
@pytest.mark.parametrize(("seconds", "given_up"), [(59.9, False), (60.0, True)])
def test_bind_is_given_up_after_a_minute_of_refusals(seconds: float, given_up: bool) -> None:
    world = a_world(4)
    world.start("a", 1)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    world.handle(BindFailed("a-0", BindFailure.REFUSED))
    world.now += seconds
    world.handle(BindFailed("a-0", BindFailure.REFUSED))
    world.now += 10
    assert bool(sent(world.run_cycle(), RaiseAttempt)) is given_up


def refuse_until_given_up(world: World) -> float:
    """Refuses the next bind until its pod's attempt is raised; returns how long that took."""
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    (bind,) = commit.binds
    start = world.now
    raised: list[RaiseAttempt] = []
    while not raised and world.now < start + 120:
        world.handle(BindFailed(bind.uid, BindFailure.REFUSED))
        timer = world.engine.next_timer()
        assert timer is not None
        world.now = timer
        raised = sent(world.run_cycle(), RaiseAttempt)
    world.flights = [Flight(raised[0], world.epoch)]
    world.carry_out_all()
    world.deliver_all()
    return world.now - start


def test_bind_refused_for_a_minute_is_given_up_and_decided_again_after_a_backoff() -> None:
    world = a_world(4)
    key = world.start("a", 1)
    world.deliver_all()
    for attempt, pause in ((1, 2.0), (2, 4.0)):
        assert 60 <= refuse_until_given_up(world) <= 63
        assert world.pods["a-0"].attempt == attempt
        world.now += pause - 0.1
        assert binds_in(world.run_cycle()) == []
        world.now += 0.1
    world.settle()
    assert len(world.bound(key)) == 1


def test_gpus_of_a_bind_with_an_unknown_outcome_stay_taken() -> None:
    world = a_world(1)
    world.start("a", 1)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    world.handle(BindFailed("a-0", BindFailure.UNKNOWN))
    world.start("b", 1)
    world.deliver_all()
    assert binds_in(world.run_cycle()) == []
    assert world.engine.state.cluster.usage["a-0"].devices == commit.binds[0].devices


def send_binds(world: World) -> list[SendBind]:
    """Commits the next decision and removes its binds from the requests in flight."""
    world.run_cycle()
    world.carry_out_all()
    world.deliver()
    flights, world.flights = world.flights, []
    return sent([flight.effect for flight in flights], SendBind)


@pytest.mark.parametrize("reply_first", [False, True])
def test_bind_of_a_pod_that_another_scheduler_bound_is_over_and_the_observed_node_counts(reply_first: bool) -> None:
    world = a_world(4, 4)
    world.start("a", 1)
    world.deliver_all()
    (send,) = send_binds(world)
    other = "n1" if send.bind.node == "n0" else "n0"
    world.change_pod("a-0", node=other, devices=(3,))
    world.carry_out(Flight(send, world.epoch))
    assert world.streams["reply", "a-0"] == deque([BindFailed("a-0", BindFailure.MOVED)])
    effects: list[SendBind] = []
    world.on_effects.append(lambda those: effects.extend(sent(those, SendBind)))
    world.deliver(turn=reply_first)
    world.pass_time(100)
    usage = world.engine.state.cluster.usage["a-0"]
    assert (usage.node, usage.devices) == (other, (3,))
    assert effects == []
    assert world.lease == {}


def test_bind_of_a_changed_pod_is_sent_again_with_its_new_version() -> None:
    world = a_world(4)
    key = world.start("a", 1)
    world.deliver_all()
    (send,) = send_binds(world)
    world.change_pod("a-0", labels={"x": "y"})
    changed = world.pods["a-0"].version
    (seen,) = world.streams.pop(("pod", "a-0"))
    versions: list[str] = []
    world.on_effects.append(lambda those: versions.extend(again.version for again in sent(those, SendBind)))
    world.carry_out(Flight(send, world.epoch))
    world.pass_time(10)
    assert set(versions) == {send.version}
    assert len(versions) <= 10  # at most once a second, until a newer version is observed
    assert list(world.lease.values()) == [Commit(0, (send.bind,))]  # a reply never ends it
    versions.clear()
    world.handle(seen)
    world.pass_time(10)
    assert versions == [changed]
    assert [(pod.node, pod.devices) for pod in world.bound(key)] == [(send.bind.node, send.bind.devices)]
    assert world.lease == {}


@pytest.mark.parametrize("change", [{"attempt": 1}, {"deleting": True}, {"phase": PodPhase.FAILED}], ids="|".join)
def test_bind_of_a_pod_that_can_no_longer_be_bound_is_not_sent_again(change: dict[str, Any]) -> None:
    world = a_world(4)
    world.start("a", 1, controlled=False)
    world.deliver_all()
    (send,) = send_binds(world)
    world.change_pod("a-0", **change)
    world.carry_out(Flight(send, world.epoch))
    while world.streams:
        world.deliver(turn=1)
    world.now += 1
    assert sent(world.run_cycle(), SendBind) == []
    assert world.engine.state.ledger.retries == {}


def test_pod_bound_to_another_node_counts_there() -> None:
    world = a_world(4, 4)
    world.start("a", 1)
    world.deliver_all()
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
    world.deliver_all()
    world.run_cycle()
    world.carry_out(world.flights.pop(0))
    world.deliver()
    while world.flights:
        world.carry_out(world.flights.pop(0), Outcome.REPLY_LOST)
    world.pass_time(5)
    assert len(taken(world)) == len(world.bound(key)) == 2
    assert world.lease == {}


def test_bind_to_a_gpu_that_became_unhealthy_is_given_up_although_others_are_free() -> None:
    world = a_world(4)
    key = world.start("a", 2)
    world.deliver_all()
    (first, second) = binds_in(world.run_cycle())
    world.carry_out_all()
    world.deliver()
    world.flights.clear()
    world.change_node("n0", unhealthy=frozenset(first.devices), allocatable={"cpu": 64_000, "pods": 110, GPU: 3})
    world.deliver_all()
    assert [f.effect for f in world.flights] == [RaiseAttempt(first.uid, 1)]
    world.carry_out_all()
    world.carry_out(Flight(SendBind(second, world.pods[second.uid].version), world.epoch))
    world.pass_time(30)
    assert len(world.bound(key)) == 2
    assert first.devices not in [pod.devices for pod in world.bound(key)]


def test_gpus_of_a_pod_that_is_being_deleted_are_not_free_before_it_ends() -> None:
    world = a_world(1)
    world.start("a", 1, controlled=False)
    world.settle()
    world.change_pod("a-0", deleting=True)
    rival = world.start("b", 1)
    world.deliver_all()
    assert binds_in(world.run_cycle()) == []
    world.settle()
    assert len(world.bound(rival)) == 1


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
    world.deliver_all()
    (first, _) = binds_in(world.run_cycle())
    (flight,) = [f for f in world.flights if isinstance(f.effect, Commit)]
    world.flights.clear()
    if committed:
        world.carry_out(flight)
        world.deliver()
        world.flights.clear()
    event(world, first.node)
    world.deliver_all()
    if not committed:
        world.carry_out(flight)
        world.deliver()
    assert [f.effect for f in world.flights if isinstance(f.effect, SendBind)] == []
    assert {f.effect.uid for f in world.flights if isinstance(f.effect, RaiseAttempt)} == {"a-0", "a-1"}
    world.pass_time(30)
    assert {pod.node for pod in world.bound(key)} == {"n0", "n1"} - {first.node}
    assert world.lease == {}


def test_engine_that_waits_for_its_commit_has_no_timer_in_the_past() -> None:
    world = a_world(4)
    world.start("a", 2)
    world.deliver_all()
    world.run_cycle()
    world.change_node("n0", ready=False)
    world.deliver_all()
    world.now += 10
    world.run_cycle()
    timer = world.engine.next_timer()
    assert timer is None or timer > world.now


# -- the gang itself changes
def test_deleted_gang_object_leaves_running_members_and_releases_held_slots() -> None:
    world = a_world(2)
    key = world.start("a", 2, controlled=False)
    world.settle()
    world.lose("a-1")
    rival = world.start("b", 1)
    world.settle()
    assert world.bound(rival) == []
    world.remove_gang(key)
    world.settle()
    assert world.pods["a-0"].live
    assert len(world.bound(rival)) == 1
    assert world.phase(key) is Phase.ORPHANED


def test_gang_whose_object_is_deleted_after_its_members_succeeded_is_finished() -> None:
    world = a_world(2)
    key = world.start("a", 2, controlled=False)
    world.settle()
    world.finish(key)
    world.settle()
    assert world.status[key].exists
    world.remove_gang(key)
    world.settle()
    assert (world.phase(key), world.status[key].exists) == (Phase.FINISHED, False)


def test_finished_gang_that_loses_a_completed_pod_stays_finished_until_a_pod_comes() -> None:
    world = a_world(2)
    key = world.start("a", 2, controlled=False)
    world.settle()
    world.finish(key)
    world.settle()
    world.lose("a-1")
    world.settle()
    assert world.phase(key) is Phase.FINISHED
    world.create(a_pod("a-2", gang=key))
    world.settle()
    assert world.phase(key) is not Phase.FINISHED


def test_members_of_a_deleted_gang_object_wait_with_that_reason() -> None:
    world = a_world(1)
    key = world.start("a", 2)
    world.settle()
    world.remove_gang(key)
    world.put_node(a_node("n1", 4))
    world.settle()
    assert world.bound(key) == []
    assert world.reasons(key) == {Reason.GANG_GONE}


def test_gang_object_deleted_with_binds_in_flight_does_not_stop_them() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.deliver_all()
    world.run_cycle()
    world.remove_gang(key)
    world.settle()
    assert len(world.bound(key)) == 2
    assert world.lease == {}


def test_running_gang_with_a_raised_minimum_holds_until_the_minimum_is_lowered() -> None:
    world = a_world(3)
    key = world.start("a", 3, minimum=2)
    world.settle()
    world.lose("a-2")
    world.start("b", 1)
    assert world.phase(key) is Phase.RUNNING
    world.change_gang(key, minimum=3)
    world.settle(controllers=False)
    assert world.phase(key) is Phase.HOLDING
    world.change_gang(key, minimum=2)
    world.settle(controllers=False)
    assert world.phase(key) is Phase.RUNNING


def test_gang_whose_minimum_is_raised_with_binds_in_flight_holds_and_then_restarts() -> None:
    world = a_world(3)
    world.create(a_pod("stranger", ours=False, node="n0", devices=(2,)))
    key = world.start("a", 3, minimum=2)
    world.deliver_all()
    assert len(binds_in(world.run_cycle())) == 2
    world.change_gang(key, minimum=3)
    world.settle()
    assert world.phase(key) is Phase.HOLDING
    assert len(world.bound(key)) == 2
    world.pass_time(400)
    assert world.bound(key) == []
    world.remove_pod("stranger")
    world.settle()
    assert len(world.bound(key)) == 3


def test_lowered_minimum_lets_a_waiting_gang_start() -> None:
    world = a_world(2)
    key = world.start("a", 3)
    world.settle()
    world.change_gang(key, minimum=2)
    world.settle()
    assert len(world.bound(key)) == 2


def _fail_all(world: World, key: GangKey) -> None:
    """The kubelets reject every member of a gang."""
    for pod in world.bound(key):
        world.end(pod.uid, PodPhase.FAILED)
    world.settle(controllers=False)


def test_failure_of_many_members_counts_once() -> None:
    world = a_world(4)
    key = world.start("a", 4)
    world.settle()
    _fail_all(world, key)
    assert world.engine.state.records[key].failures == 1


def test_backoff_survives_the_recreation_of_all_pods() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    for failures in (1, 2, 3):
        _fail_all(world, key)
        world.remove_job(key)
        world.settle(controllers=False)
        assert key not in world.engine.state.records
        world.start("a", 2)
        world.pass_time(2.0**failures - 0.5, controllers=False)
        assert world.bound(key) == []
        world.pass_time(1, controllers=False)
        assert len(world.bound(key)) == 2


def test_backoff_survives_the_failure_of_another_gang() -> None:
    world = a_world(4)
    first, other = world.start("a", 2), world.start("b", 2)
    world.settle()
    for key in (first, other):
        _fail_all(world, key)
        world.remove_job(key)
        world.pass_time(0.5, controllers=False)
    world.start("a", 2)
    world.pass_time(0.5, controllers=False)
    assert world.bound(first) == []
    world.pass_time(1, controllers=False)
    assert len(world.bound(first)) == 2


def test_gang_that_times_out_is_reported_backs_off_and_is_queued_again() -> None:
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


def test_timeout_that_is_set_while_a_gang_waits_takes_effect() -> None:
    world = a_world(1)
    world.start("a", 1)
    world.settle()
    waits = world.start("b", 1)
    world.settle()
    world.change_gang(waits, timeout=60.0)
    world.pass_time(61)
    assert world.status[waits].timed_out


# -- devices of deleted pods, and pods of other schedulers
def test_devices_of_a_pod_deleted_without_an_observed_end_are_quarantined() -> None:
    world = a_world(1)
    world.create(a_pod("a", grace=30.0))
    world.settle()
    world.remove_pod("a")
    world.create(a_pod("b"))
    world.pass_time(59)
    assert world.pods["b"].node is None
    world.pass_time(2)
    assert world.pods["b"].node == "n0"


def test_a_quarantine_lasts_no_longer_than_the_ceiling_of_grace_periods() -> None:
    world = a_world(1, config=Config(max_grace=600.0, quarantine=30.0))
    world.create(a_pod("a", grace=1e9))
    world.settle()
    world.remove_pod("a")
    world.create(a_pod("b"))
    world.pass_time(629)
    assert world.pods["b"].node is None
    world.pass_time(2)
    assert world.pods["b"].node == "n0"


def _commit_and_delete(*, in_a_gap: bool, bound: bool = True) -> World:
    """A pod with a committed bind is deleted before it is observed bound, and another pod waits for its GPU."""
    world = a_world(1)
    world.create(a_pod("a", grace=30.0))
    world.deliver_all()
    world.run_cycle()
    world.carry_out_all()
    world.deliver()
    world.carry_out(world.flights.pop(), Outcome.SUCCEEDS if bound else Outcome.LOST)
    assert (world.pods["a"].node == "n0") == bound
    assert world.seen_pods["a"].node is None
    world.remove_pod("a", in_a_gap=in_a_gap)
    world.create(a_pod("b"))
    return world


@pytest.mark.parametrize("bound", [True, False])
def test_devices_of_a_deleted_pod_that_may_have_been_bound_are_quarantined(bound: bool) -> None:
    world = _commit_and_delete(in_a_gap=True, bound=bound)
    world.pass_time(59)
    assert world.pods["b"].node is None
    assert world.lease == {}
    world.pass_time(2)
    assert world.pods["b"].node == "n0"


def test_devices_of_a_deleted_pod_that_was_never_bound_are_free_at_once() -> None:
    world = _commit_and_delete(in_a_gap=False, bound=False)
    world.settle()
    assert world.pods["b"].node == "n0"


def test_devices_of_a_pod_deleted_before_its_bind_was_committed_are_free_at_once() -> None:
    world = a_world(1)
    world.create(a_pod("a"))
    world.deliver_all()
    world.run_cycle()
    world.remove_pod("a", in_a_gap=True)
    world.create(a_pod("b"))
    world.settle()
    assert world.pods["b"].node == "n0"


def test_devices_of_a_pod_whose_end_was_observed_are_free_at_once() -> None:
    world = a_world(1)
    world.create(a_pod("a"))
    world.settle()
    world.end("a", PodPhase.FAILED)
    world.remove_pod("a")
    world.create(a_pod("b"))
    world.settle()
    assert world.pods["b"].node == "n0"


def test_node_that_returns_with_fewer_gpus_assigns_none_twice() -> None:
    world = a_world(4)
    world.create(a_pod("a", shape_of(2)), a_pod("b"))
    world.settle()
    before = {uid: world.pods[uid].devices for uid in "ab"}
    world.remove_node("n0")
    world.deliver_all()
    world.put_node(a_node("n0", 3))
    world.create(a_pod("c"))
    world.settle()
    assert world.pods["c"].node is None
    assert {uid: world.pods[uid].devices for uid in "ab"} == before
    world.end("b")
    world.settle()
    assert world.pods["c"].devices == before["b"]


def test_pods_of_other_schedulers_are_only_counted() -> None:
    world = World(None, a_node("n0", 2, assigns=False))
    world.create(a_pod("stranger", ours=False, node="n0"), a_pod("waiting-stranger", ours=False))
    world.create(a_pod("a"), a_pod("b"))
    world.settle()
    assert [world.pods[uid].node for uid in ("a", "b")] == ["n0", None]
    assert world.pods["waiting-stranger"].node is None
    world.remove_pod("stranger")
    world.settle()
    assert world.pods["b"].node == "n0"


@pytest.mark.parametrize("ours", [True, False])
def test_resources_freed_by_a_resized_pod_wake_waiting_gangs(ours: bool) -> None:
    world = World(None, a_node("n0", 2, cpu=4000))
    world.create(a_pod("a", Shape(request=(("cpu", 3000),)), ours=ours, node="n0", phase=PodPhase.RUNNING))
    world.create(a_pod("b", Shape(request=(("cpu", 2000),))))
    world.settle()
    assert world.pods["b"].node is None
    world.change_pod("a", shape=Shape(request=(("cpu", 1000),)))
    world.settle()
    assert world.pods["b"].node == "n0"


@pytest.mark.parametrize("change", [{"node": "n1", "nominated_node": None}, {"nominated_node": "n1"}])
def test_node_freed_by_a_dropped_nomination_of_another_scheduler_wakes_waiting_gangs(change: dict[str, Any]) -> None:
    world = a_world(2)
    world.put_node(a_node("n1", 2, unschedulable=True))
    world.create(a_pod("foreign", shape_of(2), ours=False, nominated_node="n0"))
    world.settle()
    waits = world.start("a", 2)
    world.settle()
    world.change_pod("foreign", **change)
    world.settle()
    assert len(world.bound(waits)) == 2


def test_node_of_a_bind_wakes_waiting_gangs_when_its_pod_is_bound_elsewhere() -> None:
    world = a_world(1)
    world.put_node(a_node("n1", 1, unschedulable=True))
    world.start("a", 1)
    send_binds(world)
    world.flights.clear()
    waits = world.start("b", 1)
    world.settle()
    world.change_pod("a-0", node="n1", devices=(0,))
    world.settle()
    assert len(world.bound(waits)) == 1


def test_node_that_another_scheduler_nominated_a_pod_for_counts_as_used() -> None:
    world = World(None, a_node("n0", 1, assigns=False))
    world.create(a_pod("stranger", ours=False, nominated_node="n0"), a_pod("a"))
    world.settle()
    assert world.pods["a"].node is None


@pytest.mark.parametrize("spare", [True, False])
def test_slot_of_a_member_preempted_by_another_scheduler_is_left_to_that_scheduler(spare: bool) -> None:
    nodes = [a_node(name, 2, assigns=False) for name in ("n0", "n1")]
    world = World(None, *nodes[: 1 + spare])
    key = world.start("a", 2)
    world.settle()
    assert [pod.node for pod in world.bound(key)] == ["n0", "n0"]
    world.create(a_pod("rival", ours=False, nominated_node="n0", priority=1000))
    world.lose("a-1")
    world.settle()
    if not spare:
        assert world.phase(key) is Phase.HOLDING
        world.pass_time(400)
        assert world.phase(key) is Phase.WAITING
        world.put_node(nodes[1])
        world.settle()
    assert sorted(str(pod.node) for pod in world.bound(key)) == (["n0", "n1"] if spare else ["n1", "n1"])
    assert world.phase(key) is Phase.RUNNING


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


# -- wake-ups
def test_parked_gang_is_not_tried_again_after_a_change_that_cannot_cure_it(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_gang_with_too_few_victims_is_not_tried_again_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world(3)
    for name, priority in (("high", 9), ("higher", 10), ("low", 0)):
        world.start(name, 1, priority=priority)
    world.settle()
    world.start("waiting", 3, priority=5)
    world.settle()
    tried: list[Bid] = []

    def refuse(_: Cluster, bid: Bid) -> None:
        tried.append(bid)

    monkeypatch.setattr(decide, "place_gang", refuse)
    world.create(a_pod("stranger", shape_of(0), ours=False, node="n0"))
    world.settle()
    world.remove_job(a_key("low"))
    world.pass_time(100)
    assert tried == [], "one GPU is free, and no victim is left"


def test_gang_edited_while_it_waits_moves_to_its_new_position() -> None:
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


def test_gang_too_large_for_cordoned_nodes_is_woken_by_pods_that_end_on_them_later() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    world.change_node("n0", unschedulable=True)
    key = world.start("b", 2)
    world.settle()
    assert Reason.TOO_LARGE in world.reasons(key)
    world.change_node("n0", unschedulable=False)
    world.settle()
    world.finish(a_key("a"))
    world.settle()
    assert len(world.bound(key)) == 2


def test_members_beyond_the_minimum_start_one_by_one_as_capacity_is_freed() -> None:
    world = a_world(3)
    world.start("a", 2)
    world.settle()
    key = world.start("b", 3, minimum=1)
    world.settle()
    assert len(world.bound(key)) == 1
    world.end("a-0")
    world.settle()
    assert len(world.bound(key)) == 2


# -- backoff
@pytest.mark.parametrize(
    ("pause", "wait"),
    [(-1.0, 0.0), (0.0, 4.0), (300.0, 4.0), (300.1, 2.0)],
    ids=["of the same attempt", "at once", "within five minutes", "long after"],
)
def test_backoff_grows_with_each_failure_unless_the_last_one_is_long_ago(pause: float, wait: float) -> None:
    state = State(Config(longest_back_off=60.0))
    record = state.record_of(a_key("a"))
    state.back_off(record, 1000.0, Setback.BIND_FAILED)
    assert record.not_before == 1002.0
    again = record.not_before + pause
    state.back_off(record, again, Setback.BIND_FAILED)
    assert record.not_before == (again + wait if wait else 1002.0)


@pytest.mark.parametrize(
    ("config", "longest"), [(Config(), 60.0), (Config(longest_back_off=45.0), 45.0)], ids=["by default", "as set"]
)
def test_backoff_never_exceeds_the_longest_backoff(config: Config, longest: float) -> None:
    state = State(config)
    record = state.record_of(a_key("a"))
    waits = []
    for _ in range(8):
        now = record.not_before
        state.back_off(record, now, Setback.BIND_FAILED)
        waits.append(record.not_before - now)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, longest, longest, longest]


def test_deletion_of_an_unknown_pod_is_ignored() -> None:
    world = a_world(1)
    assert world.handle(PodGone("unknown")) == []


def test_gang_that_keeps_waiting_times_out_repeatedly() -> None:
    world = a_world(1)
    world.start("a", 1, priority=1)
    world.settle()
    late = world.start("b", 1, timeout=60.0)
    world.settle()
    record = world.engine.state.records[late]
    tries: list[float] = []
    for _ in range(400):
        world.pass_time(1)
        if record.failures > len(tries):
            tries.append(world.now - 1000.0)
    # A minute of waiting each time, after a backoff of 2, 4, 8 and 16 seconds.
    assert tries == [60.0, 122.0, 186.0, 254.0, 330.0]


def test_pod_whose_map_names_two_nodes_starts_when_one_of_them_is_removed() -> None:
    world = a_world()
    for name in ("n0", "n1"):
        world.put_node(a_node(name, 1, labels={"gpu-node-name": "twin"}))
    world.create(a_pod("p", Shape(gpu_resource=GPU, device_map=DeviceMap("twin", (0,), "team/map"))))
    world.settle()
    assert world.pods["p"].node is None
    world.remove_node("n1")
    world.settle()
    assert world.pods["p"].node == "n0"


def test_gang_blocked_by_anti_affinity_starts_when_the_other_pod_is_relabelled() -> None:
    world = a_world(2)
    world.create(a_pod("theirs", shape_of(0), ours=False, node="n0", labels={"app": "a"}, phase=PodPhase.RUNNING))
    away = PodTerm(PodMatch(LabelSelector(labels_equal({"app": "a"})), (NAMESPACE,)), HOSTNAME)
    world.change_node("n0", labels={HOSTNAME: "n0"})
    world.create(a_pod("p", shape_of(1, anti_affinity=(away,))))
    world.settle()
    assert world.pods["p"].node is None
    world.change_pod("theirs", labels={"app": "b"})
    world.settle()
    assert world.pods["p"].node == "n0"


def test_gang_blocked_by_the_anti_affinity_of_another_pod_starts_when_that_pod_ends() -> None:
    world = a_world(2)
    world.change_node("n0", labels={HOSTNAME: "n0"})
    away = PodTerm(PodMatch(LabelSelector(labels_equal({"app": "a"})), (NAMESPACE,)), HOSTNAME)
    world.create(a_pod("first", shape_of(1, anti_affinity=(away,))))
    world.settle()
    world.create(a_pod("p", labels={"app": "a"}))
    world.settle()
    assert world.pods["p"].node is None
    world.end("first")
    world.settle()
    assert world.pods["p"].node == "n0"


@pytest.mark.parametrize("change", ["one fewer here", "one more elsewhere"])
def test_pod_blocked_by_spread_starts_when_other_pods_change_the_skew(change: str) -> None:
    world = a_world(2, 2)
    for name in ("n0", "n1"):
        world.change_node(name, labels={HOSTNAME: name}, unschedulable=name == "n1")
    theirs = {"ours": False, "labels": {"app": "a"}, "phase": PodPhase.RUNNING}
    world.create(a_pod("theirs", shape_of(0), node="n0", **theirs))
    even = Spread(PodMatch(LabelSelector(labels_equal({"app": "a"})), (NAMESPACE,)), HOSTNAME)
    world.create(a_pod("p", shape_of(1, spread=(even,)), labels={"app": "a"}))
    world.settle()
    assert world.pods["p"].node is None
    if change == "one fewer here":
        world.end("theirs")
    else:
        world.create(a_pod("more", shape_of(0), node="n1", **theirs))
    world.settle()
    assert world.pods["p"].node == "n0"


def test_waiting_gang_respects_the_anti_affinity_of_a_pod_that_came_meanwhile() -> None:
    world = a_world()
    for name in ("n0", "n1"):
        world.put_node(a_node(name, 2, labels={HOSTNAME: name}))
    blockers = [world.start(f"blocker-{i}", 1, shape_of(2)) for i in range(2)]
    world.settle()
    key = a_key("a")
    pods = [replace(pod, labels={"app": app}) for pod, app in zip(members(key, 2), "ab", strict=True)]
    world.submit(Gang(key, minimum=2), *pods)
    world.settle()
    away = PodTerm(PodMatch(LabelSelector(labels_equal({"app": "b"})), (NAMESPACE,)), HOSTNAME)
    world.create(a_pod("theirs", shape_of(0, anti_affinity=(away,)), ours=False, node="n0", phase=PodPhase.RUNNING))
    world.settle()
    for blocker in blockers:
        world.finish(blocker)
    world.settle()
    assert (world.pods["a-0"].live, world.pods["a-1"].node) == (True, "n1")


def test_members_are_bound_by_rank_and_those_without_a_role_first() -> None:
    world = a_world(8)
    key = a_key("a")
    gang = Gang(key, minimum=3, roles=(Role("late", 1, rank=2), Role("early", 1, rank=1)))
    pods = [*members(key, 1, shape_of(4), role="late"), *members(key, 1, shape_of(2), role="early"), *members(key, 1)]
    world.submit(gang, *pods)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    assert [bind.name for bind in commit.binds] == ["a-0", "a-early-0", "a-late-0"]


def test_phases_of_a_start_are_reported_as_committing_binding_running() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.deliver_all()
    phases = []
    (commit,) = sent(world.run_cycle(), Commit)
    phases.append(world.phase(key))
    world.handle(Committed(commit.sequence))
    world.run_cycle()
    phases.append(world.phase(key))
    world.settle()
    phases.append(world.phase(key))
    assert phases == [Phase.COMMITTING, Phase.BINDING, Phase.RUNNING]
