"""The policies for namespaces of tenants on a real API server: what no queue is charged for is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.configuration import make_tenant_policies
from gpu_scheduler.webhook.policy import AdmissionPolicy
from tests.kubernetes.api import Api
from tests.kubernetes.helpers import eventually, pod

GPU = "nvidia.com/gpu"
MAP = {"annotations": {"gpu-scheduling-map": "0=node1:0"}}
SHARE = {"annotations": {"gpu-scheduler.io/gpu-milli": "500"}}
DAEMON = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]
}
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
RULES = AdmissionPolicy(frozenset({"gpu-scheduler"}), (GPU, "amd.com/gpu"))


def asks(number: str = "1", where: str = "containers", resource: str = GPU) -> Json:
    """The part of a spec that asks for GPUs; a pod must have a container too."""
    main = {"name": "main", "image": "any"}
    one = {"name": "gpus", "image": "any", "resources": {"limits": {resource: number}}}
    return {"containers": [main, one]} if where == "containers" else {"containers": [main], where: [one]}


@pytest.fixture
async def pods(api: Api, namespace: str) -> AsyncIterator[str]:
    """The path of the pods of a namespace in which the policies are in force."""
    made = []
    for name, spec in make_tenant_policies(RULES).items():
        own = f"{name}-{namespace}"
        where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
        binding = {"policyName": own, "validationActions": ["Deny"], "matchResources": where}
        for plural, body in (("validatingadmissionpolicies", spec), ("validatingadmissionpolicybindings", binding)):
            await api.must("POST", f"{REGISTRATION}/{plural}", {"metadata": {"name": own}, "spec": body})
            made.append(f"{REGISTRATION}/{plural}/{own}")
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"

    async def in_force() -> bool:
        wrong = (pod("a", **asks()), pod("a", nodeName="n"), pod("a", meta=SHARE, schedulerName="gpu-scheduler"))
        return all([(await api.ask("POST", path, one)).code == 403 for one in wrong])

    await eventually(in_force, "the policies to be in force")
    yield path
    for one in made:
        await api.must("DELETE", one)


REFUSED = {
    "another scheduler": (pod("a", **asks()), "spec.schedulerName: pods that ask for GPUs"),
    "an init container": (pod("a", **asks(where="initContainers")), "spec.schedulerName"),
    "another kind of GPU": (pod("a", **asks(resource="amd.com/gpu")), "spec.schedulerName"),
    "a forged owner": (pod("a", meta=DAEMON, **asks()), "spec.schedulerName"),
    "a map": (pod("a-0", meta=MAP), "denied request"),  # by two policies, and any one of them answers
    "a node": (pod("a", nodeName="node1"), "spec.nodeName: bypasses the scheduler"),
    "our map without a request": (pod("a-0", meta=MAP, schedulerName="gpu-scheduler"), "need a request for GPUs"),
    "our share": (pod("a", meta=SHARE, schedulerName="gpu-scheduler"), "need a request for GPUs"),
}
ACCEPTED = {
    "no GPUs": pod("a"),
    "none of them": pod("a", **asks("0")),
    "another resource": pod("a", **asks(resource="example.com/fpga")),
    "our scheduler": pod("a", schedulerName="gpu-scheduler", **asks()),
    "our map": pod("a-0", meta=MAP, schedulerName="gpu-scheduler", **asks()),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED)
async def test_pods_that_no_queue_is_charged_for_are_refused(api: Api, pods: str, body: Json, message: str) -> None:
    answer = await api.ask("POST", pods, body)
    assert (answer.code, message in answer.message) == (403, True), answer.message


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED)
async def test_other_pods_are_created(api: Api, pods: str, body: Json) -> None:
    answer = await api.ask("POST", pods, body)
    assert answer.code == 201, answer.message


@asynccontextmanager
async def bound(api: Api, pods: str, **spec: Any) -> AsyncIterator[str]:
    """Within the block, a pod on a node; its path. Pods without a node are deleted at once, whatever is asked."""
    path = pods.removesuffix("?dryRun=All")
    await api.must("POST", path, pod("a", **spec))
    await api.must("POST", f"{path}/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}})
    yield f"{path}/a"
    await api.must("DELETE", f"{path}/a", {"gracePeriodSeconds": 0})


@pytest.mark.parametrize(
    ("scheduler", "own", "grace", "code"),
    [
        ("gpu-scheduler", 5, 3601, 403),
        ("gpu-scheduler", 5, 3600, 200),
        ("gpu-scheduler", 5, None, 200),
        ("gpu-scheduler", 7200, None, 200),
        ("gpu-scheduler", 7200, 7201, 403),
        ("default-scheduler", 5, 3601, 200),
    ],
)
async def test_deletions_of_our_pods_take_no_longer_than_the_ceiling(
    api: Api, pods: str, scheduler: str, own: int, grace: int | None, code: int
) -> None:
    options: Json = {} if grace is None else {"gracePeriodSeconds": grace}
    async with bound(api, pods, schedulerName=scheduler, terminationGracePeriodSeconds=own) as path:
        one = await api.ask("DELETE", f"{path}?dryRun=All", options)
        every = await api.ask("DELETE", pods, options)
    assert (one.code, every.code) == (code, code), (one.message, every.message)
    assert ("gracePeriodSeconds: is longer than pods may take" in one.message) == (code == 403)


@pytest.mark.parametrize(("grace", "code"), [(3601, 403), (3600, 201), (None, 201)])
async def test_evictions_take_no_longer_than_the_ceiling(api: Api, pods: str, grace: int | None, code: int) -> None:
    options: Json = {} if grace is None else {"gracePeriodSeconds": grace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}, "deleteOptions": options}
    async with bound(api, pods, schedulerName="gpu-scheduler") as path:
        answer = await api.ask("POST", f"{path}/eviction?dryRun=All", body)
    assert answer.code == code, answer.message


@pytest.mark.parametrize("role", ["edit", "admin"])
async def test_the_roles_of_tenants_give_none_of_the_rights_that_tenants_must_not_have(api: Api, role: str) -> None:
    async def allowed() -> set[str]:
        found = await api.must("GET", f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{role}")
        rules = [one for one in found["rules"] or () if set(one["verbs"]) - {"get", "list", "watch"}]
        return {f"{group}/{name}" for one in rules for group in one["apiGroups"] for name in one["resources"]}

    written = await eventually(allowed, "the rules of the role, which a controller gathers")
    assert {"/pods", "/pods/eviction"} <= written
    core = {"/pods/status", "/pods/binding", "/bindings", "/nodes", "/namespaces", "/*", "/pods/*"}
    others = {"scheduling.k8s.io/priorityclasses", "gpu-scheduler.io/queues"}
    assert not written & (core | others)
    assert not any("*" in one for one in written)
