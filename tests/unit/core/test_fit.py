"""Every fit rule by itself: a case fails without its rule, and the reference agrees with each case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.model import (
    HOSTNAME,
    DeviceMap,
    HostPort,
    Node,
    Pod,
    PodTerm,
    Shape,
    Spread,
    Taint,
    TaintEffect,
    Toleration,
)
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.fit import fits, refusals
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.selectors import LabelSelector, NodeTerm, PodMatch, Requirement, SelectorOperator, labels_equal
from tests.unit.core import oracle
from tests.unit.core.clusters import (
    GPU,
    RACK,
    ZONE,
    apps,
    build_cluster,
    gpu_node,
    mapped,
    node,
    plain,
    pod,
    share,
    whole,
)
from tests.unit.core.oracle import Fleet, Placed


@dataclass(frozen=True)
class Case:
    """A pod, nodes with pods on them, and the nodes that fit; the other nodes refuse the pod for `reason` first."""

    id: str
    pod: Pod
    nodes: Sequence[Node]
    accepted: str
    reason: Reason | None = None
    placed: Sequence[Placed] = field(default=())
    ours: bool = False
    """A limit of our own that the reference does not have."""


def asks(shape: Shape | None = None, **changes: object) -> Pod:
    return pod("asking", shape, **changes)


def on(name: str, *pods: Pod, devices: tuple[int, ...] = ()) -> list[Placed]:
    return [Placed(replace(each, uid=f"{name}/{each.uid}"), name, devices) for each in pods]


def with_terms(**changes: object) -> Shape:
    return replace(plain(), **changes)  # type: ignore[arg-type]


def needs(*terms: NodeTerm) -> Pod:
    return asks(with_terms(node_terms=terms))


def labelled(key: str, operator: SelectorOperator, *values: str) -> NodeTerm:
    return NodeTerm((Requirement(key, operator, values),))


def named(operator: SelectorOperator, *values: str) -> NodeTerm:
    return NodeTerm(fields=(Requirement("metadata.name", operator, values),))


TAINTS = {effect: Taint("k", "v", effect) for effect in TaintEffect}
PAIR = [node("n1"), node("n2")]


def resource_case(name: str, amount: int) -> Case:
    """A node with just enough of a resource, one with too little free, one with too little allocatable."""
    nodes = [
        node(each, allocatable={name: size}) for each, size in (("n1", amount), ("n2", amount), ("n3", amount - 1))
    ]
    return Case(
        f"{name} that is used is not there",
        asks(plain(0, **{name: amount})),
        nodes,
        "n1",
        Reason.RESOURCE,
        on("n2", pod("other", plain(0, **{name: 1}))),
    )


RESOURCES = [
    *(resource_case(name, 4) for name in ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/fpga")),
    Case(
        "the number of pods is a resource too",
        asks(),
        [node(name, allocatable={"pods": 1}) for name in ("n1", "n2")],
        "n2",
        Reason.RESOURCE,
        on("n1", pod("other", plain(0))),
    ),
    Case("a resource that no node has", asks(plain(1, **{"example.com/new": 1})), PAIR, "", Reason.RESOURCE),
    Case(
        "a node that is overcommitted in a resource that the pod does not request",
        asks(plain(0, memory=1)),
        [node("n1", allocatable={"cpu": 100})],
        "n1",
        None,
        on("n1", pod("other", plain(200))),
    ),
    Case(
        "a node that allows no pods",
        asks(plain(0)),
        [node("n1", allocatable={"pods": 0})],
        "",
        Reason.RESOURCE,
    ),
    Case(
        "an extremely large request",
        asks(plain(2**63 - 1)),
        [node("n1", allocatable={"cpu": 2**63 - 1})],
        "",
        Reason.RESOURCE,
        ours=True,
    ),
]

DISKS = [
    node("n1", labels={"disk": "ssd"}),
    node("n2", labels={"disk": "9"}),
    node("n3", labels={"disk": "12"}),
    node("n4"),
]
NODE_CASES = [
    Case(
        "a node selector",
        asks(with_terms(node_labels=labels_equal({"disk": "ssd"}))),
        DISKS,
        "n1",
        Reason.NODE_AFFINITY,
    ),
    Case(
        "every label of a node selector",
        asks(with_terms(node_labels=labels_equal({"disk": "ssd", "gone": "1"}))),
        DISKS,
        "",
        Reason.NODE_AFFINITY,
    ),
    Case("In", needs(labelled("disk", SelectorOperator.IN, "ssd", "12")), DISKS, "n1 n3", Reason.NODE_AFFINITY),
    Case(
        "In with unknown values only",
        needs(labelled("disk", SelectorOperator.IN, "tape")),
        DISKS,
        "",
        Reason.NODE_AFFINITY,
    ),
    Case(
        "NotIn, which an absent label satisfies",
        needs(labelled("disk", SelectorOperator.NOT_IN, "ssd", "9")),
        DISKS,
        "n3 n4",
        Reason.NODE_AFFINITY,
    ),
    Case("Exists", needs(labelled("disk", SelectorOperator.EXISTS)), DISKS, "n1 n2 n3", Reason.NODE_AFFINITY),
    Case("DoesNotExist", needs(labelled("disk", SelectorOperator.DOES_NOT_EXIST)), DISKS, "n4", Reason.NODE_AFFINITY),
    Case(
        "DoesNotExist of a label that no node has",
        needs(labelled("gone", SelectorOperator.DOES_NOT_EXIST)),
        DISKS,
        "n1 n2 n3 n4",
    ),
    Case("Gt, as numbers", needs(labelled("disk", SelectorOperator.GT, "9")), DISKS, "n3", Reason.NODE_AFFINITY),
    Case("Lt, as numbers", needs(labelled("disk", SelectorOperator.LT, "12")), DISKS, "n2", Reason.NODE_AFFINITY),
    Case(
        "Gt with a value that is no number",
        needs(labelled("disk", SelectorOperator.GT, "many")),
        DISKS,
        "",
        Reason.NODE_AFFINITY,
    ),
    Case("a node's name In", needs(named(SelectorOperator.IN, "n2")), DISKS, "n2", Reason.NODE_AFFINITY),
    Case("a node's name NotIn", needs(named(SelectorOperator.NOT_IN, "n2")), DISKS, "n1 n3 n4", Reason.NODE_AFFINITY),
    Case(
        "labels and fields of one term must both match",
        needs(
            NodeTerm(
                (Requirement("disk", SelectorOperator.EXISTS),),
                (Requirement("metadata.name", SelectorOperator.NOT_IN, ("n1",)),),
            )
        ),
        DISKS,
        "n2 n3",
        Reason.NODE_AFFINITY,
    ),
    Case(
        "one of two terms must match",
        needs(labelled("disk", SelectorOperator.IN, "9"), named(SelectorOperator.IN, "n4")),
        DISKS,
        "n2 n4",
        Reason.NODE_AFFINITY,
    ),
    Case("an empty term matches nothing", needs(NodeTerm()), DISKS, "", Reason.NODE_AFFINITY),
    Case("no term at all matches nothing", needs(), DISKS, "", Reason.NODE_AFFINITY),
    Case(
        "an empty term and another one",
        needs(NodeTerm(), labelled("disk", SelectorOperator.IN, "ssd")),
        DISKS,
        "n1",
        Reason.NODE_AFFINITY,
    ),
    Case(
        "the selector and the affinity must both match",
        asks(with_terms(node_labels=labels_equal({"disk": "ssd"}), node_terms=(named(SelectorOperator.NOT_IN, "n1"),))),
        DISKS,
        "",
        Reason.NODE_AFFINITY,
    ),
    Case(
        "every volume must allow the node",
        asks(
            with_terms(
                volume_terms=(
                    (labelled("disk", SelectorOperator.EXISTS),),
                    (named(SelectorOperator.IN, "n2"), named(SelectorOperator.IN, "n4")),
                )
            )
        ),
        DISKS,
        "n2",
        Reason.VOLUME,
    ),
]

UNREACHABLE = Taint("node.kubernetes.io/unreachable", "", TaintEffect.NO_SCHEDULE)
CORDONED = [node("n1"), node("n2", unschedulable=True), node("n3", ready=False)]
TAINTED = [
    node("free"),
    *(
        node(name, taints=(TAINTS[effect],))
        for name, effect in (
            ("hard", TaintEffect.NO_SCHEDULE),
            ("soft", TaintEffect.PREFER_NO_SCHEDULE),
            ("leave", TaintEffect.NO_EXECUTE),
        )
    ),
]


def tolerating(*tolerations: Toleration) -> Pod:
    return asks(with_terms(tolerations=tolerations))


TAINT_CASES = [
    Case("hard taints refuse, a PreferNoSchedule taint does not", asks(), TAINTED, "free soft", Reason.TAINT),
    Case("Exists with a key", tolerating(Toleration("k", exists=True)), TAINTED, "free hard soft leave"),
    Case("Exists with an empty key", tolerating(Toleration(exists=True)), TAINTED, "free hard soft leave"),
    Case("Exists with another key", tolerating(Toleration("other", exists=True)), TAINTED, "free soft", Reason.TAINT),
    Case("Equal with the value", tolerating(Toleration("k", value="v")), TAINTED, "free hard soft leave"),
    Case("Equal with another value", tolerating(Toleration("k", value="w")), TAINTED, "free soft", Reason.TAINT),
    Case("Equal with no value", tolerating(Toleration("k")), TAINTED, "free soft", Reason.TAINT),
    Case(
        "one effect only",
        tolerating(Toleration("k", exists=True, effect=TaintEffect.NO_EXECUTE)),
        TAINTED,
        "free soft leave",
        Reason.TAINT,
    ),
    Case(
        "every taint of a node must be tolerated",
        tolerating(Toleration("k", exists=True)),
        [node("n1", taints=(TAINTS[TaintEffect.NO_SCHEDULE], Taint("l", "", TaintEffect.NO_EXECUTE)))],
        "",
        Reason.TAINT,
    ),
    Case("an unschedulable node", asks(), CORDONED[:2], "n1", Reason.UNSCHEDULABLE),
    Case(
        "an unschedulable node is tolerated by name",
        tolerating(Toleration("node.kubernetes.io/unschedulable", exists=True, effect=TaintEffect.NO_SCHEDULE)),
        CORDONED[:2],
        "n1 n2",
    ),
    Case("a node that is not ready", asks(), [CORDONED[0], CORDONED[2]], "n1", Reason.NODE_NOT_READY),
    Case(
        "a node that is not ready is tolerated by name",
        tolerating(Toleration("node.kubernetes.io/not-ready", exists=True)),
        [CORDONED[0], CORDONED[2]],
        "n1 n3",
    ),
    Case(
        "an unreachable node is tolerated by name",
        tolerating(Toleration(UNREACHABLE.key, exists=True)),
        [CORDONED[0], node("n3", ready=False, taints=(UNREACHABLE,))],
        "n1 n3",
    ),
    Case(
        "an unreachable node is not tolerated by another name",
        tolerating(Toleration("node.kubernetes.io/not-ready", exists=True)),
        [CORDONED[0], node("n3", ready=False, taints=(UNREACHABLE,))],
        "n1",
        Reason.TAINT,
    ),
]


def with_port(port: int, protocol: str = "TCP", ip: str = "0.0.0.0") -> Shape:
    return with_terms(host_ports=(HostPort(port, protocol, ip),))


def port_case(name: str, wanted: Shape, taken: Shape, accepted: str) -> Case:
    reason = None if "n1" in accepted.split() else Reason.HOST_PORT
    return Case(f"a host port {name}", asks(wanted), PAIR, accepted, reason, on("n1", pod("other", taken)))


PORT_CASES = [
    port_case("on every address twice", with_port(80), with_port(80), "n2"),
    port_case("wanted on every address, taken on one", with_port(80), with_port(80, ip="10.0.0.1"), "n2"),
    port_case("wanted on one address, taken on all", with_port(80, ip="10.0.0.1"), with_port(80), "n2"),
    port_case("on the same address", with_port(80, ip="10.0.0.1"), with_port(80, ip="10.0.0.1"), "n2"),
    port_case("on another address", with_port(80, ip="10.0.0.1"), with_port(80, ip="10.0.0.2"), "n1 n2"),
    port_case("of another protocol", with_port(80, "UDP"), with_port(80), "n1 n2"),
    port_case("of another number", with_port(81), with_port(80), "n1 n2"),
    port_case(
        "among several",
        with_terms(host_ports=(HostPort(81), HostPort(80))),
        with_terms(host_ports=(HostPort(79), HostPort(80))),
        "n2",
    ),
]

A, B, TIERED = apps("a"), apps("b"), PodMatch(LabelSelector(labels_equal({"tier": "s"})), ("x",))
ZONES = [node("n1", labels={ZONE: "a"}), node("n2", labels={ZONE: "a"}), node("n3", labels={ZONE: "b"}), node("n4")]


def near(*terms: PodTerm, **changes: object) -> Pod:
    return asks(with_terms(affinity=terms), **changes)


def away(*terms: PodTerm, **changes: object) -> Pod:
    return asks(with_terms(anti_affinity=terms), **changes)


def other(app: str, shape: Shape | None = None, **changes: object) -> Pod:
    return pod(f"other-{app}", shape, **{"labels": {"app": app}, **changes})


EVERYWHERE = PodMatch(LabelSelector(labels_equal({"app": "b"})), (), LabelSelector())
RED = PodMatch(LabelSelector(labels_equal({"app": "b"})), (), LabelSelector(labels_equal({"team": "red"})))
AFFINITY_CASES = [
    Case("affinity within a zone", near(PodTerm(B, ZONE)), ZONES, "n1 n2", Reason.POD_AFFINITY, on("n1", other("b"))),
    Case("affinity within a node", near(PodTerm(B, HOSTNAME)), ZONES, "n1", Reason.POD_AFFINITY, on("n1", other("b"))),
    Case("affinity to pods that do not exist", near(PodTerm(B, ZONE)), ZONES, "", Reason.POD_AFFINITY),
    Case(
        "affinity to a pod on a node without the label",
        near(PodTerm(B, ZONE)),
        ZONES,
        "",
        Reason.POD_AFFINITY,
        on("n4", other("b")),
    ),
    Case(
        "affinity to itself: the first pod fits any node",
        near(PodTerm(A, ZONE)),
        ZONES,
        "n1 n2 n3",
        Reason.POD_AFFINITY,
    ),
    Case(
        "affinity to itself: the second pod fits the domain of the first",
        near(PodTerm(A, ZONE)),
        ZONES,
        "n3",
        Reason.POD_AFFINITY,
        on("n3", other("a")),
    ),
    Case(
        "affinity to itself: a pod outside every domain does not count as the first",
        near(PodTerm(A, ZONE)),
        ZONES,
        "n1 n2 n3",
        Reason.POD_AFFINITY,
        on("n4", other("a")),
    ),
    Case(
        "affinity to itself by two keys: a pod within the domains of either key ends the exception",
        near(PodTerm(A, ZONE), PodTerm(A, HOSTNAME)),
        ZONES,
        "",
        Reason.POD_AFFINITY,
        on("n4", other("a")),
    ),
    Case(
        "affinity to itself and to another pod: no exception",
        near(PodTerm(A, ZONE), PodTerm(B, ZONE)),
        ZONES,
        "",
        Reason.POD_AFFINITY,
    ),
    Case(
        "two affinity terms must be matched by one pod",
        near(PodTerm(B, ZONE), PodTerm(TIERED, ZONE)),
        ZONES,
        "n3",
        Reason.POD_AFFINITY,
        [
            *on("n1", other("b"), pod("tiered", labels={"tier": "s"})),
            *on("n3", pod("both", labels={"app": "b", "tier": "s"})),
        ],
    ),
    Case(
        "two affinity terms of two keys",
        near(PodTerm(B, ZONE), PodTerm(B, HOSTNAME)),
        ZONES,
        "n2",
        Reason.POD_AFFINITY,
        on("n2", other("b")),
    ),
    Case(
        "affinity in another namespace",
        near(PodTerm(B, ZONE)),
        ZONES,
        "",
        Reason.POD_AFFINITY,
        on("n1", other("b", namespace="y")),
    ),
    Case(
        "affinity in the named namespaces",
        near(PodTerm(apps("b", namespaces=("y",)), ZONE)),
        ZONES,
        "n3",
        Reason.POD_AFFINITY,
        [*on("n1", other("b")), *on("n3", other("b", namespace="y"))],
    ),
    Case(
        "affinity in all namespaces",
        near(PodTerm(EVERYWHERE, ZONE)),
        ZONES,
        "n3",
        Reason.POD_AFFINITY,
        on("n3", other("b", namespace="y")),
    ),
    Case(
        "affinity in namespaces selected by labels",
        near(PodTerm(RED, ZONE)),
        ZONES,
        "n3",
        Reason.POD_AFFINITY,
        [*on("n1", other("b")), *on("n3", other("b", namespace="y", namespace_labels={"team": "red"}))],
    ),
    Case(
        "affinity without a selector selects no pod",
        near(PodTerm(PodMatch(None, ("x",)), ZONE)),
        ZONES,
        "",
        Reason.POD_AFFINITY,
        on("n1", other("b")),
    ),
    Case(
        "affinity to a pod that is being deleted still holds",
        near(PodTerm(B, ZONE)),
        ZONES,
        "n1 n2",
        Reason.POD_AFFINITY,
        on("n1", other("b", deleting=True)),
    ),
]
ANTI_CASES = [
    Case(
        "anti-affinity by a label that no node has",
        asks(with_terms(anti_affinity=(PodTerm(apps("a"), "example.com/none"),))),
        PAIR,
        "n1 n2",
        placed=on("n1", pod("p")),
    ),
    Case(
        "anti-affinity within a zone",
        away(PodTerm(B, ZONE)),
        ZONES,
        "n3 n4",
        Reason.POD_ANTI_AFFINITY,
        on("n1", other("b")),
    ),
    Case(
        "anti-affinity within a node",
        away(PodTerm(B, HOSTNAME)),
        ZONES,
        "n2 n3 n4",
        Reason.POD_ANTI_AFFINITY,
        on("n1", other("b")),
    ),
    Case(
        "anti-affinity to a pod on a node without the label",
        away(PodTerm(B, ZONE)),
        ZONES,
        "n1 n2 n3 n4",
        None,
        on("n4", other("b")),
    ),
    Case(
        "each anti-affinity term alone refuses",
        away(PodTerm(B, ZONE), PodTerm(TIERED, HOSTNAME)),
        ZONES,
        "n4",
        Reason.POD_ANTI_AFFINITY,
        [*on("n1", other("b")), *on("n3", pod("tiered", labels={"tier": "s"}))],
    ),
    Case(
        "anti-affinity to a pod that is being deleted still holds",
        away(PodTerm(B, ZONE)),
        ZONES,
        "n3 n4",
        Reason.POD_ANTI_AFFINITY,
        on("n1", other("b", deleting=True)),
    ),
    Case(
        "anti-affinity of a placed pod",
        asks(),
        ZONES,
        "n3 n4",
        Reason.KEPT_AWAY,
        on("n1", other("b", with_terms(anti_affinity=(PodTerm(A, ZONE),)))),
    ),
    Case(
        "anti-affinity of a placed pod to other pods",
        asks(),
        ZONES,
        "n1 n2 n3 n4",
        None,
        on("n1", other("b", with_terms(anti_affinity=(PodTerm(B, ZONE),)))),
    ),
    Case(
        "anti-affinity of a placed pod in another namespace",
        asks(),
        ZONES,
        "n1 n2 n3 n4",
        None,
        on("n1", other("b", with_terms(anti_affinity=(PodTerm(apps("a", namespaces=("y",)), ZONE),)), namespace="y")),
    ),
    Case(
        "anti-affinity of a placed pod on a node without the label",
        asks(),
        ZONES,
        "n1 n2 n3 n4",
        None,
        on("n4", other("b", with_terms(anti_affinity=(PodTerm(A, ZONE),)))),
    ),
]

THREE_ZONES = [node(f"n{i}", labels={ZONE: zone}) for i, zone in enumerate("abc", 1)]
SSD = [
    node("n1", labels={ZONE: "a", "disk": "ssd"}),
    node("n2", labels={ZONE: "b", "disk": "ssd"}),
    node("n3", labels={ZONE: "c"}),
]
TAINTED_ZONE = [*THREE_ZONES[:2], node("n3", labels={ZONE: "c"}, taints=(TAINTS[TaintEffect.NO_SCHEDULE],))]


def spreads(*spread: Spread, **changes: object) -> Pod:
    return asks(with_terms(spread=spread, **changes))


ONE_IN_A_AND_B = [*on("n1", other("a")), *on("n2", other("a"))]
SPREAD_CASES = [
    Case(
        "spread refuses the fuller domain",
        spreads(Spread(A, ZONE)),
        THREE_ZONES,
        "n2 n3",
        Reason.SPREAD,
        on("n1", other("a")),
    ),
    Case(
        "spread counts the emptiest domain", spreads(Spread(A, ZONE)), THREE_ZONES, "n3", Reason.SPREAD, ONE_IN_A_AND_B
    ),
    Case(
        "spread with a larger skew",
        spreads(Spread(A, ZONE, max_skew=2)),
        THREE_ZONES,
        "n2 n3",
        Reason.SPREAD,
        on("n1", other("a"), pod("second")),
    ),
    Case(
        "spread of other pods does not count the pod itself",
        spreads(Spread(B, ZONE)),
        THREE_ZONES,
        "n1 n2 n3",
        None,
        on("n1", other("b")),
    ),
    Case(
        "spread of other pods refuses beyond the skew",
        spreads(Spread(B, ZONE)),
        THREE_ZONES,
        "n2 n3",
        Reason.SPREAD,
        on("n1", other("b"), pod("second", labels={"app": "b"})),
    ),
    Case("spread needs the label", spreads(Spread(A, ZONE)), ZONES, "n1 n2 n3", Reason.SPREAD),
    Case(
        "spread over fewer domains than minDomains starts from 0",
        spreads(Spread(A, ZONE, min_domains=4)),
        THREE_ZONES,
        "",
        Reason.SPREAD,
        [*ONE_IN_A_AND_B, *on("n3", other("a"))],
    ),
    Case(
        "spread over minDomains domains",
        spreads(Spread(A, ZONE, min_domains=3)),
        THREE_ZONES,
        "n1 n2 n3",
        None,
        [*ONE_IN_A_AND_B, *on("n3", other("a"))],
    ),
    Case(
        "spread leaves out nodes that the pod's affinity refuses",
        spreads(Spread(A, ZONE), node_labels=labels_equal({"disk": "ssd"})),
        SSD,
        "n1 n2",
        Reason.NODE_AFFINITY,
        ONE_IN_A_AND_B,
    ),
    Case(
        "spread leaves out nodes that the pod's affinity terms refuse",
        spreads(Spread(A, ZONE), node_terms=(labelled("disk", SelectorOperator.EXISTS),)),
        SSD,
        "n1 n2",
        Reason.NODE_AFFINITY,
        ONE_IN_A_AND_B,
    ),
    Case(
        "spread counts nodes that the pod's affinity refuses, with nodeAffinityPolicy Ignore",
        spreads(Spread(A, ZONE, honor_affinity=False), node_labels=labels_equal({"disk": "ssd"})),
        SSD[1:] + SSD[:1],
        "",
        None,
        ONE_IN_A_AND_B,
    ),
    Case(
        "spread counts nodes that the pod does not tolerate",
        spreads(Spread(A, ZONE)),
        TAINTED_ZONE,
        "",
        None,
        ONE_IN_A_AND_B,
    ),
    Case(
        "spread leaves out nodes that the pod does not tolerate, with nodeTaintsPolicy Honor",
        spreads(Spread(A, ZONE, honor_taints=True)),
        TAINTED_ZONE,
        "n1 n2",
        Reason.TAINT,
        ONE_IN_A_AND_B,
    ),
    Case(
        "spread does not count pods that are being deleted",
        spreads(Spread(A, ZONE)),
        THREE_ZONES,
        "n1 n2 n3",
        None,
        on("n1", other("a", deleting=True)),
    ),
    Case(
        "spread does not count pods of other namespaces",
        spreads(Spread(A, ZONE)),
        THREE_ZONES,
        "n1 n2 n3",
        None,
        on("n1", other("a", namespace="y")),
    ),
    Case(
        "spread counts only nodes that have the labels of every spread",
        spreads(Spread(A, ZONE), Spread(A, RACK, max_skew=9)),
        [node("n1", labels={ZONE: "a", RACK: "1"}), node("n2", labels={ZONE: "b"})],
        "n1",
        Reason.SPREAD,
        on("n1", other("a"), pod("second")),
    ),
    Case(
        "every spread constraint must hold",
        spreads(Spread(A, ZONE), Spread(A, HOSTNAME)),
        ZONES[:3],
        "n3",
        Reason.SPREAD,
        on("n2", other("a")),
    ),
]

ASSIGNED, COUNTED = gpu_node("n1", 2), gpu_node("n1", 2, assigns=False)
AMD = "amd.com/gpu"
GPU_CASES = [
    Case(
        "whole GPUs that are idle",
        asks(whole(2)),
        [gpu_node("n1", 2), gpu_node("n2", 1), node("n3")],
        "n1",
        Reason.RESOURCE,
    ),
    Case(
        "whole GPUs of which one carries a share",
        asks(whole(2)),
        [ASSIGNED],
        "",
        Reason.RESOURCE,
        on("n1", pod("other", share(100)), devices=(1,)),
    ),
    Case(
        "one whole GPU beside a share",
        asks(whole(1)),
        [ASSIGNED],
        "n1",
        None,
        on("n1", pod("other", share(100)), devices=(1,)),
    ),
    Case(
        "a share needs one GPU, not the sum of several",
        asks(share(600)),
        [ASSIGNED],
        "",
        Reason.RESOURCE,
        [*on("n1", pod("p", share(500)), devices=(0,)), *on("n1", pod("q", share(500)), devices=(1,))],
    ),
    Case(
        "a share that fits on one GPU",
        asks(share(500)),
        [ASSIGNED],
        "n1",
        None,
        [*on("n1", pod("p", share(500)), devices=(0,)), *on("n1", pod("q", share(600)), devices=(1,))],
    ),
    Case(
        "the smallest share does not fit on a full GPU",
        asks(share(1)),
        [gpu_node("n1", 1), gpu_node("n2", 1)],
        "n2",
        Reason.RESOURCE,
        [*on("n1", pod("p", share(1000)), devices=(0,)), *on("n2", pod("q", share(999)), devices=(0,))],
    ),
    Case(
        "a share on a node whose devices are not assigned",
        asks(share(100)),
        [COUNTED, gpu_node("n2", 1)],
        "n2",
        Reason.NO_ASSIGNED_DEVICES,
    ),
    Case(
        "an unhealthy GPU does not count as a whole GPU",
        asks(whole(2)),
        [gpu_node("n1", 2, unhealthy=frozenset({0})), gpu_node("n2", 3, unhealthy=frozenset({0}))],
        "n2",
        Reason.RESOURCE,
    ),
    Case(
        "an unhealthy GPU carries no shares",
        asks(share(100)),
        [gpu_node("n1", 1, unhealthy=frozenset({0}))],
        "",
        Reason.RESOURCE,
    ),
    Case(
        "whole GPUs beside a pod with unrecorded devices",
        asks(whole(1)),
        [gpu_node("n1", 4), gpu_node("n2", 4)],
        "n2",
        Reason.DEVICES_UNRECORDED,
        on("n1", pod("other", whole(1))),
    ),
    Case(
        "shares beside a pod with unrecorded devices",
        asks(share(100)),
        [gpu_node("n1", 4), gpu_node("n2", 4)],
        "n2",
        Reason.DEVICES_UNRECORDED,
        on("n1", pod("other", share(100))),
    ),
    Case(
        "a pod without GPUs beside a pod with unrecorded devices",
        asks(),
        [gpu_node("n1", 4)],
        "n1",
        None,
        on("n1", pod("other", whole(1))),
    ),
    Case(
        "GPUs that a device plugin assigns are counted",
        asks(whole(2)),
        [gpu_node("n1", 4, assigns=False), gpu_node("n2", 4, assigns=False)],
        "n2",
        Reason.RESOURCE,
        on("n1", pod("other", whole(3))),
    ),
    Case(
        "GPUs beyond the allocatable number are not used for shares",
        asks(share(100)),
        [gpu_node("n1", 2, allocatable={GPU: 1})],
        "",
        Reason.RESOURCE,
        on("n1", pod("other", whole(1)), devices=(0,)),
    ),
    Case(
        "shares of a GPU of another resource",
        asks(share(100)),
        [gpu_node("n1", 2, allocatable={AMD: 2}, gpu_resource=AMD), gpu_node("n2", 2)],
        "n2",
        Reason.RESOURCE,
    ),
    Case(
        "whole GPUs of another resource",
        asks(whole(1)),
        [gpu_node("n1", 2, allocatable={AMD: 2}, gpu_resource=AMD), gpu_node("n2", 2)],
        "n2",
        Reason.RESOURCE,
    ),
]

ALIASED = [gpu_node("n1", 2, labels={"gpu-node-name": "gpu-a"}), gpu_node("n2", 2), node("n3")]
MINE = mapped("n1", 0, 1)


def mapped_request(name: str, *devices: int) -> Shape:
    return replace(whole(len(devices)), device_map=DeviceMap(name, devices, "x/map"))


MAP_CASES = [
    Case("a map names a node by its label", asks(mapped("gpu-a", 0)), ALIASED, "n1", Reason.MAP_NODE),
    Case("a map names a node by its name", asks(mapped("n2", 0)), ALIASED, "n2", Reason.MAP_NODE),
    Case(
        "the node label of a map precedes a node of that name",
        asks(mapped("n2", 0)),
        [gpu_node("n1", 2, labels={"gpu-node-name": "n2"}), gpu_node("n2", 2)],
        "n1",
        Reason.MAP_NODE,
    ),
    Case(
        "a map whose name matches two nodes fits none",
        asks(mapped("gpu-a", 0)),
        [gpu_node(name, 2, labels={"gpu-node-name": "gpu-a"}) for name in ("n1", "n2")],
        "",
        Reason.MAP_NODE,
    ),
    Case("a map to an unknown node", asks(mapped("gone", 0)), ALIASED, "", Reason.MAP_NODE),
    Case("a map fits a node that advertises no GPUs", asks(mapped("n3", 5)), ALIASED[2:], "n3"),
    Case("a map to a higher GPU index than any known one", asks(mapped("n3", 8)), ALIASED[2:], "n3"),
    Case(
        "a map's GPUs are held even where none are advertised",
        asks(mapped("n3", 5)),
        ALIASED[2:],
        "",
        Reason.DEVICE_HELD,
        on("n3", pod("other", mapped("n3", 5, group="y/map")), devices=(5,)),
    ),
    Case(
        "a map's GPUs are checked where some are advertised",
        asks(mapped("n2", 2)),
        ALIASED[1:2],
        "",
        Reason.DEVICE_MISSING,
    ),
    Case("a map's GPUs are checked one by one", asks(mapped("n2", 0, 7)), ALIASED[1:2], "", Reason.DEVICE_MISSING),
    Case(
        "a map to an unhealthy GPU",
        asks(mapped("n1", 1)),
        [gpu_node("n1", 2, unhealthy=frozenset({1}))],
        "",
        Reason.DEVICE_MISSING,
    ),
    Case("an index that no node has", asks(mapped("n3", 5000)), ALIASED[2:], "", Reason.DEVICE_MISSING, ours=True),
    Case("the last index that is accepted", asks(mapped("n3", 127)), ALIASED[2:], "n3"),
    Case("the first index that is refused", asks(mapped("n3", 128)), ALIASED[2:], "", Reason.DEVICE_MISSING, ours=True),
    Case(
        "pods of one map share",
        asks(MINE),
        [ASSIGNED],
        "n1",
        None,
        on("n1", pod("other", mapped("n1", 0, 1)), devices=(0, 1)),
    ),
    Case(
        "pods of one map share the GPUs that both name",
        asks(MINE),
        [ASSIGNED],
        "n1",
        None,
        on("n1", pod("other", mapped("n1", 1)), devices=(1,)),
    ),
    Case(
        "pods of two maps do not share",
        asks(MINE),
        [ASSIGNED],
        "",
        Reason.DEVICE_HELD,
        on("n1", pod("other", mapped("n1", 1, group="y/map")), devices=(1,)),
    ),
    Case(
        "a map's GPU that is held by a request",
        asks(MINE),
        [ASSIGNED],
        "",
        Reason.DEVICE_HELD,
        on("n1", pod("other", whole(1)), devices=(1,)),
    ),
    Case(
        "a map's GPU that carries a share",
        asks(MINE),
        [ASSIGNED],
        "",
        Reason.DEVICE_HELD,
        on("n1", pod("other", share(100)), devices=(1,)),
    ),
    Case(
        "a map beside other GPUs in use",
        asks(mapped("n1", 0)),
        [ASSIGNED],
        "n1",
        None,
        on("n1", pod("other", whole(1)), devices=(1,)),
    ),
    Case(
        "a map beside a pod with unrecorded devices",
        asks(MINE),
        [gpu_node("n1", 4)],
        "",
        Reason.DEVICES_UNRECORDED,
        on("n1", pod("other", whole(1))),
    ),
    Case("a map on a node whose device plugin assigns the GPUs", asks(MINE), [COUNTED], "n1"),
    Case(
        "a map on a node with too few GPUs left by the device plugin",
        asks(MINE),
        [COUNTED],
        "",
        Reason.DEVICE_HELD,
        on("n1", pod("other", whole(1))),
    ),
    Case(
        "a map's GPUs count against whole GPUs",
        asks(whole(1)),
        [COUNTED],
        "",
        Reason.RESOURCE,
        on("n1", pod("other", MINE), devices=(0, 1)),
    ),
    Case(
        "a map with a request on a node whose devices are not assigned",
        asks(mapped_request("n1", 0, 1)),
        [COUNTED],
        "",
        Reason.NO_ASSIGNED_DEVICES,
    ),
    Case(
        "a map without a request on a node with GPUs of another resource",
        asks(replace(MINE, gpu_resource="amd.com/gpu")),
        [ASSIGNED],
        "",
        Reason.OTHER_GPUS,
    ),
    Case(
        "a map without a request on a node with GPUs of its resource",
        asks(replace(MINE, gpu_resource=GPU)),
        [ASSIGNED],
        "n1",
    ),
    Case(
        "a map without a request on a node that advertises no GPUs",
        asks(replace(MINE, gpu_resource="amd.com/gpu")),
        [node("n1")],
        "n1",
    ),
    Case(
        "a map with a request on a node whose devices are assigned", asks(mapped_request("n1", 0, 1)), [ASSIGNED], "n1"
    ),
    Case(
        "a map with a request whose GPU is in use",
        asks(mapped_request("n1", 0)),
        [ASSIGNED],
        "",
        Reason.DEVICE_HELD,
        on("n1", pod("other", whole(1)), devices=(0,)),
    ),
]

CASES = [
    *RESOURCES,
    *NODE_CASES,
    *TAINT_CASES,
    *PORT_CASES,
    *AFFINITY_CASES,
    *ANTI_CASES,
    *SPREAD_CASES,
    *GPU_CASES,
    *MAP_CASES,
]


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_pod_fits_the_nodes_that_the_rule_allows(case: Case) -> None:
    cluster = build_cluster(Fleet(list(case.nodes), list(case.placed)))
    accepted = {name for name, slot in cluster.table.slots.items() if fits(cluster, case.pod, slot)}
    assert accepted == set(case.accepted.split())


SHARED = [case for case in CASES if not case.ours]


@pytest.mark.parametrize("case", SHARED, ids=[case.id for case in SHARED])
def test_the_reference_implementation_agrees(case: Case) -> None:
    assert oracle.accepted_nodes(Fleet(list(case.nodes), list(case.placed)), case.pod) == set(case.accepted.split())


REASONED = [case for case in CASES if case.reason is not None]


@pytest.mark.parametrize("case", REASONED, ids=[case.id for case in REASONED])
def test_a_refusal_names_its_rule(case: Case) -> None:
    cluster = build_cluster(Fleet(list(case.nodes), list(case.placed)))
    for name in {each.name for each in case.nodes} - set(case.accepted.split()):
        slots = np.array([cluster.table.slots[name]])
        reasons = [reason for reason, _, refused in refusals(cluster, case.pod, slots) if refused[0]]
        assert reasons[0] is case.reason


def test_a_removed_node_takes_no_pod() -> None:
    cluster = build_cluster(Fleet([node("n1"), node("n2")]))
    slot = cluster.table.slots["n1"]
    cluster.remove_node("n1")
    assert not fits(cluster, asks(), slot)


@pytest.mark.parametrize("shape", [share(300), mapped("n", 0)], ids=["share", "map"])
def test_a_node_with_unrecorded_devices_has_no_capacity(shape: Shape) -> None:
    cluster = Cluster()
    cluster.put_node(gpu_node("n", 2))
    cluster.add(pod("partly", share(300)), "n", (0,))
    assert capacity_of(cluster, share(300)).total > 0
    cluster.add(pod("unrecorded", whole(1)), "n", None)
    assert capacity_of(cluster, shape).total == 0
