"""Gangs in the API of each version of Kubernetes, and in those of Volcano and scheduler-plugins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.running import Cluster, Kube, eventually, opened, pod

Versions = Callable[[str], Cluster]
GROUP = "scheduling.k8s.io"
SERVED = {"1.35": "v1alpha1", "1.36": "v1alpha2", "1.37": "v1beta1"}


@pytest.fixture(params=list(SERVED))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def there(versions: Versions, version: str, namespace: str) -> Iterator[Kube]:
    """kubectl in a namespace of a cluster of a version."""
    with opened(versions(version), namespace) as kube:
        yield kube


def gang(version: str, count: int = 2, **policy: Any) -> Json:
    """A Workload of one gang, as a version defines it."""
    inner = {"name": "workers", "policy": {"gang": {"minCount": count, **policy}}}
    if version != "1.35":
        inner["schedulingPolicy"] = inner.pop("policy")
    field = "podGroups" if version == "1.35" else "podGroupTemplates"
    meta = {"name": "train"}
    return {"apiVersion": f"{GROUP}/{SERVED[version]}", "kind": "Workload", "metadata": meta, "spec": {field: [inner]}}


def pod_group(version: str, count: int = 2) -> Json:
    """A PodGroup with its own policy, as 1.36 and later define it."""
    spec = {"schedulingPolicy": {"gang": {"minCount": count}}}
    return {"apiVersion": f"{GROUP}/{SERVED[version]}", "kind": "PodGroup", "metadata": {"name": "train"}, "spec": spec}


def test_a_version_serves_its_own_workload_api_and_no_other(there: Kube, version: str) -> None:
    lines = there("api-resources", f"--api-group={GROUP}", "--no-headers").splitlines()
    served = {line.split()[0]: line.split()[-3] for line in lines}
    assert served["workloads"] == f"{GROUP}/{SERVED[version]}"
    assert ("podgroups" in served) == (version != "1.35")
    for other in set(SERVED.values()) - {SERVED[version]}:
        found = {**gang(version), "apiVersion": f"{GROUP}/{other}"}
        assert "no matches for kind" in there.fails("create", "-f", "-", stdin=json.dumps(found))


def test_the_server_says_its_version_and_its_features(there: Kube, version: str) -> None:
    assert json.loads(there("get", "--raw", "/version"))["gitVersion"].startswith(f"v{version}.")
    metrics = there("get", "--raw", "/metrics").splitlines()
    assert [
        line for line in metrics if re.fullmatch(r'kubernetes_feature_enabled\{name="GenericWorkload",.*\} 1', line)
    ]


def test_a_workload_is_kept_as_written_and_listed(there: Kube, version: str) -> None:
    there.apply(gang(version, 4))
    ((field, [written]),) = gang(version, 4)["spec"].items()
    (found,) = there.get("workload", "train")["spec"][field]
    assert found | written == found
    assert there("get", "workloads").splitlines()[1].startswith("train ")
    there("delete", "workload", "train")


def test_a_gang_without_members_is_refused_by_the_name_of_its_field(there: Kube, version: str) -> None:
    complaint = there.fails("create", "-f", "-", stdin=json.dumps(gang(version, 0)))
    assert "minCount" in complaint


def test_get_podgroups_means_the_kind_that_a_user_of_the_version_expects(there: Kube, version: str) -> None:
    group = "scheduling.volcano.sh/v1beta1" if version == "1.35" else f"{GROUP}/{SERVED[version]}"
    assert f"/apis/{group}/namespaces/{there.namespace}/podgroups" in there.run("get", "podgroups", "-v=6").stderr


def test_a_pod_names_its_gang_in_the_field_of_the_version(there: Kube, version: str) -> None:
    reference: Json = {"podGroupName": "train"}
    field = "schedulingGroup"
    if version == "1.35":
        field, reference = "workloadRef", {"name": "train", "podGroup": "workers"}
    spec: Json = {"schedulerName": "none", field: reference}
    there.create(pod("member", **spec))
    found = there.get("pod", "member")["spec"]
    assert found[field] == reference
    changed = json.dumps({"spec": {field: None}})
    assert "spec" in there.fails("patch", "pod", "member", "--type=merge", "-p", changed)


def test_the_field_of_another_version_is_unknown(there: Kube, version: str) -> None:
    field = "schedulingGroup" if version == "1.35" else "workloadRef"
    spec: Json = {field: {"name": "x"}}
    complaint = there.fails("create", "-f", "-", stdin=json.dumps(pod("member", **spec)))
    assert f'unknown field "spec.{field}"' in complaint


# -- 1.35


@pytest.fixture(params=["1.35"])
def old(request: pytest.FixtureRequest, versions: Versions, namespace: str) -> Iterator[Kube]:
    """kubectl in a namespace of a cluster of 1.35."""
    with opened(versions(request.param), namespace) as kube:
        yield kube


@pytest.mark.local("Kubernetes has no such field")
def test_a_gang_of_1_35_may_have_a_timeout(old: Kube) -> None:
    old.apply(gang("1.35", 2, timeout=300))
    policy = old.get("workload", "train")["spec"]["podGroups"][0]["policy"]
    assert policy == {"gang": {"minCount": 2, "timeout": 300}}
    assert "timeout" in old.fails("create", "-f", "-", stdin=json.dumps(gang("1.35", 2, timeout="long")))


@pytest.mark.local("Kubernetes has no such subresource, and does not list the groups")
def test_a_workload_of_1_35_has_a_status_apart_from_its_spec(old: Kube) -> None:
    old.apply(gang("1.35"))
    condition = {
        "type": "Scheduled",
        "status": "True",
        "reason": "Placed",
        "message": "all there",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    patch = {"status": {"conditions": [condition]}, "spec": {"podGroups": []}}
    old("patch", "workload", "train", "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    found = old.get("workload", "train")
    assert found["status"]["conditions"] == [condition]
    assert len(found["spec"]["podGroups"]) == 1
    old.wait("workload/train", "condition=Scheduled")
    assert re.search(r"workers .*Scheduled", old("get", "workload", "train"))


BAD_WORKLOADS: dict[str, tuple[Json, str]] = {
    "without groups": ({"podGroups": []}, "spec.podGroups"),
    "without a policy": ({"podGroups": [{"name": "a"}]}, "policy"),
    "with two policies": ({"podGroups": [{"name": "a", "policy": {"basic": {}, "gang": {"minCount": 1}}}]}, "policy"),
    "with two groups of a name": ({"podGroups": [{"name": "a", "policy": {"basic": {}}}] * 2}, "Duplicate value"),
    "with a bad name": ({"podGroups": [{"name": "A_b", "policy": {"basic": {}}}]}, "podGroups[0].name"),
}


@pytest.mark.parametrize(("spec", "field"), BAD_WORKLOADS.values(), ids=list(BAD_WORKLOADS))
def test_a_workload_of_1_35_is_refused(old: Kube, spec: Json, field: str) -> None:
    assert field in old.fails("create", "-f", "-", stdin=json.dumps({**gang("1.35"), "spec": spec}))


# -- 1.36 and later


@pytest.fixture(params=["1.36", "1.37"])
def newer(request: pytest.FixtureRequest, versions: Versions, namespace: str) -> Iterator[tuple[str, Kube]]:
    """A version with native PodGroups, and kubectl in a namespace there."""
    with opened(versions(request.param), namespace) as kube:
        yield request.param, kube


def test_a_pod_group_has_a_status_apart_from_its_spec(newer: tuple[str, Kube]) -> None:
    version, kube = newer
    kube.apply(pod_group(version, 3))
    condition = {
        "type": "PodGroupScheduled" if version == "1.36" else "PodGroupInitiallyScheduled",
        "status": "True",
        "reason": "Scheduled",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    patch = json.dumps({"status": {"conditions": [condition]}})
    kube("patch", f"podgroups.{GROUP}", "train", "--subresource=status", "--type=merge", "-p", patch)
    assert re.search(r"train +Gang +<none> +Scheduled ", kube("get", f"podgroups.{GROUP}", "train"))
    assert kube.get(f"podgroups.{GROUP}", "train")["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3


def test_the_pods_of_a_group_run_when_they_are_bound(newer: tuple[str, Kube]) -> None:
    version, kube = newer
    member: Json = {"schedulerName": "this-test", "schedulingGroup": {"podGroupName": "train"}}
    kube.apply(pod_group(version), pod("p0", **member), pod("p1", **member))
    for number in range(2):
        target = {"apiVersion": "v1", "kind": "Node", "name": f"node{number + 1}"}
        name = f"p{number}"
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        kube("create", "--raw", kube.path(f"pods/{name}/binding"), "-f", "-", stdin=json.dumps(body))
    kube.wait_ready("p0", "p1")


# -- kinds of other projects


def volcano(name: str, spec: Json) -> Json:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_volcanos_groups_and_queues_are_served_in_every_version(there: Kube) -> None:
    there.apply(volcano("gang", {"minMember": 2, "queue": "default", "minTaskMember": {"worker": 2}}))
    resource = "podgroups.scheduling.volcano.sh"
    there("patch", resource, "gang", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Inqueue"}}')
    shown = there("get", resource, "gang").splitlines()
    assert [word for word in shown[0].split() if word in ("STATUS", "MINMEMBER")] == ["STATUS", "MINMEMBER"]
    assert shown[1].split()[1:3] == ["Inqueue", "2"]
    assert {"default", "root"} <= set(there.names("queues.scheduling.volcano.sh"))


def test_scheduler_plugins_groups_are_served_in_every_version(there: Kube) -> None:
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"minMember": 3, "scheduleTimeoutSeconds": 60},
    }
    there.apply(group)
    assert there.get("podgroups.scheduling.x-k8s.io", "gang")["spec"] == group["spec"]


@pytest.mark.local("the cluster brings the definitions, and Kubernetes does not")
def test_a_definition_that_is_deleted_comes_back_with_the_next_start(own: Callable[..., Cluster]) -> None:
    cluster = own("--runtime", "simulated", "--nodes", "1")
    cluster.start()
    name = "podgroups.scheduling.x-k8s.io"
    cluster.kubectl("delete", "crd", name)
    eventually(lambda: name not in cluster.kubectl("api-resources", "-o", "name"), "the kind to be gone")
    cluster.stop()
    cluster.start()
    assert name in cluster.kubectl("api-resources", "-o", "name")
