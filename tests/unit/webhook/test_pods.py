"""Checks of pods: every mistake is reported with its field and a correction, all of them at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.denials import Denial
from gpu_scheduler.webhook.pods import KnownNodes
from tests.unit.webhook.reviewing import (
    CUDA,
    GPU,
    GROUP,
    MAP,
    NODES,
    POLICY,
    STRICT,
    THREE,
    container,
    mapped,
    pod,
    validate,
)

GANG, GANG_MIN, MILLI = f"{GROUP}/gang", f"{GROUP}/gang-min", f"{GROUP}/gpu-milli"
NVIDIA = "NVIDIA_VISIBLE_DEVICES"
SECRET = {"secretRef": {"name": "settings"}}
OWNED = {
    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}]
}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(pod(), id="plain"),
        pytest.param(mapped(), id="map"),
        pytest.param(mapped(containers=[container(gpus="2")]), id="map-with-the-same-request"),
        pytest.param(pod(containers=[container(gpus="8")]), id="gpus"),
        pytest.param(pod(annotations={MILLI: "300"}), id="share"),
        pytest.param(pod(annotations={GANG: "train", GANG_MIN: "4"}), id="gang"),
        pytest.param(pod(annotations={GANG: "train", GANG_MIN: "10000"}), id="gang-of-10000"),
        pytest.param(pod(annotations={GANG: "g" * 253, GANG_MIN: "4"}), id="longest-gang-name"),
        pytest.param(pod(annotations={GANG_MIN: "4"}, meta=OWNED), id="controller-gang"),
        pytest.param(
            pod(
                annotations={
                    f"{GROUP}/queue": "team-a",
                    f"{GROUP}/timeout-seconds": "300",
                    f"{GROUP}/topology": "required:rack,preferred:nvlink",
                    f"{GROUP}/expected-runtime-seconds": "3600",
                    f"{GROUP}/paused": "false",
                    f"{GROUP}/on-member-lost": "shrink",
                    f"{GROUP}/hold-seconds": "0",
                }
            ),
            id="options",
        ),
        pytest.param(pod(annotations={"scheduling.k8s.io/group-name": "train"}), id="volcano"),
        pytest.param(pod(meta={"labels": {"scheduling.x-k8s.io/pod-group": "train"}}), id="scheduler-plugins"),
        pytest.param(pod(schedulingGroup={"podGroupName": "train"}), id="native"),
        *(
            pytest.param(
                pod(containers=[container(env=[{"name": NVIDIA, **shown}], envFrom=[SECRET])]), id=f"nvidia-{shown}"
            )
            for shown in ({"value": "void"}, {"value": "none"}, {"value": ""}, {})
        ),
        pytest.param(pod(containers=[container(envFrom=[{**SECRET, "prefix": "A_"}])]), id="env-from-with-prefix"),
        pytest.param(pod(containers=[container(securityContext={"privileged": False})]), id="not-privileged"),
        *(
            pytest.param(pod(containers=[container(gpus=text)]), id=f"quantity-{text}")
            for text in ("1e0", "1000m", "+1", "1Ki", "0.5", "9223372036854775808")
        ),
    ],
)
def test_valid_pods_are_allowed_without_warnings(body: Json) -> None:
    result = validate(body, policy=STRICT)
    assert (result.allowed, result.warnings, result.log) == (True, [], ())


EXAMPLE = "write <pod index>=<node>:<GPU>,<GPU>, for example 0=node1:0,1"
NUMBERS = "write numbers from 0 to 127, separated by commas"


@pytest.mark.parametrize(
    ("body", "result"),
    [
        pytest.param(mapped(text=""), f"{MAP}: the map is empty; {EXAMPLE}", id="map-empty"),
        pytest.param(mapped(text="a=b"), f"{MAP}: line 1: 'a=b' is not an entry; {EXAMPLE}", id="map-no-entry"),
        pytest.param(
            mapped(text="-1=node1:0"), f"{MAP}: line 1: '-1=node1:0' is not an entry; {EXAMPLE}", id="map-negative"
        ),
        pytest.param(
            mapped(text="0=node1:0\n1=node1:-1"),
            f"{MAP}: line 2: '-1' is not a GPU index; {NUMBERS}",
            id="map-gpu-negative",
        ),
        pytest.param(
            mapped(text="0=node1:0,0"), f"{MAP}: line 1: GPU 0 is listed twice; list each once", id="map-twice"
        ),
        pytest.param(
            mapped(text="0=node1:999"), f"{MAP}: line 1: '999' is not a GPU index; {NUMBERS}", id="map-absurd"
        ),
        pytest.param(
            mapped(text="0=n\u00f6de:0"),
            f"{MAP}: line 1: 'n\\xf6de' is not a node name; write a node's name or its label gpu-node-name",
            id="map-unicode",
        ),
        pytest.param(
            mapped(text="x" * (256 * 1024 + 1)),
            f"{MAP}: 262145 characters are too many; write at most 262144",
            id="map-long",
        ),
        pytest.param(
            mapped(text="0=node1:0\x1b[31m\r0"),
            f"{MAP}: line 1: '0\\x1b[31m\\r0' is not a GPU index; {NUMBERS}",
            id="map-terminal-codes",
        ),
        pytest.param(
            mapped("worker-7"),
            f"{MAP}: there is no line for pod index 7, only for 0, 1, 2; add 7=<node>:<GPU>,<GPU>",
            id="index-without-a-line",
        ),
        pytest.param(
            mapped("worker-99", "\n".join(f"{i}=node1:0" for i in range(20))),
            f"{MAP}: there is no line for pod index 99, only for 0, 1, 2, 3, 4, 5, 6, 7 and 12 more;"
            " add 99=<node>:<GPU>,<GPU>",
            id="index-beyond-many-lines",
        ),
        pytest.param(
            mapped("worker"),
            f"{MAP}: the pod has no index; let its name end in a number, for example worker-0",
            id="no-index",
        ),
        pytest.param(
            mapped("", meta={"generateName": "worker-"}),
            f"{MAP}: the pod has no index; let its name end in a number, for example worker-0",
            id="no-name-yet",
        ),
        pytest.param(
            mapped(containers=[container(gpus="1")]),
            f"{MAP}: 2 GPUs for pod index 0, but 1 of {GPU} are requested; make them equal",
            id="map-and-request-differ",
        ),
        pytest.param(
            pod(annotations={MAP: THREE, MILLI: "300"}),
            f"{MAP}: a map assigns whole GPUs; remove it, or {MILLI}",
            id="map-and-share",
        ),
        *(
            pytest.param(
                pod(annotations={MILLI: text}),
                f"{MILLI}: '{text}' is not a share of a GPU; write thousandths of a GPU, from 1 to 999",
                id=f"share-{text or 'empty'}",
            )
            for text in ("", "0", "1000", "-1", "0.3", "300m", "many")
        ),
        pytest.param(
            pod(annotations={MILLI: "300"}, containers=[container(gpus="1")]),
            f"{MILLI}: a share cannot be combined with whole GPUs; remove it, or the request for {GPU}",
            id="share-and-request",
        ),
        pytest.param(
            pod(containers=[container(gpus="many")]),
            f"spec.containers[0].resources.requests['{GPU}']: quantity 'many' is not a number with a known suffix;"
            " write for example 2, 500m, 1.5Gi or 1e3",
            id="no-quantity",
        ),
        pytest.param(
            pod(containers=[container(gpus="-1")]),
            f"spec.containers[0].resources.requests['{GPU}']: quantity '-1' is negative; write 0 or more",
            id="negative-quantity",
        ),
        pytest.param(
            pod(containers=[container(resources={"limits": {GPU: "1", "amd.com/gpu": "1"}})]),
            f"spec.containers: {GPU} and amd.com/gpu are requested; request one kind of GPU",
            id="two-kinds-of-gpus",
        ),
    ],
)
def test_wrong_gpu_requests_are_refused_with_a_correction(body: Json, result: str) -> None:
    found = validate(body)
    assert (found.allowed, found.code, found.message) == (False, 422, result)
    assert found.log == (f"Refusing pods x/{body['metadata']['name']}: {result}",)


MORE_THAN = "write how many pods must start together, from 1 to 20000"
SECONDS = 'is not a number of seconds above 0; write for example "300"'


@pytest.mark.parametrize(
    ("annotations", "result"),
    [
        pytest.param(
            {GANG: "a b", GANG_MIN: "2"},
            f"{GANG}: 'a b' is not a valid name; write at most 253 letters, digits,",
            id="gang-no-name",
        ),
        pytest.param(
            {GANG: "g" * 254, GANG_MIN: "2"},
            f"{GANG}: '{'g' * 60}...' is not a valid name; write at most 253",
            id="gang-long",
        ),
        pytest.param(
            {GANG: "other/train", GANG_MIN: "2"},
            f"{GANG}: 'other/train' contains a namespace, but a gang is in the namespace of its pods; write",
            id="gang-of-another-namespace",
        ),
        pytest.param(
            {"scheduling.k8s.io/group-name": "other/train"},
            "scheduling.k8s.io/group-name: 'other/train' contains a namespace, but a gang is in the namespace of",
            id="volcano-group-of-another-namespace",
        ),
        pytest.param({GANG: "a", GANG_MIN: "0"}, f"{GANG_MIN}: '0' is not a valid number; {MORE_THAN}", id="min-0"),
        pytest.param(
            {GANG: "a", GANG_MIN: "-1"}, f"{GANG_MIN}: '-1' is not a valid number; {MORE_THAN}", id="min-negative"
        ),
        pytest.param(
            {GANG: "a", GANG_MIN: "1.5"}, f"{GANG_MIN}: '1.5' is not a valid number; {MORE_THAN}", id="min-broken"
        ),
        pytest.param(
            {GANG: "a", GANG_MIN: "all"}, f"{GANG_MIN}: 'all' is not a valid number; {MORE_THAN}", id="min-word"
        ),
        pytest.param(
            {GANG: "a", GANG_MIN: "9" * 99}, f"{GANG_MIN}: '{'9' * 60}...' is not a valid number", id="min-absurd"
        ),
        pytest.param({GANG: "a", GANG_MIN: "\u0664"}, f"{GANG_MIN}: '\u0664' is not a valid number", id="min-unicode"),
        pytest.param(
            {GANG_MIN: "2"},
            f"{GANG_MIN}: the pod has no controller whose pods could form the gang; name the gang in {GANG}",
            id="min-of-a-bare-pod",
        ),
        pytest.param({f"{GROUP}/timeout-seconds": "5m"}, f"{GROUP}/timeout-seconds: '5m' {SECONDS}", id="timeout"),
        pytest.param(
            {f"{GROUP}/timeout-seconds": "inf"}, f"{GROUP}/timeout-seconds: 'inf' {SECONDS}", id="timeout-endless"
        ),
        pytest.param({f"{GROUP}/hold-seconds": "-1"}, f"{GROUP}/hold-seconds: '-1' {SECONDS}", id="hold"),
        pytest.param(
            {f"{GROUP}/expected-runtime-seconds": "0"}, f"{GROUP}/expected-runtime-seconds: '0' {SECONDS}", id="runtime"
        ),
        pytest.param({f"{GROUP}/paused": "yes"}, f'{GROUP}/paused: \'yes\' is neither "true" nor "false"', id="paused"),
        pytest.param(
            {f"{GROUP}/topology": "rack"},
            f"{GROUP}/topology: 'rack' is not a rule; write \"required:rack,preferred:nvlink\" or similar",
            id="topology",
        ),
        pytest.param(
            {f"{GROUP}/on-member-lost": "panic"},
            f'{GROUP}/on-member-lost: \'panic\' is not one of "hold", "restart", "shrink"',
            id="on-member-lost",
        ),
    ],
)
def test_wrong_gang_annotations_are_refused_with_a_correction(annotations: Json, result: str) -> None:
    found = validate(pod(annotations=annotations))
    assert (found.allowed, found.code) == (False, 422)
    assert found.message.startswith(result)


def test_a_gang_without_a_minimum_is_only_warned_of_because_another_pod_may_state_it() -> None:
    result = validate(pod(annotations={GANG: "train"}))
    assert result.allowed
    assert result.warnings == [f"{GANG_MIN}: missing; at least one pod of the gang must say how many start together"]


@pytest.mark.parametrize("nodes", [NODES, None], ids=["unknown-there", "nothing-known"])
def test_an_unknown_node_is_a_warning_once_nodes_are_known(nodes: KnownNodes | None) -> None:
    result = validate(mapped(text="0=node9:0"), nodes=nodes)
    waits = "the pod waits until a node has that name or that gpu-node-name label"
    assert result.allowed
    assert result.warnings == ([f"{MAP}: there is no node node9; {waits}"] if nodes else [])


def test_only_the_pods_own_line_of_a_map_is_checked_for_its_node() -> None:
    assert validate(mapped(text="0=node1:0\n1=node9:0")).warnings == []


def asking(*names: str) -> Json:
    """A pod whose containers request one of each of these resources."""
    asked = [container(f"c{number}", resources={"limits": {name: "1"}}) for number, name in enumerate(names)]
    return pod(containers=asked)


def test_a_misspelt_resource_is_a_warning_with_the_one_that_nodes_have() -> None:
    result = validate(asking("cpu", "nvidia.com/gpus"))
    assert result.allowed
    assert result.warnings == [
        "spec.containers[1].resources: no node has nvidia.com/gpus; did you mean nvidia.com/gpu?"
    ]


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "memory", "example.com/fpga"], ids=["offered", "plain", "unlike"])
def test_a_resource_that_no_known_one_resembles_is_no_warning(name: str) -> None:
    assert validate(asking(name)).warnings == []


def test_resources_are_not_checked_before_nodes_are_known() -> None:
    assert validate(asking("nvidia.com/gpus"), nodes=None).warnings == []


def test_only_a_few_unknown_resources_are_compared() -> None:
    assert len(validate(asking(*(f"nvidia.com/gpu{number}" for number in range(100)))).warnings) == 8


def test_a_misspelt_annotation_is_a_warning_with_the_closest_one() -> None:
    result = validate(pod(annotations={f"{GROUP}/gang": "train", f"{GROUP}/gangmin": "4", "example.com/gangmin": "4"}))
    assert result.allowed
    assert result.warnings[1:] == [
        f"{GROUP}/gangmin: unknown annotation, which has no effect; did you mean {GROUP}/gang-min?"
    ]


def test_an_annotation_like_no_known_one_is_a_warning_without_a_suggestion() -> None:
    result = validate(pod(annotations={f"{GROUP}/purple": "yes"}))
    assert result.warnings == [f"{GROUP}/purple: unknown annotation, which has no effect"]


BAD_HABITS = [
    pytest.param(
        Denial.NVIDIA_VISIBLE_DEVICES,
        pod(containers=[container(), container("b", env=[{"name": NVIDIA, "value": "all"}])]),
        f"spec.containers[1].env: {NVIDIA} may show GPUs that the pod was not assigned; leave it out",
        id="nvidia",
    ),
    pytest.param(
        Denial.NVIDIA_VISIBLE_DEVICES,
        pod(initContainers=[container("a", env=[{"name": NVIDIA, "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])]),
        f"spec.initContainers[0].env: {NVIDIA} may show GPUs that the pod was not assigned; leave it out",
        id="nvidia-from-elsewhere",
    ),
    pytest.param(
        Denial.PRIVILEGED,
        pod(ephemeralContainers=[container("debug", securityContext={"privileged": True})]),
        "spec.ephemeralContainers[0].securityContext.privileged: a privileged container can use every GPU of its node;"
        " leave it out",
        id="privileged",
    ),
    pytest.param(
        Denial.NODE_NAME,
        pod(nodeName="node1"),
        "spec.nodeName: bypasses the scheduler and may use GPUs that other pods hold; leave it out",
        id="node-name",
    ),
]


@pytest.mark.parametrize(("denial", "body", "result"), BAD_HABITS)
def test_bypasses_are_denied_by_policy_and_otherwise_warned_of(denial: Denial, body: Json, result: str) -> None:
    denied = validate(body, policy=replace(POLICY, deny=frozenset({denial})))
    assert (denied.allowed, denied.message) == (False, result)
    warned = validate(body, policy=replace(POLICY, deny=frozenset(Denial) - {denial}))
    assert (warned.allowed, warned.warnings) == (True, [result])


@pytest.mark.parametrize("source", [SECRET, {**SECRET, "prefix": ""}, {**SECRET, "prefix": "NVIDIA_"}])
def test_variables_from_config_maps_are_warned_of_where_denied(source: Json) -> None:
    body = pod(containers=[container(envFrom=[{**SECRET, "prefix": "A_"}, source])])
    result = validate(body, policy=replace(POLICY, deny=frozenset({Denial.NVIDIA_VISIBLE_DEVICES})))
    what = f"may set {NVIDIA}, which is not allowed here; make sure that it does not"
    assert (result.allowed, result.warnings) == (True, [f"spec.containers[0].envFrom: {what}"])
    assert validate(body).warnings == []


def test_several_problems_are_all_reported() -> None:
    body = pod(annotations={MAP: "a=b\n0=node1:0,0\n0=node1:1\n0=node2:2", GANG_MIN: "0", f"{GROUP}/paused": "yes"})
    result = validate(body).message
    assert result.startswith(
        f"6 problems: (1) {MAP}: line 1: 'a=b' is not an entry; {EXAMPLE}; (2) {MAP}: line 2: GPU 0 is"
    )
    assert f"(3) {MAP}: line 4: pod index 0 is also on line 3; write each index once; (4) {GANG_MIN}:" in result
    assert f"(6) {GROUP}/paused" in result


def test_very_many_problems_stay_one_message_of_bounded_length() -> None:
    env = [{"name": NVIDIA, "value": "all"}]
    body = pod(containers=[container(f"c{i}", env=env, securityContext={"privileged": True}) for i in range(500)])
    denied, warned = validate(body, policy=STRICT), validate(body)
    assert denied.message.startswith("1000 problems: (1) spec.containers[0].env")
    assert denied.message.endswith("; and 992 more")
    assert len(denied.message) < 4000
    assert len(warned.warnings) == 8
    assert sum(map(len, warned.warnings)) < 4096


def test_names_of_253_characters_and_a_long_map_stay_bounded() -> None:
    text = "\n".join(f"{i}=n:{i % 8}" for i in range(20_000))
    body = mapped("n" * 251 + "-0", text + "\n\x1b]0;owned\x07=n:0", meta={"namespace": "x" * 63})
    result = validate(body)
    assert result.message.startswith(f"{MAP}: line 20001: '\\x1b]0;owned\\x07=n:0' is not an entry")
    assert len(result.log[0]) < 1000


def test_a_name_of_a_megabyte_is_cut_where_it_is_shown() -> None:
    body = pod("n" * 1_000_000, containers=[container(resources={"limits": {"r" * 1_000_000: "-1"}})])
    result = validate(body)
    assert result.message.startswith("spec.containers[0].resources.limits['rrr")
    assert len(result.message) == 400
    assert len(result.log[0]) < 1000


# -- later changes


def bad(name: str = "w-0", **meta: object) -> Json:
    """A pod that would be refused today."""
    return pod(name, {MAP: "a=b", GANG_MIN: "0", CUDA: "x"}, meta=meta, nodeName="node1")


@pytest.mark.parametrize(
    ("new", "resource"),
    [
        pytest.param(bad(finalizers=[]), "pods", id="finalizer"),
        pytest.param(bad(labels={"a": "b"}), "pods", id="label"),
        pytest.param(bad(), "pods/status", id="status"),
        pytest.param(bad(), "pods/resize", id="resize"),
        pytest.param(bad(), "pods/ephemeralcontainers", id="ephemeral"),
        pytest.param(
            bad(deletionTimestamp="2025-01-01T00:00:00Z", deletionGracePeriodSeconds=30), "pods", id="deleted"
        ),
    ],
)
def test_an_existing_mistake_does_not_block_other_changes_of_a_pod(new: Json, resource: str) -> None:
    result = validate(
        new, resource, STRICT, operation="UPDATE", old=bad(finalizers=["batch.kubernetes.io/job-tracking"])
    )
    assert (result.allowed, result.warnings) == (True, [])


def test_a_pod_that_is_being_deleted_is_not_checked() -> None:
    gone = {"deletionTimestamp": "2025-01-01T00:00:00Z"}
    new = pod("w-0", {MAP: "a=b", GANG_MIN: "worse"}, meta=gone, nodeName="node1")
    assert validate(new, operation="UPDATE", old=bad(**gone)).allowed


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_deletion_is_always_allowed(operation: str) -> None:
    assert validate(bad(), operation=operation, old=bad()).allowed


@pytest.mark.parametrize(
    ("new", "resource", "result"),
    [
        pytest.param(pod("w-0", {MAP: "a=b"}), "pods", f"{MAP}: line 1: 'a=b' is not an entry", id="map"),
        pytest.param(pod("w-0", {MAP: THREE, GANG_MIN: "0"}), "pods", f"{GANG_MIN}: '0' is not a valid", id="gang-min"),
        pytest.param(
            mapped("w-0", ephemeralContainers=[container("debug", securityContext={"privileged": True})]),
            "pods/ephemeralcontainers",
            "spec.ephemeralContainers[0].securityContext.privileged",
            id="privileged-debugging",
        ),
    ],
)
def test_a_change_that_makes_a_pod_wrong_is_refused(new: Json, resource: str, result: str) -> None:
    assert result in validate(new, resource, STRICT, operation="UPDATE", old=mapped("w-0")).message


def test_a_mistake_cannot_be_replaced_by_another() -> None:
    new, old = pod(annotations={f"{GROUP}/paused": "1"}), pod(annotations={f"{GROUP}/paused": "2"})
    assert not validate(new, operation="UPDATE", old=old).allowed


INDEX = "apps.kubernetes.io/pod-index"
MAP_STAYS = f"{MAP}: the GPUs of a pod cannot change once it exists; keep its line, or create the pod again"
SHARE_STAYS = f"{MILLI}: the share of a pod cannot change once it exists; keep it, or create the pod again"


@pytest.mark.parametrize("resource", ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"])
@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        pytest.param(mapped(), mapped(text="0=node1:2,3"), MAP_STAYS, id="other-gpus"),
        pytest.param(mapped(), mapped(text="0=node2:0,1"), MAP_STAYS, id="another-node"),
        pytest.param(mapped(), pod(), MAP_STAYS, id="map-removed"),
        pytest.param(pod(), mapped(), MAP_STAYS, id="map-added"),
        pytest.param(mapped(text="a=b"), mapped(), MAP_STAYS, id="too-late-to-repair"),
        pytest.param(mapped(), mapped(meta={"labels": {INDEX: "1"}}), MAP_STAYS, id="another-index"),
        pytest.param(mapped(), mapped(text=f"{THREE}\n3=node3:7"), "", id="another-line"),
        pytest.param(mapped(), mapped(text=f" {THREE} "), "", id="spaces"),
        pytest.param(pod(annotations={MILLI: "900"}), pod(annotations={MILLI: "1"}), SHARE_STAYS, id="smaller-share"),
        pytest.param(pod(annotations={MILLI: "900"}), pod(), SHARE_STAYS, id="share-removed"),
        pytest.param(pod(), pod(annotations={MILLI: "900"}), SHARE_STAYS, id="share-added"),
    ],
)
def test_the_map_entry_and_share_of_a_pod_are_immutable(resource: str, old: Json, new: Json, result: str) -> None:
    assert validate(new, resource, operation="UPDATE", old=old).message == result
    theirs = [{**one, "spec": {**one["spec"], "schedulerName": "other"}} for one in (old, new)]
    assert validate(theirs[1], resource, operation="UPDATE", old=theirs[0]).allowed


def test_the_map_entry_of_a_pod_that_is_being_deleted_is_immutable() -> None:
    gone = {"deletionTimestamp": "2025-01-01T00:00:00Z"}
    new, old = mapped(text="0=node1:5", meta=gone), mapped(meta=gone)
    assert validate(new, operation="UPDATE", old=old).message == MAP_STAYS


def test_a_pod_may_request_many_resources() -> None:
    amounts = {f"example.com/r{i}": "1" for i in range(5000)}
    body = pod(containers=[container(resources={"requests": amounts, "limits": amounts})])
    assert validate(body).allowed


def test_a_pod_with_too_many_requests_is_refused_quickly() -> None:
    amounts = {f"example.com/r{i}": "wrong" for i in range(5001)}
    body = pod(containers=[container(resources={"requests": amounts, "limits": amounts})])
    assert validate(body).message == "spec.containers: 10002 requests and limits are too many; write at most 10000"
