"""Calling admission webhooks over TLS, with the words of a real API server when they refuse or fail."""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import errno
import logging
import socket
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from embedded_kube import errors
from embedded_kube.admission.match_conditions import ConditionError
from embedded_kube.admission.webhook_rules import GROUP, MUTATING, VALIDATING, Hook, trust
from embedded_kube.api import Conversion, Options
from embedded_kube.patching import json_patch
from embedded_kube.storage.followed import Followed
from embedded_kube.storage.kinds import Kind, Kinds
from embedded_kube.storage.store import Json, Store

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_trust = lru_cache(maxsize=64)(trust)

Refine = Callable[[str, Kind, Json, Json | None, Options], None]
"""The built-in half of admission, which has its say again after webhooks changed an object."""

_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
_KEPT = ("uid", "namespace", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp")


@dataclass(slots=True)
class Request:
    """What webhooks are asked about. `found` changes as mutating ones change it."""

    operation: str
    kind: Kind
    found: Json
    old: Json | None
    options: Options

    @property
    def name(self) -> str:
        """The object's name; empty while it is still to be generated."""
        return str(self.found.get("metadata", {}).get("name") or "")

    @property
    def namespace(self) -> str:
        """The object's namespace; a namespace is in itself."""
        if self.kind.resource == "namespaces":
            return self.name
        return str(self.found.get("metadata", {}).get("namespace") or "") if self.kind.namespaced else ""

    def describe(self, shown: Kind) -> Json:
        """Everything an AdmissionReview says, except the objects."""
        options, subresource = self.options, self.options.subresource
        group, _, version = self.found["apiVersion"].rpartition("/")
        asked = {"group": group, "version": version, "kind": self.found["kind"]}
        seen = {**asked, "version": shown.version} if asked["kind"] == shown.kind else asked
        resource = {"group": self.kind.group, "version": self.kind.version, "resource": self.kind.plural}
        sent = {"dryRun": ["All"]} if options.dry_run else {}
        named = {"fieldManager": options.field_manager} if options.field_manager else {}
        body = None
        if self.operation in _OPTIONS:
            body = {"kind": _OPTIONS[self.operation], "apiVersion": "meta.k8s.io/v1", **sent, **named}
        return {
            "uid": str(uuid.uuid4()),
            "kind": seen,
            "resource": {**resource, "version": shown.version},
            **({"subResource": subresource} if subresource else {}),
            "requestKind": asked,
            "requestResource": resource,
            **({"requestSubResource": subresource} if subresource else {}),
            **({"name": self.name} if self.name else {}),
            **({"namespace": self.namespace} if self.namespace else {}),
            "operation": self.operation,
            "userInfo": {"username": options.user, "groups": list(options.groups)},
            "dryRun": options.dry_run,
            "options": body,
        }

    def objects(self, shown: Kind) -> Json:
        """The objects, in the version in which a webhook wants them."""
        new = None if self.operation == "DELETE" else self.found
        return {"object": self._in_version(new, shown), "oldObject": self._in_version(self.old, shown)}

    def _in_version(self, found: Json | None, shown: Kind) -> Json | None:
        if found is None or shown is self.kind:
            return found
        return {**found, "apiVersion": shown.api_version}


class CallError(Exception):
    """A webhook that could not be asked, or whose answer makes no sense."""


class Webhooks:
    """The webhooks that the store has configurations of. Close it to let go of its connections."""

    def __init__(self, store: Store, kinds: Kinds, conversion: Conversion) -> None:
        self._store = store
        self._kinds = kinds
        self._conversion = conversion
        self._followed = {resource: Followed(store, resource) for resource in (MUTATING, VALIDATING)}
        self._hooks: dict[str, list[Hook]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections to webhooks."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(self, request: Request, refine: Refine) -> list[str]:
        """Lets the mutating webhooks change the object, one after the other; returns their warnings."""
        hooks = self._configured(MUTATING, request)
        warnings: list[str] = []
        again: list[Hook] = []
        seen: list[Hook] = []
        changed = False
        for hook in hooks:
            # Asked one by one: what one webhook changes may be what the next one selects by.
            if not self._matches(hook, request):
                continue
            if await self._ask(hook, request, warnings):
                changed = True
                again += seen
                seen = []
            if hook.reinvoked:
                seen.append(hook)
        if changed:
            before = _encode(request.found)
            refine(request.operation, request.kind, request.found, request.old, request.options)
            again += seen if _encode(request.found) != before else []
            for hook in hooks:
                if any(hook is one for one in again) and self._matches(hook, request):
                    await self._ask(hook, request, warnings)
        return warnings

    async def validate(self, request: Request) -> list[str]:
        """Asks the validating webhooks, all at once; returns their warnings."""
        hooks = [hook for hook in self._configured(VALIDATING, request) if self._matches(hook, request)]
        if not hooks:
            return []
        warnings: list[str] = []
        answers = await asyncio.gather(*(self._ask(h, request, warnings) for h in hooks), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return warnings

    def _configured(self, resource: str, request: Request) -> list[Hook]:
        """The webhooks that there are, in the order of their configurations."""
        if self._followed[resource].is_stale():
            configurations = [entry.object() for entry in self._store.entries(resource)]
            self._hooks[resource] = [Hook.read(w) for c in configurations for w in c.get("webhooks") or ()]
        # A webhook must never be able to stand in the way of removing it.
        return self._hooks[resource] if request.kind.group != GROUP else []

    def _matches(self, hook: Hook, request: Request) -> bool:
        return self._shown(hook, request) is not None and self._selects(hook, request)

    def _shown(self, hook: Hook, request: Request) -> Kind | None:
        kind = request.kind
        others = () if hook.exact else tuple(k for k in self._kinds if k.resource == kind.resource and k is not kind)
        return hook.find_kind(request.operation, kind, request.options.subresource, others)

    def _selects(self, hook: Hook, request: Request) -> bool:
        labels: dict[str, str] | None = None
        if request.kind.resource == "namespaces":
            labels = request.found["metadata"].get("labels") or {}
        elif request.kind.namespaced:
            home = self._store.get("namespaces", "", request.namespace)
            labels = home.labels if home is not None else {}
        return hook.selects(request.found, request.old, labels)

    async def _ask(self, hook: Hook, request: Request, warnings: list[str]) -> bool:
        """Asks one webhook; True when it changed the object. ApiError when it refuses, or fails and must not."""
        shown = self._shown(hook, request)
        if shown is None:
            return False
        review, objects = request.describe(shown), request.objects(shown)
        kind, name = request.kind, request.name
        try:
            if not hook.meets_conditions({"request": review, **objects}):
                return False
        except ConditionError as error:
            if hook.ignore_failure:
                return False
            raise errors.forbidden(kind.plural, kind.group, name, str(error)) from error
        if request.options.dry_run and not hook.dry_runs:
            raise errors.bad_request(f'admission webhook "{hook.name}" does not support dry run')
        try:
            response = await self._call(hook, {**review, **objects})
        except CallError as error:
            text = f'failed calling webhook "{hook.name}": {error}'
            if hook.ignore_failure:
                _log.warning("%s; going on because its failurePolicy is Ignore", text)
                return False
            raise errors.internal(text) from error
        warnings += response.get("warnings") or []
        if not response.get("allowed"):
            raise _denied(hook.name, response.get("status") or {})
        return bool(response.get("patch")) and self._apply(request, shown, response)

    def _apply(self, request: Request, shown: Kind, response: Json) -> bool:
        if request.operation == "DELETE":
            return False
        before = request.objects(shown)["object"]
        try:
            operations = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
            patched: Json = json_patch.patched(copy.deepcopy(before), operations)
        except (binascii.Error, msgspec.DecodeError, json_patch.PatchError, AttributeError, TypeError) as error:
            raise errors.internal(str(error)) from error
        if patched == before:
            return False
        found = request.found
        patched["apiVersion"], patched["kind"] = found["apiVersion"], found["kind"]
        meta, was = patched.setdefault("metadata", {}), found.get("metadata", {})
        for field in _KEPT if request.old is None else (*_KEPT, "name"):
            meta.pop(field, None)
            if field in was:
                meta[field] = was[field]
        if patched["kind"] == request.kind.kind:
            self._conversion.decode(request.kind, patched, "Ignore")
        request.found = patched
        return True

    async def _call(self, hook: Hook, request: Json) -> Json:
        """One exchange; CallError in the words of a real API server."""
        url = f"{_address(hook)}?timeout={hook.timeout}s"
        body = _encode({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})
        try:
            async with asyncio.timeout(hook.timeout):
                status, answer = await self._post(url, body, hook.client.get("caBundle") or "")
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise CallError(f'failed to call webhook: Post "{url}": {_reason(error)}') from error
        if status == 404:
            raise CallError("failed to call webhook: the server could not find the requested resource")
        if not 200 <= status < 300:
            said = answer.decode(errors="replace")[:1024].replace('"', '\\"').strip()
            text = f'an error on the server ("{said}") has prevented the request from succeeding'
            raise CallError(f"failed to call webhook: {text}")
        return _read_response(answer, request["uid"])

    async def _post(self, url: str, body: bytes, bundle: str) -> tuple[int, bytes]:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_Services(self._store), use_dns_cache=False, limit=0, keepalive_timeout=60
            )
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout())
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "kube-apiserver"}
        for last in (False, True):
            try:
                async with self._session.post(
                    url, data=body, headers=headers, ssl=_trust(bundle), allow_redirects=False
                ) as response:
                    return response.status, await response.read()
            except aiohttp.ServerDisconnectedError:
                # A kept connection may have been closed just now. Webhooks have no side effects that matter twice.
                if last:
                    raise
        raise AssertionError("unreachable")


class _Services(AbstractResolver):
    """Finds `name.namespace.svc` through Services and Endpoints, every other name as usual."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: AbstractResolver | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        parts = host.split(".")
        if len(parts) != 3 or parts[2] != "svc":
            self._names = self._names or ThreadedResolver()
            return await self._names.resolve(host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=number,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address, number in find_endpoints(self._store, parts[1], parts[0], port)
        ]

    async def close(self) -> None:
        if self._names is not None:
            await self._names.close()


def find_endpoints(store: Store, namespace: str, name: str, port: int) -> list[tuple[str, int]]:
    """Addresses and ports behind a port of a service; OSError says why there are none."""
    service = store.get("services", namespace, name)
    if service is None:
        raise OSError(f'service "{name}" not found')
    ports = [p for p in service.object().get("spec", {}).get("ports") or () if p.get("port") == port]
    if not ports:
        raise OSError(f'no service port {port} found for service "{name}"')
    endpoints = store.get("endpoints", namespace, name)
    subsets = (endpoints.object().get("subsets") or []) if endpoints is not None else []
    found = [
        (address["ip"], target["port"])
        for subset in subsets
        for target in subset.get("ports") or ()
        if (target.get("name") or "") == (ports[0].get("name") or "")
        for address in subset.get("addresses") or ()
    ]
    if not found:
        raise OSError(f'no endpoints available for service "{name}"')
    return found


def _address(hook: Hook) -> str:
    client = hook.client
    if client.get("url"):
        return str(client["url"])
    service = client["service"]
    path = (service.get("path") or "").lstrip("/")
    return f"https://{service['name']}.{service['namespace']}.svc:{service.get('port') or 443}/{path}"


def _reason(error: Exception) -> str:
    """Why a call failed, as Go's HTTP client puts it."""
    if isinstance(error, TimeoutError):
        return "context deadline exceeded"
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        unknown = cause.verify_code in (18, 19, 20, 21)
        why = "certificate signed by unknown authority" if unknown else cause.verify_message
        return f"tls: failed to verify certificate: x509: {why}"
    if isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED:
        host, port = getattr(error, "host", ""), getattr(error, "port", "")
        return f"dial tcp {host}:{port}: connect: connection refused"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(cause) or type(cause).__name__


def _read_response(answer: bytes, uid: str) -> Json:
    """The response of an AdmissionReview that answers this request."""
    try:
        review: Any = msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise CallError(f"failed to call webhook: couldn't get version/kind; json parse error: {error}") from error
    invalid = "received invalid webhook response: "
    said = (review.get("apiVersion"), review.get("kind")) if isinstance(review, dict) else (None, None)
    if said != ("admission.k8s.io/v1", "AdmissionReview"):
        wanted = "admission.k8s.io/v1, Kind=AdmissionReview"
        raise CallError(f"{invalid}expected webhook response of {wanted}, got {said[0]}, Kind={said[1]}")
    response: Any = review.get("response")
    if not isinstance(response, dict):
        raise CallError(f"{invalid}webhook response was absent")
    if response.get("uid") != uid:
        raise CallError(f'{invalid}expected response.uid="{uid}", got "{response.get("uid", "")}"')
    if response.get("patch") and response.get("patchType") is None:
        raise CallError(f"{invalid}webhook returned response.patch but not response.patchType")
    if response.get("patch") and response["patchType"] != "JSONPatch":
        raise CallError(f'{invalid}webhook returned invalid response.patchType of "{response["patchType"]}"')
    return response


def _denied(name: str, status: Json) -> errors.ApiError:
    text, reason, code = status.get("message"), status.get("reason") or "", status.get("code") or 0
    why = f": {text or reason}" if text or reason else " without explanation"
    message = f'admission webhook "{name}" denied the request{why}'
    return errors.ApiError(code if code >= 400 else 400, reason, message, status.get("details"))
