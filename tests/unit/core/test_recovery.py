"""Recovery: what happens when a running member is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, GangSeen, NodeSeen, PodSeen, Report, SendBind, SendDelete, TookOver
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Expected, Gang, GangKey, Node, OnMemberLost, PodPhase, Role, TopologyRule
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import Config
from tests.unit.core.world import (
    NAMESPACE,
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
)


def test_lost_slot_is_held_for_the_replacement_and_not_given_to_another_gang() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    slot = (world.pods["a-1"].node, world.pods["a-1"].devices)
    world.lose("a-1")
    assert world.phase(key) is Phase.HOLDING
    rival = world.start("b", 1)
    world.settle(controllers=False)
    assert world.bound(rival) == []
    world.settle()
    assert world.phase(key) is Phase.RUNNING
    assert slot in [(pod.node, pod.devices) for pod in world.bound(key) if pod.uid != "a-0"]


@pytest.mark.parametrize(
    "node", [a_node("n0", 3, assigns=False), a_node("n0", 3, cpu=3000)], ids=["short of GPUs", "short of CPU"]
)
@pytest.mark.parametrize("replaced", [False, True], ids=["replaced later", "replaced at once"])
def test_held_slot_is_not_taken_by_a_nominated_gang_whose_victim_on_the_node_stays(node: Node, replaced: bool) -> None:
    world = World(None, node)
    key = world.start("a", 2, priority=9)
    low = world.start("low", 1)
    world.settle()
    world.lose("a-1")
    templates, world.templates = world.templates, {}
    rival = world.start("b", 1, priority=9)
    _refuse_evictions(world)
    assert world.phase(rival) is Phase.NOMINATED
    for again in (replaced, True):
        world.templates = templates if again else {}
        world.run_controllers()
        _refuse_evictions(world)
        assert len(world.bound(key)) == 1 + again
        assert (world.bound(rival), len(world.bound(low))) == ([], 1)
    world.pass_time(60, controllers=False)
    assert (len(world.bound(rival)), world.bound(low)) == (1, [])


def test_slots_of_a_gang_nominated_before_the_loss_are_not_held_when_nodes_shrink() -> None:
    world = World(None, a_node("n0", 4, assigns=False))
    key = world.start("a", 2, priority=9)
    world.start("low", 1, shape_of(2))
    world.settle()
    world.put_node(a_node("n1", 3, assigns=False))
    rival = world.start("b", 2, shape_of(2), priority=9)
    _refuse_evictions(world)
    assert {slot.node for slot in world.status[rival].notes.nomination} == {"n0", "n1"}
    world.now += 1
    world.change_pod("a-1", deleting=True)
    _refuse_evictions(world)
    assert _held(world, key) == ["n1"]
    world.create(a_pod("other", node="n0", ours=False))
    world.put_node(a_node("n1", 2, assigns=False))
    _refuse_evictions(world)
    assert _held(world, key) == []
    world.pass_time(60, controllers=False)
    assert {pod.node for pod in world.bound(rival)} == {"n0", "n1"}


def _refuse_evictions(world: World) -> None:
    """Settles the world without controllers, time or evictions."""
    for _ in range(10):
        world.deliver_all()
        world.run_cycle()
        flights, world.flights = world.flights, []
        for flight in flights:
            world.carry_out(flight, Outcome.REFUSED if isinstance(flight.effect, SendDelete) else Outcome.SUCCEEDS)
        world.run_kubelets()


def _held(world: World, key: GangKey) -> list[str]:
    """The nodes of the reserved slots of a gang."""
    state = world.engine.state
    return [slot.node for _, slot in state.reserved_slots(state.records[key])]


def test_replacement_that_does_not_fit_has_a_refusal_until_it_is_placed() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    node = world.pods["a-1"].node
    assert node is not None
    world.lose("a-1")
    world.change_node(node, unschedulable=True)
    world.settle()
    status = world.status[key]
    assert status.phase is Phase.HOLDING
    assert status.refusal is not None
    assert Reason.UNSCHEDULABLE in [refusal.reason for refusal in status.refusal.refusals]
    world.change_node(node, unschedulable=False)
    world.settle()
    assert world.status[key].phase is Phase.RUNNING
    assert world.status[key].refusal is None


def test_refusal_counts_all_replacements_that_do_not_fit() -> None:
    world = a_world(1, 2)
    key = world.start("a", 3)
    world.settle()
    world.change_node("n1", unschedulable=True)
    for pod in [pod for pod in world.bound(key) if pod.node == "n1"]:
        world.change_pod(pod.uid, deleting=True)
    world.settle()
    refusal = world.status[key].refusal
    assert refusal is not None
    assert (refusal.needed, refusal.fitting) == (2, 0)


def test_new_leader_keeps_the_slot_of_a_lost_member_and_its_deadline() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    world.lose("a-1")
    since = world.status[key].notes.below_since
    world.pass_time(100, controllers=False)
    world.crash()
    rival = world.start("b", 1)
    world.settle(controllers=False)
    assert world.bound(rival) == []
    assert world.status[key].notes.below_since == since


def test_replacement_gets_its_slot_although_a_member_of_another_role_waits_before_it() -> None:
    world = a_world(3)
    key = a_key("a")
    roles = (Role("extra"), Role("worker", minimum=2))
    world.submit(Gang(key, minimum=2, roles=roles), *members(key, 2, role="worker"))
    world.settle()
    world.create(*members(key, 1, shape_of(2), role="extra"))
    world.settle()
    devices = world.pods["a-worker-0"].devices
    world.create(a_pod("filler", priority=-1))
    world.lose("a-worker-0")
    world.settle()
    assert devices in [pod.devices for pod in world.bound(key)]
    assert world.phase(key) is Phase.RUNNING


def test_replacements_in_one_role_are_bound_together() -> None:
    world = a_world(3)
    key = a_key("a")
    world.submit(Gang(key, minimum=3, roles=(Role("work", 3),)), *members(key, 3, role="work"))
    world.settle()
    for uid in ("a-work-1", "a-work-2"):
        world.change_pod(uid, deleting=True)
    world.settle(controllers=False)
    world.run_controllers()
    world.deliver_all()
    assert {bind.name for bind in binds_in(world.run_cycle())} == {"a-work-1", "a-work-2"}


def test_no_slot_leaks_when_one_of_two_lost_expected_members_returns_first() -> None:
    world = a_world(3, 3)
    key = a_key("a")
    world.submit(Gang(key, minimum=3, expected=(Expected(shape_of(1), 3, "worker"),)))
    world.settle()
    world.create(*members(key, 3, role="worker"))
    world.settle()
    world.change_node(world.bound(key)[0].node or "", unschedulable=True)
    late = world.templates.pop((NAMESPACE, "a-worker-1"))
    for name in ("a-worker-0", "a-worker-1"):
        world.change_pod(name, deleting=True)
    world.pass_time(5)
    world.create(replace(late, uid="late"))
    world.pass_time(5)
    assert len(world.bound(key)) == 3
    world.remove_job(key)
    world.pass_time(1000)
    cluster = world.engine.state.cluster
    assert [cluster.devices.free(cluster.table.slots[node]).bit_count() for node in ("n0", "n1")] == [3, 3]


def test_surplus_member_does_not_take_the_slot_held_for_a_lost_one() -> None:
    world = a_world(2)
    key = a_key("a")
    roles = (Role("master", minimum=1), Role("worker", minimum=1))
    world.submit(Gang(key, minimum=2, roles=roles), *members(key, 1, role="master"), *members(key, 2, role="worker"))
    world.settle()
    assert len(world.bound(key)) == 2
    world.lose("a-master-0")
    world.pass_time(10, controllers=False)
    assert [pod.role for pod in world.bound(key)] == ["worker"]
    world.settle()
    assert sorted(pod.role for pod in world.bound(key)) == ["master", "worker"]


def test_hold_that_expires_restarts_the_members_that_a_controller_recreates() -> None:
    world = a_world(2, config=Config(hold=300))
    key = world.start("a", 2)
    world.settle()
    world.lose("a-1")
    world.pass_time(299, controllers=False)
    assert [pod.uid for pod in world.bound(key)] == ["a-0"]
    world.pass_time(2, controllers=False)
    assert "a-0" not in world.pods
    world.pass_time(60)
    assert len(world.bound(key)) == 2


def test_hold_that_expires_waits_for_the_bind_of_a_replacement_before_the_restart() -> None:
    world = a_world(4, config=Config(hold=300))
    key = world.start("a", 4)
    world.settle()
    world.lose("a-2")
    world.lose("a-3")
    world.create(replace(world.templates[key.namespace, "a-2"], uid="replacement"))
    world.deliver()
    world.run_cycle()
    world.carry_out_all()
    world.deliver()
    (bind,) = [flight for flight in world.flights if isinstance(flight.effect, SendBind)]
    world.flights.clear()
    world.now += 301
    assert all(not commit.deletes for commit in sent(world.run_cycle(), Commit))
    world.carry_out(bind)
    world.settle(controllers=False)
    assert world.bound(key) == []
    world.pass_time(60)
    assert len(world.bound(key)) == 4


def test_hold_that_expires_leaves_bare_pods_running_and_reports_degraded() -> None:
    world = a_world(2)
    key = world.start("a", 2, controlled=False)
    world.settle()
    world.lose("a-1")
    rival = world.start("b", 1)
    world.pass_time(310)
    assert world.phase(key) is Phase.DEGRADED
    assert [pod.uid for pod in world.bound(key)] == ["a-0"]
    assert len(world.bound(rival)) == 1


def test_members_recreated_beside_a_bare_pod_wait_for_each_other_when_the_hold_is_over() -> None:
    world = a_world(4)
    key = a_key("a")
    bare, *others = members(key, 3)
    world.submit(Gang(key, minimum=3), replace(bare, controlled=False), *others)
    world.settle()
    late = world.templates.pop((NAMESPACE, "a-2"))
    world.change_pod("a-2", deleting=True)
    deleted: list[SendDelete] = []
    world.on_effects.append(lambda effects: deleted.extend(sent(effects, SendDelete)))
    world.pass_time(1000)
    assert [effect.delete.uid for effect in deleted] == ["a-1"]
    assert (world.phase(key), world.reasons(key)) == (Phase.DEGRADED, {Reason.MEMBERS_MISSING})
    world.create(replace(late, uid="late"))
    world.settle()
    assert world.phase(key) is Phase.RUNNING


def test_gang_may_set_its_own_hold() -> None:
    world = a_world(2)
    key = world.start("a", 2, hold=20.0)
    world.settle()
    world.lose("a-1")
    world.pass_time(21, controllers=False)
    assert world.bound(key) == []


def test_gang_with_a_hold_of_zero_seconds_restarts_at_once() -> None:
    world = a_world(2)
    key = world.start("a", 2, hold=0.0)
    world.settle()
    world.lose("a-1")
    world.settle(controllers=False)
    assert world.bound(key) == []


def test_gang_with_policy_restart_restarts_at_once() -> None:
    world = a_world(2)
    key = world.start("a", 2, on_member_lost=OnMemberLost.RESTART)
    world.settle()
    world.lose("a-1")
    assert "a-0" not in world.pods
    world.pass_time(60)
    assert len(world.bound(key)) == 2


def test_gang_with_policy_shrink_runs_on_and_holds_no_slot() -> None:
    world = a_world(2)
    key = world.start("a", 2, on_member_lost=OnMemberLost.SHRINK)
    world.settle()
    world.lose("a-1")
    rival = world.start("b", 1)
    world.settle(controllers=False)
    assert world.phase(key) is Phase.RUNNING
    assert len(world.bound(rival)) == 1


def shrunk_beside_a_reservation() -> tuple[World, GangKey]:
    """A gang that lost two of three members before a fourth came: one is replaced, the others have reserved slots."""
    world = a_world(2, 2, config=Config(reserve=60.0))
    key = a_key("a")
    expected = (Expected(shape_of(1), 4, "worker"),)
    world.submit(Gang(key, minimum=3, on_member_lost=OnMemberLost.SHRINK, expected=expected))
    world.settle()
    world.create(*members(key, 3, role="worker", controlled=False))
    world.settle()
    for pod in world.bound(key)[:2]:
        world.lose(pod.uid)
    world.create(a_pod("new-0", gang=key, role="worker"))
    world.settle()
    assert (len(world.bound(key)), len(world.engine.state.records[key].reserved)) == (2, 2)
    return world, key


def test_member_that_returns_after_its_reservation_has_expired_still_replaces_the_lost_one() -> None:
    world, key = shrunk_beside_a_reservation()
    large = world.start("large", 2, shape_of(2))
    world.pass_time(301)
    assert world.gangs[large].notes.target == ("n0", "n1")
    world.create(a_pod("new-1", gang=key, role="worker"))
    world.settle()
    assert len(world.bound(key)) == 3, "otherwise both gangs would wait for each other"


def test_slot_reserved_for_a_lost_member_is_no_gang_of_its_own() -> None:
    world, key = shrunk_beside_a_reservation()
    assert [gang.key for gang in world.engine.gangs()] == [key]


def test_restart_is_committed_before_the_first_delete_and_finished_by_the_next_leader() -> None:
    world = a_world(2)
    world.start("a", 2, on_member_lost=OnMemberLost.RESTART)
    world.settle()
    world.change_pod("a-1", deleting=True)
    world.deliver_all()
    effects = world.run_cycle()
    assert sent(effects, SendDelete) == []
    (commit,) = sent(effects, Commit)
    assert [delete.uid for delete in commit.deletes] == ["a-0"]
    world.carry_out(world.flights.pop(0))
    world.crash()
    assert [f.effect.delete.uid for f in world.flights if isinstance(f.effect, SendDelete)] == ["a-0"]
    world.settle(controllers=False)
    assert world.lease == {}


def test_refused_delete_is_retried_until_the_pod_is_deleting() -> None:
    world = a_world(2)
    world.start("a", 2, on_member_lost=OnMemberLost.RESTART)
    world.settle()
    world.change_pod("a-1", deleting=True)
    world.deliver_all()
    world.run_cycle()
    for _ in range(3):
        for flight in [*world.flights]:
            world.flights.remove(flight)
            world.carry_out(flight, Outcome.REFUSED if isinstance(flight.effect, SendDelete) else Outcome.SUCCEEDS)
        world.deliver_all()
        world.now += 8
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


def test_hold_survives_a_gang_object_that_a_standby_observed_before_the_loss() -> None:
    """A warm standby observed every object long before it leads; later notes of the leader must not be lost."""
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    standby = Engine(world.config)
    for node in world.nodes.values():
        standby.handle(NodeSeen(node), world.now)
    for pod in world.pods.values():
        standby.handle(PodSeen(pod), world.now)
    standby.handle(GangSeen(world.gangs[key]), world.now)
    world.lose("a-1")
    noted = world.gangs[key]
    assert noted.notes.below_since is not None
    standby.handle(GangSeen(noted), world.now)
    standby.handle(PodSeen(replace(world.pods["a-0"], version="later")), world.now)
    standby.handle(PodSeen(a_pod("a-1", gang=key, node="n0", deleting=True)), world.now)
    world.now += 200
    standby.handle(TookOver(), world.now)
    reports = {e.key: e.status for e in standby.run_cycle(world.now) if isinstance(e, Report)}
    assert reports[key].notes.below_since == noted.notes.below_since


def test_gang_whose_replacement_is_decided_is_reported_as_committing() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    world.remove_pod("a-1")
    world.settle()
    assert world.phase(key) is Phase.HOLDING
    world.now += 61  # the quarantine of the lost pod's devices has ended
    world.run_cycle()
    assert world.phase(key) is Phase.COMMITTING


def test_slot_is_no_longer_held_when_the_minimum_is_lowered() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    world.lose("a-1")
    rival = world.start("b", 1)
    world.settle(controllers=False)
    assert world.bound(rival) == []
    world.change_gang(key, minimum=1)
    world.settle(controllers=False)
    assert len(world.bound(rival)) == 1


def test_replacement_may_use_its_held_slot_although_the_node_is_drained_for_another_gang() -> None:
    world = a_world(2)
    key = world.start("a", 2)
    world.settle()
    large = world.start("large", 1, shape_of(2))
    world.pass_time(310)
    assert world.gangs[large].notes.target == ("n0",)
    world.lose("a-1")
    world.crash()
    world.settle()
    assert len(world.bound(key)) == 2


def test_slot_stays_held_while_deciding_pauses() -> None:
    world = a_world(4, config=Config(max_open_binds=2))
    key = world.start("a", 2)
    world.settle()
    world.lose("a-1")
    record = world.engine.state.records[key]
    assert record.reserved
    world.start("b", 2)
    world.deliver_all()
    world.run_cycle()
    assert len(world.engine.state.ledger.binds) == 2, "no more may be decided"
    world.run_cycle()
    assert record.reserved


@pytest.mark.parametrize(("new_leader", "started"), [(False, 0), (True, 1)])
def test_new_leader_holds_the_slots_of_a_role_although_it_never_saw_the_shape_of_another(
    new_leader: bool, started: int
) -> None:
    world = a_world(3)
    key = a_key("a")
    gang = Gang(key, minimum=3, roles=(Role("lead", 1), Role("work", 2)))
    world.submit(gang, *members(key, 1, role="lead"), *members(key, 2, role="work"))
    world.settle()
    for uid in ("a-lead-0", "a-work-1"):
        world.change_pod(uid, deleting=True)
    world.settle(controllers=False)
    if new_leader:
        world.take_over()
        world.settle(controllers=False)
    pair, single = world.start("b", 2), world.start("c", 1)
    world.settle(controllers=False)
    assert (len(world.bound(pair)), len(world.bound(single))) == (0, started), "both free GPUs are held, or one"


def test_second_replacement_in_one_role_does_not_take_the_slot_of_another_role() -> None:
    world = a_world(3)
    key = a_key("a")
    gang = Gang(key, minimum=3, roles=(Role("lead", 1), Role("work", 2)))
    world.submit(gang, *members(key, 1, role="lead"), *members(key, 2, role="work"))
    world.settle()
    for uid in ("a-lead-0", "a-work-1"):
        world.change_pod(uid, deleting=True)
    world.settle(controllers=False)
    world.create(*(a_pod(f"new-{i}", gang=key, role="lead", index=i) for i in range(2)))
    world.settle(controllers=False)
    assert [world.pods[f"new-{i}"].node for i in range(2)] == ["n0", None]


def rack(name: str, number: str, gpus: int = 1) -> Node:
    return a_node(name, gpus, labels={"gpu-scheduler.io/rack": number})


RACK = (TopologyRule("rack"),)


@pytest.mark.parametrize(
    "gang",
    [
        Gang(a_key("a"), minimum=2, topology=RACK),
        Gang(a_key("a"), minimum=2, roles=(Role("work", 2, topology=RACK),)),
    ],
    ids=["of the gang", "of a role"],
)
def test_replacement_waits_for_capacity_in_the_rack_of_the_other_members(gang: Gang) -> None:
    world = a_world()
    for node in (rack("n0", "1"), rack("n1", "1"), rack("n2", "2")):
        world.put_node(node)
    world.submit(gang, *members(gang.key, 2, role="work"))
    world.settle()
    assert {pod.node for pod in world.bound(gang.key)} == {"n0", "n1"}
    world.remove_node("n1")
    world.settle()
    assert {pod.node for pod in world.bound(gang.key)} == {"n0"}, "n2 is in another rack"
    world.put_node(rack("n3", "1"))
    world.settle()
    assert {pod.node for pod in world.bound(gang.key)} == {"n0", "n3"}


def test_slot_of_a_lost_member_is_held_in_the_rack_of_the_other_members() -> None:
    world = a_world()
    for node in (rack("n0", "1"), rack("n1", "1"), rack("n2", "2")):
        world.put_node(node)
    world.submit(Gang(a_key("a"), minimum=2, topology=RACK), *members(a_key("a"), 2))
    world.settle()
    world.remove_node("n1")
    world.put_node(rack("n3", "1", 2))
    world.settle(controllers=False)
    world.create(a_pod("pair", shape_of(2)))
    world.settle(controllers=False)
    assert world.pods["pair"].node is None, "the other rack has capacity, but the replacement may not go there"
    world.settle()
    assert {pod.node for pod in world.bound(a_key("a"))} == {"n0", "n3"}


def test_no_more_slots_are_held_than_members_are_missing() -> None:
    world = a_world(4)
    key = a_key("a")
    gang = Gang(key, minimum=3, roles=(Role("lead", 1), Role("work", 2)))
    world.submit(gang, *members(key, 1, role="lead"), *members(key, 2, role="work"))
    world.settle()
    world.lose("a-work-1")
    pair, single = world.start("b", 2), world.start("c", 1)
    world.settle(controllers=False)
    assert (len(world.bound(pair)), len(world.bound(single))) == (0, 1)


@pytest.mark.parametrize(("gpus", "total"), [(1, 3), (2, 5)], ids=["its only one", "one of two"])
def test_replacement_does_not_reuse_an_unhealthy_gpu(gpus: int, total: int) -> None:
    world = a_world(total)
    key = world.start("a", 2, shape_of(gpus))
    world.settle()
    lost = (world.pods["a-1"].devices or ())[-1]
    world.lose("a-1")
    world.change_node("n0", unhealthy=frozenset({lost}))
    world.settle()
    devices = sorted(device for pod in world.bound(key) for device in pod.devices or ())
    assert devices == sorted({*range(total)} - {lost})


def test_hold_begun_by_a_leader_with_a_fast_clock_ends_in_time() -> None:
    world = a_world(4)
    key = world.start("a", 4)
    world.settle()
    world.templates.clear()
    world.lose(world.bound(key)[0].uid)
    world.settle(controllers=False)
    world.change_notes(key, below_since=world.now + 86_400)
    world.take_over()
    world.settle(controllers=False)
    rival = world.start("rival", 1)
    world.pass_time(world.config.hold + 60, controllers=False)
    assert len(world.bound(rival)) == 1


def test_refreshes_of_a_holding_gang_schedule_one_timer() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    world.templates.clear()
    world.lose("a-1")
    for number in range(100):
        world.change_pod("a-0", labels={"step": str(number)})
        world.settle(controllers=False)
    assert len(world.engine.state._timers) < 10


def test_members_of_a_raised_minimum_come_after_the_queue() -> None:
    world = a_world(4)
    fillers = [world.start(f"filler-{i}", 1, controlled=False) for i in range(3)]
    key = world.start("a", 1, controlled=False, hold=3600.0)
    world.settle()
    rival = world.start("b", 2)
    world.settle()
    world.change_gang(key, minimum=4)
    world.create(*(a_pod(f"more-{i}", gang=key) for i in range(3)))
    world.settle()
    for filler in fillers:
        world.finish(filler)
    world.settle()
    assert (len(world.bound(rival)), len(world.bound(key))) == (2, 2)
    world.finish(rival)
    world.settle()
    assert (len(world.bound(key)), world.phase(key)) == (4, Phase.RUNNING)
