"""Validation: all causes are reported, with the messages of a real API server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from embedded_kube.errors import StatusError
from embedded_kube.registry.builtin_kinds import VERSIONS, builtin_kinds
from embedded_kube.registry.kinds import KindTable
from embedded_kube.schema.schemas import Schemas
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.api_harness import find_kind

Edit = Callable[[Json], Any]

SCHEMAS = {version: Schemas(version) for version in VERSIONS}
KINDS = {version: KindTable(builtin_kinds(version)) for version in VERSIONS}


def causes(name: str, found: Json, old: Json | None = None, version: str = "1.35") -> list[str]:
    """The causes that make an object invalid, as lines; [] if it is valid. `old` is prepared as a stored object."""
    api_version, _, kind_name = name.rpartition("/")
    kind = find_kind(KINDS[version], api_version, kind_name)
    for one in (found, old):
        if one is not None:
            SCHEMAS[version].decode(kind, one, "Strict")
            if kind_name == "Job":
                one["metadata"].setdefault("uid", "u")
                SCHEMAS[version].prepare_for_create(kind, one)
    try:
        SCHEMAS[version].validate(kind, found, old)
    except StatusError as error:
        return [f"{cause['field']}: {cause['message']}" for cause in error.details["causes"]]
    return []


def pod(**spec: Any) -> Json:
    container = {"name": "c", "image": "i:1"}
    return {"metadata": {"name": "a", "namespace": "default"}, "spec": {"containers": [container], **spec}}


def container(**fields: Any) -> Json:
    return pod(containers=[{"name": "c", "image": "i:1", **fields}])


def meta(**fields: Any) -> Json:
    made = pod()
    made["metadata"].update(fields)
    return made


OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}

PODS: list[tuple[Json, list[str]]] = [
    (pod(), []),
    (meta(name="Big"), ["metadata.name: Invalid value: \"Big\": a lowercase RFC 1123 subdomain must consist of"]),
    (meta(name="x" * 254), ["metadata.name: Invalid value: \"xxx"]),
    (meta(labels={"a b": "c"}), ["metadata.labels: Invalid value: \"a b\": name part must consist of"]),
    (meta(labels={"a": "c d"}), ["metadata.labels: Invalid value: \"c d\": a valid label must be an empty string or"]),
    (meta(labels={"a": "x" * 64}), ["metadata.labels: Invalid value: \"xxx"]),
    (meta(annotations={"a": "x" * 262144}), ["metadata.annotations: Too long: may not be more than 262144 bytes"]),
    (meta(annotations={"UPPER.example/ok": "1"}), []),
    (meta(ownerReferences=[{**OWNER, "uid": ""}]), ["metadata.ownerReferences.uid: Invalid value: \"\": must not"]),
    (meta(ownerReferences=[OWNER, OWNER]), ["metadata.ownerReferences: Invalid value: "]),
    (meta(finalizers=["a b"]), [
        "metadata.finalizers: Invalid value: \"a b\": name part",
        "metadata.finalizers[0]: Invalid value: \"a b\": name is neither",
    ]),
    (pod(containers=[]), ["spec.containers: Required value"]),
    ({"metadata": {"name": "a"}}, ["spec.containers: Required value"]),
    (pod(containers=[{"image": "i"}]), ["spec.containers[0].name: Required value"]),
    (pod(containers=[{"name": "c"}]), ["spec.containers[0].image: Required value"]),
    (container(image=" i"), ["spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing"]),
    (
        pod(containers=[{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]),
        ["spec.containers[1].name: Duplicate value: \"c\""],
    ),
    (
        pod(initContainers=[{"name": "c", "image": "i"}]),
        ["spec.initContainers[0].name: Duplicate value: \"c\""],
    ),
    (pod(restartPolicy="Sometimes"), [
        'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'
    ]),
    (pod(activeDeadlineSeconds=-1), [
        "spec.activeDeadlineSeconds: Invalid value: -1: must be between 1 and 2147483647"
    ]),
    (pod(activeDeadlineSeconds=0), ["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647"]),
    (container(ports=[{"containerPort": 0}]), [
        "spec.containers[0].ports[0].containerPort: Required value"
    ]),
    (container(ports=[{"containerPort": 1, "name": "p"}, {"containerPort": 2, "name": "p"}]), [
        "spec.containers[0].ports[1].name: Duplicate value: \"p\""
    ]),
    (container(ports=[{"containerPort": 1, "name": "a-very-long-port-name"}]), [
        "spec.containers[0].ports[0].name: Invalid value: \"a-very-long-port-name\": must be no more than 15 characters"
    ]),
    (container(resources={"limits": {"cpu": "-1"}}), [
        "spec.containers[0].resources.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
        "spec.containers[0].resources.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
    ]),
    (container(resources={"limits": {"cpu": 1}, "requests": {"cpu": 2}}), [
        'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'
    ]),
    (container(resources={"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 1}}), [
        'spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2'
    ]),
    (container(resources={"requests": {"nvidia.com/gpu": 1}}), [
        "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"
    ]),
    (container(resources={"limits": {"nvidia.com/gpu": "500m"}}), [
        'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
        'spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
    ]),
    (container(resources={"requests": {"gpus": 1}}), [
        'spec.containers[0].resources.requests[gpus]: Invalid value: "gpus": must be a standard resource type',
        'spec.containers[0].resources.requests[gpus]: Invalid value: "gpus": must be a standard resource for',
        "spec.containers[0].resources.limits: Required value",
    ]),
    (container(volumeMounts=[{"name": "v", "mountPath": "/v"}]), [
        'spec.containers[0].volumeMounts[0].name: Not found: "v"'
    ]),
    (pod(volumes=[{"name": "v"}, {"name": "v"}]), ['spec.volumes[1].name: Duplicate value: "v"']),
    (container(env=[{"name": "A", "value": "1", "valueFrom": {}}]), [
        "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: ",
        "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
    ]),
    (container(livenessProbe={}), ["spec.containers[0].livenessProbe: Required value: must specify a handler type"]),
    (pod(tolerations=[{"operator": "Equal"}]), [
        "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty"
    ]),
    (pod(workloadRef={"name": "w"}), ["spec.workloadRef.podGroup: Required value"]),
    (pod(workloadRef={"name": "w", "podGroup": "Not.Good"}), [
        'spec.workloadRef.podGroup: Invalid value: "Not.Good": must not contain dots'
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), PODS)
def test_all_causes_of_an_invalid_pod_are_reported(found: Json, expected: list[str]) -> None:
    lines = causes("v1/Pod", found)
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


def test_the_message_lists_all_causes() -> None:
    kind = find_kind(KINDS["1.35"], "v1", "Pod")
    with pytest.raises(StatusError) as refused:
        SCHEMAS["1.35"].validate(kind, {"metadata": {"name": "a"}, "spec": {"containers": [{}]}}, None)
    assert refused.value.code == 422
    assert refused.value.message == (
        'Pod "a" is invalid: [spec.containers[0].name: Required value, spec.containers[0].image: Required value]'
    )


def template(**labels: str) -> Json:
    return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}


def deployment(**spec: Any) -> Json:
    base = {"selector": {"matchLabels": {"app": "x"}}, "template": template(app="x")}
    return {"metadata": {"name": "d", "namespace": "default"}, "spec": {**base, **spec}}


def job(**spec: Any) -> Json:
    made = template()
    made["spec"]["restartPolicy"] = "Never"
    return {"metadata": {"name": "j", "namespace": "default", "uid": "u"}, "spec": {"template": made, **spec}}


def workload(*groups: Json) -> Json:
    return {"metadata": {"name": "w", "namespace": "default"}, "spec": {"podGroups": list(groups)}}


def group(name: str = "g", **policy: Any) -> Json:
    return {"name": name, "policy": policy or {"gang": {"minCount": 2}}}


def claim(**spec: Any) -> Json:
    base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": "c", "namespace": "default"}, "spec": {**base, **spec}}


def named(**fields: Any) -> Json:
    return {"metadata": {"name": "a"}, **fields}


OTHERS: list[tuple[str, Json, list[str]]] = [
    ("apps/v1/Deployment", deployment(), []),
    ("apps/v1/Deployment", deployment(selector=None), [
        "spec.selector: Required value",
        "spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`",
    ]),
    ("apps/v1/Deployment", deployment(template=template(app="y")), [
        'spec.template.metadata.labels: Invalid value: {"app":"y"}: `selector` does not match template `labels`'
    ]),
    ("apps/v1/Deployment", deployment(replicas=-1), [
        "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    ]),
    ("batch/v1/Job", job(), []),
    ("batch/v1/Job", job(template=template()), [
        'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
    ]),
    ("batch/v1/Job", job(completionMode="Indexed", parallelism=2), [
        "spec.completions: Required value: when completion mode is Indexed"
    ]),
    ("scheduling.k8s.io/v1alpha1/Workload", workload(group()), []),
    ("scheduling.k8s.io/v1alpha1/Workload", workload(), ["spec.podGroups: Required value"]),
    ("scheduling.k8s.io/v1alpha1/Workload", workload(*(group(f"g{i}") for i in range(9))), [
        "spec.podGroups: Too many: 9: must have at most 8 items"
    ]),
    ("scheduling.k8s.io/v1alpha1/Workload", workload(group(gang={"minCount": 0})), [
        "spec.podGroups[0].policy.gang.minCount: Invalid value: 0: must be greater than or equal to 1"
    ]),
    ("scheduling.k8s.io/v1alpha1/Workload", workload(group(gang={"minCount": 1}, basic={})), [
        "spec.podGroups[0].policy: Invalid value: \"{`basic`, `gang`}\": exactly one of `basic`, `gang` is"
    ]),
    ("scheduling.k8s.io/v1alpha1/Workload", workload(group("a"), group("a")), [
        'spec.podGroups[1].name: Duplicate value: "a"'
    ]),
    ("v1/PersistentVolumeClaim", claim(), []),
    ("v1/PersistentVolumeClaim", claim(accessModes=[]), ["spec.accessModes: Required value: at least 1 access mode"]),
    ("v1/Service", named(spec={"ports": [{"port": 80}]}), []),
    ("v1/Service", {"metadata": {"name": "1a"}, "spec": {"ports": [{"port": 80}]}}, [
        'metadata.name: Invalid value: "1a": a DNS-1035 label must consist of'
    ]),
    ("v1/Service", named(spec={"ports": []}), ["spec.ports: Required value"]),
    ("v1/Service", named(spec={"clusterIP": "None"}), []),
    ("v1/Service", named(spec={"ports": [{"port": 80}, {"port": 81}]}), [
        "spec.ports[0].name: Required value", "spec.ports[1].name: Required value"
    ]),
    ("v1/Namespace", {"metadata": {"name": "a.b"}}, [
        'metadata.name: Invalid value: "a.b": must not contain dots'
    ]),
    ("v1/ConfigMap", named(data={"a/b": "c"}), ["data[a/b]: Invalid value: \"a/b\": a valid config key must consist"]),
    ("scheduling.k8s.io/v1/PriorityClass", named(value=2_000_000_000), [
        "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
    ]),
    ("coordination.k8s.io/v1/Lease", named(spec={"leaseDurationSeconds": 0}), [
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"
    ]),
    ("rbac.authorization.k8s.io/v1/ClusterRole", {"metadata": {"name": "system:a"}, "rules": []}, []),
    ("rbac.authorization.k8s.io/v1/ClusterRole", named(rules=[{"verbs": []}]), [
        "rules[0].verbs: Required value",
        "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
        "rules[0].resources: Required value: resource rules must supply at least one resource",
    ]),
    ("admissionregistration.k8s.io/v1/ValidatingWebhookConfiguration", named(webhooks=[{"name": "a.b.c"}]), [
        "webhooks[0].admissionReviewVersions: Required value",
        "webhooks[0].clientConfig: Required value",
        "webhooks[0].sideEffects: Required value",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "found", "expected"), OTHERS)
def test_all_causes_of_invalid_objects_of_other_kinds_are_reported(name: str, found: Json, expected: list[str]) -> None:
    lines = causes(name, found)
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


def put(path: str, value: Any) -> Edit:
    def edit(found: Json) -> None:
        *steps, last = path.split(".")
        part: Any = found
        for step in steps:
            part = part[int(step)] if isinstance(part, list) else part[step]
        part[last] = value

    return edit


_SECRET = {"metadata": {"name": "s"}, "data": {"a": "eA=="}}
UPDATES: list[tuple[str, Json, Edit, list[str]]] = [
    ("v1/Pod", pod(), put("spec.containers.0.image", "j:2"), []),
    ("v1/Pod", pod(), put("spec.tolerations", [{"operator": "Exists"}]), []),
    ("v1/Pod", pod(), put("spec.activeDeadlineSeconds", 5), []),
    ("v1/Pod", pod(), put("metadata.labels", {"a": "b"}), []),
    ("v1/Pod", pod(), put("spec.containers.0.command", ["x"]), ["spec: Forbidden: pod updates may not change fields"]),
    ("v1/Pod", pod(), put("spec.nodeName", "n"), ["spec: Forbidden: pod updates may not change fields other than"]),
    ("v1/Pod", pod(activeDeadlineSeconds=5), put("spec.activeDeadlineSeconds", 6), ["spec.activeDeadlineSeconds: "]),
    ("v1/Pod", pod(tolerations=[{"operator": "Exists"}]), put("spec.tolerations", []), ["spec.tolerations: Forbidden"]),
    ("v1/Pod", pod(schedulingGates=[{"name": "g"}]), put("spec.schedulingGates", []), []),
    ("v1/Pod", pod(), put("spec.schedulingGates", [{"name": "g"}]), [
        "spec.schedulingGates[0].name: Forbidden: only deletion"
    ]),
    ("apps/v1/Deployment", deployment(), put("spec.replicas", 3), []),
    ("apps/v1/Deployment", deployment(), put("spec.selector", {"matchExpressions": [
        {"key": "app", "operator": "Exists"}]}), ["spec.selector: Invalid value: "]),
    ("apps/v1/StatefulSet", deployment(), put("spec.replicas", 3), []),
    ("apps/v1/StatefulSet", deployment(), put("spec.serviceName", "x"), ["spec: Forbidden: updates to statefulset"]),
    ("batch/v1/Job", job(), put("spec.parallelism", 3), []),
    ("batch/v1/Job", job(), put("spec.template.spec.containers.0.image", "j"), ["spec.template: Invalid value: "]),
    ("batch/v1/Job", job(suspend=True), put("spec.template.spec.nodeSelector", {"a": "b"}), []),
    ("batch/v1/Job", {**job(suspend=True), "status": {"startTime": "2025-01-01T00:00:00Z"}},
     put("spec.template.spec.nodeSelector", {"a": "b"}), ["spec.template: Invalid value: "]),
    ("batch/v1/Job", job(), put("spec.completions", 3), ["spec.completions: Invalid value: 3: field is immutable"]),
    ("v1/Service", named(spec={"clusterIP": "10.96.0.2", "ports": [{"port": 1}]}), put("spec.clusterIP", "10.96.0.3"),
     ['spec.clusterIPs[0]: Invalid value: ["10.96.0.3"]: may not change once set']),
    ("v1/PersistentVolumeClaim", claim(), put("spec.volumeName", "v"), []),
    ("v1/PersistentVolumeClaim", claim(), put("spec.accessModes", ["ReadWriteMany"]), ["spec: Forbidden: spec is imm"]),
    ("v1/Secret", _SECRET, put("data", {"a": "eQ=="}), []),
    ("v1/Secret", _SECRET, put("type", "x"), ['type: Invalid value: "x": field is immutable']),
    ("v1/Secret", {**_SECRET, "immutable": True}, put("data", {"a": "eQ=="}), [
        "data: Forbidden: field is immutable when `immutable` is set"]),
    ("v1/ConfigMap", named(immutable=True), put("immutable", False), ["immutable: Forbidden: field is immutable when"]),
    ("scheduling.k8s.io/v1/PriorityClass", named(value=1), put("value", 2), ["value: Forbidden: may not be changed"]),
    ("scheduling.k8s.io/v1alpha1/Workload", workload(group()), put("spec.podGroups.0.policy.gang.minCount", 3),
     ["podGroups: Invalid value: "]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "edit", "expected"), UPDATES)
def test_an_update_of_an_immutable_field_is_refused(name: str, old: Json, edit: Edit, expected: list[str]) -> None:
    assert causes(name, copy.deepcopy(old)) == []
    before = copy.deepcopy(old)
    assert causes(name, before) == []
    found = copy.deepcopy(before)
    edit(found)
    lines = causes(name, found, before)
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(("version", "name", "free"), [("1.36", "v1alpha2", False), ("1.37", "v1beta1", True)])
def test_the_minimum_of_a_gang_is_immutable_before_1_37(version: str, name: str, free: bool) -> None:
    full = f"scheduling.k8s.io/{name}/PodGroup"
    old = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    assert causes(full, old, version=version) == []
    found = copy.deepcopy(old)
    found["spec"]["schedulingPolicy"]["gang"]["minCount"] = 3  # type: ignore[index]
    lines = causes(full, found, old, version)
    assert lines == [] if free else [line.partition(":")[0] for line in lines] == ["spec.schedulingPolicy"]
    found["spec"]["schedulingPolicy"] = {"basic": {}}  # type: ignore[index]
    assert causes(full, found, old, version)


_RAN = {"startTime": "2025-01-01T00:00:00Z", "conditions": [{"type": "Suspended", "status": "True"}]}


@pytest.mark.parametrize(
    ("version", "status", "change", "wrong"),
    [
        ("1.35", {}, {"nodeSelector": {"a": "b"}}, ""),
        ("1.35", {}, {"affinity": {"podAffinity": {}}}, "spec.template"),
        ("1.35", {}, {"resources": {"requests": {"cpu": "1"}}}, "spec.template"),
        ("1.35", _RAN, {"nodeSelector": {"a": "b"}}, "spec.template"),
        ("1.37", {}, {"resources": {"requests": {"cpu": "1"}}}, ""),
        ("1.37", {}, {"image": "other"}, "spec.template.spec"),
        ("1.37", _RAN, {"nodeSelector": {"a": "b"}}, ""),
        ("1.37", _RAN | {"active": 1}, {"nodeSelector": {"a": "b"}}, "spec.template"),
    ],
)
def test_a_suspended_job_may_change_its_scheduling_directives(
    version: str, status: Json, change: Json, wrong: str
) -> None:
    old: Json = {**job(suspend=True), "status": status}
    assert causes("batch/v1/Job", old, version=version) == []
    found = copy.deepcopy(old)
    spec = found["spec"]["template"]["spec"]
    (spec["containers"][0] if change.keys() & {"image", "resources"} else spec).update(change)
    lines = causes("batch/v1/Job", found, old, version)
    assert [line.partition(":")[0] for line in lines] == ([wrong] if wrong else [])


def test_pod_group_templates_have_at_most_four_levels() -> None:
    template: Json = {"name": "leaf", "schedulingPolicy": {"basic": {}}}
    spec: Json = {"podGroupTemplates": [template]}
    for level in range(5):
        composite = {"name": f"c{level}", "schedulingPolicy": {"basic": {}}, **spec}
        spec = {"compositePodGroupTemplates": [composite]}
    lines = causes("scheduling.k8s.io/v1beta1/Workload", {"metadata": {"name": "w"}, "spec": spec}, version="1.37")
    assert any("maximum template hierarchy depth is 4" in line for line in lines)


def test_no_finalizer_is_added_to_an_object_that_is_being_deleted() -> None:
    old = meta(finalizers=["a.b/c"], deletionTimestamp="2025-01-01T00:00:00Z")
    found = copy.deepcopy(old)
    found["metadata"]["finalizers"].append("a.b/d")
    assert causes("v1/Pod", found, old)[0].startswith("metadata.finalizers: Forbidden: no new finalizers can be added")


def test_a_stateful_set_may_mount_its_claim_templates_and_no_unknown_volume() -> None:
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "ghost", "mountPath": "/ghost"}]
    pod = {"containers": [{"name": "main", "image": "x", "volumeMounts": mounts}]}
    spec = {
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": pod},
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
    }
    lines = causes("apps/v1/StatefulSet", {"metadata": {"name": "db", "namespace": "default"}, "spec": spec})
    assert [line.rpartition(": ")[2] for line in lines] == ['"ghost"']
