"""Why a bid was refused: which rule keeps which nodes away, and what is short by how much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Bools, Ints
from gpu_scheduler.core.model import Pod
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.domains import Bid
from gpu_scheduler.core.placement.fit import may_use, pod_refusals, refusals
from gpu_scheduler.core.placement.place import minimum_counts
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable


def diagnose(cluster: Cluster, bid: Bid) -> Unplaceable:
    """The reasons, the most telling first. Only asked when the bid has just been refused."""
    wanted = minimum_counts(cluster, bid)
    if not sum(wanted):
        wanted = tuple(len(group.pods) for group in bid.groups)
    room = [_room(cluster, group.pods[0], bid.excluded) for group in bid.groups]
    fitting = sum(min(int(r.sum()), w) for r, w in zip(room, wanted, strict=True))
    short = [w - min(int(r.sum()), w) for r, w in zip(room, wanted, strict=True)]
    worst = int(np.argmax(short))
    pod = bid.groups[worst].pods[0]
    found: list[Refusal] = []
    if short[worst] > 0:
        found += _named_by_map(cluster, pod)
        found += _scarcest(cluster, pod, wanted[worst], short[worst])
        found += count_refusals(cluster, pod, bid.excluded)
    elif level := _required_level(bid):
        largest = _largest_domain(cluster, room[worst], level)
        found.append(Refusal(Reason.TOPOLOGY, level, short_by=max(1, wanted[worst] - largest)))
    found = found or [Refusal(Reason.NOT_FOUND_YET)]
    lacking = tuple((g.pods[0].shape, w) for g, w in zip(bid.groups, wanted, strict=True) if w)
    lacking = tuple((shape, w) for shape, w in lacking if capacity_of(cluster, shape).total < w)
    return Unplaceable(tuple(dict.fromkeys(found)), sum(wanted), fitting, lacking)


def count_refusals(cluster: Cluster, pod: Pod, excluded: Bools | None = None) -> list[Refusal]:
    """For every rule, on how many nodes it is the first to refuse the pod; the most frequent first."""
    open_to = cluster.table.alive.copy()
    counts: dict[tuple[Reason, str], int] = {}
    if excluded is not None:
        counts[Reason.RESERVED, ""] = int((open_to & excluded).sum())
        open_to &= ~excluded
    for reason, subject, refused in refusals(cluster, pod, cluster.table.everywhere):
        first = open_to & refused
        number = int(first.sum())
        if number:
            counts[reason, subject] = counts.get((reason, subject), 0) + number
            open_to &= ~refused
    order = sorted(counts.items(), key=lambda item: -item[1])
    return [Refusal(reason, subject, nodes=number) for (reason, subject), number in order if number]


def _room(cluster: Cluster, pod: Pod, excluded: Bools | None) -> Ints:
    counts = capacity_of(cluster, pod.shape).counts
    if excluded is not None:
        counts = np.where(excluded, 0, counts)
    for _, _, refused in pod_refusals(cluster, pod, cluster.table.everywhere):
        counts = np.where(refused, 0, counts)
    return counts


def _named_by_map(cluster: Cluster, pod: Pod) -> list[Refusal]:
    if pod.shape.device_map is None:
        return []
    name = pod.shape.device_map.node
    found = cluster.named_by_map(name)
    if len(found) == 1:
        return []
    return [Refusal(Reason.AMBIGUOUS_NODE if found else Reason.UNKNOWN_NODE, name)]


def _required_level(bid: Bid) -> str:
    """The level that keeps the gang, or one of its roles, together; "" when none has to."""
    rules = [rule for rules in (bid.topology, *(group.topology for group in bid.groups)) for rule in rules]
    return next((rule.level for rule in rules if rule.required), "")


def _scarcest(cluster: Cluster, pod: Pod, wanted: int, members: int) -> list[Refusal]:
    """The resource that most limits the nodes which would otherwise do, and how much of it the members lack."""
    allowed = may_use(cluster, pod.shape, cluster.table.everywhere)
    demand = cluster.demand(pod.shape)
    if not allowed.any():
        return []
    names = {row: name for name, row in cluster.row_of.items()}
    fits = np.maximum(cluster.free[demand.rows][:, allowed], 0) // demand.amounts[:, None]
    scarce = int(fits.sum(axis=1).argmin())
    amount = demand.amounts[scarce]
    # Of one member no part fits anywhere: what counts is how near the best node comes.
    short = int(members * amount if wanted > 1 else amount - cluster.free[demand.rows[scarce], allowed].max(initial=0))
    if int(fits[scarce].sum()) >= wanted:
        # Enough in every row. What is left of single cards is in none; otherwise other rules keep the members away.
        if pod.shape.gpu_milli and capacity_of(cluster, replace(pod.shape, host_ports=())).total < wanted:
            return [Refusal(Reason.RESOURCE, pod.shape.gpu_resource, short_by=members)]
        return []
    refusing = int((fits[scarce] == 0).sum())
    return [Refusal(Reason.RESOURCE, names[int(demand.rows[scarce])], nodes=refusing, short_by=short)]


def _largest_domain(cluster: Cluster, room: Ints, level: str) -> int:
    codes = cluster.topology.codes(level)
    inside = codes >= 0
    return int(np.bincount(codes[inside], weights=room[inside]).max()) if inside.any() else 0
