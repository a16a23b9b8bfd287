"""Decoding of pods and nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.model import GangKey, GateKind, PodPhase, Taint, TaintEffect
from gpu_scheduler.core.selectors import NodeTerm, Requirement, SelectorOperator
from gpu_scheduler.gangs.dialects import Membership
from gpu_scheduler.k8s.objects import ClaimObject, Json, NodeObject, PodObject, VolumeObject
from gpu_scheduler.scheduler.decoding.decode import decode_node, decode_pod
from gpu_scheduler.scheduler.decoding.volumes import VolumeClaims
from tests.unit.gangs.pods import AMD, GPU, READING, as_sent, asking, decode, node, pod

DEVICES = "gpu-scheduler.io/devices"
ATTEMPT = "gpu-scheduler.io/attempt"
MAP = "gpu-scheduling-map"
UNHEALTHY = "gpu-scheduler.io/unhealthy-devices"
ASSIGNS = {"gpu-scheduler.io/assigns-devices": "true"}


def owned_by(kind: str) -> Json:
    return {"ownerReferences": [{"kind": kind, "name": "o", "uid": "u", "controller": True}]}


# -- pods


def test_a_waiting_pod_is_decoded_completely() -> None:
    raw = pod(
        "worker-3",
        labels={"app": "web"},
        annotations={ATTEMPT: "2"},
        containers=[asking(1)],
        priority=7,
        preemptionPolicy="Never",
        terminationGracePeriodSeconds=5,
        activeDeadlineSeconds=60,
        status={"phase": "Pending", "startTime": "2025-01-02T03:05:05Z", "nominatedNodeName": "node1"},
        meta=owned_by("Job"),
    )
    key = GangKey("native", "x", "g")
    found = decode_pod(raw, Membership(key, "worker", "research"), VolumeClaims(), {"team": "blue"}, READING)
    assert (found.uid, found.namespace, found.name, found.version) == ("uid-worker-3", "x", "worker-3", "7")
    assert (found.gang, found.role, found.queue) == (key, "worker", "research")
    assert (found.labels, found.namespace_labels) == ({"app": "web"}, {"team": "blue"})
    assert (found.priority, found.preempts, found.attempt, found.index) == (7, False, 2, 3)
    assert (found.grace, found.deadline) == (5.0, 60.0)
    assert found.started is not None
    assert found.started - found.created == 60.0
    assert (found.ours, found.controlled, found.permanent, found.deleting) == (True, True, False, False)
    assert (found.phase, found.node, found.devices, found.nominated_node) == (PodPhase.PENDING, None, None, None)
    assert found.shape.gpus == 1
    assert found.gates == ()


def test_a_pod_with_an_ambiguous_membership_is_gated() -> None:
    member = Membership(problem="gpu-scheduler.io/gang: 'a/b' is no name")
    found = decode_pod(pod(), member, VolumeClaims(), {}, READING)
    assert [(gate.kind, gate.subject) for gate in found.gates] == [(GateKind.BAD_REQUEST, member.problem)]
    assert decode_pod(pod(nodeName="node1"), member, VolumeClaims(), {}, READING).gates == ()


def test_a_bare_pod_has_the_defaults_of_the_api() -> None:
    found = decode(as_sent(PodObject, {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}}))
    assert (found.ours, found.controlled, found.priority, found.preempts) == (False, False, 0, True)
    assert (found.grace, found.deadline, found.started, found.created) == (30.0, None, None, 0.0)


def test_a_bound_pod_has_its_recorded_devices() -> None:
    raw = pod(containers=[asking(2)], nodeName="node1", annotations={DEVICES: "2,3"}, status={"phase": "Running"})
    found = decode(raw)
    assert (found.node, found.devices, found.live) == ("node1", (2, 3), True)


@pytest.mark.parametrize("recorded", ["0", "0,0", "a", "0,1,2", ""])
def test_invalid_recorded_devices_are_unknown(recorded: str) -> None:
    assert decode(pod(containers=[asking(2)], nodeName="node1", annotations={DEVICES: recorded})).devices is None


def test_a_pod_without_a_node_has_no_devices() -> None:
    assert decode(pod(containers=[asking(2)], annotations={DEVICES: "2,3"})).devices is None


def test_a_pod_bound_without_recorded_devices_uses_those_of_its_map() -> None:
    assert decode(pod(nodeName="node1", annotations={MAP: "0=node1:4"})).devices == (4,)
    assert decode(pod(nodeName="node1", annotations={MAP: "0=node1:4", DEVICES: "5"})).devices == (5,)


def test_a_pod_of_another_scheduler_counts_as_usage_only() -> None:
    raw = pod(
        schedulerName="default-scheduler",
        containers=[asking(1)],
        annotations={MAP: "nonsense"},
        status={"nominatedNodeName": "node2"},
    )
    found = decode(raw)
    assert (found.ours, found.nominated_node, found.gates, found.shape.gpus) == (False, "node2", (), 1)


def test_static_pods_and_bound_daemon_pods_of_other_schedulers_are_permanent() -> None:
    other: dict[str, Any] = {"schedulerName": "default-scheduler"}
    assert decode(pod(nodeName="n", annotations={"kubernetes.io/config.mirror": "x"}, **other)).permanent
    assert decode(pod(nodeName="n", meta=owned_by("DaemonSet"), **other)).permanent
    assert not decode(pod(meta=owned_by("DaemonSet"), **other)).permanent
    assert not decode(pod(nodeName="n", meta=owned_by("Job"), **other)).permanent


def test_pods_of_ours_are_never_permanent_whatever_they_claim_to_be() -> None:
    static = decode(pod(nodeName="n", annotations={"kubernetes.io/config.mirror": "x"}))
    daemon = decode(pod(nodeName="n", meta=owned_by("DaemonSet")))
    assert (static.ours, static.permanent, daemon.ours, daemon.permanent) == (True, False, True, False)


def test_queue_that_a_bind_recorded_is_read_from_bound_pods_only() -> None:
    recorded = {"gpu-scheduler.io/charged-queue": "research"}
    assert decode(pod(nodeName="n", annotations=recorded)).charged_queue == "research"
    assert decode(pod(nodeName="n", annotations={"gpu-scheduler.io/charged-queue": ""})).charged_queue == ""
    assert decode(pod(nodeName="n")).charged_queue is None
    assert decode(pod(annotations=recorded)).charged_queue is None


@pytest.mark.parametrize(
    ("phase", "node_name", "decoded"),
    [
        ("Running", "n", PodPhase.RUNNING),
        ("Succeeded", "n", PodPhase.SUCCEEDED),
        ("Failed", "n", PodPhase.FAILED),
        ("Unknown", "n", PodPhase.RUNNING),
        ("", "", PodPhase.PENDING),
    ],
)
def test_an_unknown_phase_counts_as_alive(phase: str, node_name: str, decoded: PodPhase) -> None:
    assert decode(pod(nodeName=node_name, status={"phase": phase})).phase is decoded


def test_a_pod_with_a_deletion_timestamp_is_deleting() -> None:
    assert decode(pod(meta={"deletionTimestamp": "2025-01-01T00:00:00Z"})).deleting


@pytest.mark.parametrize("attempt", ["", "-1", "x", "1.5", "9" * 5000])
def test_an_invalid_attempt_counts_as_zero(attempt: str) -> None:
    assert decode(pod(annotations={ATTEMPT: attempt})).attempt == 0


def test_gates_list_all_causes_with_mistakes_first() -> None:
    raw = pod(
        annotations={MAP: "0=node1:0,0"},
        schedulingGates=[{"name": "example.com/quota"}],
        resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}],
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
    )
    found = decode(raw).gates
    assert [gate.kind for gate in found] == [
        GateKind.BAD_MAP,
        GateKind.RESOURCE_CLAIM,
        GateKind.SCHEDULING_GATE,
        GateKind.MISSING_CLAIM,
    ]
    assert found[2].subject == "example.com/quota"


def test_a_bound_pod_has_neither_gates_nor_volume_terms() -> None:
    raw = pod(
        nodeName="node1",
        resourceClaims=[{"name": "gpu"}],
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
    )
    assert decode(raw).gates == ()


def test_the_terms_of_a_volume_are_part_of_the_shape() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    done = {"pv.kubernetes.io/bind-completed": "yes"}
    claims = VolumeClaims()
    claims.put(as_sent(VolumeObject, {"metadata": {"name": "pv"}, "spec": affinity}))
    meta = {"name": "data", "namespace": "x", "annotations": done}
    claims.put(as_sent(ClaimObject, {"metadata": meta, "spec": {"volumeName": "pv"}}))
    mounted: Json = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
    found = decode(pod("a-0", **mounted), claims)
    assert found.shape.volume_terms == ((NodeTerm((Requirement("zone", SelectorOperator.IN, ("a",)),)),),)
    assert decode(pod("a-1", **mounted), claims).shape is found.shape
    assert decode(pod("a-0", nodeName="n", **mounted), claims).shape.volume_terms == ()


# -- nodes


def test_a_node_is_decoded_completely() -> None:
    taint = {"key": "gpu", "value": "only", "effect": "NoSchedule"}
    raw = node(
        capacity={"cpu": "8", GPU: "8"},
        allocatable={"cpu": "7500m", "memory": "1Gi", "pods": "110", GPU: "6"},
        meta={"labels": ASSIGNS, "annotations": {UNHEALTHY: "1, 3"}},
        spec={
            "unschedulable": True,
            "taints": [taint, {"key": "k", "effect": "NoExecute"}, {"key": "z", "effect": "?"}],
        },
    )
    found = decode_node(raw, READING)
    assert found.allocatable == {"cpu": 7500, "memory": 1 << 30, "pods": 110, GPU: 6}
    assert (found.gpu_resource, found.gpus, found.unhealthy) == (GPU, 8, frozenset({1, 3}))
    assert (found.ready, found.unschedulable, found.assigns_devices) == (True, True, True)
    assert found.taints == (Taint("gpu", "only", TaintEffect.NO_SCHEDULE), Taint("k", "", TaintEffect.NO_EXECUTE))


@pytest.mark.parametrize(
    "conditions", [[], [{"type": "Ready", "status": "Unknown"}], [{"type": "X", "status": "True"}]]
)
def test_a_node_is_ready_only_if_its_condition_is_true(conditions: list[Json]) -> None:
    assert not decode_node(node(conditions=conditions), READING).ready


def test_a_node_without_gpus_has_no_gpu_resource() -> None:
    assert decode_node(node(capacity={"cpu": "8", GPU: "0"}), READING).gpu_resource == ""
    assert decode_node(node(capacity={AMD: "4"}), READING).gpu_resource == AMD


def test_amounts_that_cannot_be_parsed_are_omitted() -> None:
    assert decode_node(node(allocatable={"cpu": "x", "memory": "-5", "pods": 10}), READING).allocatable == {"pods": 10}


@pytest.mark.parametrize("text", ["-1", "x", "8", "999", "9" * 5000, ",,", "\u0663"])
def test_devices_that_the_node_does_not_have_are_not_unhealthy(text: str) -> None:
    raw = node(capacity={GPU: "8"}, meta={"annotations": {UNHEALTHY: text}})
    assert decode_node(raw, READING).unhealthy == frozenset()


def test_a_node_with_too_many_gpus_fits_the_table() -> None:
    raw = node(
        capacity={GPU: "500"},
        allocatable={GPU: "500", "pods": "10"},
        meta={"annotations": {UNHEALTHY: " ".join(map(str, range(500)))}},
    )
    found = decode_node(raw, READING)
    assert max(found.unhealthy) == 127
    Cluster().put_node(found)


# -- no object of an API server makes decoding raise

TEXT = st.text(max_size=6)
WORDS = st.dictionaries(
    st.sampled_from([DEVICES, ATTEMPT, MAP, UNHEALTHY, "gpu-scheduler.io/gpu-milli", *ASSIGNS, "app"]),
    TEXT | st.sampled_from(["0", "0,1", "0=a:0", "true", "300"]),
)
QUANTITIES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", GPU, AMD]),
    st.sampled_from(["0", "1", "8", "1e0", "1000m", "0.5", "+1", "1Ki", str(2**63), "1e30", "-1", "-1Pi", "."]),
)
META = st.fixed_dictionaries(
    {"name": st.sampled_from(["", "p-0", "p", "p-" + "9" * 250])},
    optional={
        "labels": WORDS | st.none(),
        "annotations": WORDS | st.none(),
        "creationTimestamp": TEXT | st.none() | st.just("2025-01-02T03:04:05Z"),
        "ownerReferences": st.none() | st.just(owned_by("DaemonSet")["ownerReferences"]),
    },
)
CONTAINER = st.fixed_dictionaries(
    {"name": TEXT},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"requests": QUANTITIES | st.none(), "limits": QUANTITIES}),
        "ports": st.none() | st.lists(st.fixed_dictionaries({"containerPort": st.integers(1, 65535)}), max_size=2),
        "restartPolicy": st.sampled_from(["Always", "Never"]),
    },
)
VOLUME = st.sampled_from([{}, {"ephemeral": {}}, {"persistentVolumeClaim": {}}, {"persistentVolumeClaim": None}])
SPEC: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINER, max_size=2)},
    optional={
        "nodeName": st.sampled_from(["", "node1"]),
        "schedulerName": st.sampled_from(["", "gpu-scheduler", "default-scheduler"]),
        "initContainers": st.none() | st.lists(CONTAINER, max_size=2),
        "overhead": QUANTITIES | st.none(),
        "volumes": st.none() | st.lists(VOLUME, max_size=2),
        "schedulingGates": st.none() | st.just([{"name": "g"}]) | st.just([{}]),
        "resourceClaims": st.none() | st.just([{}]),
        "activeDeadlineSeconds": st.none() | st.integers(0, 2**63 - 1),
        "terminationGracePeriodSeconds": st.none() | st.integers(-1, 2**63 - 1),
        "priority": st.none() | st.integers(-(2**31), 2**31 - 1),
        "affinity": st.none() | st.just({}) | st.just({"nodeAffinity": None, "podAffinity": {}}),
    },
)
STATUS = st.fixed_dictionaries({}, optional={"phase": TEXT, "startTime": TEXT | st.none(), "nominatedNodeName": TEXT})


@given(META, SPEC, STATUS)
def test_every_pod_is_decoded_and_fits_the_cluster(meta: Json, spec: Json, status: Json) -> None:
    found = decode(as_sent(PodObject, {"metadata": meta, "spec": spec, "status": status}))
    assert all("\n" not in gate.subject for gate in found.gates)
    assert found.devices is None or all(0 <= device < 128 for device in found.devices)
    if found.node is not None:
        cluster = Cluster()
        cluster.put_node(decode_node(node(allocatable={GPU: "8", "pods": "9"}, capacity={GPU: "8"}), READING))
        cluster.add(found, found.node, found.devices)


@given(META, QUANTITIES, QUANTITIES, st.none() | st.lists(st.just({"key": "k"}) | st.just({}), max_size=1))
def test_every_node_is_decoded_and_fits_the_cluster(meta: Json, capacity: Json, rest: Json, taints: Any) -> None:
    body = {"metadata": meta, "spec": {"taints": taints}, "status": {"capacity": capacity, "allocatable": rest}}
    Cluster().put_node(decode_node(as_sent(NodeObject, body), READING))
