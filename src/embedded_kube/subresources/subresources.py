"""HTTP handlers of subresources.

`make_subresources` returns the table that server.py dispatches to, keyed "pods/binding" and "*/scale". The functions
behind the handlers (`bind`, `evict`, `update_scale`, ...) need no HTTP request, for controllers and tests.

Not implemented: port-forward, proxies, SPDY (WebSocket only), stdin of attach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from aiohttp import web

from embedded_kube import errors
from embedded_kube.errors import Cause
from embedded_kube.patching.patch import PatchRequest, apply_patch, check_content_type
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.registry.options import RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.registry.timestamps import timestamp
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.codec import read_body, read_object, send
from embedded_kube.server.request_info import RequestInfo, SubresourceHandler
from embedded_kube.server.tokens import Tokens
from embedded_kube.subresources.binding import add_topology, bind, check_types
from embedded_kube.subresources.eviction import evict
from embedded_kube.subresources.kubelet import Kubelets
from embedded_kube.subresources.pod_exec import PodExecOptions, check_upgrade, run_attach, run_exec
from embedded_kube.subresources.pod_logs import find_kubelet, send_logs
from embedded_kube.subresources.scale import read_scale, update_scale
from gpu_scheduler.k8s.objects import Json

__all__ = ["bind", "evict", "make_subresources", "read_scale", "update_scale"]

SCALE = ServedKind("autoscaling", "v1", "Scale", "scales", schema="io.k8s.api.autoscaling.v1.Scale")
"""The kind that patches of a scale apply to."""

_MAX_TOKEN_SECONDS = 2**32
_MIN_TOKEN_SECONDS = 600


def make_subresources(
    registry: ObjectRegistry, kubelets: Kubelets, schemas: Schemas, tokens: Tokens
) -> dict[str, SubresourceHandler]:
    """The table of handlers. `kubelets` is read at each request, so nodes can be added and removed."""
    handlers = _Subresources(registry, kubelets, schemas, tokens)
    return {
        "pods/binding": handlers.binding,
        "pods/eviction": handlers.eviction,
        "pods/log": handlers.log,
        "pods/exec": handlers.exec,
        "pods/attach": handlers.attach,
        "pods/portforward": handlers.port_forward,
        "pods/ephemeralcontainers": handlers.ephemeral_containers,
        "serviceaccounts/token": handlers.token,
        "*/scale": handlers.scale,
    }


@dataclass(frozen=True, slots=True)
class _Subresources:
    registry: ObjectRegistry
    kubelets: Kubelets
    schemas: Schemas
    tokens: Tokens

    async def binding(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """POST pods/NAME/binding, or POST bindings, which ignores the uid in the body."""
        _require_verb(info, "create")
        obj, options = await read_object(request), info.options()
        check_types(obj)
        if request.path.endswith("/bindings"):
            (obj.get("metadata") or {}).pop("uid", None)
        elif (target := obj.get("target") or {}).get("kind") == "Node":
            add_topology(self.registry.store, target.get("name") or "", obj.setdefault("metadata", {}))
        obj, warnings = await self._admit_new(info, obj, "v1", "Binding", options)
        status = bind(self.registry, info.namespace, info.name, obj, options.dry_run)
        return send(status, 201, warnings)

    async def eviction(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """POST pods/NAME/eviction"""
        _require_verb(info, "create")
        obj, options = await read_object(request), info.options()
        if (obj.get("metadata") or {}).get("name") != info.name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        if obj.get("apiVersion") == "policy/v1beta1":
            obj["apiVersion"] = "policy/v1"
        obj, warnings = await self._admit_new(info, obj, "policy/v1", "Eviction", options)
        # For webhooks, the delete is a separate request without a subresource.
        status = await evict(self.registry, info.namespace, info.name, obj, replace(options, subresource=""))
        return send(status, 201, warnings)

    async def _admit_new(
        self, info: RequestInfo, obj: Json, version: str, kind: str, options: RequestOptions
    ) -> tuple[Json, list[str]]:
        """Runs admission for an object that is posted to a subresource."""
        if obj.setdefault("apiVersion", version) != version or obj.setdefault("kind", kind) != kind:
            type_meta = f"{obj['apiVersion']}, Kind={obj.get('kind')}"
            raise errors.bad_request(f"the object provided is of {type_meta}, not of {version}, Kind={kind}")
        meta = obj.setdefault("metadata", {})
        meta.setdefault("name", info.name)
        meta.setdefault("namespace", info.namespace)
        obj, warnings = await self.registry.admit("CREATE", info.kind, obj, None, options)
        return obj, warnings + await self.registry.validate_admission("CREATE", info.kind, obj, None, options)

    async def scale(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """GET, PUT and PATCH NAME/scale of any scalable kind"""
        _require_verb(info, "get", "update", "patch")
        if info.verb == "get":
            obj = self.registry.get(info.kind, info.namespace, info.name)
            return send(read_scale(info.kind, obj, require_replicas=True))
        edit = await self._edit(request, info, SCALE)
        key = (info.namespace, info.name)
        scale, warnings = await update_scale(self.registry, info.kind, key, edit, info.options())
        return send(scale, 200, warnings)

    async def _edit(self, request: web.Request, info: RequestInfo, kind: ServedKind) -> Callable[[Json], Json]:
        """The change that a PUT or PATCH makes to an object."""
        if info.verb == "update":
            sent = await read_object(request)
            return lambda _: sent
        check_content_type(info.kind, request.content_type)
        patch = PatchRequest(request.content_type, await read_body(request), subresource=info.subresource)
        return lambda obj: apply_patch(patch, obj, kind, self.schemas)

    async def log(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """GET pods/NAME/log"""
        _require_verb(info, "get")
        pod = self.registry.get(info.kind, info.namespace, info.name)
        return await send_logs(request, pod, self.kubelets)

    async def exec(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """GET or POST pods/NAME/exec"""
        pod, options = await self._connect(request, info, attach=False)
        return await run_exec(request, pod, find_kubelet(pod, self.kubelets), options)

    async def attach(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """GET or POST pods/NAME/attach"""
        pod, options = await self._connect(request, info, attach=True)
        return await run_attach(request, pod, find_kubelet(pod, self.kubelets), options)

    async def port_forward(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """GET or POST pods/NAME/portforward"""
        raise errors.bad_request("port-forward is not served here; give the pod hostNetwork: true instead")

    async def _connect(self, request: web.Request, info: RequestInfo, attach: bool) -> tuple[Json, PodExecOptions]:
        _require_verb(info, "get", "create")
        pod = self.registry.get(info.kind, info.namespace, info.name)
        options = PodExecOptions.read(request, pod, attach)
        check_upgrade(request)
        # The options have no metadata; it is added for admission, which needs the name of the pod.
        about = {"metadata": {"name": info.name, "namespace": info.namespace}}
        obj = {**options.describe("PodAttachOptions" if attach else "PodExecOptions"), **about}
        obj, _ = await self.registry.admit("CONNECT", info.kind, obj, None, info.options())
        await self.registry.validate_admission("CONNECT", info.kind, obj, None, info.options())
        return pod, options

    async def ephemeral_containers(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """GET, PUT and PATCH pods/NAME/ephemeralcontainers: containers may be added, nothing else changes"""
        _require_verb(info, "get", "update", "patch")
        if info.verb == "get":
            return send(self.registry.get(info.kind, info.namespace, info.name))
        edit = await self._edit(request, info, info.kind)

        def add(pod: Json) -> Json:
            sent = edit(self.registry.get(info.kind, info.namespace, info.name))
            pod["spec"]["ephemeralContainers"] = (sent.get("spec") or {}).get("ephemeralContainers") or []
            pod["metadata"]["resourceVersion"] = sent.get("metadata", {}).get("resourceVersion", "")
            return pod

        pod, warnings = await self.registry.change(info.kind, info.namespace, info.name, add, info.options())
        return send(pod, 200, warnings)

    async def token(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        """POST serviceaccounts/NAME/token"""
        _require_verb(info, "create")
        account = self.registry.get(info.kind, info.namespace, info.name)
        obj = await read_object(request)
        spec = obj.setdefault("spec", {})
        seconds = spec.setdefault("expirationSeconds", 3600)
        if not isinstance(seconds, int) or not _MIN_TOKEN_SECONDS <= seconds <= _MAX_TOKEN_SECONDS:
            why = "may not specify a duration less than 10 minutes or larger than 2^32 seconds"
            cause = Cause("spec.expirationSeconds", f"Invalid value: {seconds}: {why}")
            raise errors.invalid("TokenRequest", "authentication.k8s.io", info.name, [cause])
        token = self.tokens.issue(info.namespace, info.name, account["metadata"]["uid"], seconds)
        ends = datetime.fromtimestamp(datetime.now(UTC).timestamp() + seconds, UTC)
        obj |= {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        obj["metadata"] = {"name": info.name, "namespace": info.namespace, "creationTimestamp": timestamp()}
        obj["status"] = {"token": token, "expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return send(obj, 201)


def _require_verb(info: RequestInfo, *verbs: str) -> None:
    if info.verb not in verbs:
        raise errors.method_not_allowed()
