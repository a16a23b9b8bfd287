"""What can be asked of an object beside the object itself: bind, evict, scale, logs, commands, tokens.

`make_subresources` gives the table that server.py dispatches to, keyed "pods/binding" and "*/scale". The functions
under the handlers (`bind`, `evict`, `update_scale`, ...) need no request, for controllers and tests.

Left out: port-forward, proxies, SPDY (WebSocket only), stdin of attach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from aiohttp import web

from embedded_kube import errors
from embedded_kube.api import Api, Options, timestamp
from embedded_kube.errors import Cause
from embedded_kube.patching.patch import Patch, apply_patch, check_content_type
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.routes import Call, Handler
from embedded_kube.server.tokens import Tokens
from embedded_kube.server.wire import read_body, read_object, send
from embedded_kube.storage.kinds import Kind
from embedded_kube.storage.store import Json
from embedded_kube.subresources.binding import add_topology, bind, check_forms
from embedded_kube.subresources.eviction import evict
from embedded_kube.subresources.kubelet import Kubelets
from embedded_kube.subresources.pod_exec import ExecOptions, check_upgrade, run_attach, run_exec
from embedded_kube.subresources.pod_logs import find_kubelet, send_logs
from embedded_kube.subresources.scale import read_scale, update_scale

__all__ = ["bind", "evict", "make_subresources", "read_scale", "update_scale"]

SCALE = Kind("autoscaling", "v1", "Scale", "scales", schema="io.k8s.api.autoscaling.v1.Scale")
"""What a patch of a scale is a patch of."""

_LONGEST_TOKEN = 2**32
_SHORTEST_TOKEN = 600


def make_subresources(api: Api, kubelets: Kubelets, schemas: Schemas, tokens: Tokens) -> dict[str, Handler]:
    """The handlers by name. `kubelets` is read at each request, so nodes may come and go."""
    here = _Subresources(api, kubelets, schemas, tokens)
    return {
        "pods/binding": here.binding,
        "pods/eviction": here.eviction,
        "pods/log": here.log,
        "pods/exec": here.exec,
        "pods/attach": here.attach,
        "pods/portforward": here.port_forward,
        "pods/ephemeralcontainers": here.ephemeral_containers,
        "serviceaccounts/token": here.token,
        "*/scale": here.scale,
    }


@dataclass(frozen=True, slots=True)
class _Subresources:
    api: Api
    kubelets: Kubelets
    schemas: Schemas
    tokens: Tokens

    async def binding(self, request: web.Request, call: Call) -> web.StreamResponse:
        """POST pods/NAME/binding; or POST bindings, a create of its own, and those forget the uid they bring."""
        _only(call, "create")
        found, options = await read_object(request), call.options()
        check_forms(found)
        if request.path.endswith("/bindings"):
            (found.get("metadata") or {}).pop("uid", None)
        elif (target := found.get("target") or {}).get("kind") == "Node":
            add_topology(self.api.store, target.get("name") or "", found.setdefault("metadata", {}))
        found, warnings = await self._admit_new(call, found, "v1", "Binding", options)
        status = bind(self.api, call.namespace, call.name, found, options.dry_run)
        return send(status, 201, warnings)

    async def eviction(self, request: web.Request, call: Call) -> web.StreamResponse:
        """POST pods/NAME/eviction"""
        _only(call, "create")
        found, options = await read_object(request), call.options()
        if (found.get("metadata") or {}).get("name") != call.name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        if found.get("apiVersion") == "policy/v1beta1":
            found["apiVersion"] = "policy/v1"
        found, warnings = await self._admit_new(call, found, "policy/v1", "Eviction", options)
        # The delete inside is a request of its own to webhooks, and not about a subresource.
        status = await evict(self.api, call.namespace, call.name, found, replace(options, subresource=""))
        return send(status, 201, warnings)

    async def _admit_new(
        self, call: Call, found: Json, version: str, kind: str, options: Options
    ) -> tuple[Json, list[str]]:
        """Takes the small object that is posted to a subresource through admission."""
        if found.setdefault("apiVersion", version) != version or found.setdefault("kind", kind) != kind:
            said = f"{found['apiVersion']}, Kind={found.get('kind')}"
            raise errors.bad_request(f"the object provided is of {said}, not of {version}, Kind={kind}")
        meta = found.setdefault("metadata", {})
        meta.setdefault("name", call.name)
        meta.setdefault("namespace", call.namespace)
        found, warnings = await self.api.admit("CREATE", call.kind, found, None, options)
        return found, warnings + await self.api.check("CREATE", call.kind, found, None, options)

    async def scale(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET, PUT and PATCH of any kind that can be scaled"""
        _only(call, "get", "update", "patch")
        if call.verb == "get":
            return send(read_scale(call.kind, self.api.get(call.kind, call.namespace, call.name), must_say=True))
        edit = await self._edit(request, call, SCALE)
        place = (call.namespace, call.name)
        scale, warnings = await update_scale(self.api, call.kind, place, edit, call.options())
        return send(scale, 200, warnings)

    async def _edit(self, request: web.Request, call: Call, kind: Kind) -> Callable[[Json], Json]:
        """What a PUT or a PATCH makes of an object."""
        if call.verb == "update":
            sent = await read_object(request)
            return lambda _: sent
        check_content_type(call.kind, request.content_type)
        patch = Patch(request.content_type, await read_body(request), subresource=call.subresource)
        return lambda found: apply_patch(patch, found, kind, self.schemas)

    async def log(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET pods/NAME/log"""
        _only(call, "get")
        pod = self.api.get(call.kind, call.namespace, call.name)
        return await send_logs(request, pod, self.kubelets)

    async def exec(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET or POST pods/NAME/exec"""
        pod, options = await self._connect(request, call, attach=False)
        return await run_exec(request, pod, find_kubelet(pod, self.kubelets), options)

    async def attach(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET or POST pods/NAME/attach"""
        pod, options = await self._connect(request, call, attach=True)
        return await run_attach(request, pod, find_kubelet(pod, self.kubelets), options)

    async def port_forward(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET or POST pods/NAME/portforward"""
        raise errors.bad_request("port-forward is not served here; give the pod hostNetwork: true instead")

    async def _connect(self, request: web.Request, call: Call, attach: bool) -> tuple[Json, ExecOptions]:
        _only(call, "get", "create")
        pod = self.api.get(call.kind, call.namespace, call.name)
        options = ExecOptions.read(request, pod, attach)
        check_upgrade(request)
        # The options have no metadata of their own; with it admission knows which pod they are about.
        about = {"metadata": {"name": call.name, "namespace": call.namespace}}
        found = {**options.describe("PodAttachOptions" if attach else "PodExecOptions"), **about}
        found, _ = await self.api.admit("CONNECT", call.kind, found, None, call.options())
        await self.api.check("CONNECT", call.kind, found, None, call.options())
        return pod, options

    async def ephemeral_containers(self, request: web.Request, call: Call) -> web.StreamResponse:
        """GET, PUT and PATCH pods/NAME/ephemeralcontainers: containers may be added, nothing else changes"""
        _only(call, "get", "update", "patch")
        if call.verb == "get":
            return send(self.api.get(call.kind, call.namespace, call.name))
        edit = await self._edit(request, call, call.kind)

        def add(pod: Json) -> Json:
            sent = edit(self.api.get(call.kind, call.namespace, call.name))
            pod["spec"]["ephemeralContainers"] = (sent.get("spec") or {}).get("ephemeralContainers") or []
            pod["metadata"]["resourceVersion"] = sent.get("metadata", {}).get("resourceVersion", "")
            return pod

        pod, warnings = await self.api.change(call.kind, call.namespace, call.name, add, call.options())
        return send(pod, 200, warnings)

    async def token(self, request: web.Request, call: Call) -> web.StreamResponse:
        """POST serviceaccounts/NAME/token"""
        _only(call, "create")
        account = self.api.get(call.kind, call.namespace, call.name)
        found = await read_object(request)
        spec = found.setdefault("spec", {})
        seconds = spec.setdefault("expirationSeconds", 3600)
        if not isinstance(seconds, int) or not _SHORTEST_TOKEN <= seconds <= _LONGEST_TOKEN:
            why = "may not specify a duration less than 10 minutes or larger than 2^32 seconds"
            cause = Cause("spec.expirationSeconds", f"Invalid value: {seconds}: {why}")
            raise errors.invalid("TokenRequest", "authentication.k8s.io", call.name, [cause])
        token = self.tokens.issue(call.namespace, call.name, account["metadata"]["uid"], seconds)
        ends = datetime.fromtimestamp(datetime.now(UTC).timestamp() + seconds, UTC)
        found |= {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        found["metadata"] = {"name": call.name, "namespace": call.namespace, "creationTimestamp": timestamp()}
        found["status"] = {"token": token, "expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return send(found, 201)


def _only(call: Call, *verbs: str) -> None:
    if call.verb not in verbs:
        raise errors.not_allowed()
