"""The last resort of placement: a depth-first search, member by member, with bounded backtracking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Bools, Codes, Ints
from gpu_scheduler.core.model import Pod, Slot
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.fit import pod_refusals
from gpu_scheduler.core.placement.scoring import node_scores

_MAX_DEPTH = 64
"""All members but this many are placed without backtracking: a deeper search would not end in time."""

_MAX_VISITS = 20_000_000
"""A search is given up before it starts if members times nodes are more than this: it would take seconds."""


class SearchGroup(NamedTuple):
    """Interchangeable pods to place; with `domains`, all pods of their role must end up in one of these."""

    pods: Sequence[Pod]
    domains: Codes | None = None


Members = list[tuple[int, Pod]]
"""Pods in the order of placement, each with the number of its group."""


def search(cluster: Cluster, groups: list[SearchGroup], allowed: Bools | None, tries: int) -> list[Slot] | None:
    """Places and assumes the groups' pods in order on the allowed nodes.

    None means that `tries` steps back found no placement; that does not prove that there is none.
    """
    if sum(len(group.pods) for group in groups) * cluster.table.size > _MAX_VISITS:
        return None
    members = [(number, pod) for number, group in enumerate(groups) for pod in group.pods]
    greedy = max(0, len(members) - _MAX_DEPTH)
    with cluster.trial() as trial:
        attempt = _Search(cluster, groups, allowed, tries)
        slots = attempt.place_greedily(members[:greedy])
        rest = None if slots is None else attempt.place(members[greedy:])
        if slots is None or rest is None:
            return None
        trial.keep()
        return slots + rest


class _Search:
    """A depth-first search. `path` holds the nodes of the members so far; `dead_ends` holds the arrangements without a
    solution, whatever the order of equal members in them."""

    def __init__(self, cluster: Cluster, groups: list[SearchGroup], allowed: Bools | None, tries: int) -> None:
        self._cluster = cluster
        self._groups = groups
        self._allowed = allowed
        self._tries = tries
        self._path: list[tuple[int, int]] = []
        self._dead_ends: set[tuple[tuple[int, int], ...]] = set()

    def place_greedily(self, members: Members) -> list[Slot] | None:
        """Places each member on the best node that takes it."""
        slots = []
        for number, pod in members:
            nodes = candidates(self._cluster, pod, self._open_to(number))
            if not len(nodes):
                return None
            self._path.append((number, int(nodes[0])))
            slots.append(_assume(self._cluster, pod, int(nodes[0])))
        return slots

    def place(self, members: Members) -> list[Slot] | None:
        """Places each member on the best node that leaves a place for all members after it."""
        if not members:
            return []
        # Members come to a node in the order of their groups, so the members on a node determine their GPUs.
        state = tuple(sorted(self._path))
        if state in self._dead_ends:
            return None
        number, pod = members[0]
        for slot in self._distinct(candidates(self._cluster, pod, self._open_to(number)), members):
            if self._tries <= 0 or not self._cluster.has_work_left:
                return None
            self._path.append((number, slot))
            with self._cluster.trial() as trial:
                here = _assume(self._cluster, pod, slot)
                rest = self.place(members[1:])
                if rest is not None:
                    trial.keep()
                    return [here, *rest]
            self._path.pop()
            self._tries -= 1
        self._dead_ends.add(state)
        return None

    def _open_to(self, number: int) -> Bools | None:
        """The nodes that a group may use, given the nodes of placed members of its role."""
        codes = self._groups[number].domains
        if codes is None:
            return self._allowed
        role = self._groups[number].pods[0].role
        homes = {int(codes[slot]) for other, slot in self._path if self._groups[other].pods[0].role == role}
        inside = codes == homes.pop() if homes else codes >= 0
        return inside if self._allowed is None else inside & self._allowed

    def _distinct(self, nodes: Ints, members: Members) -> Iterable[int]:
        """One node of each kind: nodes with the same capacity for every remaining shape give the same result."""
        cluster = self._cluster
        shapes = {pod.shape for _, pod in members}
        different = any(shape.has_pod_terms or shape.device_map for shape in shapes)
        if different or cluster.pod_counts.anti_affinity_matches() or any(g.domains is not None for g in self._groups):
            return (int(slot) for slot in nodes)
        found: dict[bytes, int] = {}
        cluster.work += len(nodes)
        for slot in nodes.tolist():
            kind = b"".join(capacity_of(cluster, shape).counts[slot].tobytes() for shape in shapes)
            kind += cluster.free[:, slot].tobytes() + cluster.devices.used[:, slot].tobytes()
            found.setdefault(kind + cluster.devices.healthy[:, slot].tobytes(), slot)
        return found.values()


def _assume(cluster: Cluster, pod: Pod, slot: int) -> Slot:
    return Slot(cluster.table.name(slot), cluster.assume([pod], slot)[0], pod.role)


def candidates(cluster: Cluster, pod: Pod, allowed: Bools | None) -> Ints:
    """The nodes that fit the pod now, the best first: highest score, then least capacity."""
    cluster.note_work()
    counts = capacity_of(cluster, pod.shape).counts
    fine = counts > 0
    if allowed is not None:
        fine &= allowed
    for _, _, refused in pod_refusals(cluster, pod, cluster.table.everywhere):
        fine &= ~refused
    nodes = np.flatnonzero(fine)
    scores = node_scores(cluster, pod)
    own = np.zeros(len(nodes)) if scores is None else scores[nodes]
    return nodes[np.lexsort((counts[nodes], -own))]
