"""Decoding: pruning of unknown fields, type checks, defaults."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded_kube.errors import StatusError
from embedded_kube.registry.builtin_kinds import VERSIONS, builtin_kinds
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.schema.quantities import canonical, is_equal
from embedded_kube.schema.schemas import Schemas, parse_object
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.api_harness import find_kind

SCHEMAS = {version: Schemas(version) for version in VERSIONS}
KINDS = {version: KindTable(builtin_kinds(version)) for version in VERSIONS}


def kind_of(name: str, version: str = "1.35") -> ServedKind:
    api_version, _, kind = name.rpartition("/")
    return find_kind(KINDS[version], api_version, kind)


def decoded(name: str, found: Json, version: str = "1.35") -> Json:
    made = copy.deepcopy(found)
    SCHEMAS[version].decode(kind_of(name, version), made, "Strict")
    return made


def pod(**spec: Any) -> Json:
    return {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}


def test_every_built_in_kind_of_every_version_has_a_type() -> None:
    for version in VERSIONS:
        for kind in KINDS[version]:
            assert SCHEMAS[version].type_schema(kind).name, f"{version}: {kind.api_version} {kind.kind}"


def test_unknown_fields_are_pruned_and_reported_by_field_validation() -> None:
    kind, schemas = kind_of("v1/Pod"), SCHEMAS["1.35"]
    wrong = pod(foo=1)
    wrong["spec"]["containers"][0]["bar"] = None

    silent = copy.deepcopy(wrong)
    assert schemas.decode(kind, silent, "Ignore") == []
    assert "foo" not in silent["spec"]
    assert "bar" not in silent["spec"]["containers"][0]
    warned = schemas.decode(kind, copy.deepcopy(wrong), "Warn")
    assert sorted(warned) == ['unknown field "spec.containers[0].bar"', 'unknown field "spec.foo"']
    with pytest.raises(StatusError) as refused:
        schemas.decode(kind, pod(foo=1), "Strict")
    assert refused.value.code == 400
    assert refused.value.reason == "BadRequest"
    assert refused.value.message == (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.foo"'
    )


def test_duplicate_fields_are_reported_and_the_last_value_counts() -> None:
    kind = kind_of("v1/Pod")
    body = b'{"metadata": {"name": "a", "name": "b"}, "spec": {"containers": [{"image": "x", "image": "y"}]}}'
    found, warnings = parse_object(body, kind, "Warn")
    assert found["metadata"]["name"] == "b"
    assert sorted(warnings) == ['duplicate field "metadata.name"', 'duplicate field "spec.containers[0].image"']
    assert parse_object(body, kind, "Ignore")[1] == []
    with pytest.raises(StatusError, match=r'strict decoding error: duplicate field "metadata\.name"'):
        parse_object(b'{"metadata": {"name": "a", "name": "b"}}', kind, "Strict")


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"x"', b'{"metadata": 1}', b'{"a": NaN}', b"\xff"])
def test_a_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(StatusError) as refused:
        parse_object(body, kind_of("v1/Pod"), "Warn")
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            pod(priority="high"),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.priority of type int32",
        ),
        (pod(priority=2**31), "number 2147483648 into Go struct field PodSpec.spec.priority of type int32"),
        (pod(priority=1.5), "number 1.5 into Go struct field PodSpec.spec.priority of type int32"),
        (pod(hostNetwork="yes"), "string into Go struct field PodSpec.spec.hostNetwork of type bool"),
        (pod(containers={}), "object into Go struct field PodSpec.spec.containers of type []v1.Container"),
        (pod(containers=["c"]), "string into Go struct field PodSpec.spec.containers of type v1.Container"),
        (
            pod(containers=[{"name": "c", "ports": [{"containerPort": "80"}]}]),
            "string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (pod(nodeSelector={"a": 1}), "number into Go struct field PodSpec.spec.nodeSelector of type string"),
        ({"metadata": []}, "array into Go struct field Pod.metadata of type v1.ObjectMeta"),
        (pod(containers=[{"resources": {"limits": {"cpu": "lots"}}}]), "quantities must match the regular expression"),
        (pod(containers=[{"resources": {"limits": {"cpu": True}}}]), "quantities must match the regular expression"),
        ({"metadata": {"creationTimestamp": "noon"}}, 'parsing time "noon"'),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_field(found: Json, message: str) -> None:
    with pytest.raises(StatusError) as refused:
        SCHEMAS["1.35"].decode(kind_of("v1/Pod"), found, "Ignore")
    assert refused.value.code == 400
    assert refused.value.message.startswith('Pod in version "v1" cannot be handled as a Pod: ')
    assert message in refused.value.message


def test_null_is_the_same_as_missing() -> None:
    found = decoded("v1/Pod", pod(nodeName=None, restartPolicy=None, nodeSelector={"a": None}))
    assert "nodeName" not in found["spec"]
    assert found["spec"]["restartPolicy"] == "Always"
    assert found["spec"]["nodeSelector"] == {"a": ""}


def test_a_pod_gets_its_defaults() -> None:
    container = {
        "name": "c",
        "image": "pytorch",
        "ports": [{"containerPort": 80}],
        "resources": {"limits": {"nvidia.com/gpu": 2, "cpu": 0.5}, "requests": {"cpu": "250m"}},
        "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 0},
        "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    }
    volumes = [{"name": "s", "secret": {"secretName": "x"}}, {"name": "scratch"}]
    found = decoded("v1/Pod", pod(containers=[container], volumes=volumes, serviceAccountName="me"))
    spec = found["spec"]
    assert {name: spec[name] for name in ("restartPolicy", "dnsPolicy", "schedulerName", "enableServiceLinks")} == {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
    }
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["securityContext"] == {}
    assert spec["serviceAccount"] == "me"
    made = spec["containers"][0]
    assert made["imagePullPolicy"] == "Always"
    assert made["terminationMessagePath"] == "/dev/termination-log"
    assert made["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert made["resources"]["limits"] == {"nvidia.com/gpu": "2", "cpu": "500m"}
    assert made["resources"]["requests"] == {"nvidia.com/gpu": "2", "cpu": "250m"}
    probe = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
    assert made["livenessProbe"] == {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, **probe}
    assert made["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert spec["volumes"][0]["secret"]["defaultMode"] == 420
    assert spec["volumes"][1] == {"name": "scratch", "emptyDir": {}}
    assert found["status"] == {"qosClass": "Burstable"}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("host:5000/a", "Always"),
        ("host:5000/a:1", "IfNotPresent"),
        ("a@sha256:0", "IfNotPresent"),
    ],
)
def test_the_image_pull_policy_depends_on_the_tag(image: str, policy: str) -> None:
    found = decoded("v1/Pod", pod(containers=[{"name": "c", "image": image}]))
    assert found["spec"]["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
    ],
)
def test_the_qos_class_follows_from_the_resources(resources: Json, expected: str) -> None:
    found = decoded("v1/Pod", pod(containers=[{"name": "c", "image": "i", "resources": resources}]))
    assert found["status"]["qosClass"] == expected


def test_a_deployment_and_its_template_get_defaults() -> None:
    found = decoded("apps/v1/Deployment", {"metadata": {"name": "d"}, "spec": {"template": pod()}})
    spec = found["spec"]
    assert (spec["replicas"], spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (1, 10, 600)
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Always"
    assert "enableServiceLinks" not in spec["template"]["spec"]


def test_a_stateful_set_gets_defaults() -> None:
    spec = decoded("apps/v1/StatefulSet", {"metadata": {"name": "s"}, "spec": {"template": pod()}})["spec"]
    assert spec["podManagementPolicy"] == "OrderedReady"
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_a_job_selects_its_pods_by_its_uid() -> None:
    template = pod(restartPolicy="Never")
    template["metadata"] = {"labels": {"app": "x"}}
    found = decoded("batch/v1/Job", {"metadata": {"name": "j", "uid": "u"}, "spec": {"template": template}})
    SCHEMAS["1.35"].prepare_for_create(kind_of("batch/v1/Job"), found)
    spec = found["spec"]
    expected = {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
    }
    assert {name: spec[name] for name in expected} == expected
    assert spec["template"]["metadata"]["labels"] == {
        "app": "x",
        "controller-uid": "u",
        "job-name": "j",
        "batch.kubernetes.io/controller-uid": "u",
        "batch.kubernetes.io/job-name": "j",
    }
    # A Job without labels gets those of its pod template.
    assert found["metadata"]["labels"] == spec["template"]["metadata"]["labels"]
    assert decoded("batch/v1/Job", found) == found


def test_an_update_of_a_job_generates_no_selector() -> None:
    job = {"metadata": {"name": "j", "uid": "u"}, "spec": {"template": pod(restartPolicy="Never")}}
    assert "selector" not in decoded("batch/v1/Job", job)["spec"]


def test_a_job_with_a_generated_name_gets_the_name_in_its_labels() -> None:
    job = {"metadata": {"generateName": "j-", "uid": "u"}, "spec": {"template": pod(restartPolicy="Never")}}
    found = decoded("batch/v1/Job", job)
    assert "selector" not in found["spec"]
    found["metadata"]["name"] = "j-1"
    SCHEMAS["1.35"].prepare_for_create(kind_of("batch/v1/Job"), found)
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert labels["job-name"] == "j-1"


@pytest.mark.parametrize(
    ("name", "found", "path", "expected"),
    [
        ("v1/Service", {"spec": {"ports": [{"port": 80}]}}, "spec.ports.0.targetPort", 80),
        ("v1/Service", {"spec": {"ports": [{"port": 80}]}}, "spec.ports.0.protocol", "TCP"),
        ("v1/Service", {}, "spec.type", "ClusterIP"),
        ("v1/Service", {}, "spec.sessionAffinity", "None"),
        ("v1/Service", {"spec": {"type": "LoadBalancer"}}, "spec.externalTrafficPolicy", "Cluster"),
        ("v1/Secret", {}, "type", "Opaque"),
        ("v1/Secret", {"stringData": {"a": "x"}}, "data", {"a": "eA=="}),
        ("v1/Secret", {"stringData": {"a": "x"}}, "stringData", None),
        (
            "v1/Namespace",
            {"metadata": {"name": "n"}},
            "metadata.labels",
            {"kubernetes.io/metadata.name": "n"},
        ),
        ("v1/Namespace", {"metadata": {"name": "n"}}, "status.phase", "Active"),
        ("v1/PersistentVolumeClaim", {}, "spec.volumeMode", "Filesystem"),
        ("v1/PersistentVolumeClaim", {}, "status.phase", "Pending"),
        ("scheduling.k8s.io/v1/PriorityClass", {}, "preemptionPolicy", "PreemptLowerPriority"),
        ("scheduling.k8s.io/v1/PriorityClass", {}, "value", 0),
        ("storage.k8s.io/v1/StorageClass", {"provisioner": "x"}, "volumeBindingMode", "Immediate"),
        (
            "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration",
            {"webhooks": [{"name": "a.b.c", "rules": [{}]}]},
            "webhooks.0.timeoutSeconds",
            10,
        ),
        (
            "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration",
            {"webhooks": [{"name": "a.b.c", "rules": [{}]}]},
            "webhooks.0.rules.0.scope",
            "*",
        ),
        (
            "apiextensions.k8s.io/v1/CustomResourceDefinition",
            {"spec": {"names": {"kind": "Foo", "plural": "foos"}}},
            "spec.names.listKind",
            "FooList",
        ),
        ("rbac.authorization.k8s.io/v1/RoleBinding", {"roleRef": {}}, "roleRef.apiGroup", "rbac.authorization.k8s.io"),
        ("v1/Node", {"status": {"capacity": {"cpu": 4}}}, "status.allocatable.cpu", "4"),
    ],
)
def test_kinds_get_their_defaults(name: str, found: Json, path: str, expected: Any) -> None:
    value: Any = decoded(name, found)
    for step in path.split("."):
        value = value[int(step)] if isinstance(value, list) else value.get(step)
    assert value == expected


def test_an_update_of_a_namespace_adds_no_finalizer() -> None:
    ending = {"metadata": {"name": "n", "deletionTimestamp": "2025-01-01T00:00:00Z"}, "spec": {}}
    assert decoded("v1/Namespace", ending)["spec"] == {}


def test_native_gangs_have_the_fields_of_their_version() -> None:
    gang = {"gang": {"minCount": 2, "timeout": 60}}
    old = {"metadata": {"name": "w"}, "spec": {"podGroups": [{"name": "g", "policy": gang}]}, "status": {}}
    old["status"] = {"conditions": [{"type": "GangScheduled", "status": "True"}]}
    found = decoded("scheduling.k8s.io/v1alpha1/Workload", old)["status"]["conditions"][0]
    assert (found["type"], found["status"]) == ("GangScheduled", "True")
    assert decoded("v1/Pod", pod(workloadRef={"name": "w", "podGroup": "g"}))["spec"]["workloadRef"]["name"] == "w"
    with pytest.raises(StatusError, match=r'unknown field "spec\.schedulingGroup"'):
        decoded("v1/Pod", pod(schedulingGroup={"podGroupName": "g"}))
    for version, name in (("1.36", "v1alpha2"), ("1.37", "v1beta1")):
        group = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
        assert decoded(f"scheduling.k8s.io/{name}/PodGroup", group, version)["spec"]["schedulingPolicy"]
        decoded("v1/Pod", pod(schedulingGroup={"podGroupName": "g"}), version)
        with pytest.raises(StatusError, match=r'unknown field "spec\.workloadRef"'):
            decoded("v1/Pod", pod(workloadRef={"name": "w", "podGroup": "g"}), version)


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1.5Gi", "1536Mi"),
        ("1Gi", "1Gi"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1e3", "1e3"),
        ("1500000", "1500k"),
        ("-1", "-1"),
        ("0", "0"),
        ("100u", "1m"),
        ("1Ei", "1Ei"),
        ("16Ei", "9223372036854775807"),
        ("10E", "10E"),
        ("9223372036854775808", "9223372036854775808"),
        ("1e19", "10e18"),
        ("-0.1Ki", "-102400m"),
        ("+0", "0"),
        ("00.50Mi", "512Ki"),
        ("12345E", "12345E"),
        # The API server takes these as canonical, too.
        ("+5", "+5"),
        ("5.", "5."),
        ("1E+3", "1E+3"),
        ("005Gi", "005Gi"),
        # The API server would store 1.
        ("1000E", "1000E"),
    ],
)
def test_quantities_are_stored_in_canonical_form(written: str, stored: str) -> None:
    assert canonical(written) == stored
    assert canonical(stored) == stored
    assert is_equal(written, stored)


def test_different_quantities_are_not_equal() -> None:
    assert not is_equal("1", "-1")
    assert not is_equal("1", "1001m")
    assert is_equal("-0", "0")


def test_times_are_stored_in_utc() -> None:
    meta = {"name": "a", "creationTimestamp": "2025-01-01T02:00:00+02:00"}
    assert decoded("v1/ConfigMap", {"metadata": meta})["metadata"]["creationTimestamp"] == "2025-01-01T00:00:00Z"
    lease = decoded("coordination.k8s.io/v1/Lease", {"spec": {"renewTime": "2025-01-01T02:00:00.500000+02:00"}})
    assert lease["spec"]["renewTime"] == "2025-01-01T00:00:00.500000Z"
    with pytest.raises(StatusError):
        decoded("coordination.k8s.io/v1/Lease", {"spec": {"renewTime": "2025-01-01T00:00:00Z"}})


@pytest.mark.parametrize(
    ("path", "merges", "key"),
    [
        ("spec.template.spec.containers", True, "name"),
        ("spec.template.spec.containers.ports", True, "containerPort"),
        ("metadata.finalizers", True, ""),
        ("spec.template.spec.tolerations", False, ""),
    ],
)
def test_lists_have_the_patch_merge_keys_of_kubernetes(path: str, merges: bool, key: str) -> None:
    schema = SCHEMAS["1.35"].type_schema(kind_of("apps/v1/Deployment"))
    for name in path.split("."):
        schema = (schema.item or schema).fields[name]
    assert (schema.merges, schema.merge_key) == (merges, key)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["metadata", "spec", "status", "containers", "name", "resources", "limits", "labels", "template", "ports", "x"]
    ), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(found=st.dictionaries(st.sampled_from(["metadata", "spec", "status", "webhooks", "data"]), json_values))
def test_decoding_and_validation_of_any_json_fail_only_with_a_status_error(found: Json) -> None:
    for kind in KINDS["1.37"]:
        made = copy.deepcopy(found)
        with contextlib.suppress(StatusError):
            SCHEMAS["1.37"].decode(kind, made, "Ignore")
            once = copy.deepcopy(made)
            SCHEMAS["1.37"].decode(kind, made, "Strict")
            assert made == once, kind.kind
            SCHEMAS["1.37"].validate(kind, made, None)
