"""The last resort: members placed one by one through every rule, with a bounded amount of going back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_scheduler.core.capacity import capacity_of
from gpu_scheduler.core.cluster import Cluster
from gpu_scheduler.core.distribute import likings
from gpu_scheduler.core.fit import pod_refusals
from gpu_scheduler.core.model import Pod, Slot
from gpu_scheduler.core.nodes import Bools, Ints

_DEEPEST = 64
"""Members beyond this many are placed without going back: a search that deep would not end in time."""


@dataclass(slots=True)
class Budget:
    """How many placements may still be tried."""

    tries: int


def search(cluster: Cluster, pods: list[Pod], allowed: list[Bools | None], budget: Budget) -> list[Slot] | None:
    """Places the pods in order, each within its own allowed nodes; on success they are assumed.

    None means that nothing was found within the budget, which is not a proof that nothing exists.
    """
    if not pods:
        return []
    nodes = candidates(cluster, pods[0], allowed[0])
    if len(pods) > _DEEPEST:
        nodes = nodes[:1]
    seen: set[bytes] = set()
    kinds = {pod.shape for pod in pods}
    alike = not any(shape.has_pod_terms or shape.device_map for shape in kinds) and all(a is None for a in allowed)
    for slot in nodes.tolist():
        if budget.tries <= 0:
            return None
        if alike:
            # Two nodes that can take the same of every remaining shape lead to the same end.
            state = b"".join(capacity_of(cluster, shape).counts[slot].tobytes() for shape in kinds)
            state += cluster.free[:, slot].tobytes() + cluster.device_used[:, slot].tobytes()
            if state in seen:
                continue
            seen.add(state)
        budget.tries -= 1
        with cluster.trial() as trial:
            devices = cluster.assume(pods[:1], slot)[0]
            rest = search(cluster, pods[1:], allowed[1:], budget)
            if rest is not None:
                trial.keep()
                return [Slot(cluster.table.name(slot), devices, pods[0].role), *rest]
    return None


def candidates(cluster: Cluster, pod: Pod, allowed: Bools | None) -> Ints:
    """The nodes that may take the pod now, the most promising first: liked, then fullest."""
    counts = capacity_of(cluster, pod.shape).counts
    fine = counts > 0
    if allowed is not None:
        fine &= allowed
    for _, _, refused in pod_refusals(cluster, pod, cluster.table.everywhere):
        fine &= ~refused
    nodes = np.flatnonzero(fine)
    liking = likings(cluster, pod)
    taste = np.zeros(len(nodes)) if liking is None else -liking[nodes]
    return nodes[np.lexsort((counts[nodes], taste))]
