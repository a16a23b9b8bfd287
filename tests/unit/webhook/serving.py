"""A webhook server for one test, and a TLS client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from gpu_scheduler.base.certificates import Certificate, issue, load_certificate, make_authority, server_context
from gpu_scheduler.webhook.metrics import WebhookMetrics
from gpu_scheduler.webhook.reviews import AdmissionResponse
from gpu_scheduler.webhook.server import ReviewPath, WebhookServer


@dataclass
class Serving:
    """A running server with its `ready` and `answer` functions."""

    metrics: WebhookMetrics
    context: ssl.SSLContext
    authority: Certificate
    port: int = 0
    ready: bool = True
    answer: Callable[[ReviewPath, bytes], AdmissionResponse] = lambda _path, _body: AdmissionResponse(b"{}", True)

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.certificate.decode())

    def show_another(self) -> None:
        """Serves a new pair from now on."""
        load_certificate(self.context, issue(self.authority, "server"))

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(ssl=self.trust())
        async with aiohttp.ClientSession(f"https://127.0.0.1:{self.port}", connector=connector) as session:
            yield session

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection, for requests that no HTTP client would send."""
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust())


@asynccontextmanager
async def served(linger: float = 0.0) -> AsyncIterator[Serving]:
    """Runs a server until the block ends, and stops it gracefully."""
    authority = make_authority()
    serving = Serving(WebhookMetrics(), server_context(issue(authority, "server")), authority)

    async def review(path: ReviewPath, body: bytes) -> AdmissionResponse:
        return serving.answer(path, body)  # as the test has set it meanwhile

    server = WebhookServer(review, serving.metrics, lambda: serving.ready, linger)
    async with server.serving("127.0.0.1:0", serving.context) as port:
        serving.port = port
        yield serving


def head(path: str = "/mutate", **headers: str) -> bytes:
    """The head of a request; `content_length` is the header Content-Length."""
    told = {"Host": "localhost", "Content-Type": "application/json"}
    told |= {name.replace("_", "-").title(): value for name, value in headers.items()}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items()), "", ""]
    return "\r\n".join(lines).encode()
