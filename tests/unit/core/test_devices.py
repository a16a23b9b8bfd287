"""The choice of GPU indices: neighbours together, large blocks kept whole, shares on the fullest GPU that fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.cluster.device_table import bits_of, choose_share, choose_whole
from gpu_scheduler.core.placement.capacity import capacity_of
from tests.unit.core.clusters import build_cluster, gpu_node, mapped, node, pod, share, whole
from tests.unit.core.oracle import Fleet, Placed


def bits(*indices: int) -> int:
    return sum(1 << index for index in indices)


@dataclass(frozen=True)
class Case:
    id: str
    free: tuple[int, ...]
    count: int
    chosen: tuple[int, ...] | None


ALL = tuple(range(8))
CASES = [
    Case("no GPUs requested", (0, 1), 0, ()),
    Case("too few", (0, 1), 3, None),
    Case("no GPU is free", (), 1, None),
    Case("a pair out of all", ALL, 2, (0, 1)),
    Case("a quad out of all", ALL, 4, (0, 1, 2, 3)),
    Case("all of them", ALL, 8, ALL),
    Case("the aligned pair, not the first two", (1, 2, 4, 5), 2, (4, 5)),
    Case("the aligned quad, not the first four", (1, 2, 3, 4, 5, 6, 7), 4, (4, 5, 6, 7)),
    Case("neighbours in one half where there is no pair", (1, 2, 5), 2, (1, 2)),
    Case("any two where there are no neighbours", (1, 6), 2, (1, 6)),
    Case("three within one quad", (0, 4, 5, 6), 3, (4, 5, 6)),
    Case("five: a whole quad and one more", ALL, 5, (0, 1, 2, 3, 4)),
    Case("six: a whole quad and a pair", (1, 2, 3, 4, 5, 6, 7), 6, (2, 3, 4, 5, 6, 7)),
    Case("one: a single GPU rather than half a pair", (0, 1, 6), 1, (6,)),
    Case("one: half a pair rather than a quarter of a quad", (0, 1, 2, 3, 6, 7), 1, (6,)),
    Case("one: a single GPU next to a used one in a fuller quad", (0, 1, 2, 4), 1, (4,)),
    Case("two: a single pair rather than half a quad", (0, 1, 2, 3, 6, 7), 2, (6, 7)),
    Case("two: out of the fuller half", (0, 1, 2, 3, 4, 5, 6), 2, (4, 5)),
    Case("three: out of three rather than out of a quad", (0, 1, 2, 3, 4, 5, 6), 3, (4, 5, 6)),
    Case("three out of a quad split only one pair", (0, 1, 2, 3), 3, (0, 1, 2)),
    Case("four of sixteen: the single quad", (*range(8), *range(12, 16)), 4, (12, 13, 14, 15)),
    Case("a node with six GPUs", (0, 1, 2, 3, 4, 5), 2, (4, 5)),
    Case("a GPU beyond the sixty-fourth", (100, 101, 3), 2, (100, 101)),
]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_whole_gpus_are_chosen_by_their_free_neighbours(case: Case) -> None:
    assert choose_whole(bits(*case.free), case.count) == case.chosen


@given(st.integers(0, 2**16 - 1), st.integers(0, 16))
def test_alignment_never_refuses_a_request_and_never_takes_a_used_gpu(free: int, count: int) -> None:
    chosen = choose_whole(free, count)
    if count > free.bit_count():
        assert chosen is None
    else:
        assert chosen is not None
        assert len(set(chosen)) == count
        assert bits(*chosen) & ~free == 0
        assert chosen == tuple(sorted(chosen))


def aligned_blocks(free: int, width: int) -> list[int]:
    """The aligned blocks of a width that are entirely free."""
    block = (1 << width) - 1
    return [block << start for start in range(0, 16, width) if free >> start & block == block]


@given(st.integers(1, 2**16 - 1), st.sampled_from([1, 2, 4, 8]))
def test_an_aligned_block_is_taken_when_there_is_one(free: int, width: int) -> None:
    blocks = aligned_blocks(free, width)
    if blocks:
        chosen = choose_whole(free, width)
        assert chosen is not None
        assert bits(*chosen) in blocks


@given(st.integers(1, 2**16 - 1), st.sampled_from([1, 2, 4]))
def test_a_larger_block_is_split_only_when_no_smaller_one_suffices(free: int, width: int) -> None:
    larger = {block for wide in (2, 4, 8, 16) if wide > width for block in aligned_blocks(free, wide)}
    spare = [block for block in aligned_blocks(free, width) if not any(block & big for big in larger)]
    chosen = choose_whole(free, width)
    if spare:
        assert chosen is not None
        assert bits(*chosen) in spare


@given(st.integers(1, 2**16 - 1), st.integers(1, 8))
def test_the_smallest_aligned_block_that_suffices_is_used_alone(free: int, count: int) -> None:
    chosen = choose_whole(free, count)
    if chosen is None:
        return
    for width in (1, 2, 4, 8, 16):
        homes = [((1 << width) - 1) << start for start in range(0, 16, width)]
        if any((free & home).bit_count() >= count for home in homes):
            assert any(bits(*chosen) & ~home == 0 for home in homes)
            break


@given(st.integers(0, 2**130))
def test_bits_are_listed_in_order(number: int) -> None:
    assert list(bits_of(number)) == [i for i in range(131) if number >> i & 1]


@dataclass(frozen=True)
class ShareCase:
    id: str
    left: tuple[int, ...]
    share: int
    chosen: int | None


SHARES = [
    ShareCase("the fullest GPU that fits", (1000, 400, 600), 300, 1),
    ShareCase("a GPU with just enough left", (1000, 300, 299), 300, 1),
    ShareCase("an idle GPU when no other fits", (1000, 200, 0), 300, 0),
    ShareCase("no single GPU fits, whatever the sum", (200, 200), 300, None),
    ShareCase("an unusable GPU", (0, 1000), 1, 1),
    ShareCase("the first of equals", (500, 500), 500, 0),
    ShareCase("no GPUs", (), 1, None),
]


@pytest.mark.parametrize("case", SHARES, ids=[case.id for case in SHARES])
def test_a_share_goes_to_the_gpu_with_the_least_left_that_still_holds_it(case: ShareCase) -> None:
    assert choose_share(list(case.left), case.share) == case.chosen


def test_shares_fill_a_gpu_before_another_is_used() -> None:
    cluster = build_cluster(Fleet([gpu_node("n1", 4)], [Placed(pod("p", share(600)), "n1", (2,))]))
    picks = cluster.assume([pod(f"s{i}", share(200)) for i in range(4)], cluster.table.slots["n1"])
    assert picks == [(2,), (2,), (0,), (0,)]


def test_pods_placed_together_get_aligned_pairs_each() -> None:
    cluster = build_cluster(Fleet([gpu_node("n1", 8)], [Placed(pod("p", whole(1)), "n1", (3,))]))
    picks = cluster.assume([pod(f"w{i}", whole(2)) for i in range(3)], cluster.table.slots["n1"])
    assert sorted(picks) == [(0, 1), (4, 5), (6, 7)]


def test_unhealthy_and_used_gpus_are_never_chosen() -> None:
    fleet = Fleet([gpu_node("n1", 8, unhealthy=frozenset({0, 5}))], [Placed(pod("p", share(100)), "n1", (3,))])
    cluster = build_cluster(fleet)
    picks = cluster.assume([pod("w", whole(5))], cluster.table.slots["n1"])
    assert picks == [(1, 2, 4, 6, 7)]


def test_a_node_with_only_unhealthy_gpus_left_has_no_capacity() -> None:
    cluster = build_cluster(Fleet([gpu_node("n1", 8, unhealthy=frozenset({0, 5}))]))
    cluster.assume([pod(f"w{i}", whole(2)) for i in range(3)], cluster.table.slots["n1"])
    assert capacity_of(cluster, whole(1)).total == 0


def test_gpus_that_a_node_lost_are_not_chosen() -> None:
    cluster = build_cluster(Fleet([gpu_node("n1", 8)], [Placed(pod("p", whole(1)), "n1", (4,))]))
    cluster.put_node(gpu_node("n1", 5))
    assert cluster.assume([pod("w", whole(1))], cluster.table.slots["n1"]) == [(0,)]


def test_a_map_that_shares_some_of_its_gpus_takes_the_others() -> None:
    users = [Placed(pod("p", mapped("n1", 0)), "n1", (0,)), Placed(pod("q", mapped("n1", 0, 1)), "n1", (0, 1))]
    cluster = build_cluster(Fleet([gpu_node("n1", 4)], users))
    assert cluster.assume([pod("w", whole(2))], cluster.table.slots["n1"]) == [(2, 3)]
    assert capacity_of(cluster, whole(1)).total == 0


def test_a_gpu_shared_by_a_map_is_free_when_its_last_user_has_left() -> None:
    users = [Placed(pod(f"p{i}", mapped("n1", 0)), "n1", (0,)) for i in range(3)]
    cluster = build_cluster(Fleet([gpu_node("n1", 2)], users))
    free = []
    for user in users:
        cluster.forget(user.pod.uid)
        free.append((capacity_of(cluster, whole(1)).total, cluster.devices.free(cluster.table.slots["n1"])))
    assert free == [(1, 0b10), (1, 0b10), (2, 0b11)]


def test_indices_beyond_those_that_a_node_advertises_are_counted() -> None:
    cluster = build_cluster(Fleet([gpu_node("n1", 2)]))
    for index in (2, len(cluster.devices.used), len(cluster.devices.used) + 5):
        cluster.add(pod(f"p{index}", mapped("n1", index)), "n1", (index,))
        assert cluster.devices.used[index, cluster.table.slots["n1"]] == 1000


def test_a_map_on_a_node_without_gpus_takes_no_other_resource() -> None:
    cluster = build_cluster(Fleet([node("n1")]))
    slot = cluster.table.slots["n1"]
    before = cluster.free[:, slot].tolist()
    cluster.assume([pod("p", replace(mapped("n1", 0), request=()))], slot)
    cluster.add(pod("q", replace(mapped("n1", 1), request=())), "n1", (1,))
    taken = {name: before[row] - int(cluster.free[row, slot]) for name, row in cluster.row_of.items()}
    assert {name: amount for name, amount in taken.items() if amount} in ({}, {"pods": 2})


def test_a_share_takes_no_idle_gpu_when_all_allocatable_gpus_are_in_use() -> None:
    there = [Placed(pod("half", share(500)), "n1", (0,)), Placed(pod("beyond", mapped("n1", 5)), "n1", (5,))]
    cluster = build_cluster(Fleet([gpu_node("n1", 2)], there))
    assert cluster.assume([pod("tiny", share(1))], cluster.table.slots["n1"]) == [(0,)]
