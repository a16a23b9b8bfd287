"""The client against servers that fail in every way."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from gpu_scheduler.k8s import client as client_module
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.codec import UNREADABLE, WatchEvent
from gpu_scheduler.k8s.credentials import Access
from gpu_scheduler.k8s.errors import ApiError, ConfigError, Conflict, Gone, NotFound, Refused, TooMany, Undecided
from gpu_scheduler.k8s.objects import Object, PodObject, RawObject
from gpu_scheduler.k8s.resources import NODES, PODS
from tests.unit.k8s.scripted_api import (
    Script,
    bookmark,
    client_of,
    line,
    listing,
    refuse,
    status,
    then_reset,
    then_silence,
    thing,
)


async def receive(client: Client, count: int = 1, quiet: float = 5.0, since: str = "1") -> list[WatchEvent[RawObject]]:
    """The first events of a watch."""
    received: list[WatchEvent[RawObject]] = []
    async with aclosing(client.watch(PODS, type=RawObject, since=since, quiet=quiet)) as watch:
        async for events in watch:
            received += events
            if len(received) >= count:
                break
    return received


async def test_a_list_reads_all_pages_without_a_resource_version() -> None:
    asked: list[dict[str, str]] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        page = int(request.query.get("continue", "0"))
        return listing(7, [thing(f"t{page}", 3)], following=str(page + 1) if page < 2 else "")

    async with client_of(handle) as client:
        found = await client.list(PODS, "ns", type=RawObject, labels="a=b", fields="c=d", limit=1)
    assert [item.metadata.name for item in found.items] == ["t0", "t1", "t2"]
    assert found.resource_version == 7
    common = {"labelSelector": "a=b", "fieldSelector": "c=d", "limit": "1"}
    assert asked == [common, {**common, "continue": "1"}, {**common, "continue": "2"}]


async def test_a_list_whose_next_page_has_expired_starts_over() -> None:
    async def handle(request: web.Request) -> web.Response:
        if "continue" in request.query:
            return refuse(410, reason="Expired")
        if "limit" in request.query:
            return listing(5, [thing("old", 1)], following="more")
        return listing(9, [thing("a", 8), thing("b", 9)])

    async with client_of(handle) as client:
        found = await client.list(PODS, type=RawObject)
    assert [item.metadata.name for item in found.items] == ["a", "b"]
    assert found.resource_version == 9


async def test_a_list_skips_objects_that_do_not_match_their_kind() -> None:
    async def handle(_: web.Request) -> web.Response:
        return listing(5, [thing("good", 1), {**thing("bad", 2), "spec": "text"}])

    async with client_of(handle) as client:
        found = await client.list(PODS, type=RawObject)
    assert [item.metadata.name for item in found.items] == ["good"]


@pytest.mark.parametrize(
    ("code", "error"),
    [(400, Refused), (403, Refused), (404, NotFound), (409, Conflict), (410, Gone), (422, Refused), (302, Refused)],
)
async def test_a_status_object_becomes_an_error(code: int, error: type[ApiError]) -> None:
    async def handle(_: web.Request) -> web.Response:
        return refuse(code, reason="Why", message="because")

    async with client_of(handle) as client:
        with pytest.raises(error) as caught:
            await client.get(PODS, "p", "ns")
    assert (caught.value.status, caught.value.reason, caught.value.message) == (code, "Why", "because")


async def test_an_error_without_a_status_object_has_the_first_line_of_the_body() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=403, text="<html>go away</html>\nmore")

    async with client_of(handle) as client:
        with pytest.raises(Refused, match=r"^HTTP 403: <html>go away</html>$"):
            await client.get(PODS, "p", "ns")


async def test_reads_are_retried_and_writes_are_not() -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.method)
        return refuse(500) if len(asked) < 3 else web.json_response(thing("p", 1))

    async with client_of(handle) as client:
        with pytest.raises(Undecided):
            await client.create(PODS, {}, "ns")
        found = await client.get(PODS, "p", "ns", type=RawObject)
    assert found.metadata.name == "p"
    assert asked == ["POST", "GET", "GET"]


async def test_a_truncated_response_to_a_read_is_retried() -> None:
    asked = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked > 1:
            return web.json_response(thing("p", 1))
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"metadata":{"name":"p')
        assert request.transport is not None
        request.transport.close()
        return response

    async with client_of(handle) as client:
        assert (await client.get(PODS, "p", "ns", type=RawObject)).metadata.name == "p"
    assert asked == 2


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_write_on_a_broken_keepalive_connection_is_sent_once(method: str) -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.method)
        if request.method != "GET":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({})

    async with client_of(handle) as client:
        await client.request("GET", "/")
        with pytest.raises(Undecided) as caught:
            await client.request(method, "/", body={})
    assert caught.value.status == 0
    assert asked == ["GET", method]


async def test_a_write_that_times_out_is_undecided() -> None:
    async def handle(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.json_response({})

    async with client_of(handle, timeout=0.1) as client:
        with pytest.raises(Undecided, match="POST /api/v1/namespaces/ns/pods") as caught:
            await client.create(PODS, {}, "ns")
    assert caught.value.status == 0


async def test_a_refused_connection_is_undecided() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response({})

    async with client_of(handle) as client:
        pass
    async with Client(client.connection) as late:
        with pytest.raises(Undecided):
            await late.create(PODS, {}, "ns")


@pytest.mark.parametrize("seconds", [1, 25])
async def test_retry_after_delays_all_writes_and_no_reads(seconds: int) -> None:
    asked: list[tuple[str, float]] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append((request.path, time.monotonic()))
        return refuse(429, retry_after=str(seconds)) if len(asked) == 1 else web.json_response({})

    async with client_of(handle) as client:
        first = asyncio.create_task(client.request("POST", "/first", body={}))
        while not client._paused_until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await client.request("GET", "/read")
        second = asyncio.create_task(client.request("POST", "/second", body={}))
        if seconds > 1:  # long enough that nothing else can have been first
            await asyncio.sleep(0.05)
            assert [path for path, _ in asked] == ["/first", "/read"]
            first.cancel()
            second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
    assert all(at - asked[0][1] >= seconds - 0.01 for path, at in asked[1:] if path != "/read")
    assert sorted(path for path, _ in asked) == ["/first", "/first", "/read", "/second"] or seconds > 1


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_retry_after_zero_still_waits_a_moment(method: str) -> None:
    asked = 0

    async def handle(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return refuse(429, retry_after="0")

    async with client_of(handle) as client:
        begun = time.monotonic()
        asking = asyncio.create_task(client.request(method, "/", body={}))
        await asyncio.sleep(0.5)
        while asked < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert asked <= 1 + 4 * (time.monotonic() - begun)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_without_wait_a_429_is_raised_at_once() -> None:
    async def handle(_: web.Request) -> web.Response:
        return refuse(429, retry_after="30")

    async with client_of(handle) as client:
        begun = time.monotonic()
        with pytest.raises(TooMany) as caught:
            await client.request("POST", "/evict", body={}, wait=False)
        assert caught.value.retry_after == 30
        assert time.monotonic() - begun < 30
        assert client._paused_until == 0


async def test_a_retry_after_beyond_the_timeout_is_raised() -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.json_response(status(429, retryAfterSeconds=3600), status=429)

    async with client_of(handle) as client:
        with pytest.raises(TooMany):
            await client.get(PODS, "p", "ns")


async def test_writes_in_flight_are_limited() -> None:
    now, most = 0, 0

    async def handle(_: web.Request) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return web.json_response({})

    async with client_of(handle, in_flight=3) as client:
        await asyncio.gather(*(client.create(PODS, {}, "ns") for _ in range(20)))
    assert most == 3


class Rotating:
    """A credential that is replaced when it is refused."""

    def __init__(self) -> None:
        self.made = 0
        self.current: Access | None = None

    async def access(self) -> Access:
        if self.current is None:
            self.made += 1
            self.current = Access({"Authorization": f"Bearer {self.made}"})
        return self.current

    def renew(self, used: dict[str, str]) -> bool:
        if self.current is not None and used is self.current.headers:
            self.current = None
        return True


@pytest.mark.parametrize("good", [2, 3])
async def test_refused_credentials_are_renewed_once(good: int) -> None:
    async def handle(request: web.Request) -> web.Response:
        accepted = request.headers["Authorization"] == f"Bearer {good}"
        return web.json_response({}) if accepted else refuse(401, reason="Unauthorized")

    credential = Rotating()
    async with client_of(handle, credential) as client:
        if good == 2:
            await client.create(PODS, {}, "ns")
        else:
            with pytest.raises(Refused):
                await client.create(PODS, {}, "ns")
    assert credential.made == 2


async def test_missing_credentials_refuse_the_request_in_one_line() -> None:
    class Broken(Rotating):
        async def access(self) -> Access:
            raise ConfigError("users[me].user.exec.command: no program")

    async def handle(_: web.Request) -> web.Response:
        return web.json_response({})

    async with client_of(handle, Broken()) as client:
        with pytest.raises(Refused, match="no program"):
            await client.get(PODS, "p", "ns")


async def test_bodies_of_megabytes_are_sent() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response({"length": len((await request.json())["data"])})

    async with client_of(handle) as client:
        assert await client.create(PODS, {"data": "x" * 3_000_000}, "ns") == {"length": 3_000_000}


async def test_server_version_and_server_time() -> None:
    async def handle(_: web.Request) -> web.Response:
        headers = {"Date": "Thu, 01 Jan 1970 01:00:00 GMT"}
        return web.json_response({"gitVersion": "v1.35.0"}, headers=headers)

    async with client_of(handle) as client:
        assert await client.server_version() == "v1.35.0"
        assert await client.server_time() == 3600


async def test_a_watch_reads_lines_in_chunks_of_any_size() -> None:
    whole = b"".join(line("ADDED", thing(f"t{n}", n + 2)) for n in range(20))
    script = Script()
    script.watches = [then_silence(*(whole[at : at + 37] for at in range(0, len(whole), 37)))]
    async with client_of(script) as client:
        received = await receive(client, 20)
    assert [event.object.metadata.name for event in received] == [f"t{n}" for n in range(20)]


async def test_a_watch_reads_lines_of_megabytes() -> None:
    script = Script()
    big = line("ADDED", thing("big", 2, data="x" * 4_000_000))
    script.watches = [then_silence(big + line("MODIFIED", thing("big", 3)))]
    async with client_of(script) as client:
        first, second = await receive(client, 2)
    assert len(first.object.spec["data"]) == 4_000_000
    assert second.type == "MODIFIED"


async def test_a_list_with_a_repeated_continue_token_is_given_up() -> None:
    async def answer(_request: web.Request) -> web.Response:
        return listing(5, [thing("a", 1)], following="again")

    async with client_of(answer) as client:
        with pytest.raises(Undecided, match="followed by itself"):
            await client.list(PODS, type=RawObject)


async def test_a_watch_with_an_endless_line_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LONGEST_LINE", 100_000)
    script = Script()
    script.watches = [then_silence(line("ADDED", thing("big", 2, data="x" * 1_000_000))[:-1])]
    async with client_of(script) as client:
        with pytest.raises(Undecided, match="a line of more than 100000 bytes"):
            await receive(client, 1)


async def test_bookmarks_need_metadata_only() -> None:
    script = Script()
    script.watches = [then_silence(bookmark(9))]
    async with client_of(script) as client, aclosing(client.watch(PODS, type=PodObject, since="1")) as watch:
        (event,) = await anext(watch)
    assert event.type == "BOOKMARK"
    assert event.object.metadata.resource_version == "9"


async def test_an_event_of_an_invalid_object_keeps_its_metadata() -> None:
    script = Script()
    script.watches = [then_silence(line("ADDED", {**thing("odd", 2), "spec": []}) + line("ADDED", thing("good", 3)))]
    async with client_of(script) as client:
        odd, good = await receive(client, 2)
    assert (odd.type, good.type) == (UNREADABLE, "ADDED")
    assert isinstance(odd.object, Object)
    assert odd.object.metadata.name == "odd"


@pytest.mark.parametrize(("code", "error"), [(410, Gone), (504, Undecided), (403, Refused)])
@pytest.mark.parametrize("kind", [RawObject, PodObject])
async def test_an_error_event_is_raised(code: int, error: type[ApiError], kind: Any) -> None:
    script = Script()
    # One that even has the fields of an object.
    found = {**status(code, message="too old"), "metadata": {"resourceVersion": "1"}}
    script.watches = [line("ERROR", found)]
    async with client_of(script) as client, aclosing(client.watch(PODS, type=kind, since="1")) as watch:
        with pytest.raises(error, match="too old"):
            await anext(watch)


@pytest.mark.parametrize("rest", [b'{"type":"ADDED","object":{"meta\n', b"<html>\n", b'{"type":"ERROR","object":1}\n'])
async def test_an_invalid_line_ends_the_watch(rest: bytes) -> None:
    script = Script()
    script.watches = [rest]
    async with client_of(script) as client:
        with pytest.raises(Undecided, match="sent invalid data"):
            await receive(client)


async def test_a_connection_that_breaks_within_a_line_ends_the_watch() -> None:
    script = Script()
    script.watches = [then_reset(line("ADDED", thing("t", 2)) + b'{"type":"ADDED","ob')]
    async with client_of(script) as client:
        with pytest.raises(Undecided):
            await receive(client, 2)


@pytest.mark.parametrize("headers", [True, False])
async def test_a_stalled_watch_is_given_up(headers: bool) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if headers:
            await response.prepare(request)
        await asyncio.sleep(3600)
        return response

    async with client_of(handle) as client:
        begun = time.monotonic()
        with pytest.raises(Undecided):
            await receive(client, quiet=0.2)
        assert time.monotonic() - begun < 60


async def test_a_refused_watch_raises_its_error() -> None:
    async def handle(_: web.Request) -> web.Response:
        return refuse(403, message="not you")

    async with client_of(handle) as client:
        with pytest.raises(Refused, match="not you"):
            await receive(client)


async def test_paths_of_cluster_scoped_objects_have_no_namespace() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path})

    async with client_of(handle) as client:
        assert await client.get(NODES, "n") == {"path": "/api/v1/nodes/n"}
