"""A fake API with resource versions, replicas that advance one request at a time, and their invariants."""

from __future__ import annotations

import base64
import copy
import functools
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gpu_scheduler.base.certificates import Certificate, find_issuer, read_period, split_bundle
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import Conflict, NotFound, Undecided
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import MUTATING, SECRETS, VALIDATING, Resource
from gpu_scheduler.webhook.renewal import CertificateLocation, CertificateRenewal
from gpu_scheduler.webhook.rotation import RotationPolicy

GRACE, LIFETIME = 30.0, 1800.0
POLICY = RotationPolicy(("hook.ns.svc", "hook"), LIFETIME, GRACE)
BEGIN = 1_000_000_000.0
TICK = GRACE / 2
PLURALS = (MUTATING.plural, VALIDATING.plural)
Bundles = tuple[tuple[bytes, ...], ...]


class Api:
    """The stored objects, and every version of the configurations with the time of its write."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.objects: dict[str, Json] = {}
        self.history: list[tuple[float, str, Bundles]] = []
        self.writes = 0
        self.garbled = 0
        """The next writes succeed but are answered with an error."""
        self._revision = 0
        self.put(SECRETS.plural, {"data": {}})
        for plural in PLURALS:
            self.install(plural)

    def install(self, plural: str) -> None:
        """A configuration as the chart installs it, with empty bundles."""
        self.put(plural, {"webhooks": [{"clientConfig": {"service": {}}}, {"clientConfig": {"caBundle": "Cg=="}}]})

    def put(self, plural: str, found: Json) -> None:
        self._revision += 1
        before = self.objects.get(plural, {})
        same = before.get("webhooks") == found.get("webhooks") and bool(before)
        generation = before["metadata"]["generation"] if same else self._revision
        meta = {"name": plural, "uid": plural, "resourceVersion": str(self._revision), "generation": generation}
        self.objects[plural] = {**copy.deepcopy(found), "metadata": meta}
        if plural in PLURALS:
            self.history.append((self.now, plural, self.bundles(plural)))

    def bundles(self, plural: str) -> Bundles:
        hooks = self.objects[plural]["webhooks"]
        return tuple(split_bundle(base64.b64decode(hook["clientConfig"].get("caBundle", ""))) for hook in hooks)

    def data(self) -> dict[str, bytes]:
        return {k: base64.b64decode(v) for k, v in (self.objects[SECRETS.plural].get("data") or {}).items()}

    def might_hold(self) -> list[Bundles]:
        """The versions that an API server may still use: all of the last grace period."""
        held = []
        for plural in PLURALS:
            for since, name, bundles in reversed(self.history):
                if name == plural:
                    held.append(bundles)
                    if since <= self.now - GRACE:
                        break
        return held

    def write(self, plural: str, version: str, found: Json) -> None:
        if self.objects[plural]["metadata"]["resourceVersion"] != version:
            raise Conflict(409, "Conflict", "the object has been modified")
        self.put(plural, found)
        self.writes += 1
        if self.garbled:
            self.garbled -= 1
            raise Undecided(0, "NoAnswer", "the connection broke")


@types.coroutine
def _turn() -> Generator[None, None, None]:
    yield


class Wire:
    """A client whose requests wait until the replica is advanced."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def server_time(self) -> float:
        await _turn()
        return float(int(self._api.now))

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Json:
        await _turn()
        if resource.plural not in self._api.objects:
            raise NotFound(404, "NotFound", f"{name} not found")
        return copy.deepcopy(self._api.objects[resource.plural])

    async def replace(self, resource: Resource, body: Json, name: str, namespace: str = "") -> None:
        await _turn()
        self._api.write(resource.plural, body["metadata"]["resourceVersion"], body)

    async def patch(self, resource: Resource, name: str, body: list[Json], *, kind: str) -> None:
        await _turn()
        assert kind == "json"
        pin, *edits = body
        assert (pin["op"], pin["path"]) == ("replace", "/metadata/resourceVersion")
        found = copy.deepcopy(self._api.objects[resource.plural])
        for edit in edits:
            _, _, number, place, field_name = edit["path"].split("/")
            assert (place, field_name) == ("clientConfig", "caBundle")
            found["webhooks"][int(number)][place][field_name] = edit["value"]
        self._api.write(resource.plural, pin["value"], found)


@dataclass
class Replica:
    """One replica of the webhook; after a crash it is a new one that serves nothing yet."""

    api: Api
    served: Certificate | None = None
    looked: float = BEGIN
    work: Coroutine[Any, Any, bool] | None = None
    renewal: CertificateRenewal = field(init=False)

    def __post_init__(self) -> None:
        self.crash()

    def crash(self) -> None:
        if self.work is not None:
            self.work.close()
        self.work, self.served, self.looked = None, None, self.api.now

        def serve(pair: Certificate) -> None:
            self.served = pair

        wire = cast(Client, Wire(self.api))
        self.renewal = CertificateRenewal(
            wire, CertificateLocation("ns", "tls", "hook"), POLICY, serve, lambda: self.api.now
        )

    def step(self) -> bool:
        """Performs one request; returns whether it completed a reconcile."""
        if self.work is None:
            self.work = self.renewal.reconcile()
            self.work.send(None)
        with suppress(StopIteration, Conflict, Undecided):
            self.work.send(None)
            return False
        self.work, self.looked = None, self.api.now
        return True

    def reconcile(self) -> int:
        """Completes a reconcile; returns the number of requests."""
        steps = 1
        while not self.step():
            steps += 1
        return steps


class World:
    """Replicas and their API. The invariants are checked after every change."""

    def __init__(self, replicas: int = 2) -> None:
        self.api = Api()
        self.replicas = [Replica(self.api) for _ in range(replicas)]

    def tick(self, seconds: float = TICK) -> None:
        """Advances the time. Every replica reconciles within two grace periods."""
        for replica in self.replicas:
            if self.api.now + seconds - replica.looked > 2 * GRACE:
                replica.reconcile()
                replica.reconcile()
                self.check()
        self.api.now += seconds
        self.check()

    def run(self, ticks: int) -> None:
        """Every replica reconciles repeatedly."""
        for _ in range(ticks):
            for replica in self.replicas:
                replica.reconcile()
                self.check()
            self.tick()

    def check(self) -> None:
        """The served pair is trusted by every bundle that an API server may still use."""
        for replica in self.replicas:
            if replica.served is None:
                continue
            pem = replica.served.certificate
            assert _read_period(pem).covers(self.api.now), "an expired certificate is served"
            for bundles in self.api.might_hold():
                for bundle in bundles:
                    # An empty bundle has never admitted anything.
                    assert not bundle or _is_trusted(pem, bundle), "what is served is not trusted"
        _check_secret(tuple(self.api.data().items()))

    def is_settled(self) -> bool:
        """Whether the state has converged: one authority everywhere, and every replica serves the stored pair."""
        data = self.api.data()
        authorities = split_bundle(data.get("ca.crt", b""))
        serving = Certificate(data.get("tls.crt", b""), data.get("tls.key", b""))
        return (
            len(authorities) == 1
            and "next.crt" not in data
            and all(bundle == authorities for plural in PLURALS for bundle in self.api.bundles(plural))
            and all(replica.served == serving for replica in self.replicas)
        )


# What is cached is checked after every request, and hardly ever new.


@functools.lru_cache(4096)
def _is_trusted(pem: bytes, bundle: tuple[bytes, ...]) -> bool:
    return find_issuer(pem, bundle) is not None


_read_period = functools.lru_cache(64)(read_period)


@functools.lru_cache(64)
def _check_secret(found: tuple[tuple[str, bytes], ...]) -> None:
    data = dict(found)
    assert set(data) <= {"tls.crt", "tls.key", "ca.crt", "next.crt", "next.key"}
    authorities = {_public(x509.load_pem_x509_certificate(pem)) for pem in split_bundle(data.get("ca.crt", b""))}
    for name in ("tls", "next"):
        if data.get(f"{name}.key"):
            key = serialization.load_pem_private_key(data[f"{name}.key"], None)
            assert _der(key.public_key()) == _public(x509.load_pem_x509_certificate(data[f"{name}.crt"]))
            assert _der(key.public_key()) not in authorities, "an authority's key was kept"


def _public(certificate: x509.Certificate) -> bytes:
    return _der(certificate.public_key())


def _der(key: Any) -> bytes:
    found: bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return found
