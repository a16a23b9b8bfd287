"""Victims that a disruption budget protects: the eviction stays committed, but after a while no gang counts on it."""

from __future__ import annotations

from gpu_scheduler.core.events import DeleteFailed, SendDelete
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.reasons import Reason
from tests.unit.core.world import NAMESPACE, Outcome, World, a_world, sent, shape_of


def pass_time(world: World, seconds: float, guarded: GangKey | str) -> None:
    """Lets time pass in which every eviction of a gang's pods, or of one pod, is refused."""
    until = world.now + seconds
    while world.now < until:
        for _ in range(6):
            world.deliver_all()
            world.run_cycle()
            flights, world.flights = world.flights, []
            for flight in flights:
                effect = flight.effect
                uid = effect.delete.uid if isinstance(effect, SendDelete) else ""
                refused = uid in world.pods and guarded in (uid, world.pods[uid].gang)
                world.carry_out(flight, Outcome.REFUSED if refused else Outcome.SUCCEEDS)
            world.run_kubelets()
            world.run_controllers()
        world.now += 10


def a_guarded_gang(world: World, size: int = 4) -> GangKey:
    """The youngest gang: the first victim."""
    world.pass_time(10)
    guarded = world.start("guarded", size)
    world.settle()
    return guarded


def test_gang_takes_other_victims_when_the_first_evictions_are_refused() -> None:
    world = a_world(4, 4)
    other = world.start("other", 4)
    world.settle()
    guarded = a_guarded_gang(world)
    urgent = world.start("urgent", 4, priority=9)
    pass_time(world, 30, guarded)
    assert (world.phase(urgent), world.phase(guarded)) == (Phase.NOMINATED, Phase.RESTARTING)
    pass_time(world, 800, guarded)
    assert [len(world.bound(key)) for key in (urgent, guarded, other)] == [4, 4, 0]
    assert world.phase(guarded) is Phase.RUNNING
    (commit,) = world.lease.values()
    assert len(commit.deletes) == 4, "what was decided is not forgotten"
    world.settle()
    assert all(pod.uid not in world.pods for pod in commit.deletes)


def test_refusal_of_a_nominated_gang_counts_the_refused_evictions() -> None:
    world = a_world(4)
    guarded = a_guarded_gang(world)
    urgent = world.start("urgent", 4, priority=9)
    pass_time(world, 100, guarded)
    assert world.phase(urgent) is Phase.NOMINATED
    for phase in (Phase.NOMINATED, Phase.WAITING):
        assert world.phase(urgent) is phase
        refusal = world.status[urgent].refusal
        assert refusal is not None
        assert [r.short_by for r in refusal.refusals if r.reason is Reason.EVICTION_REFUSED] == [4]
        pass_time(world, 700, guarded)
    world.settle()
    assert len(world.bound(urgent)) == 4


def test_refused_evictions_are_counted_on_the_nodes_of_the_nomination_only() -> None:
    world = a_world(4, 2)
    guarded = a_guarded_gang(world, 6)
    urgent = world.start("urgent", 1, shape_of(4), priority=9)
    pass_time(world, 800, guarded)
    refusal = world.status[urgent].refusal
    assert world.phase(urgent) is Phase.WAITING
    assert refusal is not None
    assert [r.short_by for r in refusal.refusals if r.reason is Reason.EVICTION_REFUSED] == [4]


def test_victim_is_counted_on_until_its_eviction_was_refused_six_times() -> None:
    world = a_world(1)
    low = world.start("low", 1)
    world.settle()
    urgent = world.start("urgent", 1, priority=9)
    world.deliver_all()
    world.run_cycle()
    expected = [(Phase.RESTARTING, {Reason.EVICTING})] * 5 + [(Phase.RUNNING, {Reason.EVICTION_REFUSED})]
    for phase, reasons in expected:
        world.handle(DeleteFailed("low-0"))
        world.run_cycle()
        assert (world.phase(low), world.reasons(urgent)) == (phase, reasons)


def test_eviction_that_succeeds_at_last_is_no_longer_reported_as_refused() -> None:
    world = a_world(1)
    world.start("low", 1)
    world.settle()
    urgent = world.start("urgent", 1, priority=9)
    world.deliver_all()
    world.run_cycle()
    for _ in range(6):
        world.handle(DeleteFailed("low-0"))
        world.run_cycle()
    assert world.reasons(urgent) == {Reason.EVICTION_REFUSED}
    world.change_pod("low-0", deleting=True)
    world.deliver_all()
    world.run_cycle()
    assert Reason.EVICTION_REFUSED not in world.reasons(urgent)


def test_another_gang_does_not_wait_for_victims_whose_eviction_is_refused() -> None:
    world = a_world(4, 4)
    other = world.start("other", 4)
    world.settle()
    guarded = a_guarded_gang(world)
    world.start("urgent", 2, priority=9)
    pass_time(world, 10, guarded)
    second = world.start("second", 2, priority=8)
    pass_time(world, 10, guarded)
    assert world.phase(second) is Phase.WAITING
    pass_time(world, 60, guarded)
    assert (len(world.bound(second)), len(world.bound(other))) == (2, 0)


def test_no_pod_is_evicted_repeatedly_for_a_gang_that_also_needs_refused_victims() -> None:
    world = a_world(4, 4)
    other = world.start("other", 4)
    world.settle()
    guarded = a_guarded_gang(world)
    world.start("urgent", 8, priority=9)
    pass_time(world, 1000, guarded)
    assert len(world.bound(other)) == 4
    uids = {pod.uid for pod in world.bound(other)}
    pass_time(world, 2000, guarded)
    assert {pod.uid for pod in world.bound(other)} == uids


def test_gang_whose_eviction_is_refused_gets_a_lost_member_replaced() -> None:
    world = a_world(4)
    guarded = a_guarded_gang(world)
    urgent = world.start("urgent", 4, priority=9)
    pass_time(world, 800, guarded)
    assert world.phase(guarded) is Phase.RUNNING
    world.change_pod(world.bound(guarded)[0].uid, deleting=True)
    pass_time(world, 100, guarded)
    assert (len(world.bound(guarded)), len(world.bound(urgent))) == (4, 0)


def test_gang_below_its_minimum_is_restarted_without_pods_whose_eviction_is_refused() -> None:
    world = a_world(4)
    guarded = a_guarded_gang(world)
    world.start("urgent", 4, priority=9)
    pass_time(world, 50, guarded)
    world.change_pod(world.bound(guarded)[0].uid, deleting=True)
    pass_time(world, 1000, guarded)
    decided = [delete.uid for commit in world.lease.values() for delete in commit.deletes]
    assert len(decided) == len(set(decided))
    world.settle()
    assert world.lease == {}


def test_members_beside_a_pod_whose_eviction_is_refused_are_not_bound_and_deleted_repeatedly() -> None:
    world = a_world(4)
    world.start("a", 3)
    world.settle()
    del world.templates[NAMESPACE, "a-2"]
    world.change_pod("a-2", deleting=True)
    pass_time(world, 1000, "a-0")
    deleted: set[str] = set()
    world.on_effects.append(lambda effects: deleted.update(effect.delete.uid for effect in sent(effects, SendDelete)))
    pass_time(world, 1000, "a-0")
    assert deleted == {"a-0"}
