"""How many members of a group go to each node: on few nodes, by score, and by the pod rules of the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpu_scheduler.core.model import HOSTNAME, Node, Pod, PodTerm, Spread
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.distribute import Shares, distribute, fill_nodes
from tests.unit.core.clusters import GPU, RACK, ZONE, apps, build_cluster, gpu_node, node, pod, whole
from tests.unit.core.oracle import Fleet, Placed


@dataclass(frozen=True)
class Filling:
    """The capacity and score of nodes, the number of pods, and the expected number of pods per node."""

    id: str
    counts: list[int]
    wanted: int
    expected: Shares | None
    scores: list[int] | None = None


FILLINGS = [
    Filling("one node that all pods fit exactly", [5, 3, 8], 3, [(1, 3)]),
    Filling("the smallest node that takes all pods", [8, 2, 5], 3, [(2, 3)]),
    Filling("large nodes first, when one is not enough", [2, 4, 3], 7, [(1, 4), (2, 3)]),
    Filling("the rest by best fit", [4, 2, 3, 1], 5, [(0, 4), (3, 1)]),
    Filling("no pod on a full node", [0, 4, 0, 1], 5, [(1, 4), (3, 1)]),
    Filling("every node is filled", [1, 2], 3, [(1, 2), (0, 1)]),
    Filling("one pod too many", [1, 2], 4, None),
    Filling("nodes with a higher score first, however small", [2, 4], 3, [(0, 2), (1, 1)], [1, 0]),
    Filling("the larger of two nodes with the same score", [1, 3], 2, [(1, 2)], [0, 0]),
    Filling("the rest on the node with the next score, not by best fit", [2, 3, 1], 3, [(0, 2), (1, 1)], [2, 1, 0]),
]


@pytest.mark.parametrize("case", FILLINGS, ids=[case.id for case in FILLINGS])
def test_nodes_are_filled(case: Filling) -> None:
    scores = None if case.scores is None else np.array(case.scores)
    assert fill_nodes(np.array(case.counts), case.wanted, scores) == case.expected


def zoned(*zones: str, gpus: int = 4) -> list[Node]:
    return [gpu_node(f"n{i}", gpus, labels={ZONE: zone} if zone else {}) for i, zone in enumerate(zones)]


def worker(**rules: object) -> Pod:
    return pod("p", replace(whole(1), **rules))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sharing:
    """A pod of the group, nodes, and the expected number of pods per node; None when the rules find no shares."""

    id: str
    pod: Pod
    nodes: list[Node]
    wanted: int
    expected: dict[str, int] | None
    placed: Sequence[Placed] = ()


EVEN = Spread(apps("a"), ZONE, 1)
SHARINGS = [
    Sharing("even spread", worker(spread=(EVEN,)), zoned("a", "b"), 4, {"n0": 2, "n1": 2}),
    Sharing("even spread of an odd number", worker(spread=(EVEN,)), zoned("a", "b"), 5, {"n0": 3, "n1": 2}),
    Sharing(
        "one zone is full, and the skew forbids more in the other",
        worker(spread=(EVEN,)),
        [*zoned("a"), *zoned("", "b", gpus=1)[1:]],
        4,
        None,
    ),
    Sharing(
        "one zone is full, and the other takes as many as the skew allows",
        worker(spread=(EVEN,)),
        [*zoned("a"), *zoned("", "b", gpus=1)[1:]],
        3,
        {"n0": 2, "n1": 1},
    ),
    Sharing(
        "a larger skew allows more in the other zone",
        worker(spread=(replace(EVEN, max_skew=2),)),
        [*zoned("a"), *zoned("", "b", gpus=1)[1:]],
        4,
        {"n0": 3, "n1": 1},
    ),
    Sharing(
        "fewer zones than minDomains count as one more empty zone",
        worker(spread=(replace(EVEN, min_domains=3),)),
        zoned("a", "b"),
        3,
        None,
    ),
    Sharing(
        "spread excludes nodes without the zone label",
        worker(spread=(EVEN,)),
        zoned("a", "", "b"),
        4,
        {"n0": 2, "n2": 2},
    ),
    Sharing(
        "anti-affinity: one pod per zone",
        worker(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        zoned("a", "a", "b", gpus=2),
        2,
        {"n0": 1, "n2": 1},
    ),
    Sharing(
        "anti-affinity: one pod per zone with capacity for one",
        worker(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        zoned("a", "b", gpus=1),
        2,
        {"n0": 1, "n1": 1},
    ),
    Sharing(
        "anti-affinity does not limit nodes without the zone label",
        worker(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        zoned("a", "", gpus=2),
        3,
        {"n0": 1, "n1": 2},
    ),
    Sharing(
        "anti-affinity: a zone without capacity takes none",
        worker(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        [*zoned("a"), node("n1", labels={ZONE: "b"})],
        2,
        None,
    ),
    Sharing(
        "anti-affinity: two pods do not fit one zone",
        worker(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        zoned("a", "a"),
        2,
        None,
    ),
    Sharing(
        "anti-affinity: one pod per node",
        worker(anti_affinity=(PodTerm(apps("a"), HOSTNAME),)),
        zoned("", "", ""),
        3,
        {"n0": 1, "n1": 1, "n2": 1},
    ),
    Sharing(
        "affinity: the smallest zone that takes all pods",
        worker(affinity=(PodTerm(apps("a"), ZONE),)),
        [*zoned("a", "a", "b"), *zoned("", "", "", "b", "c", gpus=2)[3:]],
        6,
        {"n2": 4, "n3": 2},
    ),
    Sharing("affinity: no zone takes all pods", worker(affinity=(PodTerm(apps("a"), ZONE),)), zoned("a", "b"), 5, None),
    Sharing(
        "affinity: no node has the zone label", worker(affinity=(PodTerm(apps("a"), ZONE),)), zoned("", ""), 2, None
    ),
    Sharing(
        "affinity by two labels: only nodes that have both",
        worker(affinity=(PodTerm(apps("a"), ZONE), PodTerm(apps("a"), RACK))),
        [*zoned("a"), gpu_node("n1", 4, labels={ZONE: "a", RACK: "1"})],
        3,
        {"n1": 3},
    ),
    Sharing(
        "anti-affinity to pods that are placed already",
        worker(anti_affinity=(PodTerm(apps("b"), ZONE),)),
        zoned("a", "a", "b"),
        2,
        {"n2": 2},
        [Placed(pod("other", labels={"app": "b"}), "n0")],
    ),
    Sharing(
        "spread starts with the emptiest zone",
        worker(spread=(EVEN,)),
        zoned("a", "b"),
        1,
        {"n1": 1},
        [Placed(pod("there"), "n0")],
    ),
    Sharing(
        "spread counts pods that are placed already",
        worker(spread=(EVEN,)),
        zoned("a", "b"),
        3,
        {"n0": 1, "n1": 2},
        [Placed(pod("there"), "n0")],
    ),
]


@pytest.mark.parametrize("case", SHARINGS, ids=[case.id for case in SHARINGS])
def test_a_group_is_distributed_by_its_pod_rules(case: Sharing) -> None:
    cluster = build_cluster(Fleet(case.nodes, list(case.placed)))
    counts = capacity_of(cluster, case.pod.shape).counts
    shares = distribute(cluster, case.pod, counts, case.wanted)
    found: dict[str, int] = {}
    for slot, share in shares or ():
        found[cluster.table.name(slot)] = found.get(cluster.table.name(slot), 0) + share
    assert (None if shares is None else found) == case.expected


def test_distribute_changes_neither_the_counts_nor_the_cluster() -> None:
    cluster = build_cluster(Fleet(zoned("a", "b")))
    counts = capacity_of(cluster, whole(1)).counts
    before = counts.tolist()
    distribute(cluster, worker(spread=(EVEN,)), counts, 3)
    assert counts.tolist() == before
    assert cluster.free[cluster.row_of[GPU]].sum() == 8
