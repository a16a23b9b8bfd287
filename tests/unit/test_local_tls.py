"""A private authority, and certificates that programs on this machine accept."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_scheduler.local.tls import NAMES, Certificate, issue, make_authority, server_context


async def talk(authority: bytes, server: Certificate, name: str) -> bytes:
    """What a client that trusts an authority and asks for a name hears from a server."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(server))
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cadata=authority.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        heard = await reader.read()
        writer.close()
        await writer.wait_closed()
    return heard


@pytest.mark.parametrize(
    "name", ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default.svc", "hook.ns.svc"]
)
async def test_a_client_that_trusts_the_authority_accepts_every_name_of_the_certificate(name: str) -> None:
    authority = make_authority()
    server = issue(authority, "server", (*NAMES, "hook.ns.svc"))
    assert await talk(authority.certificate, server, name) == b"hello"


async def test_a_client_of_another_authority_refuses_the_certificate() -> None:
    server = issue(make_authority(), "server")
    with pytest.raises(ssl.SSLCertVerificationError):
        await talk(make_authority().certificate, server, "localhost")


async def test_a_name_that_is_not_in_the_certificate_is_refused() -> None:
    authority = make_authority()
    with pytest.raises(ssl.SSLCertVerificationError):
        await talk(authority.certificate, issue(authority, "server", ["localhost"]), "elsewhere.example")


def test_certificates_say_who_they_are_for_and_use_a_p256_key() -> None:
    found = x509.load_pem_x509_certificate(issue(make_authority(), "admin", (), ["system:masters"]).certificate)
    assert found.subject.rfc4514_string() == "CN=admin,O=system:masters"
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_files_are_readable_by_their_owner_only_even_when_they_replace_others(tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    key.write_text("old")
    key.chmod(0o644)
    made = make_authority()
    made.write(certificate, key)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (certificate, key)] == [0o600, 0o600]
    assert (certificate.read_bytes(), key.read_bytes()) == (made.certificate, made.key)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tls.crt", "tls.key"]
