"""Keeps the webhook's own certificate in a secret and its authority in the configurations; see rotation.py."""

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
"""How soon to look again after a step, in seconds: not at once, since somebody may undo every step."""

_log = structlog.stdlib.get_logger("gpu_scheduler.webhook")


class CertificateLocation(NamedTuple):
    """Where the certificate is kept, and which configurations must trust it."""

    namespace: str = SYSTEM
    secret: str = WEBHOOK_SECRET
    configuration: str = WEBHOOK


class _Observation(NamedTuple):
    """What the API has, with the versions that a write depends on."""

    configurations: tuple[Json | None, ...]
    secret: Json
    now: float

    @property
    def version(self) -> Hashable:
        """Another one whenever a webhook or what is ours in the secret has changed.

        Not by resourceVersion: somebody who writes labels every few seconds would keep it from ever settling.
        """
        metas = [one and one["metadata"] for one in self.configurations]
        generations = tuple(meta and (meta.get("uid"), meta.get("generation")) for meta in metas)
        return generations, tuple(map(_read_configuration, self.configurations)), _read_secret(self.secret)


class CertificateRenewal:
    """One replica's part in keeping the certificate. `show` is told each pair that is to be shown from then on."""

    def __init__(
        self,
        client: Client,
        location: CertificateLocation,
        policy: RotationPolicy,
        serve: Callable[[Certificate], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served: SignedPair | None = None
        """What is shown; nothing until it is trusted."""
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
        """Looks and acts for ever. What goes wrong is said once, and tried again."""
        while True:
            problem, changed = "", False
            try:
                changed = await self.reconcile()
            except Conflict:
                changed = True  # by another replica: what it wrote is as good
            except ApiError as error:
                problem = f"the certificate cannot be looked after: {error.message}"
            self._log_once(problem or self._missing)
            await asyncio.sleep(_CHANGE_INTERVAL if changed else self._policy.poll_interval)

    async def reconcile(self) -> bool:
        """Looks once and takes the steps that are due; whether anything was changed."""
        begun = self._clock()
        observed = await self._read()
        if observed.version != self._version:
            self._version, self._since = observed.version, self._clock()
        found = RotationState(
            _read_secret(observed.secret),
            tuple(_read_configuration(one) for one in observed.configurations),
            self.served,
            max(0.0, begun - self._since),
        )
        steps = plan_rotation(found, observed.now, self._policy)
        for step in steps:
            await self._apply(step, observed)
        return any(not isinstance(step, ServePair) for step in steps)

    async def _read(self) -> _Observation:
        # The secret last: what is then written into a configuration that has not changed since it was read cannot be
        # older than what another replica wrote into it.
        now = await self._client.server_time()
        configurations = [await self._get_configuration(number) for number in range(len(CONFIGURATIONS))]
        location = self._location
        missing = [CONFIGURATIONS[n].kind for n, one in enumerate(configurations) if one is None]
        self._missing = f"waiting for the {' and the '.join(missing)} {location.configuration}" if missing else ""
        try:
            secret = await self._client.get(SECRETS, location.secret, location.namespace)
        except NotFound as error:
            text = f"the secret {location.namespace}/{location.secret} does not exist; create it, it may be empty"
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
                _log.info("the certificate's secret is brought up to date", authorities=len(stored.authorities))
            case AddPair():
                await self._store(observed.secret, with_new_pair(step, observed.now, self._policy))
                _log.info("a new certificate is made", first=step.first)

    async def _patch(self, number: int, configuration: Json, authorities: tuple[bytes, ...]) -> None:
        """Puts the bundle where it is not, if the configuration is still the one that was seen."""
        bundle = _encode(b"".join(authorities))
        version = configuration["metadata"]["resourceVersion"]
        edits = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
            for index, found in enumerate(_bundles(configuration))
            if set(found) != set(authorities)
        ]
        # With its version in the patch, the server refuses to apply it to a later one.
        pin = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
        await self._client.patch(CONFIGURATIONS[number], self._location.configuration, [pin, *edits], kind="json")
        kind = CONFIGURATIONS[number].kind
        _log.info("a configuration is told whom to trust", kind=kind, authorities=len(authorities))

    async def _store(self, secret: Json, stored: SecretContent) -> None:
        """Replaces what is ours in the secret, if that is still the one that was seen."""
        # Both are there even if empty: a secret of the type kubernetes.io/tls must have them.
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
        """Says what stands in the way, once."""
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
