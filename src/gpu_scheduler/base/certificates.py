"""A private certificate authority and the certificates it issues."""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names and addresses of a server on this machine."""

LIFETIME = 3650 * 86_400.0
"""Default lifetime in seconds, for certificates that are not renewed and whose key never leaves its directory."""

# The clocks of two machines, or of one that just resumed from sleep, may differ a little.
_SKEW = 3600.0

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, certificate: Path, key: Path) -> None:
        """Writes both files, readable by their owner only."""
        write_private(certificate, self.certificate)
        write_private(key, self.key)


@dataclass(frozen=True, slots=True)
class Period:
    """The validity period of a certificate, in seconds since 1970."""

    begins: float
    ends: float

    def covers(self, moment: float) -> bool:
        """Whether the certificate is valid at a time."""
        return self.begins <= moment <= self.ends


def make_period(lifetime: float = LIFETIME, now: float | None = None) -> Period:
    """A validity period that starts now; a caller that does not trust this machine's clock passes `now`."""
    begins = time.time() if now is None else now
    return Period(begins - _SKEW, begins + lifetime)


def make_authority(name: str = "gpu-scheduler local CA", period: Period | None = None) -> Certificate:
    """Makes a certificate authority that can only sign certificates."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _builder(subject, subject, key.public_key(), period or make_period())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return Certificate(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def issue(
    authority: Certificate,
    common_name: str,
    names: Iterable[str] = LOOPBACK,
    organizations: Iterable[str] = (),
    period: Period | None = None,
) -> Certificate:
    """Issues a certificate for servers and clients; `names` are DNS names or IP addresses."""
    parent = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not an elliptic-curve key; make the authority again")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(common_name, organizations), parent.subject, key.public_key(), period or make_period())
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


def split_bundle(pem: bytes) -> tuple[bytes, ...]:
    """Splits PEM text into its certificates without duplicates; anything else is skipped."""
    found: dict[bytes, None] = {}
    for begun in pem.split(_BEGIN)[1:]:
        body, end, _ = begun.partition(_END)
        with suppress(ValueError):
            found[_pem(x509.load_pem_x509_certificate(_BEGIN + body + end))] = None
    return tuple(found)


def read_period(pem: bytes) -> Period:
    """The validity period of the first certificate in PEM text; ValueError if there is none."""
    found = x509.load_pem_x509_certificate(pem)
    return Period(found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def read_names(pem: bytes) -> frozenset[str]:
    """The DNS names and IP addresses of the first certificate in PEM text."""
    try:
        extension = x509.load_pem_x509_certificate(pem).extensions
        names = extension.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return frozenset(names.get_values_for_type(x509.DNSName)) | frozenset(map(str, addresses))


def find_issuer(pem: bytes, authorities: Iterable[bytes]) -> bytes | None:
    """The authority that signed the first certificate in PEM text, or None."""
    found = x509.load_pem_x509_certificate(pem)
    for authority in authorities:
        with suppress(ValueError, TypeError, InvalidSignature):
            found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
            return authority
    return None


def check_pair(pair: Certificate) -> str:
    """Why a server cannot use this certificate with this key; "" if it can."""
    try:
        shown = x509.load_pem_x509_certificate(pair.certificate).public_key()
        kept = serialization.load_pem_private_key(pair.key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "no certificate with its private key, both as PEM and without a password"
    return "" if shown == kept else "the key belongs to another certificate"


def server_context(certificate: Certificate, client_authority: bytes = b"") -> ssl.SSLContext:
    """A TLS context for a server. With `client_authority`, clients may present a certificate of that authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate)
    if client_authority:
        context.load_verify_locations(cadata=client_authority.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Loads a certificate into a context, also of a running server, for new connections.

    Raises ssl.SSLError if it cannot be used; the context then keeps its former certificate.
    """
    with _as_file(certificate.certificate + b"\n" + certificate.key) as path:
        # With a password, an encrypted key is an error instead of a prompt on the terminal.
        # Loaded into a scratch context first: a key that does not match would leave the certificate alone in `context`.
        for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            one.load_cert_chain(path, password="")


@contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """A path to this content while the block runs: the ssl module reads certificates from files only.

    The file is in memory where the system supports it: keys stay off the disk, and containers may be read-only.
    """
    try:
        handle = os.memfd_create("certificate")
    except (AttributeError, OSError):
        with tempfile.TemporaryDirectory(prefix="gpu-scheduler-tls-") as folder:
            path = Path(folder, "both.pem")
            write_private(path, content)
            yield path
        return
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        yield Path(f"/proc/self/fd/{handle}")


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file atomically, readable by its owner only."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, period: Period
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(period.begins, UTC))
        .not_valid_after(datetime.fromtimestamp(period.ends, UTC))
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
