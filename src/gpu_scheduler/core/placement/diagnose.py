"""Diagnosis of a refused bid: which rule refuses how many nodes, and how much of which resource is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Bools, Ints
from gpu_scheduler.core.model import Pod, Shape
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.domains import Bid, Counts, MemberGroup, count_only
from gpu_scheduler.core.placement.fit import may_use, pod_refusals, refusals
from gpu_scheduler.core.placement.place import minimum_counts, place_gang
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable

_MAX_COUNTED = 4096
"""If more members than this would fit, each group is counted by itself: a placement of all would take too long."""


def diagnose(cluster: Cluster, bid: Bid) -> Unplaceable:
    """The refusals of a bid that was just found unplaceable, the most informative first."""
    cluster.note_work()
    wanted = _wanted(cluster, bid)
    free = [_free_capacity(cluster, group.pods[0], bid.excluded) for group in bid.groups]
    fitting = sum(min(int(f.sum()), w) for f, w in zip(free, wanted, strict=True))
    short = [w - min(int(f.sum()), w) for f, w in zip(free, wanted, strict=True)]
    worst = int(np.argmax(short))
    pod = bid.groups[worst].pods[0]
    found: list[Refusal] = []
    if short[worst] > 0:
        found += _map_node_refusals(cluster, pod)
        found += _scarcest_resource(cluster, pod, wanted[worst], short[worst])
        found += count_refusals(cluster, pod, bid.excluded)
    elif level := _required_level(bid):
        largest = _largest_domain(cluster, free[worst], level)
        found.append(Refusal(Reason.TOPOLOGY, level, short_by=max(1, wanted[worst] - largest)))
    found = found or [Refusal(Reason.NOT_FOUND_YET)]
    lacking = tuple((g.pods[0].shape, w) for g, w in zip(bid.groups, wanted, strict=True) if w)
    lacking = tuple((shape, w) for shape, w in lacking if capacity_of(cluster, shape).total < w)
    return Unplaceable(tuple(dict.fromkeys(found)), sum(wanted), fitting, lacking)


def short_resources(cluster: Cluster, bid: Bid) -> set[str]:
    """The resources of which the nodes have too little for the minimum of a bid; if each one suffices by itself, its
    GPUs, or else everything that it requests."""
    found: set[str] = set()
    for group, wanted in zip(bid.groups, _wanted(cluster, bid), strict=True):
        shape = group.pods[0].shape
        allowed = may_use(cluster, shape, cluster.table.everywhere)
        demand = cluster.demand(shape)
        fits = np.maximum(cluster.free[demand.rows][:, allowed], 0) // demand.amounts[:, None]
        found.update(demand.names[i] for i in np.flatnonzero(fits.sum(axis=1) < wanted))
        if shape.gpu_milli and capacity_of(cluster, replace(shape, host_ports=())).total < wanted:
            found.add(shape.gpu_resource)
    shapes = [group.pods[0].shape for group in bid.groups]
    gpus = {shape.gpu_resource for shape in shapes if shape.wants_devices}
    asked = {name for shape in shapes for name, _ in shape.request} | gpus
    return found & asked or gpus or asked


def count_shortfall(cluster: Cluster, bid: Bid, refused: Unplaceable) -> Unplaceable:
    """The refusal with numbers of the whole gang: its groups compete for the same nodes.

    `diagnose` looks at each group by itself, which is enough to decide; people add up.
    """
    wanted = _wanted(cluster, bid)
    needed = sum(wanted)
    if needed <= 1 or refused.fitting > _MAX_COUNTED:
        return refused
    groups = [replace(g, pods=g.pods[:w], whole=False) for g, w in zip(bid.groups, wanted, strict=True) if w]
    with cluster.trial():
        counted = count_only(cluster, groups)
        placed = place_gang(cluster, replace(bid, groups=counted, needed=0, role_needs={})) or ()
        left = _count_shapes(groups)
        left.subtract(pod.shape for pod, _ in placed)
        refusals = _shared_shortage(cluster, groups, left, refused)
    changed = replace(refused, needed=needed, fitting=min(len(placed), needed - 1))
    scarce = next((r.subject for r in refusals if r.reason is Reason.RESOURCE and r.short_by), None)
    if scarce is None:
        return changed
    short_by = sum(number * _requested(shape, scarce) for shape, number in left.items())
    asking = _count_shapes(group for group in groups if _requested(group.pods[0].shape, scarce))
    if not short_by:
        return changed
    found = (replace(r, short_by=short_by) if r.subject == scarce and r.short_by else r for r in refusals)
    return replace(changed, refusals=tuple(found), short=tuple(asking.items()))


def _count_shapes(groups: Iterable[MemberGroup]) -> Counter[Shape]:
    """How many members have each shape."""
    found: Counter[Shape] = Counter()
    for group in groups:
        found[group.pods[0].shape] += len(group.pods)
    return found


def _shared_shortage(
    cluster: Cluster, groups: list[MemberGroup], left: Counter[Shape], refused: Unplaceable
) -> tuple[Refusal, ...]:
    """The refusals, with the resource that runs out when groups that would each fit alone are placed together."""
    if not any(refusal.reason is Reason.NOT_FOUND_YET for refusal in refused.refusals):
        return refused.refusals
    pod = next((group.pods[0] for group in groups if left[group.pods[0].shape] > 0), None)
    missing = left[pod.shape] if pod is not None else 0
    found = _scarcest_resource(cluster, pod, max(2, missing), missing) if pod is not None else []
    others = (refusal for refusal in refused.refusals if refusal.reason is not Reason.NOT_FOUND_YET)
    return (*others, *found) if found else refused.refusals


def _requested(shape: Shape, resource: str) -> int:
    """What one pod of a shape asks of a resource; of GPU shares the number of shares."""
    if resource == shape.gpu_resource and shape.gpu_milli:
        return 1
    return dict(shape.request).get(resource, int(resource == "pods"))


def _wanted(cluster: Cluster, bid: Bid) -> Counts:
    """How many of each group the minimum takes; all of them where it takes none."""
    wanted = minimum_counts(cluster, bid)
    return wanted if sum(wanted) else tuple(len(group.pods) for group in bid.groups)


def count_refusals(cluster: Cluster, pod: Pod, excluded: Bools | None = None) -> list[Refusal]:
    """For every rule, the number of nodes on which it is the first to refuse the pod; the most frequent first."""
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


def _free_capacity(cluster: Cluster, pod: Pod, excluded: Bools | None) -> Ints:
    """How many pods like this one each node takes, by every rule."""
    counts = capacity_of(cluster, pod.shape).counts
    if excluded is not None:
        counts = np.where(excluded, 0, counts)
    for _, _, refused in pod_refusals(cluster, pod, cluster.table.everywhere):
        counts = np.where(refused, 0, counts)
    return counts


def _map_node_refusals(cluster: Cluster, pod: Pod) -> list[Refusal]:
    """The refusal of a gpu-scheduling-map whose node name means no node, or several."""
    if pod.shape.device_map is None:
        return []
    name = pod.shape.device_map.node
    found = cluster.named_by_map(name)
    if len(found) == 1:
        return []
    return [Refusal(Reason.AMBIGUOUS_NODE if found else Reason.UNKNOWN_NODE, name)]


def _required_level(bid: Bid) -> str:
    """The first topology level that the gang, or one of its roles, requires; "" without any."""
    rules = [rule for rules in (bid.topology, *(group.topology for group in bid.groups)) for rule in rules]
    return next((rule.level for rule in rules if rule.required), "")


def _scarcest_resource(cluster: Cluster, pod: Pod, wanted: int, members: int) -> list[Refusal]:
    """The resource that limits the allowed nodes most, and how much of it `members` pods are short of."""
    allowed = may_use(cluster, pod.shape, cluster.table.everywhere)
    demand = cluster.demand(pod.shape)
    if not allowed.any():
        return []
    fits = np.maximum(cluster.free[demand.rows][:, allowed], 0) // demand.amounts[:, None]
    scarce = int(fits.sum(axis=1).argmin())
    amount = demand.amounts[scarce]
    # A single member cannot be split over nodes: the shortfall is measured on the best node.
    short = int(members * amount if wanted > 1 else amount - cluster.free[demand.rows[scarce], allowed].max(initial=0))
    if int(fits[scarce].sum()) >= wanted:
        # Every resource suffices. Shares of single GPUs are in no row; otherwise other rules refuse the members.
        if pod.shape.gpu_milli and capacity_of(cluster, replace(pod.shape, host_ports=())).total < wanted:
            return [Refusal(Reason.RESOURCE, pod.shape.gpu_resource, short_by=members)]
        return []
    refusing = int((fits[scarce] == 0).sum())
    return [Refusal(Reason.RESOURCE, demand.names[scarce], nodes=refusing, short_by=short)]


def _largest_domain(cluster: Cluster, free: Ints, level: str) -> int:
    """The largest number of pods that one domain of a level takes."""
    codes = cluster.topology.codes(level)
    inside = codes >= 0
    return int(np.bincount(codes[inside], weights=free[inside]).max()) if inside.any() else 0
