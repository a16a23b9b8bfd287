"""Quota: limits of queues, borrowing, reclaim, and the order between queues."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import GangSeen, PodSeen
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import DeviceMap, Expected, Gang, PodPhase, Queue, Shape
from gpu_scheduler.core.queueing.quota import QuotaTracker
from gpu_scheduler.core.reasons import Reason
from tests.unit.core.world import GPU, NAMESPACE, a_key, a_pod, a_world, members, shape_of, share_of


def test_gang_within_quota_reclaims_what_another_queue_borrowed() -> None:
    world = a_world(4)
    world.put_queue(Queue("lender", quota={GPU: 2}))
    world.put_queue(Queue("borrower", quota={GPU: 2}))
    borrowers = [world.start(f"x{i}", 1, queue="borrower") for i in range(4)]
    world.settle()
    lender = world.start("a", 2, queue="lender")
    world.settle()
    assert len(world.bound(lender)) == 2
    assert sum(len(world.bound(key)) for key in borrowers) == 2


def test_borrowed_capacity_is_reclaimed_once_its_binds_are_observed() -> None:
    world = a_world(2)
    world.put_queue(Queue("a", quota={GPU: 2}))
    world.put_queue(Queue("b", quota={GPU: 0}))
    borrower = world.start("borrower", 2, queue="b")
    world.deliver_all()
    world.run_cycle()
    world.carry_out(world.flights.pop(0))
    owner = world.start("owner", 2, queue="a")
    world.deliver_all()
    world.run_cycle()
    assert world.phase(owner) is Phase.WAITING
    world.settle()
    assert (len(world.bound(borrower)), len(world.bound(owner))) == (0, 2)


def test_borrowed_capacity_is_reclaimed_whatever_the_priorities() -> None:
    world = a_world(4)
    world.put_queue(Queue("rich", quota={GPU: 2}))
    world.put_queue(Queue("poor", quota={GPU: 1}))
    borrowers = [world.start(f"poor-{i}", 1, queue="poor", priority=5) for i in range(4)]
    world.settle()
    rich = world.start("rich", 2, queue="rich", priority=1)
    world.settle()
    assert sum(len(world.bound(key)) for key in borrowers) == len(world.bound(rich)) == 2


def test_gang_that_straddles_the_quota_of_its_queue_is_reclaimed_as_a_whole() -> None:
    world = a_world(4)
    world.put_queue(Queue("lender", quota={GPU: 2}))
    world.put_queue(Queue("borrower", quota={GPU: 2}))
    borrower = world.start("x", 1, shape_of(3), queue="borrower")
    world.settle()
    lender = world.start("a", 2, queue="lender")
    world.settle()
    assert (world.bound(borrower), len(world.bound(lender))) == ([], 2)


def test_gang_that_straddles_the_quota_is_spared_if_smaller_victims_suffice() -> None:
    world = a_world(6)
    world.put_queue(Queue("lender", quota={GPU: 2}))
    world.put_queue(Queue("borrower", quota={GPU: 3}))
    large = world.start("x", 1, shape_of(4), queue="borrower")
    small = [world.start(f"y{i}", 1, queue="borrower", priority=5, controlled=False) for i in range(2)]
    world.settle()
    lender = world.start("a", 2, queue="lender")
    world.settle()
    assert (len(world.bound(large)), len(world.bound(lender))) == (1, 2)
    assert [world.bound(key) for key in small] == [[], []]


def test_victims_of_one_reclaim_together_never_push_their_queue_below_its_quota() -> None:
    world = a_world(4)
    world.put_queue(Queue("lender", quota={GPU: 3}))
    world.put_queue(Queue("borrower", quota={GPU: 2}))
    borrowers = [world.start(f"x{i}", 1, queue="borrower") for i in range(4)]
    world.settle()
    lender = world.start("a", 3, queue="lender")
    world.settle()
    assert sum(len(world.bound(key)) for key in borrowers) == 4
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


@pytest.mark.parametrize("vanished", [False, True], ids=["deleted", "quarantined"])
def test_what_is_leaving_a_queue_already_counts_as_given_back(vanished: bool) -> None:
    world = a_world(8)
    for name, quota in (("a", 4), ("b", 2), ("c", 2)):
        world.put_queue(Queue(name, quota={GPU: quota}))
    theirs = [world.start(f"c{i}", 2, queue="c", controlled=False) for i in range(2)]
    world.settle()
    world.now += 10
    borrowers = [world.start(f"b{i}", 2, queue="b", controlled=False) for i in range(2)]
    world.settle()
    world.run_kubelets = lambda: None  # type: ignore[method-assign]  # pods that are deleted take their time
    world.start("a0", 2, queue="a", controlled=False)
    world.settle()
    leaving = [pod for pod in world.pods.values() if pod.deleting]
    assert [pod.name for pod in leaving] == ["b0-0", "b0-1"]
    if vanished:
        for pod in leaving:
            world.remove_pod(pod.uid)
    world.start("a1", 2, queue="a", controlled=False)
    world.settle()
    left = [[pod for pod in world.bound(key) if not pod.deleting] for key in (*theirs, *borrowers)]
    assert [len(pods) for pods in left] == [0, 2, 0, 2]


def test_reclaim_counts_the_held_slots_that_go_with_a_gang() -> None:
    world = a_world(8)
    for name, quota in (("a", 2), ("b", 6)):
        world.put_queue(Queue(name, quota={GPU: quota}))
    small = world.start("small", 4, queue="b", controlled=False)
    world.settle()
    world.now += 10
    broken = world.start("broken", 4, queue="b", controlled=False, hold=3600.0)
    world.settle()
    for number in range(1, 4):
        world.end(f"broken-{number}", PodPhase.FAILED)
    world.settle()
    world.start("owner", 1, queue="a")
    world.pass_time(60)
    assert (len(world.bound(small)), len(world.bound(broken))) == (4, 0)


def test_slots_on_which_nothing_runs_do_not_make_running_gangs_reclaimable() -> None:
    world = a_world(8)
    for name, quota in (("a", 4), ("b", 4)):
        world.put_queue(Queue(name, quota={GPU: quota}))
    running = [world.start(f"b{i}", 1, shape_of(2), queue="b", controlled=False) for i in range(2)]
    world.settle()
    expected = (Expected(shape_of(1), 2, "worker"),)
    world.submit(Gang(a_key("reserved", "team"), minimum=2, expected=expected, queue="b"))
    world.settle()
    assert world.engine.state.quota.used("b")[GPU] == 6000
    world.start("a0", 1, shape_of(4), queue="a")
    world.settle()
    assert [len(world.bound(key)) for key in running] == [1, 1]
    assert not [pod for pod in world.pods.values() if pod.deleting]


def test_queue_that_is_not_reclaimable_keeps_what_it_borrowed() -> None:
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


def test_waiting_minimum_takes_back_a_member_that_a_lowered_minimum_makes_surplus() -> None:
    world = a_world(3)
    world.put_queue(Queue("q"))
    elastic = world.start("a", 3, queue="q", controlled=False)
    world.settle()
    lender = world.start("b", 1, queue="q")
    world.settle()
    assert world.bound(lender) == []
    world.change_gang(elastic, minimum=2)
    world.settle()
    assert (len(world.bound(elastic)), len(world.bound(lender))) == (2, 1)


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
def test_queue_refuses_a_gang_with_a_reason_and_takes_it_when_the_reason_is_gone(case: QueueCase) -> None:
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


def test_queue_borrows_beyond_its_quota_while_capacity_is_free() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", quota={GPU: 1}))
    key = world.start("a", 4, queue="q")
    world.settle()
    assert len(world.bound(key)) == 4


def test_members_beyond_the_minimum_wait_at_the_limit_of_the_queue() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    key = world.start("a", 4, minimum=2, queue="q")
    world.settle()
    assert len(world.bound(key)) == 2


def test_member_beyond_the_minimum_starts_when_the_limit_allows_one_more() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    key = world.start("a", 4, minimum=1, queue="q")
    world.settle()
    assert len(world.bound(key)) == 2
    world.end("a-0")
    world.settle()
    assert {pod.uid for pod in world.bound(key)} == {"a-1", "a-2"}


def test_pod_observed_before_its_gang_is_charged_to_the_gangs_queue() -> None:
    engine = Engine()
    key = a_key("a")
    engine.handle(PodSeen(a_pod("a-0", gang=key, node="n0", devices=(0,))), 0.0)
    engine.handle(GangSeen(Gang(key, queue="q")), 0.0)
    assert engine.state.quota.used("q").get(GPU) == 1000
    assert not engine.state.quota.used("").get(GPU)


def test_usage_of_ended_gangs_is_refunded_to_their_queue() -> None:
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


# -- the book


def a_book(*queues: Queue) -> QuotaTracker:
    book = QuotaTracker((GPU,))
    for queue in queues:
        book.put(queue)
    return book


@pytest.mark.parametrize(
    ("shape", "charge"),
    [
        (shape_of(2), {"cpu": 1000, GPU: 2000}),
        (share_of(300), {"cpu": 1000, GPU: 300}),
        (shape_of(0), {"cpu": 1000}),
        (Shape(gpu_resource=GPU, device_map=DeviceMap("n0", (0, 3), "x")), {GPU: 2000}),
    ],
    ids=["whole GPUs", "a share", "no GPU", "a map without a request"],
)
def test_pod_is_charged_for_its_request(shape: Shape, charge: dict[str, int]) -> None:
    book = a_book()
    book.charge([a_pod("a", shape)], "q")
    book.charge([a_pod("a", shape)], "q")
    assert dict(book.used("q")) == charge
    book.refund("a")
    book.refund("a")
    assert not any(book.used("q").values())


def test_pods_of_equal_shapes_are_charged_and_refunded_one_by_one() -> None:
    book = a_book()
    book.charge([a_pod("a", shape_of(1)), a_pod("b", shape_of(1))], "q")
    book.refund("a")
    assert book.used("q")[GPU] == 1000
    book.refund("b")
    assert book.used("q")[GPU] == 0


def test_share_of_a_queue_is_its_dominant_resource_over_its_weight() -> None:
    book = a_book(Queue("q", weight=2))
    book.charge([a_pod("a", shape_of(2))], "q")
    assert book.share("q", {"cpu": 10_000, GPU: 4}) == pytest.approx(0.25)
    assert book.share("other", {"cpu": 10_000, GPU: 4}) == 0.0
    book.charge([a_pod("b", shape_of(2))], "other")
    assert book.share("other", {"cpu": 10_000, GPU: 4}) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("queue", "wanted", "reason", "short_by"),
    [
        (Queue("q", limit={GPU: 3}), 1, None, 0),
        (Queue("q", limit={GPU: 3}), 2, Reason.QUOTA, 1),
        (Queue("q", limit={GPU: 3}), 4, Reason.OVER_QUOTA, 1),
        (Queue("q", quota={GPU: 1}), 9, None, 0),
        (Queue("q", quota={GPU: 2}, borrowing=False), 1, Reason.QUOTA, 1),
        (Queue("q", limit={"cpu": 1}), 9, None, 0),
    ],
    ids=["within the limit", "used up", "larger than the limit", "borrows", "does not borrow", "another resource"],
)
def test_refusal_says_by_how_much_the_request_exceeds_the_limit(
    queue: Queue, wanted: int, reason: Reason | None, short_by: int
) -> None:
    book = a_book(queue)
    book.charge([a_pod("a", shape_of(2))], "q")
    refusal = book.refuse("q", NAMESPACE, {GPU: wanted * 1000})
    assert (refusal and refusal.reason) == reason
    assert (refusal.short_by if refusal is not None else 0) == short_by


def test_gang_that_waits_for_quota_starts_when_another_waiting_gang_leaves_the_queue() -> None:
    world = a_world(4)
    world.put_queue(Queue("q", limit={GPU: 2}))
    first = a_key("a")
    world.submit(Gang(first, minimum=2, queue="q", expected=(Expected(shape_of(1), 2),)))
    world.settle()
    second = world.start("b", 2, queue="q")
    world.settle()
    assert world.bound(second) == [], "the slots of the first are reserved"
    world.change_gang(first, queue="")
    world.settle()
    assert len(world.bound(second)) == 2


def test_queues_lists_the_queues_that_exist() -> None:
    book = a_book(Queue("q"), Queue("r", weight=2))
    book.put(Queue("q", weight=3))
    book.remove("r")
    book.remove("unknown")
    book.charge([a_pod("a", shape_of(1))], "used but not there")
    assert book.queues == {"q": Queue("q", weight=3)}


def test_deleted_queue_keeps_its_running_gangs_and_takes_no_more_until_it_is_created_again() -> None:
    world = a_world(4)
    queue = Queue("q", quota={GPU: 2})
    world.put_queue(queue)
    running = world.start("a", 2, queue="q")
    world.settle()
    world.remove_queue("q")
    waiting = world.start("b", 1, queue="q")
    world.pass_time(600)
    assert (len(world.bound(running)), world.bound(waiting), world.reasons(waiting)) == (2, [], {Reason.NO_QUEUE})
    world.put_queue(queue)
    world.settle()
    assert len(world.bound(waiting)) == 1


@pytest.mark.parametrize(
    ("queue", "wanted", "within"),
    [
        (Queue("q", quota={GPU: 3}), {GPU: 1000}, True),
        (Queue("q", quota={GPU: 3}), {GPU: 1001}, False),
        (Queue("q", quota={GPU: 3}), {}, False),
        (Queue("q", quota={GPU: 3, "memory": 0}), {GPU: 1000}, True),
        (Queue("q", quota={GPU: 3, "memory": 5}), {GPU: 1000, "memory": 6}, False),
        (Queue("q", limit={GPU: 9}), {GPU: 1000}, False),
        (Queue("another", quota={GPU: 9}), {GPU: 1000}, False),
    ],
    ids=[
        *("all of it", "a little more", "nothing", "none of another resource"),
        *("too much of another resource", "nothing granted", "no such queue"),
    ],
)
def test_within_quota_counts_what_a_queue_uses_and_wants(queue: Queue, wanted: dict[str, int], within: bool) -> None:
    book = a_book(queue)
    book.charge([a_pod("a", shape_of(2))], "q")
    assert book.within_quota(["q"], wanted) is within


def test_resized_pod_is_charged_for_its_new_request() -> None:
    world = a_world(8)
    world.put_queue(Queue("q", limit={"cpu": 4000}))
    key = world.start("a", 2, shape_of(1), queue="q")
    world.settle()
    larger = replace(shape_of(1), request=(("cpu", 3000),))
    world.change_pod(world.bound(key)[0].uid, shape=larger)
    world.settle()
    used = dict(world.engine.state.quota.used("q"))
    assert used["cpu"] == dict(shape_of(1).request).get("cpu", 0) + 3000
    world.take_over()
    world.settle()
    assert dict(world.engine.state.quota.used("q")) == used
