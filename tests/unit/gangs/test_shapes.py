"""The shape of a pod: requests, GPUs and restrictions of nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.core.model import (
    DeviceMap,
    GateKind,
    HostPort,
    PodTerm,
    Preference,
    Spread,
    TaintEffect,
    Toleration,
)
from gpu_scheduler.core.selectors import LabelSelector, NodeTerm, PodMatch, Requirement, SelectorOperator
from gpu_scheduler.gangs.pods.device_map import map_group
from gpu_scheduler.gangs.pods.shapes import find_gates, read_shape
from gpu_scheduler.k8s.objects import Json, Meta, PodSpec
from tests.unit.gangs.pods import AMD, GPU, GPUS, asking, container, pod, shape

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MAP = "gpu-scheduling-map"
MILLI = "gpu-scheduler.io/gpu-milli"
WEB = {"matchLabels": {"app": "web"}}
IS_WEB = Requirement("app", SelectorOperator.IN, ("web",))
OF_WEB = PodMatch(LabelSelector((IS_WEB,)), ("x",))


def equal(key: str, value: str) -> Requirement:
    return Requirement(key, SelectorOperator.IN, (value,))


# -- requests


def test_a_request_is_what_the_pod_needs_at_its_peak_with_overhead() -> None:
    found = shape(
        pod(
            containers=[container(cpu="500m", memory="1Gi"), container("b", cpu="0.25")],
            initContainers=[
                container("proxy", cpu="100m", extra={"restartPolicy": "Always"}),
                container("load", memory="3Gi"),
            ],
            overhead={"cpu": "10m"},
        )
    ).shape
    assert dict(found.request) == {"cpu": 860, "memory": 3 << 30}


def test_pod_level_resources_replace_those_of_containers() -> None:
    found = shape(pod(containers=[container(cpu="1")], resources={"requests": {"cpu": "3"}})).shape
    assert dict(found.request) == {"cpu": 3000}


def test_plain_numbers_are_quantities() -> None:
    found = shape(pod(containers=[container(cpu=0.5, memory=1024), asking(1, "b")])).shape
    assert dict(found.request) == {"cpu": 500, "memory": 1024, GPU: 1}


def test_whole_gpus_are_counted_under_their_resource() -> None:
    found = shape(pod(containers=[asking(2), asking(1, "b")])).shape
    assert (found.gpu_resource, found.gpus, dict(found.request)) == (GPU, 3, {GPU: 3})
    assert shape(pod(containers=[asking(2, resource=AMD)])).shape.gpu_resource == AMD


def test_host_ports_are_those_of_containers_and_sidecars() -> None:
    ports = [
        {"containerPort": 80, "hostPort": 8080},
        {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"},
        {"containerPort": 9},
    ]
    found = shape(
        pod(
            containers=[{"name": "a", "ports": ports}],
            initContainers=[
                {"name": "gone", "ports": [{"containerPort": 1, "hostPort": 1}]},
                {"name": "stays", "restartPolicy": "Always", "ports": [{"containerPort": 2, "hostPort": 2}]},
            ],
        )
    ).shape
    assert found.host_ports == (HostPort(2), HostPort(8080), HostPort(53, "UDP", "10.0.0.1"))


def test_on_the_host_network_every_port_is_a_host_port() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]
    found = shape(pod(hostNetwork=True, containers=[{"name": "a", "ports": ports}])).shape
    assert found.host_ports == (HostPort(80), HostPort(80, "UDP"))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            {"containers": [container(), container("b", cpu="many")]},
            "spec.containers[1].resources.requests['cpu']: quantity 'many' is not a number",
            id="container",
        ),
        pytest.param(
            {"initContainers": [container("i", memory="-1")]},
            "spec.initContainers[0].resources.requests['memory']: quantity '-1' is negative",
            id="init-container",
        ),
        pytest.param({"overhead": {"cpu": "?"}}, "spec.overhead['cpu']: quantity", id="overhead"),
        pytest.param({"resources": {"limits": {"cpu": ""}}}, "spec.resources.limits['cpu']: quantity", id="pod-level"),
        pytest.param(
            {"containers": [asking(1), asking(1, "b", AMD)]},
            "spec.containers: nvidia.com/gpu and amd.com/gpu are requested; request one kind of GPU",
            id="two-kinds",
        ),
        pytest.param({"affinity": {"nodeAffinity": 7}}, "spec.affinity.nodeAffinity: Expected `object", id="type"),
        pytest.param(
            {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 0}]},
            "spec.topologySpreadConstraints[0].maxSkew: Expected `int` >= 1",
            id="value",
        ),
    ],
)
def test_an_invalid_request_is_reported_with_its_field(spec: Json, said: str) -> None:
    gates = shape(pod(**spec)).gates
    assert [gate.kind for gate in gates] == [GateKind.BAD_REQUEST]
    assert gates[0].subject.startswith(said)


def test_invalid_rules_do_not_affect_the_request() -> None:
    found = shape(pod(containers=[asking(2)], affinity={"nodeAffinity": "nowhere"}))
    assert found.gates
    assert found.shape.gpus == 2


# -- GPUs


def test_a_share_is_thousandths_of_one_gpu() -> None:
    found = shape(pod(annotations={MILLI: "300"})).shape
    assert (found.gpu_milli, found.gpus, found.gpu_resource) == (300, 0, GPU)


@pytest.mark.parametrize("text", ["0", "1000", "-1", "0.3", "300m", "", "\u0663", "9" * 5000])
def test_a_share_is_between_one_and_999(text: str) -> None:
    gates = shape(pod(annotations={MILLI: text})).gates
    assert gates[0].kind is GateKind.BAD_REQUEST
    assert gates[0].subject.startswith("gpu-scheduler.io/gpu-milli: ")
    assert "write thousandths of a GPU, from 1 to 999" in gates[0].subject


def test_a_share_cannot_be_combined_with_whole_gpus() -> None:
    found = shape(pod(annotations={MILLI: "300"}, containers=[asking(1)]))
    assert found.shape.gpus == 1
    assert "remove it, or the request for nvidia.com/gpu" in found.gates[0].subject


def test_a_map_gives_the_node_and_the_gpus_of_the_pods_index() -> None:
    text = "0=node1:0,1\n1=node2:2"
    found = shape(pod("worker-1", annotations={MAP: text})).shape
    assert found.device_map == DeviceMap("node2", (2,), map_group("x", text))
    assert found.gpu_resource == GPU


@pytest.mark.parametrize(
    ("name", "annotations", "gpus", "said"),
    [
        ("worker-0", {MAP: "0=node1:0,0"}, 0, "gpu-scheduling-map: line 1: GPU 0 is listed twice"),
        ("worker-7", {MAP: "0=node1:0"}, 0, "gpu-scheduling-map: there is no line for pod index 7, only for 0; add"),
        ("worker", {MAP: "0=node1:0"}, 0, "gpu-scheduling-map: the pod has no index"),
        (
            "worker-0",
            {MAP: "0=node1:0", MILLI: "300"},
            0,
            "gpu-scheduling-map: a map assigns whole GPUs; remove it, or",
        ),
        ("worker-0", {MAP: "0=node1:0"}, 2, "gpu-scheduling-map: 1 GPUs for pod index 0, but 2 of nvidia.com/gpu"),
    ],
)
def test_an_invalid_map_is_reported_with_a_correction(name: str, annotations: Json, gpus: int, said: str) -> None:
    found = shape(pod(name, annotations=annotations, containers=[asking(gpus)]))
    assert found.gates[0].kind is GateKind.BAD_MAP
    assert found.gates[0].subject.startswith(said)
    assert found.shape.device_map is None


def test_our_annotations_are_ignored_on_other_pods() -> None:
    raw = pod(annotations={MAP: "nonsense", MILLI: "nonsense"})
    found = read_shape(raw.spec, raw.metadata, GPUS, ours=False)
    assert not found.gates
    assert not found.shape.wants_devices


# -- nodes


def test_node_selectors_and_affinities_are_decoded_with_every_operator() -> None:
    written: list[Json] = [
        {"key": "a", "operator": "In", "values": ["1", "2"]},
        {"key": "b", "operator": "NotIn", "values": ["1"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
        {"key": "e", "operator": "Gt", "values": ["5"]},
        {"key": "f", "operator": "Lt", "values": ["5"]},
    ]
    fields = [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]
    terms = [{"matchExpressions": written}, {"matchFields": fields}, {}]
    found = shape(
        pod(
            nodeSelector={"disk": "ssd", "cpu": "fast"},
            affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}},
        )
    ).shape
    assert found.node_labels == (equal("cpu", "fast"), equal("disk", "ssd"))
    assert found.node_terms is not None
    expressions, named, empty = found.node_terms
    assert [(r.key, r.operator.value, r.values) for r in expressions.labels] == [
        (one["key"], one["operator"], tuple(one.get("values", ()))) for one in written
    ]
    assert named == NodeTerm(fields=(equal("metadata.name", "node1"),))
    assert empty == NodeTerm()


def test_no_affinity_is_not_the_same_as_one_that_matches_nothing() -> None:
    assert shape(pod()).shape.node_terms is None
    empty: Json = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}
    assert shape(pod(affinity=empty)).shape.node_terms == ()


def test_tolerations_are_decoded_with_their_defaults() -> None:
    found = shape(
        pod(
            tolerations=[
                {"operator": "Exists"},
                {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
                {"key": "slow", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "new", "operator": "Gt", "value": "5"},
                {"operator": "Exists"},
            ]
        )
    ).shape
    assert found.tolerations == (
        Toleration(exists=True),
        Toleration("gpu", value="yes", effect=TaintEffect.NO_SCHEDULE),
        Toleration("slow", exists=True, effect=TaintEffect.NO_EXECUTE),
    )


def affinity_of(term: Json, labels: Json | None = None) -> PodTerm:
    found = shape(pod(labels=labels, affinity={"podAffinity": {REQUIRED: [{"topologyKey": "zone"} | term]}}))
    assert not found.gates
    return found.shape.affinity[0]


@pytest.mark.parametrize(
    ("term", "match"),
    [
        pytest.param({"labelSelector": WEB}, OF_WEB, id="own-namespace"),
        pytest.param({}, PodMatch(None, ("x",)), id="no-selector-means-no-pod"),
        pytest.param({"labelSelector": {}}, PodMatch(LabelSelector(), ("x",)), id="empty-selector-means-every-pod"),
        pytest.param(
            {"labelSelector": WEB, "namespaces": ["b", "a"]}, PodMatch(OF_WEB.selector, ("a", "b")), id="namespaces"
        ),
        pytest.param(
            {"labelSelector": WEB, "namespaceSelector": {}},
            PodMatch(OF_WEB.selector, (), LabelSelector()),
            id="every-namespace",
        ),
        pytest.param(
            {"labelSelector": WEB, "namespaces": ["a"], "namespaceSelector": {"matchLabels": {"team": "blue"}}},
            PodMatch(OF_WEB.selector, ("a",), LabelSelector((equal("team", "blue"),))),
            id="both",
        ),
    ],
)
def test_an_affinity_term_selects_pods_by_label_and_namespace(term: Json, match: PodMatch) -> None:
    assert affinity_of(term) == PodTerm(match, "zone")


def test_label_keys_use_the_pods_own_values() -> None:
    labels = {"app": "web", "hash": "abc", "tenant": "t1"}
    term = {"labelSelector": WEB, "matchLabelKeys": ["hash", "absent"], "mismatchLabelKeys": ["tenant"]}
    selector = LabelSelector((IS_WEB, equal("hash", "abc"), Requirement("tenant", SelectorOperator.NOT_IN, ("t1",))))
    assert affinity_of(term, labels).match.selector == selector
    # An API server that has merged the key states it twice.
    merged = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "hash", "operator": "In", "values": ["abc"]}]}
    term = {"labelSelector": merged, "matchLabelKeys": ["hash"]}
    assert affinity_of(term, labels).match.selector == LabelSelector((IS_WEB, equal("hash", "abc")))


def test_anti_affinity_and_preferences_are_separate() -> None:
    term = {"topologyKey": "zone", "labelSelector": WEB}
    liked = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
    found = shape(
        pod(
            affinity={
                "nodeAffinity": {PREFERRED: [{"weight": 10, "preference": liked}]},
                "podAffinity": {PREFERRED: [{"weight": 20, "podAffinityTerm": term}]},
                "podAntiAffinity": {REQUIRED: [term], PREFERRED: [{"weight": 30, "podAffinityTerm": term}]},
            }
        )
    ).shape
    near = PodTerm(OF_WEB, "zone")
    assert found.anti_affinity == (near,)
    assert found.affinity == ()
    assert found.preferences == (
        Preference(10, node=NodeTerm((Requirement("disk", SelectorOperator.EXISTS),))),
        Preference(20, pods=near),
        Preference(-30, pods=near),
    )


def test_spread_constraints_are_hard_or_preferences() -> None:
    strict = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": WEB}
    policies = {"minDomains": 3, "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"}
    loose = {"topologyKey": "host", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": WEB}
    found = shape(pod(topologySpreadConstraints=[strict, strict | policies, loose])).shape
    assert found.spread == (
        Spread(OF_WEB, "zone", 2),
        Spread(OF_WEB, "zone", 2, 3, honor_affinity=False, honor_taints=True),
    )
    assert found.preferences == (Preference(-1, pods=PodTerm(OF_WEB, "host")),)


def test_spread_merges_the_pods_own_labels() -> None:
    constraint = {"topologyKey": "zone", "maxSkew": 1, "labelSelector": WEB, "matchLabelKeys": ["hash"]}
    found = shape(pod(labels={"hash": "abc"}, topologySpreadConstraints=[constraint])).shape
    assert found.spread[0].match.selector == LabelSelector((IS_WEB, equal("hash", "abc")))


# -- shapes are shared


def test_an_empty_selector_of_a_spread_counts_no_pods() -> None:
    found = shape(pod(topologySpreadConstraints=[{"topologyKey": "zone", "labelSelector": {}}])).shape
    assert found.spread[0].match.selector is None


@pytest.mark.parametrize("padding", [0, 20_000], ids=["short", "long"])
def test_problems_are_found_without_building_a_shape(padding: int) -> None:
    for raw in (
        pod(annotations={MAP: "0=node1:0,0" + " " * padding}),
        pod(annotations={MAP: "0=node1:0" + " " * padding}),
        pod(annotations={MILLI: "x" + " " * padding}, containers=[asking(1)]),
    ):
        assert find_gates(raw.spec, raw.metadata, GPUS) == shape(raw).gates


def test_pods_with_equal_requests_share_one_shape() -> None:
    first = shape(pod("a-0", containers=[asking(1, "a")], labels={"index": "0"})).shape
    second = shape(pod("b-1", containers=[asking(1, "b")], labels={"index": "1"})).shape
    assert first is second
    assert shape(pod(containers=[asking(2)])).shape is not first


# -- no input raises

FIELDS = (
    "nodeAffinity podAffinity nodeSelectorTerms matchExpressions key operator values labelSelector maxSkew weight "
    f"preference topologyKey {REQUIRED} {PREFERRED}"
).split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
AMOUNT = st.sampled_from(["1", "500m", "1e0", "1000m", "0.5", "+1", "1Ki", str(2**63), "", "x"]) | st.text(max_size=4)
NUMBER = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", GPU, AMD, "hugepages-2Mi"]), AMOUNT | NUMBER, max_size=3)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.just("c"), "resources": st.fixed_dictionaries({"requests": AMOUNTS, "limits": AMOUNTS})},
        optional={"restartPolicy": st.just("Always"), "ports": st.just([{"containerPort": 1, "hostPort": 1}])},
    ),
    max_size=3,
)
DICTS = st.lists(st.dictionaries(st.sampled_from(["key", "topologyKey", "operator", "maxSkew"]), JSON), max_size=2)


@given(
    st.fixed_dictionaries(
        {"containers": CONTAINERS},
        optional={
            "initContainers": CONTAINERS,
            "overhead": AMOUNTS,
            "affinity": st.dictionaries(st.sampled_from(["nodeAffinity", "podAffinity"]), JSON),
            "tolerations": DICTS,
            "topologySpreadConstraints": DICTS,
            "nodeSelector": st.dictionaries(st.text(max_size=3), st.text(max_size=3)),
        },
    ),
    st.dictionaries(st.sampled_from([MAP, MILLI]), st.text(max_size=12) | st.sampled_from(["0=a:0", "300"])),
)
def test_no_spec_and_no_annotation_raises(spec: dict[str, Any], annotations: dict[str, str]) -> None:
    found = read_shape(msgspec.convert(spec, PodSpec), Meta("worker-0", "x", annotations=annotations), GPUS)
    for gate in found.gates:
        assert "\n" not in gate.subject
    hash(found.shape)


# -- too many rules


def apart(number: int, **selector: Any) -> Json:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": f"v{number}"}, **selector}}


def one_of(number: int) -> Json:
    return {"key": "a", "operator": "In", "values": [str(i) for i in range(number)]}


TOO_MANY: list[tuple[Json, str]] = [
    (
        {"affinity": {"podAntiAffinity": {REQUIRED: [apart(i) for i in range(65)]}}},
        "spec.affinity.podAntiAffinity: 65 terms and constraints about other pods are too many; "
        "write at most 64 in a pod",
    ),
    (
        {
            "affinity": {
                "podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": apart(i)} for i in range(40)]},
                "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": apart(0)}]},
            },
            "topologySpreadConstraints": [{"topologyKey": "zone", "labelSelector": WEB}] * 24,
        },
        "spec.affinity.podAffinity: 65 terms and constraints about other pods are too many; write at most 64 in a pod",
    ),
    (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": []}] * 1025}}}},
        "spec.affinity.nodeAffinity: 1025 label expressions and values are too many; write at most 1024 in a pod",
    ),
    (
        {"affinity": {"podAffinity": {REQUIRED: [apart(0, matchExpressions=[one_of(1023)])]}}},
        "spec.affinity.podAffinity: 1025 label expressions and values are too many; write at most 1024 in a pod",
    ),
    (
        {"tolerations": [{"key": f"k{i}"} for i in range(257)]},
        "spec.tolerations: 257 tolerations are too many; write at most 256 in a pod",
    ),
    (
        {"containers": [{"ports": [{"containerPort": 1, "hostPort": i + 1} for i in range(257)]}]},
        "spec.containers: 257 host ports are too many; write at most 256 in a pod",
    ),
]


@pytest.mark.parametrize(("spec", "line"), TOO_MANY, ids=["terms", "mixed", "nodes", "values", "tolerations", "ports"])
def test_a_pod_with_too_many_rules_is_not_scheduled(spec: Json, line: str) -> None:
    raw = pod(**spec)
    (gate,) = read_shape(raw.spec, raw.metadata, GPUS).gates
    assert (gate.kind, gate.subject) == (GateKind.BAD_REQUEST, line)
    assert find_gates(raw.spec, raw.metadata, GPUS) == (gate,)


def test_a_running_pod_of_any_scheduler_keeps_as_many_anti_affinity_terms_as_count() -> None:
    long = apart(0, matchExpressions=[one_of(1024)])
    raw = pod(affinity={"podAntiAffinity": {REQUIRED: [long, *(apart(i) for i in range(100))]}})
    assert len(read_shape(raw.spec, raw.metadata, GPUS, ours=False).shape.anti_affinity) == 63
