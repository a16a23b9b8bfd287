"""Topology domains: nodes that share a label path, at any number of levels."""

from __future__ import annotations

import numpy as np

from gpu_scheduler.core.cluster.node_table import Codes, NodeTable
from gpu_scheduler.core.model import TopologyRule

Levels = tuple[tuple[str, str], ...]
"""Level names with their node labels, widest first."""

DEFAULT_LEVELS: Levels = (
    ("zone", "topology.kubernetes.io/zone"),
    ("rack", "gpu-scheduler.io/rack"),
    ("nvlink", "gpu-scheduler.io/nvlink-block"),
)
_MAX_CACHED = 256
"""The most levels whose domains are cached: gangs may name any label."""
NODE = "node"
"""The narrowest level, which every cluster has."""


class Topology:
    """The tree of domains over a node table. A domain is a whole label path: rack 1 of zone a is not rack 1 of b."""

    def __init__(self, table: NodeTable, levels: Levels) -> None:
        self._table = table
        self._levels = levels
        self._names = [name for name, _ in levels]
        self._cache: dict[str, tuple[int, Codes]] = {}

    def codes(self, level: str) -> Codes:
        """The domain of every node at a level (a configured name or a label key), numbered from 0; -1 for none."""
        version, codes = self._cache.get(level, (-1, None))
        if codes is None or version != self._table.version:
            codes = self._number(level)
            self._keep(level, codes)
        return codes

    def required_codes(self, level: str, rules: tuple[TopologyRule, ...]) -> Codes:
        """The domains of a level, cut along every required level; -1 for a node outside one of these levels."""
        cuts = [rule.level for rule in rules if rule.required and rule.level != level]
        if not cuts:
            return self.codes(level)
        key = "\0".join((level, *cuts))
        version, codes = self._cache.get(key, (-1, None))
        if codes is None or version != self._table.version:
            parts = np.stack([self.codes(name) for name in (level, *cuts)])
            inside = (parts >= 0).all(axis=0)
            codes = np.where(inside, parts[0], -1).astype(np.int32)
            if level != NODE and inside.any():
                codes[inside] = np.unique(parts[:, inside], axis=1, return_inverse=True)[1].reshape(-1)
            self._keep(key, codes)
        return codes

    def _keep(self, key: str, codes: Codes) -> None:
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[key] = (self._table.version, codes)

    def search_levels(self, rules: tuple[TopologyRule, ...]) -> list[str]:
        """The levels to try, narrowest first, up to the narrowest required one; "" (no domain) if none is required."""
        if not rules:
            return [""]
        order = [NODE, *reversed(self._names)]
        rank = {name: i for i, name in enumerate(order)}
        required = [rule.level for rule in rules if rule.required]
        preferred = [rule.level for rule in rules if not rule.required]
        widest = min(required, key=lambda level: rank.get(level, len(order)), default="")
        # A label that is not a configured level has no position in the tree: it is tried after single nodes.
        foreign = [level for level in preferred if level not in rank and level != widest]
        if widest in rank:
            return foreign + order[: rank[widest] + 1]
        top = max((rank[level] for level in preferred if level in rank), default=0)
        return [NODE, *foreign, *order[1 : top + 1], widest]

    def _number(self, level: str) -> Codes:
        alive = self._table.alive
        if level == NODE:
            return np.where(alive, np.arange(self._table.size), -1).astype(np.int32)
        if level not in self._names:
            return np.where(alive, self._table.domain_codes(level), -1).astype(np.int32)
        path = np.zeros(self._table.size, np.int64)
        own: Codes = np.zeros(self._table.size, np.int32)
        for name, label in self._levels:
            column = self._table.column(label)
            own = column.codes
            path = path * (len(column.values) + 1) + own
            if name == level:
                break
            _, path = np.unique(path, return_inverse=True)
        inside = alive & (own >= 0)
        codes = np.full(self._table.size, -1, np.int32)
        codes[inside] = np.unique(path[inside], return_inverse=True)[1]
        return codes
