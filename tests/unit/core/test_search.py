"""The backtracking search: it finds existing placements within the allowed nodes and domains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Codes
from gpu_scheduler.core.model import Pod, PodTerm
from gpu_scheduler.core.placement.search import SearchGroup, search
from tests.unit.core.clusters import GPU, ZONE, apps, build_cluster, gpu_node, node, plain, pod, share, whole
from tests.unit.core.oracle import Fleet


def cluster_of(*gpus: int) -> Cluster:
    return build_cluster(Fleet([gpu_node(f"n{i}", count) if count else node(f"n{i}") for i, count in enumerate(gpus)]))


def in_domains(cluster: Cluster, *codes: int) -> Codes:
    """The domain of each node; -1 for none."""
    found: Codes = np.full(cluster.table.size, -1, np.int32)
    for number, code in enumerate(codes):
        found[cluster.table.slots[f"n{number}"]] = code
    return found


def workers(count: int, gpus: int = 1, role: str = "worker") -> list[Pod]:
    return [pod(f"{role}-{i}", whole(gpus), role=role) for i in range(count)]


def found(cluster: Cluster, groups: list[SearchGroup], tries: int = 100) -> list[str] | None:
    slots = search(cluster, groups, None, tries)
    return None if slots is None else [slot.node for slot in slots]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((0, -1, 1), ["n0", "n0"]),
        ((-1, 0, 1), ["n2", "n2"]),
        ((0, 1, 0), ["n0", "n0"]),
        ((-1, 0, -1), None),
        ((-1, -1, -1), None),
    ],
    ids=["the first domain", "a domain with capacity", "a domain of two nodes", "too small a domain", "no domain"],
)
def test_a_role_stays_in_one_of_its_domains(codes: tuple[int, ...], expected: list[str] | None) -> None:
    cluster = cluster_of(2, 1, 3)
    assert found(cluster, [SearchGroup(workers(2), in_domains(cluster, *codes))]) == expected


def test_nodes_without_capacity_are_not_tried() -> None:
    assert found(cluster_of(0, 1), [SearchGroup(workers(1))], tries=1) == ["n1"]


def test_only_allowed_nodes_are_used() -> None:
    cluster = cluster_of(1, 4)
    allowed = in_domains(cluster, 0) == 0
    assert search(cluster, [SearchGroup(workers(2))], allowed, 100) is None
    slots = search(cluster, [SearchGroup(workers(1))], allowed, 100)
    assert slots is not None
    assert [slot.node for slot in slots] == ["n0"]


def test_a_member_in_the_way_is_moved() -> None:
    cluster = cluster_of(1, 2)
    licensed = [pod("small", plain(), role="small")]
    groups = [SearchGroup(workers(1)), SearchGroup(workers(1, 2, "large")), SearchGroup(licensed)]
    assert found(cluster, groups) is not None
    assert len(cluster.usage) == 3


def test_nodes_with_equal_counts_per_shape_but_not_for_both_shapes_are_both_tried() -> None:
    cluster = build_cluster(Fleet([node("n0", allocatable={"cpu": 300}), node("n1", allocatable={"cpu": 350})]))
    groups = [SearchGroup([pod(f"p{cpu}", plain(cpu))]) for cpu in (200, 150, 300)]
    assert found(cluster, groups) == ["n1", "n1", "n0"]


def test_equal_nodes_are_both_tried_if_members_have_pod_rules() -> None:
    rooms = [("n0", "a", {}), ("n1", "b", {}), ("n2", "b", {"cpu": 100, "licence": 1})]
    cluster = build_cluster(Fleet([node(name, labels={ZONE: z}, allocatable=has) for name, z, has in rooms]))
    beside = replace(plain(licence=1), affinity=(PodTerm(apps("leader"), ZONE),))
    groups = [SearchGroup([pod("leader", labels={"app": "leader"})]), SearchGroup([pod("follower", beside)])]
    assert found(cluster, groups) == ["n1", "n2"]


@pytest.mark.parametrize(("tries", "expected"), [(1, None), (2, ["n1", "n0"])])
def test_a_search_ends_after_its_number_of_steps_back(tries: int, expected: list[str] | None) -> None:
    cluster = build_cluster(Fleet([node("n0", allocatable={"cpu": 100, "licence": 1}), node("n1")]))
    groups = [SearchGroup([pod("any")]), SearchGroup([pod("licensed", plain(licence=1))])]
    assert found(cluster, groups, tries) == expected


def test_a_share_in_the_way_of_another_is_moved() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 1, allocatable={GPU: 1, "licence": 1}), gpu_node("n1", 1)]))
    licensed = replace(share(600), request=(("cpu", 100), ("licence", 1)))
    assert found(cluster, [SearchGroup([pod("any", share(600))]), SearchGroup([pod("licensed", licensed)])]) == [
        "n1",
        "n0",
    ]


def test_a_role_larger_than_the_search_depth_stays_in_one_of_its_domains() -> None:
    cluster = cluster_of(2, 70, 66)
    groups = [SearchGroup(workers(66), in_domains(cluster, 0, 0, 1))]
    assert found(cluster, groups) == ["n0"] * 2 + ["n1"] * 64


def test_a_search_without_a_result_changes_nothing() -> None:
    cluster = cluster_of(1, 2)
    assert found(cluster, [SearchGroup(workers(4))]) is None
    assert not cluster.usage
    assert np.array_equal(cluster.free, cluster.allocatable)
