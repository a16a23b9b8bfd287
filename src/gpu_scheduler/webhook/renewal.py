"""Renews the webhook's own certificate: the pair in a secret, its authority in the configurations; see rotation.py."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

import structlog

from gpu_scheduler.base.certificates import Certificate, split_bundle
from gpu_scheduler.gangs.contract import SYSTEM, WEBHOOK, WEBHOOK_SECRET
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import MUTATING, SECRETS, VALIDATING
from gpu_scheduler.webhook.rotation import (
    AddPair,
    RotationPolicy,
    RotationState,
    SecretContent,
    ServePair,
    SignedPair,
    TrustAuthorities,
    TrustBundles,
    WriteSecret,
    plan_rotation,
    with_new_pair,
)

CONFIGURATIONS = (MUTATING, VALIDATING)
_CHANGE_INTERVAL = 0.05
"""Seconds until the next reconcile after a change: not at once, since another writer may undo every change."""

_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


class CertificateLocation(NamedTuple):
    """The secret with the certificate, and the webhook configurations that must trust it."""

    namespace: str = SYSTEM
    secret: str = WEBHOOK_SECRET
    configuration: str = WEBHOOK


class _Observation(NamedTuple):
    """The objects as read from the API, with the versions that writes depend on."""

    configurations: tuple[Json | None, ...]
    secret: Json
    now: float

    @property
    def version(self) -> Hashable:
        """Changes with every webhook of the configurations and every entry of ours in the secret.

        It is not the resourceVersion: a controller that writes labels every few seconds would reset the grace period.
        """
        metas = [one and one["metadata"] for one in self.configurations]
        generations = tuple(meta and (meta.get("uid"), meta.get("generation")) for meta in metas)
        return generations, tuple(map(_read_configuration, self.configurations)), _read_secret(self.secret)


class CertificateRenewal:
    """The renewal loop of one replica. It calls `serve` with each pair to serve from then on."""

    def __init__(
        self,
        client: Client,
        location: CertificateLocation,
        policy: RotationPolicy,
        serve: Callable[[Certificate], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served: SignedPair | None = None
        """The served pair; None until the configurations trust one."""
        self._client = client
        self._location = location
        self._policy = policy
        self._serve = serve
        self._clock = clock
        self._version: Hashable = None
        self._since = 0.0
        self._missing = ""
        self._last_problem = ""

    async def run(self) -> None:
        """Reconciles until cancelled. Errors are retried, and logged once."""
        while True:
            problem, changed = "", False
            try:
                changed = await self.reconcile()
            except Conflict:
                changed = True  # another replica was faster, and its write is as good
            except ApiError as error:
                problem = f"certificate renewal failed: {error.message}"
            self._log_once(problem or self._missing)
            await asyncio.sleep(_CHANGE_INTERVAL if changed else self._policy.poll_interval)

    async def reconcile(self) -> bool:
        """Reads the objects and applies the steps that are due; returns whether the API was changed."""
        begun = self._clock()
        observed = await self._read()
        if observed.version != self._version:
            self._version, self._since = observed.version, self._clock()
        state = RotationState(
            _read_secret(observed.secret),
            tuple(_read_configuration(one) for one in observed.configurations),
            self.served,
            max(0.0, begun - self._since),
        )
        steps = plan_rotation(state, observed.now, self._policy)
        for step in steps:
            await self._apply(step, observed)
        return any(not isinstance(step, ServePair) for step in steps)

    async def _read(self) -> _Observation:
        # The secret is read last, so that a bundle written to a configuration that has not changed since it was read is
        # never older than one that another replica wrote.
        now = await self._client.server_time()
        configurations = [await self._get_configuration(number) for number in range(len(CONFIGURATIONS))]
        location = self._location
        missing = [CONFIGURATIONS[n].kind for n, one in enumerate(configurations) if one is None]
        self._missing = f"waiting for the {' and the '.join(missing)} {location.configuration}" if missing else ""
        try:
            secret = await self._client.get(SECRETS, location.secret, location.namespace)
        except NotFound as error:
            text = f"the secret {location.namespace}/{location.secret} does not exist; create it, even if empty"
            raise NotFound(404, error.reason, text) from error
        return _Observation(tuple(configurations), secret, now)

    async def _get_configuration(self, number: int) -> Json | None:
        try:
            return await self._client.get(CONFIGURATIONS[number], self._location.configuration)
        except NotFound:
            return None

    async def _apply(self, step: ServePair | TrustAuthorities | WriteSecret | AddPair, observed: _Observation) -> None:
        match step:
            case ServePair(served):
                self._serve(served.pair)
                self.served = served
            case TrustAuthorities(number, authorities):
                configuration = observed.configurations[number]
                if configuration is not None:
                    await self._patch(number, configuration, authorities)
            case WriteSecret(stored):
                await self._store(observed.secret, stored)
                _log.info("certificate secret updated", authorities=len(stored.authorities))
            case AddPair():
                await self._store(observed.secret, with_new_pair(step, observed.now, self._policy))
                _log.info("certificate created", first=step.first)

    async def _patch(self, number: int, configuration: Json, authorities: tuple[bytes, ...]) -> None:
        """Writes the bundle to each webhook that lacks it, unless the configuration has changed since it was read."""
        bundle = _encode(b"".join(authorities))
        version = configuration["metadata"]["resourceVersion"]
        edits = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
            for index, bundle_found in enumerate(_bundles(configuration))
            if set(bundle_found) != set(authorities)
        ]
        # With the version in the patch, the server refuses to apply it to a later one.
        pin = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
        await self._client.patch(CONFIGURATIONS[number], self._location.configuration, [pin, *edits], kind="json")
        kind = CONFIGURATIONS[number].kind
        _log.info("CA bundle of a webhook configuration updated", kind=kind, authorities=len(authorities))

    async def _store(self, secret: Json, stored: SecretContent) -> None:
        """Replaces our entries of the secret, unless it has changed since it was read."""
        # A secret of type kubernetes.io/tls must have both, even if empty.
        serving = stored.serving or Certificate(b"", b"")
        data = {
            **{
                name: value
                for name, value in (secret.get("data") or {}).items()
                if name not in ("next.crt", "next.key")
            },
            "tls.crt": _encode(serving.certificate),
            "tls.key": _encode(serving.key),
            "ca.crt": _encode(b"".join(stored.authorities)),
        }
        if stored.upcoming is not None:
            data |= {"next.crt": _encode(stored.upcoming.certificate), "next.key": _encode(stored.upcoming.key)}
        await self._client.replace(SECRETS, {**secret, "data": data}, self._location.secret, self._location.namespace)

    def _log_once(self, text: str) -> None:
        """Logs a problem, unless it is the last one logged."""
        if text and text != self._last_problem:
            _log.warning(text)
        self._last_problem = text


def _read_secret(secret: Json) -> SecretContent:
    data = {name: _decode(value) for name, value in (secret.get("data") or {}).items()}

    def pair(name: str) -> Certificate | None:
        found = Certificate(data.get(f"{name}.crt", b""), data.get(f"{name}.key", b""))
        return found if found.certificate or found.key else None

    return SecretContent(pair("tls"), pair("next"), split_bundle(data.get("ca.crt", b"")))


def _read_configuration(configuration: Json | None) -> TrustBundles | None:
    return TrustBundles(tuple(_bundles(configuration))) if configuration is not None else None


def _bundles(configuration: Json) -> Iterator[tuple[bytes, ...]]:
    for webhook in configuration.get("webhooks") or ():
        yield split_bundle(_decode(webhook["clientConfig"].get("caBundle") or ""))


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""
