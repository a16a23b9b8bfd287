"""Preemption: which pods are evicted, and when the nominated gang starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import (
    Commit,
    Committed,
    Effect,
    GangSeen,
    NodeSeen,
    PodSeen,
    Report,
    SendDelete,
    TookOver,
)
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Gang, OnMemberLost, PodPhase, Queue, Role
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import Config
from tests.unit.core.world import a_key, a_node, a_pod, a_world, binds_in, members, sent, shape_of


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


def test_gang_of_two_with_a_minimum_of_one_keeps_one_member() -> None:
    world = a_world(2)
    world.start("a", 2, minimum=1)
    world.settle()
    world.start("b", 1, priority=1)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    assert [delete.uid for delete in commit.deletes] == ["a-1"]


def test_gang_without_surplus_is_evicted_whole_or_not_at_all() -> None:
    world = a_world(4)
    fixed = world.start("a", 4, priority=1)
    world.settle()
    urgent = world.start("b", 1, priority=2)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    assert {delete.uid for delete in commit.deletes} == {"a-0", "a-1", "a-2", "a-3"}
    world.settle()
    assert [len(world.bound(key)) for key in (fixed, urgent)] == [0, 1]


@pytest.mark.parametrize("seen", [0, 1])
def test_gang_with_binds_in_flight_is_evicted_once_they_are_observed(seen: int) -> None:
    world = a_world(2)
    low = world.start("a", 2)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    for bind in commit.binds[:seen]:
        world.change_pod(bind.uid, node=bind.node, devices=bind.devices)
    urgent = world.start("b", 1, priority=9)
    world.deliver_all()
    assert sent(world.run_cycle(), Commit) == []
    world.settle()
    assert (len(world.bound(low)), len(world.bound(urgent))) == (0, 1)


def test_gang_with_binds_in_flight_is_spared_and_a_more_expensive_one_evicted() -> None:
    world = a_world(3)
    world.start("dearer", 1, priority=1)
    world.settle()
    world.start("a", 2)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(commit.sequence))
    first = commit.binds[0]
    world.change_pod(first.uid, node=first.node, devices=first.devices)
    world.start("b", 1, priority=9)
    world.deliver_all()
    (eviction,) = sent(world.run_cycle(), Commit)
    assert [delete.uid for delete in eviction.deletes] == ["dearer-0"]


def test_gang_that_loses_its_surplus_to_one_gang_is_evicted_for_another_once_that_is_observed() -> None:
    world = a_world(3)
    world.start("a", 3, minimum=1)
    world.settle()
    world.start("b", 1, priority=5)
    world.deliver_all()
    (surplus,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(surplus.sequence))
    world.start("c", 2, priority=9)
    world.deliver_all()
    assert sent(world.run_cycle(), Commit) == []
    (going,) = surplus.deletes
    world.change_pod(going.uid, deleting=True)
    world.deliver_all()
    (eviction,) = sent(world.run_cycle(), Commit)
    assert len(eviction.deletes) == 2


def test_gang_with_a_deleted_victim_can_be_evicted_for_another_gang_at_once() -> None:
    world = a_world(4)
    world.start("a", 4, minimum=2, controlled=False)
    world.settle()
    world.start("b", 1, priority=9)
    world.deliver_all()
    (surplus,) = sent(world.run_cycle(), Commit)
    world.handle(Committed(surplus.sequence))
    world.start("c", 1, priority=8)
    world.deliver_all()
    assert sent(world.run_cycle(), Commit) == []
    world.remove_pod(surplus.deletes[0].uid)
    world.deliver_all()
    (eviction,) = sent(world.run_cycle(), Commit)
    assert len(eviction.deletes) == 1


def test_gang_whose_priority_is_lowered_is_preempted_by_a_waiting_gang() -> None:
    world = a_world(1)
    low = world.start("a", 1, priority=9)
    world.settle()
    urgent = world.start("b", 1, priority=5)
    world.settle()
    assert world.bound(urgent) == []
    world.change_gang(low, priority=1)
    world.settle()
    assert (len(world.bound(low)), len(world.bound(urgent))) == (0, 1)


def test_smallest_sufficient_victim_is_chosen() -> None:
    world = a_world(4, 4)
    large, small = world.start("a", 1, shape_of(4)), world.start("b", 1, shape_of(2))
    other = world.start("c", 1, shape_of(2), priority=9)
    world.settle()
    urgent = world.start("d", 1, shape_of(2), priority=5)
    world.settle()
    bound = [len(world.bound(key)) for key in (large, small, other, urgent)]
    assert sum(bound) == 3
    assert bound[2:] == [1, 1]


def test_youngest_of_equal_victims_is_evicted() -> None:
    world = a_world(2)
    gangs = []
    for name in ("b", "a"):
        gangs.append(world.start(name, 1))
        world.pass_time(10)
    urgent = world.start("c", 1, priority=5)
    world.settle()
    assert [len(world.bound(key)) for key in (*gangs, urgent)] == [1, 0, 1]


def test_no_more_victims_are_evicted_than_necessary() -> None:
    world = a_world(4, 4, 4, 4)
    low = [world.start(name, 1, shape_of(4)) for name in "abcd"]
    world.settle()
    urgent = world.start("e", 2, shape_of(4), priority=5)
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 2
    assert sum(len(world.bound(key)) for key in low) == 2


def test_equal_priority_is_not_evicted_along_with_lower() -> None:
    world = a_world(2)
    low, equal = world.start("a", 1, priority=1), world.start("b", 1, priority=5)
    world.settle()
    large = world.start("c", 2, priority=5)
    world.settle()
    assert [len(world.bound(key)) for key in (low, equal, large)] == [1, 1, 0]


def test_no_pod_is_evicted_for_a_gang_that_would_not_fit_even_then() -> None:
    world = a_world(4)
    low = world.start("a", 2)
    world.start("b", 2, priority=9)
    world.settle()
    world.start("c", 3, priority=5)
    world.settle()
    assert len(world.bound(low)) == 2


def test_gang_with_preemption_policy_never_evicts_no_pod() -> None:
    world = a_world(2)
    low = world.start("a", 2)
    world.settle()
    world.start("b", 2, priority=9, preempts=False)
    world.settle()
    assert len(world.bound(low)) == 2


def test_nominated_gang_is_bound_only_after_its_victims_are_gone() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    urgent = world.start("b", 2, priority=9)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    assert commit.binds == ()
    assert len(commit.deletes) == 2
    assert world.phase(urgent) is Phase.NOMINATED
    world.carry_out_all()
    world.deliver_all()
    world.carry_out_all()
    world.deliver_all()
    assert all(pod.deleting for pod in world.members(a_key("a")))
    assert binds_in(world.run_cycle()) == []
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 2


def test_free_slot_of_a_nomination_is_not_taken_in_the_same_cycle() -> None:
    world = a_world(2)
    low = world.start("a", 1)
    world.settle()
    urgent, rival = world.start("b", 2, priority=9), world.start("c", 1, priority=1)
    world.deliver_all()
    assert binds_in(world.run_cycle()) == []
    world.settle(controllers=False)
    assert [len(world.bound(key)) for key in (low, urgent, rival)] == [0, 2, 0]


def test_nominated_slots_are_not_taken_by_other_gangs() -> None:
    world = a_world(2)
    world.start("a", 1)
    world.start("x", 1)
    world.settle()
    urgent = world.start("b", 2, priority=9)
    world.deliver_all()
    world.run_cycle()
    world.carry_out_all()
    world.deliver_all()
    world.carry_out_all()
    world.change_pod("a-0", phase=PodPhase.FAILED)
    rival = world.start("c", 1, priority=1)
    world.deliver_all()
    assert binds_in(world.run_cycle()) == []
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 2
    assert world.bound(rival) == []


def test_slots_of_a_nominated_gang_whose_object_is_deleted_are_released() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    urgent = world.start("b", 2, priority=9)
    world.deliver_all()
    world.run_cycle()
    assert world.phase(urgent) is Phase.NOMINATED
    world.remove_gang(urgent)
    world.settle(controllers=False)
    rival = world.start("c", 2)
    world.settle(controllers=False)
    assert len(world.bound(rival)) == 2
    assert world.bound(urgent) == []


def test_nomination_and_drain_target_on_one_node_do_not_wait_for_each_other() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    first = world.start("b", 1, shape_of(2), priority=9, preempts=False)
    world.pass_time(200)
    second = world.start("c", 1, shape_of(2), priority=9)
    world.deliver_all()
    world.run_cycle()
    assert world.phase(second) is Phase.NOMINATED
    (commit,) = [flight for flight in world.flights if isinstance(flight.effect, Commit)]
    world.flights = []
    world.carry_out(commit)  # only the commit: no pod is evicted yet
    world.deliver()
    world.now += 150
    world.engine.state.dirty[first] = None
    world.run_cycle()
    assert world.status[first].notes.target == ("n0",)
    world.finish(a_key("a"))
    world.pass_time(30)
    assert len(world.bound(first)) + len(world.bound(second)) == 1


def test_new_leader_keeps_a_nomination_and_lets_it_expire() -> None:
    world = a_world(2, config=Config(nominate=600))
    world.start("a", 2)
    world.settle()
    urgent = world.start("b", 2, priority=9)
    world.deliver_all()
    world.run_cycle()
    for flight in [f for f in world.flights if isinstance(f.effect, Report)]:
        world.carry_out(flight)
    world.flights.clear()
    world.crash()
    assert world.gangs[urgent].notes.nomination
    world.deliver_all()
    world.run_cycle()
    assert world.phase(urgent) is Phase.NOMINATED
    timer = world.engine.next_timer()
    assert timer is not None
    assert timer <= world.now + 600


def test_two_nominations_of_one_cycle_evict_a_victim_once() -> None:
    world = a_world(4)
    world.start("a", 1, shape_of(4))
    world.settle()
    preemptors = [world.start(name, 1, shape_of(2), priority=9) for name in "bc"]
    world.settle()
    assert [len(world.bound(key)) for key in preemptors] == [1, 1]
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


def test_capacity_that_is_being_freed_is_not_freed_twice() -> None:
    """The victims of a first nomination are being deleted; their capacity suffices for a second gang."""
    world = a_world(4, 4)
    world.start("a", 1, shape_of(4))
    low = world.start("z", 1, shape_of(4))
    world.settle()
    evicted: list[str] = []
    world.on_effects.append(lambda effects: evicted.extend(e.delete.uid for e in sent(effects, SendDelete)))
    world.start("b", 1, shape_of(2), priority=9)
    world.deliver_all()
    world.run_cycle()
    world.carry_out_all()
    world.start("c", 1, shape_of(2), priority=8)
    world.settle()
    assert len(evicted) == 1
    assert len(world.bound(low)) + len(world.bound(a_key("a"))) == 1


def test_slots_held_for_a_broken_gang_do_not_protect_it_from_higher_priority() -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    world.lose("a-1")
    urgent = world.start("b", 2, priority=9)
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 2


def test_stale_nomination_of_a_running_gang_is_dropped_by_the_next_leader() -> None:
    """The leader stopped after the gang was committed and before its nomination was removed from the gang object."""
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    urgent = world.start("b", 1, shape_of(2), priority=9)
    world.deliver_all()
    world.run_cycle()
    nominated = next(f.effect.status for f in world.flights if isinstance(f.effect, Report) and f.effect.key == urgent)
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 1
    world.change_notes(urgent, nomination=nominated.notes.nomination, nominated_at=nominated.notes.nominated_at)
    world.crash()
    world.settle(controllers=False)
    assert world.gangs[urgent].notes.nomination == ()


def test_slots_of_a_nominated_gang_do_not_overfill_the_node_of_a_bind_in_flight() -> None:
    engine = Engine()
    engine.handle(TookOver(), 0.0)
    node = a_node("n0", 2, assigns=False)
    engine.handle(NodeSeen(node), 0.0)

    def decide(name: str, priority: int, now: float) -> list[Effect]:
        key = a_key(name)
        engine.handle(GangSeen(Gang(key, 1, priority=priority)), now)
        engine.handle(PodSeen(members(key, 1)[0]), now)
        return engine.run_cycle(now)

    low = binds_in(decide("low", 0, 1.0))[0]
    engine.handle(Committed(0), 1.0)
    engine.handle(PodSeen(replace(engine.state.pods[low.uid], node=low.node, devices=low.devices)), 1.0)
    assert binds_in(decide("on-its-way", 5, 2.0))
    engine.handle(Committed(1), 2.0)
    commit = next(effect for effect in decide("preemptor", 9, 3.0) if isinstance(effect, Commit))
    assert [delete.uid for delete in commit.deletes] == [low.uid]
    effects = engine.handle(NodeSeen(replace(node, labels={**node.labels, "new": "label"})), 4.0)
    assert effects == []


@pytest.mark.parametrize(
    ("timeout", "waits"),
    [(None, (0.0, 301.0, 298.0, 1.0)), (60.0, (0.0, 30.0, 29.0, 1.0))],
    ids=["by the nomination timeout", "by the gang's own timeout"],
)
@pytest.mark.parametrize(
    "ahead", [None, 0.0, 86_400.0], ids=["of this leader", "of the one before", "of one whose clock was ahead"]
)
def test_nomination_whose_victims_stay_expires(
    timeout: float | None, waits: tuple[float, ...], ahead: float | None
) -> None:
    world = a_world(2)
    world.start("a", 2)
    world.settle()
    urgent = world.start("b", 2, priority=9, timeout=timeout)
    phases = []
    for wait in waits:
        world.now += wait
        world.deliver_all()
        world.run_cycle()
        for flight in world.flights:
            if isinstance(flight.effect, Commit | Report):
                world.carry_out(flight)
        world.flights.clear()  # the evictions do not arrive
        phases.append(world.phase(urgent))
        if ahead is not None and len(phases) == 1:
            world.change_notes(urgent, nominated_at=world.now + ahead)
            world.crash()
    assert phases[:3] == [Phase.NOMINATED] * 3
    assert (phases[3], world.reasons(urgent)) == (Phase.WAITING, {Reason.BACK_OFF})


def test_slot_of_a_nominated_gang_that_is_deleted_is_released() -> None:
    world = a_world(1)
    low = world.start("a", 1)
    world.settle()
    world.create(a_pod("urgent", priority=9))
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    assert len(commit.deletes) == 1
    world.remove_pod("urgent")
    world.settle()
    assert len(world.bound(low)) == 1


def test_surplus_of_a_role_is_what_exceeds_its_own_minimum() -> None:
    world = a_world(3)
    key = a_key("a")
    world.submit(Gang(key, minimum=1, roles=(Role("work", 2),)), *members(key, 3, role="work"))
    world.settle()
    world.start("b", 2, priority=9)
    world.deliver_all()
    (commit,) = sent(world.run_cycle(), Commit)
    assert len(commit.deletes) == 3, "with one left too few would run"


def test_member_that_comes_while_victims_are_evicted_has_a_refusal_when_the_gang_starts() -> None:
    world = a_world(1)
    world.start("a", 1, controlled=False)
    world.settle()
    urgent = world.start("b", 1, priority=9)
    world.deliver_all()
    world.run_cycle()
    assert world.phase(urgent) is Phase.NOMINATED
    world.create(a_pod("late", gang=urgent, index=1, priority=9))
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 1
    committing = [
        effect.status
        for _, _, effects in world.journal
        for effect in sent(effects, Report)
        if effect.key == urgent and effect.status.phase is Phase.COMMITTING
    ]
    assert [status.refusal is None for status in committing] == [False]


def test_nominated_gang_does_not_start_when_its_queue_refuses_it_meanwhile() -> None:
    world = a_world(1)
    world.put_queue(Queue("q"))
    world.start("a", 1, queue="q")
    world.settle()
    urgent = world.start("b", 1, priority=9, queue="q")
    world.deliver_all()
    world.run_cycle()
    assert world.phase(urgent) is Phase.NOMINATED
    world.put_queue(Queue("q", open=False))
    world.settle(controllers=False)
    assert world.bound(urgent) == []
    world.put_queue(Queue("q"))
    world.settle(controllers=False)
    assert len(world.bound(urgent)) == 1


def test_nominated_gang_does_not_start_while_a_commit_is_being_written() -> None:
    world = a_world(1, 1)
    world.start("a", 1)
    world.settle()
    world.change_node("n1", unschedulable=True)
    urgent = world.start("b", 1, priority=9)
    world.deliver_all()
    world.run_cycle()
    assert world.phase(urgent) is Phase.NOMINATED
    world.change_node("n1", unschedulable=False)
    world.deliver_all()
    assert binds_in(world.run_cycle()) == []


def test_paused_nominated_gang_releases_its_slots() -> None:
    world = a_world(1)
    low = world.start("a", 1)
    world.settle()
    urgent = world.start("b", 1, priority=9)
    world.deliver_all()
    world.run_cycle()
    assert world.phase(urgent) is Phase.NOMINATED
    world.change_gang(urgent, paused=True)
    world.settle()
    assert world.phase(urgent) is Phase.BLOCKED
    assert len(world.bound(low)) == 1
