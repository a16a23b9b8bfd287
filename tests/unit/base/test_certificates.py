"""Certificate authority and certificates, checked by TLS clients."""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_scheduler.base.certificates import (
    LOOPBACK,
    Certificate,
    check_pair,
    find_issuer,
    issue,
    load_certificate,
    make_authority,
    make_period,
    read_names,
    read_period,
    server_context,
    split_bundle,
)


async def talk(authority: bytes, server: Certificate, name: str) -> bytes:
    """Connects to a server as a client that trusts an authority and expects a name; returns the response."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(server))
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        context = ssl.create_default_context(cadata=authority.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        received = await reader.read()
        writer.close()
        await writer.wait_closed()
    return received


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "hook.ns.svc"])
async def test_a_client_that_trusts_the_authority_accepts_every_name_of_the_certificate(name: str) -> None:
    authority = make_authority()
    server = issue(authority, "server", (*LOOPBACK, "hook.ns.svc"))
    assert await talk(authority.certificate, server, name) == b"hello"


async def test_a_client_of_another_authority_refuses_the_certificate() -> None:
    server = issue(make_authority(), "server")
    with pytest.raises(ssl.SSLCertVerificationError):
        await talk(make_authority().certificate, server, "localhost")


async def test_a_name_that_is_not_in_the_certificate_is_refused() -> None:
    authority = make_authority()
    with pytest.raises(ssl.SSLCertVerificationError):
        await talk(authority.certificate, issue(authority, "server", ["localhost"]), "elsewhere.example")


def test_certificates_have_their_subject_and_a_p256_key() -> None:
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


def test_a_certificate_has_the_given_lifetime_and_tolerates_clocks_an_hour_late() -> None:
    authority = make_authority("CA", make_period(30 * 86_400, now=1_000_000))
    period = read_period(issue(authority, "server", period=make_period(3 * 86_400, now=1_000_000)).certificate)
    assert (period.begins, period.ends) == (1_000_000 - 3600, 1_000_000 + 3 * 86_400)
    assert [period.covers(moment) for moment in (period.begins - 1, 1_000_000, period.ends + 1)] == [False, True, False]
    assert read_period(authority.certificate).ends == 1_000_000 + 30 * 86_400


def test_split_bundle_skips_other_text_and_duplicates() -> None:
    one, other = make_authority("one").certificate, make_authority("other").certificate
    broken = b"-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"
    assert split_bundle(b"# ours\n" + one + b"\n" + broken + other + one + broken[:40]) == (one, other)
    assert split_bundle(b"\n") == ()


def test_the_authority_that_signed_is_found_among_others_of_the_same_name() -> None:
    authorities = [make_authority("same") for _ in range(3)]
    pem = [authority.certificate for authority in authorities]
    made = issue(authorities[1], "server").certificate
    assert find_issuer(made, pem) == pem[1]
    assert find_issuer(made, [pem[0], pem[2]]) is None


def test_the_names_of_a_certificate_are_dns_names_and_addresses() -> None:
    authority = make_authority()
    assert read_names(issue(authority, "server", ("hook.ns.svc", "127.0.0.1")).certificate) == {
        "hook.ns.svc",
        "127.0.0.1",
    }
    assert read_names(authority.certificate) == frozenset()


def test_check_pair_says_why_a_server_cannot_use_a_certificate() -> None:
    authority = make_authority()
    one, other = issue(authority, "one"), issue(authority, "other")
    none = "no certificate with its private key, both as PEM and without a password"
    assert check_pair(one) == ""
    assert check_pair(Certificate(one.certificate, other.key)) == "the key belongs to another certificate"
    context = server_context(one)
    with pytest.raises(ssl.SSLError):
        load_certificate(context, Certificate(other.certificate, one.key))
    assert check_pair(Certificate(b"", b"")) == check_pair(Certificate(one.certificate, b"nothing")) == none


def test_a_certificate_is_loaded_without_a_writable_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    authority = make_authority()
    context = server_context(issue(authority, "server"))
    load_certificate(context, issue(authority, "another"))
    with pytest.raises(ssl.SSLError):
        load_certificate(context, Certificate(authority.certificate, b"no key"))


@pytest.mark.parametrize("lacks", ["system", "permission"])
def test_without_memory_files_a_temporary_directory_is_used_and_removed(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_name: str) -> int:
        raise PermissionError

    if lacks == "system":
        monkeypatch.delattr("os.memfd_create", raising=False)
    else:
        monkeypatch.setattr("os.memfd_create", refuse, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    context = server_context(issue(make_authority(), "server"))
    with pytest.raises(ssl.SSLError):
        load_certificate(context, Certificate(b"", b""))
    assert list(tmp_path.iterdir()) == []


def test_a_server_refuses_tls_before_1_2() -> None:
    assert server_context(issue(make_authority(), "server")).minimum_version == ssl.TLSVersion.TLSv1_2
