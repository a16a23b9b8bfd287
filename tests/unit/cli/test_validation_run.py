"""The test run of `validate`, with the local API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpu_scheduler.cli.validation.comparison import NAMESPACE, ObservedCluster, load_manifest
from gpu_scheduler.cli.validation.run import ValidationRun, ValidationSetupError, read_cluster, read_scheduler
from gpu_scheduler.gangs.contract import WEBHOOK
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.scheduler.settings import Settings
from tests.embedded_kube.servers import ApiClient, api_server

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NAMES = ["webhook-test-0", "webhook-test-1", "webhook-test-2"]
NOWHERE = ObservedCluster("", "", (), 0.0)


class Scene:
    """A server, and a run on it with the progress that it has reported."""

    def __init__(self, api: ApiClient, client: Client) -> None:
        self.api = api
        self.client = client
        self.told: list[str] = []
        self.run = ValidationRun(client, load_manifest(), self.told.append)

    async def names(self) -> list[str]:
        return await self.api.names(PODS)

    async def make_namespace(self) -> None:
        await self.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

    async def make_pod(self, name: str) -> str:
        made = await self.api.create(PODS, {"metadata": {"name": name}, "spec": {"containers": [SLEEPER]}})
        return str(made["metadata"]["uid"])

    async def is_namespace_kept(self) -> bool:
        """Whether it is not being deleted."""
        _, found = await self.api.ask("GET", f"/api/v1/namespaces/{NAMESPACE}")
        return "deletionTimestamp" not in found["metadata"]


SLEEPER = {"name": "main", "image": "any"}


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with api_server() as api, Client(Connection(str(api.client.make_url("")))) as client:
        yield Scene(api, client)


async def test_a_created_namespace_is_removed_with_its_pods() -> None:
    async with scene() as at:
        await at.run.prepare(False, 10)
        await at.run.start()
        assert await at.names() == NAMES
        seen = await at.run.wait(NOWHERE, 60)  # no node has the name of the map, so there is nothing to wait for
        assert [pod.status for pod in seen] == ["Pending"] * 3
        assert at.told == ["0 of 3 pods scheduled, 0 running"]
        assert await at.run.clean_up() == []
        assert await at.names() == []
        assert not await at.is_namespace_kept()


async def test_an_existing_namespace_is_kept() -> None:
    async with scene() as at:
        await at.make_namespace()
        await at.make_pod("other")
        await at.run.prepare(False, 10)
        await at.run.start()
        assert await at.run.clean_up() == []
        assert await at.names() == ["other"]
        assert await at.is_namespace_kept()


async def test_a_namespace_with_other_pods_is_kept() -> None:
    async with scene() as at:
        await at.run.prepare(False, 10)
        await at.make_pod("other")
        assert await at.run.clean_up() == []
        assert await at.is_namespace_kept()
        assert at.told == [f"Namespace {NAMESPACE} is kept: it now contains other."]


async def test_existing_pods_are_deleted_only_with_replace() -> None:
    async with scene() as at:
        await at.make_namespace()
        uid = await at.make_pod(NAMES[1])
        with pytest.raises(ValidationSetupError, match=r"^webhook-test-1 already exist in namespace .*--replace"):
            await at.run.prepare(False, 10)
        assert await at.run.clean_up() == []
        assert await at.names() == [NAMES[1]]
        await at.run.prepare(True, 10)
        await at.run.start()
        _, found = await at.api.ask("GET", f"{PODS}/{NAMES[1]}")
        assert found["metadata"]["uid"] != uid


async def test_a_namespace_that_is_being_deleted_is_waited_for() -> None:
    async with scene() as at:
        await at.make_namespace()
        await at.make_pod("other")  # without the namespace controller it would never be deleted
        await at.api.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
        with pytest.raises(TimeoutError):
            await at.run.prepare(False, 0.2)
        assert at.told == [f"Namespace {NAMESPACE} is being deleted; waiting."]


async def test_a_pod_that_replaced_ours_is_not_deleted() -> None:
    async with scene() as at:
        await at.make_namespace()
        await at.run.prepare(False, 10)
        await at.run.start()
        await at.api.ask("DELETE", f"{PODS}/{NAMES[0]}")
        await at.make_pod(NAMES[0])
        seen = await at.run.wait(NOWHERE, 60)
        assert (seen[0].status, seen[0].trouble) == ("gone", "it was deleted")
        assert await at.run.clean_up() == []
        assert await at.names() == [NAMES[0]]


async def test_a_run_that_is_cancelled_while_it_creates_a_pod_records_it() -> None:
    async with scene() as at:
        await at.make_namespace()
        await at.run.prepare(False, 10)
        starting = asyncio.create_task(at.run.start())
        await asyncio.sleep(0)  # it has started, and waits for the server
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert await at.run.clean_up() == []
        assert await at.names() == []


async def test_a_run_that_is_cancelled_while_it_cleans_up_completes_the_cleanup() -> None:
    async with scene() as at:
        await at.run.prepare(False, 10)
        await at.run.start()
        cleaning = asyncio.create_task(at.run.clean_up())
        await asyncio.sleep(0)  # it has started
        cleaning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cleaning
        assert await at.names() == []
        assert not await at.is_namespace_kept()


async def test_objects_that_cannot_be_removed_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as at:
        await at.make_namespace()
        await at.run.prepare(False, 10)
        await at.run.start()
        path = f"{PODS}/{NAMES[2]}"
        _, found = await at.api.ask("GET", path)
        found["metadata"]["finalizers"] = ["example.com/keep"]
        await at.api.ask("PUT", path, found)
        monkeypatch.setattr("gpu_scheduler.cli.validation.run.CLEANUP_TIMEOUT", 0.3)
        assert await at.run.clean_up() == [f"{', '.join(NAMES)} in {NAMESPACE}: not deleted within 0.3 s"]


# -- looking


async def install(api: ApiClient, config: Json) -> None:
    hook = {"name": "pods.gpu-scheduler.io", "sideEffects": "None", "admissionReviewVersions": ["v1"]}
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        body = {"metadata": {"name": WEBHOOK}, "webhooks": [{**hook, "clientConfig": config}]}
        await api.create(f"/apis/admissionregistration.k8s.io/v1/{kind}", body)


async def add_endpoint(api: ApiClient) -> None:
    meta = {"name": "webhook-1", "labels": {"kubernetes.io/service-name": "webhook"}}
    body = {"metadata": meta, "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}]}
    await api.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body)
    service = {"metadata": {"name": "webhook"}, "spec": {"ports": [{"port": 443}]}}
    await api.create("/api/v1/namespaces/default/services", service)


async def no_webhook(api: ApiClient) -> None:
    assert api is not None


async def webhook_at_url(api: ApiClient) -> None:
    await install(api, {"url": "https://192.0.2.1:8443/mutate"})


async def webhook_behind_nothing(api: ApiClient) -> None:
    await install(api, {"service": {"namespace": "default", "name": "webhook", "path": "/mutate"}})


async def webhook_behind_service(api: ApiClient) -> None:
    await add_endpoint(api)
    await webhook_behind_nothing(api)


TRUSTED = "2 webhooks configured, certificate of an authority that API servers trust by default"
BARE = "the caBundle of pods.gpu-scheduler.io, pods.gpu-scheduler.io is empty"
REFUSED = "pods that name this scheduler are refused"
WEBHOOKS: dict[str, tuple[Callable[[ApiClient], Awaitable[None]], tuple[str, str]]] = {
    "absent": (no_webhook, ("", "")),
    "at an address": (webhook_at_url, (f"{TRUSTED}, endpoints reached at 192.0.2.1:8443", "")),
    "behind a service": (webhook_behind_service, ("2 webhooks configured, endpoints 1 ready", f"{BARE}: {REFUSED}")),
    "behind a service that is not there": (
        webhook_behind_nothing,
        ("2 webhooks configured", f"{BARE}: {REFUSED}; the Service default/webhook does not exist: {REFUSED}"),
    ),
}


@pytest.mark.parametrize(("setup", "told"), WEBHOOKS.values(), ids=list(WEBHOOKS))
async def test_webhook_is_found(setup: Callable[[ApiClient], Awaitable[None]], told: tuple[str, str]) -> None:
    async with scene() as at:
        await setup(at.api)
        seen = await read_scheduler(at.client, Settings())
        assert (seen.webhook, seen.webhook_problem) == told
        assert seen.leader_problem == "No scheduler has ever run in this cluster."


async def test_nodes_are_read_with_their_labels_and_gpus() -> None:
    async with scene() as at:
        status = {"allocatable": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
        await at.api.create("/api/v1/nodes", {"metadata": {"name": "a", "labels": {"gpu-node-name": "node1"}}})
        await at.api.ask(
            "PATCH",
            "/api/v1/nodes/a/status",
            {"status": status},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        await at.api.create("/api/v1/nodes", {"metadata": {"name": "b"}})
        found = await read_cluster(at.client, ("nvidia.com/gpu", "amd.com/gpu"))
        assert [(n.name, n.map_name, n.ready, n.gpus) for n in found.nodes] == [
            ("a", "node1", True, 4),
            ("b", "b", False, 0),
        ]
