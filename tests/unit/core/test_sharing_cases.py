"""Cases in which the scheduler once evicted too much, too little, in vain or without an end."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.core.model import Queue
from tests.unit.core.sharing_reference import Case, Member, Running, Waiting
from tests.unit.core.test_sharing_reference import complaints
from tests.unit.core.world import GPU, a_world


def gang(name: str, queue: str, *places: str, minimum: int = 0, priority: int = 0, gpus: int = 1) -> Running:
    pods = tuple(Member(f"{name}-{i}", node, gpus, index=i) for i, node in enumerate(places))
    return Running(name, queue, pods, minimum or len(pods), priority=priority)


def queue(name: str, quota: int = 0, **changes: Any) -> Queue:
    return Queue(name, quota={GPU: quota}, **changes)


def agree(nodes: dict[str, int], queues: list[Queue], running: list[Running], waiting: Waiting) -> None:
    case = Case(nodes, {one.name: one for one in queues}, tuple(running), waiting)
    assert [(c.kind, c.text) for c in complaints(case)] == []


def test_equal_shares_of_queues_with_different_weights_are_equal() -> None:
    agree(
        {"n0": 5},
        [queue("a", 1, weight=3), queue("b")],
        [gang("g0", "a", *["n0"] * 4), gang("g1", "a", "n0")],
        Waiting("w", "b", (1,)),
    )


def test_two_victims_that_are_only_legal_together() -> None:
    agree(
        {"n0": 2},
        [queue("p", 2), queue("a", 2, parent="p"), queue("b", parent="p"), queue("c")],
        [gang("g0", "b", "n0"), gang("g1", "c", "n0")],
        Waiting("w", "a", (2,)),
    )


def test_gang_that_is_not_preemptible_evicts_nothing_where_no_quota_is_named() -> None:
    agree({"n0": 1}, [], [gang("g0", "", "n0")], Waiting("w", "", (1,), priority=1, preemptible=False))


def test_gang_that_is_not_preemptible_starts_after_its_parents_borrower_is_evicted() -> None:
    agree(
        {"n0": 1},
        [queue("p", 1), queue("a", 1, parent="p"), queue("b", parent="p")],
        [gang("g0", "b", "n0")],
        Waiting("w", "a", (1,), preemptible=False),
    )


def test_no_nodes_are_drained_for_a_gang_that_is_not_preemptible_and_beyond_the_quota() -> None:
    world = a_world(1)
    world.start("w", 1, preemptible=False)
    world.pass_time(400)
    assert world.engine.state.target is None


def test_no_nodes_are_drained_for_a_gang_that_would_use_kept_quota() -> None:
    world = a_world(2)
    world.put_queue(queue("k", 2, lending=False))
    world.put_queue(queue("b"))
    world.start("w", 1, queue="b")
    world.pass_time(400)
    assert world.engine.state.target is None


def test_gang_preempts_within_its_queue_beside_kept_quota() -> None:
    agree(
        {"n0": 4},
        [queue("k", 2, lending=False), queue("b")],
        [gang("g0", "b", "n0", "n0")],
        Waiting("w", "b", (1, 1), priority=1),
    )


def test_entitled_gang_reclaims_from_its_sibling_beside_kept_quota() -> None:
    agree(
        {"n0": 4},
        [queue("k", 2, lending=False), Queue("p"), queue("a", 2, parent="p"), queue("b", parent="p")],
        [gang("g0", "b", "n0", "n0")],
        Waiting("w", "a", (1, 1)),
    )


def test_full_queue_evicts_nothing_if_the_gang_would_use_kept_quota_then() -> None:
    agree(
        {"n0": 4, "n1": 2},
        [queue("k", 3, lending=False), queue("b", limit={GPU: 5})],
        [gang("g0", "b", "n0", gpus=2), gang("g1", "b", "n1", gpus=2)],
        Waiting("w", "b", (2, 2), priority=1),
    )


def test_full_queue_evicts_nothing_for_kept_quota() -> None:
    agree(
        {"n0": 2},
        [queue("k", 2, lending=False), queue("b", limit={GPU: 2})],
        [gang("g0", "b", "n0", gpus=2)],
        Waiting("w", "b", (1,), priority=1),
    )


def test_only_the_surplus_of_the_second_victim_goes() -> None:
    agree(
        {"n0": 3, "n1": 4},
        [queue("a", 2), queue("b", 4)],
        [gang("g0", "a", "n0", "n1", priority=1), gang("g2", "a", "n0", "n1", minimum=1, gpus=2)],
        Waiting("w", "b", (4,)),
    )


def test_elastic_gangs_that_straddle_do_not_evict_each_other_for_ever() -> None:
    agree(
        {"n0": 2, "n1": 1, "n2": 1, "n3": 1},
        [queue("p", 2), queue("a", parent="p"), queue("c", 4)],
        [gang("g0", "c", "n0"), gang("g2", "c", "n2", "n0", "n3", "n1", minimum=3)],
        Waiting("w", "a", (1, 1), beyond=2),
    )


def test_the_same_without_more_quota_than_gpus() -> None:
    agree(
        {"n0": 2, "n1": 1, "n2": 1, "n3": 1, "n4": 1},
        [queue("p", 2), queue("a", parent="p"), queue("c", 4), queue("x", reclaimable=False)],
        [gang("g0", "c", "n0"), gang("g2", "c", "n2", "n0", "n3", "n1", minimum=3), gang("g3", "x", "n4")],
        Waiting("w", "a", (1, 1), beyond=2),
    )


def test_the_same_with_an_entitled_gang() -> None:
    agree(
        {"n0": 2, "n1": 1, "n2": 1, "n3": 1, "n4": 1},
        [queue("a", 2), queue("c", 4), queue("x", reclaimable=False)],
        [gang("g0", "c", "n0"), gang("g2", "c", "n2", "n0", "n3", "n1", minimum=3), gang("g3", "x", "n4")],
        Waiting("w", "a", (1, 1), beyond=2),
    )
