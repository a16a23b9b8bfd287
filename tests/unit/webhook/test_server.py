"""The webhook's server: requests, invalid requests, limits and shutdown."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import re
import ssl
import time
import warnings

import aiohttp
import pytest

from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.webhook import server
from gpu_scheduler.webhook.metrics import WebhookMetrics
from gpu_scheduler.webhook.reviews import AdmissionResponse, BadReview
from gpu_scheduler.webhook.server import MAX_REVIEW_BYTES, ReviewPath, WebhookServer
from tests.unit.webhook.serving import Serving, head, served

JSON = {"Content-Type": "application/json"}
EDGES = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 2]
"""The buckets of the histogram, which dashboards and alerts depend on."""
LINE = "Injecting CUDA_VISIBLE_DEVICES=0,1 for pod webhook-test-0 (index 0)"


async def status(reader: asyncio.StreamReader) -> tuple[int, str]:
    """The status and body of a response after which the server closes the connection."""
    answer = (await reader.read()).decode()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("method", "path", "headers", "code", "line"),
    [
        ("POST", "/mutate?timeout=5s", JSON, 200, "mutate: review"),
        ("POST", "/validate", {"Content-Type": "application/json; charset=utf-8"}, 200, "validate: review"),
        ("GET", "/mutate", JSON, 405, "GET is not supported; send an AdmissionReview by POST\n"),
        ("PUT", "/validate", JSON, 405, "PUT is not supported; send an AdmissionReview by POST\n"),
        (
            "POST",
            "/mutate",
            {"Content-Type": "text/plain"},
            415,
            'Content-Type must be application/json, not "text/plain"\n',
        ),
        (
            "POST",
            "/mutate",
            {**JSON, "Content-Encoding": "gzip"},
            415,
            "Content-Encoding is not supported; send the review uncompressed\n",
        ),
        (
            "POST",
            "/elsewhere",
            JSON,
            404,
            "not found; use POST /mutate, /validate or GET /health, /healthz, /readyz, /metrics\n",
        ),
        ("GET", "/health", {}, 200, '{"service":"gpu-scheduler-webhook","status":"healthy"}'),
        ("GET", "/healthz", {}, 200, "ok"),
        ("GET", "/readyz", {}, 200, "ok"),
    ],
    ids=lambda value: str(value) if isinstance(value, int | str) else "",
)
async def test_invalid_requests_get_their_status_and_one_line(
    method: str, path: str, headers: dict[str, str], code: int, line: str
) -> None:
    async with served() as serving, serving.session() as session:
        serving.answer = lambda path, body: AdmissionResponse(f"{path}: {body.decode()}".encode(), True)
        async with session.request(method, path, data=b"review", headers=headers) as answer:
            assert (answer.status, await answer.text()) == (code, line)
            assert "\n" not in line[:-1]


async def test_headers_that_are_not_utf8_are_refused_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as serving:
        reader, writer = await serving.open()
        writer.write(head(content_type="@", content_length="6").replace(b"@", b"text/\xe1\xff") + b"review")
        assert await status(reader) == (415, 'Content-Type must be application/json, not "text/\ufffd\ufffd"\n')
        writer.close()
    assert not caplog.records


async def test_an_invalid_body_is_refused_with_its_problem() -> None:
    def refuse(_path: ReviewPath, _body: bytes) -> AdmissionResponse:
        raise BadReview("the body must be an AdmissionReview, not a list")

    async with served() as serving, serving.session() as session:
        serving.answer = refuse
        async with session.post("/mutate", data=b"[]", headers=JSON) as answer:
            assert (answer.status, await answer.text()) == (400, "the body must be an AdmissionReview, not a list\n")
    assert 'reviews_total{outcome="refused",path="mutate"} 1.0' in serving.metrics.text().decode()


async def test_an_unexpected_error_is_one_line_for_the_caller_and_a_trace_in_the_log(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_path: ReviewPath, _body: bytes) -> AdmissionResponse:
        raise ZeroDivisionError("no such thing")

    async with served() as serving, serving.session() as session:
        serving.answer = fail
        for _ in range(2):  # the connection and the server live on
            async with session.post("/validate", data=b"{}", headers=JSON) as answer:
                assert answer.status == 500
                assert await answer.text() == "internal error of the webhook; its log has the details\n"
    logged = caplog.text + capsys.readouterr().out
    assert "ZeroDivisionError: no such thing" in logged
    assert 'reviews_total{outcome="failed",path="validate"} 2.0' in serving.metrics.text().decode()


async def test_lines_of_a_review_are_logged_by_root(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served() as serving, serving.session() as session:
        serving.answer = lambda _path, _body: AdmissionResponse(b"{}", True, (LINE,))
        async with session.post("/mutate", data=b"{}", headers=JSON) as answer:
            assert answer.status == 200
    assert [(one.name, one.levelname, one.message) for one in caplog.records if "CUDA" in one.message] == [
        ("root", "INFO", LINE)
    ]


async def test_metrics_count_outcomes_and_durations() -> None:
    begun = time.perf_counter()
    async with served() as serving, serving.session() as session:
        serving.answer = lambda path, _body: AdmissionResponse(b"{}", path == "mutate")
        for path in ("/mutate", "/validate", "/validate"):
            async with session.post(path, data=b"{}", headers=JSON) as answer:
                assert answer.status == 200
        async with session.get("/metrics") as answer:
            text = await answer.text()
    assert 'gpu_scheduler_webhook_reviews_total{outcome="allowed",path="mutate"} 1.0' in text
    assert 'gpu_scheduler_webhook_reviews_total{outcome="denied",path="validate"} 2.0' in text
    assert 'gpu_scheduler_webhook_review_seconds_count{path="validate"} 2.0' in text
    edges = re.findall(r'^gpu_scheduler_webhook_review_seconds_bucket{le="(\S+)",path="mutate"}', text, re.MULTILINE)
    assert [float(edge) for edge in edges] == [*EDGES, math.inf]
    told = re.search(r'^gpu_scheduler_webhook_review_seconds_sum{path="validate"} (\S+)$', text, re.MULTILINE)
    assert told is not None
    assert 0.0 < float(told[1]) < time.perf_counter() - begun


# -- large and slow


@pytest.mark.parametrize("size", [MAX_REVIEW_BYTES, MAX_REVIEW_BYTES - 1])
async def test_the_largest_review_is_read(size: int) -> None:
    async with served() as serving, serving.session() as session:
        serving.answer = lambda _path, body: AdmissionResponse(str(len(body)).encode(), True)
        async with session.post("/mutate", data=io.BytesIO(b"x" * size), headers=JSON) as answer:
            assert (answer.status, await answer.text()) == (200, str(size))


async def test_a_review_with_too_large_a_content_length_is_refused_before_it_is_sent() -> None:
    async with served() as serving:
        reader, writer = await serving.open()
        writer.write(head(content_length=str(MAX_REVIEW_BYTES + 1)))
        assert await status(reader) == (413, f"the review is larger than {MAX_REVIEW_BYTES} bytes\n")
        writer.close()
    assert 'reviews_total{outcome="refused",path="mutate"} 1.0' in serving.metrics.text().decode()


async def test_a_review_that_turns_out_too_large_is_refused_in_the_middle() -> None:
    async with served() as serving:
        reader, writer = await serving.open()
        writer.write(head(transfer_encoding="chunked"))
        sent = 0
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        while sent <= MAX_REVIEW_BYTES:
            writer.write(piece)
            sent += 0x10000
        assert (await status(reader))[0] == 413
        writer.close()


async def test_a_slow_review_times_out_while_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "READ_TIMEOUT", 0.2)
    async with served() as serving, serving.session() as session:
        slow = [await serving.open() for _ in range(40)]  # more than are collected at a time
        for _, writer in slow:
            writer.write(head(content_length="100") + b"{")
        async with session.post("/mutate", data=b"{}", headers=JSON) as answer:
            assert answer.status == 200
        for reader, writer in slow:
            assert await status(reader) == (408, "the review did not arrive within 0.2 s\n")
            writer.close()


async def test_a_client_that_disconnects_in_the_middle_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as serving, serving.session() as session:
        _, writer = await serving.open()
        writer.write(head(content_length="100") + b"{")
        await writer.drain()
        writer.transport.abort()
        async with session.post("/mutate", data=b"{}", headers=JSON) as answer:
            assert answer.status == 200
    assert "Traceback" not in caplog.text


# -- TLS


async def test_tls_before_1_2_is_refused() -> None:
    async with served() as serving:
        context = serving.trust()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", serving.port, ssl=context)
        reader, writer = await serving.open()
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.close()
        assert reader.at_eof() is False


async def test_certificates_change_under_traffic_and_no_handshake_fails() -> None:
    async with served() as serving:
        over, news = asyncio.Event(), asyncio.Event()
        seen: set[bytes] = set()
        kept = await serving.open()

        async def connect() -> None:
            while not over.is_set():
                _, writer = await serving.open()
                shown = writer.get_extra_info("ssl_object").getpeercert(True)
                if shown not in seen:
                    seen.add(shown)
                    news.set()
                writer.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(connect())
            for _ in range(10):
                await news.wait()
                news.clear()
                serving.show_another()
            await news.wait()
            over.set()
        assert len(seen) == 11
        kept[1].write(head(content_length="2", connection="close") + b"{}")
        assert (await status(kept[0]))[0] == 200, "a connection from before is not dropped"
        kept[1].close()


# -- starting and stopping


async def test_an_address_in_use_is_an_error_in_one_line() -> None:
    async def review(path: ReviewPath, body: bytes) -> AdmissionResponse:
        raise AssertionError

    async with served() as serving:
        again = WebhookServer(review, WebhookMetrics(), lambda: True)
        with pytest.raises(ConfigError, match=re.escape(f'cannot listen on "127.0.0.1:{serving.port}"')):
            async with again.serving(f"127.0.0.1:{serving.port}", serving.context):
                pass


async def test_a_server_that_is_not_ready_still_answers_reviews() -> None:
    async with served() as serving, serving.session() as session:
        serving.ready = False
        async with session.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (503, "not ready")
        async with session.get("/healthz") as answer:
            assert answer.status == 200
        async with session.post("/mutate", data=b"{}", headers=JSON) as answer:
            assert answer.status == 200


async def test_a_stopping_server_reports_not_ready_and_finishes_reviews() -> None:
    told: asyncio.Queue[Serving] = asyncio.Queue()
    stop = asyncio.Event()

    async def run() -> None:
        async with served(linger=0.3) as serving:
            told.put_nowait(serving)
            await stop.wait()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(run())
        serving = await told.get()
        async with serving.session() as session:
            reader, writer = await serving.open()
            writer.write(head(content_length="2") + b"{")
            async with session.get("/readyz") as answer:
                assert answer.status == 200
            stop.set()
            while True:
                async with session.get("/readyz") as answer:
                    if answer.status == 503:
                        break
            async with session.post("/mutate", data=b"{}", headers=JSON) as answer:
                assert (answer.status, answer.headers["Connection"]) == (200, "close")
            writer.write(b"}")
            assert (await status(reader))[0] == 200
            writer.close()
        await running
        with pytest.raises(aiohttp.ClientConnectionError):
            async with serving.session() as session, session.get("/healthz"):
                pass
