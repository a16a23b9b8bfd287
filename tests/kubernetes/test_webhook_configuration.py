"""The webhook configurations on a real API server, without a webhook: requests that fail are those that would reach
it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.webhook.configuration import make_configurations
from gpu_scheduler.webhook.policy import AdmissionPolicy
from tests.kubernetes.api import MERGE, Api
from tests.kubernetes.helpers import binding, eventually, pod

OURS = "gpu-scheduler"
SCHEDULER = "the-scheduler"
GROUP = "gpu-scheduler.io"
DEVICES = f"{GROUP}/devices"
MAP = "gpu-scheduling-map"
GANG = {"gang": {"minCount": 2}}
GANGS: dict[str, tuple[str, str, Json]] = {
    "1.35": ("Workload", "v1alpha1", {"podGroups": [{"name": "w", "policy": GANG}]}),
    "1.36": ("PodGroup", "v1alpha2", {"schedulingPolicy": GANG}),
    "1.37": ("PodGroup", "v1beta1", {"schedulingPolicy": GANG}),
}
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


class CalledWebhook:
    """Requests in one namespace; each returns the webhook that the API server tried to call, or ""."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def create(self, plural: str, body: Json, group: str = "/api/v1", **headers: str) -> str:
        return await self._ask("POST", f"{group}/namespaces/{self._namespace}/{plural}?dryRun=All", body, **headers)

    async def change(self, name: str, body: Json, subresource: str = "", **headers: str) -> str:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{name}{subresource}?dryRun=All"
        return await self._ask("PATCH", path, body, content_type=MERGE, **headers)

    async def _ask(self, method: str, path: str, body: Json, **headers: str) -> str:
        answer = await self._api.ask(method, path, body, **headers)
        found = re.search(rf'failed calling webhook "(\w+)\.{GROUP}"', answer.message)
        assert found or answer.code < 300, f"{method} {path}: {answer.code} {answer.message}"
        return found[1] if found else ""


@pytest.fixture
async def called(api: Api, namespace: str) -> AsyncIterator[CalledWebhook]:
    """A namespace in which every matching request fails, with a pod of ours and one of another scheduler."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    written = {"annotations": {DEVICES: "0", "other": "x"}}
    await api.must("POST", pods, pod("ours", meta=written, schedulerName=OURS))
    await api.must("POST", pods, pod("others", meta=written))
    await _allow_everything(api, namespace, SCHEDULER)
    rules = AdmissionPolicy(frozenset({OURS}), ("nvidia.com/gpu",), scheduler_account=SCHEDULER)
    made = []
    for found in make_configurations({"url": "https://127.0.0.1:1"}, rules, system_namespace="none", guard=True):
        found["metadata"]["name"] = f"webhook-{namespace}"
        for hook in found["webhooks"]:
            # Other tests share the cluster. And an ignored error of a match condition would not be seen.
            hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            hook["failurePolicy"] = "Fail"
        path = f"{REGISTRATION}/{found['kind'].lower()}s"
        await api.must("POST", path, found)
        made.append(f"{path}/webhook-{namespace}")
    called = CalledWebhook(api, namespace)

    async def in_force() -> bool:
        pods_called = await called.create("pods", pod("a", schedulerName=OURS))
        return bool(pods_called and await called.change("ours", {"metadata": {"annotations": {MAP: "x"}}}))

    await eventually(in_force, "the webhooks to be called")
    yield called
    for path in made:
        await api.must("DELETE", path)


async def _allow_everything(api: Api, namespace: str, user: str) -> None:
    """Gives a user all permissions in a namespace."""
    who = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    await api.must("POST", path, {"metadata": {"name": user}, "roleRef": role, "subjects": [who]})

    async def allowed() -> bool:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        return (await api.ask("GET", pods, impersonate_user=user)).code == 200

    await eventually(allowed, "the role to take effect")


def annotate(**annotations: str | None) -> Json:
    """A patch of annotations; `devices` and `map` stand for their long names."""
    names = {"devices": DEVICES, "map": MAP, "of_main": f"visible-devices.{GROUP}/main", "queue": f"{GROUP}/queue"}
    return {"metadata": {"annotations": {names.get(name, name): text for name, text in annotations.items()}}}


def workload(kind: str, scheduler: str, **spec: Any) -> Json:
    """A workload with a pod template, such as a Deployment."""
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": pod("x", schedulerName=scheduler)["spec"]}
    body = {"selector": {"matchLabels": labels}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "made"}, "spec": body}


async def test_the_webhook_is_called_for_our_pods_and_for_forged_pods_of_others(called: CalledWebhook) -> None:
    forged = {"annotations": {DEVICES: "0"}}
    assert await called.create("pods", pod("a", schedulerName=OURS)) == "pods"
    assert await called.create("pods", pod("a")) == ""
    assert await called.create("pods", pod("a", meta={"annotations": {"x": "y"}})) == ""
    assert await called.create("pods", pod("a", meta=forged)) == "reserved"
    assert await called.create("pods", pod("a", meta=forged), impersonate_user=SCHEDULER) == ""


async def test_the_webhook_is_called_for_a_bind_with_forged_annotations(called: CalledWebhook) -> None:
    forged = binding("others", "node1", annotations={DEVICES: "1"})
    assert await called.create("pods/others/binding", forged) == "reserved"
    assert await called.create("bindings", forged) == "reserved"
    assert await called.create("pods/others/binding", forged, impersonate_user=SCHEDULER) == ""
    assert await called.create("pods/others/binding", binding("others", "node1")) == ""


@pytest.mark.parametrize(
    ("name", "change", "subresource", "expected"),
    [
        pytest.param("ours", {"metadata": {"finalizers": ["example.com/f"]}}, "", "", id="finalizer"),
        pytest.param("ours", annotate(other="y"), "", "", id="others-annotation"),
        pytest.param("ours", annotate(map="0=node1:0"), "", "pods", id="map"),
        pytest.param("ours", annotate(queue="a"), "", "pods", id="option"),
        pytest.param("ours", annotate(map="0=node1:0"), "/status", "pods", id="map-with-the-status"),
        pytest.param("ours", {"metadata": {"labels": {"a": "b"}}}, "", "", id="label"),
        pytest.param("ours", {"metadata": {"labels": {"apps.kubernetes.io/pod-index": "1"}}}, "", "pods", id="index"),
        pytest.param("others", annotate(queue="a"), "", "", id="option-of-others"),
        pytest.param("others", annotate(devices="1"), "", "reserved", id="devices"),
        pytest.param("others", annotate(devices=None), "", "reserved", id="devices-removed"),
        pytest.param("others", {"metadata": {"annotations": None}}, "", "reserved", id="all-removed"),
        pytest.param("others", annotate(of_main="1"), "/status", "reserved", id="with-the-status"),
        pytest.param("others", {"status": {"message": "x"}}, "/status", "", id="status"),
        pytest.param("ours", {"status": {"message": "x"}}, "/status", "", id="our-status"),
    ],
)
async def test_the_webhook_is_called_for_changes_that_concern_us(
    called: CalledWebhook, name: str, change: Json, subresource: str, expected: str
) -> None:
    assert await called.change(name, change, subresource) == expected
    assert await called.change(name, change, subresource, impersonate_user=SCHEDULER) == ""


async def test_the_webhook_is_called_for_ephemeral_containers_of_our_pods(called: CalledWebhook) -> None:
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "any"}]}}
    assert await called.change("ours", debug, "/ephemeralcontainers") == "pods"
    assert await called.change("others", debug, "/ephemeralcontainers") == ""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("StatefulSet", "statefulsets"), ("Deployment", "jobs"), ("ReplicaSet", "jobs")],
    ids=["statefulset", "deployment", "replicaset"],
)
async def test_the_webhook_is_called_for_workloads_that_name_our_scheduler(
    called: CalledWebhook, kind: str, expected: str
) -> None:
    plural = f"{kind.lower()}s"
    assert await called.create(plural, workload(kind, OURS), "/apis/apps/v1") == expected
    assert await called.create(plural, workload(kind, "default-scheduler"), "/apis/apps/v1") == ""


async def test_the_webhook_is_called_for_a_bind_that_changes_the_map_or_the_index(called: CalledWebhook) -> None:
    for meta in ({"annotations": {MAP: "0=node1:0"}}, {"labels": {"apps.kubernetes.io/pod-index": "1"}}):
        late = binding("others", "node1")
        late["metadata"] |= meta
        for path in ("pods/others/binding", "bindings"):
            assert await called.create(path, late) == "reserved"
            assert await called.create(path, late, impersonate_user=SCHEDULER) == "reserved"


async def test_the_webhook_is_called_for_native_gangs_with_our_annotations(called: CalledWebhook, minor: str) -> None:
    kind, version, spec = GANGS.get(minor, GANGS["1.37"])
    body = {"apiVersion": f"scheduling.k8s.io/{version}", "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    ours = {**body, "metadata": {"name": "a", "annotations": {f"{GROUP}/queue": "a"}}}
    plural, group = f"{kind.lower()}s", f"/apis/scheduling.k8s.io/{version}"
    assert await called.create(plural, ours, group) == "gangs"
    assert await called.create(plural, body, group) == ""
