"""The last resort: members placed one by one through every rule, with a bounded amount of going back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Bools, Codes, Ints
from gpu_scheduler.core.model import Pod, Slot
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.fit import pod_refusals
from gpu_scheduler.core.placement.scoring import node_scores

_DEEPEST = 64
"""All members but this many are placed without going back: a search that deep would not end in time."""


class SearchGroup(NamedTuple):
    """Interchangeable pods that look for a place; with `domains` all of their role must end in one of them."""

    pods: list[Pod]
    domains: Codes | None = None


Line = list[tuple[int, Pod]]
"""Members in the order they are placed, each with the number of its group."""


def search(cluster: Cluster, groups: list[SearchGroup], allowed: Bools | None, tries: int) -> list[Slot] | None:
    """Places the groups' pods in order within the allowed nodes; on success they are assumed.

    None means that nothing was found within `tries` steps back, which is not a proof that nothing exists.
    """
    line = [(number, pod) for number, group in enumerate(groups) for pod in group.pods]
    surely = max(0, len(line) - _DEEPEST)
    with cluster.trial() as trial:
        ahead = _Search(cluster, groups, allowed, tries)
        slots = ahead.advance(line[:surely])
        rest = None if slots is None else ahead.place(line[surely:])
        if slots is None or rest is None:
            return None
        trial.keep()
        return slots + rest


class _Search:
    """Depth first. `path` is where the members so far are; `dead` holds the arrangements that led nowhere: in which
    order equal members got there makes no difference."""

    def __init__(self, cluster: Cluster, groups: list[SearchGroup], allowed: Bools | None, tries: int) -> None:
        self._cluster = cluster
        self._groups = groups
        self._allowed = allowed
        self._tries = tries
        self._path: list[tuple[int, int]] = []
        self._dead: set[tuple[tuple[int, int], ...]] = set()

    def advance(self, line: Line) -> list[Slot] | None:
        """Places each on the first node that takes it."""
        slots = []
        for number, pod in line:
            nodes = candidates(self._cluster, pod, self._open_to(number))
            if not len(nodes):
                return None
            self._path.append((number, int(nodes[0])))
            slots.append(_seat(self._cluster, pod, int(nodes[0])))
        return slots

    def place(self, line: Line) -> list[Slot] | None:
        """Places each on the first node from which all those after it find one, too."""
        if not line:
            return []
        # Members come to a node in the order of their groups, so who is on it says which cards they have.
        state = tuple(sorted(self._path))
        if state in self._dead:
            return None
        number, pod = line[0]
        for slot in self._distinct(candidates(self._cluster, pod, self._open_to(number)), line):
            if self._tries <= 0:
                return None
            self._path.append((number, slot))
            with self._cluster.trial() as trial:
                here = _seat(self._cluster, pod, slot)
                rest = self.place(line[1:])
                if rest is not None:
                    trial.keep()
                    return [here, *rest]
            self._path.pop()
            self._tries -= 1
        self._dead.add(state)
        return None

    def _open_to(self, number: int) -> Bools | None:
        """The nodes that a group may use, now that members of its role are where they are."""
        codes = self._groups[number].domains
        if codes is None:
            return self._allowed
        role = self._groups[number].pods[0].role
        homes = {int(codes[slot]) for other, slot in self._path if self._groups[other].pods[0].role == role}
        inside = codes == homes.pop() if homes else codes >= 0
        return inside if self._allowed is None else inside & self._allowed

    def _distinct(self, nodes: Ints, line: Line) -> Iterable[int]:
        """One of each kind of node: two that can take the same of every remaining shape lead to the same end."""
        cluster = self._cluster
        shapes = {pod.shape for _, pod in line}
        different = any(shape.has_pod_terms or shape.device_map for shape in shapes)
        if different or cluster.pod_counts.anti_affinity_matches() or any(g.domains is not None for g in self._groups):
            return (int(slot) for slot in nodes)
        found: dict[bytes, int] = {}
        for slot in nodes.tolist():
            kind = b"".join(capacity_of(cluster, shape).counts[slot].tobytes() for shape in shapes)
            kind += cluster.free[:, slot].tobytes() + cluster.devices.used[:, slot].tobytes()
            found.setdefault(kind + cluster.devices.ok[:, slot].tobytes(), slot)
        return found.values()


def _seat(cluster: Cluster, pod: Pod, slot: int) -> Slot:
    return Slot(cluster.table.name(slot), cluster.assume([pod], slot)[0], pod.role)


def candidates(cluster: Cluster, pod: Pod, allowed: Bools | None) -> Ints:
    """The nodes that may take the pod now, the best first: highest score, then least capacity left."""
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
