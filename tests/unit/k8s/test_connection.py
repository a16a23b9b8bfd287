"""Kubeconfigs, service accounts, exec plugins, and errors in them."""

from __future__ import annotations

import base64
import json
import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpu_scheduler.base.certificates import issue, make_authority, server_context
from gpu_scheduler.k8s import connection as connections
from gpu_scheduler.k8s import credentials
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection, load_connection
from gpu_scheduler.k8s.errors import ConfigError, Refused, Undecided

AUTHORITY = make_authority()
ADMIN = issue(AUTHORITY, "admin")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def write(
    path: Path, user: Any = None, cluster: dict[str, Any] | None = None, name: str = "c", current: str = "c"
) -> Path:
    """A kubeconfig of one cluster, one user and one context, all of one name."""
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example.org:6443", **(cluster or {})}}],
        "users": [{"name": name, "user": {} if user is None else user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(found))
    return path


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def problem(path: Path, **more: Any) -> str:
    """The error message, which is one line."""
    with pytest.raises(ConfigError) as caught:
        load_connection(path, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- files and contexts


def test_without_a_cluster_the_error_lists_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--kubeconfig.*KUBECONFIG.*{tmp_path}/home/.kube/config"):
        load_connection()


def test_precedence_is_flag_environment_pod_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "home/.kube/config", name="home", current="home")
    assert load_connection().server == "https://home.example.org:6443"
    account(tmp_path, monkeypatch)
    assert load_connection().server == "https://10.0.0.1:443"
    assert load_connection(context="home").server == "https://home.example.org:6443"
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path / "variable", name="variable", current="variable")))
    assert load_connection().server == "https://variable.example.org:6443"
    assert load_connection(write(tmp_path / "flag", name="flag", current="flag")).server.startswith("https://flag.")


def test_files_are_merged_and_the_first_definition_of_a_name_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(tmp_path / "first", {"token": "1"}, name="a", current="")
    second = write(tmp_path / "second", {"token": "2"}, {"server": "https://other"}, name="a", current="b")
    third = write(tmp_path / "third", {"token": "3"}, name="b", current="a")
    monkeypatch.setenv("KUBECONFIG", f"{first}::{tmp_path / 'missing'}:{second}:{third}")
    assert load_connection().server == "https://b.example.org:6443"
    assert load_connection(context="a").server == "https://a.example.org:6443"


def test_files_that_are_all_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/x:{tmp_path}/y")
    with pytest.raises(ConfigError, match=f"KUBECONFIG: no such file: {tmp_path}/x, {tmp_path}/y"):
        load_connection()


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    assert problem(tmp_path / "none") == f"{tmp_path}/none: No such file or directory"


def test_null_means_not_set(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "current-context: c\nusers: null\nclusters: [{name: c, cluster: {server: 'http://h/', proxy-url: null}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: null, namespace: team}}]\n"
    )
    found = load_connection(path)
    assert (found.server, found.namespace, found.ssl) == ("http://h", "team", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not YAML"),
        ("- 1", "Expected `object`, got `array`"),
        ("clusters: {}", "Expected `array`, got `object` - at `$.clusters`"),
        ("users: [{name: u, user: {token: 5}}]", "Expected `str`, got `int` - at `$.users[0].user.token`"),
        ("contexts: []", "current-context: not set; name one with --context: none"),
        ("current-context: x", 'current-context: no context "x"; there is none'),
    ],
)
def test_a_bad_file_is_reported_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    line = problem(path)
    assert line.startswith(f"{path}: ")
    assert said in line


def test_unknown_names_are_reported_with_the_known_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "config")
    assert problem(path, context="d") == f'{path}: --context: no context "d"; there is c'
    found = yaml.safe_load(path.read_text())
    found["contexts"][0]["context"]["cluster"] = "d"
    path.write_text(yaml.safe_dump(found))
    assert problem(path) == f'{path}: contexts[c].context.cluster: no cluster "d"; there is c'


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({}, {"server": "h:6443"}, "clusters[c].cluster.server"),
        ({}, {"server": ""}, "clusters[c].cluster.server"),
        ({}, {"certificate-authority": "ca.pem"}, "certificate-authority: {folder}/ca.pem: No such file or directory"),
        ({}, {"certificate-authority-data": "!"}, "certificate-authority-data: not base64"),
        ({}, {"certificate-authority-data": b64(b"x")}, "certificate-authority: not a PEM certificate"),
        ({}, {"proxy-url": "socks5://h"}, "proxy-url"),
        ({}, {"insecure-skip-tls-verify": True, "certificate-authority-data": "eA=="}, "only one can be meant"),
        ({"client-certificate-data": b64(b"x")}, {}, "users[c].user.client-key: missing"),
        ({"client-key-data": b64(b"x")}, {}, "users[c].user.client-certificate: missing"),
        ({"client-certificate-data": "eA==", "client-key-data": "eA=="}, {}, "client-certificate: not a PEM"),
        ({"auth-provider": {"name": "gcp"}}, {}, "users[c].user.auth-provider"),
        ({"as": "root"}, {}, "users[c].user.as: impersonation"),
        ({"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}}, {}, "exec.apiVersion"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}, {}, "exec.command: missing"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, user: Any, cluster: Any, said: str) -> None:
    path = write(tmp_path / "config", user, cluster)
    line = problem(path)
    assert line.startswith(f"{path}: ")
    assert said.format(folder=tmp_path) in line


# -- credentials


async def test_tokens_and_passwords_become_headers(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    for user, header in [
        ({"token": "t"}, "Bearer t"),
        ({"token": "t", "tokenFile": "token"}, "Bearer from-file"),
        ({"username": "u", "password": "p"}, "Basic " + b64(b"u:p")),
    ]:
        found = load_connection(write(tmp_path / "config", user))
        assert await found.headers() == {"Authorization": header}
    assert await load_connection(write(tmp_path / "config")).headers() == {}


async def test_a_token_file_is_read_again_each_minute_or_when_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    found = load_connection(write(tmp_path / "config", {"tokenFile": "token"}))
    first = await found.access()
    file.write_text("two")
    assert (await found.access()).headers == {"Authorization": "Bearer one"}
    assert found.renew(first)
    assert (await found.access()).headers == {"Authorization": "Bearer two"}
    # The refusal of the first token says nothing about the second.
    file.write_text("three")
    assert found.renew(first)
    assert (await found.access()).headers == {"Authorization": "Bearer two"}
    monkeypatch.setattr(credentials, "REREAD", 0.0)
    assert (await found.access()).headers == {"Authorization": "Bearer three"}
    file.unlink()
    assert (await found.access()).headers == {"Authorization": "Bearer three"}


@pytest.mark.parametrize("content", ["", None])
async def test_a_token_file_without_a_token_is_reported(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    found = load_connection(write(tmp_path / "config", {"tokenFile": "token"}))
    with pytest.raises(ConfigError, match=f"{tmp_path}/token: .*; it must hold a bearer token"):
        await found.headers()


def account(folder: Path, monkeypatch: pytest.MonkeyPatch, host: str = "10.0.0.1") -> Path:
    """The files and environment variables of a pod."""
    place = folder / "account"
    place.mkdir()
    (place / "token").write_text("pod-token")
    (place / "namespace").write_text("team\n")
    (place / "ca.crt").write_bytes(AUTHORITY.certificate)
    monkeypatch.setattr(connections, "SERVICE_ACCOUNT", place)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return place


async def test_in_a_pod_the_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account(tmp_path, monkeypatch, "fd00::1")
    found = load_connection()
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "team")
    assert await found.headers() == {"Authorization": "Bearer pod-token"}
    assert found.ssl is not None
    assert found.ssl.verify_mode == ssl.CERT_REQUIRED


def test_a_pod_without_a_ca_certificate_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = account(tmp_path, monkeypatch)
    (place / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigError, match=f"{place}/ca.crt: not a PEM certificate"):
        load_connection()
    (place / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=f"{place}/ca.crt: No such file"):
        load_connection()


# -- proxy and TLS


@pytest.mark.parametrize(
    ("server", "proxy_url", "environment", "proxy"),
    [
        ("https://h.example.org", "http://named:3128", {"HTTPS_PROXY": "http://p"}, "http://named:3128"),
        ("https://h.example.org", "", {"HTTPS_PROXY": "http://p"}, "http://p"),
        ("https://h.example.org", "", {"https_proxy": "http://p"}, "http://p"),
        ("https://h.example.org", "", {"HTTP_PROXY": "http://p"}, None),
        ("https://h.example.org", "", {"HTTPS_PROXY": "http://p", "NO_PROXY": "x, .example.org"}, None),
        ("https://h.example.org", "", {"HTTPS_PROXY": "http://p", "NO_PROXY": "ample.org"}, "http://p"),
        ("https://10.1.2.3:6443", "", {"HTTPS_PROXY": "http://p", "NO_PROXY": "x,10.0.0.0/8"}, None),
        ("https://11.1.2.3:6443", "", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, "http://p"),
        ("https://[fd00::1]:6443", "", {"HTTPS_PROXY": "http://p", "NO_PROXY": "fd00::/8"}, None),
        ("https://127.0.0.1:6443", "", {"HTTPS_PROXY": "http://p"}, None),
        ("https://localhost:6443", "", {"HTTPS_PROXY": "http://p"}, None),
    ],
)
def test_the_proxy_comes_from_the_kubeconfig_or_the_environment(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    proxy_url: str,
    environment: dict[str, str],
    proxy: str | None,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = load_connection(write(tmp_path / "config", {}, {"server": server, "proxy-url": proxy_url}))
    assert found.proxy == proxy


async def answer(request: web.Request) -> web.Response:
    """Answers with the identity of the client, by certificate or token."""
    assert request.transport is not None
    certificate = request.transport.get_extra_info("peercert") or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return web.json_response({"gitVersion": "/".join([*names, token])})


def secure_server(name: str = "127.0.0.1") -> tuple[TestServer, ssl.SSLContext]:
    app = web.Application()
    app.router.add_get("/version", answer)
    context = server_context(issue(AUTHORITY, "server", [name]), AUTHORITY.certificate)
    return TestServer(app, scheme="https"), context


async def ask(tmp_path: Path, user: Any, cluster: dict[str, Any], name: str = "127.0.0.1") -> str:
    """The identity that the server sees."""
    server, context = secure_server(name)
    await server.start_server(ssl=context)
    try:
        address = {"server": f"https://127.0.0.1:{server.port}"}
        async with Client(load_connection(write(tmp_path / "config", user, {**address, **cluster}))) as client:
            return await client.server_version()
    finally:
        await server.close()


TRUST = {"certificate-authority-data": b64(AUTHORITY.certificate)}


async def test_certificates_are_taken_from_data_and_from_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    data = {"client-certificate-data": b64(ADMIN.certificate), "client-key-data": b64(ADMIN.key)}
    assert await ask(tmp_path, data, TRUST) == "admin/"
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.certificate)
    (tmp_path / "me.pem").write_bytes(ADMIN.certificate)
    (tmp_path / "me.key").write_bytes(ADMIN.key)
    files = {"client-certificate": "me.pem", "client-key": "me.key"}
    assert await ask(tmp_path, files, {"certificate-authority": "ca.pem"}) == "admin/"


async def test_a_server_of_another_authority_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.k8s.client._RETRIES", 0)
    other = {"certificate-authority-data": b64(make_authority().certificate)}
    with pytest.raises(Undecided, match="CERTIFICATE_VERIFY_FAILED"):
        await ask(tmp_path, {"token": "t"}, other)
    assert await ask(tmp_path, {"token": "t"}, {"insecure-skip-tls-verify": True}) == "t"


async def test_tls_server_name_may_differ_from_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.k8s.client._RETRIES", 0)
    with pytest.raises(Undecided, match="CERTIFICATE_VERIFY_FAILED"):
        await ask(tmp_path, {"token": "t"}, TRUST, "api.example.org")
    assert (
        await ask(tmp_path, {"token": "t"}, {**TRUST, "tls-server-name": "api.example.org"}, "api.example.org") == "t"
    )


def test_keys_leave_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    user = {"client-certificate-data": b64(ADMIN.certificate), "client-key-data": b64(ADMIN.key)}
    load_connection(write(tmp_path / "config", user, TRUST))
    assert list(place.iterdir()) == []


def test_keys_are_loaded_without_a_writable_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    user = {"client-certificate-data": b64(ADMIN.certificate), "client-key-data": b64(ADMIN.key)}
    assert load_connection(write(tmp_path / "config", user, TRUST)).ssl is not None


# -- exec plugins

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


def plugin(folder: Path, status_: Any, version: str = V1, body: str = "") -> dict[str, Any]:
    """A program that records its calls and prints a status, as the exec field of a user."""
    path = folder / "plugin"
    said = {"apiVersion": version, "kind": "ExecCredential", "status": status_}
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, sys, json\n"
        f"with open({str(folder / 'calls')!r}, 'a') as file:\n"
        "    seen = [sys.argv[1:], os.environ['KUBERNETES_EXEC_INFO'], os.environ.get('GIVEN')]\n"
        "    print(json.dumps(seen), file=file)\n"
        f"{body}\n"
        f"print({json.dumps(said)!r})\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"apiVersion": version, "command": "./plugin", "interactiveMode": "Never"}


def calls(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_a_plugin_runs_once_and_gets_the_cluster_information(tmp_path: Path, version: str) -> None:
    run = plugin(tmp_path, {"token": "secret"}, version)
    run |= {"args": ["get", "token"], "env": [{"name": "GIVEN", "value": "yes"}], "provideClusterInfo": True}
    extension = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]
    cluster = {**TRUST, "tls-server-name": "n", "extensions": extension}
    found = load_connection(write(tmp_path / "config", {"exec": run}, cluster))
    assert await found.headers() == {"Authorization": "Bearer secret"}
    assert await found.headers() == {"Authorization": "Bearer secret"}
    ((arguments, info, given),) = calls(tmp_path)
    assert (arguments, given) == (["get", "token"], "yes")
    assert json.loads(info) == {
        "apiVersion": version,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://c.example.org:6443",
                "tls-server-name": "n",
                "config": {"audience": "x"},
                **TRUST,
            },
        },
    }


@pytest.mark.parametrize(("minutes", "runs"), [(60, 1), (-1, 2), (0, 2)])
async def test_a_plugin_runs_again_when_its_credential_expires(tmp_path: Path, minutes: int, runs: int) -> None:
    until = (datetime.now(UTC) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = plugin(tmp_path, {"token": "secret", "expirationTimestamp": until})
    found = load_connection(write(tmp_path / "config", {"exec": run}))
    await found.headers()
    await found.headers()
    assert len(calls(tmp_path)) == runs


async def test_a_plugin_runs_again_when_its_credential_is_refused(tmp_path: Path) -> None:
    found = load_connection(write(tmp_path / "config", {"exec": plugin(tmp_path, {"token": "secret"})}))
    first = await found.access()
    assert found.renew(first)
    second = await found.access()
    assert found.renew(first)
    assert await found.access() == second
    assert len(calls(tmp_path)) == 2


async def test_a_plugin_may_return_a_certificate(tmp_path: Path) -> None:
    given = {"clientCertificateData": ADMIN.certificate.decode(), "clientKeyData": ADMIN.key.decode()}
    assert await ask(tmp_path, {"exec": plugin(tmp_path, given)}, TRUST) == "admin/"


@pytest.mark.parametrize(
    ("status_", "body", "said"),
    [
        ({}, "", "printed neither a token nor a client certificate with its key"),
        ({"clientCertificateData": "x"}, "", "printed neither a token"),
        (None, "", "must print an ExecCredential: Expected `object`, got `null` - at `$.status`"),
        ({"token": "t"}, "print('hello')", "must print an ExecCredential"),
        ({"token": "t"}, "sys.exit('first\\nlog in again')", "exited with 1: log in again"),
        ({"clientCertificateData": "x", "clientKeyData": "y"}, "", "client-certificate: not a PEM certificate"),
    ],
)
async def test_unusable_output_of_a_plugin_is_reported_in_one_line(
    tmp_path: Path, status_: Any, body: str, said: str
) -> None:
    run = plugin(tmp_path, status_, body=body)
    path = write(tmp_path / "config", {"exec": run})
    with pytest.raises(ConfigError) as caught:
        await load_connection(path).headers()
    assert str(caught.value).startswith(f"{path}: users[c].user.")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_plugin_of_another_api_version_is_reported(tmp_path: Path) -> None:
    run = plugin(tmp_path, {"token": "t"}, V1BETA1) | {"apiVersion": V1}
    with pytest.raises(ConfigError, match=f"printed {V1BETA1} ExecCredential, not {V1} ExecCredential"):
        await load_connection(write(tmp_path / "config", {"exec": run})).headers()


async def test_a_missing_plugin_is_reported_with_its_install_hint(tmp_path: Path) -> None:
    run = {"apiVersion": V1, "command": "no-such-plugin", "installHint": "Install it:\n  brew install it"}
    path = write(tmp_path / "config", {"exec": run})
    with pytest.raises(ConfigError) as caught:
        await load_connection(path).headers()
    assert str(caught.value) == (
        f'{path}: users[c].user.exec.command: no program "no-such-plugin". Install it: brew install it'
    )


async def test_an_interactive_plugin_needs_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    run = plugin(tmp_path, {"token": "t"}) | {"interactiveMode": "Always"}
    with pytest.raises(ConfigError, match=r"exec\.interactiveMode: Always, but .* has no terminal"):
        await load_connection(write(tmp_path / "config", {"exec": run})).headers()


async def test_a_plugin_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_TIMEOUT", 0.2)
    run = plugin(tmp_path, {"token": "t"}, body="import time; time.sleep(3600)")
    with pytest.raises(ConfigError, match="was not done in"):
        await load_connection(write(tmp_path / "config", {"exec": run})).headers()


async def test_a_request_fails_with_the_problem_of_its_credentials(tmp_path: Path) -> None:
    run = {"apiVersion": V1, "command": "no-such-plugin"}
    async with Client(load_connection(write(tmp_path / "config", {"exec": run}))) as client:
        with pytest.raises(Refused, match='no program "no-such-plugin"'):
            await client.server_version()


async def test_a_connection_can_be_made_by_hand() -> None:
    context = ssl.create_default_context()
    found = Connection("https://h", context)
    assert (await found.access()).ssl is context
    assert await found.headers() == {}


# -- found by fuzzing


@pytest.mark.parametrize(
    ("user", "cluster", "field"),
    [
        ({}, {"server": "https://[::1"}, "server"),
        ({}, {"server": "https://host:99999"}, "server"),
        ({}, {"server": "https://ho st"}, "server"),
        ({}, {"proxy-url": "http://[::1"}, "proxy-url"),
        ({"token": "a\nb"}, {}, "token"),
        ({"token": "naïve"}, {}, "token"),
        ({"client-certificate": "a\x00b", "client-key": "c"}, {}, "client-certificate"),
    ],
    ids=["bracket", "port", "space", "proxy", "line break", "letters", "NUL"],
)
def test_unusable_values_are_reported_with_their_field(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], field: str
) -> None:
    assert f".{field}: " in problem(write(tmp_path / "config", user, cluster))


def test_a_file_that_would_overflow_the_stack_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[" * 100_000)
    assert problem(tmp_path / "config").endswith(
        "config: not YAML: line 1: nested too deep; at most 100 levels are read"
    )


def test_names_in_a_file_are_shown_on_one_line(tmp_path: Path) -> None:
    assert problem(write(tmp_path / "config", name="a\nb", current="c")).endswith('no context "c"; there is a b')


@pytest.mark.parametrize("token", [b"\xff", b"a b", b"a\x00"], ids=["bytes", "two words", "NUL"])
async def test_a_token_file_with_other_content_is_refused(tmp_path: Path, token: bytes) -> None:
    (tmp_path / "token").write_bytes(token)
    connection = load_connection(write(tmp_path / "config", {"tokenFile": "token"}))
    with pytest.raises(ConfigError, match="it must hold a bearer token"):
        await connection.access()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"[" * 5000, "must print an ExecCredential"),
        (b'"\xff"', "must print an ExecCredential"),
        (b'{"apiVersion":"%b","kind":"ExecCredential","status":{"token":"a\\nb"}}', "printed a token with letters"),
    ],
    ids=["deep", "bytes", "line break"],
)
async def test_invalid_output_of_a_plugin_is_refused_in_one_line(tmp_path: Path, said: bytes, why: str) -> None:
    version = "client.authentication.k8s.io/v1"
    (tmp_path / "said").write_bytes(said.replace(b"%b", version.encode()))
    plan = {"apiVersion": version, "command": "cat", "args": [str(tmp_path / "said")], "interactiveMode": "Never"}
    with pytest.raises(ConfigError, match=why) as caught:
        await load_connection(write(tmp_path / "config", {"exec": plan})).access()
    assert str(caught.value).isprintable()


async def test_arguments_that_cannot_be_passed_to_a_program_are_refused(tmp_path: Path) -> None:
    plan = {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": ["a\x00b"]}
    with pytest.raises(ConfigError, match=r"exec\.args"):
        await load_connection(write(tmp_path / "config", {"exec": {**plan, "interactiveMode": "Never"}})).access()
