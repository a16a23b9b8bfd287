"""The TLS server that API servers ask: /mutate and /validate, and what a service says about itself."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import structlog
from aiohttp import web

from gpu_scheduler.gangs.contract import WEBHOOK
from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.k8s.health import PATHS, Health, describe_os_error, split_address
from gpu_scheduler.webhook.connections import BodyMemoryExhausted, BodyReader, BodyTimeout, BodyTooLarge, BoundedServer
from gpu_scheduler.webhook.metrics import WebhookMetrics
from gpu_scheduler.webhook.reviews import AdmissionResponse, BadReview

ReviewPath = Literal["mutate", "validate"]
ReviewFunction = Callable[[ReviewPath, bytes], AdmissionResponse]

MAX_REVIEW_BYTES = 3 << 20
"""The largest review, in bytes: an API server takes objects of half that size, and sends the old one and the new."""
READ_TIMEOUT = 2.0
"""How long a review may take to arrive, in seconds."""

_REVIEW_PATHS: dict[str, ReviewPath] = {"/mutate": "mutate", "/validate": "validate"}
_BODY_MEMORY = 16 * MAX_REVIEW_BYTES
"""How many bytes of reviews that have not arrived whole are kept; those that come in one piece need no room."""
_BODY_MEMORY_TIMEOUT = 5.0
"""How long a review may wait for such room, in seconds."""
_MAX_CONNECTIONS = 512
_FIRST_REQUEST_TIMEOUT = 5.0
"""How long a connection may take to send the head of its first request, in seconds; before that, as long for TLS."""
_KEEPALIVE_TIMEOUT = 120.0
"""Longer than API servers keep silent connections (90 s): else one may be closed just when a review is sent on it."""
_SHUTDOWN_TIMEOUT = 5.0
"""How long a review may take that is being answered when the server stops, in seconds."""

_admission_log = logging.getLogger()  # what happens to pods is said by "root": the line is part of the public contract
_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


class WebhookServer:
    """Answers reviews, one after the other. `linger` is how long it goes on after it has said that it will stop."""

    def __init__(
        self, review: ReviewFunction, metrics: WebhookMetrics, ready: Callable[[], bool], linger: float = 2.0
    ) -> None:
        self._review = review
        self._metrics = metrics
        self._linger = linger
        self._stopping = False
        self._bodies = BodyReader(_BODY_MEMORY, _BODY_MEMORY_TIMEOUT)
        self._health = Health(WEBHOOK, ready=lambda: ready() and not self._stopping, metrics=metrics.text)

    @asynccontextmanager
    async def serving(self, address: str, context: ssl.SSLContext) -> AsyncIterator[int]:
        """Serves at an address while the block runs; yields the port, which matters where 0 was asked for."""
        host, port = split_address(address)
        # Not a web.Application: its routes and middlewares would cost a third of the time of a review.
        how = {
            "access_log": None,
            "auto_decompress": False,
            "keepalive_timeout": _KEEPALIVE_TIMEOUT,
            "lingering_time": 1.0,
        }
        connections = BoundedServer(self._handle, _MAX_CONNECTIONS, _FIRST_REQUEST_TIMEOUT, **how)
        loop = asyncio.get_running_loop()
        try:
            listening = await loop.create_server(
                connections,
                host,
                port,
                ssl=context,
                backlog=1024,
                ssl_handshake_timeout=_FIRST_REQUEST_TIMEOUT,
                ssl_shutdown_timeout=1.0,
            )
        except OSError as error:
            raise ConfigError(f'address "{address}" cannot be listened on: {describe_os_error(error)}') from error
        try:
            yield int(listening.sockets[0].getsockname()[1])
            # API servers go on sending reviews until they have learnt that this one stops.
            self._stopping = True
            await asyncio.sleep(self._linger)
        finally:
            listening.close()
            connections.pre_shutdown()
            await connections.shutdown(_SHUTDOWN_TIMEOUT)
            await listening.wait_closed()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        place = request.raw_path.partition("?")[0]
        path = _REVIEW_PATHS.get(place)
        if path is None:
            if place in PATHS:
                return await self._health.answer(request)
            return _reply(
                404, f"nothing answers here; there is POST {', '.join(_REVIEW_PATHS)} and GET {', '.join(PATHS)}"
            )
        refused = _check_headers(request)
        if refused is None:
            body = await self._read_body(request)
            refused = body if isinstance(body, web.Response) else None
        if refused is not None:
            self._metrics.reviews[path, "refused"].inc()
            refused.force_close()  # its body is not waited for
            return refused
        assert isinstance(body, bytes)
        response = self._handle_review(path, body)
        if self._stopping:
            response.force_close()
        return response

    def _handle_review(self, path: ReviewPath, body: bytes) -> web.Response:
        metrics = self._metrics
        begun = time.perf_counter()
        try:
            answer = self._review(path, body)
        except BadReview as error:
            metrics.reviews[path, "refused"].inc()
            return _reply(400, str(error))
        except Exception:
            metrics.reviews[path, "failed"].inc()
            _log.exception("a review failed", path=path, size=len(body))
            return _reply(500, "the review failed by an error of the webhook's own, which its log has")
        metrics.reviews[path, "allowed" if answer.allowed else "denied"].inc()
        for line in answer.log:
            _admission_log.info(line)
        metrics.seconds[path].observe(time.perf_counter() - begun)
        return web.Response(body=answer.body, headers=_JSON)

    async def _read_body(self, request: web.BaseRequest) -> bytes | web.Response:
        """A review's body, or why it is not read."""
        content = request.content
        if content.is_eof():
            return content.read_nowait()
        try:
            return await self._bodies.collect(content, MAX_REVIEW_BYTES, READ_TIMEOUT)
        except BodyTooLarge:
            return _too_large()
        except BodyTimeout:
            return _reply(408, f"the review did not arrive within {READ_TIMEOUT:g} s")
        except BodyMemoryExhausted:
            return _reply(503, "too many large reviews arrive at once; send it again")
        except (web.RequestPayloadError, ConnectionError):
            return _reply(400, "the review broke off")


_JSON = {"Content-Type": "application/json"}


def _check_headers(request: web.BaseRequest) -> web.Response | None:
    """Why a request cannot be a review; nothing when it may be one."""
    headers = request.headers
    if request.method != "POST":
        return _reply(405, f"{request.method} is not answered here; send an AdmissionReview by POST", Allow="POST")
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return _reply(415, f'Content-Type must be application/json, not "{kind}"')
    if headers.get("Content-Encoding", "identity") != "identity":
        return _reply(415, "Content-Encoding must be left out: a compressed review is not read")
    return _too_large() if (request.content_length or 0) > MAX_REVIEW_BYTES else None


def _too_large() -> web.Response:
    return _reply(413, f"the review is larger than {MAX_REVIEW_BYTES} bytes")


def _reply(status: int, line: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=line + "\n", headers=headers)
