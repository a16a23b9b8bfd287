"""What the scheduler relies on, tested on a real API server."""

from __future__ import annotations

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.api import MERGE, Api
from tests.kubernetes.helpers import Pods, eventually, pod

GANG_API = {"1.35": "v1alpha1", "1.36": "v1alpha2", "1.37": "v1beta1"}
ANNOTATION_LIMIT = 262_144
LEASES = "/apis/coordination.k8s.io/v1/namespaces"


@pytest.fixture
def pods(api: Api, namespace: str) -> Pods:
    """The pods of the test's namespace."""
    return Pods(api, namespace)


@pytest.fixture
def gangs(minor: str) -> str:
    """The API path of native gangs in this version."""
    if minor not in GANG_API:
        pytest.skip(f"Kubernetes {minor} has no native gangs that we know")
    return f"/apis/scheduling.k8s.io/{GANG_API[minor]}"


# -- the server


async def test_server_is_ready_and_says_its_version(api: Api, minor: str) -> None:
    assert (await api.ask("GET", "/readyz")).message == "ok"
    assert minor >= "1.35"


async def test_a_user_is_refused_until_a_role_allows_the_request(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    refused = await api.ask("GET", path, impersonate_user="somebody")
    assert (refused.code, refused.reason) == (403, "Forbidden")
    rules = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    await api.must(
        "POST",
        f"{rules}/roles",
        {"metadata": {"name": "reader"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]},
    )
    await api.must(
        "POST",
        f"{rules}/rolebindings",
        {
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}],
        },
    )

    async def allowed() -> bool:
        return (await api.ask("GET", path, impersonate_user="somebody")).code == 200

    await eventually(allowed, "the role to count")
    assert (await api.ask("POST", path, pod("a"), impersonate_user="somebody")).code == 403


# -- native gangs


async def test_native_gang_kinds_are_served(api: Api, gangs: str, minor: str) -> None:
    served = {item["name"] for item in (await api.must("GET", gangs))["resources"]}
    wanted = {"workloads"} if minor == "1.35" else {"workloads", "podgroups", "podgroups/status"}
    assert wanted <= served


def _workload(**gang: object) -> Json:
    group = {"name": "workers", "policy": {"gang": {"minCount": 2, **gang}}}
    return {"metadata": {"name": "job"}, "spec": {"podGroups": [group]}}


async def test_a_workload_of_135_drops_a_gang_timeout_and_refuses_strict_requests(
    api: Api, gangs: str, minor: str, namespace: str
) -> None:
    if minor != "1.35":
        pytest.skip("only 1.35 writes the policy in the Workload's podGroups")
    path = f"{gangs}/namespaces/{namespace}/workloads"
    strict = await api.ask("POST", f"{path}?fieldValidation=Strict", _workload(timeout=30))
    assert strict.code == 400
    assert "timeout" in strict.message
    made = await api.must("POST", path, _workload(timeout=30))
    assert made["spec"]["podGroups"][0]["policy"] == {"gang": {"minCount": 2}}
    assert "status" not in made


async def test_pod_of_135_keeps_its_workload_reference(pods: Pods, minor: str) -> None:
    if minor != "1.35":
        pytest.skip("workloadRef is a field of 1.35 alone")
    reference = {"name": "job", "podGroup": "workers", "podGroupReplicaKey": "0"}
    assert (await pods.create(pod("a", workloadRef=reference)))["spec"]["workloadRef"] == reference


async def test_a_pod_group_with_a_finalizer_can_be_deleted(api: Api, gangs: str, minor: str, namespace: str) -> None:
    if minor in ("1.35", "1.36"):
        pytest.skip("the finalizer is new in 1.37")
    path = f"{gangs}/namespaces/{namespace}/podgroups"
    body = {"metadata": {"name": "workers"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    await api.must("POST", path, body)

    async def protected() -> bool:
        found = await api.must("GET", f"{path}/workers")
        return "scheduling.k8s.io/podgroup-protection" in found["metadata"].get("finalizers", ())

    await eventually(protected, "the finalizer")
    await api.must("DELETE", f"{path}/workers")

    async def gone() -> bool:
        return (await api.ask("GET", f"{path}/workers")).code == 404

    await eventually(gone, "the group to be gone")


async def test_pod_keeps_its_scheduling_group_from_136_on(pods: Pods, gangs: str, minor: str) -> None:
    if minor == "1.35":
        pytest.skip("schedulingGroup is new in 1.36")
    group = {"podGroupName": "workers"}
    assert (await pods.create(pod("a", schedulingGroup=group)))["spec"]["schedulingGroup"] == group


# -- binding


async def test_binding_merges_its_annotations_and_labels_into_the_pod(pods: Pods) -> None:
    await pods.create(pod("a", meta={"annotations": {"old": "1", "both": "1"}, "labels": {"old": "1"}}))
    bound = await pods.bind("a", "node1", annotations={"both": "2", "devices": "0,1"}, labels={"new": "1"})
    assert (bound.code, bound.body["kind"], bound.body["status"]) == (201, "Status", "Success")
    found = await pods.get("a")
    assert found["spec"]["nodeName"] == "node1"
    assert found["metadata"]["annotations"] == {"old": "1", "both": "2", "devices": "0,1"}
    assert found["metadata"]["labels"] == {"old": "1", "new": "1"}


async def test_bound_pod_cannot_be_bound_again(pods: Pods) -> None:
    await pods.create(pod("a"))
    assert (await pods.bind("a", "node1")).code == 201
    for node in ("node1", "node2"):
        again = await pods.bind("a", node, annotations={"devices": "7"})
        assert (again.code, again.reason) == (409, "Conflict")
        assert "is already assigned to node" in again.message
    assert "devices" not in (await pods.get("a"))["metadata"].get("annotations", {})


async def test_a_bind_with_the_uid_of_a_former_pod_is_refused(pods: Pods) -> None:
    old = (await pods.create(pod("a")))["metadata"]["uid"]
    await pods.delete("a")
    new = (await pods.create(pod("a")))["metadata"]["uid"]
    refused = await pods.bind("a", "node1", uid=old)
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert (await pods.bind("a", "node1", uid=new)).code == 201


async def test_binding_with_an_old_resource_version_fails_once_the_attempt_was_raised(api: Api, pods: Pods) -> None:
    made = (await pods.create(pod("a")))["metadata"]
    raised = await api.must(
        "PATCH",
        f"{pods.path}/a/status",
        {"metadata": {"annotations": {"gpu-scheduler.io/attempt": "1"}}},
        content_type=MERGE,
    )
    assert raised["metadata"]["annotations"] == {"gpu-scheduler.io/attempt": "1"}
    late = await pods.bind("a", "node1", uid=made["uid"], resourceVersion=made["resourceVersion"])
    assert (late.code, late.reason) == (409, "Conflict")
    assert "nodeName" not in (await pods.get("a"))["spec"]
    fresh = raised["metadata"]["resourceVersion"]
    assert (await pods.bind("a", "node1", uid=made["uid"], resourceVersion=fresh)).code == 201


# -- deleting


async def test_the_body_of_a_delete_replaces_its_query(api: Api, pods: Pods) -> None:
    for name in ("a", "b", "c"):
        await pods.create(pod(name))
        assert (await pods.bind(name, "node1")).code == 201
    await api.must("DELETE", f"{pods.path}/a?gracePeriodSeconds=0", {"apiVersion": "v1", "kind": "DeleteOptions"})
    assert (await pods.get("a"))["metadata"]["deletionGracePeriodSeconds"] == 30
    await pods.delete("b", gracePeriodSeconds=0)
    assert await pods.gone("b")
    await api.must("DELETE", f"{pods.path}/c?gracePeriodSeconds=0")
    assert await pods.gone("c")


async def test_delete_honours_a_uid(pods: Pods) -> None:
    made = (await pods.create(pod("a")))["metadata"]
    refused = await pods.delete("a", preconditions={"uid": "00000000-0000-0000-0000-000000000000"})
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert (await pods.delete("a", preconditions={"uid": made["uid"]})).code == 200
    assert await pods.gone("a")


async def test_eviction_honours_a_disruption_budget(api: Api, pods: Pods, nodes: list[str], namespace: str) -> None:
    labels = {"app": "kept"}
    for name in ("a", "b"):
        await pods.create(pod(name, meta={"labels": labels}, terminationGracePeriodSeconds=1))
        assert (await pods.bind(name, nodes[0])).code == 201
        await pods.wait(name, "Running")
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    await api.must("POST", budgets, {"metadata": {"name": "kept"}, "spec": spec})

    async def one_allowed() -> bool:
        status = (await api.must("GET", f"{budgets}/kept")).get("status", {})
        return bool(status.get("disruptionsAllowed") == 1)

    await eventually(one_allowed, "the budget to allow one eviction")
    first = await api.ask("POST", f"{pods.path}/a/eviction", {"metadata": {"name": "a"}})
    assert first.code == 201
    second = await api.ask("POST", f"{pods.path}/b/eviction", {"metadata": {"name": "b"}})
    assert (second.code, second.reason) == (429, "TooManyRequests")
    assert "deletionTimestamp" not in (await pods.get("b"))["metadata"]


# -- limits and swaps


async def test_a_lease_has_a_limit_on_the_bytes_of_its_annotations(api: Api, namespace: str) -> None:
    path = f"{LEASES}/{namespace}/leases"
    full = {"committed": "x" * (ANNOTATION_LIMIT - len("committed"))}
    await api.must("POST", path, {"metadata": {"name": "leader", "annotations": full}, "spec": {}})
    over = {"metadata": {"annotations": {"committed": full["committed"] + "x"}}}
    refused = await api.ask("PATCH", f"{path}/leader", over, content_type=MERGE)
    assert (refused.code, refused.reason) == (422, "Invalid")
    assert str(ANNOTATION_LIMIT) in refused.message


async def test_lease_swap_with_an_old_resource_version_is_a_conflict(api: Api, namespace: str) -> None:
    path = f"{LEASES}/{namespace}/leases"
    lease = await api.must("POST", path, {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a"}})
    await api.must("PUT", f"{path}/leader", {**lease, "spec": {"holderIdentity": "b"}})
    late = await api.ask("PUT", f"{path}/leader", {**lease, "spec": {"holderIdentity": "c"}})
    assert (late.code, late.reason) == (409, "Conflict")
    assert (await api.must("GET", f"{path}/leader"))["spec"]["holderIdentity"] == "b"


async def test_objects_beyond_the_limits_of_etcd_and_of_the_server_are_refused(api: Api, pods: Pods) -> None:
    def large(size: int) -> Json:
        return pod("a", containers=[{"name": "main", "image": "any", "args": ["x" * size]}])

    etcd = await api.ask("POST", pods.path, large(1_980_000))
    assert etcd.code == 500
    assert "request is too large" in etcd.message
    server = await api.ask("POST", pods.path, large(3_300_000))
    assert (server.code, server.reason) == (413, "RequestEntityTooLarge")
    assert (await api.ask("POST", pods.path, large(512 * 1024))).code == 201
