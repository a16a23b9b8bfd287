"""Place one gang: all the members it needs at once, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpu_scheduler.core.capacity import capacity_of
from gpu_scheduler.core.cluster import Cluster
from gpu_scheduler.core.distribute import distribute, fill_nodes, likings
from gpu_scheduler.core.fit import fits
from gpu_scheduler.core.model import Pod, Slot, TopologyRule
from gpu_scheduler.core.nodes import Bools, Codes, Ints
from gpu_scheduler.core.search import Budget, search
from gpu_scheduler.core.topology import NODE

MAX_DOMAINS = 64
"""How many domains are tried for one gang before it is told "not found yet"."""


@dataclass(slots=True)
class Group:
    """Waiting members of one role that are interchangeable. `anchors` are the nodes of their running siblings; of a
    `whole` group every member belongs to the minimum."""

    role: str
    pods: list[Pod]
    topology: tuple[TopologyRule, ...] = ()
    anchors: tuple[str, ...] = ()
    whole: bool = False


@dataclass(slots=True)
class Bid:
    """What one gang asks for: of the groups' pods at least `needed` in all, and `role_needs` of each role.

    `excluded` nodes may not be used; `liking` overrides the pods' own taste.
    """

    groups: list[Group]
    needed: int
    role_needs: dict[str, int] = field(default_factory=dict)
    topology: tuple[TopologyRule, ...] = ()
    anchors: tuple[str, ...] = ()
    excluded: Bools | None = None
    liking: Ints | None = None

    @property
    def size(self) -> int:
        """How many members wait."""
        return sum(len(group.pods) for group in self.groups)


Placement = list[tuple[Pod, Slot]]
"""Every placed member with its slot."""

Counts = tuple[int, ...]


def place_gang(cluster: Cluster, bid: Bid) -> Placement | None:
    """Places every member, else the minimum and as many more as fit; they are assumed. None: nothing has changed."""
    everyone = tuple(len(group.pods) for group in bid.groups)
    if everyone == (bid.needed,) and not bid.topology and bid.liking is None:
        # One group that must be placed whole, anywhere: it is placed or not, and there is nothing to undo.
        return _place_group(cluster, bid.groups[0], bid.needed, _usable(cluster, bid), None)
    minimum = least_counts(cluster, bid)
    for counts in dict.fromkeys((everyone, minimum)):
        with cluster.trial() as trial:
            found = _place_counts(cluster, bid, counts)
            if found is not None:
                placed, within = found
                if counts != everyone:
                    placed += _add_surplus(cluster, bid, placed, within)
                trial.keep()
                return placed
    return None


def least_counts(cluster: Cluster, bid: Bid) -> Counts:
    """How many of each group the minimum takes: what each role needs, then the members that are easiest to place."""
    counts = [0] * len(bid.groups)
    easiest = list(range(len(bid.groups)))
    if len(bid.groups) > 1:
        easiest.sort(key=lambda i: -capacity_of(cluster, bid.groups[i].pods[0].shape).total)
    for i in easiest:
        if bid.groups[i].whole:
            counts[i] = len(bid.groups[i].pods)
    for role, role_need in bid.role_needs.items():
        need = role_need
        for i in easiest:
            if bid.groups[i].role == role and not bid.groups[i].whole:
                take = min(need, len(bid.groups[i].pods))
                counts[i] += take
                need -= take
    missing = bid.needed - sum(counts)
    for i in easiest:
        take = max(0, min(missing, len(bid.groups[i].pods) - counts[i]))
        counts[i] += take
        missing -= take
    return tuple(counts)


def _place_counts(cluster: Cluster, bid: Bid, counts: Counts) -> tuple[Placement, Bools | None] | None:
    """Exactly these counts within one domain of the gang's topology, tightest first."""
    for within in _domains(cluster, bid, counts):
        with cluster.trial() as trial:
            placed = _place_groups(cluster, bid, counts, within)
            if placed is not None:
                trial.keep()
                return placed, within
    return None


def _domains(cluster: Cluster, bid: Bid, counts: Counts) -> Iterator[Bools | None]:
    """The node masks that may hold the whole gang, in the order to try them; None is the whole cluster."""
    if not bid.topology:
        yield _usable(cluster, bid)
        return
    usable = _usable(cluster, bid)
    tried = 0
    for level in cluster.topology.search_levels(bid.topology):
        if not level:
            yield usable
            continue
        for within in _level_domains(cluster, bid, counts, level, usable):
            yield within
            tried += 1
            if tried >= MAX_DOMAINS:
                return


def _usable(cluster: Cluster, bid: Bid) -> Bools | None:
    return None if bid.excluded is None else cluster.table.alive & ~bid.excluded


def _level_domains(cluster: Cluster, bid: Bid, counts: Counts, level: str, usable: Bools | None) -> Iterator[Bools]:
    """Domains of a level in which every group has the capacity it needs, least waste first."""
    codes = cluster.topology.codes(level)
    width = int(codes.max(initial=-1)) + 1
    if not width:
        return
    inside = codes >= 0 if usable is None else (codes >= 0) & usable
    possible = _anchored(cluster, codes, width, bid.anchors)
    waste = np.zeros(width)
    for group, wanted in zip(bid.groups, counts, strict=True):
        if wanted:
            sums = _domain_capacity(cluster, group, level, inside, width)
            possible &= sums >= wanted
            waste += sums - wanted
    waste[~possible] = np.inf
    while not np.isinf(waste[code := int(waste.argmin())]):
        within = codes == code
        yield within if usable is None else within & usable
        waste[code] = np.inf


def _domain_capacity(cluster: Cluster, group: Group, level: str, inside: Bools, width: int) -> npt.NDArray[np.float64]:
    """How many of a group each domain can take; a role with a rule of its own must fit one of its sub-domains."""
    counts = capacity_of(cluster, group.pods[0].shape).counts
    own = next((rule.level for rule in group.topology if rule.required), None)
    codes = cluster.topology.codes(level)
    if own is None and level == NODE:
        return (counts[:width] * inside[:width]).astype(np.float64)
    if own is None:
        return np.bincount(codes[inside], weights=counts[inside], minlength=width).astype(np.float64)
    below = cluster.topology.codes(own)
    both = inside & (below >= 0)
    pairs = codes[both].astype(np.int64) * (int(below.max(initial=0)) + 1) + below[both]
    found, number = np.unique(pairs, return_inverse=True)
    sums = np.bincount(number, weights=counts[both], minlength=len(found))
    best = np.zeros(width)
    np.maximum.at(best, found // (int(below.max(initial=0)) + 1), sums)
    return best


def _anchored(cluster: Cluster, codes: Codes, width: int, anchors: tuple[str, ...]) -> Bools:
    """Which domains members may go to when siblings already run in some: only there."""
    homes = {int(codes[cluster.table.slots[node]]) for node in anchors if node in cluster.table.slots}
    if not homes:
        return np.ones(width, bool)
    possible = np.zeros(width, bool)
    if len(homes) == 1 and (home := homes.pop()) >= 0:
        possible[home] = True
    return possible


# -- groups within one domain


def _place_groups(cluster: Cluster, bid: Bid, counts: Counts, within: Bools | None) -> Placement | None:
    """Groups scarcest first; one that fails moves to the front; then a bounded search."""
    units = [(group, wanted) for group, wanted in zip(bid.groups, counts, strict=True) if wanted]
    if len(units) > 1:
        units.sort(key=lambda unit: capacity_of(cluster, unit[0].pods[0].shape).total / unit[1])
    for _ in range(len(units) + 1):
        placed: Placement = []
        with cluster.trial() as trial:
            for i, (group, wanted) in enumerate(units):
                liking = bid.liking if bid.liking is not None else _spare(cluster, units[i + 1 :])
                part = _place_group(cluster, group, wanted, within, liking)
                if part is None:
                    break
                placed += part
            else:
                trial.keep()
                return placed
        if i == 0:
            break
        units.insert(0, units.pop(i))
    return _search_groups(cluster, units, within)


def _spare(cluster: Cluster, later: list[tuple[Group, int]]) -> Ints | None:
    """Likes the nodes that the groups still to come could use least."""
    if not later:
        return None
    cost = np.zeros(cluster.table.size)
    for group, _ in later:
        capacity = capacity_of(cluster, group.pods[0].shape)
        cost += capacity.counts * (1024 / max(capacity.total, 1))
    return -np.ceil(cost).astype(np.int64)


def _place_group(
    cluster: Cluster, group: Group, wanted: int, within: Bools | None, liking: Ints | None
) -> Placement | None:
    """One group's members, within one domain of its own topology if it has one."""
    if not group.topology:
        return _fill_group(cluster, group, wanted, within, liking)
    alone = Bid([group], wanted, topology=group.topology, anchors=group.anchors)
    if within is not None:
        alone.excluded = ~within
    plain = Group(group.role, group.pods)
    for domain in _domains(cluster, alone, (wanted,)):
        placed = _fill_group(cluster, plain, wanted, domain, liking)
        if placed is not None:
            return placed
    return None


def _fill_group(
    cluster: Cluster, group: Group, wanted: int, within: Bools | None, liking: Ints | None
) -> Placement | None:
    """Members that are alike, by shares per node; assumed on success."""
    pod = group.pods[0]
    capacity = capacity_of(cluster, pod.shape)
    if capacity.total < wanted:
        return None
    counts = capacity.counts if within is None else np.where(within, capacity.counts, 0)
    if _looks_around(cluster, pod):
        return _fill_checked(cluster, group, wanted, counts, within)
    taste = likings(cluster, pod)
    if taste is not None:
        liking = taste if liking is None else taste * 2048 + liking
    shares = fill_nodes(counts, wanted, liking)
    if shares is None:
        return None
    placed: Placement = []
    waiting = iter(group.pods)
    for slot, share in shares:
        pods = [next(waiting) for _ in range(share)]
        node = cluster.table.name(slot)
        picks = cluster.assume(pods, slot)
        placed += [(pod, Slot(node, devices, group.role)) for pod, devices in zip(pods, picks, strict=True)]
    return placed


def _looks_around(cluster: Cluster, pod: Pod) -> bool:
    return pod.shape.has_pod_terms or any(True for _ in cluster.census.keeping_away(pod))


def _fill_checked(cluster: Cluster, group: Group, wanted: int, counts: Ints, within: Bools | None) -> Placement | None:
    """Members that look at other pods: shares by array, replayed one by one through every rule, else searched."""
    shares = distribute(cluster, group.pods[0], counts, wanted)
    if shares is not None:
        with cluster.trial() as trial:
            placed = _replay(cluster, group, shares)
            if placed is not None:
                trial.keep()
                return placed
    pods = group.pods[:wanted]
    slots = search(cluster, pods, [within] * wanted, Budget(_tries(cluster)))
    return None if slots is None else list(zip(pods, slots, strict=True))


def _replay(cluster: Cluster, group: Group, shares: list[tuple[int, int]]) -> Placement | None:
    placed: Placement = []
    waiting = iter(group.pods)
    for slot in (slot for slot, share in shares for _ in range(share)):
        pod = next(waiting)
        if not fits(cluster, pod, slot):
            return None
        devices = cluster.assume([pod], slot)[0]
        placed.append((pod, Slot(cluster.table.name(slot), devices, group.role)))
    return placed


def _search_groups(cluster: Cluster, units: list[tuple[Group, int]], within: Bools | None) -> Placement | None:
    """Every member one by one, groups with a topology of their own left out: their domains were all tried."""
    if len(units) < 2 or any(group.topology for group, _ in units):
        return None
    if any(capacity_of(cluster, group.pods[0].shape).total < wanted for group, wanted in units):
        return None
    pods = [pod for group, wanted in units for pod in group.pods[:wanted]]
    slots = search(cluster, pods, [within] * len(pods), Budget(_tries(cluster)))
    return None if slots is None else list(zip(pods, slots, strict=True))


def _tries(cluster: Cluster) -> int:
    """A small cluster is searched thoroughly, a large one for about as long as an ordinary gang takes."""
    return max(64, min(4000, 100_000 // cluster.table.size))


def _add_surplus(cluster: Cluster, bid: Bid, placed: Placement, within: Bools | None) -> Placement:
    """As many of the members beyond the minimum as fit now, without moving anyone."""
    done = {pod.uid for pod, _ in placed}
    more: Placement = []
    for group in bid.groups:
        left = [pod for pod in group.pods if pod.uid not in done]
        if not left:
            continue
        rest = Group(group.role, left, group.topology, group.anchors)
        if group.topology:
            nodes = tuple(slot.node for pod, slot in placed if slot.role == group.role)
            rest.anchors = group.anchors + nodes
        more += _place_most(cluster, rest, within)
    return more


def _place_most(cluster: Cluster, group: Group, within: Bools | None) -> Placement:
    """The largest number of a group that can be placed, found by halving."""
    low, high, best = 0, min(len(group.pods), capacity_of(cluster, group.pods[0].shape).total), 0
    while low < high:
        middle = (low + high + 1) // 2
        with cluster.trial():
            found = _place_group(cluster, group, middle, within, None)
        if found is None:
            high = middle - 1
        else:
            low = best = middle
    return (_place_group(cluster, group, best, within, None) or []) if best else []
