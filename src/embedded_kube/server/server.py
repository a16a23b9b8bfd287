"""The HTTP face of the API: who may speak, what a path means, and errors as the Status objects that clients read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import web

from embedded_kube import errors
from embedded_kube.api import Api
from embedded_kube.errors import ApiError
from embedded_kube.schema.openapi import EMPTY_VERSION_2, VERSION_2
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.discovery import Discovery, version_info
from embedded_kube.server.reviews import REVIEWS, find_review
from embedded_kube.server.routes import Call, Handler, User, find_target
from embedded_kube.server.verbs import Verbs
from embedded_kube.server.watch import Watches
from embedded_kube.server.wire import LARGEST_BODY, Accept, read_object, send, send_bytes, send_error
from embedded_kube.storage.store import Json
from gpu_scheduler.k8s.logs import shorten_bad_requests

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
ADMIN = User("kubernetes-admin")

_log = logging.getLogger(__name__)

_OPEN_TO_ALL = ("/healthz", "/livez", "/readyz", "/version")
"""What is answered without a token, as on a real server."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Serving:
    """What the server is told about its surroundings. Without tokens nobody is asked for one: that is for tests."""

    schemas: Schemas
    version: str = "1.35"
    tokens: Mapping[str, User] = field(default_factory=dict)
    hosts: frozenset[str] = LOOPBACK
    subresources: Mapping[str, Handler] = field(default_factory=dict)
    metrics: Callable[[], str] | None = None
    ready: Callable[[], bool] = _always


def make_app(api: Api, serving: Serving) -> web.Application:
    """The server as an application, to run plain or over TLS."""
    shorten_bad_requests()
    server = Server(api, serving, Watches(api.store))
    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_route("*", "/{path:.*}", server.handle)

    async def stop(_app: web.Application) -> None:
        await server.watches.stop()

    app.on_shutdown.append(stop)
    return app


class Server:
    """Answers requests, however they come in."""

    def __init__(self, api: Api, serving: Serving, watches: Watches) -> None:
        self.watches = watches
        self._api = api
        self._serving = serving
        self._discovery = Discovery(api.kinds)
        self._verbs = Verbs(api, serving.schemas, self.watches)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers a request; nothing but a Status, a document or an object comes back."""
        try:
            self._check_host(request)
            user = self._authenticate(request)
            path = request.path
            if path.startswith("/api"):
                return await self._serve_api(request, path, user)
            return self._serve_other(request, path)
        except ApiError as error:
            return send_error(error)
        except ConnectionError:
            raise
        except RecursionError:
            return send_error(errors.bad_request("the body is nested too deep"))
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.path)
            return send_error(errors.internal(f"{type(error).__name__}: {error}"))

    # -- who may speak

    def _check_host(self, request: web.Request) -> None:
        """Keeps out web pages: neither a name that points here nor a script of another origin gets an answer."""
        headers = request.headers
        if _host_name(headers.get("Host", "")) not in self._serving.hosts:
            raise ApiError(403, "Forbidden", f"the host {headers.get('Host', '')!r} is not served here")
        origin = headers.get("Origin")
        if origin is not None and (urlsplit(origin).hostname or "") not in self._serving.hosts:
            raise ApiError(403, "Forbidden", f"requests from the origin {origin!r} are not served")

    def _authenticate(self, request: web.Request) -> User:
        headers = request.headers
        tokens = self._serving.tokens
        if tokens:
            word, _, token = headers.get("Authorization", "").partition(" ")
            user = tokens.get(token.strip()) if word.lower() == "bearer" else None
            if user is None:
                if request.path.startswith(_OPEN_TO_ALL) and not token:
                    return User("system:anonymous", ("system:unauthenticated",))
                raise ApiError(401, "Unauthorized", "Unauthorized")
        else:
            user = ADMIN
        if "Impersonate-User" in headers:
            if "system:masters" not in user.groups:
                who = headers["Impersonate-User"]
                raise errors.forbidden("users", "", who, f'User "{user.name}" cannot impersonate')
            groups = (*headers.getall("Impersonate-Group", ()), "system:authenticated")
            return User(headers["Impersonate-User"], groups, headers.get("Impersonate-Uid", ""))
        return user

    # -- what a path means

    async def _serve_api(self, request: web.Request, path: str, user: User) -> web.StreamResponse:
        target = find_target(self._api.kinds, path)
        if target is not None:
            query = request.query if request.query_string else {}
            verb = target.verb(request.method, query)
            agent = request.headers.get("User-Agent", "").partition("/")[0]
            call = Call(verb, target.kind, target.namespace, target.name, target.subresource, query, user, agent)
            return await self._serve_call(request, call)
        review = find_review(path)
        if review is not None:
            return await self._serve_review(request, review, user)
        if path.startswith("/api/v1/namespaces/") and path.endswith("/bindings"):
            return await self._serve_binding(request, path, user)
        return self._serve_discovery(request, path)

    async def _serve_call(self, request: web.Request, call: Call) -> web.StreamResponse:
        subresource = call.subresource
        custom = call.kind.crd_schema is not None
        if custom and subresource and subresource not in call.kind.subresources:
            raise errors.not_found(call.kind.plural, call.kind.group, call.name)
        if not subresource or subresource in ("status", "finalize"):
            return await self._verbs.serve(request, call)
        first = subresource.split("/")[0]
        table = self._serving.subresources
        handler = table.get(f"{call.kind.resource}/{first}") or table.get(f"*/{first}")
        if handler is None:
            raise ApiError(501, "NotImplemented", f"{call.kind.plural}/{subresource} is not served by this cluster")
        return await handler(request, call)

    async def _serve_review(self, request: web.Request, review: tuple[str, str], user: User) -> web.StreamResponse:
        if request.method != "POST":
            raise errors.not_allowed()
        found = await read_object(request)
        found["status"] = REVIEWS[review](found, user, self._serving.tokens)
        return send(found, 201)

    async def _serve_binding(self, request: web.Request, path: str, user: User) -> web.StreamResponse:
        """The older way to bind a pod: the Binding names it instead of the path."""
        if request.method != "POST":
            raise errors.not_allowed()
        name = str((await read_object(request)).get("metadata", {}).get("name", ""))
        query = request.query if request.query_string else {}
        kind = self._api.find("pods")
        return await self._serve_call(request, Call("create", kind, path.split("/")[4], name, "binding", query, user))

    def _serve_discovery(self, request: web.Request, path: str) -> web.StreamResponse:
        parts = path.strip("/").split("/")
        discovery = self._discovery
        found: Json | None = None
        if parts in (["api"], ["apis"]):
            return self._serve_groups(request, parts == ["api"])
        if parts[0] == "api" and len(parts) == 2:
            found = discovery.resource_list("", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            found = discovery.group(parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            found = discovery.resource_list(parts[1], parts[2])
        if found is None:
            raise _nothing_here()
        _only_get(request)
        return send(found)

    def _serve_groups(self, request: web.Request, core: bool) -> web.StreamResponse:
        _only_get(request)
        version = Accept(request.headers.get("Accept", "")).discovery()
        if not version:
            address = request.headers.get("Host", "")
            return send(self._discovery.core_versions(address) if core else self._discovery.group_list())
        form = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        response = send_bytes(self._discovery.write_aggregated(version, core))
        response.headers["Content-Type"] = form
        response.headers["Vary"] = "Accept"
        return response

    def _serve_other(self, request: web.Request, path: str) -> web.StreamResponse:
        _only_get(request)
        path = path.rstrip("/") or "/"
        check = path.strip("/").split("/")[0]
        if check in ("healthz", "livez", "readyz"):
            return self._serve_health(request, check)
        if path == "/version":
            return send(version_info(self._serving.version))
        if path == "/metrics" and self._serving.metrics is not None:
            return web.Response(text=self._serving.metrics(), content_type="text/plain", charset="utf-8")
        schemas = self._serving.schemas
        if path == "/openapi/v3":
            return send(schemas.openapi_v3_index(self._api.kinds))
        if path.startswith("/openapi/v3/"):
            document = schemas.openapi_v3(path.removeprefix("/openapi/v3/"), self._api.kinds)
            if document is not None:
                return send(document)
        if path == "/openapi/v2":
            return send_bytes(EMPTY_VERSION_2, media=VERSION_2)
        if path == "/":
            paths = ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v3", "/readyz", "/version"]
            return send({"paths": paths})
        raise _nothing_here()

    def _serve_health(self, request: web.Request, check: str) -> web.StreamResponse:
        good = check == "livez" or self._serving.ready()
        if good and "verbose" not in request.query:
            return web.Response(text="ok")
        mark = "[+]ready ok" if good else "[-]ready failed"
        word = "passed" if good else "failed"
        return web.Response(text=f"[+]ping ok\n{mark}\n{check} check {word}\n", status=200 if good else 500)


def _host_name(text: str) -> str:
    """The host of a Host header, without its port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].lower()


def _nothing_here() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def _only_get(request: web.Request) -> None:
    if request.method not in ("GET", "HEAD"):
        raise errors.not_allowed()
