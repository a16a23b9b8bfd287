"""Topology domains, and gangs that stay within one: required and preferred, of the whole gang and of a role."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.model import HOSTNAME, Node, PodTerm, Shape, TopologyRule
from gpu_scheduler.core.placement.domains import Bid, MemberGroup, Placement
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.selectors import labels_equal
from tests.unit.core.clusters import NVLINK, RACK, ZONE, apps, build_cluster, gang_of, gpu_node, node, plain, pod, whole
from tests.unit.core.oracle import Fleet, Placed

RACK_REQUIRED = (TopologyRule("rack"),)
RACK_PREFERRED = (TopologyRule("rack", required=False),)
ZONE_REQUIRED = (TopologyRule("zone"),)
NETWORK = "example.com/network"


def host(name: str, path: str, gpus: int = 1, **labels: str) -> Node:
    """A GPU node at zone/rack/block; each part may be empty."""
    keys = dict(zip((ZONE, RACK, NVLINK), path.split("/"), strict=False))
    return gpu_node(name, gpus, labels={**{key: value for key, value in keys.items() if value}, **labels})


def nodes_of(placement: Placement | None) -> list[str]:
    """The sorted nodes of the members; empty for a refusal."""
    return sorted(slot.node for _, slot in placement or [])


# -- domains


def domains(cluster: Cluster, level: str) -> set[frozenset[str]]:
    found: dict[int, set[str]] = {}
    for member, code in zip(cluster.table.nodes, cluster.topology.codes(level), strict=True):
        if code >= 0:
            found.setdefault(int(code), set()).add(member.name if member is not None else "none")
    return {frozenset(names) for names in found.values()}


TREE = [
    host("n1", "a/1/p"),
    host("n2", "a/1/q"),
    host("n3", "b/1/p"),
    host("n4", "b/2"),
    host("n5", "b"),
    host("n6", ""),
]


@dataclass(frozen=True)
class DomainCase:
    id: str
    level: str
    expected: tuple[str, ...]


DOMAINS = [
    DomainCase("every node is a domain", "node", ("n1", "n2", "n3", "n4", "n5", "n6")),
    DomainCase("zones", "zone", ("n1 n2", "n3 n4 n5")),
    DomainCase("rack 1 of zone a is not rack 1 of zone b", "rack", ("n1 n2", "n3", "n4")),
    DomainCase("blocks", "nvlink", ("n1", "n2", "n3")),
    DomainCase("any label is a level of its own", RACK, ("n1 n2 n3", "n4")),
    DomainCase("a label that no node has", NETWORK, ()),
]


@pytest.mark.parametrize("case", DOMAINS, ids=[case.id for case in DOMAINS])
def test_a_domain_is_the_set_of_nodes_that_share_a_label_path(case: DomainCase) -> None:
    cluster = build_cluster(Fleet(TREE))
    assert domains(cluster, case.level) == {frozenset(names.split()) for names in case.expected}


def test_domains_follow_the_nodes() -> None:
    cluster = build_cluster(Fleet(TREE))
    assert len(domains(cluster, "rack")) == 3
    cluster.put_node(host("n2", "a/7"))
    assert frozenset({"n2"}) in domains(cluster, "rack")
    cluster.remove_node("n4")
    assert domains(cluster, "rack") == {frozenset({"n1"}), frozenset({"n2"}), frozenset({"n3"})}
    for i in range(40):
        cluster.put_node(host(f"more-{i}", "b/1"))
    assert frozenset({"n3", *(f"more-{i}" for i in range(40))}) in domains(cluster, "rack")


def test_domains_are_numbered_once_while_nodes_stay() -> None:
    cluster = build_cluster(Fleet(TREE))
    known = cluster.topology.required_codes("rack", ZONE_REQUIRED)
    assert cluster.topology.required_codes("rack", ZONE_REQUIRED) is known
    assert cluster.topology.codes("rack") is cluster.topology.codes("rack")
    cluster.remove_node("n1")
    assert cluster.topology.required_codes("rack", ZONE_REQUIRED) is not known


def test_levels_that_gangs_make_up_take_no_memory_for_good() -> None:
    cluster = build_cluster(Fleet(TREE))
    known = domains(cluster, "rack")
    tracemalloc.start()
    for number in range(20_000):
        assert (cluster.topology.codes(f"example.com/level-{number}") == -1).all()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
    assert domains(cluster, "rack") == known


def test_a_rack_without_a_zone_is_a_domain_of_its_own() -> None:
    cluster = build_cluster(Fleet([host("n1", "a/1"), host("n2", "/1"), host("n3", "/1")]))
    assert domains(cluster, "rack") == {frozenset({"n1"}), frozenset({"n2", "n3"})}


# -- placement of gangs


@dataclass(frozen=True)
class Case:
    """A gang and its expected nodes; without `expected` it must be refused."""

    id: str
    bid: Bid
    nodes: Sequence[Node]
    expected: str = ""
    placed: Sequence[Placed] = field(default=())


def anchored(bid: Bid, *anchors: str) -> Bid:
    return replace(bid, anchors=anchors)


def roles(*groups: MemberGroup, needed: int | None = None, topology: tuple[TopologyRule, ...] = ()) -> Bid:
    return Bid(list(groups), sum(len(g.pods) for g in groups) if needed is None else needed, topology=topology)


def role(name: str, shape: Shape, size: int, topology: tuple[TopologyRule, ...] = (), **changes: object) -> MemberGroup:
    pods = [pod(f"{name}-{i}", shape, role=name, **changes) for i in range(size)]
    return MemberGroup(name, pods, topology)


def alone(key: str = HOSTNAME) -> Shape:
    return replace(whole(1), anti_affinity=(PodTerm(apps("a"), key),))


TWO_RACKS = [host("n1", "a/1"), host("n2", "a/1"), host("n3", "a/2"), host("n4", "a/2"), host("n5", "a/2")]
SAME_NAME = [host("n1", "a/1"), host("n2", "b/1"), host("n3", "b/2")]
CASES = [
    Case("a required rack that is large enough", gang_of(whole(1), 3, topology=RACK_REQUIRED), TWO_RACKS, "n3 n4 n5"),
    Case("no rack is large enough", gang_of(whole(1), 4, topology=RACK_REQUIRED), TWO_RACKS),
    Case("racks of one name in two zones are different", gang_of(whole(1), 2, topology=RACK_REQUIRED), SAME_NAME),
    Case(
        "the rack's label alone has no path", gang_of(whole(1), 2, topology=(TopologyRule(RACK),)), SAME_NAME, "n1 n2"
    ),
    Case("a zone is large enough", gang_of(whole(1), 2, topology=ZONE_REQUIRED), SAME_NAME, "n2 n3"),
    Case("the rack with the least waste", gang_of(whole(1), 2, topology=RACK_REQUIRED), TWO_RACKS, "n1 n2"),
    Case(
        "a single node before a rack",
        gang_of(whole(1), 2, topology=RACK_REQUIRED),
        [host("n1", "a/1"), host("n2", "a/1"), host("n3", "a/2", 4)],
        "n3 n3",
    ),
    Case(
        "the node with the least waste",
        gang_of(whole(1), 2, topology=RACK_REQUIRED),
        [host("n1", "a/1", 4), host("n2", "a/1", 3), host("n3", "a/2", 4)],
        "n2 n2",
    ),
    Case(
        "a block before its rack",
        gang_of(whole(1), 2, topology=RACK_REQUIRED),
        [host("n1", "a/1/p"), host("n2", "a/1/q"), host("n3", "a/1/q"), host("n4", "a/2")],
        "n2 n3",
    ),
    Case(
        "a block before a preferred rack",
        gang_of(whole(1), 2, topology=RACK_PREFERRED),
        [host("n1", "a/1/p"), host("n2", "a/1/q"), host("n3", "a/1/q"), host("n4", "a/2")],
        "n2 n3",
    ),
    Case("a preferred rack", gang_of(whole(1), 3, topology=RACK_PREFERRED), TWO_RACKS, "n3 n4 n5"),
    Case(
        "a preferred rack when no rack is large enough",
        gang_of(whole(1), 5, topology=RACK_PREFERRED),
        TWO_RACKS,
        "n1 n2 n3 n4 n5",
    ),
    Case(
        "a preferred rack within a required zone",
        gang_of(whole(1), 2, topology=(TopologyRule("zone"), TopologyRule("rack", required=False))),
        [host("n1", "a/1"), host("n2", "a/2"), host("n3", "b/1"), host("n4", "b/1"), host("n5", "b/2")],
        "n3 n4",
    ),
    Case(
        "a required zone when the preferred rack is too small",
        gang_of(whole(1), 3, topology=(TopologyRule("zone"), TopologyRule("rack", required=False))),
        [host("n1", "a/1"), host("n2", "a/2"), host("n3", "b/1"), host("n4", "b/1"), host("n5", "b/2")],
        "n3 n4 n5",
    ),
    Case(
        "the narrower of two required levels",
        gang_of(whole(1), 2, topology=(TopologyRule("zone"), TopologyRule("rack"))),
        [host("n1", "a/1"), host("n2", "a/2")],
    ),
    Case(
        "a required label beside a required rack",
        gang_of(whole(1), 2, topology=(TopologyRule("rack"), TopologyRule(NETWORK))),
        [
            gpu_node("n1", 1, labels={ZONE: "a", RACK: "1", NETWORK: "x"}),
            gpu_node("n2", 1, labels={ZONE: "a", RACK: "1", NETWORK: "y"}),
            gpu_node("n3", 1, labels={ZONE: "a", RACK: "2", NETWORK: "y"}),
            gpu_node("n4", 1, labels={ZONE: "a", RACK: "2", NETWORK: "y"}),
        ],
        "n3 n4",
    ),
    Case(
        "two required labels",
        gang_of(whole(1), 2, topology=(TopologyRule("example.com/room"), TopologyRule(NETWORK))),
        [
            gpu_node("n1", 1, labels={"example.com/room": "1", NETWORK: "x"}),
            gpu_node("n2", 1, labels={"example.com/room": "1", NETWORK: "y"}),
            gpu_node("n3", 1, labels={"example.com/room": "2", NETWORK: "x"}),
        ],
    ),
    Case(
        "a node without the required label is in no domain",
        gang_of(whole(1), 2, topology=RACK_REQUIRED),
        [host("n1", "a", 4), host("n2", "a/1"), host("n3", "a/1")],
        "n2 n3",
    ),
    Case(
        "a block without a rack is in no rack",
        gang_of(whole(1), 2, topology=RACK_REQUIRED),
        [host("n1", "a//p"), host("n2", "a//p"), host("n3", "a/1/p"), host("n4", "a/1/q")],
        "n3 n4",
    ),
    Case(
        "a required node",
        gang_of(whole(1), 2, topology=(TopologyRule("node"),)),
        [host("n1", "a"), host("n2", "a", 2)],
        "n2 n2",
    ),
    Case("no node is large enough", gang_of(whole(1), 2, topology=(TopologyRule("node"),)), TWO_RACKS),
    Case(
        "members with anti-affinity within a rack",
        gang_of(alone(), 2, topology=RACK_REQUIRED),
        [host("n1", "a/1", 4), host("n2", "a/2", 4), host("n3", "a/2", 4)],
        "n2 n3",
    ),
    Case(
        "members with anti-affinity within a rack, among more nodes than MAX_DOMAINS",
        gang_of(alone(), 2, topology=RACK_REQUIRED),
        [*(host(f"single-{i}", f"a/lone-{i}", 4) for i in range(80)), host("n1", "b/1", 4), host("n2", "b/1", 4)],
        "n1 n2",
    ),
    Case(
        "waiting members join the rack of running ones",
        anchored(gang_of(whole(1), 2, topology=RACK_REQUIRED), "n5"),
        TWO_RACKS,
        "n3 n4",
        [Placed(pod("running", whole(1)), "n5", (0,))],
    ),
    Case(
        "running members in a full rack",
        anchored(gang_of(whole(1), 2, topology=RACK_REQUIRED), "n1"),
        TWO_RACKS,
        "",
        [Placed(pod("running", whole(1)), "n1", (0,))],
    ),
    Case(
        "waiting members prefer the rack of running ones",
        anchored(gang_of(whole(1), 2, topology=RACK_PREFERRED), "n1"),
        TWO_RACKS[:3],
        "n2 n3",
        [Placed(pod("running", whole(1)), "n1", (0,))],
    ),
    Case(
        "a running member on a removed node has no effect",
        anchored(gang_of(whole(1), 2, topology=RACK_REQUIRED), "gone"),
        TWO_RACKS,
        "n1 n2",
    ),
    Case(
        "a role's own rack",
        roles(role("leader", whole(1), 1), role("worker", whole(1), 3, RACK_REQUIRED)),
        TWO_RACKS,
        "n1 n3 n4 n5",
    ),
    Case(
        "two roles, each in a rack of its own",
        roles(role("left", whole(1), 2, RACK_REQUIRED), role("right", whole(1), 3, RACK_REQUIRED)),
        TWO_RACKS,
        "n1 n2 n3 n4 n5",
    ),
    Case(
        "a role's rack within the gang's zone",
        roles(role("leader", whole(1), 1), role("worker", whole(1), 2, RACK_REQUIRED), topology=ZONE_REQUIRED),
        [host("n1", "a/1"), host("n2", "a/1"), host("n3", "b/1"), host("n4", "b/2"), host("n5", "b/2")],
        "n3 n4 n5",
    ),
    Case(
        "two shapes of one role in a rack of the gang's zone",
        roles(
            role("leader", whole(4), 1),
            role("worker", whole(1), 1, RACK_REQUIRED),
            role("worker", whole(2), 1, RACK_REQUIRED),
            topology=ZONE_REQUIRED,
        ),
        [host("n1", "a/1", 3), host("n2", "b/1", 4), host("n3", "b/2", 4)],
        "n2 n3 n3",
    ),
    Case(
        "a rack outside all zones is not used for a zone",
        roles(role("leader", whole(1), 1), role("worker", whole(1), 2, RACK_REQUIRED), topology=ZONE_REQUIRED),
        [
            *(host(f"a{i}", f"a/{i // 2}") for i in range(4)),
            *(host(f"b{i}", f"b/{i // 2}") for i in range(3)),
            host("outside", "/1", 8),
        ],
        "b0 b1 b2",
    ),
    Case(
        "a role's rack that the gang's zone does not have",
        roles(role("leader", whole(1), 2), role("worker", whole(1), 2, RACK_REQUIRED), topology=ZONE_REQUIRED),
        [host("n1", "a/1"), host("n2", "a/1"), *(host(f"b{i}", f"b/{i}") for i in range(4))],
    ),
    Case(
        "two shapes of one role stay in its rack",
        roles(role("worker", whole(1), 1, RACK_REQUIRED), role("worker", whole(2), 1, RACK_REQUIRED)),
        [host("n1", "a/1", 1), host("n2", "a/2", 2)],
    ),
    Case(
        "two shapes of one role get a rack that fits both",
        roles(role("worker", whole(1), 1, RACK_REQUIRED), role("worker", whole(2), 1, RACK_REQUIRED)),
        [host("n1", "a/1", 1), host("n2", "a/2", 2), host("n3", "a/3", 2), host("n4", "a/3", 2)],
        "n3 n4",
    ),
    Case(
        "the minimum, and as many more as the rack holds",
        gang_of(whole(1), 6, needed=2, topology=RACK_REQUIRED),
        TWO_RACKS,
        "n1 n2",
    ),
    Case(
        "the minimum on one node, the surplus in the rest of its rack",
        gang_of(whole(1), 6, needed=2, topology=RACK_REQUIRED),
        [host("n1", "a/1", 2), host("n2", "a/1"), host("n3", "a/2")],
        "n1 n1 n2",
    ),
    Case(
        "the minimum in a preferred rack, the surplus wherever it fits",
        gang_of(whole(1), 6, needed=2, topology=RACK_PREFERRED),
        TWO_RACKS,
        "n1 n2 n3 n4 n5",
    ),
    Case(
        "surplus alone joins the running members' rack",
        anchored(gang_of(whole(1), 3, needed=0, topology=RACK_REQUIRED), "n3"),
        TWO_RACKS,
        "n4 n5",
        [Placed(pod("running", whole(1)), "n3", (0,))],
    ),
    Case(
        "surplus alone is not placed if no node has the required label",
        gang_of(whole(1), 3, needed=0, topology=(TopologyRule(NETWORK),)),
        TWO_RACKS,
    ),
    Case(
        "surplus of a role stays in the role's rack",
        roles(role("leader", plain(), 1), role("worker", whole(1), 6, RACK_REQUIRED), needed=3),
        [host("n1", "a/1", 2), host("n2", "a/1"), host("n3", "a/2", 2), node("n4")],
        "n1 n1 n2 n4",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_gang_is_placed_in_the_domain_that_its_topology_requests(case: Case) -> None:
    cluster = build_cluster(Fleet(list(case.nodes), list(case.placed)))
    assert nodes_of(place_gang(cluster, case.bid)) == case.expected.split()


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_placed_members_are_assumed_and_others_are_not(case: Case) -> None:
    cluster = build_cluster(Fleet(list(case.nodes), list(case.placed)))
    placement = place_gang(cluster, case.bid) or []
    here = {uid for uid in cluster.usage if uid not in {placed.pod.uid for placed in case.placed}}
    assert here == {member.uid for member, _ in placement}


def test_a_bids_excluded_nodes_are_not_used() -> None:
    cluster = build_cluster(Fleet(TWO_RACKS))
    excluded = ~cluster.table.alive
    excluded[cluster.table.slots["n3"]] = True
    bid = replace(gang_of(whole(1), 2, topology=RACK_REQUIRED), excluded=excluded)
    excluded[cluster.table.slots["n1"]] = True
    assert nodes_of(place_gang(cluster, bid)) == ["n4", "n5"]
    assert nodes_of(place_gang(cluster, replace(gang_of(whole(1), 2, topology=RACK_REQUIRED), excluded=excluded))) == []


@pytest.mark.parametrize(("excluded", "left"), [(["n1"], ["n4", "n5"]), (["n4"], ["n1", "n2"])])
def test_a_rack_is_chosen_among_the_nodes_that_are_not_excluded(excluded: list[str], left: list[str]) -> None:
    cluster = build_cluster(Fleet([*TWO_RACKS[:2], *TWO_RACKS[3:]]))
    bid = gang_of(whole(1), 2, topology=RACK_REQUIRED)
    bid.excluded = np.zeros(cluster.table.size, bool)
    bid.excluded[[cluster.table.slots[name] for name in excluded]] = True
    assert nodes_of(place_gang(cluster, bid)) == left


def test_a_role_needs_its_own_minimum() -> None:
    cluster = build_cluster(Fleet([gpu_node("n1", 2)]))
    leaders, workers = role("leader", plain(), 3), role("worker", whole(1), 3)
    bid = Bid([leaders, workers], needed=3, role_needs={"worker": 3})
    assert place_gang(cluster, bid) is None
    bid = Bid([leaders, workers], needed=3, role_needs={"worker": 2})
    placement = place_gang(cluster, bid)
    assert placement is not None
    assert sorted(slot.role for _, slot in placement) == ["leader", "leader", "leader", "worker", "worker"]


def test_a_gang_that_does_not_fit_changes_nothing() -> None:
    cluster = build_cluster(Fleet(TWO_RACKS))
    free, used = cluster.free.copy(), cluster.devices.used.copy()
    assert place_gang(cluster, gang_of(whole(1), 6)) is None
    assert (cluster.free == free).all()
    assert (cluster.devices.used == used).all()
    assert not cluster.usage


def test_a_selector_narrows_the_domain_that_counts() -> None:
    picky = replace(whole(1), node_labels=labels_equal({"disk": "ssd"}))
    nodes = [
        host("n1", "a/1", disk="ssd"),
        host("n2", "a/1"),
        host("n3", "a/2", disk="ssd"),
        host("n4", "a/2", disk="ssd"),
    ]
    cluster = build_cluster(Fleet(nodes))
    assert nodes_of(place_gang(cluster, gang_of(picky, 2, topology=RACK_REQUIRED))) == ["n3", "n4"]


def test_surplus_goes_to_the_usable_rack_with_the_most_capacity() -> None:
    nodes = [host("n1", "a/1"), host("n2", "a/2", 4), host("n3", "a/3", 2)]
    cluster = build_cluster(Fleet(nodes))
    bid = gang_of(whole(1), 3, needed=0, topology=RACK_REQUIRED)
    bid.excluded = np.zeros(cluster.table.size, bool)
    bid.excluded[cluster.table.slots["n2"]] = True
    assert nodes_of(place_gang(cluster, bid)) == ["n3", "n3"]


def test_surplus_with_a_required_rack_is_not_placed_outside_all_racks() -> None:
    cluster = build_cluster(Fleet([host("n1", "a/1", 2), host("n2", "a/2"), host("n3", "a", 8)]))
    assert nodes_of(place_gang(cluster, gang_of(whole(1), 3, needed=0, topology=RACK_REQUIRED))) == ["n1", "n1"]
