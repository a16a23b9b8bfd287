"""Distribution of one group: how many of its pods go to which node, by array expressions for the common rules.

Combinations of rules that these expressions do not cover are left to `search`.
"""

from __future__ import annotations

import heapq

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Codes, Ints
from gpu_scheduler.core.model import HOSTNAME, Pod, Spread
from gpu_scheduler.core.placement.fit import matches_itself, matching_all, pod_refusals, spread_domains, starts_affinity
from gpu_scheduler.core.placement.scoring import node_scores
from gpu_scheduler.core.reasons import Reason

_NEVER = np.iinfo(np.int64).max

Shares = list[tuple[int, int]]
"""Node slots with the number of pods for each, in the order of placement."""


def fill_nodes(counts: Ints, wanted: int, scores: Ints | None = None) -> Shares | None:
    """Packs `wanted` pods on as few nodes as possible, the last node by best fit; None if they do not fit.

    With `scores`, nodes with a higher score come first, whatever their capacity.
    """
    if scores is None:
        tightest = int(np.where(counts >= wanted, counts, _NEVER).argmin())
        if counts[tightest] >= wanted:
            return [(tightest, wanted)]
        order = np.argsort(-counts, kind="stable")
    else:
        order = np.lexsort((-counts, -scores))
    order = order[counts[order] > 0]
    reached = np.cumsum(counts[order])
    full = int(np.searchsorted(reached, wanted))
    if full == len(order):
        return None
    shares = [(int(slot), int(counts[slot])) for slot in order[:full]]
    rest = wanted - (int(reached[full - 1]) if full else 0)
    last = order[full]
    if scores is None:
        others = order[full:]
        fitting = others[counts[others] >= rest]
        last = fitting[np.argmin(counts[fitting])]
    shares.append((int(last), rest))
    return shares


def distribute(cluster: Cluster, pod: Pod, counts: Ints, wanted: int) -> Shares | None:
    """Shares for a group with pod (anti-)affinity or spread rules; None if these expressions find none."""
    counts = counts.copy()
    for reason, _, refused in pod_refusals(cluster, pod, cluster.table.everywhere):
        if reason is not Reason.SPREAD:
            counts[refused] = 0
    counts = cap_nodes(cluster, pod, counts)
    wide = [t.key for t in pod.shape.anti_affinity if t.key != HOSTNAME and matches_itself(pod, t.match)]
    even = [s for s in pod.shape.spread if matches_itself(pod, s.match)]
    if len(even) < len(pod.shape.spread) or len(wide) + len(even) > 1:
        return None

    def fill(within: Ints) -> Shares | None:
        if wide:
            return fill_nodes(_one_per_domain(within, cluster.table.domain_codes(wide[0])), wanted)
        if even:
            return _spread_evenly(cluster, pod, even[0], within, wanted)
        return fill_nodes(within, wanted, node_scores(cluster, pod))

    if pod.shape.affinity and starts_affinity(cluster, pod, matching_all(cluster, pod)):
        keys = [term.key for term in pod.shape.affinity]
        tries = (fill(part) for part in _common_domains(cluster, keys, counts, wanted))
        return next((shares for shares in tries if shares), None)
    return fill(counts)


def cap_nodes(cluster: Cluster, pod: Pod, counts: Ints) -> Ints:
    """The counts, at most one per node if members have anti-affinity to each other by host name."""
    if not any(term.key == HOSTNAME and matches_itself(pod, term.match) for term in pod.shape.anti_affinity):
        return counts
    return np.where(cluster.table.domain_codes(HOSTNAME) >= 0, np.minimum(counts, 1), counts)


def _one_per_domain(counts: Ints, codes: Codes) -> Ints:
    """At most one pod per domain, on its node with the least capacity; nodes outside all domains are not limited."""
    capped = np.where(codes >= 0, 0, counts)
    order = np.argsort(counts, kind="stable")
    order = order[(counts[order] > 0) & (codes[order] >= 0)]
    _, first = np.unique(codes[order], return_index=True)
    capped[order[first]] = 1
    return capped


def _common_domains(cluster: Cluster, keys: list[str], counts: Ints, wanted: int) -> list[Ints]:
    """For each joint domain of the keys that takes all pods, smallest first: the counts, with 0 outside the domain."""
    joint = np.stack([cluster.table.domain_codes(key) for key in keys])
    inside = counts > 0
    if not inside.any():
        return []
    _, numbered = np.unique(joint[:, inside], axis=1, return_inverse=True)
    codes = np.full(len(counts), -1)
    codes[inside] = numbered.reshape(-1)
    sums = np.bincount(codes[inside], weights=counts[inside])
    large = np.flatnonzero(sums >= wanted)
    return [np.where(codes == code, counts, 0) for code in large[np.argsort(sums[large], kind="stable")]]


def _spread_evenly(cluster: Cluster, pod: Pod, spread: Spread, counts: Ints, wanted: int) -> Shares | None:
    """Water-filling: each pod goes to the emptiest domain with capacity, as long as the skew allows it."""
    _, sums = spread_domains(cluster, pod, spread)
    codes = cluster.table.domain_codes(spread.key)
    levels = {int(code): int(level) for code, level in enumerate(sums) if level >= 0}
    width = max(len(sums), int(codes.max(initial=-1)) + 1)
    free = np.bincount(codes[codes >= 0], weights=counts[codes >= 0], minlength=width).astype(np.int64)
    stuck = [level for code, level in levels.items() if not free[code]]
    if len(levels) < spread.min_domains:
        stuck.append(0)
    heap = [(levels.get(code, 0), code) for code in range(width) if free[code]]
    heapq.heapify(heap)
    ceiling = min(stuck, default=None)
    order: list[int] = []
    while heap and len(order) < wanted:
        level, code = heapq.heappop(heap)
        lowest = level if code in levels else min((low for low, other in heap if other in levels), default=level)
        if ceiling is not None:
            lowest = min(lowest, ceiling)
        if level + 1 - lowest > spread.max_skew:
            break
        order.append(code)
        free[code] -= 1
        if free[code]:
            heapq.heappush(heap, (level + 1, code))
        elif code in levels:
            ceiling = level + 1 if ceiling is None else min(ceiling, level + 1)
    if len(order) < wanted:
        return None
    return _nodes_of_domains(order, codes, counts)


def _nodes_of_domains(order: list[int], codes: Codes, counts: Ints) -> Shares:
    """A node for every domain of a sequence: the pods of a domain are packed, the sequence is kept."""
    slots: dict[int, list[int]] = {}
    for code in set(order):
        packed = fill_nodes(np.where(codes == code, counts, 0), order.count(code))
        assert packed is not None, "the domain has capacity for its pods"
        slots[code] = [slot for slot, share in reversed(packed) for _ in range(share)]
    return [(slots[code].pop(), 1) for code in order]
