"""Groups without pods: their expected members are a count, and what they cost does not grow with it."""

from __future__ import annotations

from functools import partial

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import Expected, Gang, Pod, Queue
from gpu_scheduler.core.placement.place import could_place
from gpu_scheduler.core.placement.placeholders import Copies, Placeholders, with_shape
from gpu_scheduler.core.queueing.bid import check_quota, make_bid
from gpu_scheduler.core.reasons import Reason
from tests.unit.core.effort import effort_of
from tests.unit.core.world import GPU, World, a_key, a_world, members, shape_of


def expecting(world: World, name: str, count: int, gpus: int = 1, **changes: object) -> Gang:
    gang = Gang(a_key(name), minimum=count, expected=(Expected(shape_of(gpus), count, "worker"),), **changes)  # type: ignore[arg-type]
    world.submit(gang)
    return gang


def count_pods(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The uids of the placeholders that are made from now on."""
    made: list[str] = []
    make = Placeholders._make

    def counted(self: Placeholders, number: int) -> Pod:
        made.append("")
        return make(self, number)

    monkeypatch.setattr(Placeholders, "_make", counted)
    return made


def test_placeholders_are_equal_pods_with_uids_of_their_own() -> None:
    pods = Placeholders("test/team/a/worker", "team", "a", shape_of(1), "worker", range(3, 6))
    assert [pod.uid for pod in pods] == [f"test/team/a/worker/{number}" for number in (3, 4, 5)]
    assert {(pod.namespace, pod.name, pod.role, pod.shape) for pod in pods} == {("team", "a", "worker", shape_of(1))}
    assert (len(pods), pods[-1].uid, [pod.uid for pod in pods[1:]]) == (
        3,
        "test/team/a/worker/5",
        [pods[1].uid, pods[2].uid],
    )
    assert [pod.shape for pod in with_shape(pods, shape_of(2))] == [shape_of(2)] * 3
    assert [pod.shape for pod in with_shape(list(pods), shape_of(2))] == [shape_of(2)] * 3


def test_copies_are_one_pod_several_times() -> None:
    (pod,) = members(a_key("a"), 1)
    copies = Copies(pod, 4)
    assert list(copies) == [pod] * 4
    assert (len(copies), copies[3], list(copies[1:3]), len(copies[2:])) == (4, pod, [pod] * 2, 2)
    with pytest.raises(IndexError):
        copies[4]
    assert [one.shape for one in with_shape(copies, shape_of(2))] == [shape_of(2)] * 4


def test_group_that_cannot_fit_is_refused_and_reported_without_a_pod_for_every_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = a_world(4, 4)
    world.start("busy", 1)
    world.settle()
    made = count_pods(monkeypatch)
    gang = expecting(world, "huge", 20_000)
    both = Gang(
        a_key("roles"),
        minimum=20_000,
        expected=(Expected(shape_of(1), 1, "master"), Expected(shape_of(0), 19_999, "worker")),
    )
    world.submit(both)
    world.pass_time(400)
    for key in (gang.key, both.key):
        assert world.engine.report(key, world.now) is not None
        assert world.engine.explain(key, world.now) is not None
        assert Reason.TOO_LARGE in world.reasons(key)
    assert len(made) < 1000


def test_group_that_fits_empty_nodes_gets_a_target_and_an_explanation_without_a_pod_for_every_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = a_world(*[8] * 50)
    world.start("busy", 1, priority=1)
    world.settle()
    made = count_pods(monkeypatch)
    key = a_key("roles")
    roles = (Expected(shape_of(2), 1, "master"), Expected(shape_of(1), 398, "worker"))
    world.submit(Gang(key, minimum=399, expected=roles))
    world.pass_time(301)
    assert world.gangs[key].notes.target == tuple(sorted(world.nodes))
    assert world.engine.explain(key, world.now) is not None
    assert len(made) < 200


@pytest.mark.parametrize("queue", ["", "q"], ids=["without a limit", "with a limit"])
def test_cost_of_a_cycle_does_not_grow_with_the_members_that_are_expected(queue: str) -> None:
    costs = []
    for count in (100, 100_000):
        world = a_world(4, 4)
        world.put_queue(Queue("q", limit={GPU: 50}))
        world.settle()
        expecting(world, "a", count, queue=queue)
        world.deliver_all()
        costs.append(effort_of(world.run_cycle))
    assert costs[1] < 1.5 * costs[0]


def test_groups_without_pods_that_ask_for_the_same_are_refused_together() -> None:
    world = a_world(4)
    world.start("busy", 1, priority=1)
    world.settle()
    keys = [expecting(world, f"a{number}", 4).key for number in range(50)]
    world.settle()
    queue = world.engine.state.queue
    assert len({queue.signature_of(key) for key in keys}) == 1
    assert all(Reason.RESOURCE in world.reasons(key) for key in keys)
    other = expecting(world, "b", 3, priority=0)
    world.settle()
    assert world.phase(other.key) is Phase.RESERVED
    world.create(*members(keys[7], 4, role="worker"))
    world.settle()
    assert len({queue.signature_of(key) for key in keys}) == 2


def test_first_of_equal_groups_is_reserved_when_its_capacity_becomes_free_and_the_others_wait() -> None:
    world = a_world(4)
    busy = world.start("busy", 1, priority=1)
    world.settle()
    first, second = (expecting(world, name, 4) for name in "ab")
    world.settle()
    world.finish(busy)
    world.settle()
    assert [world.phase(gang.key) for gang in (first, second)] == [Phase.RESERVED, Phase.WAITING]


def test_members_beyond_the_minimum_are_cut_to_what_the_queue_may_take() -> None:
    world = a_world(8, 8)
    world.put_queue(Queue("q", limit={GPU: 7}))
    key = a_key("a")
    world.submit(
        Gang(key, minimum=2, queue="q"),
        *members(key, 3, role="small"),
        *members(key, 5, shape_of(2), role="large"),
    )
    world.deliver_all()
    state = world.engine.state
    record = state.records[key]
    bid = make_bid(state, record, state.facts_of(record), world.now)
    refusal, cut = check_quota(state, record, bid)
    assert refusal is None
    assert {group.role: len(group.pods) for group in cut.groups} == {"small": 3, "large": 2}


def test_quota_of_a_large_gang_is_checked_in_few_steps() -> None:
    costs = []
    for count in (64, 4096):
        world = a_world(8)
        world.put_queue(Queue("q", limit={GPU: count - 1}))
        key = a_key("a")
        world.submit(Gang(key, minimum=1, queue="q"), *members(key, count))
        world.deliver_all()
        state = world.engine.state
        record = state.records[key]
        bid = make_bid(state, record, state.facts_of(record), world.now)
        _, cut = check_quota(state, record, bid)
        assert cut.size == count - 1
        costs.append(effort_of(partial(check_quota, state, record, bid)))
    assert costs[1] < 3 * costs[0]


@pytest.mark.parametrize(("count", "fits"), [(8, True), (9, False)])
def test_equal_members_are_compared_with_the_capacity_without_a_placement(
    monkeypatch: pytest.MonkeyPatch, count: int, fits: bool
) -> None:
    world = a_world(4, 4)
    gang = expecting(world, "a", count)
    world.deliver_all()
    state = world.engine.state
    record = state.records[gang.key]
    bid = make_bid(state, record, state.facts_of(record), world.now)
    made = count_pods(monkeypatch)
    assert could_place(state.empty, bid) is fits
    assert len(made) < count
