"""Starts and stops a cluster: API server, controllers, nodes and add-ons in one process."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from embedded_kube.addons import NAMESPACE, Addon, deploy_addons
from embedded_kube.admission.admission import OWN_NODES, Admission
from embedded_kube.bootstrap import CRDS, bootstrap
from embedded_kube.client import InProcessClient
from embedded_kube.controllers import run_controllers
from embedded_kube.controllers.machinery.controller import keep_running
from embedded_kube.controllers.settings import ControllerSettings
from embedded_kube.data_dir import DataDir, RunningCluster
from embedded_kube.node import FleetError, FleetRunner, FleetSettings
from embedded_kube.node.fleet import read_fleet
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable
from embedded_kube.registry.name_cooldown import COOLDOWN, NameCooldown
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.registry.timestamps import timestamp
from embedded_kube.schema.crds import accept, kinds_of
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.metrics import ApiServerMetrics
from embedded_kube.server.server import ADMIN, ApiServerConfig, make_app
from embedded_kube.server.tokens import Tokens
from embedded_kube.storage.change_tracker import ChangeTracker
from embedded_kube.storage.store import Store
from embedded_kube.subresources.subresources import make_subresources
from gpu_scheduler.base import certificates
from gpu_scheduler.k8s.objects import Json

SERVER_NAMES = (*certificates.LOOPBACK, "kubernetes", "kubernetes.default", "kubernetes.default.svc")
"""Names in the API server's certificate."""

TOKEN_LIFETIME = 365 * 86_400
"""Lifetime in seconds of the token in a pod's service account files; it is not renewed while the pod runs."""

WEBHOOK_START_TIMEOUT = 60.0
"""Seconds that a start waits until the webhooks of add-ons accept connections."""

_log = logging.getLogger(__name__)


class ClusterError(Exception):
    """The cluster cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of one cluster."""

    data_dir: DataDir
    fleet: FleetSettings
    kubernetes: str = "1.35"
    port: int = 0
    definitions: Sequence[Json] = ()
    """CRDs that every start creates or updates."""
    objects: Sequence[tuple[str, Json]] = ()
    """Further objects with the names of their resources, such as CRDs of other projects; created only if missing."""
    addons: tuple[Addon, ...] = ()
    """Programs that run as pods on the control-plane node."""


async def run_cluster(settings: ClusterSettings, ready: Callable[[RunningCluster], None], stop: asyncio.Event) -> None:
    """Runs a cluster until `stop` is set; calls `ready` once the API answers. All tasks have ended when it returns."""
    cluster = EmbeddedCluster(settings)
    try:
        ready(await cluster.start())
        await cluster.serve(stop)
    finally:
        await cluster.stop()


class EmbeddedCluster:
    """One cluster. `start` starts its parts in order of their dependencies, `stop` stops them in reverse order."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._data_dir = settings.data_dir
        self._store = self._open_store()
        self._kinds = KindTable(builtin_kinds(settings.kubernetes))
        self._schemas = Schemas(settings.kubernetes)
        self._admission = Admission(self._store, self._kinds, self._schemas)
        self.registry = ObjectRegistry(
            self._store, self._kinds, self._schemas, self._admission.admit, self._admission.validate
        )
        self.registry.name_cooldown = NameCooldown(COOLDOWN)
        self._tokens = Tokens({self._data_dir.token(): ADMIN}, self._data_dir.token())
        self._definitions = ChangeTracker(self._store, CRDS)
        self._tasks: list[asyncio.Task[None]] = []
        self._setup_tasks: list[asyncio.Task[None]] = []
        self._cleanups: list[Callable[[], Awaitable[None]]] = [self._admission.close]
        try:
            nodes = replace(settings.fleet, control_plane=bool(settings.addons))
            self._fleet = FleetRunner(self.client(OWN_NODES), nodes)
        except FleetError as error:
            raise ClusterError(str(error)) from error

    def _open_store(self) -> Store:
        """Opens the database, in a file that only its owner may read."""
        try:
            self._data_dir.database.touch(mode=0o600)
            return Store(self._data_dir.database)
        except (OSError, sqlite3.Error) as error:
            raise ClusterError(
                f"cannot read {self._data_dir.database}: {error}; start afresh with: {self._data_dir.command('reset')}"
            ) from error

    def client(self, user: str) -> InProcessClient:
        """Makes an in-process client that acts as `user`."""
        return InProcessClient(self.registry, user)

    async def start_api(self) -> tuple[str, int]:
        """Starts the API server without controllers and nodes; returns its CA certificate and its port."""
        self._serve_definitions()
        known = (self._settings.definitions, self._settings.objects)
        await bootstrap(self.client("system:bootstrap"), self._serve_definitions, *known)
        authority, port = await self._start_server()
        self._spawn("custom kinds", keep_running("serving custom kinds", self._watch_definitions))
        return authority, port

    async def start(self) -> RunningCluster:
        """Starts everything; returns once the API and the webhooks of add-ons answer."""
        authority, port = await self.start_api()

        async def account_files(namespace: str, account: str) -> dict[str, str]:
            return self._account_files(authority, namespace, account)

        self._fleet.api = ("127.0.0.1", port)
        self._fleet.account_files = account_files
        server = f"https://127.0.0.1:{port}"
        kubeconfig = self._data_dir.write_kubeconfig(server, authority)
        first = read_fleet(self._settings.fleet)[0].name
        running = RunningCluster(os.getpid(), server, self._settings.kubernetes, str(kubeconfig), first)
        controllers = ControllerSettings(
            kinds=tuple(self._kinds), volumes=self._data_dir.path / "volumes", root_ca=authority
        )
        self._spawn("controllers", run_controllers(self.client("system:kube-controller-manager"), controllers))
        addons = self._start_addons(server, authority)
        self._spawn("nodes", self._fleet.run())
        await self._wait_for_webhooks(addons)
        self._data_dir.announce(running)
        return running

    def _start_addons(self, server: str, authority: str) -> asyncio.Task[None]:
        def write_kubeconfig(account: str) -> Path:
            files = self._account_files(authority, NAMESPACE, account)
            return self._data_dir.write_account_kubeconfig(server, account, files)

        addons = self._settings.addons
        for addon in addons:
            # Nodes start the pods of an earlier run at once, and the server's port may have changed since.
            write_kubeconfig(addon.name)
            if addon.webhook is not None:
                self._write_webhook_certificate()
        task = asyncio.create_task(deploy_addons(self.client("system:bootstrap"), addons, write_kubeconfig, authority))
        self._setup_tasks.append(task)
        return task

    def _write_webhook_certificate(self) -> None:
        folder = self._data_dir.webhook
        folder.mkdir(mode=0o700, exist_ok=True)
        authority, _ = self._certificates()
        issued = certificates.issue(authority, SERVER_NAMES[0], certificates.LOOPBACK)
        issued.write(folder / "tls.crt", folder / "tls.key")

    async def _wait_for_webhooks(self, addons: asyncio.Task[None]) -> None:
        """Waits until webhooks accept connections, because pods are refused before. A timeout is only logged."""
        ports = [addon.webhook.port for addon in self._settings.addons if addon.webhook is not None]
        try:
            async with asyncio.timeout(WEBHOOK_START_TIMEOUT):
                await asyncio.shield(addons)
                for port in ports:
                    await _wait_for_port(port)
        except TimeoutError:
            _log.warning("webhook not started after %g s; pods are refused until it starts", WEBHOOK_START_TIMEOUT)

    async def serve(self, stop: asyncio.Event) -> None:
        """Waits until `stop` is set; raises ClusterError when a task that must keep running has ended."""
        stopped = asyncio.ensure_future(stop.wait())
        done, _ = await asyncio.wait({stopped, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        for task in self._tasks:
            if task in done:
                error = _cause(task.exception())
                raise ClusterError(f"{task.get_name()} cannot go on: {error}") from error

    async def stop(self) -> None:
        """Stops everything: the nodes first, the store last."""
        for task in reversed([*self._tasks, *self._setup_tasks]):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for end in reversed(self._cleanups):
            await end()
        self._store.close()

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _start_server(self) -> tuple[str, int]:
        """Serves the API over TLS; returns the CA certificate and the port."""
        authority, certificate = self._certificates()
        metrics = ApiServerMetrics(self._settings.kubernetes, self._store, self._kinds)
        subresources = make_subresources(self.registry, self._fleet.kubelets, self._schemas, self._tokens)
        serving = ApiServerConfig(
            self._schemas,
            self._settings.kubernetes,
            tokens=self._tokens,
            subresources=subresources,
            metrics=metrics.text,
        )
        app = make_app(self.registry, serving)
        metrics.attach(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._cleanups.append(runner.cleanup)
        site = web.TCPSite(
            runner, "127.0.0.1", self._settings.port, ssl_context=certificates.server_context(certificate), backlog=1024
        )
        try:
            await site.start()
        except OSError as error:
            cause = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            why = f"--port: {self._settings.port} {cause}; choose another one, or 0 for any free one"
            raise ClusterError(why) from error
        return authority.certificate.decode(), runner.addresses[0][1]

    def _account_files(self, authority: str, namespace: str, account: str) -> dict[str, str]:
        """The files of a service account that in-cluster clients read: token, CA certificate, namespace."""
        found = self._store.get("serviceaccounts", namespace, account)
        uid = found.object()["metadata"]["uid"] if found is not None else ""
        token = self._tokens.issue(namespace, account, uid, TOKEN_LIFETIME)
        return {"token": token, "ca.crt": authority, "namespace": namespace}

    def _certificates(self) -> tuple[certificates.Certificate, certificates.Certificate]:
        """The CA and the server certificate, created once and kept in the data directory."""
        found = [self._data_dir.read(name) for name in ("ca.crt", "ca.key", "server.crt", "server.key")]
        if all(text is not None for text in found):
            pem = [(text or "").encode() for text in found]
            return certificates.Certificate(pem[0], pem[1]), certificates.Certificate(pem[2], pem[3])
        authority = certificates.make_authority()
        certificate = certificates.issue(authority, SERVER_NAMES[0], SERVER_NAMES)
        for name, pair in (("ca", authority), ("server", certificate)):
            pair.write(self._data_dir.path / f"{name}.crt", self._data_dir.path / f"{name}.key")
        return authority, certificate

    # -- custom resources

    def _serve_definitions(self) -> None:
        """Serves the kinds of all CRDs and updates the status of the CRDs."""
        changes = self._definitions.take()
        if changes == []:
            return
        gone = [change.entry.object() for change in changes or () if change.kind == "DELETED"]
        for definition in gone:
            self._kinds.remove(definition["spec"]["group"], definition["spec"]["names"]["plural"])
        for entry in list(self._store.entries(CRDS)):
            definition = entry.object()
            status = accept(definition, self._kinds, timestamp())
            for kind in kinds_of(definition):
                self._kinds.put(kind)
            if status != definition.get("status"):
                self._store.write(CRDS, {**definition, "status": status})
        self._definitions.take()

    async def _watch_definitions(self) -> None:
        subscription = self._store.subscribe(CRDS)
        try:
            while True:
                self._serve_definitions()
                await subscription.wait()
                subscription.pending.clear()
        finally:
            subscription.close()


async def _wait_for_port(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def _cause(error: BaseException | None) -> BaseException | None:
    """The first exception of a group, or the exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
