"""Connection settings of an API server, from a kubeconfig or from inside the cluster."""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp

from gpu_scheduler.k8s.credentials import Access, Credential, ExecPlugin, StaticCredential, TokenFile, is_token
from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.k8s.kubeconfig import (
    KubeconfigCluster,
    KubeconfigEntry,
    KubeconfigUser,
    SelectedContext,
    read_kubeconfig,
)
from gpu_scheduler.k8s.objects import Json

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The directory in a pod with its token, its namespace and the cluster's CA certificate."""


def open_session(agent: str) -> aiohttp.ClientSession:
    """Opens an HTTP session, whose connections the requests of one client share."""
    session = aiohttp.ClientSession(
        # The client limits reads and writes, and a watch keeps its connection for an hour.
        connector=aiohttp.TCPConnector(limit=0),
        headers={
            "User-Agent": agent,
            "Accept": "application/json",
            # Compression costs the API server more time than it saves on a cluster's network.
            "Accept-Encoding": "identity",
        },
        read_bufsize=1 << 20,
    )
    # aiohttp resends PUT and DELETE when a kept-alive connection breaks: a write that landed would then conflict with
    # itself.
    session._retry_connection = False
    return session


@dataclass(frozen=True)
class Connection:
    """How to reach an API server. `server_name` is the name in its certificate, if that is not its address.

    `transport` opens an HTTP session for a user agent; a simulated cluster brings its own.
    """

    server: str
    ssl: ssl.SSLContext | None = None
    namespace: str = "default"
    proxy: str | None = None
    server_name: str | None = None
    credential: Credential = field(default_factory=StaticCredential)
    transport: Callable[[str], aiohttp.ClientSession] = open_session

    async def access(self) -> Access:
        """The headers and TLS context that authenticate a request now; raises ConfigError if there are none."""
        found = await self.credential.access()
        return found if found.ssl or not self.ssl else found._replace(ssl=self.ssl)

    async def headers(self) -> dict[str, str]:
        """The headers that authenticate a request now."""
        return (await self.credential.access()).headers

    def renew(self, used: Access) -> bool:
        """Called after a 401 for `used`; returns whether a retry may help."""
        return self.credential.renew(used.headers)


def load_connection(kubeconfig: Path | None = None, context: str | None = None) -> Connection:
    """Loads the connection from a file, $KUBECONFIG, the pod we run in, or ~/.kube/config, in this order."""
    if kubeconfig is not None:
        return _connect(read_kubeconfig([kubeconfig], context))
    listed = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed:
        # Missing files are ignored, as in kubectl.
        present = [path for path in listed if path.exists()]
        if not present:
            raise ConfigError(f"KUBECONFIG: no such file: {', '.join(map(str, listed))}")
        return _connect(read_kubeconfig(present, context))
    if "KUBERNETES_SERVICE_HOST" in os.environ and context is None:
        return _connect_inside()
    usual = Path("~/.kube/config").expanduser()
    if not usual.exists():
        raise ConfigError(f"no cluster is named: give --kubeconfig, set KUBECONFIG, or write {usual}")
    return _connect(read_kubeconfig([usual], context))


def _connect_inside() -> Connection:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    authority = SERVICE_ACCOUNT / "ca.crt"
    try:
        context = _make_context(authority.read_bytes())
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{authority}: not a PEM certificate: {error}") from None
    except OSError as error:
        raise ConfigError(f"{authority}: {error.strerror}; it must hold the cluster's authority") from None
    place = SERVICE_ACCOUNT / "namespace"
    return Connection(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        context,
        place.read_text().strip() if place.exists() else "default",
        credential=TokenFile(SERVICE_ACCOUNT / "token"),
    )


def _connect(chosen: SelectedContext) -> Connection:
    cluster = chosen.cluster
    server = cluster.value.server.rstrip("/")
    parts = _split_address(server)
    if parts is None:
        raise cluster.wrong("server", f"{server[:200]!a}; it must be an address like https://host:6443")
    certificate = chosen.user.read("client-certificate")
    key = chosen.user.read("client-key")
    if bool(certificate) != bool(key):
        missing = "client-key" if certificate else "client-certificate"
        raise chosen.user.wrong(missing, "missing; a client certificate and its key go together")
    make_context = _context_maker(chosen)
    return Connection(
        server,
        make_context(certificate, key) if parts.scheme == "https" else None,
        chosen.namespace,
        _find_proxy(cluster),
        cluster.value.tls_server_name or None,
        _find_credential(chosen, make_context),
    )


def _context_maker(chosen: SelectedContext) -> Callable[[bytes, bytes], ssl.SSLContext]:
    """Returns a function that makes TLS contexts from a client certificate and its key, which may be empty."""
    cluster = chosen.cluster
    authority = cluster.read("certificate-authority")
    if authority and cluster.value.insecure_skip_tls_verify:
        raise cluster.wrong("insecure-skip-tls-verify", "set beside a certificate-authority; only one can be meant")

    def make(certificate: bytes, key: bytes) -> ssl.SSLContext:
        try:
            context = _make_context(authority)
        except (ssl.SSLError, ValueError) as error:
            raise cluster.wrong("certificate-authority", f"not a PEM certificate: {error}") from None
        if cluster.value.insecure_skip_tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            try:
                _load_certificate(context, certificate, key)
            except (ssl.SSLError, ValueError) as error:
                raise chosen.user.wrong("client-certificate", f"not a PEM certificate and its key: {error}") from None
        return context

    return make


def _make_context(authority: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    # Python 3.13 requires fields that CA certificates made by kubeadm and others lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _load_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # Imported here because it loads the cryptography package, and most connections use a token.
    from gpu_scheduler.base.certificates import Certificate, load_certificate

    load_certificate(context, Certificate(certificate, key))


def _find_credential(chosen: SelectedContext, make_context: Callable[[bytes, bytes], ssl.SSLContext]) -> Credential:
    user = chosen.user
    _refuse_unsupported(user)
    found = user.value
    if found.token_file:
        return TokenFile(user.resolve(found.token_file))
    if found.token:
        if not is_token(found.token):
            raise user.wrong("token", "has letters that no bearer token has; write it in one piece")
        return StaticCredential(f"Bearer {found.token}")
    if found.username:
        return StaticCredential("Basic " + base64.b64encode(f"{found.username}:{found.password}".encode()).decode())
    if found.exec is not None:
        cluster = _describe(chosen.cluster) if found.exec.provide_cluster_info else None
        return ExecPlugin(user, found.exec, cluster, make_context)
    return StaticCredential()


def _refuse_unsupported(user: KubeconfigEntry[KubeconfigUser]) -> None:
    """Rejects settings that we would otherwise ignore and so act as another user than configured."""
    if user.value.auth_provider is not None:
        raise user.wrong("auth-provider", "no longer part of Kubernetes; use exec")
    if user.value.act_as:
        raise user.wrong("as", "impersonation is not supported; use credentials of that user")


def _describe(cluster: KubeconfigEntry[KubeconfigCluster]) -> Json:
    """The cluster as passed to an exec plugin."""
    found = cluster.value
    authority = cluster.read("certificate-authority")
    fields = {
        "server": found.server,
        "tls-server-name": found.tls_server_name,
        "insecure-skip-tls-verify": found.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority).decode(),
        "proxy-url": _find_proxy(cluster),
        "config": found.exec_config,
    }
    return {name: value for name, value in fields.items() if value}


def _find_proxy(cluster: KubeconfigEntry[KubeconfigCluster]) -> str | None:
    """The proxy from the kubeconfig, else from the environment."""
    server = _split_address(cluster.value.server)
    proxy = cluster.value.proxy_url or None
    if proxy is None and server is not None and not _goes_direct(server.hostname or "", server.port):
        proxy = getproxies_environment().get(server.scheme)
    if proxy is not None and _split_address(proxy) is None:
        raise cluster.wrong("proxy-url", f"{proxy[:200]!a}; it must be an http or https address")
    return proxy


def _split_address(text: str) -> SplitResult | None:
    """Splits an http or https URL; None for any other text."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    plain = text.isascii() and text.isprintable() and " " not in text
    return parts if plain and parts.scheme in ("http", "https") and parts.hostname else None


def _goes_direct(host: str, port: int | None) -> bool:
    """Whether NO_PROXY covers a host, by name, suffix, address or network; loopback is always direct."""
    if proxy_bypass(f"{host}:{port}" if port else host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or any(_in_network(address, part) for part in _excepted())


def _excepted() -> list[str]:
    return [part.strip() for part in getproxies_environment().get("no", "").split(",")]


def _in_network(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
