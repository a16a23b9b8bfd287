"""Capacity: how many pods of a shape every node can take, cached and updated for changed nodes only."""

from __future__ import annotations

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Bools, Ints
from gpu_scheduler.core.model import Shape
from gpu_scheduler.core.placement.fit import capacity_at, capacity_on, is_simple, may_use

_FEW = 8
"""Up to this many nodes plain numbers are faster than arrays."""


class Capacity:
    """The capacity of every node for one shape, by the rules about nodes alone; `total` is the sum."""

    __slots__ = ("_allowed", "_position", "_shape", "_version", "counts", "total")

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._version = -1
        self._position = 0
        self._allowed: Bools = np.zeros(0, bool)
        self.counts: Ints = np.zeros(0, np.int64)
        self.total = 0

    def refresh(self, cluster: Cluster) -> None:
        """Updates the capacity of the nodes that changed since the last refresh."""
        seen = self._position - cluster.dropped_changes
        changes = cluster.changes
        if self._version != cluster.table.version or seen < 0:
            cluster.note_work()
            everywhere = cluster.table.everywhere
            self._version = cluster.table.version
            self._allowed = may_use(cluster, self._shape, everywhere)
            self.counts = capacity_on(cluster, self._shape, everywhere) * self._allowed
            self.total = int(self.counts.sum())
        elif seen < len(changes):
            changed = set(changes[seen:])
            if len(changed) <= _FEW and is_simple(self._shape):
                self._refresh_few(cluster, changed)
            else:
                nodes = np.array(sorted(changed))
                fresh = capacity_on(cluster, self._shape, nodes) * self._allowed[nodes]
                self.total += int(fresh.sum() - self.counts[nodes].sum())
                self.counts[nodes] = fresh
        self._position = cluster.dropped_changes + len(changes)

    def _refresh_few(self, cluster: Cluster, slots: set[int]) -> None:
        counts = self.counts
        for slot in slots:
            if self._allowed.item(slot):
                fresh = capacity_at(cluster, self._shape, slot)
                self.total += fresh - counts.item(slot)
                counts[slot] = fresh


def capacity_of(cluster: Cluster, shape: Shape) -> Capacity:
    """The current capacity for a shape. The arrays are the cache itself: read them, do not write."""
    found: Capacity | None = cluster.capacity_cache.get(shape)
    if found is None:
        if len(cluster.capacity_cache) >= cluster.cached_shapes:
            del cluster.capacity_cache[next(iter(cluster.capacity_cache))]
        found = cluster.capacity_cache[shape] = Capacity(shape)
    found.refresh(cluster)
    return found
