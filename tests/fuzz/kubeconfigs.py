"""Kubeconfig files, and what exec plugins print."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from functools import cache
from pathlib import Path

import yaml

from gpu_scheduler.certificates import issue, make_authority
from gpu_scheduler.kube.connection import Connection, load_connection
from gpu_scheduler.kube.credentials import Plugin
from gpu_scheduler.kube.errors import ConfigError
from tests.fuzz.seeds import Json, dump
from tests.fuzz.target import Input, Target

_VERSION = "client.authentication.k8s.io/v1"


@cache
def _folder() -> Path:
    """Where the files of this process are."""
    made = tempfile.TemporaryDirectory(prefix="fuzz-")
    _kept.append(made)
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def _file(users: list[Json], server: str = "https://10.0.0.1:6443", **cluster: object) -> Json:
    contexts = [{"name": f"c{i}", "context": {"cluster": "k", "user": one["name"]}} for i, one in enumerate(users)]
    contexts[0]["context"]["namespace"] = "team"  # type: ignore[index]
    clusters = [{"name": "k", "cluster": {"server": server, **cluster}}]
    head = {"apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "c0"}
    return {**head, "clusters": clusters, "users": users, "contexts": contexts}


def _files() -> list[Json]:
    authority = make_authority()
    pair = issue(authority, "client")
    cluster = {"certificate-authority-data": base64.b64encode(authority.certificate).decode()}
    certificate = {
        "client-certificate-data": base64.b64encode(pair.certificate).decode(),
        "client-key-data": base64.b64encode(pair.key).decode(),
    }
    plugin: Json = {"apiVersion": _VERSION, "command": "aws", "args": ["eks"], "env": [{"name": "A", "value": "b"}]}
    plugin |= {"installHint": "get it", "provideClusterInfo": True, "interactiveMode": "Never"}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    users: list[Json] = [
        {"token": "abc"},
        {"username": "a", "password": "b"},
        {"tokenFile": "token"},
        {"client-certificate": "a.crt", "client-key": "a.key"},
        certificate,
        {"exec": plugin},
    ]
    named = [{"name": f"u{i}", "user": user} for i, user in enumerate(users)]
    more = {"proxy-url": "http://proxy:3128", "tls-server-name": "api", "insecure-skip-tls-verify": True}
    return [
        *(_file([one], extensions=[extension], **cluster) for one in named),
        _file(named, server="http://[::1]:8080/path", **more),
    ]


def _read_file(given: Input) -> str:
    file = _folder() / "config"
    file.write_bytes(given.body)
    connection = load_connection(file)
    assert connection.server
    # Whatever program a changed file names is not run here.
    access = {} if isinstance(connection.credential, Plugin) else asyncio.run(connection.headers())
    return f"{type(connection.credential).__name__} {'TLS' if connection.ssl else 'plain'} {sorted(access)}"


def _read_plugin(given: Input) -> str:
    """Runs a plugin that prints the input."""
    said = _folder() / "said"
    said.write_bytes(given.body)
    plan = {"apiVersion": _VERSION, "command": "cat", "args": [str(said)]}
    file = _folder() / "plugin-config"
    file.write_bytes(dump(_file([{"name": "u", "user": {"exec": {**plan, "interactiveMode": "Never"}}}])))
    return asyncio.run(_ask(load_connection(file)))


async def _ask(connection: Connection) -> str:
    access = await connection.access()
    return "a certificate" if access.ssl is not connection.ssl else "a token"


def _printed() -> list[Json]:
    pair = issue(make_authority(), "client")
    token = {"token": "abc", "expirationTimestamp": "2030-01-02T03:04:05Z"}
    certificate = {"clientCertificateData": pair.certificate.decode(), "clientKeyData": pair.key.decode()}
    return [{"apiVersion": _VERSION, "kind": "ExecCredential", "status": status} for status in (token, certificate)]


def _odd_files() -> list[bytes]:
    """What YAML has and JSON does not."""
    return [
        b"clusters: &a [*a]\n",
        b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nclusters: [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n",
        b"current-context: 2020-99-99\n",
        b"? {a: b}\n: c\n",
        b"!!python/object:os.system {}\n",
        b"current-context: !!int x\nclusters: !!float y\nusers: !!binary '!'\ncontexts: 0x\n",
        b"--- a\n--- b\n",
        b"<<: [a, {b: c}]\n",
        b"a: 190:20:30:99999999999999999999999:0.5\nb: .inf\nc: 0b2\n",
    ]


_TEXTS = [yaml.safe_dump(one).encode() for one in _files()] + _odd_files()
TARGETS = (
    Target("kubeconfig", _read_file, [Input("", body) for body in (*map(dump, _files()), *_TEXTS)], (ConfigError,)),
    Target("exec-plugin", _read_plugin, [Input("", dump(one)) for one in _printed()], (ConfigError,)),
)
