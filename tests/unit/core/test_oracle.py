"""Fit, capacity and trials against an independent reference, on random small clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.model import Pod
from gpu_scheduler.core.placement.capacity import Capacity, capacity_of
from gpu_scheduler.core.placement.fit import fits
from tests.unit.core import oracle
from tests.unit.core.clusters import Pick, Scope, build_cluster, drawing, random_fleet, random_pod, random_shape
from tests.unit.core.oracle import Fleet

EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Scene:
    """A fleet and a pod to be placed in it."""

    fleet: Fleet
    pod: Pod


@st.composite
def scenes(draw: st.DrawFn, *, terms: bool = True) -> Scene:
    pick = drawing(draw)
    fleet = random_fleet(pick, Scope())
    return Scene(fleet, random_pod(pick, "asking", random_shape(pick, fleet.nodes, terms=terms)))


@given(scenes())
@EXAMPLES
def test_a_pod_fits_the_same_nodes_as_in_the_reference(scene: Scene) -> None:
    cluster = build_cluster(scene.fleet)
    accepted = {name for name, slot in cluster.table.slots.items() if fits(cluster, scene.pod, slot)}
    assert accepted == oracle.accepted_nodes(scene.fleet, scene.pod)


@given(scenes(terms=False))
@EXAMPLES
def test_a_nodes_capacity_is_the_number_of_copies_that_the_reference_adds_one_by_one(scene: Scene) -> None:
    cluster = build_cluster(scene.fleet)
    shape = scene.pod.shape
    # Capacity ignores the anti-affinity of placed pods: it is not a rule about the node alone.
    calm = Fleet(scene.fleet.nodes, [p for p in scene.fleet.placed if not p.pod.shape.anti_affinity])
    if len(calm.placed) < len(scene.fleet.placed):
        cluster = build_cluster(calm)
    counts = capacity_of(cluster, shape).counts
    for node in calm.nodes:
        expected = _copies(calm, scene.pod, node.name)
        found = int(counts[cluster.table.slots[node.name]])
        if shape.device_map is not None and shape.gpus:
            # Copies of one map entry share their GPUs, but the request of each copy is compared with the free amount.
            assert min(found, 1) == min(expected, 1)
        else:
            assert min(found, COPIES) == expected


COPIES = 12


def _copies(fleet: Fleet, pod: Pod, node: str) -> int:
    """How many copies fit on one node, each with its first device choice; at most COPIES are counted."""
    for count in range(COPIES):
        # GPUs in use come first: a share on an idle GPU would waste the rest of a used one.
        used = oracle.used_milli(fleet, fleet.node(node))
        choices = sorted(
            oracle.device_choices(fleet, pod, node), key=lambda devices: [device not in used for device in devices]
        )
        if not choices:
            return count
        fleet = fleet.with_pod(pod, node, choices[0])
    return COPIES


# -- changes and trials


@dataclass(frozen=True)
class Snapshot:
    """The whole state of a cluster, comparable."""

    arrays: dict[str, list[object]]
    tables: dict[str, object]


def take_snapshot(cluster: Cluster) -> Snapshot:
    """The state without rows that are all zero, because a table may have grown, and without empty nodes."""

    def rows(table: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> list[object]:
        return [(i, row.tolist()) for i, row in enumerate(table) if row.any()]

    return Snapshot(
        arrays={
            "free": rows(cluster.free),
            "allocatable": rows(cluster.allocatable),
            "device_used": rows(cluster.devices.used),
            "device_ok": rows(cluster.devices.healthy),
            "unrecorded": cluster.devices.unrecorded.tolist(),
            "gpus": cluster.devices.count.tolist(),
            "gpu_row": cluster.gpu_row.tolist(),
        },
        tables={
            "ports": dict(cluster.ports),
            "map_users": dict(cluster.devices.map_users),
            "usage": dict(cluster.usage),
            "on_node": {n: {u.pod.uid: u for u in cluster.pods_on(n)} for n in cluster.table.slots},
            "carriers": sorted((repr(t), c.tolist()) for t, c in cluster.pod_counts._carriers.items()),
            "matching": sorted((repr(m), c.tolist()) for m, c in cluster.pod_counts._matching.items()),
        },
    )


def _change(pick: Pick, cluster: Cluster, fleet: Fleet, pods: list[Pod]) -> None:
    """One random change: a pod is observed, is placed, or is removed."""
    pod = pick(pods)
    what = pick(["assume", "assume", "add", "forget", "ask"])
    name = pick(fleet.nodes).name
    slot = cluster.table.slots[name]
    if what == "forget":
        cluster.forget(pod.uid)
    elif what == "add":
        cluster.add(pod, name, pod.shape.device_map.devices if pod.shape.device_map else ())
    elif what == "assume" and pod.uid not in cluster.usage and fits(cluster, pod, slot):
        cluster.assume([pod], slot)
    else:
        capacity_of(cluster, pod.shape)


def _change_in_trials(pick: Pick, cluster: Cluster, fleet: Fleet, pods: list[Pod], depth: int = 0) -> None:
    """Random changes, some in nested trials; an undone trial leaves no trace."""
    for _ in range(pick(range(1, 5))):
        if depth < 2 and pick([False, True]):
            kept = pick([False, True])
            before = take_snapshot(cluster)
            with cluster.trial() as trial:
                _change_in_trials(pick, cluster, fleet, pods, depth + 1)
                if kept:
                    trial.keep()
            assert kept or take_snapshot(cluster) == before
        else:
            _change(pick, cluster, fleet, pods)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Pick, Fleet, list[Pod]]:
    pick = drawing(draw)
    fleet = random_fleet(pick, Scope(nodes=4, placed=3))
    return pick, fleet, [random_pod(pick, f"pod-{i}", random_shape(pick, fleet.nodes)) for i in range(4)]


@given(histories())
@EXAMPLES
def test_incrementally_updated_capacity_equals_recomputed_capacity(history: tuple[Pick, Fleet, list[Pod]]) -> None:
    pick, fleet, pods = history
    cluster = build_cluster(fleet)
    shapes = {pod.shape for pod in pods} | {placed.pod.shape for placed in fleet.placed}
    for shape in shapes:
        capacity_of(cluster, shape)
    for _ in range(pick(range(1, 4))):
        _change_in_trials(pick, cluster, fleet, pods)
        for shape in shapes:
            fresh = Capacity(shape)
            fresh.refresh(cluster)
            kept = capacity_of(cluster, shape)
            assert kept.counts.tolist() == fresh.counts.tolist()
            assert kept.total == fresh.total


@given(histories())
@EXAMPLES
def test_a_cluster_changed_step_by_step_equals_one_built_from_the_result(
    history: tuple[Pick, Fleet, list[Pod]],
) -> None:
    pick, fleet, pods = history
    cluster = build_cluster(fleet)
    _change_in_trials(pick, cluster, fleet, pods)
    rebuilt = Cluster()
    for node in fleet.nodes:
        rebuilt.put_node(node)
    for usage in cluster.usage.values():
        rebuilt.add(usage.pod, usage.node, usage.devices)
    for pod in pods:
        accepted = {name for name, slot in cluster.table.slots.items() if fits(cluster, pod, slot)}
        assert accepted == {name for name, slot in rebuilt.table.slots.items() if fits(rebuilt, pod, slot)}
    for name in cluster.row_of.keys() & rebuilt.row_of.keys():
        assert cluster.free[cluster.row_of[name]].tolist() == rebuilt.free[rebuilt.row_of[name]].tolist()


@pytest.mark.parametrize("removed", [0, 1], ids=["the first node", "the last node"])
def test_pods_of_a_node_that_is_removed_and_returns_count_as_before(removed: int) -> None:
    @given(histories())
    @settings(EXAMPLES, max_examples=60)
    def leaves_no_trace(history: tuple[Pick, Fleet, list[Pod]]) -> None:
        pick, fleet, pods = history
        cluster = build_cluster(fleet)
        _change_in_trials(pick, cluster, fleet, pods)
        before = take_snapshot(cluster)
        node = fleet.nodes[-removed]
        cluster.remove_node(node.name)
        assert all(not fits(cluster, pod, slot) for pod in pods for slot in range(16) if not cluster.table.alive[slot])
        cluster.put_node(node)
        assert take_snapshot(cluster) == before

    leaves_no_trace()
