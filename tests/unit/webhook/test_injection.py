"""Injection of CUDA_VISIBLE_DEVICES: which containers get it, and its value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.policy import AdmissionPolicy
from tests.unit.webhook.reviewing import (
    CUDA,
    GROUP,
    MAP,
    POLICY,
    THREE,
    ReviewResult,
    apply,
    ask,
    container,
    mapped,
    mutate,
    pod,
    review,
    validate,
    values,
)

COMPLETION = "batch.kubernetes.io/job-completion-index"
VISIBLE = f"{GROUP}/visible-devices"
OF = f"visible-devices.{GROUP}/"
MILLI = f"{GROUP}/gpu-milli"
SIDECAR: Json = {"restartPolicy": "Always"}


def refer(annotation: str = VISIBLE) -> Json:
    """The expected valueFrom of a variable."""
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}}


@pytest.mark.parametrize(
    ("body", "value", "log"),
    [
        pytest.param(mapped("webhook-test-0"), "0,1", "webhook-test-0 (index 0)", id="first"),
        pytest.param(mapped("webhook-test-1"), "2", "webhook-test-1 (index 1)", id="second"),
        pytest.param(mapped("webhook-test-2"), "0,1,2", "webhook-test-2 (index 2)", id="third"),
        pytest.param(mapped(text="0=node1:3,1"), "3,1", "webhook-test-0 (index 0)", id="order-as-written"),
        pytest.param(
            mapped("", meta={"generateName": "train-1-", "labels": {COMPLETION: "1"}}),
            "2",
            "train-1- (index 1)",
            id="indexed-job-without-a-name-yet",
        ),
        pytest.param(
            pod("", {MAP: THREE, COMPLETION: "2"}, meta={"generateName": "train-2-"}),
            "0,1,2",
            "train-2- (index 2)",
            id="index-as-annotation",
        ),
        pytest.param(
            mapped("web-7", meta={"labels": {"apps.kubernetes.io/pod-index": "1"}}),
            "2",
            "web-7 (index 1)",
            id="statefulset-label",
        ),
    ],
)
def test_a_pod_with_a_map_gets_the_value_of_its_index(body: Json, value: str, log: str) -> None:
    result = mutate(body)
    assert values(apply(body, result.patch)) == {"main": [value]}
    assert result.log == (f"Injecting {CUDA}={value} for pod {log}",)


def test_a_map_applies_to_containers_of_every_kind() -> None:
    body = mapped(
        initContainers=[container("load"), container("proxy", **SIDECAR)],
        containers=[container("a"), container("b")],
        ephemeralContainers=[container("debug")],
    )
    assert values(apply(body, mutate(body).patch)) == {key: ["0,1"] for key in ("load", "proxy", "a", "b", "debug")}


WANTED = {"name": CUDA, "value": "0,1"}
OTHER = {"name": "A", "value": "1"}
AT = "/spec/containers/0/env"


@pytest.mark.parametrize(
    ("fields", "patch"),
    [
        pytest.param({}, [{"op": "add", "path": AT, "value": [WANTED]}], id="no-env"),
        pytest.param({"env": None}, [{"op": "add", "path": AT, "value": [WANTED]}], id="env-null"),
        pytest.param({"env": []}, [{"op": "add", "path": f"{AT}/-", "value": WANTED}], id="env-empty"),
        pytest.param({"env": [OTHER]}, [{"op": "add", "path": f"{AT}/-", "value": WANTED}], id="others"),
        pytest.param({"env": [WANTED]}, [], id="right-already"),
        pytest.param(
            {"env": [OTHER, {"name": CUDA, "value": "7"}]},
            [{"op": "replace", "path": f"{AT}/1", "value": WANTED}],
            id="another-value",
        ),
        pytest.param(
            {"env": [{"name": CUDA}]}, [{"op": "replace", "path": f"{AT}/0", "value": WANTED}], id="without-a-value"
        ),
        pytest.param(
            {"env": [{"name": CUDA, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            [{"op": "replace", "path": f"{AT}/0", "value": WANTED}],
            id="value-from",
        ),
        pytest.param({"env": [WANTED, OTHER, WANTED]}, [{"op": "remove", "path": f"{AT}/2"}], id="twice-and-right"),
        pytest.param(
            {"env": [{"name": CUDA, "value": "7"}, WANTED, OTHER, {"name": CUDA, "value": "8"}]},
            [
                {"op": "replace", "path": f"{AT}/0", "value": WANTED},
                {"op": "remove", "path": f"{AT}/3"},
                {"op": "remove", "path": f"{AT}/1"},
            ],
            id="three-times",
        ),
        pytest.param(
            {"envFrom": [{"configMapRef": {"name": "settings"}}]},
            [{"op": "add", "path": AT, "value": [WANTED]}],
            id="env-from-which-env-overrides",
        ),
        pytest.param(
            {"env": [{"name": CUDA.lower(), "value": "7"}]},
            [{"op": "add", "path": f"{AT}/-", "value": WANTED}],
            id="another-case-is-another-variable",
        ),
    ],
)
def test_the_patch_is_minimal_and_leaves_the_variable_once(fields: Json, patch: list[Json]) -> None:
    body = mapped(containers=[{"name": "main", "image": "busybox", **fields}])
    assert mutate(body).patch == patch
    assert values(apply(body, patch)) == {"main": ["0,1"]}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(pod(containers=[container(gpus="2")]), {"main": [refer()]}, id="one-asks"),
        pytest.param(
            pod(containers=[container("a"), container("b", gpus=1)]), {"a": [], "b": [refer()]}, id="one-of-two-asks"
        ),
        pytest.param(
            pod(containers=[container("a", gpus="1"), container("b"), container("c", gpus="2")]),
            {"a": [refer(f"{OF}a")], "b": [], "c": [refer(f"{OF}c")]},
            id="several-ask",
        ),
        pytest.param(
            pod(initContainers=[container("load", gpus="1")], containers=[container("main", gpus="1")]),
            {"load": [refer(f"{OF}load")], "main": [refer(f"{OF}main")]},
            id="an-init-container-asks-too",
        ),
        pytest.param(
            pod(initContainers=[container("proxy", gpus="1", **SIDECAR)]),
            {"proxy": [refer()], "main": []},
            id="sidecar",
        ),
        pytest.param(
            pod(containers=[container(resources={"limits": {"amd.com/gpu": "1"}})]),
            {"main": [refer()]},
            id="limits-only",
        ),
        pytest.param(
            pod(containers=[container(env=[{"name": CUDA, "value": "0"}], gpus="1")]),
            {"main": [refer()]},
            id="user-set",
        ),
        pytest.param(
            pod(
                annotations={MILLI: "300"},
                initContainers=[container("load")],
                containers=[container("a"), container("b")],
            ),
            {key: [refer()] for key in ("load", "a", "b")},
            id="a-share-is-the-whole-pods",
        ),
        pytest.param(
            pod(containers=[container("a" * 63, gpus="1"), container("b", gpus="1")]),
            {"a" * 63: [refer(OF + "a" * 63)], "b": [refer(f"{OF}b")]},
            id="longest-container-name",
        ),
        pytest.param(pod(), {"main": []}, id="asks-for-nothing"),
        pytest.param(pod(containers=[container(gpus="0")]), {"main": []}, id="asks-for-none"),
        pytest.param(pod(containers=[container(gpus="1e0")]), {"main": [refer()]}, id="quantity-1e0"),
        pytest.param(pod(containers=[container(gpus="1000m")]), {"main": [refer()]}, id="quantity-1000m"),
        pytest.param(pod(containers=[container(gpus="many")]), {"main": []}, id="no-quantity"),
        pytest.param(
            pod(containers=[container(resources={"limits": {"example.com/gpu": "1"}})]),
            {"main": []},
            id="no-gpu-of-ours",
        ),
        pytest.param(mapped(text="a=b", containers=[container(gpus="1")]), {"main": []}, id="bad-map"),
        pytest.param(mapped("worker"), {"main": []}, id="map-without-index"),
        pytest.param(mapped("worker-9"), {"main": []}, id="map-without-line"),
    ],
)
def test_without_a_map_containers_with_gpus_refer_to_the_annotation_of_the_bind(body: Json, expected: Json) -> None:
    result = mutate(body)
    assert result.allowed
    assert values(apply(body, result.patch)) == expected
    assert len(result.log) == bool(result.patch)


def test_the_log_names_the_source_of_the_value() -> None:
    one, two = pod(containers=[container(gpus="1")]), pod(containers=[container(n, gpus="1") for n in "ab"])
    assert mutate(one).log == (f"Injecting {CUDA} from {VISIBLE} for pod webhook-test-0",)
    assert mutate(two).log == (f"Injecting {CUDA} from {OF}* for pod webhook-test-0",)


@pytest.mark.parametrize("body", [pod(containers=[container(gpus="1")]), pod(annotations={MILLI: "300"})])
def test_injection_can_be_turned_off(body: Json) -> None:
    assert mutate(body, policy=replace(POLICY, inject=False)).patch == []


def test_a_map_applies_even_without_injection() -> None:
    assert len(mutate(mapped(), policy=replace(POLICY, inject=False)).patch) == 1


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [pytest.param({MAP: THREE}, ["0,1"], id="map"), pytest.param({MILLI: "300"}, [refer()], id="share")],
)
def test_only_new_ephemeral_containers_of_a_running_pod_are_patched(annotations: Json, expected: list[Any]) -> None:
    old = pod(annotations=annotations, nodeName="node1", ephemeralContainers=[container("there")])
    new = pod(annotations=annotations, nodeName="node1", ephemeralContainers=[container("there"), container("new")])
    result = mutate(new, "pods/ephemeralcontainers", operation="UPDATE", old=old)
    patched = apply(new, result.patch)
    assert values(patched) == {"main": [], "there": [], "new": expected}
    assert mutate(patched, "pods/ephemeralcontainers", operation="UPDATE", old=old).patch == []


def test_an_ephemeral_container_of_a_pod_with_whole_gpus_is_not_patched() -> None:
    old = pod(containers=[container(gpus="1")])
    new = pod(containers=[container(gpus="1")], ephemeralContainers=[container("debug")])
    assert mutate(new, "pods/ephemeralcontainers", operation="UPDATE", old=old).patch == []


# -- what comes in without it


def late(body: Json, **extra: Any) -> ReviewResult:
    """The response of /validate to a pod that was changed after /mutate."""
    return ask("validate", review(body, **extra))


CHANGED = "but another webhook changed it after gpu-scheduler-webhook; let the other webhook run first"
OWN = {"name": CUDA, "value": "0,1,2,3,4,5,6,7"}


@pytest.mark.parametrize(
    ("body", "result"),
    [
        pytest.param(mapped(), f"spec.containers[0].env: {CUDA} must be 0,1, {CHANGED}", id="map"),
        pytest.param(
            mapped(containers=[container(env=[OWN])]),
            f"spec.containers[0].env: {CUDA} must be 0,1, {CHANGED}",
            id="another-value",
        ),
        pytest.param(
            mapped(containers=[container(env=[WANTED, OWN])]),
            f"spec.containers[0].env: {CUDA} must be 0,1, {CHANGED}",
            id="twice",
        ),
        pytest.param(
            mapped(initContainers=[container("load")], containers=[container(env=[WANTED])]),
            f"spec.initContainers[0].env: {CUDA} must be 0,1, {CHANGED}",
            id="a-container-that-was-added",
        ),
        pytest.param(
            pod(containers=[container(gpus="1")]),
            f"spec.containers[0].env: {CUDA} must be metadata.annotations['{VISIBLE}'], {CHANGED}",
            id="gpus",
        ),
        pytest.param(
            pod(annotations={MILLI: "300"}),
            f"spec.containers[0].env: {CUDA} must be metadata.annotations['{VISIBLE}'], {CHANGED}",
            id="share",
        ),
        pytest.param(
            mapped("job-xkcd2", meta={"generateName": "job-"}),
            f"spec.containers[0].env: {CUDA} must be 0,1,2, {CHANGED}",
            id="generated-name-that-ends-in-a-number",
        ),
    ],
)
def test_a_pod_without_the_injected_variable_is_refused(body: Json, result: str) -> None:
    assert late(body).message == result


@pytest.mark.parametrize(
    "body",
    [mapped(), mapped(containers=[container(env=[OWN, OWN])]), pod(containers=[container(gpus="1"), container("b")])],
    ids=["map", "own-values", "gpus"],
)
def test_a_pod_with_the_injected_variable_is_allowed(body: Json) -> None:
    assert late(apply(body, mutate(body).patch)).allowed


def test_without_injection_only_pods_with_a_map_need_the_variable() -> None:
    policy = replace(POLICY, inject=False)
    assert ask("validate", review(pod(containers=[container(gpus="1")])), policy).allowed
    assert not ask("validate", review(mapped()), policy).allowed


def test_only_new_ephemeral_containers_of_an_existing_pod_are_checked_for_the_variable() -> None:
    old = mapped(ephemeralContainers=[container("there")])
    new = mapped(ephemeralContainers=[container("there"), container("new")])
    result = late(new, resource="pods/ephemeralcontainers", operation="UPDATE", old=old)
    assert result.message == f"spec.ephemeralContainers[1].env: {CUDA} must be 0,1, {CHANGED}"
    assert late(old, resource="pods/ephemeralcontainers", operation="UPDATE", old=mapped()).message
    assert late(new, operation="UPDATE", old=old).allowed


def test_a_generated_name_gives_a_pod_no_index() -> None:
    result = mutate(mapped("", meta={"generateName": "job-7"}))
    assert result.message == (
        f"{MAP}: the pod has no index, because metadata.generateName gives it none; set metadata.name to"
        " end in an index, such as worker-0, or use a StatefulSet or an Indexed Job"
    )


def test_a_stateful_set_pod_with_name_and_generate_name_is_allowed() -> None:
    assert mutate(mapped("web-1", meta={"generateName": "web-"})).log == (
        f"Injecting {CUDA}=2 for pod web-1 (index 1)",
    )


# -- what a container chooses by itself


GPUS = container("gpu", gpus="1")
STRAY = f"{CUDA} may show GPUs that the container did not request; remove it, or request GPUs"


@pytest.mark.parametrize(
    ("env", "told"),
    [
        pytest.param(OWN, True, id="all"),
        pytest.param({"name": CUDA, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}, True, id="from"),
        pytest.param({"name": CUDA, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, True, id="other-field"),
        pytest.param({"name": CUDA, "valueFrom": {"fieldRef": "x"}}, True, id="nonsense"),
        pytest.param({"name": CUDA, "valueFrom": refer()}, False, id="what-the-pod-was-given"),
        pytest.param({"name": CUDA, "valueFrom": refer(f"{OF}gpu")}, False, id="what-another-container-was-given"),
        pytest.param({"name": CUDA}, False, id="nothing"),
        pytest.param({"name": CUDA, "value": ""}, False, id="empty"),
        pytest.param({"name": CUDA, "value": "-1"}, False, id="none"),
        pytest.param({"name": "A", "value": "0"}, False, id="another-variable"),
    ],
)
def test_a_container_without_gpus_that_sets_the_variable_is_warned_of(env: Json, told: bool) -> None:
    body = pod(containers=[GPUS, container("b", env=[env])])
    result = validate(body)
    assert (result.allowed, result.warnings) == (True, [f"spec.containers[1].env: {STRAY}"] if told else [])


@pytest.mark.parametrize(
    ("body", "policy"),
    [
        pytest.param(mapped(containers=[container(env=[OWN])]), POLICY, id="a-map-replaces-it"),
        pytest.param(pod(annotations={MILLI: "300"}, containers=[container(env=[OWN])]), POLICY, id="so-does-a-share"),
        pytest.param(pod(containers=[container(env=[OWN], gpus="1")]), POLICY, id="so-does-asking"),
        pytest.param(pod(containers=[GPUS, container("b", env=[OWN])]), replace(POLICY, inject=False), id="turned-off"),
    ],
)
def test_a_replaced_or_allowed_variable_is_no_warning(body: Json, policy: AdmissionPolicy) -> None:
    assert validate(body, policy=policy).warnings == []


@pytest.mark.parametrize(
    ("annotations", "told"), [({}, [f"spec.template: spec.containers[0].env: {STRAY}"]), ({MAP: THREE}, [])]
)
def test_a_template_that_sets_the_variable_is_warned_of(annotations: Json, told: list[str]) -> None:
    template = pod(annotations=annotations, containers=[container(env=[OWN])])
    body = {"kind": "StatefulSet", "metadata": {"name": "a"}, "spec": {"replicas": 3, "template": template}}
    assert validate(body, "apps/v1/statefulsets").warnings == told


# -- everything else


@pytest.mark.parametrize(
    ("resource", "operation"),
    [("pods", "UPDATE"), ("pods", "DELETE"), ("pods/status", "UPDATE"), ("pods/resize", "UPDATE"), ("nodes", "CREATE")],
)
def test_other_requests_are_not_patched(resource: str, operation: str) -> None:
    assert mutate(mapped(), resource, operation=operation, old=mapped()).patch == []


NAMES = st.sampled_from([CUDA, "A", "B", "NVIDIA_VISIBLE_DEVICES"])
VARIABLES = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "value": st.sampled_from(["", "0", "0,1", "2", "$(A)"]),
        "valueFrom": st.sampled_from([refer(), refer(f"{OF}c0"), {"secretKeyRef": {"name": "s", "key": "k"}}]),
    },
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"image": st.just("busybox")},
        optional={
            "env": st.none() | st.lists(VARIABLES, max_size=5),
            "resources": st.sampled_from([{}, {"limits": {"nvidia.com/gpu": "1"}}, {"requests": {"amd.com/gpu": "2"}}]),
            "restartPolicy": st.just("Always"),
            "securityContext": st.sampled_from([{}, {"privileged": True}]),
        },
    ),
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn, scheduler: str = "gpu-scheduler") -> Json:
    """Pods with everything that injection reads."""
    spec: Json = {"schedulerName": scheduler}
    number = 0
    for field in ("initContainers", "containers", "ephemeralContainers"):
        spec[field] = draw(CONTAINERS)
        for one in spec[field]:
            one["name"] = f"c{number}"
            number += 1
    annotations = draw(st.dictionaries(st.sampled_from([MAP, MILLI, COMPLETION]), st.sampled_from([THREE, "300", "1"])))
    return pod(draw(st.sampled_from(["w-0", "w-2", "w", "w-9"])), annotations, **spec)


@given(pods())
def test_injection_is_idempotent_and_changes_nothing_else(body: Json) -> None:
    patched = apply(body, mutate(body).patch)
    assert mutate(patched).patch == []
    before = values(body)
    assert all(found == before[name] or len(found) == 1 for name, found in values(patched).items())
    assert _without_variable(patched) == _without_variable(body)


def _without_variable(body: Json) -> Json:
    """A pod without the variable, and with an environment in every container."""
    spec = dict(body["spec"])
    for field in ("initContainers", "containers", "ephemeralContainers"):
        spec[field] = [
            {**one, "env": [variable for variable in one.get("env") or () if variable["name"] != CUDA]}
            for one in spec[field]
        ]
    return {**body, "spec": spec}


@given(pods(scheduler="default-scheduler"))
def test_pods_of_other_schedulers_are_allowed_unchanged(body: Json) -> None:
    for result in (mutate(body), validate(body)):
        assert (result.allowed, result.patch, result.warnings, result.log) == (True, [], [], ())


def test_a_pod_without_a_scheduler_name_belongs_to_the_default_scheduler() -> None:
    body = mapped()
    del body["spec"]["schedulerName"]
    assert mutate(body).patch == []
    assert len(mutate(body, policy=replace(POLICY, scheduler_names=frozenset({"default-scheduler"}))).patch) == 1


def test_a_request_without_an_object_is_allowed() -> None:
    assert ask("mutate", review(None, operation="DELETE", old=mapped())).patch == []
