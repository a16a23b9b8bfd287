"""The running webhook: certificate files, node cache, reviews of queues, and serving without an API server."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from embedded_kube.schema.crds import kinds_of
from gpu_scheduler.base.certificates import (
    Certificate,
    issue,
    load_certificate,
    make_authority,
    make_period,
    read_period,
    server_context,
)
from gpu_scheduler.gangs.contract import QUEUES, SYSTEM, WEBHOOK_SECRET
from gpu_scheduler.gangs.definitions import load_definitions
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.errors import ApiError, ConfigError
from gpu_scheduler.webhook import certificate_files
from gpu_scheduler.webhook.certificate_files import CertificateFiles
from gpu_scheduler.webhook.nodes import NodeCache
from gpu_scheduler.webhook.policy import AdmissionPolicy
from gpu_scheduler.webhook.renewal import CertificateLocation, CertificateRenewal
from gpu_scheduler.webhook.rotation import RotationPolicy
from gpu_scheduler.webhook.service import WebhookOptions, run_webhook
from tests.embedded_kube.servers import api_server
from tests.unit.scheduler.reporting import until
from tests.unit.webhook.reviewing import review

AUTHORITY = make_authority()
RULES = AdmissionPolicy(frozenset({"gpu-scheduler"}), ("nvidia.com/gpu",))
POLICY = RotationPolicy(("localhost", "127.0.0.1"), grace=0.6)
NO_SERVER = Connection("http://127.0.0.1:1")


@dataclass
class Mounted:
    """A folder as a kubelet mounts a secret: symbolic links, of which one is swapped."""

    folder: Path
    version: int = 0

    def swap(self, pair: Certificate) -> None:
        self.version += 1
        target = self.folder / f"..{self.version}"
        target.mkdir()
        (target / "tls.crt").write_bytes(pair.certificate)
        (target / "tls.key").write_bytes(pair.key)
        os.symlink(target.name, self.folder / "..new")
        os.replace(self.folder / "..new", self.folder / "..data")
        for name in ("tls.crt", "tls.key"):
            if not (self.folder / name).is_symlink():
                os.symlink(f"..data/{name}", self.folder / name)


# -- files


def test_a_pair_is_reloaded_only_when_the_mounted_secret_is_swapped(tmp_path: Path) -> None:
    mounted, served = Mounted(tmp_path), list[Certificate]()
    pairs = [issue(AUTHORITY, "server") for _ in range(2)]
    files = CertificateFiles(tmp_path, served.append)
    for pair in (pairs[0], pairs[0], pairs[1]):
        mounted.swap(pair)
        files.reload()
        files.reload()
    assert served == pairs


def test_a_broken_pair_is_reported_and_the_previous_one_stays(tmp_path: Path) -> None:
    mounted, served = Mounted(tmp_path), list[Certificate]()
    one, other = issue(AUTHORITY, "server"), issue(AUTHORITY, "server")
    files = CertificateFiles(tmp_path, served.append)
    mounted.swap(one)
    files.reload()
    for broken, words in (
        (Certificate(other.certificate, one.key), "tls.crt and tls.key: the key belongs to another certificate"),
        (Certificate(b"", b""), "no certificate with its private key"),
    ):
        mounted.swap(broken)
        with pytest.raises(ConfigError, match=words):
            files.reload()
    (tmp_path / "..data" / "tls.key").unlink()
    with pytest.raises(ConfigError, match=r"tls\.key: cannot be read: No such file"):
        files.reload()
    assert served == [one]
    mounted.swap(other)
    files.reload()
    assert served == [one, other]


def test_a_pair_that_tls_rejects_is_reported_until_it_is_replaced(tmp_path: Path) -> None:
    mounted, good = Mounted(tmp_path), issue(AUTHORITY, "server")
    context, served = server_context(good), list[Certificate]()

    def serve(pair: Certificate) -> None:
        load_certificate(context, pair)
        served.append(pair)

    files = CertificateFiles(tmp_path, serve)
    mounted.swap(weak_pair())
    for _ in range(2):
        with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}: tls.crt and tls.key: EE_KEY_TOO_SMALL")):
            files.reload()
    mounted.swap(good)
    files.reload()
    assert served == [good]


def weak_pair() -> Certificate:
    """A certificate with a matching key that is too short for TLS."""
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    period = make_period()
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(datetime.fromtimestamp(period.begins, UTC))
    built = built.not_valid_after(datetime.fromtimestamp(period.ends, UTC))
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(built.sign(key, hashes.SHA256()).public_bytes(pem), private)


class Counted(CertificateFiles):
    """Counts its reloads."""

    looks = 0

    def reload(self) -> None:
        self.looks += 1
        super().reload()


async def test_a_broken_pair_is_logged_once_and_again_after_a_good_one(
    tmp_path: Path, logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_files, "POLL_INTERVAL", 0.0)
    mounted, served = Mounted(tmp_path), list[Certificate]()
    files = Counted(tmp_path, served.append)
    mounted.swap(Certificate(b"", b""))
    task = asyncio.create_task(files.run())

    async def look_more() -> None:
        enough = files.looks + 3
        await until(lambda: files.looks > enough or task.done())
        assert not task.done()

    for times in (1, 2):
        await look_more()
        assert logs.text.count("certificate not reloaded") == times
        mounted.swap(issue(AUTHORITY, "server"))
        await look_more()
        assert len(served) == times
        mounted.swap(Certificate(b"", b""))
    task.cancel()


# -- nodes


async def test_nodes_are_unknown_until_listed_and_then_followed() -> None:
    async with api_server() as api, Client(Connection(str(api.client.make_url("")))) as client:
        nodes = NodeCache(client)
        assert nodes.known() is None
        running = asyncio.create_task(nodes.run())
        node = {"metadata": {"name": "a", "labels": {"gpu-node-name": "node1"}}}
        await api.create("/api/v1/nodes", node)
        await api.create(
            "/api/v1/nodes", {"metadata": {"name": "b"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
        )
        await until(lambda: nodes.known() == (frozenset({"a", "node1", "b"}), frozenset({"nvidia.com/gpu"})))
        running.cancel()


# -- together


@asynccontextmanager
async def running(
    connection: Connection, options: WebhookOptions, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[int]:
    """Runs a webhook until the block ends; yields the port from its log."""
    caplog.set_level("INFO")
    stop = asyncio.Event()
    task = asyncio.create_task(run_webhook(connection, options, stop))
    found = await until(lambda: re.search(r"'port': (\d+)", caplog.text) or task.done())
    assert isinstance(found, re.Match), "it ended"
    yield int(found[1])
    stop.set()
    await task


def options(folder: Path | None, linger: float = 0.0) -> WebhookOptions:
    return WebhookOptions(RULES, POLICY, CertificateLocation(), folder, "127.0.0.1:0", linger)


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The log lines with their values."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.stdlib.render_to_log_kwargs, _as_text],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    yield caplog
    structlog.reset_defaults()


def _as_text(_logger: Any, _method: str, line: Any) -> str:
    return f"{line['msg']} {line.get('extra') or ''}"


async def test_with_a_folder_it_serves_without_an_api_server(tmp_path: Path, logs: pytest.LogCaptureFixture) -> None:
    issue(AUTHORITY, "server").write(tmp_path / "tls.crt", tmp_path / "tls.key")
    trust = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    async with running(NO_SERVER, options(tmp_path), logs) as port, aiohttp.ClientSession() as session:
        address = f"https://127.0.0.1:{port}"
        async with session.get(f"{address}/readyz", ssl=trust) as answer:
            assert answer.status == 200
        async with session.get(f"{address}/metrics", ssl=trust) as answer:
            ends = read_period((tmp_path / "tls.crt").read_bytes()).ends
            told = re.search(r"^gpu_scheduler_webhook_certificate_expiry\w+ (\S+)$", await answer.text(), re.MULTILINE)
            assert told is not None
            assert float(told[1]) == ends
        body, headers = b"[]", {"Content-Type": "application/json"}
        async with session.post(f"{address}/mutate", data=body, headers=headers, ssl=trust) as answer:
            assert answer.status == 400


async def test_a_queue_is_checked_against_the_queues_of_the_api_server(
    tmp_path: Path, logs: pytest.LogCaptureFixture
) -> None:
    issue(AUTHORITY, "server").write(tmp_path / "tls.crt", tmp_path / "tls.key")
    trust = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    kinds = tuple(kind for found in load_definitions() for kind in kinds_of(found))
    async with api_server("1.35", kinds) as api, aiohttp.ClientSession() as session:
        queues = f"/apis/{QUEUES.api_version}/{QUEUES.plural}"
        base = {"apiVersion": QUEUES.api_version, "kind": QUEUES.kind}
        child = {**base, "metadata": {"name": "child"}, "spec": {"parent": "company"}}
        asked = review(child, f"{QUEUES.api_version}/{QUEUES.plural}")
        async with running(Connection(str(api.client.make_url(""))), options(tmp_path), logs) as port:

            async def is_allowed() -> bool:
                address = f"https://127.0.0.1:{port}/validate"
                async with session.post(address, json=asked, ssl=trust) as answer:
                    return bool((await answer.json())["response"]["allowed"])

            assert not await is_allowed()
            await api.create(queues, {**base, "metadata": {"name": "company"}})
            assert await is_allowed()


async def test_it_ends_only_after_its_background_tasks(
    logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()

    async def follow(_: NodeCache) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.append("following nodes")

    monkeypatch.setattr(NodeCache, "run", follow)
    async with running(NO_SERVER, options(None), logs):
        pass
    assert ended == ["following nodes"]


async def test_without_a_trusted_certificate_it_is_alive_but_not_ready(logs: pytest.LogCaptureFixture) -> None:
    async with running(NO_SERVER, options(None), logs) as port, aiohttp.ClientSession() as session:
        async with session.get(f"https://127.0.0.1:{port}/healthz", ssl=False) as answer:
            assert answer.status == 200
        async with session.get(f"https://127.0.0.1:{port}/readyz", ssl=False) as answer:
            assert answer.status == 503


async def test_a_missing_secret_is_logged_once(logs: pytest.LogCaptureFixture) -> None:
    text = f"the secret {SYSTEM}/{WEBHOOK_SECRET} does not exist; create it, even if empty"
    async with api_server() as api, running(Connection(str(api.client.make_url(""))), options(None), logs):
        await until(lambda: text in logs.text)
    assert logs.text.count(text) == 1


class Failing(CertificateRenewal):
    """A renewal whose requests fail."""

    looks = 0

    async def reconcile(self) -> bool:
        self.looks += 1
        raise ApiError(500, "InternalError", "the store is closed")


async def test_a_repeated_error_is_logged_once(logs: pytest.LogCaptureFixture) -> None:
    async with Client(NO_SERVER) as client:
        renewal = Failing(client, CertificateLocation(), POLICY, lambda _: None)
        running = asyncio.create_task(renewal.run())
        await until(lambda: renewal.looks > 3)
        running.cancel()
    assert logs.text.count("certificate renewal failed: the store is closed") == 1


async def test_a_folder_without_a_certificate_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}/tls.crt: cannot be read: No such file or directory")):
        await run_webhook(NO_SERVER, options(tmp_path), asyncio.Event())
