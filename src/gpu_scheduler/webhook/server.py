"""The HTTPS server for API servers: /mutate and /validate, and the health and metrics endpoints."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

import structlog
from aiohttp import web

from gpu_scheduler.base.text import encodable
from gpu_scheduler.gangs.contract import WEBHOOK
from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.k8s.health import PATHS, Health, describe_os_error, split_address
from gpu_scheduler.webhook.connections import BodyMemoryExhausted, BodyReader, BodyTimeout, BodyTooLarge, BoundedServer
from gpu_scheduler.webhook.metrics import WebhookMetrics
from gpu_scheduler.webhook.reviews import AdmissionResponse, BadReview

ReviewPath = Literal["mutate", "validate"]
ReviewFunction = Callable[[ReviewPath, bytes], Awaitable[AdmissionResponse]]

MAX_REVIEW_BYTES = 3 << 20
"""The largest review. API servers accept objects of half that size, and send the old and the new one."""
READ_TIMEOUT = 2.0
"""Seconds that a review may take to arrive."""

_REVIEW_PATHS: dict[str, ReviewPath] = {"/mutate": "mutate", "/validate": "validate"}
_BODY_MEMORY = 16 * MAX_REVIEW_BYTES
"""Memory for reviews that arrive in pieces, in bytes; a review that arrives whole needs none."""
_BODY_MEMORY_TIMEOUT = 5.0
"""Seconds that a review may wait for that memory."""
_MAX_CONNECTIONS = 512
_FIRST_REQUEST_TIMEOUT = 5.0
"""Seconds for the head of the first request of a connection, and before that for the TLS handshake."""
_KEEPALIVE_TIMEOUT = 120.0
"""Longer than API servers keep idle connections (90 s), so that none is closed while a review is being sent."""
_SHUTDOWN_TIMEOUT = 5.0
"""Seconds for reviews in progress when the server stops."""

_admission_log = logging.getLogger()  # the root logger: the "Injecting ..." line is part of the public contract
_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


class WebhookServer:
    """Answers reviews. After a stop it reports not ready and serves for `linger` more seconds."""

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
        """Serves while the block runs; yields the port, which is chosen by the system if the address has port 0."""
        host, port = split_address(address)
        # Not a web.Application, whose routing and middlewares would take a third of the time of a review.
        options = {
            "access_log": None,
            "auto_decompress": False,
            "keepalive_timeout": _KEEPALIVE_TIMEOUT,
            "lingering_time": 1.0,
        }
        connections = BoundedServer(self._handle, _MAX_CONNECTIONS, _FIRST_REQUEST_TIMEOUT, **options)
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
            raise ConfigError(f'cannot listen on "{address}": {describe_os_error(error)}') from error
        try:
            yield int(listening.sockets[0].getsockname()[1])
            # API servers keep sending reviews until the endpoint is removed.
            self._stopping = True
            await asyncio.sleep(self._linger)
        finally:
            listening.close()
            connections.pre_shutdown()
            await connections.shutdown(_SHUTDOWN_TIMEOUT)
            await listening.wait_closed()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        url_path = request.raw_path.partition("?")[0]
        path = _REVIEW_PATHS.get(url_path)
        if path is None:
            if url_path in PATHS:
                return await self._health.answer(request)
            return _reply(404, f"not found; use POST {', '.join(_REVIEW_PATHS)} or GET {', '.join(PATHS)}")
        refused = _check_headers(request)
        if refused is None:
            body = await self._read_body(request)
            refused = body if isinstance(body, web.Response) else None
        if refused is not None:
            self._metrics.reviews[path, "refused"].inc()
            refused.force_close()  # without waiting for the rest of its body
            return refused
        assert isinstance(body, bytes)
        response = await self._handle_review(path, body)
        if self._stopping:
            response.force_close()
        return response

    async def _handle_review(self, path: ReviewPath, body: bytes) -> web.Response:
        metrics = self._metrics
        started = time.perf_counter()
        try:
            answer = await self._review(path, body)
        except BadReview as error:
            metrics.reviews[path, "refused"].inc()
            return _reply(400, str(error))
        except Exception:
            metrics.reviews[path, "failed"].inc()
            _log.exception("review failed", path=path, size=len(body))
            return _reply(500, "internal error of the webhook; its log has the details")
        metrics.reviews[path, "allowed" if answer.allowed else "denied"].inc()
        for line in answer.log:
            _admission_log.info(line)
        metrics.seconds[path].observe(time.perf_counter() - started)
        return web.Response(body=answer.body, headers=_JSON)

    async def _read_body(self, request: web.BaseRequest) -> bytes | web.Response:
        """The body of a review, or the response to a body that cannot be read."""
        content = request.content
        if content.is_eof():
            return content.read_nowait()
        try:
            return await self._bodies.read(content, MAX_REVIEW_BYTES, READ_TIMEOUT)
        except BodyTooLarge:
            return _too_large()
        except BodyTimeout:
            return _reply(408, f"the review did not arrive within {READ_TIMEOUT:g} s")
        except BodyMemoryExhausted:
            return _reply(503, "too many large reviews at once; retry")
        except (web.RequestPayloadError, ConnectionError):
            return _reply(400, "the connection closed before the review was complete")


_JSON = {"Content-Type": "application/json"}


def _check_headers(request: web.BaseRequest) -> web.Response | None:
    """The response to a request that cannot be a review; None when it may be one."""
    headers = request.headers
    if request.method != "POST":
        return _reply(405, f"{request.method} is not supported; send an AdmissionReview by POST", Allow="POST")
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return _reply(415, f'Content-Type must be application/json, not "{kind}"')
    if headers.get("Content-Encoding", "identity") != "identity":
        return _reply(415, "Content-Encoding is not supported; send the review uncompressed")
    return _too_large() if (request.content_length or 0) > MAX_REVIEW_BYTES else None


def _too_large() -> web.Response:
    return _reply(413, f"the review is larger than {MAX_REVIEW_BYTES} bytes")


def _reply(status: int, line: str, **headers: str) -> web.Response:
    """A reply of one line. Bytes of a header that are not UTF-8, which the line may quote, become U+FFFD."""
    return web.Response(status=status, text=f"{encodable(line)}\n", headers=headers)
