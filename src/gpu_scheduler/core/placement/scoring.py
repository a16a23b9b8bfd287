"""Node scores: which of the nodes that fit a pod is preferred.

A score is a function of the cluster and a pod, with one row in `NODE_SCORES`. Below the table are the tie-breaks: they
choose between nodes that a pod scores alike, for the sake of other gangs or groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cluster.node_table import Ints
from gpu_scheduler.core.model import Pod, Shape, TaintEffect
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.fit import domain_totals

ScoreFunction = Callable[[Cluster, Pod], Ints | None]
"""Scores every node for a pod; None when the score does not apply and all nodes are equal."""

_TIE_BREAK_SCALE = 2048
"""A difference of one in the pod's own scores outweighs a tie-break up to this size."""


def preferred_node_affinity(cluster: Cluster, pod: Pod) -> Ints | None:
    """The sum of the weights of the preferred node affinity terms that a node matches."""
    terms = [preference for preference in pod.shape.preferences if preference.node is not None]
    if not terms:
        return None
    table = cluster.table
    scores = np.zeros(table.size, np.int64)
    for term in terms:
        assert term.node is not None
        scores += term.weight * table.match_term(term.node, table.everywhere)
    return scores


def preferred_pod_affinity(cluster: Cluster, pod: Pod) -> Ints | None:
    """For every preferred pod (anti-)affinity term, its weight times the number of matching pods in the domain."""
    terms = [preference for preference in pod.shape.preferences if preference.pods is not None]
    if not terms:
        return None
    scores = np.zeros(cluster.table.size, np.int64)
    cluster.note_work(len(terms))
    for term in terms:
        assert term.pods is not None
        near = cluster.pod_counts.matching(term.pods.match)
        scores += term.weight * domain_totals(cluster, term.pods.key, near)
    return scores


def untolerated_soft_taints(cluster: Cluster, pod: Pod) -> Ints | None:
    """The number of PreferNoSchedule taints of a node that the pod does not tolerate."""
    scores = None
    for number, taints in enumerate(cluster.table.taint_sets):
        soft = [taint for taint in taints if taint.effect is TaintEffect.PREFER_NO_SCHEDULE]
        untolerated = sum(not any(one.tolerates(taint) for one in pod.shape.tolerations) for taint in soft)
        if untolerated:
            found = untolerated * (cluster.table.taint_set == number)
            scores = found if scores is None else scores + found
    return scores


def idle_gpus(cluster: Cluster, pod: Pod) -> Ints | None:
    """The idle GPUs of a node, for a pod without GPUs: it would strand them."""
    if pod.shape.wants_devices or not cluster.devices.count.any():
        return None
    return np.asarray((cluster.devices.healthy & (cluster.devices.used == 0)).sum(axis=0))


def _one(_cluster: Cluster) -> int:
    return 1


def _more_than_gpus(cluster: Cluster) -> int:
    """More than a node has GPUs."""
    return len(cluster.devices.healthy) + 1


class NodeScore(NamedTuple):
    """A row of the table. The scores of the rows above are multiplied by `scale` before `weight` times this score is
    added: with a scale larger than any score of this row, the row only breaks ties."""

    score: ScoreFunction
    weight: int = 1
    scale: Callable[[Cluster], int] = _one


NODE_SCORES: tuple[NodeScore, ...] = (
    NodeScore(preferred_node_affinity),
    NodeScore(preferred_pod_affinity),
    NodeScore(untolerated_soft_taints, weight=-1),
    NodeScore(idle_gpus, weight=-1, scale=_more_than_gpus),
)


def node_scores(cluster: Cluster, pod: Pod, tie_break: Ints | None = None) -> Ints | None:
    """The weighted sum of the table for a pod, then the tie-break; None when all nodes are equal. Higher is better."""
    total: Ints | None = None
    for score, weight, scale in NODE_SCORES:
        scores = score(cluster, pod)
        if scores is not None:
            total = weight * scores if total is None else total * scale(cluster) + weight * scores
    if total is None or not total.any():
        return tie_break
    return total if tie_break is None else total * _TIE_BREAK_SCALE + tie_break


# -- tie-breaks between nodes that a pod scores alike


def least_needed(cluster: Cluster, shapes: Iterable[Shape]) -> Ints:
    """Prefers the nodes that pods of other shapes can use least: their groups are placed later."""
    cost = np.zeros(cluster.table.size)
    for shape in shapes:
        cluster.work += 1
        capacity = capacity_of(cluster, shape)
        cost += capacity.counts * (1024 / max(capacity.total, 1))
    return -np.ceil(cost).astype(np.int64)


def least_used(cluster: Cluster) -> Ints:
    """Prefers the emptiest nodes, by the use of their scarcest resource in thousandths."""
    total = np.maximum(cluster.allocatable, 1)
    free = np.clip(cluster.free, 0, None)
    used = 1000 - (1000.0 * free / total)
    used[cluster.allocatable == 0] = 0
    return np.asarray(-used.max(axis=0), np.int64)
