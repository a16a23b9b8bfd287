"""Where pods go: racks, labels, taints, affinity, ports and volumes; and pods of other schedulers."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.gangs.contract import HOLD
from gpu_scheduler.k8s.objects import Json
from tests.integration.gangs import gang, member
from tests.integration.live import Live, no_double_devices
from tests.integration.running import container, eventually
from tests.integration.scenes import HOSTNAME, annotation, metadata, on, wait_phase

GPU = "nvidia.com/gpu"
RACKS = ({"node1", "node2"}, {"node3", "node4"})
"""Tolerations for the cluster of different nodes."""


def names(gang_name: str, size: int) -> list[str]:
    return [f"{gang_name}-{number}" for number in range(size)]


# -- topology


def test_a_gang_that_requires_one_rack_gets_one(mixed: Live) -> None:
    mixed.create(member("filler", 8, **on("node1")))
    mixed.wait_bound()
    mixed.create(*gang("annotation", "train", 2, gpus=8, meta=metadata(topology="required:rack")))
    assert set(mixed.wait_bound(*names("train", 2)).values()) == RACKS[1]


def test_a_gang_that_requires_one_rack_waits_for_one(mixed: Live) -> None:
    mixed.create(member("first", 1, **on("node1")), member("second", 1, **on("node3")))
    mixed.wait_bound()
    mixed.create(*gang("annotation", "train", 2, gpus=8, meta=metadata(topology="required:rack")))
    mixed.wait_reason("train-0", "rack")
    mixed.stays_unbound("train-0", "train-1", seconds=0.3)
    mixed.delete("Pod", "first")
    assert set(mixed.wait_bound(*names("train", 2)).values()) == RACKS[0]


def test_a_gang_that_no_rack_can_hold_is_reported(mixed: Live) -> None:
    mixed.create(*gang("annotation", "train", 3, gpus=8, meta=metadata(topology="required:rack")))
    mixed.wait_reason("train-0", "rack", "Add nodes")
    mixed.stays_unbound(*names("train", 3), seconds=0.3)


def test_a_gang_that_prefers_one_rack_gets_one_if_possible_and_runs_anyway(mixed: Live) -> None:
    mixed.create(member("first", 4, **on("node1")))
    mixed.wait_bound()
    meta = metadata(topology="preferred:rack")
    mixed.create(*gang("annotation", "near", 2, gpus=8, meta=meta))
    assert set(mixed.wait_bound(*names("near", 2)).values()) == RACKS[1]
    mixed.create(*gang("annotation", "far", 3, gpus=4, meta=meta))
    assert set(mixed.wait_bound(*names("far", 3)).values()) == RACKS[0]
    for name in names("near", 2):
        mixed.delete("Pod", name)
    mixed.create(*gang("annotation", "wide", 2, gpus=8, meta=meta))
    mixed.wait_bound(*names("wide", 2))


def test_an_invalid_topology_is_reported(live: Live) -> None:
    live.create(*gang("annotation", "train", 2, meta=metadata(topology="rack")))
    live.wait_reason("train-0", "topology", "required:rack")


# -- suitable nodes


def test_a_node_selector_without_a_match_is_named_and_matched_later(live: Live) -> None:
    live.create(*gang("annotation", "train", 2, nodeSelector={"team": "vision"}))
    live.wait_reason("train-0", "team")
    live.patch("Node", "node3", {"metadata": {"labels": {"team": "vision"}}})
    try:
        assert set(live.wait_bound(*names("train", 2)).values()) == {"node3"}
    finally:
        live.patch("Node", "node3", {"metadata": {"labels": {"team": None}}})


def test_required_affinity_is_kept_and_preferred_affinity_is_followed(live: Live) -> None:
    away = {"key": HOSTNAME, "operator": "NotIn", "values": ["node1", "node2"]}
    liked = {"key": HOSTNAME, "operator": "In", "values": ["node4"]}
    rules = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [away]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 50, "preference": {"matchExpressions": [liked]}}
        ],
    }
    affinity = {"nodeAffinity": rules}
    live.create(member("first", 8, affinity=affinity))
    assert live.wait_bound("first") == {"first": "node4"}
    live.create(member("second", 8, affinity=affinity))
    assert live.wait_bound("second") == {"second": "node3"}
    live.create(member("third", 8, affinity=affinity))
    live.wait_reason("third", GPU)


def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(mixed: Live) -> None:
    mixed.create(member("stranger", 0, **on("plain1")))
    mixed.wait_reason("stranger", "odd")
    mixed.create(member("guest", 0, **on("plain1"), tolerations=[{"key": "odd", "operator": "Exists"}]))
    mixed.wait_bound("guest")
    mixed.stays_unbound("stranger", seconds=0.3)


def test_a_cordoned_node_takes_no_pods_until_it_is_uncordoned(live: Live) -> None:
    live.change_node("node2", {"spec": {"unschedulable": True}})
    try:
        live.create(member("pod", 1, **on("node2")))
        live.wait_reason("pod", "switched off")
        live.stays_unbound("pod", seconds=0.3)
    finally:
        live.patch("Node", "node2", {"spec": {"unschedulable": None}})
    live.wait_bound("pod")


# -- other pods


def apart(label: str) -> Json:
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": label}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_members_with_anti_affinity_are_on_different_nodes(live: Live) -> None:
    meta: Json = {"labels": {"app": "apart"}}
    ours = {**meta, "annotations": {HOLD: "0"}}
    live.create(*gang("annotation", "train", 4, meta=ours, affinity=apart("apart")))
    assert len(set(live.wait_bound(*names("train", 4)).values())) == 4
    live.create(member("fifth", 1, meta=meta, affinity=apart("apart")), member("stranger", 1, meta=meta))
    live.wait_reason("fifth", "anti-affinity")
    # Its own terms permit it, but those of the other pods do not.
    live.wait_reason("stranger", "anti-affinity")
    live.delete("Pod", "train-0")
    eventually(lambda: live.bound().keys() & {"fifth", "stranger"}, "the freed node to be used")


def test_a_gang_of_five_with_anti_affinity_does_not_start_on_four_nodes(live: Live) -> None:
    live.create(*gang("annotation", "train", 5, meta={"labels": {"app": "apart"}}, affinity=apart("apart")))
    live.wait_reason("train-0", ".")
    live.stays_unbound(*names("train", 5), seconds=0.5)


def test_pods_follow_their_affinity_to_other_pods(live: Live) -> None:
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "server"}}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    live.create(*gang("annotation", "client", 2, affinity=near))
    live.wait_reason("client-0", "affinity")
    live.create(member("server", 1, meta={"labels": {"app": "server"}}, **on("node3")))
    live.wait_bound("server")
    assert set(live.wait_bound("client-0", "client-1").values()) == {"node3"}


def test_members_that_spread_are_spread_evenly(live: Live) -> None:
    rule = {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "even"}},
    }
    live.create(*gang("annotation", "train", 6, meta={"labels": {"app": "even"}}, topologySpreadConstraints=[rule]))
    nodes = list(live.wait_bound(*names("train", 6)).values())
    assert sorted(nodes.count(node) for node in set(nodes)) == [1, 1, 2, 2]


def test_members_with_a_host_port_are_on_different_nodes(live: Live) -> None:
    ports = [container(ports=[{"containerPort": 80, "hostPort": 18080}])]
    live.create(*gang("annotation", "train", 4, meta={"annotations": {HOLD: "0"}}, containers=ports))
    assert len(set(live.wait_bound(*names("train", 4)).values())) == 4
    live.create(member("fifth", 0, containers=ports))
    live.wait_reason("fifth", "port")
    other = [container(ports=[{"containerPort": 80, "hostPort": 18080, "protocol": "UDP"}])]
    live.create(member("other", 0, containers=other))
    live.wait_bound("other")
    live.delete("Pod", "train-3")
    live.wait_bound("fifth")


# -- volumes


def claim(name: str, storage_class: str | None = None, volume: str = "") -> Json:
    spec: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    if volume:
        spec["volumeName"] = volume
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def using(*claims: str) -> Json:
    return {"volumes": [{"name": f"v-{name}", "persistentVolumeClaim": {"claimName": name}} for name in claims]}


def test_a_pod_goes_where_its_volume_is(live: Live) -> None:
    volume = f"disk-{live.namespace}"
    here = {"nodeSelectorTerms": [{"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["node3"]}]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/nonexistent"},
        "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain",
        "nodeAffinity": {"required": here},
    }
    path = "/api/v1/persistentvolumes"
    live.ask("POST", path, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec})
    try:
        live.create(claim("data", "", volume))
        live.create(member("elsewhere", 1, **using("data"), **on("node1")), member("reader", 1, **using("data")))
        assert live.wait_bound("reader") == {"reader": "node3"}
        live.wait_reason("elsewhere", "volume")
        wait_phase(live, "Running", "reader")
    finally:
        live.ask("DELETE", f"{path}/{volume}")


def test_a_claim_that_waits_for_its_first_consumer_gets_the_node_and_is_bound_first(live: Live) -> None:
    live.create(*(claim(f"data-{number}") for number in range(2)))
    pods = gang("annotation", "train", 2, gpus=8)
    for number, pod in enumerate(pods):
        pod["spec"] = {**pod["spec"], **using(f"data-{number}")}
    live.create(*pods)
    nodes = live.wait_bound("train-0", "train-1")
    for number in range(2):
        found = live.get("PersistentVolumeClaim", f"data-{number}")
        assert found["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == nodes[f"train-{number}"]
        assert found["spec"]["volumeName"]
    wait_phase(live, "Running", "train-0", "train-1")
    no_double_devices(live.cluster)


def test_a_recreated_pod_returns_to_the_node_of_its_claim(live: Live) -> None:
    live.create(claim("data"), member("first", 1, **using("data"), **on("node2")))
    live.wait_bound("first")
    live.delete("Pod", "first")
    live.create(member("second", 1, **using("data")))
    assert live.wait_bound("second") == {"second": "node2"}


def test_a_gang_waits_for_a_missing_claim_and_reports_it(live: Live) -> None:
    first, second = gang("annotation", "train", 2)
    second["spec"] = {**second["spec"], **using("later")}
    live.create(first, second)
    live.wait_reason("train-0", "later")
    live.stays_unbound("train-0", "train-1", seconds=0.3)
    live.create(claim("later"))
    live.wait_bound("train-0", "train-1")


def test_a_claim_that_can_never_be_bound_is_named(live: Live) -> None:
    live.create(claim("data", "unknown-class"), member("pod", 1, **using("data")))
    live.wait_reason("pod", "data", "unknown-class")
    live.stays_unbound("pod", seconds=0.3)


# -- pods that must not be scheduled yet, or not by us


def test_a_gang_waits_until_the_last_gate_is_gone(live: Live) -> None:
    first, second = gang("annotation", "train", 2)
    second["spec"] = {**second["spec"], "schedulingGates": [{"name": "example.com/quota"}]}
    live.create(first, second)
    live.wait_reason("train-0", "example.com/quota")
    live.stays_unbound("train-0", "train-1", seconds=0.3)
    live.patch("Pod", "train-1", {"spec": {"schedulingGates": []}})
    live.wait_bound("train-0", "train-1")


def test_resource_claims_are_refused_with_that_reason(live: Live) -> None:
    live.create(member("pod", 0, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "any"}]))
    live.wait_reason("pod", "[Rr]esource ?claim.*gpu")
    live.stays_unbound("pod", seconds=0.3)


def still(pod: Json) -> Json:
    """All fields of a pod that its node does not write."""
    return {"meta": {**pod["metadata"], "managedFields": None, "resourceVersion": None}, "spec": pod["spec"]}


def test_pods_of_other_schedulers_are_left_alone(live: Live) -> None:
    whole = gang("annotation", "theirs", 2, scheduler="other-scheduler")
    live.create(*whole, member("ours", 1, **on("node1")))
    before = live.pods()
    live.wait_bound("ours")
    live.stays_unbound("theirs-0", "theirs-1", seconds=0.5)
    for name in ("theirs-0", "theirs-1"):
        after = live.get("Pod", name)
        assert after["metadata"]["resourceVersion"] == before[name]["metadata"]["resourceVersion"]
        assert live.events_of(name) == []


@pytest.mark.parametrize(
    ("whose", "annotations"),
    [("other-scheduler", {}), ("gpu-scheduler", {}), ("default-scheduler", {"kubernetes.io/config.mirror": "1"})],
    ids=["another scheduler", "a node of its own choice", "static"],
)
def test_gpus_of_pods_bound_by_others_are_not_assigned(live: Live, whose: str, annotations: Json) -> None:
    live.create(member("preset", 2, scheduler=whose, nodeName="node1", meta={"annotations": annotations}))
    wait_phase(live, "Running", "preset")
    before = still(live.get("Pod", "preset"))
    # Which two of the eight it uses is unknown, so the others are not assigned either.
    live.create(member("later", 2, **on("node1")), member("plain", 0, **on("node1")))
    live.wait_bound("plain")
    live.wait_reason("later", ".")
    live.stays_unbound("later", seconds=0.3)
    assert still(live.get("Pod", "preset")) == before
    assert annotation(live.get("Pod", "preset"), "devices") == ""
    live.delete("Pod", "preset")
    live.wait_bound("later")


def test_pods_bound_by_others_count_on_nodes_with_a_device_plugin(mixed: Live) -> None:
    odd: Json = {"tolerations": [{"key": "odd", "operator": "Exists"}]}
    mixed.create(member("preset", 3, scheduler="other-scheduler", nodeName="plugin1", **odd))
    wait_phase(mixed, "Running", "preset")
    mixed.create(member("two", 2, **on("plugin1"), **odd))
    mixed.wait_reason("two", GPU)
    mixed.create(member("one", 1, **on("plugin1"), **odd))
    mixed.wait_bound("one")
    wait_phase(mixed, "Running", "one", "preset")


def daemons(name: str, **spec: Any) -> Json:
    pod = member(name, 0, meta={"labels": {"app": name}}, **spec)
    pod["metadata"].pop("name")
    pod["spec"]["restartPolicy"] = "Always"
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
    whole = {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": pod["metadata"], "spec": pod["spec"]},
    }
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": whole}


def test_the_resources_of_daemons_count(live: Live) -> None:
    live.create(daemons("agent"))
    eventually(lambda: len(live.bound()) == 4, "a daemon on every node")
    wait_phase(live, "Running", *live.bound())
    before = {name: still(pod) for name, pod in live.pods().items()}
    large = member("large", 0)
    large["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    small = member("small", 1)
    small["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}, "limits": {GPU: "1"}}
    live.create(large, small)
    live.wait_bound("small")
    live.wait_reason("large", "cpu")
    assert {name: still(pod) for name, pod in live.pods().items() if name in before} == before
