"""A private certificate authority and the certificates it issues, for servers on this machine."""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAMES = ("localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
"""What the local API server is called."""

LIFETIME = timedelta(days=3650)
"""A local cluster has nobody who renews certificates, and a key that never leaves its folder."""

# Clocks of two machines, or of one that has just been woken, may differ a little.
_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, certificate: Path, key: Path) -> None:
        """Writes both files, readable by their owner only."""
        write_private(certificate, self.certificate)
        write_private(key, self.key)


def make_authority(name: str = "gpu-scheduler local CA") -> Certificate:
    """A new authority that signs certificates and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _builder(subject, subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return Certificate(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def issue(
    authority: Certificate, common_name: str, names: Iterable[str] = NAMES, organizations: Iterable[str] = ()
) -> Certificate:
    """A certificate for a server or a client, valid for DNS names and addresses alike."""
    parent = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not an elliptic-curve key; make the authority again")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(common_name, organizations), parent.subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(purposes, critical=False)
    alternatives = [_alternative(name) for name in dict.fromkeys(names)]
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(issuer, critical=False)
    return Certificate(_pem(builder.sign(signer, hashes.SHA256())), _key_pem(key))


def server_context(certificate: Certificate, client_authority: bytes = b"") -> ssl.SSLContext:
    """How a server shows its certificate; with an authority, a client may show one of that authority too."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, certificate)
    if client_authority:
        context.load_verify_locations(cadata=client_authority.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Makes a context show this certificate, from now on also to those who connect to a running server."""
    # The ssl module reads certificates from files only.
    with tempfile.TemporaryDirectory(prefix="gpu-scheduler-tls-") as folder:
        path = Path(folder, "both.pem")
        write_private(path, certificate.certificate + certificate.key)
        context.load_cert_chain(path)


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file in one step; nobody but its owner can ever read it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(common_name: str, organizations: Iterable[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
