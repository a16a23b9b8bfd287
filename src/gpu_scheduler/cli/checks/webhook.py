"""What the doctor says about the webhook: is it configured, whom do API servers trust, does anybody answer?"""

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

SOON = 14 * DAY
REFUSED = "pods that name this scheduler are refused"


@dataclass
class WebhookStatus:
    """The webhook as the API shows it; what this account may not see has the reason in `hidden`."""

    missing: list[str] = field(default_factory=list)
    hidden: dict[str, str] = field(default_factory=dict)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    served: float | None = None
    """When the certificate in the secret ends."""
    endpoints: dict[str, int | None] = field(default_factory=dict)
    """How many are ready behind each Service; None for a Service that does not exist."""


async def read_webhook_status(client: Client, system: str) -> WebhookStatus:
    """Everything that there is to see of the webhook."""
    seen = WebhookStatus()
    for kind in (MUTATING, VALIDATING):
        try:
            found = await client.get(kind, WEBHOOK)
        except NotFound:
            seen.missing.append(kind.kind)
        except ApiError as error:
            seen.hidden[kind.kind] = error.message
        else:
            seen.hooks += found.get("webhooks") or ()
    for namespace, name in dict.fromkeys(_services(seen.hooks)):
        await _count_endpoints(client, namespace, name, seen)
    if seen.hooks:
        await _read_secret(client, system, seen)
    return seen


async def _count_endpoints(client: Client, namespace: str, name: str, seen: WebhookStatus) -> None:
    place = f"{namespace}/{name}"
    try:
        await client.get(SERVICES, name, namespace)
        slices = await client.list(ENDPOINT_SLICES, namespace, labels=f"kubernetes.io/service-name={name}")
    except NotFound:
        seen.endpoints[place] = None
    except ApiError as error:
        seen.hidden[place] = error.message
    else:
        all_of_them = [one for found in slices.items for one in found.get("endpoints") or ()]
        seen.endpoints[place] = sum((one.get("conditions") or {}).get("ready") is not False for one in all_of_them)


async def _read_secret(client: Client, system: str, seen: WebhookStatus) -> None:
    try:
        secret = await client.get(SECRETS, WEBHOOK_SECRET, system)
        seen.served = read_period(base64.b64decode((secret.get("data") or {}).get("tls.crt", ""))).ends
    except (ApiError, ValueError):
        pass  # it may be hidden, empty or called otherwise: what API servers trust says as much


def check_webhook(seen: WebhookStatus, now: float) -> Iterator[Check]:
    """Whether the webhook is there, its certificate good for a while, and somebody answers."""
    if len(seen.missing) == 2:
        told = "not installed: containers are not told their GPUs by CUDA_VISIBLE_DEVICES"
        remedy = "Install the chart with webhook.enabled=true; until then a container reads the annotation itself."
        yield Check("webhook", CheckLevel.WARN, told, remedy)
        return
    kinds = [kind for kind in (MUTATING.kind, VALIDATING.kind) if kind in seen.hidden]
    if seen.missing:
        told = f"the {seen.missing[0]} {WEBHOOK} does not exist"
        yield Check("webhook", CheckLevel.FAIL, told, "Install the chart again.")
    elif kinds:
        yield Check("webhook", CheckLevel.INFO, f"cannot be seen: {seen.hidden[kinds[0]]}")
    else:
        yield Check("webhook", CheckLevel.OK, f"{count(len(seen.hooks), 'webhook')} configured")
    if seen.hooks:
        yield _check_certificate(seen, now)
        yield _check_answering(seen)


def _check_certificate(seen: WebhookStatus, now: float) -> Check:
    name, remedy = "certificate", f"Renew what the secret {WEBHOOK_SECRET} holds; gpu-scheduler certs makes a new one."
    bundles = [(hook.get("name", ""), _read_bundle(hook)) for hook in seen.hooks if _needs_bundle(hook)]
    bare = [hook for hook, bundle in bundles if not bundle]
    if bare:
        told = f"no authority is trusted (caBundle is empty) by {join(bare)}: {REFUSED}"
        return Check(name, CheckLevel.FAIL, told, "Wait for the webhook to enter its own, or set webhook.caBundle.")
    # An authority that is being replaced may end before the other one.
    ends = [max(read_period(pem).ends for pem in bundle) for _, bundle in bundles]
    ends += [seen.served] if seen.served is not None else []
    if not ends:
        return Check(name, CheckLevel.OK, "of an authority that API servers trust by themselves")
    left = min(ends) - now
    if left < 0:
        return Check(name, CheckLevel.FAIL, f"expired {draw_age(-left)} ago: {REFUSED}", remedy)
    if left < SOON:
        return Check(name, CheckLevel.WARN, f"expires in {draw_age(left)}", remedy)
    return Check(name, CheckLevel.OK, f"good for {draw_age(left)}")


def _check_answering(seen: WebhookStatus) -> Check:
    name = "endpoints"
    for place, ready in seen.endpoints.items():
        if ready is None:
            return Check(
                name, CheckLevel.FAIL, f"the Service {place} does not exist: {REFUSED}", "Install the chart again."
            )
        if ready == 0:
            namespace = place.partition("/")[0]
            remedy = f"kubectl -n {namespace} get pods shows why; its log says more."
            return Check(name, CheckLevel.FAIL, f"nobody is ready behind the Service {place}: {REFUSED}", remedy)
    hidden = [why for place, why in seen.hidden.items() if "/" in place]
    if hidden:
        return Check(name, CheckLevel.INFO, f"cannot be seen: {hidden[0]}")
    if seen.endpoints:
        return Check(name, CheckLevel.OK, f"{sum(ready or 0 for ready in seen.endpoints.values())} ready")
    hosts = {urlsplit(hook["clientConfig"]["url"]).netloc for hook in seen.hooks if hook["clientConfig"].get("url")}
    return Check(name, CheckLevel.OK, f"asked at {join(sorted(hosts))}")


def _services(hooks: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for hook in hooks:
        service = hook.get("clientConfig", {}).get("service")
        if service is not None:
            yield service["namespace"], service["name"]


def _needs_bundle(hook: dict[str, Any]) -> bool:
    """Whether nobody is trusted without a bundle; an address may have a certificate that everybody trusts."""
    client = hook.get("clientConfig", {})
    return not client.get("url") or bool(client.get("caBundle"))


def _read_bundle(hook: dict[str, Any]) -> tuple[bytes, ...]:
    try:
        return split_bundle(base64.b64decode(hook.get("clientConfig", {}).get("caBundle") or ""))
    except binascii.Error:
        return ()
