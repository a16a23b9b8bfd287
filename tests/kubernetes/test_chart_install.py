"""The life of a release on a real API server, from its first to its last object."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.k8s.objects import Json
from tests.kubernetes.api import MERGE, STRATEGIC, Api
from tests.kubernetes.charts import CHARTS, run_helm
from tests.kubernetes.combinations import CA, COMBINATIONS, SYSTEM
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.helpers import eventually
from tests.kubernetes.nodes import simulated_nodes

RELEASE = "gpu-scheduler"
KINDS_OF_OTHERS = {
    "servicemonitors.monitoring.coreos.com": "ServiceMonitor",
    "certificates.cert-manager.io": "Certificate",
    "issuers.cert-manager.io": "Issuer",
}
OURS = ("placements.gpu-scheduler.io", "queues.gpu-scheduler.io")
STAYS = {
    *(f"customresourcedefinitions/{name}" for name in OURS),
    "apiservices/v1alpha1.gpu-scheduler.io",  # the API server's own entries for the two
    f"namespaces/{SYSTEM}",
    "serviceaccounts/default",
    "configmaps/kube-root-ca.crt",
}
"""What Helm never deletes: definitions, and the namespace of --create-namespace with its default objects."""

IGNORED = ("events", "leases", "endpoints", "endpointslices", "componentstatuses", "flowschemas", "ipaddresses")
"""What the API server writes by itself at any time."""

SECRET = f"/api/v1/namespaces/{SYSTEM}/secrets/gpu-scheduler-webhook-tls"
CONFIGURATIONS = [
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/gpu-scheduler-webhook"
    for kind in ("mutating", "validating")
]
GUARD = "reserved.gpu-scheduler.io"

pytestmark = pytest.mark.xdist_group("charts")


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncIterator[Api]:
    """The control plane's API, as an administrator."""
    async with Api(plane.access) as found:
        yield found


@pytest.fixture
async def machines(plane: ControlPlane) -> AsyncIterator[list[str]]:
    """Two nodes with simulated pods."""
    async with Api(plane.access) as own, simulated_nodes(own, 2) as names:
        yield names


@pytest.fixture
async def others(admin: Api) -> AsyncIterator[None]:
    """Kinds of other projects that the chart can create, without their schemas."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for name, kind in KINDS_OF_OTHERS.items():
        await admin.must("POST", path, define(name, kind))
    for name in KINDS_OF_OTHERS:
        await eventually(partial(served, admin, name), f"{name} to be served")
    yield
    for name in KINDS_OF_OTHERS:
        await admin.must("DELETE", f"{path}/{name}")


def define(name: str, kind: str) -> Json:
    plural, _, group = name.partition(".")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural}
    return {
        "metadata": {"name": name},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


async def served(api: Api, name: str) -> bool:
    """Whether a kind is served, and the API server has its own entry for the kind's group."""
    plural, _, group = name.partition(".")
    paths = (f"/apis/{group}/v1/{plural}", f"/apis/apiregistration.k8s.io/v1/apiservices/v1.{group}")
    return all([(await api.ask("GET", path)).code == 200 for path in paths])


async def established(api: Api, name: str) -> bool:
    answer = await api.ask("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    conditions = answer.body.get("status", {}).get("conditions") or ()
    return any((one["type"], one["status"]) == ("Established", "True") for one in conditions)


async def run(plane: ControlPlane, *arguments: str | Path, values: Json | None = None) -> str:
    """Runs Helm as an administrator, in our namespace."""
    full = (*arguments, "--namespace", SYSTEM)
    return await asyncio.to_thread(run_helm, *full, values=values, kubeconfig=plane.kubeconfig())


async def listing(api: Api, path: str) -> Json:
    """A list, or nothing while the API server does not serve a new kind yet."""
    answer = await api.ask("GET", path)
    assert answer.code in (200, 404, 429), answer.message
    return answer.body if answer.code == 200 else {}


async def list_all(api: Api, *, staying: bool = False) -> set[str]:
    """Every object, by resource and name; optionally without those being deleted."""
    groups = (await api.must("GET", "/apis"))["groups"]
    served = ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]
    found: set[str] = set()
    for path in served:
        for resource in (await api.must("GET", path))["resources"]:
            if "list" in resource["verbs"] and resource["name"] not in IGNORED:
                listed = await eventually(partial(listing, api, f"{path}/{resource['name']}"), resource["name"])
                metas = [item["metadata"] for item in listed["items"]]
                found |= {
                    f"{resource['name']}/{meta['name']}"
                    for meta in metas
                    if not (staying and "deletionTimestamp" in meta)
                }
    return found


async def test_a_release_is_installed_upgraded_and_removed_completely(
    plane: ControlPlane, admin: Api, others: None, machines: list[str]
) -> None:
    before = await list_all(admin, staying=True)
    chart = CHARTS / "gpu-scheduler"
    output = await run(
        plane, "install", RELEASE, chart, "--create-namespace", "--wait", values=COMBINATIONS["defaults"]
    )
    assert "schedulerName: gpu-scheduler" in output
    assert await ready(admin) == ["2/2"]
    for name in OURS:
        await eventually(partial(established, admin, name), f"{name} to be served")
    await pretend_to_be_the_webhook(admin)
    await check_pods(admin, *yaml.safe_load_all(await run(plane, "get", "hooks", RELEASE)))
    for name in ("everything", "no policy", "a webhook apart"):
        await run(plane, "upgrade", RELEASE, chart, values=COMBINATIONS[name])
        assert await kept(admin), f"the webhook's certificate is gone after an upgrade to {name}"
        await check_pods(admin)
        if name == "everything":
            assert "Succeeded" in await run(plane, "test", RELEASE)
    for name in COMBINATIONS.keys() - {"everything", "no policy", "a webhook apart"}:
        await run(plane, "upgrade", RELEASE, chart, values=COMBINATIONS[name])
        await check_pods(admin)
    await run(plane, "uninstall", RELEASE, "--wait", "--cascade=foreground")

    async def is_clean() -> bool:
        after = await list_all(admin)
        return before <= after and STAYS <= after <= before | STAYS

    # Controllers delete what they created for a release in their own time.
    await eventually(is_clean, "everything to be as it was before")


async def ready(api: Api) -> list[str]:
    """The scheduler's pods as kubectl shows them: how many of their containers are ready."""
    path = f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector=app.kubernetes.io/name=gpu-scheduler"
    pods = [found["status"]["containerStatuses"] for found in (await api.must("GET", path))["items"]]
    return [f"{sum(one['ready'] for one in containers)}/{len(containers)}" for containers in pods]


async def pretend_to_be_the_webhook(api: Api) -> None:
    """Writes what the webhook writes when it creates a certificate."""
    await api.must("PATCH", SECRET, {"data": {"tls.key": base64.b64encode(b"key").decode()}}, content_type=MERGE)
    for path in CONFIGURATIONS:
        hooks = [{"name": hook["name"], "clientConfig": {"caBundle": CA}} for hook in await hooks_of(api, path)]
        await api.must("PATCH", path, {"webhooks": hooks}, content_type=STRATEGIC)


async def hooks_of(api: Api, path: str) -> list[Any]:
    found: list[Any] = (await api.must("GET", path))["webhooks"]
    return found


async def kept(api: Api) -> bool:
    """Whether an object should remain; the guard webhook exists only in clusters without the policy."""
    hooks = [hook for path in CONFIGURATIONS for hook in await hooks_of(api, path) if hook["name"] != GUARD]
    secret = await api.must("GET", SECRET)
    return "tls.key" in secret.get("data", {}) and all(hook["clientConfig"].get("caBundle") == CA for hook in hooks)


async def check_pods(api: Api, *more: Json) -> None:
    """The API server would admit these pods and those of every Deployment, under its strictest pod security
    standard."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await api.must("PATCH", f"/api/v1/namespaces/{SYSTEM}", {"metadata": {"labels": labels}}, content_type=MERGE)
    deployments = (await api.must("GET", f"/apis/apps/v1/namespaces/{SYSTEM}/deployments"))["items"]
    for found in (*more, *(found["spec"]["template"] for found in deployments)):
        meta = {**found["metadata"], "name": "tried"}
        await api.must(
            "POST", f"/api/v1/namespaces/{SYSTEM}/pods?dryRun=All", {"metadata": meta, "spec": found["spec"]}
        )
