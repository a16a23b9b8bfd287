"""The API of a world: the local cluster's own server, called without sockets; each request is served in one step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from embedded_kube.admission.admission import Admission
from embedded_kube.bootstrap import CRDS, bootstrap
from embedded_kube.client import InProcessClient
from embedded_kube.errors import StatusError
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable
from embedded_kube.registry.options import DeleteOptions, RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.schema.crds import accept, kinds_of
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.encoders import ResponseEncoder
from embedded_kube.server.request_info import RequestInfo
from embedded_kube.server.server import ApiServerConfig, ApiServerHandler
from embedded_kube.server.tokens import Tokens
from embedded_kube.server.watch import WatchEventCache, WatchServer, WatchStream
from embedded_kube.storage.store import Store
from embedded_kube.subresources.subresources import make_subresources
from gpu_scheduler.gangs.definitions import as_objects, first_gang_objects, load_definitions
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.operator.definitions import load_definitions as load_job_definitions

VERSION = "1.35"
CREATED_AT = "2027-01-15T08:00:00Z"
T = TypeVar("T")


class Request(NamedTuple):
    """A request of a client."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Reply(NamedTuple):
    """The reply of the server; a watch gets one that stays open."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    watch: WatchStream | None = None


class _ServerRequest:
    """A request with the interface of aiohttp's server requests."""

    transport = None
    version = HttpVersion11

    def __init__(self, request: Request) -> None:
        self.method, self.path, self.query = request.method, request.path, request.query
        self.query_string = "&".join(request.query)
        self.headers = CIMultiDict({"Host": "localhost", "Accept": "application/json", **request.headers})
        self.content_type = self.headers.get("Content-Type", "application/octet-stream")
        self.body_exists = bool(request.body)
        self._body = request.body

    async def read(self) -> bytes:
        return self._body


class _WatchResponse(web.Response):
    """The response to a watch."""

    watch: WatchStream


class _Watches(WatchServer):
    """Opens watches; `Network` delivers their events."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._seen = store
        self._known = WatchEventCache()

    async def serve(self, _request: web.Request, call: RequestInfo, view: ResponseEncoder) -> web.StreamResponse:
        answer = _WatchResponse()
        answer.watch = WatchStream(self._seen, call, view, self._known)
        answer.watch.begin()
        return answer


class ApiServer:
    """One API server with its store. Requests are served one after the other."""

    def __init__(self) -> None:
        first, self.kinds, schemas = prepare()
        self.store = Store(None)
        for resource, found in first:
            self.store.write(resource, {**found, "metadata": dict(found["metadata"])})
        admission = Admission(self.store, self.kinds, schemas)
        self.api = ObjectRegistry(self.store, self.kinds, schemas, admission.admit, admission.validate)
        subresources = make_subresources(self.api, {}, schemas, Tokens({}, ""))
        self._server = ApiServerHandler(
            self.api, ApiServerConfig(schemas, VERSION, subresources=subresources), _Watches(self.store)
        )

    def close(self) -> None:
        """Closes the store."""
        self.store.close()

    def answer(self, request: Request) -> Reply:
        """Serves a request."""
        found = finish(self._server.handle(cast(web.Request, _ServerRequest(request))))
        if isinstance(found, _WatchResponse):
            return Reply(200, {}, b"", found.watch)
        assert isinstance(found, web.Response)
        body = found.body
        assert isinstance(body, bytes)
        return Reply(found.status, found.headers, body)

    # -- direct access for nodes, users and other schedulers

    def attempt(self, act: Callable[..., object], *args: Any) -> StatusError | None:
        """Calls a function on an object that may be gone or have changed; returns the ApiError in that case."""
        try:
            act(*args)
        except StatusError as error:
            if error.code not in (404, 409):
                raise
            return error
        return None

    def all(self, resource: str) -> list[Json]:
        """Every object of a resource."""
        return [entry.object() for entry in self.store.entries(resource)]

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        """An object, or None."""
        entry = self.store.get(resource, namespace, name)
        return entry.object() if entry is not None else None

    def create(self, resource: str, found: Json) -> Json:
        """Creates an object; raises ApiError if that is refused."""
        plural, _, group = resource.partition(".")
        namespace = found["metadata"].get("namespace", "")
        return finish(self.api.create(self.api.find(plural, group), namespace, found, RequestOptions()))[0]

    def edit(self, resource: str, found: Json, change: Callable[[Json], object], subresource: str = "") -> Json:
        """Changes an object; raises ApiError if it is gone or the change is refused."""
        plural, _, group = resource.partition(".")
        meta = found["metadata"]

        def changed(now: Json) -> Json:
            change(now)
            return now

        kind = self.api.find(plural, group)
        options = RequestOptions(subresource=subresource)
        return finish(self.api.change(kind, meta.get("namespace", ""), meta["name"], changed, options))[0]

    def delete(self, resource: str, found: Json, grace: int | None = None) -> None:
        """Deletes exactly this object, by uid; raises ApiError if it is gone."""
        plural, _, group = resource.partition(".")
        meta = found["metadata"]
        options = DeleteOptions(grace=grace, uid=meta["uid"], propagation="Background")
        kind = self.api.find(plural, group)
        finish(self.api.delete(kind, meta.get("namespace", ""), meta["name"], options, RequestOptions()))


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits, and returns its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    work.close()
    raise RuntimeError("a request to the simulated API waits")


@cache
def prepare() -> tuple[list[tuple[str, Json]], KindTable, Schemas]:
    """What every new cluster contains, built once: the same objects with the same names and uids."""
    store = Store(None)
    kinds = KindTable(builtin_kinds(VERSION))
    schemas = Schemas(VERSION)
    admission = Admission(store, kinds, schemas)
    api = ObjectRegistry(store, kinds, schemas, admission.admit, admission.validate)

    def serve_definitions() -> None:
        for entry in list(store.entries(CRDS)):
            definition = entry.object()
            status = accept(definition, kinds, CREATED_AT)
            for kind in kinds_of(definition):
                kinds.put(kind)
            if status != definition.get("status"):
                store.write(CRDS, {**definition, "status": status})

    objects = first_gang_objects() + as_objects(load_job_definitions())
    finish(bootstrap(InProcessClient(api, "system:bootstrap"), serve_definitions, load_definitions(), objects))
    first = []
    for kind in kinds:
        for number, entry in enumerate(store.entries(kind.resource)):
            found = entry.object()
            found["metadata"] |= {"uid": f"{kind.resource}-{number}", "creationTimestamp": CREATED_AT}
            if (kind.resource, found) not in first:
                first.append((kind.resource, found))
    store.close()
    # Shared by every world: garbage collection need not visit it again.
    gc.collect()
    gc.freeze()
    return first, kinds, schemas
