"""Checks of the webhook: configuration, certificate and endpoints."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gpu_scheduler.base.certificates import read_period, split_bundle
from gpu_scheduler.base.text import count, join
from gpu_scheduler.cli.checks.cluster import DAY, Check, CheckLevel
from gpu_scheduler.cli.render.text import draw_age
from gpu_scheduler.gangs.contract import WEBHOOK, WEBHOOK_SECRET
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, NotFound
from gpu_scheduler.k8s.resources import ENDPOINT_SLICES, MUTATING, SECRETS, SERVICES, VALIDATING

EXPIRES_SOON = 14 * DAY
CONSEQUENCE = "pods that name this scheduler are refused"


@dataclass
class WebhookStatus:
    """The objects of the webhook in the API; `hidden` has the error for each that this account may not read."""

    missing: list[str] = field(default_factory=list)
    hidden: dict[str, str] = field(default_factory=dict)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    certificate_ends: float | None = None
    """When the certificate in the secret expires."""
    endpoints: dict[str, int | None] = field(default_factory=dict)
    """The number of ready endpoints of each Service; None for a Service that does not exist."""


async def read_webhook_status(client: Client, system: str) -> WebhookStatus:
    """Reads the configurations, Services, endpoints and secret of the webhook."""
    status = WebhookStatus()
    for kind in (MUTATING, VALIDATING):
        try:
            found = await client.get(kind, WEBHOOK)
        except NotFound:
            status.missing.append(kind.kind)
        except ApiError as error:
            status.hidden[kind.kind] = error.message
        else:
            status.hooks += found.get("webhooks") or ()
    for namespace, name in dict.fromkeys(_services(status.hooks)):
        await _count_endpoints(client, namespace, name, status)
    if status.hooks:
        await _read_secret(client, system, status)
    return status


async def _count_endpoints(client: Client, namespace: str, name: str, status: WebhookStatus) -> None:
    place = f"{namespace}/{name}"
    try:
        await client.get(SERVICES, name, namespace)
        slices = await client.list(ENDPOINT_SLICES, namespace, labels=f"kubernetes.io/service-name={name}")
    except NotFound:
        status.endpoints[place] = None
    except ApiError as error:
        status.hidden[place] = error.message
    else:
        endpoints = [one for found in slices.items for one in found.get("endpoints") or ()]
        status.endpoints[place] = sum((one.get("conditions") or {}).get("ready") is not False for one in endpoints)


async def _read_secret(client: Client, system: str, status: WebhookStatus) -> None:
    try:
        secret = await client.get(SECRETS, WEBHOOK_SECRET, system)
        status.certificate_ends = read_period(base64.b64decode((secret.get("data") or {}).get("tls.crt", ""))).ends
    except (ApiError, ValueError):
        pass  # it may be hidden, empty or have another name; the bundles of the configurations are checked as well


def check_webhook(status: WebhookStatus, now: float) -> Iterator[Check]:
    """Checks that the webhook is installed, its certificate valid, and an endpoint ready."""
    if len(status.missing) == 2:
        missing = "not installed: CUDA_VISIBLE_DEVICES is not set in containers"
        remedy = "Install the chart with webhook.enabled=true; until then a container must read the annotation itself."
        yield Check("webhook", CheckLevel.WARN, missing, remedy)
        return
    kinds = [kind for kind in (MUTATING.kind, VALIDATING.kind) if kind in status.hidden]
    if status.missing:
        missing = f"the {status.missing[0]} {WEBHOOK} does not exist"
        yield Check("webhook", CheckLevel.FAIL, missing, "Install the chart again.")
    elif kinds:
        yield Check("webhook", CheckLevel.INFO, f"cannot be read: {status.hidden[kinds[0]]}")
    else:
        yield Check("webhook", CheckLevel.OK, f"{count(len(status.hooks), 'webhook')} configured")
    if status.hooks:
        yield _check_certificate(status, now)
        yield _check_endpoints(status)


def _check_certificate(status: WebhookStatus, now: float) -> Check:
    name, remedy = "certificate", f"Renew the secret {WEBHOOK_SECRET}; gpu-scheduler certs creates a new one."
    bundles = [(hook.get("name", ""), _read_bundle(hook)) for hook in status.hooks if _needs_bundle(hook)]
    without_bundle = [hook for hook, bundle in bundles if not bundle]
    if without_bundle:
        untrusted = f"the caBundle of {join(without_bundle)} is empty: {CONSEQUENCE}"
        return Check(
            name, CheckLevel.FAIL, untrusted, "Wait until the webhook has set its own, or set webhook.caBundle."
        )
    # During a rotation the old authority may expire first.
    ends = [max(read_period(pem).ends for pem in bundle) for _, bundle in bundles]
    ends += [status.certificate_ends] if status.certificate_ends is not None else []
    if not ends:
        return Check(name, CheckLevel.OK, "of an authority that API servers trust by default")
    left = min(ends) - now
    if left < 0:
        return Check(name, CheckLevel.FAIL, f"expired {draw_age(-left)} ago: {CONSEQUENCE}", remedy)
    if left < EXPIRES_SOON:
        return Check(name, CheckLevel.WARN, f"expires in {draw_age(left)}", remedy)
    return Check(name, CheckLevel.OK, f"valid for {draw_age(left)}")


def _check_endpoints(status: WebhookStatus) -> Check:
    name = "endpoints"
    for place, ready in status.endpoints.items():
        if ready is None:
            return Check(
                name, CheckLevel.FAIL, f"the Service {place} does not exist: {CONSEQUENCE}", "Install the chart again."
            )
        if ready == 0:
            namespace = place.partition("/")[0]
            remedy = f"kubectl -n {namespace} get pods shows why; see also the log of the pod."
            return Check(name, CheckLevel.FAIL, f"the Service {place} has no ready endpoint: {CONSEQUENCE}", remedy)
    hidden = [why for place, why in status.hidden.items() if "/" in place]
    if hidden:
        return Check(name, CheckLevel.INFO, f"cannot be read: {hidden[0]}")
    if status.endpoints:
        return Check(name, CheckLevel.OK, f"{sum(ready or 0 for ready in status.endpoints.values())} ready")
    hosts = {urlsplit(hook["clientConfig"]["url"]).netloc for hook in status.hooks if hook["clientConfig"].get("url")}
    return Check(name, CheckLevel.OK, f"reached at {join(sorted(hosts))}")


def _services(hooks: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for hook in hooks:
        service = hook.get("clientConfig", {}).get("service")
        if service is not None:
            yield service["namespace"], service["name"]


def _needs_bundle(hook: dict[str, Any]) -> bool:
    """Whether the webhook needs a caBundle: one with a URL may have a publicly trusted certificate."""
    client = hook.get("clientConfig", {})
    return not client.get("url") or bool(client.get("caBundle"))


def _read_bundle(hook: dict[str, Any]) -> tuple[bytes, ...]:
    try:
        return split_bundle(base64.b64decode(hook.get("clientConfig", {}).get("caBundle") or ""))
    except binascii.Error:
        return ()
