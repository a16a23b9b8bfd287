"""The webhook configurations on a real API server, with nobody behind them: what fails is what we are asked about."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_scheduler.webhook.configuration import make_configurations
from gpu_scheduler.webhook.policy import AdmissionPolicy
from tests.kubernetes.api import MERGE, Api, Json
from tests.kubernetes.asking import binding, eventually, pod

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


class Asked:
    """Requests in one namespace; each answers which webhook the API server tried to call, "" for none."""

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
async def asked(api: Api, namespace: str) -> AsyncIterator[Asked]:
    """A namespace in which every request that matches fails, with a pod of ours and one of others in it."""
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
            # Other tests have the same cluster. And where an error of a condition were ignored, none would be seen.
            hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            hook["failurePolicy"] = "Fail"
        path = f"{REGISTRATION}/{found['kind'].lower()}s"
        await api.must("POST", path, found)
        made.append(f"{path}/webhook-{namespace}")
    asked = Asked(api, namespace)

    async def in_force() -> bool:
        pods_asked = await asked.create("pods", pod("a", schedulerName=OURS))
        return bool(pods_asked and await asked.change("ours", {"metadata": {"annotations": {MAP: "x"}}}))

    await eventually(in_force, "the webhooks to be called")
    yield asked
    for path in made:
        await api.must("DELETE", path)


async def _allow_everything(api: Api, namespace: str, user: str) -> None:
    """Lets a user do what an administrator does in a namespace."""
    who = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    await api.must("POST", path, {"metadata": {"name": user}, "roleRef": role, "subjects": [who]})

    async def allowed() -> bool:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        return (await api.ask("GET", pods, impersonate_user=user)).code == 200

    await eventually(allowed, "the role to count")


def noted(**annotations: str | None) -> Json:
    """A patch of annotations; `devices` and `map` stand for their long names."""
    names = {"devices": DEVICES, "map": MAP, "of_main": f"visible-devices.{GROUP}/main", "queue": f"{GROUP}/queue"}
    return {"metadata": {"annotations": {names.get(name, name): text for name, text in annotations.items()}}}


def maker(kind: str, scheduler: str, **spec: Any) -> Json:
    """A Deployment or the like."""
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": pod("x", schedulerName=scheduler)["spec"]}
    body = {"selector": {"matchLabels": labels}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "made"}, "spec": body}


async def test_our_pods_are_asked_about_and_others_only_when_forged(asked: Asked) -> None:
    forged = {"annotations": {DEVICES: "0"}}
    assert await asked.create("pods", pod("a", schedulerName=OURS)) == "pods"
    assert await asked.create("pods", pod("a")) == ""
    assert await asked.create("pods", pod("a", meta={"annotations": {"x": "y"}})) == ""
    assert await asked.create("pods", pod("a", meta=forged)) == "reserved"
    assert await asked.create("pods", pod("a", meta=forged), impersonate_user=SCHEDULER) == ""


async def test_a_bind_is_asked_about_when_somebody_forges_with_it(asked: Asked) -> None:
    forged = binding("others", "node1", annotations={DEVICES: "1"})
    assert await asked.create("pods/others/binding", forged) == "reserved"
    assert await asked.create("bindings", forged) == "reserved"
    assert await asked.create("pods/others/binding", forged, impersonate_user=SCHEDULER) == ""
    assert await asked.create("pods/others/binding", binding("others", "node1")) == ""


@pytest.mark.parametrize(
    ("name", "change", "subresource", "expected"),
    [
        pytest.param("ours", {"metadata": {"finalizers": ["example.com/f"]}}, "", "", id="finalizer"),
        pytest.param("ours", noted(other="y"), "", "", id="others-annotation"),
        pytest.param("ours", noted(map="0=node1:0"), "", "pods", id="map"),
        pytest.param("ours", noted(queue="a"), "", "pods", id="option"),
        pytest.param("ours", noted(map="0=node1:0"), "/status", "pods", id="map-with-the-status"),
        pytest.param("ours", {"metadata": {"labels": {"a": "b"}}}, "", "", id="label"),
        pytest.param("ours", {"metadata": {"labels": {"apps.kubernetes.io/pod-index": "1"}}}, "", "pods", id="index"),
        pytest.param("others", noted(queue="a"), "", "", id="option-of-others"),
        pytest.param("others", noted(devices="1"), "", "reserved", id="devices"),
        pytest.param("others", noted(devices=None), "", "reserved", id="devices-removed"),
        pytest.param("others", {"metadata": {"annotations": None}}, "", "reserved", id="all-removed"),
        pytest.param("others", noted(of_main="1"), "/status", "reserved", id="with-the-status"),
        pytest.param("others", {"status": {"message": "x"}}, "/status", "", id="status"),
        pytest.param("ours", {"status": {"message": "x"}}, "/status", "", id="our-status"),
    ],
)
async def test_changes_are_asked_about_when_they_concern_us(
    asked: Asked, name: str, change: Json, subresource: str, expected: str
) -> None:
    assert await asked.change(name, change, subresource) == expected
    assert await asked.change(name, change, subresource, impersonate_user=SCHEDULER) == ""


async def test_ephemeral_containers_of_our_pods_are_asked_about(asked: Asked) -> None:
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "any"}]}}
    assert await asked.change("ours", debug, "/ephemeralcontainers") == "pods"
    assert await asked.change("others", debug, "/ephemeralcontainers") == ""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("StatefulSet", "statefulsets"), ("Deployment", "jobs"), ("ReplicaSet", "jobs")],
    ids=["statefulset", "deployment", "replicaset"],
)
async def test_what_makes_pods_is_asked_about_when_it_names_us(asked: Asked, kind: str, expected: str) -> None:
    plural = f"{kind.lower()}s"
    assert await asked.create(plural, maker(kind, OURS), "/apis/apps/v1") == expected
    assert await asked.create(plural, maker(kind, "default-scheduler"), "/apis/apps/v1") == ""


async def test_a_bind_is_asked_about_when_it_brings_what_was_settled_before(asked: Asked) -> None:
    for meta in ({"annotations": {MAP: "0=node1:0"}}, {"labels": {"apps.kubernetes.io/pod-index": "1"}}):
        late = binding("others", "node1")
        late["metadata"] |= meta
        for path in ("pods/others/binding", "bindings"):
            assert await asked.create(path, late) == "reserved"
            assert await asked.create(path, late, impersonate_user=SCHEDULER) == "reserved"


async def test_native_gangs_are_asked_about_when_they_carry_annotations_of_ours(asked: Asked, minor: str) -> None:
    kind, version, spec = GANGS.get(minor, GANGS["1.37"])
    body = {"apiVersion": f"scheduling.k8s.io/{version}", "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    ours = {**body, "metadata": {"name": "a", "annotations": {f"{GROUP}/queue": "a"}}}
    plural, group = f"{kind.lower()}s", f"/apis/scheduling.k8s.io/{version}"
    assert await asked.create(plural, ours, group) == "gangs"
    assert await asked.create(plural, body, group) == ""
