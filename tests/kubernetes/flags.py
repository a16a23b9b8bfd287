"""The files and flags of the programs of a control plane."""

from __future__ import annotations

import base64
import csv
import json
import os
import random
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedded_kube.cluster import SERVER_NAMES
from gpu_scheduler.base import certificates

_GATES = {
    "1.35": {"GenericWorkload": True, "GangScheduling": True},
    "1.37": {"GenericWorkload": True},
}
_APIS = {
    "1.35": ("scheduling.k8s.io/v1alpha1",),
    "1.37": ("scheduling.k8s.io/v1beta1",),
}
"""Feature gates and APIs for native gangs, by version."""

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True)
class Settings:
    """The addresses and files of a control plane."""

    folder: Path
    minor: str
    ports: Mapping[str, int]

    def path(self, name: str) -> str:
        """A file in the folder."""
        return str(self.folder / name)

    @property
    def server(self) -> str:
        """The address of the API."""
        return f"https://127.0.0.1:{self.ports['kube-apiserver']}"


def prepare(folder: Path, minor: str, users: Mapping[str, Sequence[str]]) -> Settings:
    """Writes certificates, keys, tokens and kubeconfigs; existing ones are kept."""
    known = folder / "ports.json"
    if known.exists():
        return Settings(folder, minor, json.loads(known.read_text()))
    names = ("etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    settings = Settings(folder, minor, dict(zip(names, _free_ports(len(names)), strict=True)))
    if not (folder / "tokens.csv").exists():
        _write_secrets(folder, users)
    authority = (folder / "ca.crt").read_text()
    for token, user, *_ in csv.reader((folder / "tokens.csv").read_text().splitlines()):
        config = _kubeconfig(settings.server, authority, user, token)
        certificates.write_private(
            folder / f"{user.replace(':', '-')}.kubeconfig", json.dumps(config, indent=1).encode()
        )
    known.write_text(json.dumps(settings.ports))
    return settings


def _write_secrets(folder: Path, users: Mapping[str, Sequence[str]]) -> None:
    """Writes the secrets that do not depend on addresses."""
    authority = certificates.make_authority("test CA")
    authority.write(folder / "ca.crt", folder / "ca.key")
    certificates.issue(authority, "kube-apiserver", SERVER_NAMES).write(folder / "server.crt", folder / "server.key")
    # Service account tokens are signed with their own key; the certificate carries its public half.
    certificates.issue(authority, "service-accounts").write(folder / "accounts.crt", folder / "accounts.key")
    (folder / "audit-policy.json").write_text(json.dumps(_AUDIT_POLICY))
    lines = [f'{secrets.token_hex(16)},{user},{user},"{",".join(groups)}"\n' for user, groups in users.items()]
    certificates.write_private(folder / "tokens.csv", "".join(lines).encode())


def _free_ports(count: int) -> list[int]:
    """Free ports, below those that tests choose for themselves and those that the system gives to clients. Each
    worker has its own range, because two that choose at once would find the same ports free."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw15").removeprefix("gw")) % 16
    ours = range(15_000 + worker, 20_000, 16)
    found: list[int] = []
    for port in random.Random().sample(ours, len(ours)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError("there are no free ports between 15000 and 20000")


def _kubeconfig(server: str, authority: str, user: str, token: str) -> Mapping[str, object]:
    data = base64.b64encode(authority.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": data}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    }


def health_check(program: str, settings: Settings) -> tuple[int, str, bool]:
    """Port and path that return 200 once a program is ready, and whether it uses TLS there."""
    path = {"etcd": "/health", "kube-apiserver": "/readyz"}.get(program, "/healthz")
    return settings.ports[program], path, program != "etcd"


def command_line(program: str, settings: Settings) -> list[str]:
    """The flags of a program."""
    return {
        "etcd": _etcd,
        "kube-apiserver": _apiserver,
        "kube-controller-manager": _controllers,
        "kube-scheduler": _scheduler,
    }[program](settings)


def _etcd(settings: Settings) -> list[str]:
    client = f"http://127.0.0.1:{settings.ports['etcd']}"
    peer = f"http://127.0.0.1:{settings.ports['etcd-peer']}"
    return [
        f"--data-dir={settings.path('etcd')}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--log-level=warn",
        # Its data is discarded later, but survives a killed process; only a power cut could lose some.
        "--unsafe-no-fsync=true",
    ]


def _shared(program: str, settings: Settings) -> list[str]:
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in _GATES[settings.minor].items())
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={settings.ports[program]}",
        f"--tls-cert-file={settings.path('server.crt')}",
        f"--tls-private-key-file={settings.path('server.key')}",
        f"--feature-gates={gates}",
    ]


def _apiserver(settings: Settings) -> list[str]:
    return [
        *_shared("kube-apiserver", settings),
        f"--etcd-servers=http://127.0.0.1:{settings.ports['etcd']}",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        f"--token-auth-file={settings.path('tokens.csv')}",
        f"--client-ca-file={settings.path('ca.crt')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={settings.path('accounts.key')}",
        f"--service-account-key-file={settings.path('accounts.crt')}",
        "--service-cluster-ip-range=10.96.0.0/16",
        f"--runtime-config={','.join(f'{name}=true' for name in _APIS[settings.minor])}",
        f"--audit-policy-file={settings.path('audit-policy.json')}",
        f"--audit-log-path={settings.path('audit.log')}",
        # Simulated pods do not call the API, so it needs no address that pods can reach.
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
    ]


def _controllers(settings: Settings) -> list[str]:
    return [
        *_shared("kube-controller-manager", settings),
        f"--kubeconfig={settings.path('system-kube-controller-manager.kubeconfig')}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={settings.path('accounts.key')}",
        f"--root-ca-file={settings.path('ca.crt')}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def _scheduler(settings: Settings) -> list[str]:
    return [
        *_shared("kube-scheduler", settings),
        f"--kubeconfig={settings.path('system-kube-scheduler.kubeconfig')}",
        "--leader-elect=false",
    ]
