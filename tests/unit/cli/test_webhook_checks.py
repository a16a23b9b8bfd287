"""The checks of the webhook, with a real API server."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest

from gpu_scheduler.base.certificates import Period, issue, make_authority, make_period
from gpu_scheduler.cli.checks.cluster import DAY, CheckLevel
from gpu_scheduler.cli.checks.webhook import WebhookStatus, check_webhook, read_webhook_status
from gpu_scheduler.gangs.contract import SYSTEM, WEBHOOK, WEBHOOK_SECRET
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import MUTATING, VALIDATING
from tests.embedded_kube.servers import ApiClient, api_server

SERVICE = {"service": {"name": WEBHOOK, "namespace": SYSTEM, "path": "/mutate"}}
Verdict = tuple[CheckLevel, str]


def bundle(*days: float) -> str:
    """A bundle of authorities that are valid for so many days."""
    now = time.time()
    made = [make_authority("CA", Period(now - 50 * DAY, now + one * DAY + 3600)).certificate for one in days]
    return base64.b64encode(b"".join(made)).decode()


async def look(api: ApiClient) -> dict[str, Verdict]:
    async with Client(Connection(str(api.client.make_url("")))) as client:
        seen = await read_webhook_status(client, SYSTEM)
    return {check.name: (check.level, check.message) for check in check_webhook(seen, time.time())}


async def install(api: ApiClient, client: Json, *kinds: Any) -> None:
    hook = {"name": "pods.gpu-scheduler.io", "clientConfig": client, "sideEffects": "None"}
    hook["admissionReviewVersions"] = ["v1"]
    for kind in kinds or (MUTATING, VALIDATING):
        await api.create(kind.path(), {"metadata": {"name": WEBHOOK}, "webhooks": [hook]})


async def serve(api: ApiClient, ready: bool) -> None:
    await api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    service = {"metadata": {"name": WEBHOOK}, "spec": {"ports": [{"port": 443}]}}
    await api.create(f"/api/v1/namespaces/{SYSTEM}/services", service)
    slice_ = {
        "metadata": {"name": "x", "labels": {"kubernetes.io/service-name": WEBHOOK}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}],
    }
    await api.create(f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM}/endpointslices", slice_)


async def test_a_missing_webhook_is_a_warning() -> None:
    async with api_server() as api:
        assert (await look(api)) == {
            "webhook": (
                CheckLevel.WARN,
                "not installed: CUDA_VISIBLE_DEVICES is not set in containers",
            )
        }


async def test_a_healthy_webhook_passes() -> None:
    async with api_server() as api:
        await serve(api, True)
        await install(api, SERVICE | {"caBundle": bundle(3, 100)})
        assert await look(api) == {
            "webhook": (CheckLevel.OK, "2 webhooks configured"),
            "certificate": (CheckLevel.OK, "valid for 100d"),
            "endpoints": (CheckLevel.OK, "1 ready"),
        }


async def test_a_configuration_that_is_missing_fails() -> None:
    async with api_server() as api:
        await install(api, SERVICE | {"caBundle": bundle(100)}, MUTATING)
        found = await look(api)
    assert found["webhook"] == (CheckLevel.FAIL, f"the ValidatingWebhookConfiguration {WEBHOOK} does not exist")
    refused = "pods that name this scheduler are refused"
    assert found["endpoints"] == (CheckLevel.FAIL, f"the Service {SYSTEM}/{WEBHOOK} does not exist: {refused}")


async def test_a_service_without_ready_endpoints_fails() -> None:
    async with api_server() as api:
        await serve(api, False)
        await install(api, SERVICE | {"caBundle": bundle(100)})
        level, message = (await look(api))["endpoints"]
    assert (level, message.partition(":")[0]) == (
        CheckLevel.FAIL,
        f"the Service {SYSTEM}/{WEBHOOK} has no ready endpoint",
    )


@pytest.mark.parametrize(
    ("client", "verdict"),
    [
        ({"caBundle": bundle(13)}, (CheckLevel.WARN, "expires in 13d")),
        ({"caBundle": bundle(15)}, (CheckLevel.OK, "valid for 15d")),
        ({"caBundle": bundle(-9, -4)}, (CheckLevel.FAIL, "expired 3d")),
        ({"caBundle": bundle(13, 15)}, (CheckLevel.OK, "valid for 15d")),
        ({}, (CheckLevel.OK, "of an authority that API servers trust by default")),
    ],
    ids=["soon", "not soon", "expired", "one of two ends soon", "an address without a bundle"],
)
async def test_a_certificate_is_checked_by_the_trusted_bundles(client: Json, verdict: Verdict) -> None:
    async with api_server() as api:
        await install(api, {"url": "https://hook.example.org:8443/mutate"} | client)
        found = await look(api)
    level, message = found["certificate"]
    assert (level, message[: len(verdict[1])]) == verdict
    assert found["endpoints"] == (CheckLevel.OK, "reached at hook.example.org:8443")


async def test_an_empty_bundle_fails() -> None:
    async with api_server() as api:
        await serve(api, True)
        await install(api, SERVICE)
        level, message = (await look(api))["certificate"]
    assert level is CheckLevel.FAIL
    assert message.startswith("the caBundle of pods.gpu-scheduler.io")


async def test_the_certificate_in_the_secret_is_checked() -> None:
    pair = issue(make_authority(), "hook", period=make_period(5 * DAY + 60))
    data = {"tls.crt": base64.b64encode(pair.certificate).decode(), "tls.key": ""}
    async with api_server() as api:
        await serve(api, True)
        await install(api, SERVICE | {"caBundle": bundle(100)})
        await api.create(f"/api/v1/namespaces/{SYSTEM}/secrets", {"metadata": {"name": WEBHOOK_SECRET}, "data": data})
        assert (await look(api))["certificate"] == (CheckLevel.WARN, "expires in 5d")


def test_unreadable_objects_are_no_failure() -> None:
    why = 'secrets is forbidden: User "alice" cannot get it'
    (check,) = check_webhook(WebhookStatus(hidden={MUTATING.kind: why, VALIDATING.kind: why}), 0.0)
    assert (check.level, check.message) == (CheckLevel.INFO, f"cannot be read: {why}")
    hook = {"name": "x", "clientConfig": SERVICE | {"caBundle": bundle(100)}}
    seen = WebhookStatus(hooks=[hook], hidden={f"{SYSTEM}/{WEBHOOK}": why})
    assert [check.level for check in check_webhook(seen, time.time())] == [
        CheckLevel.OK,
        CheckLevel.OK,
        CheckLevel.INFO,
    ]
