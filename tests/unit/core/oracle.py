"""Reference implementation of placement in dictionaries and loops: one pod on one node; small gangs by brute force.

Written from the Filter plugins of kube-scheduler and from the design's rules for GPUs, never from the code under test.
It is slow and meant to be obvious.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from gpu_scheduler.core.model import (
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
    TopologyRule,
)
from gpu_scheduler.core.selectors import LabelSelector, NodeTerm, NodeTerms, PodMatch, Requirement, SelectorOperator

WHOLE_CARD = 1000
LEVELS = (
    ("zone", "topology.kubernetes.io/zone"),
    ("rack", "gpu-scheduler.io/rack"),
    ("nvlink", "gpu-scheduler.io/nvlink-block"),
)


@dataclass(frozen=True)
class Placed:
    """A pod on a node with its recorded devices."""

    pod: Pod
    node: str
    devices: tuple[int, ...] = ()


@dataclass
class Fleet:
    """All nodes and the pods on them."""

    nodes: list[Node]
    placed: list[Placed] = field(default_factory=list)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def on(self, name: str) -> list[Placed]:
        return [placed for placed in self.placed if placed.node == name]

    def with_pod(self, pod: Pod, node: str, devices: tuple[int, ...]) -> Fleet:
        return Fleet(self.nodes, [*self.placed, Placed(pod, node, devices)])


def accepted_nodes(fleet: Fleet, pod: Pod) -> set[str]:
    """The names of the nodes that one more pod fits."""
    return {node.name for node in fleet.nodes if fits(fleet, pod, node.name)}


def fits(fleet: Fleet, pod: Pod, name: str) -> bool:
    """Whether one more pod fits the node."""
    return next(iter(device_choices(fleet, pod, name)), None) is not None


def device_choices(fleet: Fleet, pod: Pod, name: str) -> Iterator[tuple[int, ...]]:
    """Every set of devices that the pod can get on the node; none if it does not fit."""
    node = fleet.node(name)
    shape = pod.shape
    if not (
        welcomes(node, shape)
        and selects(node, shape)
        and has_resources(fleet, shape, node)
        and has_ports(fleet, shape.host_ports, node)
        and keeps_anti_affinity(fleet, pod, node)
        and keeps_affinity(fleet, pod, node)
        and all(keeps_spread(fleet, pod, node, spread) for spread in shape.spread)
    ):
        return
    yield from _devices(fleet, shape, node)


# -- the node alone


def welcomes(node: Node, shape: Shape) -> bool:
    """NodeUnschedulable, TaintToleration, and readiness as one of the taints that the node controller sets."""
    taints = [taint for taint in node.taints if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE]
    if node.unschedulable:
        taints.append(Taint("node.kubernetes.io/unschedulable", "", TaintEffect.NO_SCHEDULE))
    if not node.ready:
        names = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        possible = [Taint(name, "", TaintEffect.NO_SCHEDULE) for name in names]
        if not any(tolerates(toleration, taint) for toleration in shape.tolerations for taint in possible):
            return False
    return all(any(tolerates(toleration, taint) for toleration in shape.tolerations) for taint in taints)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """v1.Toleration.ToleratesTaint."""
    if toleration.effect is not None and toleration.effect is not taint.effect:
        return False
    if toleration.key not in ("", taint.key):
        return False
    return toleration.exists or toleration.value == taint.value


def selects(node: Node, shape: Shape) -> bool:
    """NodeAffinity and VolumeZone/VolumeBinding: the selector, the affinity, and every volume's own affinity."""
    if not all(holds(requirement, node.labels) for requirement in shape.node_labels):
        return False
    if shape.node_terms is not None and not any_term(shape.node_terms, node):
        return False
    return all(any_term(terms, node) for terms in shape.volume_terms)


def any_term(terms: NodeTerms, node: Node) -> bool:
    return any(term_matches(term, node) for term in terms)


def term_matches(term: NodeTerm, node: Node) -> bool:
    if not term.labels and not term.fields:
        return False
    fields = {"metadata.name": node.name}
    return all(holds(r, node.labels) for r in term.labels) and all(holds(r, fields) for r in term.fields)


def holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """labels.Requirement.Matches."""
    present = requirement.key in labels
    value = labels.get(requirement.key, "")
    match requirement.operator:
        case SelectorOperator.IN:
            return present and value in requirement.values
        case SelectorOperator.NOT_IN:
            return not present or value not in requirement.values
        case SelectorOperator.EXISTS:
            return present
        case SelectorOperator.DOES_NOT_EXIST:
            return not present
        case SelectorOperator.GT | SelectorOperator.LT:
            if not present:
                return False
            try:
                left, right = int(value), int(requirement.values[0])
            except ValueError:
                return False
            return left > right if requirement.operator is SelectorOperator.GT else left < right


# -- free resources of the node


def has_resources(fleet: Fleet, shape: Shape, node: Node) -> bool:
    """NodeResourcesFit: only requested resources are compared, and always the number of pods."""
    if len(fleet.on(node.name)) + 1 > node.allocatable.get("pods", 0):
        return False
    return all(amount <= left(fleet, node, name) for name, amount in shape.request if amount > 0)


def left(fleet: Fleet, node: Node, resource: str) -> int:
    """The free amount of a resource; a GPU in use counts once, a pod with unrecorded GPUs by its request."""
    used = 0
    for placed in fleet.on(node.name):
        if placed.pod.shape.gpus and resource == placed.pod.shape.gpu_resource and placed.devices:
            continue
        used += dict(placed.pod.shape.request).get(resource, 0)
    if resource == node.gpu_resource:
        used += len({device for placed in fleet.on(node.name) for device in placed.devices})
    return node.allocatable.get(resource, 0) - used


def has_ports(fleet: Fleet, wanted: Sequence[HostPort], node: Node) -> bool:
    """NodePorts: the same port and protocol conflict on the same address, and 0.0.0.0 is every address."""
    for placed in fleet.on(node.name):
        for taken in placed.pod.shape.host_ports:
            for port in wanted:
                same = (taken.port, taken.protocol) == (port.port, port.protocol)
                if same and (taken.ip == port.ip or taken.ip == "0.0.0.0" or port.ip == "0.0.0.0"):
                    return False
    return True


# -- other pods


def is_meant(match: PodMatch, pod: Pod) -> bool:
    """Whether a pod term selects a pod."""
    if match.selector is None:
        return False
    selected = match.namespace_selector is not None and all_hold(match.namespace_selector, pod.namespace_labels)
    return (selected or pod.namespace in match.namespaces) and all_hold(match.selector, pod.labels)


def all_hold(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    return all(holds(requirement, labels) for requirement in selector.requirements)


def same_domain(key: str, one: Node, other: Node) -> bool:
    return key in one.labels and key in other.labels and one.labels[key] == other.labels[key]


def keeps_anti_affinity(fleet: Fleet, pod: Pod, node: Node) -> bool:
    """InterPodAffinity: neither the pod's own anti-affinity terms nor those of placed pods are violated."""
    for placed in fleet.placed:
        there = fleet.node(placed.node)
        if _offends(pod.shape.anti_affinity, placed.pod, node, there):
            return False
        if _offends(placed.pod.shape.anti_affinity, pod, node, there):
            return False
    return True


def _offends(terms: Sequence[PodTerm], other: Pod, node: Node, there: Node) -> bool:
    return any(is_meant(term.match, other) and same_domain(term.key, node, there) for term in terms)


def keeps_affinity(fleet: Fleet, pod: Pod, node: Node) -> bool:
    """InterPodAffinity: a pod that matches all terms must be in the domain of each; the first pod of a group fits."""
    terms = pod.shape.affinity
    if not terms:
        return True
    if any(term.key not in node.labels for term in terms):
        return False
    homes = [fleet.node(p.node) for p in fleet.placed if all(is_meant(term.match, p.pod) for term in terms)]
    if all(any(same_domain(term.key, node, home) for home in homes) for term in terms):
        return True
    first = not any(term.key in home.labels for home in homes for term in terms)
    return first and all(is_meant(term.match, pod) for term in terms)


def keeps_spread(fleet: Fleet, pod: Pod, node: Node, spread: Spread) -> bool:
    """PodTopologySpread with whenUnsatisfiable DoNotSchedule."""
    if spread.key not in node.labels:
        return False
    counts: dict[str, int] = {}
    for other in fleet.nodes:
        if any(rule.key not in other.labels for rule in pod.shape.spread):
            continue
        if spread.honor_affinity and not _is_affine(other, pod.shape):
            continue
        if spread.honor_taints and not _tolerates_all(other, pod.shape):
            continue
        matched = [p for p in fleet.on(other.name) if is_meant(spread.match, p.pod) and not p.pod.deleting]
        value = other.labels[spread.key]
        counts[value] = counts.get(value, 0) + len(matched)
    lowest = min(counts.values(), default=0)
    if len(counts) < spread.min_domains:
        lowest = 0
    here = counts.get(node.labels[spread.key], 0) + (1 if is_meant(spread.match, pod) else 0)
    return here - lowest <= spread.max_skew


def _is_affine(node: Node, shape: Shape) -> bool:
    selected = all(holds(requirement, node.labels) for requirement in shape.node_labels)
    return selected and (shape.node_terms is None or any_term(shape.node_terms, node))


def _tolerates_all(node: Node, shape: Shape) -> bool:
    strict = [taint for taint in node.taints if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE]
    return all(any(tolerates(toleration, taint) for toleration in shape.tolerations) for taint in strict)


# -- GPUs, by section 6 of the design


def _devices(fleet: Fleet, shape: Shape, node: Node) -> Iterator[tuple[int, ...]]:
    if not shape.wants_devices:
        yield ()
        return
    if node.assigns_devices and any(p.pod.shape.wants_devices and not p.devices for p in fleet.on(node.name)):
        return
    if shape.device_map is not None:
        if _map_is_free(fleet, shape, shape.device_map, node):
            yield shape.device_map.devices
    elif shape.gpu_milli:
        yield from _share_choices(fleet, shape, node)
    elif node.assigns_devices:
        yield from combinations(_idle(fleet, node), shape.gpus)
    else:
        yield ()


def _healthy(node: Node) -> list[int]:
    return [index for index in range(node.gpus) if index not in node.unhealthy]


def used_milli(fleet: Fleet, node: Node) -> dict[int, int]:
    """The milli in use of every GPU; pods of one map group share a GPU and use it once."""
    used: dict[int, int] = {}
    shared: set[tuple[int, str]] = set()
    for placed in fleet.on(node.name):
        shape = placed.pod.shape
        for device in placed.devices:
            if shape.device_map is not None:
                if (device, shape.device_map.group) in shared:
                    continue
                shared.add((device, shape.device_map.group))
            used[device] = used.get(device, 0) + (shape.gpu_milli or WHOLE_CARD)
    return used


def _idle(fleet: Fleet, node: Node) -> list[int]:
    used = used_milli(fleet, node)
    return [index for index in _healthy(node) if index not in used]


def _share_choices(fleet: Fleet, shape: Shape, node: Node) -> Iterator[tuple[int, ...]]:
    if not node.assigns_devices or shape.gpu_resource not in ("", node.gpu_resource):
        return
    used = used_milli(fleet, node)
    may_open = left(fleet, node, node.gpu_resource) > 0
    for index in _healthy(node):
        if (index in used or may_open) and WHOLE_CARD - used.get(index, 0) >= shape.gpu_milli:
            yield (index,)


def _map_is_free(fleet: Fleet, shape: Shape, entry: DeviceMap, node: Node) -> bool:
    """The map's node, its devices there, and no pod outside its group on them."""
    labelled = [other.name for other in fleet.nodes if other.labels.get("gpu-node-name") == entry.node]
    named = labelled or [other.name for other in fleet.nodes if other.name == entry.node]
    if named != [node.name]:
        return False
    if shape.gpus and not node.assigns_devices:
        return False
    if not shape.gpus and shape.gpu_resource and node.gpu_resource not in ("", shape.gpu_resource):
        return False
    if node.gpus and any(device not in _healthy(node) for device in entry.devices):
        return False
    held: set[int] = set()
    for placed in fleet.on(node.name):
        theirs = placed.pod.shape.device_map
        for device in set(placed.devices) & set(entry.devices):
            held.add(device)
            if theirs is None or theirs.group != entry.group:
                return False
    # Where GPUs are only counted, as many must be free as the map names, whatever their indices.
    return not node.gpu_resource or len(set(entry.devices) - held) <= left(fleet, node, node.gpu_resource)


# -- whole gangs by brute force


@dataclass(frozen=True)
class Ask:
    """Equal pods that must all be placed, within one domain of each topology rule of their role."""

    pods: tuple[Pod, ...]
    topology: tuple[TopologyRule, ...] = ()


def domain_of(node: Node, level: str) -> object:
    """A node's domain at a level: the node itself, its label path, or the value of another label; None without one."""
    if level == "node":
        return node.name
    names = [name for name, _ in LEVELS]
    if level not in names:
        return node.labels.get(level)
    path = [node.labels.get(label) for _, label in LEVELS[: names.index(level) + 1]]
    return None if path[-1] is None else tuple(path)


def can_place(fleet: Fleet, asks: Sequence[Ask], topology: tuple[TopologyRule, ...] = ()) -> bool:
    """Whether any order and any choice of nodes and devices places every pod of every ask."""
    return _Search(fleet, asks, topology).run()


Homes = dict[tuple[str | None, str], object]
"""The domain that a role (None: the whole gang) is in at a level."""


class _Search:
    """Depth-first search over (next ask, node, devices) that remembers dead ends."""

    def __init__(self, fleet: Fleet, asks: Sequence[Ask], topology: tuple[TopologyRule, ...]) -> None:
        self.fleet = fleet
        self.asks = asks
        self.gang_levels = [rule.level for rule in topology if rule.required]
        self.dead: set[object] = set()

    def run(self) -> bool:
        return self._go(self.fleet, tuple(0 for _ in self.asks), {})

    def _go(self, fleet: Fleet, done: tuple[int, ...], homes: Homes) -> bool:
        if all(count == len(ask.pods) for count, ask in zip(done, self.asks, strict=True)):
            return True
        state = self._state(fleet, done)
        if state in self.dead:
            return False
        for i, ask in enumerate(self.asks):
            if done[i] == len(ask.pods):
                continue
            pod = ask.pods[done[i]]
            after = (*done[:i], done[i] + 1, *done[i + 1 :])
            for node in fleet.nodes:
                extended = self._enter(ask, node, homes)
                if extended is None:
                    continue
                for devices in self._devices(fleet, pod, node):
                    if self._go(fleet.with_pod(pod, node.name, devices), after, extended):
                        return True
        self.dead.add(state)
        return False

    def _enter(self, ask: Ask, node: Node, homes: Homes) -> Homes | None:
        """The fixed domains once a pod of this ask is on the node, or None if the pod would leave one of them."""
        extended = dict(homes)
        own = [(ask.pods[0].role, rule.level) for rule in ask.topology if rule.required]
        for key in [*((None, level) for level in self.gang_levels), *own]:
            domain = domain_of(node, key[1])
            if domain is None or extended.setdefault(key, domain) != domain:
                return None
        return extended

    def _state(self, fleet: Fleet, done: tuple[int, ...]) -> object:
        new = fleet.placed[len(self.fleet.placed) :]
        uid_to_ask = {pod.uid: i for i, ask in enumerate(self.asks) for pod in ask.pods}
        return frozenset(
            (name, tuple(sorted((uid_to_ask[p.pod.uid], p.devices) for p in new if p.node == name)))
            for name in {p.node for p in new}
        )

    def _devices(self, fleet: Fleet, pod: Pod, node: Node) -> Iterator[tuple[int, ...]]:
        """Device choices, one for each that makes a difference to later pods."""
        choices = device_choices(fleet, pod, node.name)
        if any(ask.pods[0].shape.device_map is not None for ask in self.asks):
            yield from choices
        elif pod.shape.gpu_milli:
            used = used_milli(fleet, node)
            by_amount: dict[int, tuple[int, ...]] = {}
            for choice in choices:
                by_amount.setdefault(used.get(choice[0], 0), choice)
            yield from by_amount.values()
        else:
            # Idle GPUs are equal to pods that only count them.
            yield from islice(choices, 1)
