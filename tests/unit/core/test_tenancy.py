"""Tenancy: a queue admits nothing beyond its limit, whatever a tenant does with running gangs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.events import TookOver
from gpu_scheduler.core.lifecycle import LostMember, Phase
from gpu_scheduler.core.model import DeviceMap, Expected, Gang, GangKey, PodPhase, Queue, Role, Shape, Slot
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import Config
from tests.unit.core.world import GPU, World, a_key, a_node, a_pod, a_world, members, shape_of

AMD = "amd.com/gpu"


def a_limited_world(gpus: int, limit: int) -> World:
    """A world with one node, and a queue "q" that may use so many of its GPUs."""
    world = a_world(gpus)
    world.put_queue(Queue("q", limit={GPU: limit}))
    return world


def used(world: World, queue: str) -> int:
    """The whole GPUs that the leader charges to a queue."""
    return world.engine.state.quota.used(queue).get(GPU, 0) // 1000


def gpus_of(world: World, key: GangKey) -> int:
    """The GPUs of the live members of a gang."""
    return sum(pod.shape.gpus for pod in world.bound(key))


def add(world: World, key: GangKey, count: int, gpus: int = 1) -> None:
    """The tenant adds pods to a gang."""
    names = [f"{key.name}-extra-{gpus}-{i}" for i in range(count)]
    world.create(*(a_pod(name, shape_of(gpus), gang=key, controlled=True) for name in names))


# -- a raised minimum


def test_raised_minimum_of_a_running_gang_admits_nothing_beyond_the_limit() -> None:
    world = a_limited_world(8, 2)
    key = world.start("a", 2, queue="q")
    world.settle()
    world.change_gang(key, minimum=8)
    add(world, key, 6)
    world.settle()
    assert (gpus_of(world, key), used(world, "q")) == (2, 2)
    assert world.reasons(key) == {Reason.QUOTA}


def test_raised_minimum_admits_what_the_limit_leaves() -> None:
    world = a_limited_world(8, 4)
    key = world.start("a", 2, queue="q")
    world.settle()
    world.change_gang(key, minimum=8)
    add(world, key, 6)
    world.settle()
    assert (gpus_of(world, key), used(world, "q")) == (4, 4)


def test_no_slots_are_held_for_a_raised_minimum() -> None:
    world = a_world(8)
    key = world.start("a", 1, hold=1e9)
    world.settle()
    world.change_gang(key, minimum=8)
    world.settle()
    assert world.phase(key) is Phase.HOLDING
    other = world.start("b", 7)
    world.settle()
    assert len(world.bound(other)) == 7


def test_members_that_a_tenant_moves_into_a_waiting_gang_hold_nothing_for_it() -> None:
    world = a_world(8)
    world.start("a", 1)
    waits = a_key("b")
    world.submit(Gang(waits, minimum=8))
    world.settle()
    world.change_pod("a-0", gang=waits)
    world.settle()
    other = world.start("c", 7)
    world.settle()
    assert len(world.bound(other)) == 7


# -- replacements


def test_map_takes_no_gpus_of_another_resource_than_its_queue_is_charged_for() -> None:
    world = World(None, replace(a_node("n", 8), allocatable={**a_node("n", 8).allocatable, AMD: 8}, gpu_resource=AMD))
    world.put_queue(Queue("q", limit={GPU: 8, AMD: 0}))
    shape = Shape((("cpu", 1),), gpu_resource=GPU, device_map=DeviceMap("n", tuple(range(8)), "default/map"))
    pod = a_pod("p-0", shape, queue="q")
    world.create(pod)
    world.settle()
    assert world.pods["p-0"].node is None
    assert Reason.OTHER_GPUS in world.reasons(world.engine.state.key_of(pod))


def test_larger_replacements_admit_nothing_beyond_the_limit() -> None:
    world = a_limited_world(16, 3)
    key = world.start("a", 3, queue="q", controlled=False)
    world.settle()
    for number in range(2):
        world.remove_pod(f"a-{number}")
    add(world, key, 2, gpus=6)
    world.settle()
    assert gpus_of(world, key) == 1
    assert used(world, "q") <= 3


def test_slots_are_held_in_the_lost_shape_and_not_in_that_of_a_waiting_member() -> None:
    world = a_world(8)
    key = world.start("a", 2, hold=1e9, controlled=False)
    world.settle()
    world.end("a-1", PodPhase.FAILED)
    world.settle()
    world.now += 120
    add(world, key, 1, gpus=8)
    world.settle()
    other, another = world.start("b", 6), world.start("c", 1)
    world.settle()
    assert (len(world.bound(other)), len(world.bound(another))) == (6, 0)


def test_member_like_the_lost_one_is_placed_before_a_larger_one_that_waits() -> None:
    world = a_limited_world(8, 2)
    key = world.start("a", 2, queue="q", controlled=False)
    world.settle()
    world.end("a-1", PodPhase.FAILED)
    world.settle()
    world.now += 120
    add(world, key, 1, gpus=6)
    world.settle()
    assert gpus_of(world, key) == 1
    add(world, key, 1)
    world.settle()
    assert gpus_of(world, key) == 2


def test_one_lost_member_has_one_replacement_that_is_no_admission() -> None:
    world = a_limited_world(8, 2)
    key = world.start("a", 2, queue="q", controlled=False)
    world.settle()
    world.end("a-1", PodPhase.FAILED)
    world.change_gang(key, minimum=3)
    world.settle()
    world.now += 120
    for name in ("first", "second"):
        world.create(a_pod(name, gang=key))
        world.settle()
    assert (gpus_of(world, key), used(world, "q")) == (2, 2)


def a_gang_whose_hold_ended(world: World, count: int) -> GangKey:
    """A gang of the queue "q" that has lost all members but one, and held their slots for a second."""
    key = world.start("a", count, queue="q", controlled=False, hold=1.0)
    world.settle()
    for number in range(1, count):
        world.end(f"a-{number}", PodPhase.FAILED)
    world.pass_time(120)
    assert (world.phase(key), used(world, "q")) == (Phase.DEGRADED, 1)
    return key


def test_losses_are_over_when_the_hold_has_ended() -> None:
    """The tenant raises hold-seconds after other gangs were admitted in place of the lost members."""
    world = a_limited_world(16, 4)
    key = a_gang_whose_hold_ended(world, 4)
    assert world.gangs[key].notes.lost == 0
    other = world.start("b", 3, queue="q")
    world.settle()
    world.change_gang(key, hold=3600.0)
    add(world, key, 3)
    world.pass_time(120)
    assert (gpus_of(world, key), gpus_of(world, other), used(world, "q")) == (1, 3, 4)


def test_standby_that_saw_the_losses_does_not_hold_again_what_the_leader_released() -> None:
    world = a_limited_world(16, 4)
    key = a_gang_whose_hold_ended(world, 4)
    world.start("b", 3, queue="q")
    world.settle()
    lost = LostMember("a-1", Slot("n0", (1,)), shape_of(1), "q")
    world.engine.state.records[key].lost = [lost, lost, lost]  # as a standby remembers them
    world.handle(TookOver((), world.next_sequence))
    world.change_gang(key, hold=3600.0)
    add(world, key, 3)
    world.pass_time(120)
    assert used(world, "q") == 4


def test_lost_member_stays_charged_although_no_node_has_room_for_its_slot() -> None:
    world = a_world(2, 2, 2)
    world.put_queue(Queue("q", limit={GPU: 4}))
    key = world.start("a", 2, shape_of(2), queue="q", controlled=False)
    world.start("b", 1)
    world.settle()
    lost = world.bound(key)[1]
    assert lost.node is not None
    world.change_node(lost.node, ready=False)
    world.end(lost.uid, PodPhase.FAILED)
    world.settle()
    other = world.start("c", 1, queue="q")
    world.settle()
    assert (gpus_of(world, other), used(world, "q")) == (0, 4)
    world.change_node(lost.node, ready=True)
    world.now += 120
    add(world, key, 1, gpus=2)
    world.settle()
    assert (gpus_of(world, key), used(world, "q")) == (4, 4)
    world.finish(key)
    world.settle()
    assert (gpus_of(world, other), used(world, "q")) == (1, 1)


@pytest.mark.parametrize("gangs", [2, 4])
def test_gang_asks_its_queue_after_the_losses_of_all_gangs_are_charged(gangs: int) -> None:
    world = World(None, *(a_node(f"n{i}", 8, assigns=False) for i in range(gangs)))
    world.put_queue(Queue("q", limit={GPU: 2 * gangs}))
    keys = [world.start(f"a{i}", 2, queue="q", controlled=False) for i in range(gangs)]
    world.settle()
    add(world, keys[0], 1, gpus=gangs)
    for number, key in enumerate(keys):
        if number:
            add(world, key, 1)
        world.remove_pod(f"a{number}-1")
    world.settle()
    assert [gpus_of(world, key) for key in keys] == [1] + [2] * (gangs - 1)
    assert used(world, "q") == 2 * gangs


def test_loss_that_no_minimum_counts_is_over() -> None:
    """The tenant lowers the minimum of a role while another gang is admitted in place of the lost member."""
    world = a_limited_world(16, 5)
    key = a_key("a")
    roles = (Role("lead", 1), Role("work", 1))
    gang = Gang(key, minimum=2, queue="q", roles=roles, hold=3600.0)
    world.submit(gang, *members(key, 1, shape_of(4), role="lead", controlled=False), *members(key, 1, role="work"))
    world.settle()
    world.end("a-lead-0", PodPhase.FAILED)
    world.change_gang(key, minimum=3, roles=(replace(roles[0], minimum=0), replace(roles[1], minimum=3)))
    world.pass_time(120)
    other = world.start("b", 4, queue="q")
    world.settle()
    assert gpus_of(world, other) == 4
    world.change_gang(key, roles=roles)
    world.create(a_pod("again", shape_of(4), gang=key, role="lead"))
    world.pass_time(120)
    assert (gpus_of(world, key), used(world, "q")) == (1, 5)


@pytest.mark.parametrize("gpus", [1, 2])
def test_replacement_that_is_charged_as_the_lost_member_was_is_no_admission(gpus: int) -> None:
    """Lowering a limit evicts nothing: a lost member is replaced although the queue is above its limit now."""
    world = a_limited_world(8, 4)
    key = world.start("a", 4, queue="q", controlled=False)
    world.settle()
    world.put_queue(Queue("q", limit={GPU: 2}))
    world.end("a-3", PodPhase.FAILED)
    world.settle()
    world.now += 120
    add(world, key, 1, gpus=gpus)
    world.settle()
    assert gpus_of(world, key) == (4 if gpus == 1 else 3)


def test_replacement_waits_for_the_charge_of_a_lost_member_that_still_ends() -> None:
    world = a_limited_world(8, 2)
    key = world.start("a", 2, queue="q", controlled=False)
    world.settle()
    world.change_pod("a-1", deleting=True)
    world.deliver_all()
    add(world, key, 1)
    world.run_cycle()
    world.deliver_all()
    world.run_cycle()
    assert used(world, "q") == 2, "the pod that ends and the live one"
    assert not world.engine.state.ledger.binds
    world.settle()
    assert gpus_of(world, key) == 2


def test_member_whose_bind_was_given_up_keeps_its_charge() -> None:
    world = a_limited_world(8, 4)
    key = world.start("a", 4, queue="q")
    world.deliver_all()
    world.run_cycle()
    world.carry_out(world.flights.pop(0))
    world.deliver_all()
    world.flights = [one for one in world.flights if getattr(getattr(one.effect, "bind", None), "uid", "") != "a-3"]
    world.put_queue(Queue("q", limit={GPU: 1}))
    world.change_pod("a-3", attempt=1)
    world.settle()
    assert gpus_of(world, key) == 3
    world.now += 120
    world.settle()
    assert gpus_of(world, key) == 4


# -- a changed queue


@pytest.mark.parametrize("new_leader", [False, True])
def test_running_gang_stays_charged_to_the_queue_that_admitted_it(new_leader: bool) -> None:
    world = a_limited_world(8, 2)
    world.put_queue(Queue("r", limit={GPU: 4}))
    key = world.start("a", 2, queue="q")
    world.settle()
    world.change_gang(key, queue="r")
    if new_leader:
        world.take_over()
    world.settle()
    assert (used(world, "q"), used(world, "r")) == (2, 0)
    more = world.start("b", 2, queue="q")
    world.settle()
    assert world.bound(more) == []


@pytest.mark.parametrize("new_leader", [False, True])
def test_deleting_the_object_of_a_running_gang_does_not_refund_its_charge(new_leader: bool) -> None:
    world = a_limited_world(8, 2)
    key = world.start("a", 2, queue="q")
    world.settle()
    world.remove_gang(key)
    if new_leader:
        world.take_over()
    world.settle()
    assert used(world, "q") == 2
    more = world.start("b", 2, queue="q")
    world.settle()
    assert world.bound(more) == []


def test_pod_that_changes_its_gang_stays_charged_to_its_queue() -> None:
    world = a_limited_world(8, 2)
    world.put_queue(Queue("r"))
    world.start("a", 2, queue="q", minimum=1)
    world.settle()
    other = a_key("b")
    world.submit(Gang(other, queue="r"))
    world.change_pod("a-0", gang=other)
    world.settle()
    assert (used(world, "q"), used(world, "r")) == (2, 0)


def test_lost_member_keeps_its_charge_only_in_the_queue_that_it_was_charged_to() -> None:
    """Pods of another queue are moved into a gang, and are lost there."""
    world = a_limited_world(16, 2)
    world.put_queue(Queue("r", limit={GPU: 4}))
    key = world.start("a", 2, queue="q", controlled=False, hold=3600.0)
    other = world.start("b", 4, queue="r", controlled=False)
    world.settle()
    moved = world.bound(other)
    for pod in moved:
        world.change_pod(pod.uid, gang=key)
    world.change_gang(key, minimum=6)
    world.settle()
    assert (len(moved), used(world, "q"), used(world, "r")) == (4, 2, 4)
    for pod in moved:
        world.end(pod.uid, PodPhase.FAILED)
    world.settle()
    add(world, key, 4)
    world.pass_time(120)
    assert (gpus_of(world, key), used(world, "q"), used(world, "r")) == (2, 2, 0)


def test_lost_members_keep_nothing_when_their_gang_has_moved_and_moves_back() -> None:
    """The live member was bound by another client, so the gang may move."""
    world = a_limited_world(16, 3)
    world.put_queue(Queue("r"))
    key = a_key("a")
    first, *others = members(key, 3, controlled=False)
    world.submit(Gang(key, minimum=3, queue="q", hold=3600.0), replace(first, node="n0", devices=(0,)), *others)
    world.settle()
    for pod in others:
        world.end(pod.uid, PodPhase.FAILED)
    world.change_gang(key, queue="r")
    world.pass_time(120)
    other = world.start("b", 2, queue="q")
    world.settle()
    assert gpus_of(world, other) == 2
    world.change_gang(key, queue="q")
    add(world, key, 2)
    world.pass_time(120)
    assert (gpus_of(world, key), used(world, "q")) == (1, 3)


def test_bind_in_flight_stays_charged_to_the_queue_that_admitted_it() -> None:
    world = a_limited_world(8, 2)
    world.put_queue(Queue("r"))
    key = world.start("a", 2, queue="q")
    world.deliver_all()
    world.run_cycle()
    world.change_gang(key, queue="r")
    world.settle()
    assert (used(world, "q"), used(world, "r")) == (2, 0)
    assert {pod.charged_queue for pod in world.bound(key)} == {"q"}


@pytest.mark.parametrize("succeed", [False, True])
def test_new_leader_charges_an_open_bind_to_the_queue_that_its_commit_names(succeed: bool) -> None:
    world = a_limited_world(8, 2)
    world.put_queue(Queue("r"))
    key = world.start("a", 2, queue="q")
    world.deliver_all()
    world.run_cycle()
    world.carry_out(world.flights.pop(0))
    world.change_gang(key, queue="r")
    world.crash(succeed=succeed)
    world.settle()
    assert len(world.bound(key)) == 2
    assert (used(world, "q"), used(world, "r")) == (2, 0)


@pytest.mark.parametrize("succeed", [False, True])
def test_new_leader_admits_nothing_beside_an_open_bind_that_uses_the_limit(succeed: bool) -> None:
    world = a_limited_world(8, 2)
    world.put_queue(Queue("r"))
    key = world.start("a", 2, queue="q")
    world.deliver_all()
    world.run_cycle()
    world.carry_out(world.flights.pop(0))
    world.change_gang(key, queue="r")
    other = world.start("b", 1, queue="q")
    world.crash(succeed=succeed)
    world.settle()
    assert (len(world.bound(key)), len(world.bound(other))) == (2, 0)


def test_changed_queue_takes_effect_when_all_admitted_members_have_ended() -> None:
    world = a_limited_world(8, 2)
    world.put_queue(Queue("r", limit={GPU: 1}))
    key = world.start("a", 2, queue="q", minimum=1)
    world.settle()
    world.change_gang(key, queue="r")
    add(world, key, 2)
    world.settle()
    assert gpus_of(world, key) == 2, "its queue is still q, and full"
    world.finish(key)
    world.settle()
    assert (used(world, "q"), used(world, "r")) == (0, 1)


def test_reserved_slots_of_a_gang_that_changes_its_queue_ask_the_new_one() -> None:
    world = a_limited_world(8, 8)
    world.put_queue(Queue("small", limit={GPU: 1}))
    key = a_key("a")
    world.submit(Gang(key, minimum=4, queue="q", expected=(Expected(shape_of(1), 4),)))
    world.settle()
    assert (world.phase(key), used(world, "q")) == (Phase.RESERVED, 4)
    world.change_gang(key, queue="small")
    world.settle()
    assert (used(world, "q"), used(world, "small")) == (0, 0)


def test_queue_of_a_waiting_pod_can_be_changed() -> None:
    world = a_limited_world(8, 1)
    world.create(a_pod("a", shape_of(2), queue="q"))
    world.settle()
    assert not world.pods["a"].live
    world.change_pod("a", queue="")
    world.settle()
    assert world.pods["a"].live


# -- nominations and new leaders


def test_nomination_ends_when_its_waiting_members_no_longer_fit_the_queue() -> None:
    world = a_limited_world(8, 2)
    world.put_queue(Queue("q", quota={GPU: 2}, limit={GPU: 2}))
    world.start("low", 8)
    world.settle()
    key = world.start("high", 2, queue="q", priority=5, controlled=False)
    world.deliver_all()
    world.run_cycle()
    assert world.engine.state.records[key].notes.nomination
    for number in range(2):
        world.remove_pod(f"high-{number}")
    world.create(*(a_pod(f"big-{i}", shape_of(4), gang=key, priority=5) for i in range(2)))
    world.deliver_all()
    world.run_cycle()
    assert not world.engine.state.records[key].notes.nomination
    assert used(world, "q") == 0


def test_new_leader_holds_as_many_slots_as_were_lost() -> None:
    world = a_world(8)
    key = world.start("a", 4)
    world.settle()
    world.lose("a-3")
    world.change_gang(key, minimum=8)
    world.settle(controllers=False)
    assert world.gangs[key].notes.lost == 1
    world.take_over()
    world.settle(controllers=False)
    other, another = world.start("b", 4), world.start("c", 1)
    world.settle(controllers=False)
    assert (len(world.bound(other)), len(world.bound(another))) == (4, 0), "one slot is held, and no more"


def test_new_leader_holds_no_slot_beyond_the_limit() -> None:
    world = a_limited_world(8, 4)
    key = world.start("a", 4, queue="q")
    world.settle()
    world.lose("a-3")
    world.put_queue(Queue("q", limit={GPU: 3}))
    world.take_over()
    world.settle(controllers=False)
    assert world.phase(key) is Phase.HOLDING
    assert used(world, "q") == 3


def test_standby_forgets_losses_that_were_replaced() -> None:
    """Losses that a standby remembers too long would admit members beyond the limit after a take-over."""
    world = a_limited_world(8, 2)
    key = world.start("a", 2, queue="q")
    world.settle()
    state = world.engine.state
    state.leading = False
    world.change_pod("a-1", deleting=True)
    world.deliver_all()
    assert len(state.records[key].lost) == 1
    world.remove_pod("a-1")
    world.create(a_pod("again", gang=key, node="n0", devices=(1,), charged_queue="q"))
    world.deliver_all()
    assert state.records[key].lost == []


def test_held_slots_belong_to_the_role_that_lost_a_member() -> None:
    world = a_limited_world(8, 5)
    key = a_key("a")
    gang = Gang(key, minimum=4, queue="q", roles=(Role("lead", 1), Role("work", 3)))
    world.submit(gang, *members(key, 1, shape_of(2), role="lead"), *members(key, 3, role="work"))
    world.settle()
    world.lose("a-lead-0")
    assert used(world, "q") == 5, "the slot of the leader is held with its two GPUs"
    world.change_gang(key, roles=(replace(gang.roles[0], minimum=0), replace(gang.roles[1], minimum=8)))
    world.settle(controllers=False)
    assert used(world, "q") == 3, "the workers have lost none"


def test_many_waiting_replacements_are_admitted_in_batches() -> None:
    world = a_world(8)
    world.config = Config(max_binds_at_once=2)
    world.take_over()
    key = world.start("a", 1)
    world.settle()
    world.change_gang(key, minimum=8)
    add(world, key, 7)
    world.settle()
    assert len(world.bound(key)) == 8
