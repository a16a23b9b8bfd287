"""Decoding of unexpected responses: an invalid object is skipped, the others are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_scheduler.k8s.codec import UNREADABLE, read_error, read_events, read_object, read_page
from gpu_scheduler.k8s.errors import ApiError, Undecided
from gpu_scheduler.k8s.objects import NodeObject, RawObject
from tests.unit.k8s.scripted_api import thing

DEEP = '{"a":' * 5000 + "1" + "}" * 5000
GOOD = json.dumps(thing("good", 7))
ODD = {
    "a spec that is nested 5,000 deep": '{"metadata":{"name":"odd","resourceVersion":"5"},"spec":' + DEEP + "}",
    "a spec that is nested 300 deep": '{"metadata":{"name":"odd"},"spec":' + '{"a":' * 300 + "1" + "}" * 301,
    "bytes that are no UTF-8": '{"metadata":{"name":"\udcff"}}',
    "no metadata": '{"spec":{}}',
    "metadata of another type": '{"metadata":[1]}',
    "a label that is a number": '{"metadata":{"name":"odd","labels":{"a":1}}}',
    "null": "null",
}


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_a_list_skips_and_logs_an_object_that_cannot_be_decoded(odd: str) -> None:
    body = b'{"metadata":{"resourceVersion":"9"},"items":[' + as_bytes(",".join((GOOD, odd, GOOD))) + b"]}"
    with capture_logs() as logs:
        page = read_page(body, RawObject)
    assert [found.metadata.name for found in page.items or ()] == ["good", "good"]
    assert [entry["event"].partition(":")[0] for entry in logs] == ["object skipped"]


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_a_watch_continues_after_an_object_that_cannot_be_decoded(odd: str) -> None:
    lines = as_bytes("\n".join('{"type":"ADDED","object":' + found + "}" for found in (GOOD, odd, GOOD)))
    events = read_events(lines, RawObject)
    known = [event.object.metadata.name for event in events if event.type != UNREADABLE]
    assert known == ["good", "good"]


@pytest.mark.parametrize(
    "data",
    [
        b'{"metadata":{"name":"\xff"}}',
        b"[" * 5000,
        b"{",
        b'{"metadata":{"name":"a"},"spec":' + b'{"a":' * 5000,
        b'{"metadata":{"name":"a"},"spec":' + b'{"a":' * 2000 + b'"' + b'\\"' * 100_000,
    ],
    ids=["bytes", "deep", "cut", "deep and cut", "an endless string"],
)
def test_an_invalid_response_is_undecided(data: bytes) -> None:
    with pytest.raises(Undecided, match="sent invalid data"):
        read_object(data, RawObject)


def test_a_bookmark_without_metadata_is_skipped() -> None:
    lines = b'{"type":"BOOKMARK","object":{}}\n{"type":"ADDED","object":%b}' % GOOD.encode()
    assert [event.type for event in read_events(lines, RawObject)] == ["ADDED"]


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [("9" * 400, {}, 60.0), (None, {"retryAfterSeconds": 1e300}, 60.0), (None, {"retryAfterSeconds": -5}, 0.0)],
    ids=["header", "status", "negative"],
)
def test_retry_after_is_capped(header: str | None, details: dict[str, Any], seconds: float) -> None:
    error = read_error(429, json.dumps({"details": details}).encode(), header)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    "data", [b'{"message":"a\\nb"}', b"a\x00b\xff", b"[" * 5000], ids=["a line break", "control", "deep"]
)
def test_an_error_message_is_one_line(data: bytes) -> None:
    error: ApiError = read_error(500, data, None)
    assert error.message
    assert error.message.isprintable()


def test_a_node_with_an_invalid_taint_is_skipped() -> None:
    node = {**thing("n", 1), "spec": {"taints": [{"key": {}, "effect": "NoSchedule"}]}}
    page = read_page(json.dumps({"metadata": {}, "items": [node]}).encode(), NodeObject)
    assert page.items == []
