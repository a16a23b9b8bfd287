"""The event recorder: repeats, floods, and servers that fail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from gpu_scheduler.k8s import event_recorder as recorder_module
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.event_recorder import EventRecorder, ObjectReference, reference_to
from gpu_scheduler.k8s.objects import Json, Meta
from gpu_scheduler.k8s.rate_limiter import RateLimiter
from gpu_scheduler.k8s.resources import EVENTS, NODES, PODS
from tests.embedded_kube.servers import api_server
from tests.unit.k8s.scripted_api import client_of, refuse
from tests.unit.scheduler.reporting import Numbers, until

POD = ObjectReference("v1", "Pod", "default", "train-0", "uid-0", "7")
NOW = 1_700_000_000.0


@asynccontextmanager
async def at_work(recorder: EventRecorder) -> AsyncIterator[None]:
    task = asyncio.create_task(recorder.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def unlimited() -> RateLimiter:
    return RateLimiter(10_000, 10_000)


@asynccontextmanager
async def local() -> AsyncIterator[tuple[Client, EventRecorder]]:
    async with api_server() as server, Client(Connection(str(server.client.make_url("")))) as client:
        recorder = EventRecorder(client, lambda: NOW, Numbers(), instance="me", rate_limiter=unlimited())
        async with at_work(recorder):
            yield client, recorder


async def read(client: Client, expected: Callable[[Sequence[Json]], bool]) -> list[Json]:
    """The Events, once they are as expected."""

    async def ask() -> list[Json]:
        found = (await client.list(EVENTS, "default")).items
        return sorted(found, key=lambda event: str(event["metadata"]["name"])) if expected(found) else []

    return list(await until(ask))


async def test_an_event_has_its_object_source_and_times() -> None:
    async with local() as (client, recorder):
        recorder.record(POD, "Warning", "FailedScheduling", "needs 8 GPUs")
        (event,) = await read(client, lambda found: len(found) == 1)
    assert re.fullmatch(r"train-0\.[0-9a-f]{16}", event["metadata"]["name"])
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "train-0",
        "uid": "uid-0",
        "resourceVersion": "7",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "FailedScheduling", "needs 8 GPUs")
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (1, *["2023-11-14T22:13:20Z"] * 2)
    assert (event["source"], event["reportingComponent"]) == ({"component": "gpu-scheduler"}, "gpu-scheduler")
    assert event["reportingInstance"] == "me"


async def test_a_repeated_event_raises_the_count_and_has_the_newest_message() -> None:
    async with local() as (client, recorder):
        recorder.record(POD, "Warning", "FailedScheduling", "short by 7 GPUs")
        await read(client, lambda found: len(found) == 1)
        for short in (6, 5):
            recorder.record(POD, "Warning", "FailedScheduling", f"short by {short} GPUs")
        (event,) = await read(client, lambda found: len(found) == 1 and found[0]["count"] == 3)
        assert event["message"] == "short by 5 GPUs"


async def test_other_messages_reasons_and_objects_are_other_events() -> None:
    async with local() as (client, recorder):
        recorder.record(POD, "Warning", "FailedScheduling", "paused")
        recorder.record(POD, "Warning", "FailedScheduling", "no queue")
        recorder.record(POD, "Warning", "Other", "paused")
        recorder.record(POD._replace(uid="uid-1"), "Warning", "FailedScheduling", "paused")
        found = await read(client, lambda found: len(found) == 4)
        assert [event["count"] for event in found] == [1, 1, 1, 1]


async def test_an_expired_event_is_created_again() -> None:
    async with local() as (client, recorder):
        recorder.record(POD, "Normal", "Scheduled", "x")
        (event,) = await read(client, lambda found: len(found) == 1)
        await client.delete(EVENTS, event["metadata"]["name"], "default")
        recorder.record(POD, "Normal", "Scheduled", "x")
        (again,) = await read(client, lambda found: len(found) == 1)
        assert (again["count"], again["metadata"]["name"] != event["metadata"]["name"]) == (1, True)


async def test_names_of_events_sort_by_time_and_fit_the_api() -> None:
    async with local() as (client, recorder):
        long = POD._replace(name=("a" * 60 + ".") * 4 + "b" * 9)
        for i, word in enumerate("abcdefgh"):
            recorder.record(long if i % 2 else POD, "Normal", "R", word)
        found = await read(client, lambda found: len(found) == 8)
    names = [event["metadata"]["name"] for event in found]
    assert all(len(name) <= 253 and ".." not in name and "-." not in name for name in names)
    by_time = sorted(found, key=lambda event: str(event["metadata"]["name"]).rpartition(".")[2])
    assert sorted(event["message"] for event in by_time) == list("abcdefgh")


async def test_object_without_a_namespace_has_its_events_in_default() -> None:
    async with local() as (client, recorder):
        recorder.record(reference_to(NODES, Meta(name="n1", uid="u")), "Normal", "R", "x")
        (event,) = await read(client, lambda found: len(found) == 1)
        assert event["metadata"]["namespace"] == "default"
        assert "namespace" not in event["involvedObject"]


async def test_above_capacity_the_oldest_events_are_dropped_and_counted() -> None:
    numbers = Numbers()
    bodies: list[Json] = []

    async def handle(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response(bodies[-1])

    async with client_of(handle) as client:
        recorder = EventRecorder(client, lambda: NOW, numbers, rate_limiter=unlimited(), capacity=3)
        for i in range(10):
            recorder.record(POD._replace(uid=str(i)), "Normal", "R", "x")
        async with at_work(recorder):
            await until(lambda: len(bodies) == 3)
    assert numbers.dropped == {"full": 7}
    assert sorted(body["involvedObject"]["uid"] for body in bodies) == ["7", "8", "9"]


@pytest.mark.parametrize("code", [403, 404, 422])
async def test_a_refused_event_is_dropped_and_the_next_one_is_written(code: int) -> None:
    numbers = Numbers()
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        seen.append(body["message"])
        return refuse(code) if body["message"] == "bad" else web.json_response(body)

    async with client_of(handle) as client:
        recorder = EventRecorder(client, lambda: NOW, numbers, rate_limiter=unlimited())
        async with at_work(recorder):
            recorder.record(POD, "Normal", "R", "bad")
            await until(lambda: numbers.dropped)
            recorder.record(POD, "Normal", "R", "good")
            await until(lambda: "good" in seen)
    assert numbers.dropped == {"refused": 1}
    assert seen == ["bad", "good"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries failed Events almost at once."""
    monkeypatch.setattr(recorder_module, "_RETRY", (0.01, 0.01))


class FailingServer:
    """An API server that answers writes of Events with these status codes in order, and then succeeds."""

    def __init__(self, *codes: int, reason: str = "", landed: bool = False) -> None:
        self.codes = list(codes)
        self.reason = reason
        self.landed = landed
        self.events: dict[str, Json] = {}
        self.asked = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        body = await request.json()
        code = self.codes.pop(0) if self.codes else 0
        if request.method == "PATCH":
            body = self.events[request.path.rpartition("/")[2]] | body
        elif body["metadata"]["name"] in self.events:
            return refuse(409, reason="AlreadyExists")
        if not code or self.landed:
            self.events[body["metadata"]["name"] if "metadata" in body else request.path.rpartition("/")[2]] = body
        return refuse(code, "0", reason=self.reason) if code else web.json_response(body)


@pytest.mark.parametrize(("code", "reason"), [(500, ""), (503, ""), (429, ""), (409, "Conflict")])
@pytest.mark.parametrize("landed", [False, True])
async def test_an_event_is_retried_after_a_transient_error(code: int, reason: str, landed: bool, soon: None) -> None:
    server, numbers = FailingServer(*[code] * 3, reason=reason, landed=landed), Numbers()
    async with client_of(server.answer) as client:
        recorder = EventRecorder(client, lambda: NOW, numbers, rate_limiter=unlimited())
        async with at_work(recorder):
            recorder.record(POD, "Warning", "Degraded", "1 of 2 is there")
            await until(lambda: recorder._written)
            recorder.record(POD, "Warning", "Degraded", "1 of 3 is there")
            await until(lambda: [one["count"] for one in server.events.values()] == [2])
    assert [one["message"] for one in server.events.values()] == ["1 of 3 is there"]
    assert not numbers.dropped


async def test_a_repeat_that_is_retried_is_counted_once(soon: None) -> None:
    server = FailingServer()
    async with client_of(server.answer) as client:
        recorder = EventRecorder(client, lambda: NOW, Numbers(), rate_limiter=unlimited())
        async with at_work(recorder):
            recorder.record(POD, "Warning", "FailedScheduling", "short by 7")
            await until(lambda: server.events)
            server.codes = [500, 500]
            recorder.record(POD, "Warning", "FailedScheduling", "short by 6")
            await until(lambda: server.asked == 4)
            recorder.record(POD, "Warning", "FailedScheduling", "short by 5")
            await until(lambda: server.asked == 5)
    assert [(one["count"], one["message"]) for one in server.events.values()] == [(3, "short by 5")]


@pytest.mark.parametrize(("landed", "asked"), [(False, 2), (True, 3)], ids=["not written", "response lost"])
async def test_a_repeat_of_an_event_that_is_being_retried_is_written_with_it(landed: bool, asked: int) -> None:
    server = FailingServer(500, landed=landed)
    async with client_of(server.answer) as client:
        recorder = EventRecorder(client, lambda: NOW, Numbers(), rate_limiter=unlimited())
        async with at_work(recorder):
            recorder.record(POD, "Warning", "Degraded", "1 of 3")
            await until(lambda: recorder._retrying)
            recorder.record(POD, "Warning", "Degraded", "2 of 3")
            await until(lambda: recorder._written)
    assert server.asked == asked
    assert [(one["count"], one["message"]) for one in server.events.values()] == [(2, "2 of 3")]


async def test_an_event_is_retried_for_an_hour_at_most(soon: None) -> None:
    server, numbers, now = FailingServer(*[500] * 1000), Numbers(), [NOW]
    async with client_of(server.answer) as client:
        recorder = EventRecorder(client, lambda: now[0], numbers, rate_limiter=unlimited())
        async with at_work(recorder):
            recorder.record(POD, "Normal", "R", "x")
            await until(lambda: server.asked > 20)
            assert not numbers.dropped
            now[0] += 3600
            await until(lambda: numbers.dropped)
    assert numbers.dropped == {"late": 1}


async def test_of_too_many_failing_events_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_MAX_RETRYING", 3)
    server, numbers = FailingServer(*[500] * 10), Numbers()
    async with client_of(server.answer) as client:
        recorder = EventRecorder(client, lambda: NOW, numbers, rate_limiter=unlimited())
        async with at_work(recorder):
            for i in range(10):
                recorder.record(POD._replace(uid=str(i)), "Normal", "R", "x")
            await until(lambda: len(server.events) == 3)
    assert numbers.dropped == {"full": 7}


async def test_the_rate_of_events_is_limited() -> None:
    written: list[Json] = []

    async def handle(request: web.Request) -> web.Response:
        written.append(await request.json())
        return web.json_response(written[-1])

    async with client_of(handle) as client:
        recorder = EventRecorder(client, lambda: NOW, Numbers(), rate_limiter=RateLimiter(20, 20))
        begun = asyncio.get_running_loop().time()
        async with at_work(recorder):
            for i in range(26):
                recorder.record(POD._replace(uid=str(i)), "Normal", "R", "x")
            await until(lambda: len(written) == 26)
    assert asyncio.get_running_loop().time() - begun > 0.25  # 20 at once, 6 more at 20 a second


async def test_a_message_is_one_line_that_the_api_accepts() -> None:
    async with local() as (client, recorder):
        recorder.record(
            reference_to(PODS, Meta(name="p", namespace="default", uid="u")), "Normal", "R", "a\nb" + "c" * 5000
        )
        (event,) = await read(client, lambda found: len(found) == 1)
        assert event["message"].startswith("a bccc")
        assert len(event["message"]) < 1024


async def test_slow_events_of_one_namespace_do_not_delay_those_of_others() -> None:
    written: list[str] = []
    over = asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        if "/namespaces/slow/" in request.path:
            await over.wait()
        written.append(body["message"])
        return web.json_response(body)

    async with client_of(handle, in_flight=20) as client:
        recorder = EventRecorder(client, lambda: NOW, Numbers(), rate_limiter=unlimited())
        async with at_work(recorder):
            for number in range(8):
                recorder.record(POD._replace(uid=str(number), namespace="slow"), "Warning", "R", "slow")
            recorder.record(POD, "Warning", "Degraded", "1 of 2")
            await until(lambda: written)
            assert written == ["1 of 2"]
            over.set()
            await until(lambda: len(written) == 9)


async def test_an_event_that_fails_is_merged_with_its_repeat(soon: None) -> None:
    server, first = FailingServer(500), asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        answer = await server.answer(request)
        await first.wait()
        return answer

    async with client_of(handle) as client:
        recorder = EventRecorder(client, lambda: NOW, Numbers(), rate_limiter=unlimited())
        async with at_work(recorder):
            recorder.record(POD, "Warning", "Degraded", "1 of 3")
            await until(lambda: server.asked)
            recorder.record(POD, "Warning", "Degraded", "2 of 3")
            first.set()
            await until(lambda: recorder._written)
    assert [(one["count"], one["message"]) for one in server.events.values()] == [(2, "2 of 3")]


async def test_an_event_that_waited_for_hours_is_dropped() -> None:
    server, numbers, now = FailingServer(), Numbers(), [NOW]
    async with client_of(server.answer) as client:
        recorder = EventRecorder(client, lambda: now[0], numbers, rate_limiter=unlimited())
        recorder.record(POD, "Normal", "R", "x")
        now[0] += 5 * 3600
        async with at_work(recorder):
            await until(lambda: numbers.dropped)
    assert (numbers.dropped, server.asked) == ({"late": 1}, 0)
