"""Drain targets of groups without pods: a longest life, and none after one that was not used."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.events import Fenced
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Expected, Gang, GangKey, Queue
from gpu_scheduler.core.state import Config
from tests.unit.core.world import GPU, World, a_key, a_pod, a_world, members, shape_of

LIFE = 1000.0


def expecting(world: World, name: str, gpus: int = 4, **changes: Any) -> GangKey:
    """Submits a group of one expected member; returns its key."""
    key = a_key(name, changes.pop("namespace", "team"))
    world.submit(Gang(key, expected=(Expected(shape_of(gpus), 1, "worker"),), **changes))
    return key


def come(world: World, key: GangKey, gpus: int = 4) -> None:
    """The pod of a group is created."""
    world.create(*members(key, 1, shape_of(gpus), role="worker", controlled=False))
    world.settle()


def busy(*gpus: int, config: Config | None = None) -> World:
    """A world with one pod that runs on its first node, and queues."""
    world = a_world(*gpus, config=config or Config(max_podless_drain=LIFE))
    for name in ("", "q"):
        world.put_queue(Queue(name))
    world.create(a_pod("occupant", priority=9))
    world.settle()
    return world


def target_of(world: World, key: GangKey) -> tuple[str, ...]:
    return world.gangs[key].notes.target


def is_rank_kept(world: World, first: GangKey) -> bool:
    return world.engine.state.queue.in_order(world.engine.state.queue_order)[0] == first


def test_drain_for_a_group_without_pods_ends_after_its_longest_life_and_the_group_keeps_its_rank() -> None:
    world = busy(4)
    group = expecting(world, "a")
    world.pass_time(301)
    small = world.start("small", 1)
    world.pass_time(LIFE - 2)
    assert (target_of(world, group), world.bound(small)) == (("n0",), [])
    world.pass_time(2)
    assert (target_of(world, group), len(world.bound(small))) == ((), 1)
    world.start("later", 4)
    world.pass_time(250)
    assert is_rank_kept(world, group)
    assert target_of(world, group) == ()


def test_group_whose_drain_expired_gets_a_target_again_when_its_pods_exist() -> None:
    world = busy(4)
    group = expecting(world, "a")
    world.pass_time(301 + LIFE)
    world.pass_time(2 * LIFE)
    assert target_of(world, group) == ()
    come(world, group)
    world.pass_time(301)
    assert target_of(world, group) == ("n0",)
    world.pass_time(5 * LIFE)
    assert target_of(world, group) == ("n0",)
    world.end("occupant")
    world.settle()
    assert len(world.bound(group)) == 1


def test_drain_for_a_gang_with_pods_does_not_expire() -> None:
    world = busy(4)
    large = world.start("large", 1, shape_of(4))
    world.pass_time(301 + 10 * LIFE)
    assert target_of(world, large) == ("n0",)


def test_drain_of_a_group_whose_pods_vanish_counts_from_its_beginning() -> None:
    world = busy(4)
    group = expecting(world, "a")
    come(world, group)
    world.pass_time(301 + LIFE)
    assert target_of(world, group) == ("n0",)
    world.remove_pod("a-worker-0")
    world.settle()
    assert target_of(world, group) == ()


@pytest.mark.parametrize("ahead", [0.0, 5000.0], ids=["equal clocks", "a clock ahead"])
def test_life_of_a_drain_goes_on_under_a_new_leader(ahead: float) -> None:
    world = busy(4)
    group = expecting(world, "a")
    world.pass_time(301)
    since = world.gangs[group].notes.target_since
    assert since == world.now - 1
    world.change_notes(group, target_since=since + ahead)
    world.crash()
    world.pass_time(LIFE - 2)
    assert target_of(world, group) == ("n0",)
    world.pass_time(2)
    assert target_of(world, group) == ()


def test_new_leader_does_not_forget_that_the_drain_of_a_group_expired() -> None:
    world = busy(4)
    group = expecting(world, "a")
    world.pass_time(301 + LIFE)
    assert target_of(world, group) == ()
    world.crash()
    world.pass_time(LIFE)
    assert target_of(world, group) == ()


def test_life_of_a_target_without_a_noted_time_begins_with_the_new_leader() -> None:
    world = busy(4)
    group = expecting(world, "a")
    world.pass_time(301)
    world.change_notes(group, target_since=None)
    world.crash()
    world.pass_time(LIFE - 1)
    assert target_of(world, group) == ("n0",)
    world.pass_time(1)
    assert target_of(world, group) == ()


def test_no_nodes_are_drained_for_groups_without_pods_if_the_longest_life_is_zero() -> None:
    world = busy(4, config=Config(max_podless_drain=0))
    group = expecting(world, "a")
    world.pass_time(400)
    assert target_of(world, group) == ()


# -- what a target is charged


def limited(limit: int) -> World:
    """A world with two nodes of four GPUs, one pod on each, and a limit of its queue "q"."""
    world = a_world(4, 4, config=Config(max_podless_drain=LIFE))
    world.put_queue(Queue("q", limit={GPU: limit}))
    for name in ("x", "y"):
        world.start(name, 1, shape_of(3), namespace="other", controlled=False)
    world.settle()
    return world


def used(world: World) -> int:
    return world.engine.state.quota.used("q").get(GPU, 0) // 1000


@pytest.mark.parametrize("new_leader", [False, True])
def test_queue_is_charged_for_the_target_of_a_group_without_pods(new_leader: bool) -> None:
    world = limited(4)
    group = expecting(world, "a", queue="q")
    world.pass_time(301)
    if new_leader:
        world.crash()
        world.settle()
    assert (len(target_of(world, group)), used(world)) == (1, 4)
    more = world.start("more", 1, queue="q")
    world.pass_time(60)
    assert (world.bound(more), len(target_of(world, group)), used(world)) == ([], 1, 4)
    for name in ("x", "y"):
        world.finish(a_key(name, "other"))
    world.settle()
    assert (world.phase(group), used(world)) == (Phase.RESERVED, 4)
    come(world, group)
    assert (len(world.bound(group)), used(world)) == (1, 4)


@pytest.mark.parametrize("end", ["expired", "deleted", "pods", "moved", "limit"])
def test_charge_of_a_target_is_released_with_it(end: str) -> None:
    world = limited(4)
    group = expecting(world, "a", queue="q")
    world.pass_time(301)
    assert used(world) == 4
    if end == "expired":
        world.pass_time(LIFE)
    elif end == "deleted":
        world.remove_gang(group)
    elif end == "pods":
        come(world, group)
    elif end == "moved":
        world.change_gang(group, queue="")
    else:
        world.put_queue(Queue("q", limit={GPU: 3}))
    world.settle()
    assert used(world) == 0


def test_group_without_pods_gets_no_target_that_its_queue_cannot_be_charged_for() -> None:
    world = limited(4)
    group = expecting(world, "a", queue="q")
    world.pass_time(299)
    world.start("more", 1, queue="q")
    world.pass_time(60)
    assert (target_of(world, group), used(world)) == ((), 1)


@pytest.mark.parametrize(("queue", "kept"), [("q", False), ("", True)])
def test_charge_of_a_target_gives_way_to_a_gang_of_higher_priority_in_its_queue(queue: str, kept: bool) -> None:
    world = limited(4)
    group = expecting(world, "a", queue="q")
    world.pass_time(301)
    high = world.start("high", 1, queue=queue, priority=1)
    world.settle()
    assert (len(world.bound(high)), bool(target_of(world, group))) == (1, kept)


def test_charge_of_a_target_stays_if_a_gang_of_higher_priority_would_be_refused_without_it() -> None:
    world = limited(4)
    group = expecting(world, "a", queue="q")
    world.pass_time(301)
    world.start("high", 5, queue="q", priority=1)
    world.settle()
    assert (len(target_of(world, group)), used(world)) == (1, 4)


def test_one_pod_does_not_make_the_target_of_expected_members_free_of_charge() -> None:
    world = limited(4)
    key = a_key("a")
    expected = (Expected(shape_of(4), 1, "worker"),)
    world.submit(Gang(key, queue="q", expected=expected), *members(key, 1, shape_of(0), role="driver"))
    world.pass_time(301)
    assert (len(target_of(world, key)), used(world)) == (1, 4)


def test_charge_of_a_target_ends_with_leadership() -> None:
    world = limited(4)
    expecting(world, "a", queue="q")
    world.pass_time(301)
    world.handle(Fenced())
    assert used(world) == 0


# -- unused reservations


def waste_reservation(world: World, key: GangKey, *, deleted: bool) -> None:
    """A group gets slots, and its pods do not come."""
    world.settle()
    assert world.phase(key) is Phase.RESERVED
    if deleted:
        world.remove_gang(key)
    world.pass_time(world.config.reserve + 1)


@pytest.mark.parametrize("deleted", [False, True], ids=["expired", "deleted in time"])
@pytest.mark.parametrize(
    ("other", "drained"),
    [({}, False), ({"namespace": "other"}, True), ({"queue": "q"}, True)],
    ids=["same", "other namespace", "other queue"],
)
def test_after_an_unused_reservation_no_group_without_pods_of_that_queue_and_namespace_gets_a_target(
    deleted: bool, other: dict[str, Any], drained: bool
) -> None:
    world = busy(4)
    waste_reservation(world, expecting(world, "a", 1), deleted=deleted)
    group = expecting(world, "renamed", priority=1, **other)
    world.pass_time(301)
    assert bool(target_of(world, group)) is drained


def test_gang_with_pods_gets_a_target_after_an_unused_reservation_of_another_group() -> None:
    world = busy(4)
    waste_reservation(world, expecting(world, "a", 1), deleted=True)
    large = world.start("large", 1, shape_of(4))
    world.pass_time(301)
    assert target_of(world, large) == ("n0",)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_groups_without_pods_get_targets_again_when_the_pods_of_one_have_come(late: bool) -> None:
    world = busy(4)
    wasted = expecting(world, "a", 1)
    waste_reservation(world, wasted, deleted=not late)
    group = expecting(world, "large", priority=1)
    world.pass_time(301)
    assert target_of(world, group) == ()
    if late:
        come(world, wasted, 1)
    else:
        used = expecting(world, "b", 1)
        world.settle()
        assert target_of(world, group) == ()
        come(world, used, 1)
    world.pass_time(1)
    assert target_of(world, group) == ("n0",)


@pytest.mark.parametrize("deleted", [False, True], ids=["expired", "deleted"])
def test_pods_of_one_group_do_not_make_up_for_another_reservation_that_is_not_used_later(deleted: bool) -> None:
    world = busy(6)
    used, wasted = expecting(world, "a", 1), expecting(world, "b", 1)
    world.settle()
    come(world, used, 1)
    assert world.engine.state.barred_from_drains == {}
    waste_reservation(world, wasted, deleted=deleted)
    group = expecting(world, "large", 6, priority=1)
    world.pass_time(301)
    assert target_of(world, group) == ()


def test_groups_without_pods_of_a_namespace_get_no_targets_after_one_that_expired() -> None:
    world = busy(4)
    group = expecting(world, "a")
    world.pass_time(301 + LIFE)
    world.remove_gang(group)
    again = expecting(world, "renamed")
    world.pass_time(301)
    assert target_of(world, again) == ()


def test_group_that_was_moved_to_another_queue_allows_targets_in_the_one_that_admitted_it() -> None:
    world = busy(4)
    moved = expecting(world, "a", 1)
    world.settle()
    world.change_gang(moved, queue="q")
    world.settle()
    come(world, moved, 1)
    assert world.engine.state.barred_from_drains == {}


def test_new_leader_knows_of_a_reservation_that_is_not_used_yet() -> None:
    world = busy(4)
    expecting(world, "a", 1)
    world.settle()
    world.crash()
    world.settle()
    group = expecting(world, "large", priority=1)
    world.pass_time(305)
    assert target_of(world, group) == ()


def test_bounded_number_of_queues_and_namespaces_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.core.cycle.drain._MAX_BARRED", 3)
    world = busy(8)
    for number in range(5):
        expecting(world, "a", 1, namespace=f"team-{number}")
    world.settle()
    assert list(world.engine.state.barred_from_drains) == [("", f"team-{number}") for number in (2, 3, 4)]
