"""Placement of one gang: all the members it needs at once, or none."""

from __future__ import annotations

from itertools import chain

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Bools, Ints
from gpu_scheduler.core.model import Pod, Slot
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.distribute import distribute, fill_nodes
from gpu_scheduler.core.placement.domains import (
    Bid,
    Counts,
    MemberGroup,
    Placement,
    domains,
    nodes_for_surplus,
    own_domains,
    usable_nodes,
)
from gpu_scheduler.core.placement.fit import fits, matches_itself
from gpu_scheduler.core.placement.scoring import least_needed, node_scores
from gpu_scheduler.core.placement.search import SearchGroup, search

_MANY = 64
"""From this many members on, the sum of the requests is compared with what is free before a placement is tried."""

_MAX_WORK = 20_000
"""How many steps a placement may take, beside four for each member: a gang of many kinds must not delay all others.
Members with rules about other pods are checked one by one, and may take three times as many."""

_MAX_COMPARED = 4096
"""How many pairs of groups are compared to place a group after those that its affinity needs."""

_MAX_SPARED = 16
"""How many later groups are looked at when nodes are chosen that they need least; the scarcest come first."""

Unit = list[tuple[MemberGroup, int]]
"""Groups that are placed in one step, with the wanted count of each: one group, or all groups of a role that has its
own topology."""


def place_gang(cluster: Cluster, bid: Bid) -> Placement | None:
    """Places and assumes every member, or else the minimum and as many more as fit; None: no change was made."""
    everyone = tuple(len(group.pods) for group in bid.groups)
    ruled = any(group.pods[0].shape.has_pod_terms for group in bid.groups)
    cluster.limit_work(_MAX_WORK * (3 if ruled else 1) + 4 * sum(everyone))
    if everyone == (bid.needed,) and not bid.topology and bid.tie_break is None:
        # One group that must be placed whole, anywhere: there is nothing to undo.
        return _place_group(cluster, bid.groups[0], bid.needed, usable_nodes(cluster, bid), None)
    minimum = minimum_counts(cluster, bid)
    for counts in dict.fromkeys((everyone, minimum)):
        if _exceeds_free(cluster, bid, counts):
            continue
        with cluster.trial() as trial:
            found = _place_counts(cluster, bid, counts)
            if found is not None:
                if counts != everyone:
                    found += _add_surplus(cluster, bid, counts, found)
                trial.keep()
                return found
    return None


def could_place(cluster: Cluster, bid: Bid) -> bool:
    """Whether the bid could be placed. Nothing changes, and for equal members anywhere no placement is computed."""
    if len(bid.groups) == 1 and not bid.topology:
        group = bid.groups[0]
        needed = minimum_counts(cluster, bid)[0]
        if needed and not group.topology and not _has_pod_rules(cluster, group.pods[0]):
            within, capacity = usable_nodes(cluster, bid), capacity_of(cluster, group.pods[0].shape)
            return (capacity.total if within is None else int(capacity.counts[within].sum())) >= needed
    with cluster.trial():
        return place_gang(cluster, bid) is not None


def _exceeds_free(cluster: Cluster, bid: Bid, counts: Counts) -> bool:
    """Whether these counts ask for more than all nodes together have free: then nothing is tried."""
    if sum(counts) < _MANY:
        return False
    wanted = np.zeros(len(cluster.free))
    for group, count in zip(bid.groups, counts, strict=True):
        shape = group.pods[0].shape
        if capacity_of(cluster, shape).total < count:
            return True
        if shape.device_map is None:
            demand = cluster.demand(shape)
            wanted[demand.rows] += demand.amounts * float(count)
    return bool((wanted > np.maximum(cluster.free, 0).sum(axis=1)).any())


def minimum_counts(cluster: Cluster, bid: Bid) -> Counts:
    """How many pods of each group make up the minimum: the minima of roles, then the easiest pods to place."""
    counts = [0] * len(bid.groups)
    easiest = list(range(len(bid.groups)))
    if len(bid.groups) > 1:
        easiest.sort(key=lambda i: -capacity_of(cluster, bid.groups[i].pods[0].shape).total)
    for i in easiest:
        if bid.groups[i].whole:
            counts[i] = len(bid.groups[i].pods)
    needs = dict(bid.role_needs)
    for i in easiest:
        group = bid.groups[i]
        if not group.whole and group.role in needs:
            counts[i] = min(needs[group.role], len(group.pods))
            needs[group.role] -= counts[i]
    missing = bid.needed - sum(counts)
    for i in easiest:
        take = max(0, min(missing, len(bid.groups[i].pods) - counts[i]))
        counts[i] += take
        missing -= take
    return tuple(counts)


def _place_counts(cluster: Cluster, bid: Bid, counts: Counts) -> Placement | None:
    """Places exactly these counts within one domain of the gang's topology, the narrowest level first."""
    if not any(counts):
        return []
    for within in domains(cluster, bid, counts):
        if not cluster.has_work_left:
            break
        with cluster.trial() as trial:
            placed = _place_groups(cluster, bid, counts, within)
            if placed is not None:
                trial.keep()
                return placed
    return None


# -- groups within one domain


def _place_groups(cluster: Cluster, bid: Bid, counts: Counts, within: Bools | None) -> Placement | None:
    """Places the scarcest groups first; a group that fails moves to the front; the last resort is a bounded search."""
    units = _order_units(cluster, _units(cluster, bid, counts))
    for _ in range(len(units) + 1):
        placed: Placement = []
        with cluster.trial() as trial:
            for i, unit in enumerate(units):
                tie_break = bid.tie_break if bid.tie_break is not None else _spare_later(cluster, unit, units[i + 1 :])
                part = _place_unit(cluster, unit, within, tie_break) if cluster.has_work_left else None
                if part is None:
                    break
                placed += part
            else:
                trial.keep()
                return placed
        if not cluster.has_work_left:
            return None
        front = [units[i], *units[:i], *units[i + 1 :]]
        again = _order_units(cluster, front)
        if again == units:
            # The pods of its affinity may be placed already, and earlier groups be in its way.
            again = front
        if again == units:
            break
        units = again
    for order in [_order_units(cluster, units), units]:
        found = _search_groups(cluster, [pair for unit in order for pair in unit], within)
        if found is not None or order == units:
            return found
    return None


def _units(cluster: Cluster, bid: Bid, counts: Counts) -> list[Unit]:
    """The units of a bid: groups with a map first (they have no choice), then by scarcity."""
    units: dict[str | int, Unit] = {}
    for number, (group, wanted) in enumerate(zip(bid.groups, counts, strict=True)):
        if wanted:
            units.setdefault(group.role if group.topology else number, []).append((group, wanted))

    def plenty(unit: Unit) -> tuple[bool, float]:
        shapes = [(group.pods[0].shape, wanted) for group, wanted in unit]
        free = all(shape.device_map is None for shape, _ in shapes)
        return free, min(capacity_of(cluster, shape).total / wanted for shape, wanted in shapes)

    return sorted(units.values(), key=plenty) if len(units) > 1 else list(units.values())


def _order_units(cluster: Cluster, units: list[Unit]) -> list[Unit]:
    """The same order, except that a unit comes after the units that its affinity needs."""
    if len(units) < 2:
        return units
    bound = [i for i, unit in enumerate(units) if any(group.pods[0].shape.affinity for group, _ in unit)]
    if not bound or len(bound) * len(units) > _MAX_COMPARED:
        return units
    cluster.work += len(bound) * len(units) // 8
    needs = {i: {j for j, other in enumerate(units) if j != i and _needs(units[i], other)} for i in bound}
    left, ordered = list(range(len(units))), []
    while left:
        first = next((i for i in left if needs.get(i, set()).isdisjoint(left)), left[0])
        left.remove(first)
        ordered.append(units[first])
    return ordered


def _needs(unit: Unit, other: Unit) -> bool:
    """Whether a unit's affinity selects the pods of another unit and not its own."""
    for group, _ in unit:
        pod = group.pods[0]
        terms = pod.shape.affinity
        if terms and not all(matches_itself(pod, term.match) for term in terms):
            return any(matches_itself(theirs.pods[0], term.match) for theirs, _ in other for term in terms)
    return False


def _spare_later(cluster: Cluster, unit: Unit, later: list[Unit]) -> Ints | None:
    """Prefers the nodes that later groups can use least, except groups with an affinity to this one."""
    if not later or unit[0][0].pods[0].shape.device_map is not None:
        return None
    others = (other for other in later[:_MAX_SPARED] if not _needs(other, unit))
    return least_needed(cluster, (group.pods[0].shape for other in others for group, _ in other))


def _place_unit(cluster: Cluster, unit: Unit, within: Bools | None, tie_break: Ints | None) -> Placement | None:
    """Places one group, or all groups of a role within one domain of the role's topology."""
    if len(unit) == 1:
        return _place_group(cluster, *unit[0], within, tie_break)
    first = unit[0][0]
    plain = [MemberGroup(group.role, group.pods) for group, _ in unit]
    role = Bid(plain, 0, topology=first.topology, anchors=first.anchors)
    if within is not None:
        role.excluded = ~within
    return _place_counts(cluster, role, tuple(wanted for _, wanted in unit))


def _place_group(
    cluster: Cluster, group: MemberGroup, wanted: int, within: Bools | None, tie_break: Ints | None
) -> Placement | None:
    """Places members of one group, within one domain of its own topology if it has one."""
    if not group.topology:
        return _fill_group(cluster, group, wanted, within, tie_break)
    alone = Bid([group], wanted, topology=group.topology, anchors=group.anchors)
    if within is not None:
        alone.excluded = ~within
    plain = MemberGroup(group.role, group.pods)
    for domain in domains(cluster, alone, (wanted,)):
        placed = _fill_group(cluster, plain, wanted, domain, tie_break)
        if placed is not None:
            return placed
    return None


def _fill_group(
    cluster: Cluster, group: MemberGroup, wanted: int, within: Bools | None, tie_break: Ints | None
) -> Placement | None:
    """Places and assumes interchangeable members by shares per node."""
    pod = group.pods[0]
    capacity = capacity_of(cluster, pod.shape)
    cluster.note_work()
    if capacity.total < wanted:
        return None
    counts = capacity.counts if within is None else np.where(within, capacity.counts, 0)
    if _has_pod_rules(cluster, pod):
        return _fill_checked(cluster, group, wanted, counts, within)
    shares = fill_nodes(counts, wanted, node_scores(cluster, pod, tie_break))
    if shares is None:
        return None
    placed: Placement = []
    waiting = iter(group.pods)
    cluster.work += wanted
    for slot, share in shares:
        pods = [next(waiting) for _ in range(share)]
        node = cluster.table.name(slot)
        picks = cluster.assume(pods, slot)
        placed += [(pod, Slot(node, devices, group.role)) for pod, devices in zip(pods, picks, strict=True)]
    return placed


def _has_pod_rules(cluster: Cluster, pod: Pod) -> bool:
    """Whether rules about other pods apply to a pod: its own, or the anti-affinity of placed pods."""
    cluster.work += cluster.pod_counts.carried // 16
    return pod.shape.has_pod_terms or any(True for _ in cluster.pod_counts.anti_affinity_against(pod))


def _fill_checked(
    cluster: Cluster, group: MemberGroup, wanted: int, counts: Ints, within: Bools | None
) -> Placement | None:
    """Places members with pod rules: by shares, checked one by one against every rule, or else by search."""
    shares = distribute(cluster, group.pods[0], counts, wanted)
    if shares is not None:
        with cluster.trial() as trial:
            placed = _place_checked(cluster, group, shares)
            if placed is not None:
                trial.keep()
                return placed
    pods = group.pods[:wanted]
    slots = search(cluster, [SearchGroup(pods)], within, _search_limit(cluster))
    return None if slots is None else list(zip(pods, slots, strict=True))


def _place_checked(cluster: Cluster, group: MemberGroup, shares: list[tuple[int, int]]) -> Placement | None:
    """Assumes members one by one by their shares; None when a rule refuses one of them."""
    placed: Placement = []
    waiting = iter(group.pods)
    for slot in (slot for slot, share in shares for _ in range(share)):
        pod = next(waiting)
        if not fits(cluster, pod, slot):
            return None
        devices = cluster.assume([pod], slot)[0]
        placed.append((pod, Slot(cluster.table.name(slot), devices, group.role)))
    return placed


def _search_groups(cluster: Cluster, units: Unit, within: Bools | None) -> Placement | None:
    """Searches a place for every member one by one; preferred topology levels of roles are ignored."""
    if len(units) < 2:
        return None
    if any(capacity_of(cluster, group.pods[0].shape).total < wanted for group, wanted in units):
        return None
    groups = [SearchGroup(group.pods[:wanted], own_domains(cluster, group)) for group, wanted in units]
    slots = search(cluster, groups, within, _search_limit(cluster))
    return None if slots is None else list(zip(chain.from_iterable(g.pods for g in groups), slots, strict=True))


def _search_limit(cluster: Cluster) -> int:
    """The number of steps back of a search: many in a small cluster; in a large one about the cost of a usual gang."""
    return max(64, min(4000, 100_000 // cluster.table.size))


def _add_surplus(cluster: Cluster, bid: Bid, counts: Counts, placed: Placement) -> Placement:
    """Places as many members beyond the minimum as fit next to the placed ones: the first `counts` of each group."""
    within = nodes_for_surplus(cluster, bid, placed)
    more: Placement = []
    for group, count in zip(bid.groups, counts, strict=True):
        left = group.pods[count:]
        if not left:
            continue
        rest = MemberGroup(group.role, left, group.topology, group.anchors)
        if group.topology:
            nodes = tuple(slot.node for _, slot in (*placed, *more) if slot.role == group.role)
            rest.anchors = group.anchors + nodes
        more += _place_most(cluster, rest, within)
    return more


def _place_most(cluster: Cluster, group: MemberGroup, within: Bools | None) -> Placement:
    """Places the largest number of pods of a group that fits, found by bisection."""
    pod = group.pods[0]
    capacity = capacity_of(cluster, pod.shape)
    low, high = 0, min(len(group.pods), capacity.total)
    if not group.topology and not _has_pod_rules(cluster, pod):
        low = high = high if within is None else min(high, int(capacity.counts[within].sum()))
    while low < high:
        middle = (low + high + 1) // 2
        with cluster.trial():
            found = _place_group(cluster, group, middle, within, None)
        if found is None:
            high = middle - 1
        else:
            low = middle
    return (_place_group(cluster, group, low, within, None) or []) if low else []
