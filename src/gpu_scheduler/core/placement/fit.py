"""Fit: the filter rules of the default scheduler, each written once, over any choice of nodes.

A rule yields the nodes that it refuses, with the reason; the same rules serve placement and diagnosis.
"""

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
"""A reason, its subject, and the mask of the nodes that are refused for it."""

UNLIMITED = 1 << 30
_HARD_EFFECTS = (TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE)


def refusals(cluster: Cluster, pod: Pod, nodes: Nodes) -> Iterator[Verdict]:
    """The verdict of every rule on the nodes, in the order in which a user wants to read them."""
    yield from static_refusals(cluster, pod.shape, nodes)
    yield from local_refusals(cluster, pod.shape, nodes)
    yield from pod_refusals(cluster, pod, nodes)


def fits(cluster: Cluster, pod: Pod, slot: int) -> bool:
    """Whether one more pod fits one node, by every rule."""
    node = np.array([slot])
    return bool(cluster.table.alive[slot]) and not any(refused[0] for _, _, refused in refusals(cluster, pod, node))


# -- rules about the node alone


def static_refusals(cluster: Cluster, shape: Shape, nodes: Nodes) -> Iterator[Verdict]:
    """Rules whose verdict only a change of the node object changes."""
    table = cluster.table
    unschedulable = Taint(UNSCHEDULABLE, "", TaintEffect.NO_SCHEDULE)
    if not _tolerates(shape, unschedulable):
        yield Reason.UNSCHEDULABLE, "", table.unschedulable[nodes]
    # The node controller taints such a node, and tolerations of the taint decide. Until the taint is there:
    if not any(_tolerates(shape, Taint(key, "", TaintEffect.NO_SCHEDULE)) for key in NOT_READY):
        yield Reason.NODE_NOT_READY, "", ~table.ready[nodes]
    for number, taints in enumerate(table.taint_sets):
        offending = next((t for t in taints if t.effect in _HARD_EFFECTS and not _tolerates(shape, t)), None)
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
        if shape.gpu_resource and not shape.gpus:
            # The queue is charged for GPUs of that resource. A node that advertises no GPUs may have any.
            rows = cluster.gpu_row[nodes]
            other = (rows >= 0) & (rows != cluster.row_of.get(shape.gpu_resource, -2))
            yield Reason.OTHER_GPUS, shape.gpu_resource, other
    if shape.gpu_milli or (shape.device_map is not None and shape.gpus):
        yield Reason.NO_ASSIGNED_DEVICES, "", ~cluster.devices.assigned[nodes]


def may_use(cluster: Cluster, shape: Shape, nodes: Nodes) -> Bools:
    """The mask of the nodes that no static rule refuses."""
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


# -- rules about free resources of the node


def local_refusals(cluster: Cluster, shape: Shape, nodes: Nodes) -> Iterator[Verdict]:
    """Rules whose verdict changes when a pod comes to the node or leaves it."""
    if shape.device_map is not None:
        # First, because the holder of the named GPUs is more informative than the number of free ones.
        yield Reason.DEVICE_MISSING, "", ~_map_exists(cluster, shape.device_map, nodes)
        yield Reason.DEVICE_HELD, "", ~_map_free(cluster, shape.device_map, nodes)
    demand = cluster.demand(shape)
    for name, (row, amount) in zip(demand.names, demand.asked, strict=True):
        yield Reason.RESOURCE, name, cluster.free[row][nodes] < amount
    if shape.host_ports:
        yield Reason.HOST_PORT, "", ~_ports_free(cluster, shape.host_ports, nodes)
    if shape.wants_devices:
        yield Reason.DEVICES_UNRECORDED, "", cluster.devices.unrecorded[nodes] > 0
    if shape.device_map is None and (shape.gpus or shape.gpu_milli):
        yield Reason.RESOURCE, shape.gpu_resource, device_capacity(cluster, shape, nodes) < 1


def capacity_on(cluster: Cluster, shape: Shape, nodes: Nodes) -> Ints:
    """How many more pods of the shape each node can take, by the rules about the node alone."""
    demand = cluster.demand(shape)
    free = cluster.free[demand.rows] if isinstance(nodes, slice) else cluster.free[demand.rows[:, None], nodes]
    counts: Ints = (free // demand.amounts[:, None]).min(axis=0)
    if shape.wants_devices:
        np.minimum(counts, device_capacity(cluster, shape, nodes), out=counts)
    if shape.host_ports:
        np.minimum(counts, _ports_free(cluster, shape.host_ports, nodes), out=counts)
    return np.maximum(counts, 0, out=counts)


def is_simple(shape: Shape) -> bool:
    """Whether sums alone decide how many pods of the shape fit a node: no host ports, GPU shares or map."""
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
    """How many pods of the shape find devices on each node: counted per GPU, never as a sum over the node."""
    if shape.device_map is not None:
        entry = shape.device_map
        # Pods of one map entry belong to one group, so they share its devices.
        counts = np.where(_map_exists(cluster, entry, nodes) & _map_free(cluster, entry, nodes), UNLIMITED, 0)
    else:
        idle = cluster.devices.idle[nodes]
        if shape.gpus:
            return np.asarray(idle // shape.gpus)
        ok, used = cluster.devices.healthy[:, nodes], cluster.devices.used[:, nodes]
        touched = np.where(ok & (used > 0), np.maximum(MILLI - used, 0) // shape.gpu_milli, 0).sum(axis=0)
        openable = np.minimum(idle, np.maximum(_gpu_row_free(cluster, nodes), 0))
        ours = cluster.devices.assigned[nodes]
        if shape.gpu_resource:
            ours = ours & (cluster.gpu_row[nodes] == cluster.row_of.get(shape.gpu_resource, -2))
        counts = np.where(ours, touched + openable * (MILLI // shape.gpu_milli), 0)
    return np.where(cluster.devices.unrecorded[nodes] > 0, 0, counts)


def _gpu_row_free(cluster: Cluster, nodes: Nodes) -> Ints:
    rows = cluster.gpu_row[nodes]
    columns = np.arange(cluster.table.size)[nodes]
    return np.where(rows >= 0, cluster.free[rows, columns], 0)


def _ports_free(cluster: Cluster, wanted: tuple[HostPort, ...], nodes: Nodes) -> Bools:
    """The nodes on which all host ports are free; the address 0.0.0.0 conflicts with every address."""
    free = np.ones(cluster.table.size, bool)
    addresses: dict[tuple[str, int], set[str]] = {}
    for want in wanted:
        addresses.setdefault((want.protocol, want.port), set()).add(want.ip)
    for slot, protocol, port, ip in cluster.ports:
        asked = addresses.get((protocol, port))
        if asked is not None and (ip in asked or ip == "0.0.0.0" or "0.0.0.0" in asked):
            free[slot] = False
    return free[nodes]


def _map_exists(cluster: Cluster, entry: DeviceMap, nodes: Nodes) -> Bools:
    """Whether a node has the named GPUs, and they are healthy; assumed of a node that advertises no GPUs."""
    silent = cluster.devices.count[nodes] == 0
    known = all(device < MAX_DEVICES for device in entry.devices)
    there = [
        cluster.devices.healthy[d][nodes] if d < len(cluster.devices.healthy) else ~silent & False
        for d in entry.devices
    ]
    return np.asarray((silent & known) | np.all(there, axis=0))


def _map_free(cluster: Cluster, entry: DeviceMap, nodes: Nodes) -> Bools:
    """Whether no pod outside the map's own group holds one of its devices.

    Where a device plugin assigns the GPUs, their indices are unknown; the map still needs as many free GPUs.
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
    """Rules that depend on the pods of other nodes too: affinity, anti-affinity, topology spread."""
    shape = pod.shape
    cluster.work += cluster.pod_counts.carried // 16
    cluster.note_work(len(shape.anti_affinity) + len(shape.affinity) + len(shape.spread) * (1 + len(shape.spread) // 8))
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
    """For every node, the sum of the counts over its domain of a label; 0 for a node without the label."""
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
    """Whether the pod may start an affinity group: it matches its own terms, and no pod in any domain does yet."""
    terms = pod.shape.affinity
    somewhere = np.logical_or.reduce([cluster.table.domain_codes(term.key) >= 0 for term in terms])
    return not near[somewhere].any() and all(matches_itself(pod, term.match) for term in terms)


def matches_itself(pod: Pod, match: PodMatch) -> bool:
    """Whether a term selects the pod itself."""
    return match.matches(pod.labels, pod.namespace, pod.namespace_labels)


def matching_all(cluster: Cluster, pod: Pod) -> Ints:
    """Per node, the number of pods that match all affinity terms of a pod (Kubernetes wants one pod for all terms)."""
    terms = pod.shape.affinity
    if len(terms) == 1:
        return cluster.pod_counts.matching(terms[0].match)
    counts = np.zeros(cluster.table.size, np.int64)
    for other, slot in cluster.placed():
        if all(t.match.matches(other.labels, other.namespace, other.namespace_labels) for t in terms):
            counts[slot] += 1
    return counts


def spread_domains(cluster: Cluster, pod: Pod, spread: Spread) -> tuple[Bools, Ints]:
    """The nodes that count for a spread rule, and the number of matched pods on them per domain code; -1 for none."""
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
    """The nodes on which one more pod keeps the skew; a domain without counted nodes starts from 0."""
    _, sums = spread_domains(cluster, pod, spread)
    domains = sums[sums >= 0]
    lowest = int(domains.min()) if len(domains) >= max(spread.min_domains, 1) else 0
    itself = int(matches_itself(pod, spread.match))
    codes = cluster.table.domain_codes(spread.key)
    padded = np.append(np.maximum(sums, 0), 0)
    here = padded[np.where((codes >= 0) & (codes < len(sums)), codes, len(sums))]
    return (codes >= 0) & (here + itself - lowest <= spread.max_skew)
