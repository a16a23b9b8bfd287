"""The client against the local API server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from gpu_scheduler.gangs.contract import GROUP
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.discovery import find_served
from gpu_scheduler.k8s.errors import Conflict, Gone, NotFound, Refused
from gpu_scheduler.k8s.informer import ChangeKind, Informer, ObjectChange
from gpu_scheduler.k8s.objects import PodObject, RawObject
from gpu_scheduler.k8s.resources import LEASES, NODES, PODS, Resource
from tests.embedded_kube.servers import ApiClient, api_server, pod, widget

WIDGETS = Resource("example.org", "v1", "widgets", "Widget")


@asynccontextmanager
async def local_client() -> AsyncIterator[tuple[Client, ApiClient]]:
    async with api_server(kinds=(widget(),)) as api, Client(Connection(str(api.client.make_url("")))) as client:
        yield client, api


async def test_objects_are_created_read_changed_and_deleted() -> None:
    async with local_client() as (client, _):
        made = await client.create(PODS, pod("p"), "default", type=PodObject)
        assert made.metadata.uid
        assert (await client.get(PODS, "p", "default"))["metadata"]["uid"] == made.metadata.uid
        patched = await client.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "default", type=PodObject)
        assert patched.metadata.labels == {"a": "b"}
        operations = [{"op": "replace", "path": "/metadata/labels/a", "value": "c"}]
        assert (await client.patch(PODS, "p", operations, "default", kind="json"))["metadata"]["labels"] == {"a": "c"}
        updated = await client.patch(PODS, "p", {"status": {"message": "m"}}, "default", "status", kind="strategic")
        assert updated["status"]["message"] == "m"
        updated["metadata"]["labels"] = {"d": "e"}
        replaced = await client.replace(PODS, updated, "p", "default", type=PodObject)
        assert replaced.metadata.labels == {"d": "e"}
        with pytest.raises(Conflict):
            await client.delete(PODS, "p", "default", uid="another", grace=0)
        await client.delete(PODS, "p", "default", uid=made.metadata.uid, grace=0)
        with pytest.raises(NotFound):
            await client.get(PODS, "p", "default")


async def test_errors_have_the_message_of_the_server() -> None:
    async with local_client() as (client, _):
        await client.create(PODS, pod("p"), "default")
        with pytest.raises(Conflict, match="already exists") as conflict:
            await client.create(PODS, pod("p"), "default")
        assert conflict.value.reason == "AlreadyExists"
        with pytest.raises(Refused, match=r"spec\.containers"):
            await client.create(PODS, {"metadata": {"name": "q"}, "spec": {"containers": []}}, "default")
        stale = await client.get(PODS, "p", "default")
        await client.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "default")
        with pytest.raises(Conflict):
            await client.replace(PODS, stale, "p", "default")


async def test_lists_are_paged_and_watches_go_on_from_them() -> None:
    async with local_client() as (client, _):
        for number in range(7):
            await client.create(PODS, pod(f"p{number}"), "default")
        listed = await client.list(PODS, type=PodObject, limit=2)
        assert [item.metadata.name for item in listed.items] == [f"p{number}" for number in range(7)]
        await client.create(PODS, pod("late"), "default")
        await client.delete(PODS, "late", "default", grace=0)
        received: list[tuple[str, str]] = []
        since = str(listed.resource_version)
        async with aclosing(client.watch(PODS, "default", type=PodObject, since=since)) as watch:
            async for events in watch:
                received += [(event.type, event.object.metadata.name) for event in events]
                if received[-1][0] == "DELETED":
                    break
        assert received[0] == ("ADDED", "late")
        assert received[-1] == ("DELETED", "late")


async def test_a_watch_from_a_compacted_version_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with local_client() as (client, api):
        await client.create(PODS, pod("p"), "default")
        monkeypatch.setattr(api.registry.store._resources["pods"], "compacted", 10)
        async with aclosing(client.watch(PODS, type=PodObject, since="2")) as watch:
            with pytest.raises(Gone):
                await anext(watch)


async def test_an_informer_ends_up_with_what_the_server_has() -> None:
    chance = random.Random(7)
    reported: dict[tuple[str, str], str] = {}

    def note(changes: Sequence[ObjectChange[PodObject]]) -> None:
        for change in changes:
            meta = change.object.metadata
            if change.kind is ChangeKind.DELETED:
                assert reported.pop((meta.namespace, meta.name)) == meta.uid
            else:
                reported[meta.namespace, meta.name] = meta.uid

    async with local_client() as (client, _):
        informer = Informer(client, PODS, PodObject, note)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        for step in range(300):
            name = f"p{chance.randrange(20)}"
            if ("default", name) not in reported:
                with suppress(Conflict):
                    await client.create(PODS, pod(name), "default")
            elif chance.random() < 0.5:
                with suppress(NotFound):
                    await client.patch(PODS, name, {"metadata": {"labels": {"step": str(step)}}}, "default")
            else:
                with suppress(NotFound):
                    await client.delete(PODS, name, "default", grace=0)
            await asyncio.sleep(0.012 * chance.random())
        truth = await client.list(PODS, type=PodObject)
        await informer.wait_for_revision(truth.resource_version)
        running.cancel()
    assert {key: found.metadata.resource_version for key, found in informer.objects.items()} == {
        (item.metadata.namespace, item.metadata.name): item.metadata.resource_version for item in truth.items
    }
    assert reported == {key: found.metadata.uid for key, found in informer.objects.items()}


async def test_a_quiet_informer_reaches_a_revision_of_another_kind_at_once() -> None:
    async with local_client() as (client, _):
        informer = Informer(client, NODES, RawObject, lambda _: None)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        made = await client.create(PODS, pod("p"), "default", type=PodObject)
        assert informer.revision < int(made.metadata.resource_version)
        async with asyncio.timeout(5):
            await informer.wait_for_revision(int(made.metadata.resource_version))
        running.cancel()


async def test_discovery_finds_kinds_and_versions_and_nothing_else() -> None:
    async with local_client() as (client, _):
        served = await find_served(client)
    assert served.has(PODS)
    assert served.has(NODES)
    assert served.has(LEASES)
    assert served.has(WIDGETS)
    assert not served.has(WIDGETS._replace(version="v2"))
    assert not served.has(WIDGETS._replace(group=GROUP))
    assert served.versions("example.org") == ("v1",)
    assert served.versions("") == ("v1",)
    assert served.versions(GROUP) == ()
    assert PODS in served.resources
    assert NODES in served.resources
    assert WIDGETS in served.resources
