"""Small clusters for the placement tests: builders, and random fleets and gangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.model import (
    HOSTNAME,
    DeviceMap,
    HostPort,
    Node,
    Pod,
    PodTerm,
    Preference,
    Shape,
    Spread,
    Taint,
    TaintEffect,
    Toleration,
    TopologyRule,
)
from gpu_scheduler.core.placement.domains import Bid, MemberGroup
from gpu_scheduler.core.selectors import LabelSelector, NodeTerm, PodMatch, Requirement, SelectorOperator, labels_equal
from tests.unit.core.oracle import Ask, Fleet

T = TypeVar("T")

GPU = "nvidia.com/gpu"
ZONE = "topology.kubernetes.io/zone"
RACK = "gpu-scheduler.io/rack"
NVLINK = "gpu-scheduler.io/nvlink-block"
ROOM = {"cpu": 64_000, "memory": 1 << 36, "ephemeral-storage": 1 << 36, "pods": 110}


def node(name: str, **changes: object) -> Node:
    """A ready node with many resources but no GPUs, labelled with its hostname."""
    labels = changes.pop("labels", {})
    allocatable = changes.pop("allocatable", {})
    assert isinstance(labels, Mapping)
    assert isinstance(allocatable, Mapping)
    plain = Node(name, {**ROOM, **allocatable}, {HOSTNAME: name, **labels})
    return replace(plain, **changes)  # type: ignore[arg-type]


def gpu_node(name: str, gpus: int, *, assigns: bool = True, **changes: object) -> Node:
    """A node with GPUs, which by default the scheduler assigns."""
    return node(
        name, **{"allocatable": {GPU: gpus}, "gpu_resource": GPU, "gpus": gpus, "assigns_devices": assigns, **changes}
    )


def plain(cpu: int = 100, /, **request: int) -> Shape:
    """A shape that requests cpu and the named resources."""
    return Shape(request=tuple(sorted({"cpu": cpu, **request}.items())))


def whole(gpus: int, **changes: object) -> Shape:
    """A shape of whole GPUs."""
    return replace(Shape(request=(("cpu", 100), (GPU, gpus)), gpu_resource=GPU, gpus=gpus), **changes)  # type: ignore[arg-type]


def share(milli: int) -> Shape:
    """A shape with a share of one GPU."""
    return Shape(request=(("cpu", 100),), gpu_resource=GPU, gpu_milli=milli)


def mapped(name: str, *devices: int, group: str = "x/map") -> Shape:
    """A shape with a gpu-scheduling-map entry."""
    return Shape(request=(("cpu", 100),), device_map=DeviceMap(name, devices, group))


def pod(uid: str, shape: Shape | None = None, **changes: object) -> Pod:
    """A waiting pod of namespace x, labelled app=a."""
    waiting = Pod(uid, "x", uid, shape if shape is not None else plain(), {"app": "a"}, {"team": "blue"})
    return replace(waiting, **changes)  # type: ignore[arg-type]


def apps(*values: str, namespaces: tuple[str, ...] = ("x",)) -> PodMatch:
    """Selects the pods whose label app has one of the values."""
    return PodMatch(LabelSelector((Requirement("app", SelectorOperator.IN, values),)), namespaces)


def build_cluster(fleet: Fleet) -> Cluster:
    """The fleet as a cluster of the code under test."""
    cluster = Cluster()
    for each in fleet.nodes:
        cluster.put_node(each)
    for placed in fleet.placed:
        cluster.add(placed.pod, placed.node, placed.devices)
    return cluster


def gang_of(shape: Shape, size: int, *, needed: int | None = None, topology: tuple[TopologyRule, ...] = ()) -> Bid:
    """A bid of `size` equal pods."""
    pods = [pod(f"member-{i}", shape) for i in range(size)]
    return Bid([MemberGroup("", pods)], size if needed is None else needed, topology=topology)


# -- random fleets


class Pick(Protocol):
    """Chooses one of several options, by a seeded generator or by hypothesis."""

    def __call__(self, options: Sequence[T], /) -> T: ...


def picking(rng: Random) -> Pick:
    """Choices by a seeded generator."""
    return rng.choice


def drawing(draw: st.DrawFn) -> Pick:
    """Choices by hypothesis, which shrinks to the first option."""

    def pick(options: Sequence[T], /) -> T:
        return draw(st.sampled_from(options))

    return pick


@dataclass(frozen=True)
class Scope:
    """How large and how unusual a fleet may be."""

    nodes: int = 5
    fewest: int = 1
    placed: int = 5
    odd_nodes: bool = True
    """Taints, missing labels, and nodes that are not ready or have unhealthy GPUs."""


def random_fleet(pick: Pick, scope: Scope) -> Fleet:
    """Nodes with pods on them that need not satisfy our rules."""
    nodes = [_random_node(pick, f"n{i}", scope) for i in range(pick(range(scope.fewest, scope.nodes + 1)))]
    fleet = Fleet(nodes)
    for i in range(pick(range(scope.placed + 1))):
        home = pick(nodes)
        shape = random_shape(pick, nodes)
        devices = _seen_devices(pick, fleet, shape, home)
        if devices is not None:
            fleet = fleet.with_pod(random_pod(pick, f"placed-{i}", shape), home.name, devices)
    return fleet


def _random_node(pick: Pick, name: str, scope: Scope) -> Node:
    labels = {HOSTNAME: name, ZONE: pick("ab"), RACK: pick("12"), NVLINK: pick("pq")}
    odd = scope.odd_nodes
    if odd:
        labels.pop(pick(["", "", "", HOSTNAME, ZONE, RACK, NVLINK]), None)
        labels["disk"] = pick(["", "", "ssd", "9", "12"])
        labels["gpu-node-name"] = pick([""] * 8 + ["n0", "gpu-a"])
        labels = {key: value for key, value in labels.items() if value}
    kind = pick(["none", "assigned", "assigned", "counted"])
    gpus = 0 if kind == "none" else pick([1, 2, 4])
    unhealthy = frozenset({pick(range(gpus))}) if gpus and odd and pick([False] * 4 + [True]) else frozenset()
    amounts = {
        "cpu": pick([800, 400, 200, 100]),
        "memory": pick([80, 40, 20]),
        "ephemeral-storage": 100,
        "pods": pick([110, 110, 110, 3, 2]),
        "hugepages-2Mi": pick([0, 4]),
    }
    if gpus:
        amounts[GPU] = gpus - pick([0, 0, 0, 1]) * bool(unhealthy)
    return Node(
        name,
        amounts,
        labels,
        taints=pick([()] * 9 + [(Taint("k", "v", effect),) for effect in TaintEffect]) if odd else (),
        unschedulable=odd and pick([False] * 9 + [True]),
        ready=not (odd and pick([False] * 9 + [True])),
        gpu_resource=GPU if gpus else "",
        gpus=gpus,
        assigns_devices=kind == "assigned",
        unhealthy=unhealthy,
    )


def _seen_devices(pick: Pick, fleet: Fleet, shape: Shape, home: Node) -> tuple[int, ...] | None:
    """Devices that a correct scheduler could have recorded for a pod on a node; None without any."""
    if not shape.wants_devices or (home.assigns_devices and pick([False] * 11 + [True])):
        return ()
    if shape.device_map is not None:
        return shape.device_map.devices
    if not home.assigns_devices:
        return () if shape.gpus else None
    gpus = list(range(home.gpus))
    taken = {device for placed in fleet.on(home.name) for device in placed.devices}
    if shape.gpu_milli:
        return (pick(gpus),) if gpus else None
    free = [gpu for gpu in gpus if gpu not in taken]
    return tuple(free[: shape.gpus]) if len(free) >= shape.gpus else None


def random_pod(pick: Pick, uid: str, shape: Shape) -> Pod:
    """A pod of one of two namespaces and one of two applications."""
    return Pod(
        uid,
        pick(["x", "x", "y"]),
        uid,
        shape,
        {"app": pick("ab"), "tier": pick("st")},
        {"team": pick(["blue", "red"])},
        deleting=pick([False] * 5 + [True]),
    )


def random_shape(pick: Pick, nodes: Sequence[Node], *, terms: bool = True) -> Shape:
    """Any request of a pod; without `terms`, no rules about other pods."""
    shape = random_request(pick, nodes)
    shape = replace(
        shape,
        node_labels=pick([()] * 12 + [labels_equal({ZONE: "a"}), labels_equal({"disk": "ssd"})]),
        node_terms=_random_node_terms(pick, nodes) if pick([False] * 7 + [True]) else None,
        volume_terms=pick([()] * 11 + [((NodeTerm((Requirement(ZONE, SelectorOperator.IN, ("b",)),)),),)]),
        tolerations=pick([()] * 2 + [(toleration,) for toleration in _TOLERATIONS]),
        host_ports=pick([()] * 10 + [(port,) for port in _PORTS] + [_PORTS[1:3]]),
    )
    if not terms:
        return shape
    return replace(
        shape,
        affinity=tuple(random_term(pick) for _ in range(pick(_RARELY))),
        anti_affinity=tuple(random_term(pick) for _ in range(pick(_RARELY))),
        spread=tuple(random_spread(pick) for _ in range(pick(_RARELY))),
    )


def random_request(pick: Pick, nodes: Sequence[Node]) -> Shape:
    """Resources and GPUs only."""
    amounts = {"cpu": pick([100, 0, 100, 200, 300]), "memory": pick([0, 0, 10, 30])}
    amounts[pick(["memory"] * 12 + ["hugepages-2Mi", "example.com/fpga", "ephemeral-storage"])] = pick([0, 2, 60])
    kind = pick([*["none"] * 6, *["whole"] * 3, *["share"] * 3, "map", "map and request"])
    gpus = pick([1, 2, 4]) if kind in ("whole", "map and request") else 0
    if gpus:
        amounts[GPU] = gpus
    entry = None
    if "map" in kind:
        named = pick([*(each.name for each in nodes), "gpu-a", "nowhere"])
        devices = tuple(range(gpus)) if gpus else pick([(0,), (1,), (0, 1), (5,)])
        entry = DeviceMap(named, devices, pick(["x/m", "x/m", "y/o"]))
    return Shape(
        request=tuple(sorted((name, amount) for name, amount in amounts.items() if amount)),
        gpu_resource=GPU if gpus or kind == "share" else "",
        gpus=gpus,
        gpu_milli=pick([300, 500, 700, 1000]) if kind == "share" else 0,
        device_map=entry,
    )


_RARELY = (0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2)
_TOLERATIONS = (
    Toleration(exists=True),
    Toleration("k", exists=True),
    Toleration("k", value="v"),
    Toleration("k", value="other"),
    Toleration("k", exists=True, effect=TaintEffect.NO_SCHEDULE),
    Toleration("node.kubernetes.io/unschedulable", exists=True),
    Toleration("node.kubernetes.io/not-ready", exists=True),
)
_PORTS = (HostPort(80), HostPort(80, ip="10.0.0.1"), HostPort(80, "UDP"), HostPort(81), HostPort(80, ip="10.0.0.2"))


def _random_node_terms(pick: Pick, nodes: Sequence[Node]) -> tuple[NodeTerm, ...]:
    name = pick(nodes).name
    terms = [
        NodeTerm((Requirement(ZONE, SelectorOperator.IN, ("a", "c")),)),
        NodeTerm((Requirement("disk", SelectorOperator.EXISTS), Requirement(ZONE, SelectorOperator.NOT_IN, ("a",)))),
        NodeTerm((Requirement("disk", SelectorOperator.GT, ("10",)),)),
        NodeTerm((Requirement("disk", SelectorOperator.LT, ("10",)),)),
        NodeTerm((Requirement("disk", SelectorOperator.DOES_NOT_EXIST),)),
        NodeTerm(fields=(Requirement("metadata.name", SelectorOperator.IN, (name,)),)),
        NodeTerm(fields=(Requirement("metadata.name", SelectorOperator.NOT_IN, (name,)),)),
        NodeTerm(),
    ]
    return tuple(pick(terms) for _ in range(pick([1, 2])))


def random_match(pick: Pick) -> PodMatch:
    """Selects some of the pods."""
    selector = pick(
        [
            LabelSelector(labels_equal({"app": "a"})),
            LabelSelector(labels_equal({"app": "b"})),
            LabelSelector(labels_equal({"tier": "s"})),
            LabelSelector((Requirement("app", SelectorOperator.NOT_IN, ("a",)),)),
            LabelSelector(labels_equal({"app": "a", "tier": "t"})),
            LabelSelector(),
            None,
        ]
    )
    everywhere = pick([None, None, None, LabelSelector(), LabelSelector(labels_equal({"team": "red"}))])
    return PodMatch(selector, pick([("x",), ("x", "y"), ("y",)]), everywhere)


def random_term(pick: Pick) -> PodTerm:
    """A term about some of the pods."""
    return PodTerm(random_match(pick), pick([HOSTNAME, ZONE, RACK]))


def random_spread(pick: Pick) -> Spread:
    """A spread constraint about some of the pods."""
    return Spread(
        random_match(pick),
        pick([ZONE, HOSTNAME, RACK]),
        max_skew=pick([1, 2]),
        min_domains=pick([1, 1, 2, 3]),
        honor_affinity=pick([True, False]),
        honor_taints=pick([False, True]),
    )


def random_preferences(pick: Pick) -> tuple[Preference, ...]:
    """Preferred terms: they change where pods are placed, never whether."""
    ssd = NodeTerm((Requirement("disk", SelectorOperator.IN, ("ssd",)),))
    return pick([(), (Preference(5, node=ssd),), (Preference(-3, pods=PodTerm(apps("a"), ZONE)),)])


# -- random gangs


@dataclass(frozen=True)
class Problem:
    """A gang to be placed in a fleet."""

    fleet: Fleet
    bid: Bid

    @property
    def asks(self) -> list[Ask]:
        """The gang as values of the reference."""
        return [Ask(tuple(group.pods), group.topology) for group in self.bid.groups]


TOPOLOGIES: tuple[tuple[TopologyRule, ...], ...] = (
    (),
    (),
    (TopologyRule("rack"),),
    (TopologyRule("zone"),),
    (TopologyRule("zone"), TopologyRule("rack", required=False)),
    (TopologyRule(NVLINK),),
    (TopologyRule("rack"), TopologyRule(NVLINK)),
    (TopologyRule("rack", required=False),),
    (TopologyRule("node"),),
)


def _random_member_shape(pick: Pick, others: str) -> Shape:
    """The shape of a member: resources or GPUs, and rules about pods of some applications."""
    kind = pick(["plain", "plain", "plain", "whole", "whole", "share", "share", "map"])
    cpu, gpus, milli = pick([100, 200, 300]), pick([1, 1, 2]), pick([300, 400, 500, 700])
    if kind == "share":
        shape = Shape(request=(("cpu", 100),), gpu_resource=GPU, gpu_milli=milli)
    elif kind == "map":
        shape = mapped(pick(["n0", "n1"]), *pick([(0,), (1,), (0, 1)]))
    elif kind == "whole":
        shape = Shape(request=(("cpu", 100), (GPU, gpus)), gpu_resource=GPU, gpus=gpus)
    else:
        shape = Shape(request=(("cpu", cpu), ("memory", pick([10, 30]))))
    apart = PodTerm(apps(pick(others)), pick([HOSTNAME, ZONE, RACK]))
    together = PodTerm(apps(pick(others)), pick([ZONE, RACK, HOSTNAME]))
    even = Spread(apps(pick(others)), pick([ZONE, HOSTNAME, RACK]), pick([1, 1, 2]), pick([1, 1, 2]))
    return replace(
        shape,
        node_labels=pick([()] * 6 + [labels_equal({ZONE: "a"})]),
        host_ports=pick([()] * 9 + [(HostPort(80),)]),
        anti_affinity=pick([()] * 4 + [(apart,)]),
        affinity=pick([()] * 6 + [(together,)]),
        spread=pick([()] * 9 + [(even,), (even,), (even, replace(even, key=HOSTNAME))]),
        preferences=random_preferences(pick),
    )


def random_problem(pick: Pick, *, groups: int) -> Problem:
    """A gang with this number of groups of equal pods, at most six pods, and a fleet of at most five nodes."""
    fleet = random_fleet(pick, Scope(fewest=2, placed=pick([0, 1, 3]), odd_nodes=pick([False, False, True])))
    others = "abc"[:groups]
    made: list[MemberGroup] = []
    for number in range(groups):
        size = pick([1, 2, 3, 4, 6] if groups == 1 else [1, 1, 2])
        shape = _random_member_shape(pick, others)
        label = {"app": others[number], "tier": "s"}
        role = pick(["worker", f"role-{number}"])
        pods = [pod(f"{number}/{i}", shape, labels=label, role=role) for i in range(size)]
        made.append(MemberGroup(role, pods))
    if groups > 1 and pick([False] * 5 + [True]):
        own = pick(TOPOLOGIES)
        for group in made:
            if group.role == made[0].role:
                group.topology = own
    size = sum(len(group.pods) for group in made)
    return Problem(fleet, Bid(made, size, topology=pick(TOPOLOGIES) if pick([False, True]) else ()))


@st.composite
def problems(draw: st.DrawFn, groups: int) -> Problem:
    """Random problems that hypothesis can shrink."""
    return random_problem(drawing(draw), groups=groups)
