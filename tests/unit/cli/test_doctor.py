"""The doctor in front of a real API server."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpu_scheduler.cli.checks import Level
from gpu_scheduler.cli.doctor import CERTIFICATE, WEBHOOK, examine
from gpu_scheduler.kube.connection import Connection
from gpu_scheduler.kube.settings import Settings
from tests.unit.local_server import Speaker, speaker

SYSTEM = "gpu-scheduler-system"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


async def look(api: Speaker) -> dict[str, tuple[Level, str]]:
    found = await examine(Connection(str(api.client.make_url(""))), Settings())
    return {check.name: (check.level, check.message) for check in found}


def certificate(days: int) -> str:
    """A certificate that lasts so many days from now, as a Secret holds it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "webhook")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=100))
        .not_valid_after(now + timedelta(days=days, hours=1))
        .sign(key, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


async def install_webhook(api: Speaker) -> None:
    where = {"service": {"name": WEBHOOK, "namespace": SYSTEM, "path": "/mutate"}}
    hook = {
        "name": "pods.gpu-scheduler.io",
        "clientConfig": where,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    await api.create(HOOKS, {"metadata": {"name": WEBHOOK}, "webhooks": [hook]})


async def test_a_bare_cluster_lacks_our_kinds_and_a_leader() -> None:
    async with speaker() as api:
        found = await look(api)
    assert found["api"][0] is Level.OK
    assert found["clock"] == (Level.OK, "agrees with the API server's")
    assert found["permissions"][0] is Level.OK
    assert found["placements"][0] is Level.FAIL
    assert found["leader"] == (Level.WARN, "No scheduler has ever run here")
    assert found["nodes"] == (Level.WARN, "no node offers nvidia.com/gpu or amd.com/gpu")
    assert found["webhook"][0] is Level.WARN


async def test_a_webhook_without_its_service_fails() -> None:
    async with speaker() as api:
        await install_webhook(api)
        level, message = (await look(api))["webhook"]
    assert (level, message) == (Level.FAIL, f"its Service {SYSTEM}/{WEBHOOK} does not exist")


async def test_a_certificate_that_ends_soon_is_warned_of() -> None:
    async with speaker() as api:
        await install_webhook(api)
        service = {"metadata": {"name": WEBHOOK}, "spec": {"ports": [{"port": 443}]}}
        await api.create(f"/api/v1/namespaces/{SYSTEM}/services", service)
        assert (await look(api))["webhook"][1] == "installed; its certificate cannot be read with this account"
        secret = {"metadata": {"name": CERTIFICATE}, "data": {"tls.crt": certificate(3), "tls.key": ""}}
        await api.create(f"/api/v1/namespaces/{SYSTEM}/secrets", secret)
        assert (await look(api))["webhook"] == (Level.WARN, "its certificate expires in 3d")


async def test_a_server_that_does_not_answer_is_one_failed_check() -> None:
    (check,) = await examine(Connection("http://127.0.0.1:1"), Settings())
    assert (check.name, check.level) == ("api", Level.FAIL)
    assert check.message.startswith("http://127.0.0.1:1 does not answer")
