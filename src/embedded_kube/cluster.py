"""The local cluster put together: API server, controllers and nodes in one process, from start to stop."""

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

from embedded_kube.addons import NAMESPACE, Part, run_parts
from embedded_kube.admission.admission import OWN_NODES, Admission
from embedded_kube.api import Api, timestamp
from embedded_kube.bootstrap import CRDS, bootstrap
from embedded_kube.client import LocalClient
from embedded_kube.controllers import run_controllers
from embedded_kube.controllers.machinery.controller import keep_running
from embedded_kube.controllers.settings import ControllerSettings
from embedded_kube.data_dir import Home, Running
from embedded_kube.node import FleetError, FleetRunner, FleetSettings
from embedded_kube.node.fleet import read_fleet
from embedded_kube.schema.crds import accept, kinds_of
from embedded_kube.schema.schemas import Schemas
from embedded_kube.server.metrics import Metrics
from embedded_kube.server.server import ADMIN, Serving, make_app
from embedded_kube.server.tokens import Tokens
from embedded_kube.storage.builtin import built_in
from embedded_kube.storage.followed import Followed
from embedded_kube.storage.kinds import Kinds
from embedded_kube.storage.name_cooldown import REST, FreedNames
from embedded_kube.storage.store import Json, Store
from embedded_kube.subresources.subresources import make_subresources
from gpu_scheduler.base import certificates

NAMES = (*certificates.LOOPBACK, "kubernetes", "kubernetes.default", "kubernetes.default.svc")
"""What the API server is called."""

TOKEN_SECONDS = 365 * 86_400
"""How long the token that a pod finds in its file is good: nobody renews it while the pod runs."""

HOOKS_IN = 60.0
"""How long a start waits for the webhooks inside, in seconds."""

_log = logging.getLogger(__name__)


class ClusterError(Exception):
    """The cluster cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `up` may be told."""

    home: Home
    fleet: FleetSettings
    kubernetes: str = "1.35"
    port: int = 0
    definitions: Sequence[Json] = ()
    """CRDs that are there from the start, besides those of other projects."""
    foreign: Sequence[Json] = ()
    """CRDs of other projects that are made if nobody has."""
    parts: tuple[Part, ...] = ()
    """What runs inside as pods of its own node."""


async def run_cluster(settings: Settings, ready: Callable[[Running], None], stop: asyncio.Event) -> None:
    """Runs until it is told to stop; everything that was started has ended when it returns."""
    cluster = LocalCluster(settings)
    try:
        ready(await cluster.start())
        await cluster.serve(stop)
    finally:
        await cluster.stop()


class LocalCluster:
    """The parts of one cluster. `start` brings them up in the order they need each other, `stop` takes them down."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._home = settings.home
        self._store = self._open_store()
        self._kinds = Kinds(built_in(settings.kubernetes))
        self._schemas = Schemas(settings.kubernetes)
        self._admission = Admission(self._store, self._kinds, self._schemas)
        self.api = Api(self._store, self._kinds, self._schemas, self._admission.admit, self._admission.check)
        self.api.freed = FreedNames(REST)
        self._tokens = Tokens({self._home.token(): ADMIN}, self._home.token())
        self._definitions = Followed(self._store, CRDS)
        self._tasks: list[asyncio.Task[None]] = []
        self._chores: list[asyncio.Task[None]] = []
        self._stopping: list[Callable[[], Awaitable[None]]] = [self._admission.close]
        try:
            nodes = replace(settings.fleet, control_plane=bool(settings.parts))
            self._fleet = FleetRunner(self.client(OWN_NODES), nodes)
        except FleetError as error:
            raise ClusterError(str(error)) from error

    def _open_store(self) -> Store:
        """What was stored, in a file that only its owner may read."""
        try:
            self._home.database.touch(mode=0o600)
            return Store(self._home.database)
        except (OSError, sqlite3.Error) as error:
            raise ClusterError(
                f"cannot read {self._home.database}: {error}; start afresh with: {self._home.command('reset')}"
            ) from error

    def client(self, user: str) -> LocalClient:
        """A client for one of the cluster's own parts."""
        return LocalClient(self.api, user)

    async def start_api(self) -> tuple[str, int]:
        """Brings the API up, and nothing that acts on what is in it; its authority's certificate and its port."""
        self._serve_definitions()
        known = (self._settings.definitions, self._settings.foreign)
        await bootstrap(self.client("system:bootstrap"), self._serve_definitions, *known)
        authority, port = await self._start_server()
        self._spawn("custom kinds", keep_running("serving custom kinds", self._follow_definitions))
        return authority, port

    async def start(self) -> Running:
        """Brings everything up; returns once the API answers."""
        authority, port = await self.start_api()

        async def account_files(namespace: str, account: str) -> dict[str, str]:
            return self._account_files(authority, namespace, account)

        self._fleet.api = ("127.0.0.1", port)
        self._fleet.account_files = account_files
        server = f"https://127.0.0.1:{port}"
        kubeconfig = self._home.write_kubeconfig(server, authority)
        first = read_fleet(self._settings.fleet)[0].name
        running = Running(os.getpid(), server, self._settings.kubernetes, str(kubeconfig), first)
        controllers = ControllerSettings(
            kinds=tuple(self._kinds), volumes=self._home.path / "volumes", root_ca=authority
        )
        self._spawn("controllers", run_controllers(self.client("system:kube-controller-manager"), controllers))
        parts = self._start_parts(server, authority)
        self._spawn("nodes", self._fleet.run())
        await self._wait_for_hooks(parts)
        self._home.announce(running)
        return running

    def _start_parts(self, server: str, authority: str) -> asyncio.Task[None]:
        def admit(account: str) -> Path:
            files = self._account_files(authority, NAMESPACE, account)
            return self._home.write_account_kubeconfig(server, account, files)

        parts = self._settings.parts
        for part in parts:
            # Pods of an earlier start are the first that the nodes start, and the server's port may be another now.
            admit(part.name)
            if part.hook is not None:
                self._write_hook_certificate()
        chore = asyncio.create_task(run_parts(self.client("system:bootstrap"), parts, admit, authority))
        self._chores.append(chore)
        return chore

    def _write_hook_certificate(self) -> None:
        folder = self._home.webhook
        folder.mkdir(mode=0o700, exist_ok=True)
        authority, _ = self._certificates()
        issued = certificates.issue(authority, NAMES[0], certificates.LOOPBACK)
        issued.write(folder / "tls.crt", folder / "tls.key")

    async def _wait_for_hooks(self, parts: asyncio.Task[None]) -> None:
        """Until webhooks answer: before that, pods would be refused. One that never does must not stop the rest."""
        ports = [part.hook.port for part in self._settings.parts if part.hook is not None]
        try:
            async with asyncio.timeout(HOOKS_IN):
                await asyncio.shield(parts)
                for port in ports:
                    await _wait_for_port(port)
        except TimeoutError:
            _log.warning("a webhook has not started after %g s; until it does, pods are refused", HOOKS_IN)

    async def serve(self, stop: asyncio.Event) -> None:
        """Returns when it is told to; ClusterError when a part has ended without which the others make no sense."""
        told = asyncio.ensure_future(stop.wait())
        done, _ = await asyncio.wait({told, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        for task in self._tasks:
            if task in done:
                error = _cause(task.exception())
                raise ClusterError(f"{task.get_name()} cannot go on: {error}") from error

    async def stop(self) -> None:
        """Takes everything down: first what runs pods, last what stores them."""
        for task in reversed([*self._tasks, *self._chores]):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for end in reversed(self._stopping):
            await end()
        self._store.close()

    def _spawn(self, name: str, part: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(part, name=name))

    async def _start_server(self) -> tuple[str, int]:
        """Serves the API over TLS; returns the authority's certificate and the port."""
        authority, certificate = self._certificates()
        metrics = Metrics(self._settings.kubernetes, self._store, self._kinds)
        subresources = make_subresources(self.api, self._fleet.kubelets, self._schemas, self._tokens)
        serving = Serving(
            self._schemas,
            self._settings.kubernetes,
            tokens=self._tokens,
            subresources=subresources,
            metrics=metrics.text,
        )
        app = make_app(self.api, serving)
        metrics.attach(app)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._stopping.append(runner.cleanup)
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
        """What a pod finds where in-cluster clients look: who it is, and whom to trust."""
        found = self._store.get("serviceaccounts", namespace, account)
        uid = found.object()["metadata"]["uid"] if found is not None else ""
        token = self._tokens.issue(namespace, account, uid, TOKEN_SECONDS)
        return {"token": token, "ca.crt": authority, "namespace": namespace}

    def _certificates(self) -> tuple[certificates.Certificate, certificates.Certificate]:
        """The authority and the server's certificate, made once and kept in the home."""
        found = [self._home.read(name) for name in ("ca.crt", "ca.key", "server.crt", "server.key")]
        if all(text is not None for text in found):
            pem = [(text or "").encode() for text in found]
            return certificates.Certificate(pem[0], pem[1]), certificates.Certificate(pem[2], pem[3])
        authority = certificates.make_authority()
        certificate = certificates.issue(authority, NAMES[0], NAMES)
        for name, pair in (("ca", authority), ("server", certificate)):
            pair.write(self._home.path / f"{name}.crt", self._home.path / f"{name}.key")
        return authority, certificate

    # -- custom resources

    def _serve_definitions(self) -> None:
        """Serves the kinds of every definition as it is now; their status says so."""
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

    async def _follow_definitions(self) -> None:
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
    """What really happened: the first of several that failed together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
