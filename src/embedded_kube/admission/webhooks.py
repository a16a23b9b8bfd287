"""Calls of admission webhooks over TLS, with the error messages of a real API server."""

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
from embedded_kube.admission.match_conditions import MatchConditionError
from embedded_kube.admission.webhook_rules import GROUP, MUTATING, VALIDATING, Webhook, client_tls_context
from embedded_kube.patching import json_patch
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.registry.options import RequestOptions
from embedded_kube.registry.registry import Strategy
from embedded_kube.storage.change_tracker import ChangeTracker
from embedded_kube.storage.store import Store
from gpu_scheduler.k8s.objects import Json

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_tls_context = lru_cache(maxsize=64)(client_tls_context)

Reinvoke = Callable[[str, ServedKind, Json, Json | None, RequestOptions], None]
"""The built-in admission, which runs again after a webhook changed the object."""

_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
_IMMUTABLE_METADATA = ("uid", "namespace", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp")


@dataclass(slots=True)
class AdmissionAttributes:
    """A request to admission (compare admission.Attributes). Mutating webhooks replace `obj`."""

    operation: str
    kind: ServedKind
    obj: Json
    old: Json | None
    options: RequestOptions

    @property
    def name(self) -> str:
        """The object's name; "" if it is not generated yet."""
        return str(self.obj.get("metadata", {}).get("name") or "")

    @property
    def namespace(self) -> str:
        """The object's namespace; of a namespace, its own name."""
        if self.kind.resource == "namespaces":
            return self.name
        return str(self.obj.get("metadata", {}).get("namespace") or "") if self.kind.namespaced else ""

    def describe(self, matched: ServedKind) -> Json:
        """The request of an AdmissionReview, without the objects."""
        options, subresource = self.options, self.options.subresource
        group, _, version = self.obj["apiVersion"].rpartition("/")
        request_kind = {"group": group, "version": version, "kind": self.obj["kind"]}
        seen = {**request_kind, "version": matched.version} if request_kind["kind"] == matched.kind else request_kind
        resource = {"group": self.kind.group, "version": self.kind.version, "resource": self.kind.plural}
        sent = {"dryRun": ["All"]} if options.dry_run else {}
        named = {"fieldManager": options.field_manager} if options.field_manager else {}
        body = None
        if self.operation in _OPTIONS:
            body = {"kind": _OPTIONS[self.operation], "apiVersion": "meta.k8s.io/v1", **sent, **named}
        return {
            "uid": str(uuid.uuid4()),
            "kind": seen,
            "resource": {**resource, "version": matched.version},
            **({"subResource": subresource} if subresource else {}),
            "requestKind": request_kind,
            "requestResource": resource,
            **({"requestSubResource": subresource} if subresource else {}),
            **({"name": self.name} if self.name else {}),
            **({"namespace": self.namespace} if self.namespace else {}),
            "operation": self.operation,
            "userInfo": {"username": options.user, "groups": list(options.groups)},
            "dryRun": options.dry_run,
            "options": body,
        }

    def objects(self, matched: ServedKind) -> Json:
        """The objects of an AdmissionReview, in the version that the webhook matches."""
        new = None if self.operation == "DELETE" else self.obj
        return {"object": self._in_version(new, matched), "oldObject": self._in_version(self.old, matched)}

    def _in_version(self, obj: Json | None, matched: ServedKind) -> Json | None:
        if obj is None or matched is self.kind:
            return obj
        return {**obj, "apiVersion": matched.api_version}


class WebhookCallError(Exception):
    """A call that failed, or a response that is invalid."""


class WebhookDispatcher:
    """Calls the webhooks of the stored configurations. `close` closes its connections."""

    def __init__(self, store: Store, kinds: KindTable, strategy: Strategy) -> None:
        self._store = store
        self._kinds = kinds
        self._strategy = strategy
        self._trackers = {resource: ChangeTracker(store, resource) for resource in (MUTATING, VALIDATING)}
        self._webhooks: dict[str, list[Webhook]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections to webhooks."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(self, attributes: AdmissionAttributes, reinvoke: Reinvoke) -> list[str]:
        """Calls the mutating webhooks one after the other; returns their warnings."""
        webhooks = self._configured(MUTATING, attributes)
        warnings: list[str] = []
        again: list[Webhook] = []
        seen: list[Webhook] = []
        changed = False
        for webhook in webhooks:
            # Matched one by one: a webhook may change what the next one selects by.
            if not self._matches(webhook, attributes):
                continue
            if await self._invoke(webhook, attributes, warnings):
                changed = True
                again += seen
                seen = []
            if webhook.reinvoked:
                seen.append(webhook)
        if changed:
            before = _encode(attributes.obj)
            reinvoke(attributes.operation, attributes.kind, attributes.obj, attributes.old, attributes.options)
            again += seen if _encode(attributes.obj) != before else []
            for webhook in webhooks:
                if any(webhook is one for one in again) and self._matches(webhook, attributes):
                    await self._invoke(webhook, attributes, warnings)
        return warnings

    async def validate(self, attributes: AdmissionAttributes) -> list[str]:
        """Calls the validating webhooks in parallel; returns their warnings."""
        webhooks = [one for one in self._configured(VALIDATING, attributes) if self._matches(one, attributes)]
        if not webhooks:
            return []
        warnings: list[str] = []
        calls = [self._invoke(webhook, attributes, warnings) for webhook in webhooks]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return warnings

    def _configured(self, resource: str, attributes: AdmissionAttributes) -> list[Webhook]:
        """The configured webhooks, in the order of their configurations."""
        if self._trackers[resource].is_stale():
            configurations = [entry.object() for entry in self._store.entries(resource)]
            self._webhooks[resource] = [Webhook.read(w) for c in configurations for w in c.get("webhooks") or ()]
        # Webhooks are not called for webhook configurations, so that a broken webhook can be removed.
        return self._webhooks[resource] if attributes.kind.group != GROUP else []

    def _matches(self, webhook: Webhook, attributes: AdmissionAttributes) -> bool:
        return self._matched_kind(webhook, attributes) is not None and self._selects(webhook, attributes)

    def _matched_kind(self, webhook: Webhook, attributes: AdmissionAttributes) -> ServedKind | None:
        kind = attributes.kind
        others = () if webhook.exact else tuple(k for k in self._kinds if k.resource == kind.resource and k is not kind)
        return webhook.find_kind(attributes.operation, kind, attributes.options.subresource, others)

    def _selects(self, webhook: Webhook, attributes: AdmissionAttributes) -> bool:
        labels: dict[str, str] | None = None
        if attributes.kind.resource == "namespaces":
            labels = attributes.obj["metadata"].get("labels") or {}
        elif attributes.kind.namespaced:
            namespace = self._store.get("namespaces", "", attributes.namespace)
            labels = namespace.labels if namespace is not None else {}
        return webhook.selects(attributes.obj, attributes.old, labels)

    async def _invoke(self, webhook: Webhook, attributes: AdmissionAttributes, warnings: list[str]) -> bool:
        """Calls one webhook; True if it changed the object. StatusError if it denies, or fails and must not."""
        matched = self._matched_kind(webhook, attributes)
        if matched is None:
            return False
        review, objects = attributes.describe(matched), attributes.objects(matched)
        kind, name = attributes.kind, attributes.name
        try:
            if not webhook.meets_conditions({"request": review, **objects}):
                return False
        except MatchConditionError as error:
            if webhook.ignore_failure:
                return False
            raise errors.forbidden(kind.plural, kind.group, name, str(error)) from error
        if attributes.options.dry_run and not webhook.dry_runs:
            raise errors.bad_request(f'admission webhook "{webhook.name}" does not support dry run')
        try:
            response = await self._call(webhook, {**review, **objects})
        except WebhookCallError as error:
            text = f'failed calling webhook "{webhook.name}": {error}'
            if webhook.ignore_failure:
                _log.warning("%s; ignored because of failurePolicy Ignore", text)
                return False
            raise errors.internal_error(text) from error
        warnings += response.get("warnings") or []
        if not response.get("allowed"):
            raise _denied(webhook.name, response.get("status") or {})
        return bool(response.get("patch")) and self._apply(attributes, matched, response)

    def _apply(self, attributes: AdmissionAttributes, matched: ServedKind, response: Json) -> bool:
        if attributes.operation == "DELETE":
            return False
        before = attributes.objects(matched)["object"]
        try:
            operations = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
            patched: Json = json_patch.apply_operations(copy.deepcopy(before), operations)
        except (binascii.Error, msgspec.DecodeError, json_patch.JsonPatchError, AttributeError, TypeError) as error:
            raise errors.internal_error(str(error)) from error
        if patched == before:
            return False
        obj = attributes.obj
        patched["apiVersion"], patched["kind"] = obj["apiVersion"], obj["kind"]
        meta, was = patched.setdefault("metadata", {}), obj.get("metadata", {})
        for field in _IMMUTABLE_METADATA if attributes.old is None else (*_IMMUTABLE_METADATA, "name"):
            meta.pop(field, None)
            if field in was:
                meta[field] = was[field]
        if patched["kind"] == attributes.kind.kind:
            self._strategy.decode(attributes.kind, patched, "Ignore")
        attributes.obj = patched
        return True

    async def _call(self, webhook: Webhook, request: Json) -> Json:
        """Sends an AdmissionReview; WebhookCallError has the message of a real API server."""
        url = f"{_address(webhook)}?timeout={webhook.timeout}s"
        body = _encode({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})
        try:
            async with asyncio.timeout(webhook.timeout):
                status, answer = await self._post(url, body, webhook.client.get("caBundle") or "")
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise WebhookCallError(f'failed to call webhook: Post "{url}": {_reason(error)}') from error
        if status == 404:
            raise WebhookCallError("failed to call webhook: the server could not find the requested resource")
        if not 200 <= status < 300:
            text = answer.decode(errors="replace")[:1024].replace('"', '\\"').strip()
            text = f'an error on the server ("{text}") has prevented the request from succeeding'
            raise WebhookCallError(f"failed to call webhook: {text}")
        return _read_response(answer, request["uid"])

    async def _post(self, url: str, body: bytes, bundle: str) -> tuple[int, bytes]:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_ServiceResolver(self._store), use_dns_cache=False, limit=0, keepalive_timeout=60
            )
            self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout())
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "kube-apiserver"}
        for last in (False, True):
            try:
                async with self._session.post(
                    url, data=body, headers=headers, ssl=_tls_context(bundle), allow_redirects=False
                ) as response:
                    return response.status, await response.read()
            except aiohttp.ServerDisconnectedError:
                # The webhook closed a kept-alive connection. A second call is safe: webhooks have no side effects.
                if last:
                    raise
        raise AssertionError("unreachable")


class _ServiceResolver(AbstractResolver):
    """Resolves `name.namespace.svc` by Services and Endpoints, and any other name by DNS."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dns: AbstractResolver | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        parts = host.split(".")
        if len(parts) != 3 or parts[2] != "svc":
            self._dns = self._dns or ThreadedResolver()
            return await self._dns.resolve(host, port, family)
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
        if self._dns is not None:
            await self._dns.close()


def find_endpoints(store: Store, namespace: str, name: str, port: int) -> list[tuple[str, int]]:
    """The endpoints of a Service port; OSError if there are none."""
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


def _address(webhook: Webhook) -> str:
    client = webhook.client
    if client.get("url"):
        return str(client["url"])
    service = client["service"]
    path = (service.get("path") or "").lstrip("/")
    return f"https://{service['name']}.{service['namespace']}.svc:{service.get('port') or 443}/{path}"


def _reason(error: Exception) -> str:
    """The reason of a failed call, in the format of Go's HTTP client."""
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
    """The response of an AdmissionReview with this uid."""
    try:
        review: Any = msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise WebhookCallError(
            f"failed to call webhook: couldn't get version/kind; json parse error: {error}"
        ) from error
    invalid = "received invalid webhook response: "
    type_meta = (review.get("apiVersion"), review.get("kind")) if isinstance(review, dict) else (None, None)
    if type_meta != ("admission.k8s.io/v1", "AdmissionReview"):
        wanted = "admission.k8s.io/v1, Kind=AdmissionReview"
        got = f"{type_meta[0]}, Kind={type_meta[1]}"
        raise WebhookCallError(f"{invalid}expected webhook response of {wanted}, got {got}")
    response: Any = review.get("response")
    if not isinstance(response, dict):
        raise WebhookCallError(f"{invalid}webhook response was absent")
    if response.get("uid") != uid:
        raise WebhookCallError(f'{invalid}expected response.uid="{uid}", got "{response.get("uid", "")}"')
    if response.get("patch") and response.get("patchType") is None:
        raise WebhookCallError(f"{invalid}webhook returned response.patch but not response.patchType")
    if response.get("patch") and response["patchType"] != "JSONPatch":
        raise WebhookCallError(f'{invalid}webhook returned invalid response.patchType of "{response["patchType"]}"')
    return response


def _denied(name: str, status: Json) -> errors.StatusError:
    text, reason, code = status.get("message"), status.get("reason") or "", status.get("code") or 0
    why = f": {text or reason}" if text or reason else " without explanation"
    message = f'admission webhook "{name}" denied the request{why}'
    return errors.StatusError(code if code >= 400 else 400, reason, message, status.get("details"))
