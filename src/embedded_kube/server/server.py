"""The HTTP server: authentication, routing of paths, and errors as Status objects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import StatusError
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.schema.openapi import EMPTY_VERSION_2, VERSION_2
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.codec import MAX_BODY_BYTES, AcceptHeader, read_object, send, send_bytes, send_error
from embedded_kube.server.discovery import Discovery, version_info
from embedded_kube.server.request_info import RequestInfo, SubresourceHandler, UserInfo, parse_resource_path
from embedded_kube.server.rest_handlers import RestHandlers
from embedded_kube.server.reviews import REVIEWS, find_review
from embedded_kube.server.watch import WatchServer
from gpu_scheduler.base.text import encodable
from gpu_scheduler.k8s.logs import shorten_bad_requests
from gpu_scheduler.k8s.objects import Json

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
ADMIN = UserInfo("kubernetes-admin")

_log = logging.getLogger(__name__)

_UNAUTHENTICATED_PATHS = ("/healthz", "/livez", "/readyz", "/version")
"""Paths that need no token, as on a real server."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ApiServerConfig:
    """The configuration of the server. Without tokens, authentication is off; that is for tests."""

    schemas: Schemas
    version: str = "1.35"
    tokens: Mapping[str, UserInfo] = field(default_factory=dict)
    hosts: frozenset[str] = LOOPBACK
    subresources: Mapping[str, SubresourceHandler] = field(default_factory=dict)
    metrics: Callable[[], str] | None = None
    ready: Callable[[], bool] = _always


def make_app(registry: ObjectRegistry, config: ApiServerConfig) -> web.Application:
    """Makes the aiohttp application of the server."""
    shorten_bad_requests()
    server = ApiServerHandler(registry, config, WatchServer(registry.store))
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", server.handle)

    async def stop(_app: web.Application) -> None:
        await server.watches.stop()

    app.on_shutdown.append(stop)
    return app


class ApiServerHandler:
    """Handles all requests."""

    def __init__(self, registry: ObjectRegistry, config: ApiServerConfig, watches: WatchServer) -> None:
        self.watches = watches
        self._registry = registry
        self._config = config
        self._discovery = Discovery(registry.kinds)
        self._rest_handlers = RestHandlers(registry, config.schemas, self.watches)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handles a request; errors become a Status response."""
        try:
            _check_version(request)
            self._check_host(request)
            user = self._authenticate(request)
            path = request.path
            if path.startswith("/api"):
                return await self._serve_api(request, path, user)
            return self._serve_other(request, path)
        except StatusError as error:
            return send_error(error)
        except ConnectionError:
            raise
        except RecursionError:
            return send_error(errors.bad_request("the body is nested too deep"))
        except Exception as error:
            _log.exception("%s %s failed", request.method, request.path)
            return send_error(errors.internal_error(f"{type(error).__name__}: {error}"))

    # -- authentication

    def _check_host(self, request: web.Request) -> None:
        """Refuses requests from web pages: DNS rebinding (Host) and other origins (Origin)."""
        headers = request.headers
        if _host_name(headers.get("Host", "")) not in self._config.hosts:
            raise StatusError(403, "Forbidden", f"the host {headers.get('Host', '')!r} is not served here")
        origin = headers.get("Origin")
        if origin is not None and (urlsplit(origin).hostname or "") not in self._config.hosts:
            raise StatusError(403, "Forbidden", f"requests from the origin {origin!r} are not served")

    def _authenticate(self, request: web.Request) -> UserInfo:
        headers = request.headers
        tokens = self._config.tokens
        if tokens:
            word, _, token = headers.get("Authorization", "").partition(" ")
            user = tokens.get(token.strip()) if word.lower() == "bearer" else None
            if user is None:
                if request.path.startswith(_UNAUTHENTICATED_PATHS) and not token:
                    return UserInfo("system:anonymous", ("system:unauthenticated",))
                raise StatusError(401, "Unauthorized", "Unauthorized")
        else:
            user = ADMIN
        if "Impersonate-User" in headers:
            who = _header(request, "Impersonate-User")
            if "system:masters" not in user.groups:
                raise errors.forbidden("users", "", who, f'User "{user.name}" cannot impersonate')
            groups = (*map(encodable, headers.getall("Impersonate-Group", ())), "system:authenticated")
            return UserInfo(who, groups, _header(request, "Impersonate-Uid"))
        return user

    # -- routing

    async def _serve_api(self, request: web.Request, path: str, user: UserInfo) -> web.StreamResponse:
        target = parse_resource_path(self._registry.kinds, path)
        if target is not None:
            query = request.query if request.query_string else {}
            verb = target.verb(request.method, query)
            agent = _header(request, "User-Agent").partition("/")[0]
            info = RequestInfo(verb, target.kind, target.namespace, target.name, target.subresource, query, user, agent)
            return await self._serve_resource(request, info)
        review = find_review(path)
        if review is not None:
            return await self._serve_review(request, review, user)
        if path.startswith("/api/v1/namespaces/") and path.endswith("/bindings"):
            return await self._serve_binding(request, path, user)
        return self._serve_discovery(request, path)

    async def _serve_resource(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        subresource = info.subresource
        custom = info.kind.crd_schema is not None
        if custom and subresource and subresource not in info.kind.subresources:
            raise errors.not_found(info.kind.plural, info.kind.group, info.name)
        if not subresource or subresource in ("status", "finalize"):
            return await self._rest_handlers.serve(request, info)
        first = subresource.split("/")[0]
        table = self._config.subresources
        handler = table.get(f"{info.kind.resource}/{first}") or table.get(f"*/{first}")
        if handler is None:
            raise StatusError(501, "NotImplemented", f"{info.kind.plural}/{subresource} is not served by this cluster")
        return await handler(request, info)

    async def _serve_review(self, request: web.Request, review: tuple[str, str], user: UserInfo) -> web.StreamResponse:
        if request.method != "POST":
            raise errors.method_not_allowed()
        found = await read_object(request)
        found["status"] = REVIEWS[review](found, user, self._config.tokens)
        return send(found, 201)

    async def _serve_binding(self, request: web.Request, path: str, user: UserInfo) -> web.StreamResponse:
        """POST /api/v1/namespaces/NAMESPACE/bindings: the body names the pod, not the path."""
        if request.method != "POST":
            raise errors.method_not_allowed()
        name = str((await read_object(request)).get("metadata", {}).get("name", ""))
        query = request.query if request.query_string else {}
        kind = self._registry.find("pods")
        return await self._serve_resource(
            request, RequestInfo("create", kind, path.split("/")[4], name, "binding", query, user)
        )

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
            raise _unknown_path()
        _require_get(request)
        return send(found)

    def _serve_groups(self, request: web.Request, core: bool) -> web.StreamResponse:
        _require_get(request)
        version = AcceptHeader(request.headers.get("Accept", "")).discovery()
        if not version:
            address = request.headers.get("Host", "")
            return send(self._discovery.core_versions(address) if core else self._discovery.group_list())
        form = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        response = send_bytes(self._discovery.write_aggregated(version, core))
        response.headers["Content-Type"] = form
        response.headers["Vary"] = "Accept"
        return response

    def _serve_other(self, request: web.Request, path: str) -> web.StreamResponse:
        _require_get(request)
        path = path.rstrip("/") or "/"
        check = path.strip("/").split("/")[0]
        if check in ("healthz", "livez", "readyz"):
            return self._serve_health(request, check)
        if path == "/version":
            return send(version_info(self._config.version))
        if path == "/metrics" and self._config.metrics is not None:
            return web.Response(text=self._config.metrics(), content_type="text/plain", charset="utf-8")
        schemas = self._config.schemas
        if path == "/openapi/v3":
            return send(schemas.openapi_v3_index(self._registry.kinds))
        if path.startswith("/openapi/v3/"):
            document = schemas.openapi_v3(path.removeprefix("/openapi/v3/"), self._registry.kinds)
            if document is not None:
                return send(document)
        if path == "/openapi/v2":
            return send_bytes(EMPTY_VERSION_2, media=VERSION_2)
        if path == "/":
            paths = ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v3", "/readyz", "/version"]
            return send({"paths": paths})
        raise _unknown_path()

    def _serve_health(self, request: web.Request, check: str) -> web.StreamResponse:
        healthy = check == "livez" or self._config.ready()
        if healthy and "verbose" not in request.query:
            return web.Response(text="ok")
        mark = "[+]ready ok" if healthy else "[-]ready failed"
        word = "passed" if healthy else "failed"
        return web.Response(text=f"[+]ping ok\n{mark}\n{check} check {word}\n", status=200 if healthy else 500)


def _check_version(request: web.Request) -> None:
    """Refuses what is not HTTP/1.x, as Go's server does; no response to it could be streamed."""
    if request.version.major != 1:
        raise StatusError(505, "", "HTTP Version Not Supported: unsupported protocol version")


def _header(request: web.Request, name: str) -> str:
    """A header that is stored or sent back; bytes that are not UTF-8 become U+FFFD."""
    return encodable(request.headers.get(name, ""))


def _host_name(text: str) -> str:
    """The host name of a Host header, without the port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].lower()


def _unknown_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def _require_get(request: web.Request) -> None:
    if request.method not in ("GET", "HEAD"):
        raise errors.method_not_allowed()
