"""API client: typed requests, list, watch, retries and flow control."""

# ruff: noqa: A002
# `type` is the best name for the type that objects are decoded to.

from __future__ import annotations

import asyncio
import builtins
import io
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

import aiohttp
import msgspec

from gpu_scheduler.base import backoff
from gpu_scheduler.k8s.codec import (
    ObjectList,
    ObjectPage,
    WatchEvent,
    read_error,
    read_events,
    read_object,
    read_page,
    read_revision,
)
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.credentials import Access
from gpu_scheduler.k8s.errors import ConfigError, Gone, Refused, TooMany, Undecided
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import Resource

if TYPE_CHECKING:
    # Without a type argument the result is JSON; Python has type variables with defaults from 3.13 on.
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=Json)
else:
    T = TypeVar("T")

RETRY_TIMEOUT = 30.0
"""How long a request is retried, in seconds from its start."""

LONGEST_LINE = 32 << 20
"""The longest line of a watch, in bytes; an API server stores objects up to a twentieth of that."""

_READS = ("GET", "HEAD")
_RETRIES = 3
_FIRST_DELAY = 0.2
_LARGE = 1 << 20
_JSON: Any = dict
_PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


class _Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str] = {}
    params: Mapping[str, str] | None = None
    data: bytes | None = None


class _Response(NamedTuple):
    data: bytes
    date: str


class Client:
    """Client of one API server. Raises k8s.errors. Sends a write once, and again only after 429 or 401."""

    def __init__(
        self, connection: Connection, *, in_flight: int = 64, timeout: float = 30.0, agent: str = "gpu-scheduler"
    ) -> None:
        self.connection = connection
        self._agent = agent
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._connect_timeout = timeout
        self._writes = asyncio.Semaphore(in_flight)
        self._reads = asyncio.Semaphore(in_flight)
        self._paused_until = 0.0
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        wait: bool = True,
    ) -> bytes:
        """Returns the body of the response. Reads are retried, writes are not; a 429 is waited for if `wait`."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if data is None else {"Content-Type": content_type}
        return (await self._send_with_retries(_Request(method, path, headers, params, data), wait)).data

    async def read_as(self, path: str, accept: str) -> bytes:
        """Reads a path with an Accept header."""
        return (await self._send_with_retries(_Request("GET", path, {"Accept": accept}))).data

    async def get(self, resource: Resource, name: str, namespace: str = "", *, type: builtins.type[T] = _JSON) -> T:
        """Reads an object."""
        return read_object(await self.request("GET", resource.path(namespace, name)), type)

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        type: builtins.type[T] = _JSON,
        labels: str = "",
        fields: str = "",
        limit: int = 500,
    ) -> ObjectList[T]:
        """Lists all objects of a kind, consistent at one moment after the call."""
        path, params = resource.path(namespace), _selection(labels, fields)
        try:
            return await self._list_pages(path, params, type, limit)
        except Gone:
            # The continue token has expired; a list in one large page cannot.
            return await self._list_pages(path, params, type, 0)

    async def _list_pages(
        self, path: str, params: Mapping[str, str], type: builtins.type[T], limit: int
    ) -> ObjectList[T]:
        items: builtins.list[T] = []
        query = {**params, **({"limit": str(limit)} if limit else {})}
        while True:
            page: ObjectPage[T] = read_page(await self.request("GET", path, params=query), type)
            items += page.items or ()
            following = page.metadata.continue_
            if not following:
                return ObjectList(items, read_revision(page.metadata.resource_version))
            if following == query.get("continue"):
                raise Undecided(0, "Garbled", "the API server sent a page of a list that is followed by itself")
            query["continue"] = following

    async def create(
        self, resource: Resource, body: object, namespace: str = "", *, type: builtins.type[T] = _JSON
    ) -> T:
        """Creates an object; returns it."""
        return read_object(await self.request("POST", resource.path(namespace), body=body), type)

    async def replace(
        self,
        resource: Resource,
        body: object,
        name: str,
        namespace: str = "",
        subresource: str = "",
        *,
        type: builtins.type[T] = _JSON,
    ) -> T:
        """Replaces an object; returns it."""
        path = resource.path(namespace, name, subresource)
        return read_object(await self.request("PUT", path, body=body), type)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        namespace: str = "",
        subresource: str = "",
        *,
        kind: Literal["merge", "json", "strategic"] = "merge",
        type: builtins.type[T] = _JSON,
    ) -> T:
        """Patches an object; returns it."""
        path = resource.path(namespace, name, subresource)
        return read_object(await self.request("PATCH", path, body=body, content_type=_PATCHES[kind]), type)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", grace: int | None = None
    ) -> None:
        """Deletes an object; with a uid, only the object that has it and not a later one of the same name."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self.request("DELETE", resource.path(namespace, name), body=options)

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        type: builtins.type[T] = _JSON,
        since: str,
        labels: str = "",
        fields: str = "",
        quiet: float = 90.0,
    ) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        """Yields the events after `since` in batches; raises Undecided after `quiet` seconds without any.

        To be closed by contextlib.aclosing, which ends the request.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            **_selection(labels, fields),
        }
        timeout = aiohttp.ClientTimeout(total=None, connect=self._connect_timeout, sock_read=quiet)
        async with self._exchange(_Request("GET", resource.path(namespace), {}, params), timeout) as response:
            # Lines may be megabytes long, and a chunk may end anywhere.
            partial: builtins.list[bytes] = []
            length = 0
            async for chunk in response.content.iter_any():
                whole, newline, rest = chunk.rpartition(b"\n")
                if newline:
                    yield read_events(b"".join([*partial, whole]), type)
                    partial, length = [], 0
                partial.append(rest)
                length += len(rest)
                if length > LONGEST_LINE:
                    raise Undecided(0, "Garbled", f"the API server sent a line of more than {LONGEST_LINE} bytes")

    async def server_version(self) -> str:
        """The version of the server."""
        return str(read_object(await self.request("GET", "/version"), Json).get("gitVersion", ""))

    async def server_time(self) -> float:
        """The server's clock in seconds since 1970, rounded to a second."""
        response = await self._send_with_retries(_Request("GET", "/version"))
        try:
            return parsedate_to_datetime(response.date).timestamp()
        except ValueError:
            raise Undecided(0, "Garbled", f'the API server\'s Date is "{response.date}"') from None

    async def _send_with_retries(self, request: _Request, wait: bool = True) -> _Response:
        """Sends a request, and retries it where that is safe, up to RETRY_TIMEOUT."""
        reading = request.method in _READS
        clock = asyncio.get_running_loop().time
        retries = 0
        async with self._reads if reading else self._writes:
            deadline = clock() + RETRY_TIMEOUT
            while True:
                pause = 0.0 if reading else self._paused_until - clock()
                if pause > 0:
                    await asyncio.sleep(pause)
                    continue
                try:
                    return await self._send(request)
                except TooMany as error:
                    if not wait:
                        raise
                    delay = 1.0 if error.retry_after is None else max(error.retry_after, _FIRST_DELAY)
                    self._paused_until = max(self._paused_until, clock() + min(delay, RETRY_TIMEOUT))
                    if clock() + delay > deadline:
                        raise
                except Undecided as error:
                    jitter = random.uniform(0.5, 1.5)
                    delay = error.retry_after or backoff.exponential(retries, RETRY_TIMEOUT, _FIRST_DELAY) * jitter
                    retries += 1
                    if not reading or retries > _RETRIES or clock() + delay > deadline:
                        raise
                if reading:
                    await asyncio.sleep(delay)

    async def _send(self, request: _Request) -> _Response:
        """Sends a request, and again with new credentials if they were refused."""
        try:
            async with self._exchange(request, self._timeout) as response:
                return _Response(await response.read(), response.headers.get("Date", ""))
        except _Renewed:
            async with self._exchange(request, self._timeout) as response:
                return _Response(await response.read(), response.headers.get("Date", ""))

    @asynccontextmanager
    async def _exchange(
        self, request: _Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens a successful response, yet to be read; raises any other as its error."""
        access = await self._find_access()
        data: bytes | io.BytesIO | None = request.data
        if request.data is not None and len(request.data) > _LARGE:
            data = io.BytesIO(request.data)
        try:
            async with self._open_session().request(
                request.method,
                self.connection.server + request.path,
                params=request.params,
                data=data,
                headers={**access.headers, **request.headers},
                ssl=access.ssl or True,
                proxy=self.connection.proxy,
                server_hostname=self.connection.server_name,
                allow_redirects=False,
                timeout=limits,
            ) as response:
                if response.status >= 300:
                    error = read_error(response.status, await response.read(), response.headers.get("Retry-After"))
                    if response.status == 401 and self.connection.renew(access):
                        raise _Renewed(401, error.reason, error.message)
                    raise error
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise Undecided(0, "NoAnswer", f"{request.method} {request.path}: {_describe_error(error)}") from error

    async def _find_access(self) -> Access:
        try:
            return await self.connection.access()
        except ConfigError as error:
            raise Refused(401, "Unauthorized", str(error)) from None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self.connection.transport(self._agent)
        return self._session


def _describe_error(error: Exception) -> str:
    """The cause of a connection error, without the objects that aiohttp prints."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    return str(error) or type(error).__name__


class _Renewed(Refused):
    """401, but new credentials may be available."""


def _selection(labels: str, fields: str) -> dict[str, str]:
    found = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in found.items() if value}
