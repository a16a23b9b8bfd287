"""How the members of one group are shared out among nodes: few nodes, to a pod's taste, and by its rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpu_scheduler.core.model import HOSTNAME, Node, Pod, PodTerm, Preference, Spread, Taint, TaintEffect, Toleration
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.distribute import Shares, distribute, fill_nodes, likings
from tests.unit.core.clusters import GPU, RACK, ZONE, apps, build_cluster, gpu_node, node, plain, pod, whole
from tests.unit.core.oracle import Fleet, Placed

SOFT = Taint("k", "v", TaintEffect.PREFER_NO_SCHEDULE)
OTHER = Taint("other", "", TaintEffect.PREFER_NO_SCHEDULE)


@dataclass(frozen=True)
class Filling:
    """What nodes can take and how they are liked, how many pods there are, and which node takes how many."""

    id: str
    counts: list[int]
    wanted: int
    expected: Shares | None
    liking: list[int] | None = None


FILLINGS = [
    Filling("one node that all fit exactly", [5, 3, 8], 3, [(1, 3)]),
    Filling("the smallest node that takes all", [8, 2, 5], 3, [(2, 3)]),
    Filling("large nodes first, where one is not enough", [2, 4, 3], 7, [(1, 4), (2, 3)]),
    Filling("the rest where it fits best", [4, 2, 3, 1], 5, [(0, 4), (3, 1)]),
    Filling("not where there is no room", [0, 4, 0, 1], 5, [(1, 4), (3, 1)]),
    Filling("all of everything", [1, 2], 3, [(1, 2), (0, 1)]),
    Filling("one too many", [1, 2], 4, None),
    Filling("liked nodes first, however small", [2, 4], 3, [(0, 2), (1, 1)], [1, 0]),
    Filling("the larger of two that are liked the same", [1, 3], 2, [(1, 2)], [0, 0]),
    Filling(
        "the rest on the next one that is liked, not where it fits best", [2, 3, 1], 3, [(0, 2), (1, 1)], [2, 1, 0]
    ),
]


@pytest.mark.parametrize("case", FILLINGS, ids=[case.id for case in FILLINGS])
def test_nodes_are_filled(case: Filling) -> None:
    liking = None if case.liking is None else np.array(case.liking)
    assert fill_nodes(np.array(case.counts), case.wanted, liking) == case.expected


@dataclass(frozen=True)
class Taste:
    """A pod, some nodes, and how much it likes each; nothing where it is all the same to it."""

    id: str
    pod: Pod
    nodes: list[Node]
    expected: list[int] | None


def tolerant(*tolerations: Toleration) -> Pod:
    return pod("p", replace(plain(), tolerations=tolerations))


TASTES = [
    Taste("equal nodes", pod("p"), [node("n0"), node("n1")], None),
    Taste("a node that is rather not used", pod("p"), [node("n0", taints=(SOFT,)), node("n1")], [-1, 0]),
    Taste("a node that is rather not used twice", pod("p"), [node("n0", taints=(SOFT, OTHER)), node("n1")], [-2, 0]),
    Taste(
        "one of two soft taints is tolerated",
        tolerant(Toleration("k", exists=True), Toleration("unheard-of", exists=True)),
        [node("n0", taints=(SOFT, OTHER)), node("n1")],
        [-1, 0],
    ),
    Taste(
        "a soft taint that is tolerated",
        tolerant(Toleration("k", exists=True), Toleration("unheard-of", exists=True)),
        [node("n0", taints=(SOFT,)), node("n1")],
        None,
    ),
    Taste("free GPUs are left to those who want them", pod("p"), [gpu_node("n0", 2), node("n1")], [-2, 0]),
    Taste("who wants GPUs does not mind them", pod("p", whole(1)), [gpu_node("n0", 2), gpu_node("n1", 1)], None),
]


@pytest.mark.parametrize("case", TASTES, ids=[case.id for case in TASTES])
def test_nodes_are_liked(case: Taste) -> None:
    cluster = build_cluster(Fleet(case.nodes))
    liking = likings(cluster, case.pod)
    slots = [cluster.table.slots[each.name] for each in case.nodes]
    assert (None if liking is None else liking[slots].tolist()) == case.expected


def zoned(*zones: str, gpus: int = 4) -> list[Node]:
    return [gpu_node(f"n{i}", gpus, labels={ZONE: zone} if zone else {}) for i, zone in enumerate(zones)]


def company(**rules: object) -> Pod:
    return pod("p", replace(whole(1), **rules))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sharing:
    """A pod like all of its group, nodes, and how many of the group each node takes; nothing where rules cannot say."""

    id: str
    pod: Pod
    nodes: list[Node]
    wanted: int
    expected: dict[str, int] | None
    placed: Sequence[Placed] = ()


EVEN = Spread(apps("a"), ZONE, 1)
SHARINGS = [
    Sharing("evenly", company(spread=(EVEN,)), zoned("a", "b"), 4, {"n0": 2, "n1": 2}),
    Sharing("the odd one anywhere", company(spread=(EVEN,)), zoned("a", "b"), 5, {"n0": 3, "n1": 2}),
    Sharing(
        "no further than the skew allows", company(spread=(EVEN,)), [*zoned("a"), *zoned("", "b", gpus=1)[1:]], 4, None
    ),
    Sharing(
        "as far as the skew allows",
        company(spread=(EVEN,)),
        [*zoned("a"), *zoned("", "b", gpus=1)[1:]],
        3,
        {"n0": 2, "n1": 1},
    ),
    Sharing(
        "further, where the skew is larger",
        company(spread=(replace(EVEN, max_skew=2),)),
        [*zoned("a"), *zoned("", "b", gpus=1)[1:]],
        4,
        {"n0": 3, "n1": 1},
    ),
    Sharing(
        "as if one zone were empty, where there are fewer than there should be",
        company(spread=(replace(EVEN, min_domains=3),)),
        zoned("a", "b"),
        3,
        None,
    ),
    Sharing("not outside all zones", company(spread=(EVEN,)), zoned("a", "", "b"), 4, {"n0": 2, "n2": 2}),
    Sharing(
        "one in each zone",
        company(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        zoned("a", "a", "b", gpus=2),
        2,
        {"n0": 1, "n2": 1},
    ),
    Sharing(
        "one in each zone that takes just one",
        company(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        zoned("a", "b", gpus=1),
        2,
        {"n0": 1, "n1": 1},
    ),
    Sharing(
        "as many as there is room for outside all zones",
        company(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        zoned("a", "", gpus=2),
        3,
        {"n0": 1, "n1": 2},
    ),
    Sharing(
        "none where there is no room",
        company(anti_affinity=(PodTerm(apps("a"), ZONE),)),
        [*zoned("a"), node("n1", labels={ZONE: "b"})],
        2,
        None,
    ),
    Sharing(
        "two in one zone are too many", company(anti_affinity=(PodTerm(apps("a"), ZONE),)), zoned("a", "a"), 2, None
    ),
    Sharing(
        "one on each node",
        company(anti_affinity=(PodTerm(apps("a"), HOSTNAME),)),
        zoned("", "", ""),
        3,
        {"n0": 1, "n1": 1, "n2": 1},
    ),
    Sharing(
        "together in the smallest zone that takes all",
        company(affinity=(PodTerm(apps("a"), ZONE),)),
        [*zoned("a", "a", "b"), *zoned("", "", "", "b", "c", gpus=2)[3:]],
        6,
        {"n2": 4, "n3": 2},
    ),
    Sharing(
        "together where no zone takes all", company(affinity=(PodTerm(apps("a"), ZONE),)), zoned("a", "b"), 5, None
    ),
    Sharing("together where there are no zones", company(affinity=(PodTerm(apps("a"), ZONE),)), zoned("", ""), 2, None),
    Sharing(
        "together only where there are both a zone and a rack",
        company(affinity=(PodTerm(apps("a"), ZONE), PodTerm(apps("a"), RACK))),
        [*zoned("a"), gpu_node("n1", 4, labels={ZONE: "a", RACK: "1"})],
        3,
        {"n1": 3},
    ),
    Sharing(
        "away from those who are there",
        company(anti_affinity=(PodTerm(apps("b"), ZONE),)),
        zoned("a", "a", "b"),
        2,
        {"n2": 2},
        [Placed(pod("other", labels={"app": "b"}), "n0")],
    ),
    Sharing(
        "the emptiest zone first", company(spread=(EVEN,)), zoned("a", "b"), 1, {"n1": 1}, [Placed(pod("there"), "n0")]
    ),
    Sharing(
        "a zone that has one more has its turn once the others have as many",
        company(spread=(EVEN,)),
        zoned("a", "b"),
        3,
        {"n0": 1, "n1": 2},
        [Placed(pod("there"), "n0")],
    ),
]


@pytest.mark.parametrize("case", SHARINGS, ids=[case.id for case in SHARINGS])
def test_a_group_is_shared_out_by_its_rules(case: Sharing) -> None:
    cluster = build_cluster(Fleet(case.nodes, list(case.placed)))
    counts = capacity_of(cluster, case.pod.shape).counts
    shares = distribute(cluster, case.pod, counts, case.wanted)
    found: dict[str, int] = {}
    for slot, share in shares or ():
        found[cluster.table.name(slot)] = found.get(cluster.table.name(slot), 0) + share
    assert (None if shares is None else found) == case.expected


def test_nobody_is_moved_by_the_question() -> None:
    cluster = build_cluster(Fleet(zoned("a", "b")))
    counts = capacity_of(cluster, whole(1)).counts
    before = counts.tolist()
    distribute(cluster, company(spread=(EVEN,)), counts, 3)
    assert counts.tolist() == before
    assert cluster.free[cluster.row_of[GPU]].sum() == 8


def test_company_is_liked_in_every_domain_that_has_some() -> None:
    near = Preference(5, pods=PodTerm(apps("a"), ZONE))
    nodes = zoned("a", "a", "b", "")
    there = [Placed(pod("here"), "n0", ()), Placed(pod("too"), "n1", ()), Placed(pod("there"), "n2", ())]
    cluster = build_cluster(Fleet(nodes, there))
    liking = likings(cluster, company(preferences=(near,)))
    assert liking is not None
    assert [liking[cluster.table.slots[each.name]] for each in nodes] == [10, 10, 5, 0]
