"""Bytes on a connection, whole, in pieces or cut short: a server replies or closes in time, and serves the next
client."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from unittest.mock import patch

from gpu_scheduler.base.certificates import Certificate, issue, make_authority, server_context
from gpu_scheduler.k8s.logs import shorten_bad_requests
from gpu_scheduler.webhook import server as webhook
from gpu_scheduler.webhook.metrics import WebhookMetrics
from gpu_scheduler.webhook.reviews import AdmissionResponse, respond
from tests.embedded_kube.servers import PODS, api_server
from tests.fuzz.seeds import dump
from tests.fuzz.target import Input, Refused, Target
from tests.unit.webhook.reviewing import NODES, STRICT, mapped, review
from tests.unit.webhook.serving import head

Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

_QUICK = 0.5
"""The timeouts for an incomplete request, in seconds: long enough for a complete one on a busy machine."""
_RETRIES = 20
_LATE = 20.0
"""The limit for a reply or a close, in seconds."""
_PIECES = 5


async def _send(open_one: Open, how: str, body: bytes, patience: float) -> bytes:
    """Returns the first bytes of the reply; nothing if the server closes or the time is up."""
    reader, writer = await open_one()
    size = -(-len(body) // _PIECES) or 1 if how == "pieces" else len(body) or 1
    try:
        for at in range(0, len(body), size):
            writer.write(body[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        if how == "broken off":
            return b""
        async with asyncio.timeout(patience):
            return await reader.read(1 << 16)
    except (ConnectionError, ssl.SSLError):
        return b""
    finally:
        writer.transport.abort()


def _require_success(status: str) -> str:
    """Returns the status of a request that was understood."""
    if not status.startswith(("1", "2")):
        raise Refused(status)
    return status


def _status(reply: bytes) -> str:
    """The status of a reply, which must not be an internal error."""
    if not reply:
        return "no reply"
    assert reply.startswith(b"HTTP/"), reply[:300]
    status = reply.split(None, 2)[1].decode()
    # 501 is for an unknown transfer coding, 505 for a version other than HTTP/1.x.
    assert status[0] in "1234" or status in ("501", "505"), reply[:2000]
    return status


# -- the webhook


@cache
def _authority() -> Certificate:
    return make_authority()


@cache
def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    trust = ssl.create_default_context(cadata=_authority().certificate.decode())
    return server_context(issue(_authority(), "server")), trust


def _ask_webhook(given: Input) -> str:
    shorten_bad_requests()  # as every process with its own logging does
    with patch.multiple(webhook, READ_TIMEOUT=_QUICK, _FIRST_REQUEST_TIMEOUT=_QUICK, _SHUTDOWN_TIMEOUT=_QUICK):
        return _require_success(asyncio.run(_speak_to_webhook(given)))


async def _speak_to_webhook(given: Input) -> str:
    serves, trust = _contexts()

    async def answer(path: webhook.ReviewPath, body: bytes) -> AdmissionResponse:
        return respond(path, body, STRICT, NODES)

    server = webhook.WebhookServer(answer, WebhookMetrics(), lambda: True, 0.0)
    async with server.serving("127.0.0.1:0", serves) as port:

        def connect() -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
            return asyncio.open_connection("127.0.0.1", port, ssl=trust)

        status = _status(await _send(connect, given.head, given.body, _LATE))
        for _ in range(_RETRIES):  # a busy machine may not send a whole request within the server's short timeout
            served = _status(await _send(connect, "whole", _POSTED, _LATE))
            if served != "no reply":
                break
        assert served == "200"
    return status


_REVIEW = dump(review(mapped()))
_POSTED = head(content_length=str(len(_REVIEW))) + _REVIEW


def _send_each(requests: Iterable[bytes], *ways: str) -> list[Input]:
    return [Input(how, request) for request in requests for how in ways]


def _reviews() -> list[bytes]:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (_REVIEW[:100], _REVIEW[100:], b""))
    return [
        _POSTED,
        head("/validate", transfer_encoding="chunked") + chunks,
        head(content_length=str(len(_REVIEW)), expect="100-continue") + _REVIEW,
        _POSTED + _POSTED,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]


_ODD_REVIEWS = [
    head(content_length=str(webhook.MAX_REVIEW_BYTES + 1)) + _REVIEW,
    head(content_length=str(2 * len(_REVIEW))) + _REVIEW,  # fewer bytes than Content-Length says
    head(content_length=str(len(_REVIEW) // 2)) + _REVIEW,  # and more
    _POSTED[:60],
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


# -- the local API server


def _ask_api(given: Input) -> str:
    return _require_success(asyncio.run(_speak_to_api(given)))


async def _speak_to_api(given: Input) -> str:
    async with api_server() as found:

        def connect() -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
            return asyncio.open_connection(found.client.host, found.client.port)

        try:
            status = _status(await _send(connect, given.head, given.body, _QUICK))
        except TimeoutError:
            status = "no reply"  # it waits for the rest without a limit: its clients are local
        assert await found.names(PODS) is not None
    return status


def _requests(*asked: tuple[str, str]) -> list[bytes]:
    pod = dump({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    return [
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {table}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(pod)}\r\n\r\n".encode()
        + pod
        for method, path in asked
    ]


_PAGE = base64.urlsafe_b64encode(dump({"revision": 1, "namespace": "default", "name": "a"})).decode().rstrip("=")
_REQUESTS = _requests(
    ("GET", f"{PODS}?limit=5&continue={_PAGE}&labelSelector=a%3Db,c!=d,e+in+(f)&fieldSelector=spec.nodeName%3Dx"),
    ("GET", f"{PODS}?watch=true&resourceVersion=1&timeoutSeconds=1&allowWatchBookmarks=true"),
    ("GET", f"{PODS}?resourceVersion=1&resourceVersionMatch=Exact"),
    ("POST", f"{PODS}?dryRun=All&fieldManager=f&fieldValidation=Strict"),
    ("GET", "/openapi/v3/api/v1?hash=abc"),
    ("GET", "/apis"),
)
_ODD_REQUESTS = _requests(
    ("GET", f"{PODS}?limit=5&continue=abc"),
    ("DELETE", f"{PODS}/a?gracePeriodSeconds=0&propagationPolicy=Foreground"),
    ("PATCH", f"{PODS}/a?force=true"),
    ("GET", f"{PODS}/a/log?follow=true&tailLines=5&sinceSeconds=1&container=c"),
)
TARGETS = (
    Target(
        "webhook-http",
        _ask_webhook,
        _send_each(_reviews(), "whole", "pieces"),
        odd=[*_send_each(_ODD_REVIEWS, "whole", "pieces"), *_send_each((*_reviews(), *_ODD_REVIEWS), "broken off")],
    ),
    Target(
        "local-http",
        _ask_api,
        _send_each(_REQUESTS, "whole"),
        odd=[*_send_each(_ODD_REQUESTS, "whole"), *_send_each((*_REQUESTS, *_ODD_REQUESTS), "broken off")],
    ),
)
