"""The bid of a gang (what it requests), and the topology domains that can hold it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Bools, Codes, Ints
from gpu_scheduler.core.cluster.topology import NODE
from gpu_scheduler.core.model import Pod, Shape, Slot, TopologyRule
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.distribute import cap_nodes
from gpu_scheduler.core.placement.placeholders import Copies

MAX_DOMAINS = 64
"""How many domains of a level are tried for one gang before the next level, or the refusal "not found yet"."""


@dataclass(slots=True)
class MemberGroup:
    """Interchangeable waiting members of one role. `anchors` are the nodes of running members of the role; every member
    of a `whole` group belongs to the minimum."""

    role: str
    pods: Sequence[Pod]
    topology: tuple[TopologyRule, ...] = ()
    anchors: tuple[str, ...] = ()
    whole: bool = False


@dataclass(slots=True)
class Bid:
    """The request of one gang, offered to the cluster: at least `needed` of the groups' pods, and `role_needs` of each
    role, are placed together or not at all; further pods as far as they fit.

    `excluded` nodes may not be used; `tie_break` chooses between nodes that the pods score alike.
    """

    groups: list[MemberGroup]
    needed: int
    role_needs: dict[str, int] = field(default_factory=dict)
    topology: tuple[TopologyRule, ...] = ()
    anchors: tuple[str, ...] = ()
    excluded: Bools | None = None
    tie_break: Ints | None = None

    @property
    def size(self) -> int:
        """The number of waiting members."""
        return sum(len(group.pods) for group in self.groups)

    @property
    def shapes(self) -> list[tuple[Shape, int]]:
        """The shape and the number of members of every group."""
        return [(group.pods[0].shape, len(group.pods)) for group in self.groups]


def count_only(cluster: Cluster, groups: list[MemberGroup]) -> list[MemberGroup]:
    """The groups with copies of one pod instead of equal pods, unless rules between pods tell them apart: enough for
    a trial whose pods are not kept."""
    if cluster.pod_counts.anti_affinity_matches() or any(group.pods[0].shape.has_pod_terms for group in groups):
        return groups
    return [replace(group, pods=Copies(group.pods[0], len(group.pods))) for group in groups]


Placement = list[tuple[Pod, Slot]]
"""Every placed member with its slot."""

Counts = tuple[int, ...]


def domains(cluster: Cluster, bid: Bid, counts: Counts) -> Iterator[Bools | None]:
    """The node masks that can hold the whole gang, in the order to try them; None is the whole cluster."""
    if not bid.topology:
        yield usable_nodes(cluster, bid)
        return
    usable = usable_nodes(cluster, bid)
    for level in cluster.topology.search_levels(bid.topology):
        if level:
            yield from islice(_level_domains(cluster, bid, counts, level, usable), MAX_DOMAINS)
        else:
            yield usable


def usable_nodes(cluster: Cluster, bid: Bid) -> Bools | None:
    """The nodes that the bid does not exclude; None for all."""
    return None if bid.excluded is None else cluster.table.alive & ~bid.excluded


def _level_domains(cluster: Cluster, bid: Bid, counts: Counts, level: str, usable: Bools | None) -> Iterator[Bools]:
    """Domains of a level with enough capacity for every group, the least waste first."""
    codes = cluster.topology.required_codes(level, bid.topology)
    width = int(codes.max(initial=-1)) + 1
    if not width:
        return
    inside = codes >= 0 if usable is None else (codes >= 0) & usable
    possible = _anchored(cluster, codes, width, bid.anchors)
    waste = np.zeros(width)
    for group, wanted in zip(bid.groups, counts, strict=True):
        if wanted:
            sums = _domain_capacity(cluster, group, level, codes, inside)
            possible &= sums >= wanted
            waste += sums - wanted
    waste[~possible] = np.inf
    while not np.isinf(waste[code := int(waste.argmin())]):
        within = codes == code
        yield within if usable is None else within & usable
        waste[code] = np.inf


def _domain_capacity(
    cluster: Cluster, group: MemberGroup, level: str, codes: Codes, inside: Bools
) -> npt.NDArray[np.float64]:
    """How many pods of a group each domain can take; a role with its own rule must fit in one sub-domain."""
    pod = group.pods[0]
    counts = cap_nodes(cluster, pod, capacity_of(cluster, pod.shape).counts)
    own = next((rule.level for rule in group.topology if rule.required), None)
    width = int(codes.max()) + 1
    if own is None and level == NODE:
        return (counts[:width] * inside[:width]).astype(np.float64)
    if own is None:
        return np.bincount(codes[inside], weights=counts[inside], minlength=width).astype(np.float64)
    below = cluster.topology.required_codes(own, group.topology)
    both = inside & (below >= 0)
    pairs = codes[both].astype(np.int64) * (int(below.max(initial=0)) + 1) + below[both]
    found, number = np.unique(pairs, return_inverse=True)
    sums = np.bincount(number, weights=counts[both], minlength=len(found))
    best = np.zeros(width)
    np.maximum.at(best, found // (int(below.max(initial=0)) + 1), sums)
    return best


def _anchored(cluster: Cluster, codes: Codes, width: int, anchors: tuple[str, ...]) -> Bools:
    """The domains that are possible next to running members: only theirs; none if they run in several."""
    homes = {int(codes[cluster.table.slots[node]]) for node in anchors if node in cluster.table.slots}
    if not homes:
        return np.ones(width, bool)
    possible = np.zeros(width, bool)
    if len(homes) == 1 and (home := homes.pop()) >= 0:
        possible[home] = True
    return possible


def own_domains(cluster: Cluster, group: MemberGroup) -> Codes | None:
    """The domain codes one of which must hold a role, given its running members; None without a required rule."""
    level = cluster.topology.search_levels(group.topology)[-1]
    if not level:
        return None
    codes = cluster.topology.required_codes(level, group.topology)
    possible = _anchored(cluster, codes, int(codes.max(initial=-1)) + 1, group.anchors)
    return np.where(np.append(possible, False)[codes], codes, -1)


def nodes_for_surplus(cluster: Cluster, bid: Bid, placed: Placement) -> Bools | None:
    """The nodes for members beyond the minimum: the gang's required domain, or the one with the most capacity."""
    usable = usable_nodes(cluster, bid)
    level = cluster.topology.search_levels(bid.topology)[-1]
    if not level:
        return usable
    codes = cluster.topology.required_codes(level, bid.topology)
    free = np.zeros(int(codes.max(initial=-1)) + 2)
    for group in bid.groups:
        counts = capacity_of(cluster, group.pods[0].shape).counts
        np.add.at(free, codes, counts if usable is None else counts * usable)
    nodes = (*bid.anchors, *(slot.node for _, slot in placed))
    possible = _anchored(cluster, codes, len(free) - 1, nodes)
    home = int(np.where(possible, free[:-1], -1).argmax()) if possible.any() else -2
    inside: Bools = codes == home
    return inside if usable is None else inside & usable
