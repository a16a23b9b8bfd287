"""Gangs without GPUs on drained nodes: they are let in as far as the gang that waits for the nodes fits beside them.

Pods with GPUs on the target will end; pods without GPUs may stay. The owner's minimum is placed on the target beside
the pods that may stay. What it needs of a node, and no pod with GPUs there will free, is withheld from other gangs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster, Usage
from gpu_scheduler.core.cluster.node_table import Ints
from gpu_scheduler.core.cycle.drain import place_on_empty
from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.model import Shape
from gpu_scheduler.core.placement.domains import Bid, Placement
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.state import State


def may_be_let_in(state: State, bid: Bid) -> bool:
    """Whether nodes are drained that a gang may use beside the owner of the target: it needs no GPUs, and no port or
    rule of its pods could keep the owner's pods away."""
    shapes = [group.pods[0].shape for group in bid.groups]
    return bid.excluded is not None and not any(
        shape.host_ports or shape.has_pod_terms or _uses_gpus(state, shape) for shape in shapes
    )


def place_beside_owner(state: State, bid: Bid, now: float) -> Placement | None:
    """Places and assumes a gang that may be let in; None if it does not fit."""
    needs = _owner_needs(state, now)
    if needs is None or bid.excluded is None:
        return None
    cluster, slots = state.cluster, np.flatnonzero(bid.excluded)
    withheld = needs.beyond_freed(state, slots)
    placement = None
    with cluster.trial() as trial:
        cluster.withhold(slots, withheld)
        placement = place_gang(cluster, replace(bid, excluded=None)) or None
        if placement is not None:
            cluster.withhold(slots, -withheld)
            trial.keep()
    needs.skip_changes(cluster)  # no pod with GPUs came or went
    return placement


class OwnerNeeds:
    """What the owner of a target needs of its nodes, and what the pods with GPUs there will free."""

    def __init__(self, cluster: Cluster, nodes: tuple[str, ...], placement: Placement) -> None:
        for pod, _ in placement:
            cluster.demand(pod.shape)  # which may add a row
        slots = cluster.table.slots
        self._columns = {slots[node]: column for column, node in enumerate(nodes) if node in slots}
        self._amounts = np.zeros((len(cluster.free), len(nodes)), np.int64)
        self._freed = np.zeros_like(self._amounts)
        self._position = -1
        for pod, slot in placement:
            self._count(cluster, self._amounts, pod.shape, slots[slot.node])

    def beyond_freed(self, state: State, slots: Ints) -> Ints:
        """What the owner needs of every resource of these nodes beyond what the pods with GPUs will free."""
        cluster = state.cluster
        seen = self._position - cluster.dropped_changes
        changed = self._columns.keys() if self._position < 0 or seen < 0 else set(cluster.changes[seen:])
        for slot in changed & self._columns.keys():
            self._freed[:, self._columns[slot]] = 0
            for usage in cluster.pods_on(cluster.table.name(slot)):
                if not usage.pod.permanent and _uses_gpus(state, usage.pod.shape):
                    self._count(cluster, self._freed, usage.pod.shape, slot)
        self.skip_changes(cluster)
        columns = [self._columns[slot] for slot in slots.tolist()]
        return np.asarray(np.maximum(self._amounts - self._freed, 0)[:, columns])

    def skip_changes(self, cluster: Cluster) -> None:
        """Ignores what has changed on the nodes so far."""
        self._position = cluster.dropped_changes + len(cluster.changes)

    def _count(self, cluster: Cluster, amounts: Ints, shape: Shape, slot: int) -> None:
        for row, amount in cluster.demand(shape).plain:
            if row < len(amounts):
                amounts[row, self._columns[slot]] += amount


def _owner_needs(state: State, now: float) -> OwnerNeeds | None:
    """The needs of the target's owner; None if it has no GPUs, has rules about other pods, or does not fit at the
    moment beside the pods that may stay."""
    if state.target is None:
        return None
    known, version = state.owner_needs, (state.target, state.target_version)
    found: OwnerNeeds | None = known[1] if known[0] == version else None
    if found is None:
        found = _find_needs(state, state.records[state.target], now)
        state.owner_needs = (version, found)
    return found


def _find_needs(state: State, owner: GangRecord, now: float) -> OwnerNeeds | None:
    shapes = [group.pods[0].shape for group in owner.bid.groups] if owner.bid is not None else []
    if any(shape.has_pod_terms for shape in shapes) or not any(_uses_gpus(state, shape) for shape in shapes):
        return None
    there = [usage for node in owner.notes.target for usage in state.cluster.pods_on(node)]
    staying = [usage for usage in there if _may_stay(state, usage)]
    placement = place_on_empty(state, owner, now, within=owner.notes.target, beside=staying)
    return OwnerNeeds(state.cluster, owner.notes.target, placement) if placement else None


def _may_stay(state: State, usage: Usage) -> bool:
    """Whether a pod may stay when the pods with GPUs have ended; permanent pods count as part of the node."""
    return not usage.pod.permanent and not _uses_gpus(state, usage.pod.shape)


def _uses_gpus(state: State, shape: Shape) -> bool:
    return shape.wants_devices or any(amount and name in state.config.gpu_resources for name, amount in shape.request)
