"""Files: kubeconfigs, settings, fleets; and the output of exec plugins."""

from __future__ import annotations

import asyncio
import base64
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from embedded_kube.node.fleet import FleetError, FleetSettings, read_fleet
from gpu_scheduler.base.certificates import Certificate, issue, make_authority
from gpu_scheduler.k8s.connection import Connection, load_connection
from gpu_scheduler.k8s.credentials import ExecPlugin
from gpu_scheduler.k8s.errors import ConfigError
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.scheduler.settings import FIELDS, Settings, SettingsError, load_settings
from tests.fuzz.seeds import dump
from tests.fuzz.target import LONGEST_LINE, Input, Refused, Target

_VERSION = "client.authentication.k8s.io/v1"


@cache
def _folder() -> Path:
    """The folder for the files of this process, including those that kubeconfigs name."""
    made = tempfile.TemporaryDirectory(prefix="fuzz-")
    _kept.append(made)
    folder = Path(made.name)
    for name, text in (("token", b"abc"), ("a.crt", _pair().certificate), ("a.key", _pair().key)):
        (folder / name).write_bytes(text)
    return folder


_kept: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


@cache
def _pair() -> Certificate:
    return issue(make_authority(), "client")


def _file(users: list[Json], server: str = "https://10.0.0.1:6443", **cluster: object) -> Json:
    contexts = [{"name": f"c{i}", "context": {"cluster": "k", "user": one["name"]}} for i, one in enumerate(users)]
    contexts[0]["context"]["namespace"] = "team"  # type: ignore[index]
    clusters = [{"name": "k", "cluster": {"server": server, **cluster}}]
    head = {"apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "c0"}
    return {**head, "clusters": clusters, "users": users, "contexts": contexts}


def _files() -> list[Json]:
    cluster = {"certificate-authority-data": base64.b64encode(make_authority().certificate).decode()}
    certificate = {
        "client-certificate-data": base64.b64encode(_pair().certificate).decode(),
        "client-key-data": base64.b64encode(_pair().key).decode(),
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
    # Programs that a damaged file names are not run here.
    access = {} if isinstance(connection.credential, ExecPlugin) else asyncio.run(connection.headers())
    return f"{type(connection.credential).__name__} {'TLS' if connection.ssl else 'plain'} {sorted(access)}"


def _read_plugin(given: Input) -> str:
    """Runs a plugin that prints the input."""
    output = _folder() / "output"
    output.write_bytes(given.body)
    plan = {"apiVersion": _VERSION, "command": "cat", "args": [str(output)]}
    file = _folder() / "plugin-config"
    file.write_bytes(dump(_file([{"name": "u", "user": {"exec": {**plan, "interactiveMode": "Never"}}}])))
    return asyncio.run(_ask(load_connection(file)))


async def _ask(connection: Connection) -> str:
    access = await connection.access()
    return "a certificate" if access.ssl is not connection.ssl else "a token"


def _read_settings(given: Input) -> str:
    file = _folder() / "settings"
    file.write_bytes(given.body)
    try:
        return f"{len(load_settings(file).scheduler_names)} names"
    except SettingsError as error:
        problems = error.problems
    # One line each.
    assert problems
    assert all(line.isprintable() and len(line) < LONGEST_LINE for line in problems), problems
    raise Refused("refused")


def _read_nodes(given: Input) -> str:
    file = _folder() / "fleet"
    file.write_bytes(given.body)
    return f"{len(read_fleet(FleetSettings(_folder(), file=file)))} nodes"


def _settings() -> list[Json]:
    as_set = {name: value for name in FIELDS if (value := getattr(Settings(), FIELDS[name].name)) is not None}
    level = [{"name": "rack", "label": "example.com/rack"}]
    return [
        msgspec.to_builtins(as_set),
        {"schedulerNames": ["a", "b"], "topologyLevels": level, "leaseDurationSeconds": 60},
    ]


def _fleets() -> list[Any]:
    taints = [{"key": "a", "value": "b", "effect": "NoSchedule"}]
    group = {"count": 3, "prefix": "n", "gpus": 4, "cpu": "8", "memory": "8Gi", "labels": {"a": "b"}, "taints": taints}
    return [{"nodes": [group, {"count": 2, "racks": 2, "zones": 2, "rack": "r{n}", "runtime": "simulated"}]}, [group]]


def _printed() -> list[Json]:
    token = {"token": "abc", "expirationTimestamp": "2030-01-02T03:04:05Z"}
    certificate = {"clientCertificateData": _pair().certificate.decode(), "clientKeyData": _pair().key.decode()}
    return [{"apiVersion": _VERSION, "kind": "ExecCredential", "status": status} for status in (token, certificate)]


_ODD = [
    Input("", body)
    for body in (
        # YAML that has no JSON equivalent.
        b"clusters: &a [*a]\n",
        b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nclusters: [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n",
        b"current-context: 2020-99-99\n",
        b"? {a: b}\n: c\n",
        b"!!python/object:os.system {}\n",
        b"current-context: !!int x\nclusters: !!float y\nusers: !!binary '!'\ncontexts: 0x\n",
        b"--- a\n--- b\n",
        b"<<: [a, {b: c}]\n",
        b"a: 190:20:30:99999999999999999999999:0.5\nb: .inf\nc: 0b2\n",
    )
]


def _write(found: list[Any]) -> list[Input]:
    """Files as JSON and as YAML."""
    return [Input("", body) for one in found for body in (dump(one), yaml.safe_dump(one).encode())]


TARGETS = (
    Target("kubeconfig", _read_file, _write(_files()), (ConfigError,), _ODD),
    Target("settings", _read_settings, _write(_settings()), (), _ODD),
    Target("fleet", _read_nodes, _write(_fleets()), (FleetError,), _ODD),
    Target("exec-plugin", _read_plugin, [Input("", dump(one)) for one in _printed()], (ConfigError,)),
)
