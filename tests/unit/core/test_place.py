"""Placement of gangs with several groups, pod rules, maps or many members, and the diagnosis of refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from gpu_scheduler.core.model import (
    HOSTNAME,
    HostPort,
    Node,
    PodTerm,
    Shape,
    Spread,
    Taint,
    TaintEffect,
    Toleration,
    TopologyRule,
)
from gpu_scheduler.core.placement.diagnose import count_refusals, diagnose
from gpu_scheduler.core.placement.domains import Bid, MemberGroup
from gpu_scheduler.core.placement.place import minimum_counts, place_gang
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from tests.unit.core.clusters import (
    GPU,
    RACK,
    ZONE,
    Problem,
    apps,
    build_cluster,
    gang_of,
    gpu_node,
    mapped,
    node,
    plain,
    pod,
    problems,
    share,
    whole,
)
from tests.unit.core.oracle import Fleet, Placed


def group(app: str, shape: Shape, size: int = 1) -> MemberGroup:
    """Members whose role and app label have one name."""
    return MemberGroup(app, [pod(f"{app}-{i}", shape, labels={"app": app}, role=app) for i in range(size)])


HARD = Taint("k", "v", TaintEffect.NO_SCHEDULE)
LICENCE = "example.com/licence"


def near(app: str, shape: Shape, key: str = HOSTNAME) -> Shape:
    return replace(shape, affinity=(PodTerm(apps(app), key),))


def licensed(shape: Shape) -> Shape:
    return replace(shape, request=(*shape.request, (LICENCE, 1)))


def away(app: str, shape: Shape, key: str = HOSTNAME) -> Shape:
    return replace(shape, anti_affinity=(PodTerm(apps(app), key),))


@dataclass(frozen=True)
class Case:
    """Groups, nodes, and the expected sorted nodes of each role; without `expected` the gang must be refused."""

    id: str
    groups: Sequence[MemberGroup]
    nodes: Sequence[Node]
    expected: dict[str, str] | None


SMALL = [node("n1", allocatable={"cpu": 100}), node("n2", allocatable={"cpu": 200})]
CASES = [
    Case(
        "a role with affinity to another is placed after it, although it is scarcer",
        [group("follower", near("leader", whole(1))), group("leader", plain())],
        [gpu_node("n1", 1), node("n2")],
        {"follower": "n1", "leader": "n1"},
    ),
    Case(
        "a chain of roles with affinity",
        [group("c", near("b", plain())), group("b", near("a", plain())), group("a", whole(1))],
        [node("n1"), gpu_node("n2", 1)],
        {"a": "n2", "b": "n2", "c": "n2"},
    ),
    Case(
        "a role is placed where the roles with affinity to it fit",
        [group("follower", near("leader", plain(200))), group("leader", plain(100))],
        [*SMALL, node("n3", allocatable={"cpu": 300})],
        {"follower": "n3", "leader": "n3"},
    ),
    Case(
        "two roles with affinity to each other are refused",
        [group("a", near("b", plain())), group("b", near("a", plain()))],
        [node("n1")],
        None,
    ),
    Case(
        "one-sided anti-affinity between two roles",
        [group("a", away("b", plain(100))), group("b", plain(200))],
        SMALL,
        {"a": "n1", "b": "n2"},
    ),
    Case(
        "the role with one choice is placed before the role with two",
        [group("either", plain(100), 2), group("large", plain(200))],
        [*SMALL, node("n3", allocatable={"cpu": 100})],
        {"either": "n1 n3", "large": "n2"},
    ),
    Case(
        "a map is placed before a role that could take its GPU",
        [group("any", whole(1)), group("mapped", mapped("n1", 0))],
        [gpu_node("n1", 2)],
        {"any": "n1", "mapped": "n1"},
    ),
    Case(
        "members of one map entry share its GPUs",
        [group("mapped", mapped("n1", 0, 1), 3)],
        [gpu_node("n1", 2)],
        {"mapped": "n1 n1 n1"},
    ),
    Case(
        "shares of several sizes fill GPUs completely",
        [group("a", share(600)), group("b", share(500), 2), group("c", share(400))],
        [gpu_node("n1", 2)],
        {"a": "n1", "b": "n1 n1", "c": "n1"},
    ),
    Case(
        "the last role is packed on as few nodes as possible",
        [group("last", whole(1), 3), group("first", licensed(plain()))],
        [gpu_node("n1", 3), gpu_node("n2", 1), gpu_node("n3", 2), node("n4", allocatable={LICENCE: 1})],
        {"last": "n1 n1 n1", "first": "n4"},
    ),
    Case(
        "the scarcest role is placed first",
        [group("last", whole(1), 3), group("first", licensed(plain()))],
        [gpu_node("n1", 3, allocatable={GPU: 3, LICENCE: 1}), gpu_node("n2", 1), gpu_node("n3", 2)],
        {"last": "n1 n1 n1", "first": "n1"},
    ),
    Case(
        "a role with a choice spares the nodes that other roles can use",
        [
            group("first", replace(licensed(plain()), tolerations=(Toleration("k", exists=True),))),
            group("last", plain()),
        ],
        [node("n1", allocatable={LICENCE: 2}), node("n2", allocatable={LICENCE: 1}, taints=(HARD,))],
        {"first": "n2", "last": "n1"},
    ),
    Case(
        "one GPU too few",
        [group("a", whole(2)), group("b", share(100))],
        [gpu_node("n1", 2)],
        None,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_roles_are_placed(case: Case) -> None:
    bid = Bid(list(case.groups), sum(len(each.pods) for each in case.groups))
    placement = place_gang(build_cluster(Fleet(list(case.nodes))), bid)
    if case.expected is None:
        assert placement is None
        return
    assert placement is not None
    found = {each.role: " ".join(sorted(s.node for _, s in placement if s.role == each.role)) for each in case.groups}
    assert found == case.expected


def test_a_map_and_a_counted_gpu_never_overlap() -> None:
    bid = Bid([group("any", whole(1)), group("mapped", mapped("n1", 0))], 2)
    placement = place_gang(build_cluster(Fleet([gpu_node("n1", 2)])), bid)
    assert placement is not None
    assert {slot.role: slot.devices for _, slot in placement} == {"mapped": (0,), "any": (1,)}


def test_a_role_precedes_its_affinity_group_when_that_group_would_block_it() -> None:
    zone_a = {ZONE: "a"}
    nodes = [
        node("n1", labels=zone_a, allocatable={"cpu": 100, LICENCE: 1}),
        node("n2", labels=zone_a),
        node("n3", labels={ZONE: "b"}),
    ]
    running = Placed(pod("running", labels={"app": "leader"}), "n2")
    beside = replace(near("leader", plain(), ZONE), spread=(Spread(apps("leader"), ZONE),))
    bid = Bid([group("follower", beside), group("leader", licensed(plain()))], 2)
    placement = place_gang(build_cluster(Fleet(nodes, [running])), bid)
    assert placement is not None
    assert {slot.role: slot.node for _, slot in placement} == {"follower": "n2", "leader": "n1"}


def racks(count: int, size: int) -> list[Node]:
    return [
        node(f"n{i}-{j}", labels={ZONE: "ab"[i % 2], RACK: str(i)}, allocatable={"cpu": 2000})
        for i in range(count)
        for j in range(size)
    ]


def test_a_thousand_members_with_two_spreads_are_placed() -> None:
    both = replace(plain(100), spread=(Spread(apps("a"), ZONE), Spread(apps("a"), RACK)))
    placement = place_gang(build_cluster(Fleet(racks(8, 8))), gang_of(both, 1100))
    assert placement is not None
    sizes = [sum(slot.node.startswith(f"n{i}-") for _, slot in placement) for i in range(8)]
    assert max(sizes) - min(sizes) <= 1


def test_more_members_than_the_search_depth_are_placed_on_a_large_cluster() -> None:
    both = replace(plain(100), spread=(Spread(apps("a"), ZONE), Spread(apps("a"), RACK)))
    nodes = [*racks(4, 2), *(node(f"full-{i}", allocatable={"cpu": 0}) for i in range(2100))]
    placement = place_gang(build_cluster(Fleet(nodes)), gang_of(both, 80))
    assert placement is not None
    assert len(placement) == 80


# -- diagnosis of refusals


def first_refused(nodes: list[Node], bid: Bid, *placed: Placed) -> Unplaceable:
    """The diagnosis of a gang that does not fit."""
    cluster = build_cluster(Fleet(nodes, list(placed)))
    assert place_gang(cluster, bid) is None
    return diagnose(cluster, bid)


PORT = (HostPort(8080),)
TAKEN = Placed(pod("other", replace(plain(), host_ports=PORT), labels={"app": "b"}), "n1")


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (whole(1, host_ports=PORT), Reason.HOST_PORT),
        (replace(share(300), host_ports=PORT), Reason.HOST_PORT),
        (away("b", whole(1)), Reason.POD_ANTI_AFFINITY),
        (away("b", share(300)), Reason.POD_ANTI_AFFINITY),
        (near("none", whole(1)), Reason.POD_AFFINITY),
        (mapped("n2", 0), Reason.UNKNOWN_NODE),
        (mapped("n1", 5), Reason.DEVICE_MISSING),
    ],
    ids=["port", "port and share", "anti-affinity", "anti-affinity and share", "affinity", "map", "device"],
)
def test_with_enough_resources_the_refusing_rule_is_named_and_no_resource(shape: Shape, reason: Reason) -> None:
    found = first_refused([gpu_node("n1", 4)], gang_of(shape, 1), TAKEN)
    reasons = [refusal.reason for refusal in found.refusals]
    assert reasons[0] is reason
    assert Reason.RESOURCE not in reasons


@pytest.mark.parametrize(
    ("shape", "size", "subject", "short_by"),
    [
        (whole(2), 3, GPU, 2),
        (plain(40_000), 2, "cpu", 40_000),
        (share(600), 6, GPU, 2),
        (replace(share(100), request=(("cpu", 40_000),)), 2, "cpu", 40_000),
        (whole(5), 1, GPU, 1),
    ],
    ids=["GPUs", "cpu", "shares", "cpu for shares", "one that nearly fits"],
)
def test_without_enough_resources_the_scarcest_is_named_with_the_shortfall(
    shape: Shape, size: int, subject: str, short_by: int
) -> None:
    found = first_refused([gpu_node("n1", 4)], gang_of(shape, size))
    first = found.refusals[0]
    assert (first.reason, first.subject, first.short_by) == (Reason.RESOURCE, subject, short_by)


RULE, WISH = TopologyRule("rack"), TopologyRule("rack", required=False)


@pytest.mark.parametrize(
    ("of_gang", "of_role", "expected"),
    [
        ((RULE,), (), [Reason.TOPOLOGY]),
        ((), (RULE,), [Reason.TOPOLOGY]),
        ((WISH, RULE), (), [Reason.TOPOLOGY]),
        ((WISH,), (WISH,), [Reason.NOT_FOUND_YET]),
        ((), (), [Reason.NOT_FOUND_YET]),
    ],
    ids=["of the gang", "of a role", "besides a preferred one", "only preferred", "none"],
)
def test_only_required_topology_is_named_in_a_refusal(
    of_gang: tuple[TopologyRule, ...], of_role: tuple[TopologyRule, ...], expected: list[Reason]
) -> None:
    """Each of two members fits alone, but not both: no single resource is short."""
    nodes = [gpu_node("n1", 1, labels={RACK: "1"}, allocatable={GPU: 1, "cpu": 100})]
    groups = [replace(each, topology=of_role) for each in (group("a", plain(100)), group("b", whole(1)))]
    found = first_refused(nodes, Bid(groups, 2, topology=of_gang))
    assert [refusal.reason for refusal in found.refusals] == expected


@given(problems(groups=2))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_refusals_are_never_empty_and_only_name_what_the_gang_requests(problem: Problem) -> None:
    cluster = build_cluster(problem.fleet)
    if place_gang(cluster, problem.bid) is not None:
        return
    found = diagnose(cluster, problem.bid)
    assert found.refusals
    rules = [*problem.bid.topology, *(rule for each in problem.bid.groups for rule in each.topology)]
    levels = {rule.level for rule in rules if rule.required}
    shapes = [each.pods[0].shape for each in problem.bid.groups]
    for refusal in found.refusals:
        assert refusal.reason is not Reason.TOPOLOGY or refusal.subject in levels
        assert refusal.reason is not Reason.HOST_PORT or any(shape.host_ports for shape in shapes)
        assert refusal.nodes <= len(problem.fleet.nodes)
        assert refusal.short_by >= 0


def test_every_node_is_counted_once_for_the_first_rule_that_refuses_it() -> None:
    small = {"allocatable": {"cpu": 100}}
    nodes = [
        node("n1", taints=(HARD,), **small),
        node("n2", **small),
        node("n3", **small),
        node("n4", unschedulable=True),
        *(node(f"drained{i}", **small) for i in range(3)),
    ]
    cluster = build_cluster(Fleet(nodes))
    excluded = np.array([each is not None and each.name.startswith("drained") for each in cluster.table.nodes])
    found = count_refusals(cluster, pod("p", plain(200)), excluded)
    assert [(refusal.reason, refusal.nodes) for refusal in found] == [
        (Reason.RESERVED, 3),
        (Reason.RESOURCE, 2),
        (Reason.UNSCHEDULABLE, 1),
        (Reason.TAINT, 1),
    ]


def test_nodes_that_take_no_member_are_counted() -> None:
    found = first_refused([gpu_node("n1", 4), gpu_node("n2", 1), gpu_node("n3", 1)], gang_of(whole(2), 3))
    assert (found.refusals[0].reason, found.refusals[0].nodes) == (Reason.RESOURCE, 2)


@pytest.mark.parametrize(
    ("needed", "role_needs", "expected"),
    [
        (0, {}, (0, 0)),
        (3, {}, (0, 3)),
        (4, {}, (1, 3)),
        (3, {"few": 1}, (1, 2)),
        (3, {"few": 2}, (2, 1)),
        (1, {"few": 2, "many": 1}, (2, 1)),
        (9, {"few": 1}, (2, 3)),
    ],
)
def test_minimum_is_the_minima_of_roles_and_then_the_easiest_pods_to_place(
    needed: int, role_needs: dict[str, int], expected: tuple[int, ...]
) -> None:
    cluster = build_cluster(Fleet([gpu_node("n1", 4)]))
    bid = Bid([group("few", whole(2), 2), group("many", plain(), 3)], needed, role_needs)
    assert minimum_counts(cluster, bid) == expected


def test_minimum_of_a_role_is_counted_once_although_its_members_have_two_shapes() -> None:
    cluster = build_cluster(Fleet([gpu_node("n1", 4)]))
    bid = Bid([group("work", whole(2), 2), group("work", plain(), 3)], 0, {"work": 4})
    assert minimum_counts(cluster, bid) == (1, 3)


@pytest.mark.parametrize(
    ("racks", "short_by"),
    [(("1", "1", "2"), 1), (("1", "2", "3"), 2), (("", "", ""), 3)],
    ids=["two in the largest", "one in each", "no racks at all"],
)
def test_gang_that_no_rack_can_hold_gets_the_shortfall_of_the_largest_rack(
    racks: tuple[str, ...], short_by: int
) -> None:
    nodes = [gpu_node(f"n{i}", 1, labels={RACK: rack} if rack else {}) for i, rack in enumerate(racks)]
    found = first_refused(nodes, gang_of(whole(1), 3, topology=(TopologyRule("rack"),)))
    assert [(refusal.reason, refusal.short_by) for refusal in found.refusals] == [(Reason.TOPOLOGY, short_by)]


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [
        (Reason.RESOURCE, False),
        (Reason.POD_AFFINITY, False),
        (Reason.BACK_OFF, False),
        (Reason.TOO_LARGE, True),
        (Reason.UNKNOWN_NODE, True),
    ],
)
def test_refusal_is_hopeless_only_if_neither_time_nor_other_gangs_can_cure_it(reason: Reason, hopeless: bool) -> None:
    assert Unplaceable((Refusal(reason),), 1, 0).hopeless is hopeless
