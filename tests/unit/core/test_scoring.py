"""Node scores: what each row of the table prefers, how rows are weighed, and the tie-breaks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.model import Node, Pod, PodTerm, Preference, Taint, TaintEffect, Toleration
from gpu_scheduler.core.placement.scoring import NODE_SCORES, least_needed, least_used, node_scores
from gpu_scheduler.core.selectors import NodeTerm, Requirement, SelectorOperator
from tests.unit.core.clusters import ZONE, apps, build_cluster, gpu_node, node, plain, pod, whole
from tests.unit.core.oracle import Fleet, Placed

SOFT = Taint("k", "v", TaintEffect.PREFER_NO_SCHEDULE)
OTHER = Taint("other", "", TaintEffect.PREFER_NO_SCHEDULE)
IN_ZONE_A = Preference(5, node=NodeTerm((Requirement(ZONE, SelectorOperator.IN, ("a",)),)))
NEAR_APP_A = Preference(5, pods=PodTerm(apps("a"), ZONE))


@dataclass(frozen=True)
class Case:
    """A pod, nodes with pods on them, and the expected score of every node; None when all nodes are equal."""

    id: str
    pod: Pod
    nodes: list[Node]
    expected: list[int] | None
    placed: list[Placed] = field(default_factory=list)


def tolerant(*tolerations: Toleration) -> Pod:
    return pod("p", replace(plain(), tolerations=tolerations))


def picky(*preferences: Preference, gpus: int = 1) -> Pod:
    return pod("p", replace(whole(gpus), preferences=preferences))


def zoned(*zones: str) -> list[Node]:
    return [gpu_node(f"n{i}", 4, labels={ZONE: zone} if zone else {}) for i, zone in enumerate(zones)]


CASES = [
    Case("equal nodes", pod("p"), [node("n0"), node("n1")], None),
    Case("a preferred node affinity term adds its weight", picky(IN_ZONE_A), zoned("a", "b", ""), [5, 0, 0]),
    Case(
        "a preferred pod affinity term counts every matching pod of the domain",
        picky(NEAR_APP_A),
        zoned("a", "a", "b", ""),
        [10, 10, 5, 0],
        [Placed(pod("here"), "n0", ()), Placed(pod("too"), "n1", ()), Placed(pod("there"), "n2", ())],
    ),
    Case(
        "the weights of all preferences add up",
        picky(IN_ZONE_A, NEAR_APP_A, replace(IN_ZONE_A, weight=2)),
        zoned("a", "b"),
        [7, 5],
        [Placed(pod("there"), "n1", ())],
    ),
    Case("preferences that no node matches", picky(IN_ZONE_A), zoned("b", ""), None),
    Case("a PreferNoSchedule taint", pod("p"), [node("n0", taints=(SOFT,)), node("n1")], [-1, 0]),
    Case("two PreferNoSchedule taints", pod("p"), [node("n0", taints=(SOFT, OTHER)), node("n1")], [-2, 0]),
    Case(
        "nodes with different PreferNoSchedule taints",
        pod("p"),
        [node("n0", taints=(SOFT,)), node("n1", taints=(SOFT, OTHER)), node("n2")],
        [-1, -2, 0],
    ),
    Case(
        "one of two PreferNoSchedule taints is tolerated",
        tolerant(Toleration("k", exists=True), Toleration("unknown", exists=True)),
        [node("n0", taints=(SOFT, OTHER)), node("n1")],
        [-1, 0],
    ),
    Case(
        "a tolerated PreferNoSchedule taint",
        tolerant(Toleration("k", exists=True), Toleration("unknown", exists=True)),
        [node("n0", taints=(SOFT,)), node("n1")],
        None,
    ),
    Case("a pod without GPUs avoids idle GPUs", pod("p"), [gpu_node("n0", 2), node("n1")], [-2, 0]),
    Case(
        "a pod without GPUs does not avoid GPUs in use",
        pod("p"),
        [gpu_node("n0", 2), gpu_node("n1", 2)],
        [-1, -2],
        [Placed(pod("there", whole(1)), "n0", (0,))],
    ),
    Case("a pod with GPUs does not avoid GPUs", pod("p", whole(1)), [gpu_node("n0", 2), gpu_node("n1", 1)], None),
]


def scores_of(cluster: Cluster, nodes: list[Node], scores: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    return [int(scores[cluster.table.slots[each.name]]) for each in nodes]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_nodes_are_scored(case: Case) -> None:
    cluster = build_cluster(Fleet(case.nodes, case.placed))
    scores = node_scores(cluster, case.pod)
    assert (None if scores is None else scores_of(cluster, case.nodes, scores)) == case.expected


def test_idle_gpus_only_break_ties_between_nodes_that_the_pod_prefers_equally() -> None:
    nodes = [gpu_node("n0", 8, labels={ZONE: "a"}), gpu_node("n1", 2, labels={ZONE: "a"}), node("n2")]
    cluster = build_cluster(Fleet(nodes))
    scores = node_scores(cluster, picky(replace(IN_ZONE_A, weight=1), gpus=0))
    assert scores is not None
    many, few, elsewhere = scores_of(cluster, nodes, scores)
    assert few > many > elsewhere


def test_a_tie_break_never_outweighs_the_scores_of_the_pod() -> None:
    nodes = zoned("a", "a", "b")
    cluster = build_cluster(Fleet(nodes))
    tie_break = np.zeros(cluster.table.size, np.int64)
    tie_break[[cluster.table.slots[each.name] for each in nodes]] = [-1000, -1, 0]
    scores = node_scores(cluster, picky(replace(IN_ZONE_A, weight=1)), tie_break)
    assert scores is not None
    last, first, outside = scores_of(cluster, nodes, scores)
    assert first > last > outside


def test_a_tie_break_decides_alone_where_the_pod_scores_all_nodes_alike() -> None:
    cluster = build_cluster(Fleet(zoned("a", "b")))
    tie_break = np.arange(cluster.table.size)
    assert node_scores(cluster, pod("p", whole(1)), tie_break) is tie_break


def test_nodes_that_later_groups_can_use_least_are_preferred() -> None:
    nodes = [gpu_node("n0", 4), gpu_node("n1", 1), node("n2")]
    cluster = build_cluster(Fleet(nodes))
    most, some, none = scores_of(cluster, nodes, least_needed(cluster, [whole(1)]))
    assert most < some < none == 0


def test_the_emptiest_nodes_are_preferred_by_their_scarcest_resource() -> None:
    nodes = [gpu_node("n0", 4), gpu_node("n1", 4), gpu_node("n2", 4)]
    there = [Placed(pod("half", whole(2)), "n0", (0, 1)), Placed(pod("all", whole(4)), "n1", (0, 1, 2, 3))]
    cluster = build_cluster(Fleet(nodes, there))
    assert scores_of(cluster, nodes, least_used(cluster)) == [-500, -1000, 0]


def test_every_row_of_the_table_is_documented() -> None:
    assert all(row.score.__doc__ for row in NODE_SCORES)
