"""Which nodes a pod may use, and why the others refuse: every rule once, over any choice of nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.device_table import MAX_DEVICES
from gpu_scheduler.core.cluster.node_table import Bools, Ints, Nodes
from gpu_scheduler.core.model import (
    MILLI,
    NOT_READY,
    UNSCHEDULABLE,
    DeviceMap,
    HostPort,
    Pod,
    Shape,
    Spread,
    Taint,
    TaintEffect,
)
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.selectors import PodMatch

Verdict = tuple[Reason, str, Bools]
"""A rule, what it is about, and which of the nodes it refuses."""

UNLIMITED = 1 << 30
_KEEPS_OUT = (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE)


def refusals(cluster: Cluster, pod: Pod, nodes: Nodes) -> Iterator[Verdict]:
    """Every rule's verdict on the nodes, in the order a person would want to read them."""
    yield from static_refusals(cluster, pod.shape, nodes)
    yield from local_refusals(cluster, pod.shape, nodes)
    yield from pod_refusals(cluster, pod, nodes)


def fits(cluster: Cluster, pod: Pod, slot: int) -> bool:
    """Whether one more pod may go to one node, by every rule."""
    node = np.array([slot])
    return bool(cluster.table.alive[slot]) and not any(refused[0] for _, _, refused in refusals(cluster, pod, node))


# -- rules about the node alone


def static_refusals(cluster: Cluster, shape: Shape, nodes: Nodes) -> Iterator[Verdict]:
    """Rules that only a change of the node itself can change."""
    table = cluster.table
    unschedulable = Taint(UNSCHEDULABLE, "", TaintEffect.NO_SCHEDULE)
    if not _tolerates(shape, unschedulable):
        yield Reason.UNSCHEDULABLE, "", table.unschedulable[nodes]
    # The node controller's taint says why, and decides for pods that tolerate the one or the other; until it comes:
    if not any(_tolerates(shape, Taint(key, "", TaintEffect.NO_SCHEDULE)) for key in NOT_READY):
        yield Reason.NODE_NOT_READY, "", ~table.ready[nodes]
    for number, taints in enumerate(table.taint_sets):
        offending = next((t for t in taints if t.effect in _KEEPS_OUT and not _tolerates(shape, t)), None)
        if offending is not None:
            yield Reason.TAINT, offending.key, table.taint_set[nodes] == number
    for requirement in shape.node_labels:
        yield Reason.NODE_AFFINITY, requirement.key, ~table.match(requirement, nodes)
    if shape.node_terms is not None:
        yield Reason.NODE_AFFINITY, "", ~table.match_any(shape.node_terms, nodes)
    for terms in shape.volume_terms:
        yield Reason.VOLUME, "", ~table.match_any(terms, nodes)
    if shape.device_map is not None:
        yield Reason.MAP_NODE, shape.device_map.node, ~_is_named(cluster, shape.device_map, nodes)
    if shape.gpu_milli or (shape.device_map is not None and shape.gpus):
        yield Reason.NO_ASSIGNED_DEVICES, "", ~cluster.devices.assigned[nodes]


def may_use(cluster: Cluster, shape: Shape, nodes: Nodes) -> Bools:
    """Which of the nodes no static rule refuses."""
    accepted = cluster.table.alive[nodes].copy()
    for _, _, refused in static_refusals(cluster, shape, nodes):
        accepted &= ~refused
    return accepted


def _tolerates(shape: Shape, taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in shape.tolerations)


def _is_named(cluster: Cluster, entry: DeviceMap, nodes: Nodes) -> Bools:
    named = np.zeros(cluster.table.size, bool)
    found = cluster.named_by_map(entry.node)
    if len(found) == 1:
        named[cluster.table.slots[found[0]]] = True
    return named[nodes]


# -- rules about what is left on the node


def local_refusals(cluster: Cluster, shape: Shape, nodes: Nodes) -> Iterator[Verdict]:
    """Rules that a pod coming to or leaving the node can change."""
    if shape.device_map is not None:
        # First: who holds the very GPUs says more than how many are left.
        yield Reason.DEVICE_MISSING, "", ~_map_exists(cluster, shape.device_map, nodes)
        yield Reason.DEVICE_HELD, "", ~_map_free(cluster, shape.device_map, nodes)
    demand = cluster.demand(shape)
    names = {row: name for name, row in cluster.row_of.items()}
    for row, amount in zip(demand.rows.tolist(), demand.amounts.tolist(), strict=True):
        yield Reason.RESOURCE, names[row], cluster.free[row][nodes] < amount
    if shape.host_ports:
        yield Reason.HOST_PORT, "", ~_ports_free(cluster, shape.host_ports, nodes)
    if shape.wants_devices:
        yield Reason.DEVICES_UNRECORDED, "", cluster.devices.unrecorded[nodes] > 0
    if shape.device_map is None and (shape.gpus or shape.gpu_milli):
        yield Reason.RESOURCE, shape.gpu_resource, device_capacity(cluster, shape, nodes) < 1


def capacity_on(cluster: Cluster, shape: Shape, nodes: Nodes) -> Ints:
    """How many pods of the shape each node can still take, as far as the node alone decides."""
    demand = cluster.demand(shape)
    free = cluster.free[demand.rows] if isinstance(nodes, slice) else cluster.free[demand.rows[:, None], nodes]
    counts: Ints = (free // demand.amounts[:, None]).min(axis=0)
    if shape.wants_devices:
        np.minimum(counts, device_capacity(cluster, shape, nodes), out=counts)
    if shape.host_ports:
        np.minimum(counts, _ports_free(cluster, shape.host_ports, nodes), out=counts)
    return np.maximum(counts, 0, out=counts)


def is_simple(shape: Shape) -> bool:
    """Whether only sums decide how many pods of the shape fit a node: no ports, no shares, no map."""
    return not (shape.host_ports or shape.gpu_milli or shape.device_map)


def capacity_at(cluster: Cluster, shape: Shape, slot: int) -> int:
    """`capacity_on` for a single node and a simple shape, in plain numbers."""
    demand = cluster.demand(shape)
    read = cluster.free.item
    count: int = cluster.devices.idle.item(slot) // shape.gpus if shape.gpus else read(demand.pods_row, slot)
    for row, amount in demand.asked:
        count = min(count, read(row, slot) // amount)
    return max(count, 0)


def device_capacity(cluster: Cluster, shape: Shape, nodes: Nodes) -> Ints:
    """How many pods of the shape find their devices on each node: counted per card, never as a sum over the node."""
    if shape.device_map is not None:
        entry = shape.device_map
        # Pods of one entry are of one group, so they share its devices.
        counts = np.where(_map_exists(cluster, entry, nodes) & _map_free(cluster, entry, nodes), UNLIMITED, 0)
    else:
        idle = cluster.devices.idle[nodes]
        if shape.gpus:
            return np.asarray(idle // shape.gpus)
        ok, used = cluster.devices.ok[:, nodes], cluster.devices.used[:, nodes]
        touched = np.where(ok & (used > 0), np.maximum(MILLI - used, 0) // shape.gpu_milli, 0).sum(axis=0)
        openable = np.minimum(idle, np.maximum(_gpu_row_free(cluster, nodes), 0))
        ours = cluster.devices.assigned[nodes]
        if shape.gpu_resource:
            ours = ours & (cluster.gpu_row[nodes] == cluster.row(shape.gpu_resource))
        counts = np.where(ours, touched + openable * (MILLI // shape.gpu_milli), 0)
    return np.where(cluster.devices.unrecorded[nodes] > 0, 0, counts)


def _gpu_row_free(cluster: Cluster, nodes: Nodes) -> Ints:
    rows = cluster.gpu_row[nodes]
    columns = np.arange(cluster.table.size)[nodes]
    return np.where(rows >= 0, cluster.free[rows, columns], 0)


def _ports_free(cluster: Cluster, wanted: tuple[HostPort, ...], nodes: Nodes) -> Bools:
    """Which nodes have all the ports; an address of 0.0.0.0 collides with every address."""
    free = np.ones(cluster.table.size, bool)
    for slot, protocol, port, ip in cluster.ports:
        for want in wanted:
            if (want.protocol, want.port) == (protocol, port) and (ip == want.ip or "0.0.0.0" in (ip, want.ip)):
                free[slot] = False
    return free[nodes]


def _map_exists(cluster: Cluster, entry: DeviceMap, nodes: Nodes) -> Bools:
    """Whether a node that advertises GPUs has the named ones, healthy; one that advertises none is believed."""
    silent = cluster.devices.count[nodes] == 0
    known = all(device < MAX_DEVICES for device in entry.devices)
    there = [cluster.devices.ok[d][nodes] if d < len(cluster.devices.ok) else ~silent & False for d in entry.devices]
    return np.asarray((silent & known) | np.all(there, axis=0))


def _map_free(cluster: Cluster, entry: DeviceMap, nodes: Nodes) -> Bools:
    """Whether nobody outside the map's own group holds one of its devices.

    Where a device plugin owns the cards nobody knows which are in use, but once none is left the map's are too.
    """
    free = np.ones(cluster.table.size, bool)
    fresh = np.zeros(cluster.table.size, np.int64)
    for device in entry.devices:
        if device >= len(cluster.devices.used):
            fresh += 1
        else:
            used = cluster.devices.used[device]
            alone = used == 0
            fresh += alone
            for slot, taken, group in cluster.devices.map_users:
                if taken == device and group == entry.group and used[slot] == MILLI:
                    alone[slot] = True
            free &= alone
    free &= (cluster.gpu_row < 0) | (fresh <= _gpu_row_free(cluster, cluster.table.everywhere))
    return free[nodes]


# -- rules about other pods


def pod_refusals(cluster: Cluster, pod: Pod, nodes: Nodes) -> Iterator[Verdict]:
    """Rules in which pods on other nodes have a say."""
    shape = pod.shape
    for term, carriers in cluster.pod_counts.anti_affinity_against(pod):
        yield Reason.KEPT_AWAY, term.key, domain_totals(cluster, term.key, carriers)[nodes] > 0
    for term in shape.anti_affinity:
        near = cluster.pod_counts.matching(term.match)
        yield Reason.POD_ANTI_AFFINITY, term.key, domain_totals(cluster, term.key, near)[nodes] > 0
    if shape.affinity:
        yield from _affinity_refusals(cluster, pod, nodes)
    for spread in shape.spread:
        yield Reason.SPREAD, spread.key, ~_spread_allows(cluster, pod, spread)[nodes]


def domain_totals(cluster: Cluster, key: str, counts: Ints) -> Ints:
    """For every node, the sum of the counts over its domain of a label; 0 where it has no such label."""
    codes = cluster.table.domain_codes(key)
    inside = codes >= 0
    if not inside.any():
        return np.zeros(len(codes), np.int64)
    sums = np.bincount(codes[inside], weights=counts[inside]).astype(np.int64)
    return np.where(inside, sums[codes], 0)


def _affinity_refusals(cluster: Cluster, pod: Pod, nodes: Nodes) -> Iterator[Verdict]:
    terms = pod.shape.affinity
    near = matching_all(cluster, pod)
    starts_itself = starts_affinity(cluster, pod, near)
    for term in terms:
        labelled = cluster.table.domain_codes(term.key) >= 0
        allowed = labelled if starts_itself else domain_totals(cluster, term.key, near) > 0
        yield Reason.POD_AFFINITY, term.key, ~allowed[nodes]


def starts_affinity(cluster: Cluster, pod: Pod, near: Ints) -> bool:
    """Whether the pod may be the first of its kind: it matches its own terms, and nobody in any domain does yet."""
    terms = pod.shape.affinity
    somewhere = np.logical_or.reduce([cluster.table.domain_codes(term.key) >= 0 for term in terms])
    return not near[somewhere].any() and all(matches_itself(pod, term.match) for term in terms)


def matches_itself(pod: Pod, match: PodMatch) -> bool:
    """Whether a pod is one of those that a term speaks of."""
    return match.matches(pod.labels, pod.namespace, pod.namespace_labels)


def matching_all(cluster: Cluster, pod: Pod) -> Ints:
    """Per node, the pods that satisfy all of a pod's affinity terms at once (Kubernetes asks for one pod for all)."""
    terms = pod.shape.affinity
    if len(terms) == 1:
        return cluster.pod_counts.matching(terms[0].match)
    counts = np.zeros(cluster.table.size, np.int64)
    for other, slot in cluster.placed():
        if all(t.match.matches(other.labels, other.namespace, other.namespace_labels) for t in terms):
            counts[slot] += 1
    return counts


def spread_domains(cluster: Cluster, pod: Pod, spread: Spread) -> tuple[Bools, Ints]:
    """The nodes that count for a spread rule, and how many matched pods each domain (by code) has on them."""
    table = cluster.table
    counted = table.alive.copy()
    for rule in pod.shape.spread:
        counted &= table.domain_codes(rule.key) >= 0
    everywhere = table.everywhere
    if spread.honor_affinity:
        counted &= table.match_all(pod.shape.node_labels, everywhere)
        if pod.shape.node_terms is not None:
            counted &= table.match_any(pod.shape.node_terms, everywhere)
    if spread.honor_taints:
        for reason, _, refused in static_refusals(cluster, pod.shape, everywhere):
            if reason is Reason.TAINT:
                counted &= ~refused
    codes = table.domain_codes(spread.key)[counted]
    here = cluster.pod_counts.matching(spread.match, exclude_deleting=True)[counted]
    sums = np.bincount(codes, weights=here).astype(np.int64) if len(codes) else np.zeros(0, np.int64)
    present = np.zeros(len(sums), bool)
    present[codes] = True
    return counted, np.where(present, sums, -1)


def _spread_allows(cluster: Cluster, pod: Pod, spread: Spread) -> Bools:
    """Where one more pod keeps the rule; a domain outside the counted ones starts from nothing."""
    _, sums = spread_domains(cluster, pod, spread)
    domains = sums[sums >= 0]
    lowest = int(domains.min()) if len(domains) >= max(spread.min_domains, 1) else 0
    itself = int(matches_itself(pod, spread.match))
    codes = cluster.table.domain_codes(spread.key)
    padded = np.append(np.maximum(sums, 0), 0)
    here = padded[np.where((codes >= 0) & (codes < len(sums)), codes, len(sums))]
    return (codes >= 0) & (here + itself - lowest <= spread.max_skew)
