"""Plain requests to a Kubernetes API: a test controls what is sent, and gets every reply unchanged."""

from __future__ import annotations

import io
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import aiohttp

from gpu_scheduler.k8s.objects import Json

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True)
class Access:
    """The address of an API, and the credentials for it."""

    server: str
    authorization: str | None
    trust: ssl.SSLContext


def read_access(kubeconfig: Path) -> Access:
    """Reads a kubeconfig, runs its plugins and reads its files."""
    from kubernetes import client, config  # large: not imported by tests that have an address already

    found: Any = client.Configuration()
    load_kubeconfig: Any = config.load_kube_config
    load_kubeconfig(config_file=str(kubeconfig), client_configuration=found)
    trust = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if not found.verify_ssl:
        trust.check_hostname = False
        trust.verify_mode = ssl.CERT_NONE
    if found.cert_file:
        trust.load_cert_chain(found.cert_file, found.key_file)
    return Access(found.host.rstrip("/"), found.api_key.get("BearerToken"), trust)


@dataclass(frozen=True)
class Answer:
    """A reply of the API."""

    code: int
    body: Json

    @property
    def reason(self) -> str:
        """The machine-readable reason of an error."""
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        """The message of an error."""
        return str(self.body.get("message", ""))


class Api:
    """Requests of one user. Use it as `async with Api(access) as api`."""

    def __init__(self, access: Access, at_once: int = 100) -> None:
        self._access = access
        self._at_once = at_once
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        headers = {"accept": "application/json"}
        if self._access.authorization:
            headers["authorization"] = self._access.authorization
        self._session = aiohttp.ClientSession(
            self._access.server,
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=self._access.trust, limit=self._at_once),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def server(self) -> str:
        """The address of the API."""
        return self._access.server

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP session."""
        assert self._session is not None, "use it as `async with Api(access) as api`"
        return self._session

    async def ask(self, method: str, path: str, body: Json | None = None, **headers: str) -> Answer:
        """Sends a request. `content_type` means Content-Type, `impersonate_user` Impersonate-User."""
        sent_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent_headers.setdefault("content-type", "application/json")
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        timeout = aiohttp.ClientTimeout(total=60)
        async with self.session.request(method, path, data=data, headers=sent_headers, timeout=timeout) as reply:
            text = await reply.text()
            try:
                return Answer(reply.status, json.loads(text))
            except ValueError:
                return Answer(reply.status, {"message": text})

    async def must(self, method: str, path: str, body: Json | None = None, **headers: str) -> Json:
        """Sends a request that has to succeed; returns the body."""
        answer = await self.ask(method, path, body, **headers)
        assert answer.code < 300, f"{method} {path}: {answer.code} {answer.message}"
        return answer.body

    @asynccontextmanager
    async def watch(self, path: str, parameters: Mapping[str, str]) -> AsyncIterator[AsyncIterator[Json]]:
        """The events of a watch, until the server ends it."""
        query = urlencode({"watch": "1", "allowWatchBookmarks": "true", **parameters})
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        async with self.session.get(f"{path}?{query}", timeout=timeout) as reply:
            if reply.status >= 300:
                yield _one({"type": "ERROR", "object": json.loads(await reply.text())})
            else:
                yield _events(reply.content)


async def _one(event: Json) -> AsyncIterator[Json]:
    yield event


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[Json]:
    """One event per line. Lines may be longer than the reader's own limit."""
    rest = b""
    async for piece in stream.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line:
                yield json.loads(line)
