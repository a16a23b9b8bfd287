"""Log lines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Callable, Iterator

import pytest
import structlog

from gpu_scheduler.k8s.logs import LogFormat, configure_logging, log_broken_connection
from gpu_scheduler.webhook.reviews import AdmissionResponse
from tests.unit.webhook.serving import head, served

SetUp = Callable[[LogFormat, str], io.StringIO]


@pytest.fixture
def set_up() -> Iterator[SetUp]:
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def begin(form: LogFormat, level: str) -> io.StringIO:
        stream = io.StringIO()
        configure_logging(form, level, stream)
        return stream

    yield begin
    root.handlers[:], root.level = before
    structlog.reset_defaults()


def test_console_line_has_time_logger_level_text_and_the_gang(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    structlog.get_logger("gpu_scheduler.x").info("started", gang="team-a/train", pods=8, why="two words")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - gpu_scheduler\.x - INFO - started "
        r'gang=team-a/train pods=8 why="two words"\n',
        stream.getvalue(),
    )


def test_lines_of_libraries_have_the_same_format(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    logging.getLogger().info("Injecting CUDA_VISIBLE_DEVICES=%s for pod %s", "0,1", "webhook-test-0")
    assert re.fullmatch(
        r".{23} - root - INFO - Injecting CUDA_VISIBLE_DEVICES=0,1 for pod webhook-test-0\n", stream.getvalue()
    )


@pytest.mark.parametrize(
    "text", ["Injecting 100% of it", "two\nlines\x1b[31m", "Authorization: Bearer abc.def", "", "=", "käse ✅"]
)
def test_a_line_without_fields_has_the_same_format(set_up: SetUp, text: str) -> None:
    stream = set_up("console", "info")
    logging.getLogger("x").warning(text)
    logging.getLogger("x").warning("%s", text)
    logging.getLogger("x").warning(text, extra={"n": 1})
    # Without the time, which has 23 characters.
    plain, formatted, extra = [line[23:] for line in stream.getvalue().splitlines()]
    assert plain == formatted
    assert extra == f"{plain} n=1"
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - ", stream.getvalue())


def test_json_lines_have_the_same_fields(set_up: SetUp) -> None:
    stream = set_up("json", "debug")
    structlog.get_logger("x").warning("waits", gang="team-a/train")
    logging.getLogger("y").debug("library", extra={"n": 1})
    ours, theirs = map(json.loads, stream.getvalue().splitlines())
    assert ours.pop("time").endswith("Z")
    assert ours == {"event": "waits", "gang": "team-a/train", "logger": "x", "level": "warning"}
    assert (theirs["event"], theirs["logger"], theirs["n"]) == ("library", "y", 1)


def test_lines_below_the_level_are_not_written(set_up: SetUp) -> None:
    stream = set_up("console", "warning")
    structlog.get_logger("x").info("quiet")
    logging.getLogger("y").info("quiet")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("form", ["console", "json"])
def test_secrets_are_not_written(set_up: SetUp, form: LogFormat) -> None:
    stream = set_up(form, "info")
    log = structlog.get_logger("x")
    log.info("asked", token="abc123", headers="Authorization: Bearer abc123")
    logging.getLogger("y").info("sent Bearer abc123")
    try:
        raise ValueError("refused Bearer abc123")
    except ValueError:
        log.exception("failed")
    assert "abc123" not in stream.getvalue()
    assert "***" in stream.getvalue()


def test_a_value_cannot_forge_a_line(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    structlog.get_logger("x").info("seen\nforged", name='a" b\r\nc')
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r'seen\nforged name="a\" b\r\nc"')


def test_exception_follows_its_line(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("x").exception("failed", gang="a/b")
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("ERROR - failed gang=a/b")
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: broken"


@pytest.mark.parametrize("form", ["console", "json"])
def test_text_that_is_not_unicode_is_written(set_up: SetUp, form: LogFormat) -> None:
    set_up(form, "info")
    written = io.BytesIO()
    configure_logging(form, "info", io.TextIOWrapper(written, "utf-8", "strict", write_through=True))
    text = "GET /\udce1\ud800"
    logging.getLogger("x").info(text)
    try:
        raise ValueError(text)
    except ValueError:
        structlog.get_logger("x").exception(text, path=text)
    lines = written.getvalue().decode().splitlines()
    assert "ValueError: GET /" in lines[-1]
    assert len([line for line in lines if "GET /" in line]) == (3 if form == "console" else 2)


BAD_REQUESTS = {
    "path": b"POST /mutate\xe1\xff HTTP/1.1\r\nHost: h\r\n\r\n",
    "encoded surrogate": b"GET /\xed\xa0\x80 HTTP/1.1\r\nHost: h\r\n\r\n",
    "method": b"P\xe1\xffT /mutate HTTP/1.1\r\nHost: h\r\n\r\n",
    "version": b"GET / HTTP/\xe1.\xff\r\nHost: h\r\n\r\n",
    "name of a header": b"GET / HTTP/1.1\r\nHost: h\r\n\xe1\xff: 1\r\n\r\n",
    "header": b"POST /mutate HTTP/1.1\r\nHost: \xe1\xff\r\nContent-Type: \xe1\xff\r\nContent-Length: 2\r\n\r\n{}",
    "failing review": head(content_length="2") + b"\xe1\xff",
}


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("request_", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
async def test_requests_to_the_webhook_that_are_not_utf8_are_logged(
    set_up: SetUp, monkeypatch: pytest.MonkeyPatch, request_: bytes, form: LogFormat
) -> None:
    set_up(form, "debug")
    written, failed = io.BytesIO(), list[logging.LogRecord]()
    configure_logging(form, "debug", io.TextIOWrapper(written, "utf-8", "strict", write_through=True))
    monkeypatch.setattr(logging.Handler, "handleError", lambda _, record: failed.append(record))

    def fail(_path: str, body: bytes) -> AdmissionResponse:
        raise ValueError(body.decode("utf-8", "surrogateescape"))

    async with served() as serving:
        serving.answer = fail
        reader, writer = await serving.open()
        writer.write(request_)
        assert (await reader.readline()).split()[1][:1] in (b"4", b"5")
        writer.close()
    assert not failed
    assert ("review failed" in written.getvalue().decode()) == request_.endswith(b"\n\xe1\xff")


async def test_a_broken_connection_is_logged_in_one_line_and_other_exceptions_in_full(set_up: SetUp) -> None:
    stream, loop = set_up("console", "info"), asyncio.get_running_loop()
    loop.set_exception_handler(log_broken_connection)
    error = ValueError("a mistake")
    loop.call_exception_handler({"message": "Fatal error on SSL protocol", "exception": error, "protocol": object()})
    assert stream.getvalue().count("\n") == 1
    assert "connection failed" in stream.getvalue()
    loop.call_exception_handler({"message": "a task failed", "exception": error})
    assert "ValueError: a mistake" in stream.getvalue().splitlines()[-1]


async def test_invalid_http_requests_are_logged_in_one_line(set_up: SetUp) -> None:
    stream = set_up("console", "info")
    async with served() as serving:
        for sent in (b"POST /mutate HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"):
            reader, writer = await serving.open()
            writer.write(sent)
            assert b" 400 Bad Request" in await reader.read()
            writer.close()
    lines = [line.partition(" - ")[2] for line in stream.getvalue().splitlines()]
    assert lines == [
        "aiohttp.server - INFO - Invalid HTTP request from 127.0.0.1 (BadHttpMessage)",
        "aiohttp.server - INFO - Invalid HTTP request from 127.0.0.1 (InvalidURLError)",
    ]
