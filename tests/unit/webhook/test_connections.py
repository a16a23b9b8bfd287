"""Clients that hold connections to the webhook's server: reviews are answered all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from gpu_scheduler.webhook import server
from gpu_scheduler.webhook.connections import BodyReader
from gpu_scheduler.webhook.reviews import AdmissionResponse
from tests.unit.webhook.serving import Serving, head, served

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HALF = b"POST /mutate HTTP/1.1\r\nHost: localhost\r\n"


@asynccontextmanager
async def held(serving: Serving, number: int, sent: bytes) -> AsyncIterator[list[Stream]]:
    """Connections on which something was sent, and then nothing."""
    streams: list[Stream] = []
    try:
        for _ in range(number):
            streams.append(await serving.open())
            streams[-1][1].write(sent)
        yield streams
    finally:
        for _, writer in streams:
            writer.transport.abort()


async def ask(stream: Stream, body: bytes = b"{}") -> str:
    """The first line of the response to a review; the connection stays open."""
    reader, writer = stream
    writer.write(head(content_length=str(len(body))) + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(line for line in answer.split("\r\n") if line.startswith("Content-Length: "))
    await reader.readexactly(int(length.partition(" ")[2]))
    return answer.partition("\r\n")[0]


async def is_dropped(stream: Stream) -> bool:
    """Waits until the server closes the connection without a response."""
    with suppress(ConnectionError):
        return await stream[0].read() == b""
    return True


@pytest.mark.parametrize("sent", [b"", HALF, head(content_length="100") + b"{"], ids=["nothing", "half head", "body"])
async def test_a_new_connection_replaces_the_one_without_progress(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 4)
    async with served() as serving, held(serving, 4, sent) as streams, held(serving, 2, b"") as late:
        for stream in late:
            assert await ask(stream) == "HTTP/1.1 200 OK"
        for stream in streams[:2]:
            assert await is_dropped(stream), "the oldest go first"
        for _, writer in streams[2:]:
            assert not writer.is_closing()


async def test_the_connection_with_the_latest_response_is_dropped_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 3)
    async with served() as serving, held(serving, 3, b"") as (first, second, third):
        for stream in (second, third, first):
            assert await ask(stream) == "HTTP/1.1 200 OK"
        async with held(serving, 2, b"") as late:
            for stream in late:
                assert await ask(stream) == "HTTP/1.1 200 OK"
            assert await is_dropped(second)
            assert await is_dropped(third)
            assert await ask(first) == "HTTP/1.1 200 OK"


async def test_closed_connections_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 3)
    async with served() as serving, held(serving, 1, b"") as (first,):
        assert await ask(first) == "HTTP/1.1 200 OK"
        for _ in range(5):
            async with held(serving, 1, b"") as (brief,):
                assert await ask(brief) == "HTTP/1.1 200 OK"
        async with held(serving, 2, b"") as late:
            for stream in (*late, first):
                assert await ask(stream) == "HTTP/1.1 200 OK"


async def test_idle_connections_are_closed_when_the_server_stops() -> None:
    async with served() as serving:
        stream = await serving.open()
        assert await ask(stream) == "HTTP/1.1 200 OK"
    assert await is_dropped(stream)
    stream[1].close()


async def test_a_connection_without_a_request_is_dropped_and_one_with_a_response_may_be_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_FIRST_REQUEST_TIMEOUT", 0.5)
    async with served() as serving, held(serving, 1, b"") as (answered,):
        assert await ask(answered) == "HTTP/1.1 200 OK"
        async with held(serving, 2, HALF) as streams:
            for stream in streams:
                assert await is_dropped(stream)
        assert await ask(answered) == "HTTP/1.1 200 OK"


async def test_a_connection_without_a_tls_handshake_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_FIRST_REQUEST_TIMEOUT", 0.1)
    async with served() as serving:
        bare = await asyncio.open_connection("127.0.0.1", serving.port)
        async with asyncio.timeout(4.0):
            assert await is_dropped(bare)
        bare[1].close()


async def test_large_reviews_are_answered_while_a_hundred_arrive_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_TIMEOUT", 600.0)
    async with served() as serving, held(serving, 100, head(content_length="3000000") + b"{"):
        serving.answer = lambda _path, body: AdmissionResponse(b"{}", len(body) == 1_000_000)
        for _ in range(6):
            async with held(serving, 1, b"") as (stream,):
                assert await ask(stream, b"x" * 1_000_000) == "HTTP/1.1 200 OK"
    assert 'reviews_total{outcome="allowed",path="mutate"} 6.0' in serving.metrics.text().decode()


async def test_large_reviews_that_arrive_at_once_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_MEMORY", 1_500_000)
    monkeypatch.setattr(server, "_BODY_MEMORY_TIMEOUT", 600.0)
    monkeypatch.setattr(server, "READ_TIMEOUT", 600.0)
    async with served() as serving, held(serving, 8, b"") as streams:
        answers = await asyncio.gather(*(ask(stream, b"x" * 1_000_000) for stream in streams))
    assert answers == ["HTTP/1.1 200 OK"] * 8


class Arriving:
    """A body that arrives in pieces; one without an end blocks after the last piece."""

    def __init__(self, *pieces: bytes, ends: bool = True) -> None:
        self._pieces = list(pieces)
        self._ends = ends

    def at_eof(self) -> bool:
        return self._ends and not self._pieces

    async def readany(self) -> bytes:
        if not self._pieces:
            await asyncio.Event().wait()
        return self._pieces.pop(0)


async def test_memory_is_released_after_a_body_is_read() -> None:
    bodies = BodyReader(memory=10, memory_timeout=0.1)
    for _ in range(3):
        assert await bodies.read(cast(StreamReader, Arriving(b"01234", b"56789")), 10, 600.0) == b"0123456789"
    oldest = asyncio.create_task(bodies.read(cast(StreamReader, Arriving(b"x", ends=False)), 10, 600.0))
    await asyncio.sleep(0)
    assert await bodies.read(cast(StreamReader, Arriving(b"012345678")), 10, 600.0) == b"012345678"
    oldest.cancel()


async def test_a_review_that_waits_too_long_for_memory_is_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_MEMORY", 0)
    monkeypatch.setattr(server, "_BODY_MEMORY_TIMEOUT", 0.1)
    async with served() as serving, held(serving, 1, head(content_length="100") + b"{"), serving.session() as session:
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        async with held(serving, 1, head(content_length="100") + b"{") as (stream,):
            assert (await stream[0].readline()) == b"HTTP/1.1 503 Service Unavailable\r\n"


async def test_a_connection_closed_before_the_first_read_is_a_connection_error() -> None:
    loop = asyncio.get_running_loop()
    content = StreamReader(BaseProtocol(loop), 1 << 10, loop=loop)
    with pytest.raises(ConnectionError):
        await BodyReader(1 << 10, 1.0).read(content, 1 << 10, 1.0)
