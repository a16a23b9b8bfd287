"""Requests to an API server."""

# ruff: noqa: A002
# A parameter called `type` says what it is better than any other word.

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
    ListPage,
    ObjectList,
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
    # Who names no type gets JSON; Python has such type variables from 3.13 on.
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=Json)
else:
    T = TypeVar("T")

RETRY_TIMEOUT = 30.0
"""How long a request is tried again, in seconds, counted from its start."""

LONGEST_LINE = 32 << 20
"""The longest line of a watch, in bytes; an API server stores objects of a twentieth of that."""

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


class _Answer(NamedTuple):
    data: bytes
    date: str


class Client:
    """Speaks to one API server. Errors are those of kube.errors; a write is sent once and no more, unless refused."""

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
        """The answer to a request. Reads are tried again, writes are not; a 429 is waited for if `wait`."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if data is None else {"Content-Type": content_type}
        return (await self._persist(_Request(method, path, headers, params, data), wait)).data

    async def read_as(self, path: str, accept: str) -> bytes:
        """What is at a path, in the form that `accept` asks for."""
        return (await self._persist(_Request("GET", path, {"Accept": accept}))).data

    async def get(self, resource: Resource, name: str, namespace: str = "", *, type: builtins.type[T] = _JSON) -> T:
        """An object."""
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
        """All objects of a kind as they were at one moment after the call."""
        path, params = resource.path(namespace), _selection(labels, fields)
        try:
            return await self._list_pages(path, params, type, limit)
        except Gone:
            # The moment that the pages were to show is forgotten; one large page cannot meet that.
            return await self._list_pages(path, params, type, 0)

    async def _list_pages(
        self, path: str, params: Mapping[str, str], type: builtins.type[T], limit: int
    ) -> ObjectList[T]:
        items: builtins.list[T] = []
        asked = {**params, **({"limit": str(limit)} if limit else {})}
        while True:
            page: ListPage[T] = read_page(await self.request("GET", path, params=asked), type)
            items += page.items or ()
            following = page.metadata.continue_
            if not following:
                return ObjectList(items, read_revision(page.metadata.resource_version))
            if following == asked.get("continue"):
                raise Undecided(0, "Garbled", "the API server sent a page of a list that is followed by itself")
            asked["continue"] = following

    async def create(
        self, resource: Resource, body: object, namespace: str = "", *, type: builtins.type[T] = _JSON
    ) -> T:
        """The object as it was created."""
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
        """The object as it is now."""
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
        """The object as it is now."""
        path = resource.path(namespace, name, subresource)
        return read_object(await self.request("PATCH", path, body=body, content_type=_PATCHES[kind]), type)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", grace: int | None = None
    ) -> None:
        """Deletes an object; with a uid, that one only and none that follows it under the same name."""
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
        """What happens after `since`, in batches; Undecided after `quiet` seconds without even a bookmark.

        To be left by contextlib.aclosing, which ends the request.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            **_selection(labels, fields),
        }
        timeout = aiohttp.ClientTimeout(total=None, connect=self._connect_timeout, sock_read=quiet)
        async with self._exchange(_Request("GET", resource.path(namespace), {}, params), timeout) as answer:
            # Lines may be megabytes long, and a piece may end anywhere.
            begun: builtins.list[bytes] = []
            length = 0
            async for piece in answer.content.iter_any():
                whole, newline, rest = piece.rpartition(b"\n")
                if newline:
                    yield read_events(b"".join([*begun, whole]), type)
                    begun, length = [], 0
                begun.append(rest)
                length += len(rest)
                if length > LONGEST_LINE:
                    raise Undecided(0, "Garbled", f"the API server sent a line of more than {LONGEST_LINE} bytes")

    async def server_version(self) -> str:
        """The version that the server says it is."""
        return str(read_object(await self.request("GET", "/version"), Json).get("gitVersion", ""))

    async def server_time(self) -> float:
        """The server's clock in seconds since 1970, to a second."""
        answer = await self._persist(_Request("GET", "/version"))
        try:
            return parsedate_to_datetime(answer.date).timestamp()
        except ValueError:
            raise Undecided(0, "Garbled", f'the API server\'s Date is "{answer.date}"') from None

    async def _persist(self, request: _Request, wait: bool = True) -> _Answer:
        """Sends a request until it is answered, as far as that is safe and does not take too long."""
        reading = request.method in _READS
        clock = asyncio.get_running_loop().time
        retries = 0
        async with self._reads if reading else self._writes:
            give_up = clock() + RETRY_TIMEOUT
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
                    if clock() + delay > give_up:
                        raise
                except Undecided as error:
                    jitter = random.uniform(0.5, 1.5)
                    delay = error.retry_after or backoff.exponential(retries, RETRY_TIMEOUT, _FIRST_DELAY) * jitter
                    retries += 1
                    if not reading or retries > _RETRIES or clock() + delay > give_up:
                        raise
                if reading:
                    await asyncio.sleep(delay)

    async def _send(self, request: _Request) -> _Answer:
        """Sends a request, and once more with new credentials if the old ones were refused."""
        try:
            async with self._exchange(request, self._timeout) as answer:
                return _Answer(await answer.read(), answer.headers.get("Date", ""))
        except _Renewed:
            async with self._exchange(request, self._timeout) as answer:
                return _Answer(await answer.read(), answer.headers.get("Date", ""))

    @asynccontextmanager
    async def _exchange(
        self, request: _Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer, yet to be read; any other is raised as the error that it is."""
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
            ) as answer:
                if answer.status >= 300:
                    error = read_error(answer.status, await answer.read(), answer.headers.get("Retry-After"))
                    if answer.status == 401 and self.connection.renew(access):
                        raise _Renewed(401, error.reason, error.message)
                    raise error
                yield answer
        except (aiohttp.ClientError, OSError) as error:
            raise Undecided(0, "NoAnswer", f"{request.method} {request.path}: {_say_why(error)}") from error

    async def _find_access(self) -> Access:
        try:
            return await self.connection.access()
        except ConfigError as error:
            raise Refused(401, "Unauthorized", str(error)) from None

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self.connection.transport(self._agent)
        return self._session


def _say_why(error: Exception) -> str:
    """What broke, without the objects that aiohttp prints along."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    return str(error) or type(error).__name__


class _Renewed(Refused):
    """401, but there may be better credentials now."""


def _selection(labels: str, fields: str) -> dict[str, str]:
    found = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in found.items() if value}
