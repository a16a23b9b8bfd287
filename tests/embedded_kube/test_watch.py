"""Watches over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from embedded_kube.server import watch
from embedded_kube.storage import store
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.servers import CONFIGMAPS, ApiClient, api_server, config_map

TIMEOUT = 60.0
"""Seconds after which a test fails."""

TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
PARTIAL = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}


class Events:
    """The events of a watch."""

    def __init__(self, response: Any) -> None:
        self._response = response

    async def next(self) -> tuple[str, Json]:
        async with asyncio.timeout(TIMEOUT):
            line = await self._response.content.readline()
        assert line, "the watch has ended"
        event = json.loads(line)
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Types and names of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(kind, found["metadata"]["name"]) for kind, found in events]

    async def rest(self) -> list[tuple[str, Json]]:
        """All events until the watch ends."""
        async with asyncio.timeout(TIMEOUT):
            lines = (await self._response.read()).splitlines()
        return [(event["type"], event["object"]) for event in map(json.loads, lines)]

    async def ended(self) -> bool:
        async with asyncio.timeout(TIMEOUT):
            return not await self._response.content.readline()


@asynccontextmanager
async def watching(api: ApiClient, query: str = "", headers: dict[str, str] | None = None) -> AsyncIterator[Events]:
    path = f"{CONFIGMAPS}?watch=true&{query}"
    async with api.client.get(path, headers=headers or {}) as response:
        assert response.status == 200, await response.text()
        yield Events(response)


async def put(api: ApiClient, name: str, **labels: str) -> Json:
    """Replaces the labels of an object."""
    found = (await api.ask("GET", f"{CONFIGMAPS}/{name}"))[1]
    found["metadata"]["labels"] = labels
    return (await api.ask("PUT", f"{CONFIGMAPS}/{name}", found))[1]


async def test_watch_sends_existing_objects_and_changes() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        async with watching(api) as events:
            assert await events.names(1) == [("ADDED", "a")]
            await api.create(CONFIGMAPS, config_map("b"))
            await put(api, "a", x="1")
            await api.ask("DELETE", f"{CONFIGMAPS}/b")
            assert await events.names(3) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


async def test_watch_over_a_websocket_sends_each_event_as_a_message_until_the_client_closes() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        await api.create(CONFIGMAPS, config_map("b"))
        async with asyncio.timeout(TIMEOUT), api.client.ws_connect(f"{CONFIGMAPS}?watch=true") as socket:
            found = [await socket.receive_json() for _ in range(2)]
            await put(api, "a", x="1")
            found.append(await socket.receive_json())
            said = [(event["type"], event["object"]["metadata"]["name"]) for event in found]
            assert said == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a")]
            assert await socket.close()
            assert socket.close_code == 1000


async def test_watch_over_a_websocket_ends_after_its_timeout() -> None:
    async with api_server() as api:
        query = "watch=true&timeoutSeconds=1"
        async with asyncio.timeout(TIMEOUT), api.client.ws_connect(f"{CONFIGMAPS}?{query}") as socket:
            assert [message async for message in socket] == []
            assert socket.close_code == 1000


async def test_watch_from_a_resource_version_sends_later_changes_only() -> None:
    async with api_server() as api:
        made = await api.create(CONFIGMAPS, config_map("a"))
        await api.create(CONFIGMAPS, config_map("b"))
        async with watching(api, f"resourceVersion={made['metadata']['resourceVersion']}") as events:
            assert await events.names(1) == [("ADDED", "b")]


async def test_object_that_enters_the_selection_is_added_and_one_that_leaves_is_deleted() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a", {"c": "blue"}))
        async with watching(api, "labelSelector=c%3Dred") as events:
            await put(api, "a", c="red")
            await put(api, "a", c="red", more="1")
            last = await put(api, "a", c="blue")
            await put(api, "a", c="green")
            await api.ask("DELETE", f"{CONFIGMAPS}/a")
            await api.create(CONFIGMAPS, config_map("b", {"c": "red"}))
            told = [await events.next() for _ in range(4)]
            assert [kind for kind, _ in told] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
            gone = told[2][1]["metadata"]
            assert gone["labels"]["c"] == "red"
            assert gone["resourceVersion"] == last["metadata"]["resourceVersion"]


async def test_watch_of_one_object_by_field_selector() -> None:
    async with api_server() as api, watching(api, "fieldSelector=metadata.name%3Db") as events:
        await api.create(CONFIGMAPS, config_map("a"))
        await api.create(CONFIGMAPS, config_map("b"))
        assert await events.names(1) == [("ADDED", "b")]


async def test_watch_of_a_namespace_excludes_other_namespaces() -> None:
    async with api_server() as api, watching(api) as events:
        await api.create("/api/v1/namespaces/other/configmaps", config_map("x"))
        await api.create(CONFIGMAPS, config_map("a"))
        assert await events.names(1) == [("ADDED", "a")]


async def test_expired_resource_version_is_an_error_event_with_410(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        async with watching(api, "resourceVersion=1") as events:
            assert await events.names(1) == [("ADDED", "a")]
        monkeypatch.setattr(api.registry.store._resources["configmaps"], "compacted", 10)
        async with watching(api, "resourceVersion=1") as events:
            kind, found = await events.next()
            assert (kind, found["code"], found["reason"]) == ("ERROR", 410, "Expired")
            assert await events.ended()


async def test_future_resource_version_is_an_error_event() -> None:
    async with api_server() as api, watching(api, "resourceVersion=1000000") as events:
        kind, found = await events.next()
        assert (kind, found["details"]["causes"][0]["reason"]) == ("ERROR", "ResourceVersionTooLarge")


async def test_initial_events_end_with_a_bookmark() -> None:
    async with api_server() as api:
        made = await api.create(CONFIGMAPS, config_map("a"))
        query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        async with watching(api, query) as events:
            assert await events.names(1) == [("ADDED", "a")]
            kind, found = await events.next()
            assert (kind, found["kind"]) == ("BOOKMARK", "ConfigMap")
            assert found["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
            assert found["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        status, _ = await api.ask("GET", f"{CONFIGMAPS}?watch=true&sendInitialEvents=true")
        assert status == 422


async def test_bookmarks_are_sent_periodically_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BOOKMARK_INTERVAL", 0.05)
    async with api_server() as api, watching(api, "allowWatchBookmarks=true&timeoutSeconds=1") as events:
        made = await api.create("/api/v1/namespaces/other/configmaps", config_map("x"))
        seen = {found["metadata"]["resourceVersion"] for _, found in await events.rest()}
        assert made["metadata"]["resourceVersion"] in seen


async def test_watch_ends_after_its_timeout() -> None:
    async with api_server() as api, watching(api, "timeoutSeconds=1") as events:
        assert await events.ended()


async def test_table_watch_sends_column_definitions_once() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        await api.create(CONFIGMAPS, config_map("b"))
        async with watching(api, headers=TABLE) as events:
            (_, first), (_, second) = await events.next(), await events.next()
            assert (first["kind"], first["rows"][0]["cells"][0]) == ("Table", "a")
            assert len(first["columnDefinitions"]) == 3
            assert (second["rows"][0]["cells"][0], second["columnDefinitions"]) == ("b", [])


async def test_metadata_watch_sends_metadata_only() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a", x="1"))
        async with watching(api, headers=PARTIAL) as events:
            _, found = await events.next()
            assert (found["kind"], "data" in found) == ("PartialObjectMetadata", False)


async def test_deprecated_watch_path_and_watch_of_a_name_work() -> None:
    async with api_server() as api:
        await api.create(CONFIGMAPS, config_map("a"))
        await api.create(CONFIGMAPS, config_map("b"))
        for path in ("/api/v1/watch/namespaces/default/configmaps/b", f"{CONFIGMAPS}/b?watch=1"):
            async with api.client.get(path) as response:
                assert await Events(response).names(1) == [("ADDED", "b")]


async def test_watch_that_falls_behind_gets_an_error_event_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_PENDING", 3)
    async with api_server() as api, watching(api) as events:
        kind = api.registry.find("configmaps")
        for index in range(10):
            # Written to the store directly, so that the watch cannot read in between.
            found = {"apiVersion": "v1", "kind": kind.kind, **config_map(f"c{index}")}
            found["metadata"]["namespace"] = "default"
            api.registry.store.write("configmaps", found)
        told, found = await events.next()
        assert (told, found["code"]) == ("ERROR", 410)
        assert await events.ended()


async def test_many_watches_get_every_event_in_order() -> None:
    watchers, count = 20, 300
    async with api_server() as api:

        async def follow() -> list[str]:
            async with watching(api) as events:
                return [(await events.next())[1]["metadata"]["name"] for _ in range(count)]

        tasks = [asyncio.create_task(follow()) for _ in range(watchers)]
        for index in range(count):
            await api.create(CONFIGMAPS, config_map(f"c{index:03}"))
        expected = [f"c{index:03}" for index in range(count)]
        assert await asyncio.gather(*tasks) == [expected] * watchers


async def test_stopping_the_server_ends_its_watches() -> None:
    async with api_server() as api, watching(api) as events:
        await api.create(CONFIGMAPS, config_map("a"))
        await events.next()
        assert api.client.app is not None
        await api.client.app.shutdown()
        assert not api.registry.store._resources["configmaps"].watchers
