"""The rules of sharing: who is evicted for whom, between queues of a tree and within a queue, and whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import AcrossQueues, Expected, Gang, GangKey, PodPhase, Queue, Role
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.state import Config
from tests.unit.core.world import GPU, World, a_key, a_node, a_world, members, shape_of


def bound(world: World, *keys: GangKey) -> list[int]:
    """How many members of each gang are bound."""
    return [len(world.bound(key)) for key in keys]


def put(world: World, name: str, quota: int | None = None, **fields: Any) -> None:
    """Creates a queue with a quota of GPUs."""
    world.put_queue(Queue(name, quota={} if quota is None else {GPU: quota}, **fields))


def start(world: World, name: str, count: int, queue: str = "", gpus: int = 1, **fields: Any) -> GangKey:
    """Starts a gang whose pods no controller creates again."""
    key = world.start(name, count, shape_of(gpus), queue=queue, controlled=False, **fields)
    world.settle()
    return key


# -- surplus


def test_only_as_many_surplus_members_go_as_are_needed() -> None:
    world = a_world(8, 8, 8)
    elastic = start(world, "elastic", 24, minimum=4)
    urgent = start(world, "urgent", 8, priority=1)
    assert bound(world, elastic, urgent) == [16, 8]


def test_surplus_of_every_role_goes_before_a_whole_gang() -> None:
    world = a_world(6)
    key = a_key("roles")
    roles = (Role("ps", 1), Role("worker", 1))
    pods = [*members(key, 2, role="ps", controlled=False), *members(key, 2, role="worker", controlled=False)]
    world.submit(Gang(key, minimum=2, roles=roles), *pods)
    other = start(world, "other", 2)
    urgent = start(world, "urgent", 2, priority=1)
    assert bound(world, key, other, urgent) == [2, 2, 2]


def test_waiting_minimum_takes_back_surplus_of_equal_priority_in_its_queue() -> None:
    world = a_world(4)
    elastic = start(world, "elastic", 4, minimum=1)
    later = start(world, "later", 2)
    assert bound(world, elastic, later) == [2, 2]


def test_minimums_start_before_surplus() -> None:
    world = a_world(4)
    elastic = world.start("elastic", 4, minimum=2)
    other = world.start("other", 2)
    world.settle()
    assert bound(world, elastic, other) == [2, 2]


def test_members_of_a_gang_whose_object_is_deleted_are_no_surplus() -> None:
    world = a_world(4)
    orphan = start(world, "orphan", 4)
    world.remove_gang(orphan)
    later = start(world, "later", 2)
    assert bound(world, orphan, later) == [4, 0]


def test_expected_members_that_run_are_no_surplus() -> None:
    world = a_world(3)
    key = a_key("spark")
    driver = members(key, 1, shape_of(0), role="driver", controlled=False)
    world.submit(Gang(key, minimum=1, expected=(Expected(shape_of(1), 3, "executor"),)), *driver)
    world.settle()
    world.create(*members(key, 3, role="executor", controlled=False))
    world.settle()
    later = start(world, "later", 1)
    assert bound(world, key, later) == [4, 0]


# -- reclaim


def test_gang_of_a_queue_without_quota_is_reclaimed_as_a_whole() -> None:
    world = a_world(4)
    put(world, "owner", 4)
    put(world, "guest")
    guest = start(world, "guest", 4, "guest", minimum=2)
    owner = start(world, "owner", 4, "owner")
    assert bound(world, guest, owner) == [0, 4]


def test_pod_that_needs_a_whole_node_gets_one_although_other_gangs_would_go_first() -> None:
    world = a_world(2, 2)
    put(world, "owner", 2)
    put(world, "guest", 2)
    pairs = [[world.start(f"g{node}{i}", 1, queue="guest", controlled=False) for i in range(2)] for node in range(2)]
    world.settle()
    # Of each node, one gang would go first: the younger one. Two of one node are needed.
    owner = start(world, "owner", 1, "owner", gpus=2)
    left = [sum(bound(world, *pair)) for pair in pairs]
    assert (bound(world, owner), sorted(left)) == ([1], [0, 2])


def test_elastic_gang_reclaims_for_its_minimum_only() -> None:
    world = a_world(8)
    put(world, "owner", 2)
    put(world, "guest", 0)
    guests = [start(world, f"g{i}", 1, "guest") for i in range(8)]
    owner = start(world, "owner", 6, "owner", minimum=2)
    assert (bound(world, owner), sum(bound(world, *guests))) == ([2], 6)


def test_use_beyond_the_quota_of_another_resource_does_not_keep_a_queue_from_its_gpus() -> None:
    world = a_world(4)
    world.put_queue(Queue("owner", quota={GPU: 4, "cpu": 500}))
    put(world, "guest")
    guest = start(world, "guest", 4, "guest")
    owner = start(world, "owner", 2, "owner")
    assert bound(world, guest, owner) == [0, 2]


def test_quota_of_gpus_protects_from_gangs_that_lack_another_resource() -> None:
    world = World(None, a_node("n0", 4, cpu=4000))
    put(world, "a", 4)
    put(world, "b")
    within = start(world, "within", 4, "a")
    idle = start(world, "idle", 1, "b", gpus=0)
    assert bound(world, within, idle) == [4, 0]


def test_queue_within_its_quota_loses_nothing() -> None:
    world = a_world(4)
    put(world, "a", 2)
    put(world, "b", 2)
    within = start(world, "within", 2, "a")
    start(world, "other", 2, "b")
    urgent = start(world, "urgent", 2, "b", priority=9)
    assert bound(world, within, urgent) == [2, 2]


def test_borrowers_go_before_gangs_of_the_own_queue() -> None:
    world = a_world(4)
    put(world, "a", 4)
    put(world, "b", 0)
    low = start(world, "low", 2, "a")
    borrower = start(world, "borrower", 2, "b", priority=9)
    high = start(world, "high", 2, "a", priority=5)
    assert bound(world, low, borrower, high) == [2, 0, 2]


def test_low_gang_within_the_quota_makes_room_for_a_high_one_that_would_have_to_borrow() -> None:
    world = a_world(4)
    put(world, "a", 2)
    put(world, "b", 0)
    low = start(world, "low", 2, "a")
    borrower = start(world, "borrower", 2, "b")
    high = start(world, "high", 2, "a", priority=5)
    assert bound(world, low, borrower, high) == [0, 2, 2]


def test_own_victims_make_a_gang_entitled_to_the_rest() -> None:
    world = a_world(4)
    put(world, "a", 4)
    put(world, "b", 0)
    low = start(world, "low", 2, "a")
    borrower = start(world, "borrower", 2, "b")
    high = start(world, "high", 1, "a", gpus=4, priority=5)
    assert bound(world, low, borrower, high) == [0, 0, 1]


# -- trees


def test_siblings_reclaim_within_the_quota_of_their_parent() -> None:
    world = a_world(8)
    put(world, "company", 8)
    put(world, "a", 4, parent="company")
    put(world, "b", 4, parent="company")
    guest = start(world, "guest", 8, "b", minimum=4)
    owner = start(world, "owner", 4, "a")
    assert bound(world, guest, owner) == [4, 4]


def test_quota_of_a_parent_protects_its_children_from_other_parents() -> None:
    world = a_world(8)
    for name in ("x", "y"):
        put(world, name, 4)
    put(world, "x1", 0, parent="x")
    put(world, "y1", 4, parent="y")
    put(world, "y2", 0, parent="y")
    below = start(world, "below", 4, "x1")
    loose = start(world, "loose", 4, "y2")
    owner = start(world, "owner", 4, "y1")
    assert bound(world, below, loose, owner) == [4, 0, 4]


def test_parent_at_its_quota_keeps_its_children_from_reclaiming() -> None:
    world = a_world(4)
    put(world, "x", 0)
    put(world, "y", 2)
    put(world, "y1", 2, parent="y")
    put(world, "y2", 0, parent="y", reclaimable=False)
    guest = start(world, "guest", 2, "x")
    loose = start(world, "loose", 2, "y2")
    owner = start(world, "owner", 2, "y1")
    assert bound(world, guest, loose, owner) == [2, 2, 0]


def test_victims_together_never_push_a_parent_below_its_quota() -> None:
    world = a_world(4)
    put(world, "x", 3)
    put(world, "x1", 0, parent="x")
    put(world, "a", 4)
    first, second = start(world, "first", 2, "x1"), start(world, "second", 2, "x1")
    owner = start(world, "owner", 4, "a")
    assert bound(world, first, second, owner) == [2, 2, 0]


def test_parent_that_is_not_reclaimable_keeps_what_its_children_borrowed() -> None:
    world = a_world(2)
    put(world, "x", 0, reclaimable=False)
    put(world, "x1", 0, parent="x")
    put(world, "a", 2)
    guest = start(world, "guest", 2, "x1")
    owner = start(world, "owner", 2, "a")
    assert bound(world, guest, owner) == [2, 0]


def test_limit_of_a_parent_holds_for_all_its_children_together() -> None:
    world = a_world(8)
    world.put_queue(Queue("company", limit={GPU: 4}))
    put(world, "a", parent="company")
    put(world, "b", parent="company")
    first = start(world, "first", 3, "a")
    second = start(world, "second", 2, "b")
    assert bound(world, first, second) == [3, 0]
    assert world.reasons(second) == {Reason.QUOTA}


def test_gang_of_a_queue_with_children_waits_for_another_queue() -> None:
    world = a_world(2)
    put(world, "company")
    put(world, "a", parent="company")
    inner = start(world, "inner", 1, "company")
    assert world.reasons(inner) == {Reason.INNER_QUEUE}


def test_use_moves_with_a_queue_to_its_new_parent() -> None:
    world = a_world(8)
    put(world, "x")
    put(world, "y")
    put(world, "a", parent="x")
    start(world, "gang", 3, "a")
    put(world, "a", parent="y")
    world.settle()
    used = [world.engine.state.quota.used(name).get(GPU, 0) for name in ("x", "y", "a")]
    assert used == [0, 3000, 3000]


def test_queues_in_a_cycle_are_scheduled_like_any_others() -> None:
    world = a_world(2)
    put(world, "a", parent="b")
    put(world, "b", parent="a")
    put(world, "c", parent="a")
    assert bound(world, start(world, "gang", 2, "c")) == [2]


# -- shares


def test_queues_that_borrow_share_by_weight() -> None:
    world = a_world(9)
    put(world, "heavy", weight=2)
    put(world, "light")
    first = [start(world, f"l{i}", 1, "light") for i in range(9)]
    second = [start(world, f"h{i}", 1, "heavy") for i in range(9)]
    assert (sum(bound(world, *first)), sum(bound(world, *second))) == (3, 6)


def test_stream_of_small_gangs_does_not_evict_a_large_borrower() -> None:
    world = a_world(8)
    put(world, "small")
    put(world, "large")
    large = start(world, "large", 8, "large")
    small = [start(world, f"s{i}", 1, "small") for i in range(4)]
    assert (bound(world, large), sum(bound(world, *small))) == ([8], 0)


def test_evictions_between_borrowers_end() -> None:
    world = a_world(4)
    put(world, "a")
    put(world, "b")
    keys = [world.start(f"{queue}{i}", 1, queue=queue) for queue in "ab" for i in range(4)]
    world.settle()
    before = len(world.gone)
    world.pass_time(600)
    assert sum(bound(world, *keys)) == 4
    assert len(world.gone) == before


# -- policies


def test_full_queue_preempts_within_itself() -> None:
    world = a_world(8)
    world.put_queue(Queue("q", limit={GPU: 4}))
    low = [start(world, f"low{i}", 2, "q") for i in range(2)]
    high = start(world, "high", 2, "q", priority=1)
    assert (sum(bound(world, *low)), bound(world, high)) == (2, [2])


def test_gang_of_a_full_queue_gets_the_limit_that_its_victims_leave_one_after_the_other() -> None:
    world = a_world(8)
    world.put_queue(Queue("q", limit={GPU: 4}))
    low = [start(world, f"low{i}", 2, "q") for i in range(2)]
    world.run_kubelets = lambda: None  # type: ignore[method-assign]  # pods that are deleted take their time
    high = start(world, "high", 4, "q", priority=1)
    assert world.phase(high) is Phase.NOMINATED
    rival = start(world, "rival", 2, "q")
    for number in range(2):
        world.end(f"low0-{number}", PodPhase.FAILED)
    world.settle()
    assert (bound(world, rival), world.phase(high)) == ([0], Phase.NOMINATED)
    assert world.engine.state.quota.used("q")[GPU] == 4000
    for number in range(2):
        world.end(f"low1-{number}", PodPhase.FAILED)
    world.settle()
    assert (bound(world, high, rival), low[0] != low[1]) == ([4, 0], True)


def test_nomination_of_a_full_queue_outlasts_the_quarantine_of_its_victims() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    low = start(world, "low", 2, "q")
    world.run_kubelets = lambda: None  # type: ignore[method-assign]  # pods that are deleted take their time
    high = start(world, "high", 2, "q", priority=1)
    assert world.phase(high) is Phase.NOMINATED
    for pod in world.members(low):
        world.remove_pod(pod.uid)  # without an observed end
    world.settle()
    assert world.engine.state.quarantined
    assert world.phase(high) is Phase.NOMINATED


def test_priority_does_not_preempt_across_queues_unless_the_queue_says_so() -> None:
    for across, expected in ((AcrossQueues.FAIR, [2, 0]), (AcrossQueues.ANY, [0, 2]), (AcrossQueues.NEVER, [2, 0])):
        world = a_world(2)
        put(world, "a", 2)
        put(world, "b", across=across)
        low = start(world, "low", 2, "a")
        high = start(world, "high", 2, "b", priority=5)
        assert bound(world, low, high) == expected


def test_gang_does_not_reclaim_from_one_that_may_preempt_it() -> None:
    world = a_world(2)
    put(world, "a", 2)
    put(world, "b", across=AcrossQueues.ANY)
    high = start(world, "high", 2, "b", priority=5)
    low = start(world, "low", 2, "a")
    assert bound(world, high, low) == [2, 0]


def test_priority_of_the_whole_cluster_can_be_restored() -> None:
    world = a_world(2, config=Config(cluster_priority=True))
    put(world, "a", 2)
    put(world, "b")
    low = start(world, "low", 2, "a")
    high = start(world, "high", 2, "b", priority=5)
    assert bound(world, low, high) == [0, 2]


def test_queue_can_forbid_preemption_within_itself() -> None:
    world = a_world(2)
    put(world, "q", preempts_within=False)
    low = start(world, "low", 2, "q")
    high = start(world, "high", 2, "q", priority=5)
    assert bound(world, low, high) == [2, 0]


def test_gang_is_reclaimed_from_only_after_the_least_run_time_of_the_common_queue() -> None:
    world = a_world(2)
    put(world, "company", min_runtime=100.0)
    put(world, "a", 2, parent="company")
    put(world, "b", 0, parent="company")
    guest = start(world, "guest", 2, "b")
    owner = start(world, "owner", 2, "a")
    world.pass_time(90)
    assert bound(world, guest, owner) == [2, 0]
    world.pass_time(20)
    assert bound(world, guest, owner) == [0, 2]


def test_least_run_time_between_top_level_queues_is_a_setting() -> None:
    world = a_world(2, config=Config(min_runtime=100.0))
    put(world, "a", 2)
    put(world, "b", 0)
    guest = start(world, "guest", 2, "b")
    owner = start(world, "owner", 2, "a")
    assert bound(world, guest, owner) == [2, 0]
    world.pass_time(110)
    assert bound(world, guest, owner) == [0, 2]


def test_gang_that_is_not_preemptible_starts_within_the_quota_only_and_stays() -> None:
    world = a_world(4)
    put(world, "q", 2)
    firm = start(world, "firm", 2, "q", preemptible=False)
    more = start(world, "more", 1, "q", preemptible=False)
    high = start(world, "high", 4, "q", priority=9)
    assert bound(world, firm, more, high) == [2, 0, 0]
    assert world.reasons(more) == {Reason.NOT_PREEMPTIBLE}


def test_gang_that_is_not_preemptible_preempts_within_the_quota_of_its_queue() -> None:
    world = a_world(4)
    put(world, "q", 2)
    low = start(world, "low", 2, "q")
    firm = start(world, "firm", 2, "q", preemptible=False, priority=1)
    assert bound(world, low, firm) == [0, 2]


def test_gang_that_is_not_preemptible_evicts_nothing_if_it_would_have_to_borrow() -> None:
    world = a_world(4)
    put(world, "q", 2)
    low = start(world, "low", 2, "q")
    firm = start(world, "firm", 3, "q", preemptible=False, priority=1)
    assert bound(world, low, firm) == [2, 0]


def test_quota_that_is_not_lent_stays_free() -> None:
    world = a_world(4)
    put(world, "keeper", 3, lending=False)
    put(world, "guest")
    guest = start(world, "guest", 2, "guest")
    assert (bound(world, guest), world.reasons(guest)) == ([0], {Reason.KEPT_QUOTA})
    small = start(world, "small", 1, "guest")
    keeper = start(world, "keeper", 3, "keeper")
    assert bound(world, small, keeper) == [1, 3]


# -- the order of queues


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Queue("a", quota={GPU: 2}), Queue("b")),
        (Queue("a", priority=1), Queue("b")),
        (Queue("a", weight=5), Queue("b")),
    ],
    ids=["entitled", "queue priority", "share"],
)
def test_order_of_queues(a: Queue, b: Queue) -> None:
    world = a_world(4)
    for queue in (a, b):
        world.put_queue(queue)
        start(world, f"running-{queue.name}", 1, queue.name, priority=9)
    world.put_queue(Queue(""))
    blocker = start(world, "blocker", 2)
    second = world.start("second", 2, queue="b", priority=5, created=1.0)
    first = world.start("first", 1 if a.quota else 2, queue="a", created=2.0)
    state = world.engine.state
    world.deliver_all()
    world.finish(blocker)
    world.settle()
    assert (len(world.bound(first)) > 0, world.bound(second), state.leading) == (True, [], True)


# -- gangs without pods


def test_group_without_pods_preempts_and_reclaims_one_at_a_time() -> None:
    world = a_world(4)
    low = [start(world, f"low{i}", 2) for i in range(2)]
    groups = [a_key(f"group{i}") for i in range(2)]
    for key in groups:
        world.submit(Gang(key, minimum=2, priority=5, expected=(Expected(shape_of(1), 2, "worker"),)))
    world.deliver_all()
    world.run_cycle()
    assert sorted(world.phase(key).value for key in groups) == ["nominated", "waiting"]
    world.settle()
    assert (sum(bound(world, *low)), world.phase(groups[0]), world.phase(groups[1])) == (
        2,
        Phase.RESERVED,
        Phase.WAITING,
    )
    world.create(*members(groups[0], 2, role="worker", controlled=False))
    world.settle()
    assert (sum(bound(world, *low)), world.phase(groups[1])) == (0, Phase.RESERVED)
