"""Cluster state and capacity: kept up to date, bounded in size, restored after a trial."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.model import HOSTNAME, HostPort, PodTerm, Shape
from gpu_scheduler.core.placement.capacity import capacity_of
from gpu_scheduler.core.placement.fit import fits, local_refusals
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.core.selectors import labels_equal
from tests.unit.core.clusters import GPU, RACK, apps, build_cluster, gpu_node, node, plain, pod, whole
from tests.unit.core.oracle import Fleet


def test_cached_capacity_of_a_shape_is_not_recomputed_while_nodes_stay() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 4), gpu_node("n1", 2)]))
    known = capacity_of(cluster, whole(1)).counts
    cluster.add(pod("p", whole(1)), "n0", (0,))
    found = capacity_of(cluster, whole(1))
    assert found.counts is known
    assert (found.total, sorted(known[known > 0].tolist())) == (5, [2, 3])
    cluster.put_node(gpu_node("n2", 1))
    assert capacity_of(cluster, whole(1)).total == 6


def test_the_log_of_changes_is_trimmed_and_no_change_is_missed() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 4)]))
    longest = 0
    for _ in range(3000):
        cluster.add(pod("p", whole(1)), "n0", (0,))
        cluster.forget("p")
        longest = max(longest, len(cluster.changes))
    assert longest < 5000
    assert len(cluster.changes) < 3000
    cluster.add(pod("q", whole(3)), "n0", (0, 1, 2))
    assert capacity_of(cluster, whole(1)).total == 1
    cluster.forget("q")
    assert capacity_of(cluster, whole(1)).total == 4


def test_the_log_of_changes_is_trimmed_although_all_changes_are_trials() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 4)]))
    for _ in range(5000):
        with cluster.trial():
            cluster.assume([pod("p", whole(1))], cluster.table.slots["n0"])
    assert len(cluster.changes) < 5000
    assert capacity_of(cluster, whole(1)).total == 4


def test_what_is_withheld_within_a_trial_is_no_capacity_and_is_given_back() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 4), gpu_node("n1", 4)]))
    slots = np.array([cluster.table.slots[name] for name in ("n0", "n1")])
    amounts = np.zeros((cluster.row_of[GPU] + 1, 2), np.int64)
    amounts[cluster.row_of[GPU]] = (1, 4)
    with cluster.trial():
        cluster.withhold(slots, amounts)
        assert capacity_of(cluster, whole(1)).counts[slots].tolist() == [3, 0]
    assert capacity_of(cluster, whole(1)).counts[slots].tolist() == [4, 4]
    with cluster.trial() as trial:
        cluster.withhold(slots, amounts)
        cluster.assume([pod("p", whole(3))], int(slots[0]))
        cluster.withhold(slots, -amounts)
        trial.keep()
    assert capacity_of(cluster, whole(1)).counts[slots].tolist() == [1, 4]


def test_a_cluster_remembers_the_capacity_of_a_limited_number_of_shapes() -> None:
    cluster = Cluster(cached_shapes=3)
    cluster.put_node(gpu_node("n0", 4))
    for gpus in (1, 2, 3, 4, 1):
        assert capacity_of(cluster, whole(gpus)).total == 4 // gpus
        assert len(cluster.capacity_cache) <= 3


def test_a_resource_that_a_node_lost_has_no_capacity() -> None:
    licences = Shape(request=(("cpu", 1), ("example.com/licence", 1)))
    cluster = Cluster()
    cluster.put_node(node("n0", allocatable={"example.com/licence": 2}))
    slot = cluster.table.slots["n0"]
    assert fits(cluster, pod("p", licences), slot)
    cluster.put_node(node("n0"))
    assert not fits(cluster, pod("p", licences), slot)
    assert capacity_of(cluster, licences).total == 0


def test_a_node_in_a_reused_slot_has_only_its_own_resources() -> None:
    licences = Shape(request=(("cpu", 1), ("example.com/licence", 1)))
    cluster = Cluster()
    cluster.put_node(node("n0", allocatable={"example.com/licence": 2}))
    cluster.remove_node("n0")
    assert not cluster.allocatable.any()
    assert not cluster.free.any()
    cluster.put_node(gpu_node("n1", 1))
    assert capacity_of(cluster, licences).total == 0
    assert capacity_of(cluster, whole(1)).total == 1


def test_capacity_is_recomputed_for_a_node_in_a_reused_slot() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 1, labels={RACK: "1"})]))
    slot = cluster.table.slots["n0"]
    assert capacity_of(cluster, whole(1)).total == 1
    assert cluster.topology.codes(RACK)[slot] >= 0
    cluster.remove_node("n0")
    cluster.put_node(gpu_node("n1", 1, unschedulable=True))
    assert cluster.table.slots["n1"] == slot
    assert capacity_of(cluster, whole(1)).total == 0
    assert cluster.topology.codes(RACK)[slot] < 0


def test_a_trial_that_names_a_new_resource_can_be_undone() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 4)]))
    slot = cluster.table.slots["n0"]
    with cluster.trial():
        cluster.assume([pod("p", whole(2))], slot)
        for number in range(40):
            assert not fits(cluster, pod("q", Shape(request=((f"example.com/{number}", 1),))), slot)
    assert cluster.free[cluster.row_of[GPU], slot] == 4
    assert np.array_equal(cluster.free, cluster.allocatable)


def test_resources_that_no_node_has_take_no_room_in_the_table() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 4)]))
    rows = len(cluster.row_of)
    many = Shape(request=tuple((f"example.com/r{number:05}", 1) for number in range(10_000)))
    assert capacity_of(cluster, many).total == 0
    (reason,) = {verdict[:2] for verdict in local_refusals(cluster, many, cluster.table.everywhere) if verdict[2][0]}
    assert reason == (Reason.RESOURCE, "example.com/r00000")
    assert (len(cluster.row_of), len(cluster.demand(many).rows)) == (rows, 2)


def test_pods_that_asked_for_a_resource_before_any_node_had_it_count_once_a_node_has_it() -> None:
    licences = Shape(request=(("cpu", 1), ("example.com/licence", 1), ("example.com/seat", 2)))
    cluster = Cluster()
    cluster.put_node(node("n0"))
    cluster.put_node(node("n1"))
    cluster.add(pod("p", licences), "n0", None)
    cluster.add(pod("q", licences), "n1", None)
    cluster.put_node(node("n0", allocatable={"example.com/licence": 3}))
    assert capacity_of(cluster, Shape(request=(("example.com/licence", 1),))).total == 2
    assert capacity_of(cluster, licences).total == 0
    cluster.put_node(node("n0", allocatable={"example.com/licence": 3, "example.com/seat": 4}))
    assert capacity_of(cluster, licences).total == 1
    cluster.forget("p")
    cluster.forget("q")
    assert np.array_equal(cluster.free, cluster.allocatable)
    assert capacity_of(cluster, licences).total == 2


def test_pods_of_an_undone_trial_are_not_counted() -> None:
    cluster = build_cluster(Fleet([gpu_node("n0", 4), gpu_node("n1", 4)]))
    slot = cluster.table.slots["n0"]
    with cluster.trial():
        cluster.assume([pod("p"), pod("q")], slot)
        assert cluster.pod_counts.matching(apps("a"))[slot] == 2
    assert cluster.pod_counts.matching(apps("a"))[slot] == 0
    with cluster.trial() as trial:
        cluster.assume([pod("p"), pod("q")], slot)
        trial.keep()
    assert cluster.pod_counts.matching(apps("a"))[slot] == 2


def test_a_cluster_grows_with_its_nodes() -> None:
    cluster = Cluster()
    for number in range(300):
        cluster.put_node(gpu_node(f"n{number}", 1, unschedulable=number == 299))
    assert capacity_of(cluster, whole(1)).total == 299
    assert capacity_of(cluster, plain()).total == 299 * 110
    for number in range(300):
        cluster.remove_node(f"n{number}")
    assert capacity_of(cluster, plain()).total == 0
    assert not cluster.table.alive.any()
    assert not any(cluster.table.nodes), "nothing is kept of nodes that went"


def test_a_host_port_is_taken_once_its_pod_is_assumed() -> None:
    serving = replace(plain(), host_ports=(HostPort(80),))
    cluster = build_cluster(Fleet([node("n0"), node("n1")]))
    assert capacity_of(cluster, serving).total == 2
    with cluster.trial():
        cluster.assume([pod("p", serving)], cluster.table.slots["n0"])
        assert capacity_of(cluster, serving).total == 1
    assert capacity_of(cluster, serving).total == 2
    cluster.assume([pod("p", serving)], cluster.table.slots["n0"])
    assert capacity_of(cluster, serving).total == 1
    assert not fits(cluster, pod("q", serving), cluster.table.slots["n0"])
    cluster.forget("p")
    assert capacity_of(cluster, serving).total == 2


def test_anti_affinity_of_a_placed_pod_holds_until_the_pod_leaves() -> None:
    shy = replace(plain(), anti_affinity=(PodTerm(apps("a"), HOSTNAME),))
    cluster = build_cluster(Fleet([node("n0"), node("n1")]))
    for number in range(2):
        cluster.add(pod(f"shy-{number}", shy, labels={"app": "shy"}), f"n{number}", None)
    may_enter = []
    for number in range(3):
        may_enter.append([fits(cluster, pod("p"), cluster.table.slots[name]) for name in ("n0", "n1")])
        cluster.forget(f"shy-{number}")
    assert may_enter == [[False, False], [True, False], [True, True]]
    assert cluster.pod_counts.anti_affinity_matches() == []


def test_unused_label_values_are_removed_and_the_others_keep_their_meaning() -> None:
    cluster = build_cluster(Fleet([node("kept", labels={"job": "kept"})]))
    for number in range(500):
        cluster.put_node(node("brief", labels={"job": f"job-{number}"}))
        cluster.remove_node("brief")
    cluster.put_node(node("new", labels={"job": "new"}))
    assert len(cluster.table.column("job").values) < 400
    for name in ("kept", "new"):
        wanted = replace(plain(), node_labels=labels_equal({"job": name}))
        assert [fits(cluster, pod("p", wanted), cluster.table.slots[each]) for each in ("kept", "new")] == [
            name == "kept",
            name == "new",
        ]


def test_pods_are_counted_on_nodes_that_are_added_after_the_first_count() -> None:
    cluster = build_cluster(Fleet([node("n0")]))
    cluster.add(pod("first"), "n0", None)
    assert cluster.pod_counts.matching(apps("a")).sum() == 1
    for number in range(1, 300):
        cluster.put_node(node(f"n{number}"))
        cluster.add(pod(f"p{number}"), f"n{number}", None)
    counts = cluster.pod_counts.matching(apps("a"))
    assert [counts[cluster.table.slots[name]] for name in ("n0", "n150", "n299")] == [1, 1, 1]
    assert counts.sum() == 300
