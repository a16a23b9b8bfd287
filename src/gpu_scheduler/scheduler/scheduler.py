"""The live scheduler: feeds the engine with what the API shows, and carries out what the engine decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import structlog

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import (
    Commit,
    Effect,
    Event,
    Fenced,
    RaiseAttempt,
    Release,
    Report,
    SendBind,
    SendDelete,
    TookOver,
)
from gpu_scheduler.gangs.contract import QUARANTINED, SETBACKS
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.errors import ApiError, innermost
from gpu_scheduler.k8s.event_recorder import WORKERS as RECORDERS
from gpu_scheduler.k8s.health import Health
from gpu_scheduler.k8s.leader_election import Candidate, FencedError
from gpu_scheduler.k8s.tasks import retry_forever, run_until
from gpu_scheduler.scheduler.commit.binder import Binder
from gpu_scheduler.scheduler.commit.commit_log import CommitLog
from gpu_scheduler.scheduler.commit.committer import Committer
from gpu_scheduler.scheduler.commit.intents import Intents, MissingIntentError
from gpu_scheduler.scheduler.commit.quarantines import encode_quarantines
from gpu_scheduler.scheduler.commit.setbacks import encode_setbacks
from gpu_scheduler.scheduler.metrics import SchedulerMetrics
from gpu_scheduler.scheduler.self_check import compare
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.status.limits import Limits
from gpu_scheduler.scheduler.status.queue_status import report_queues
from gpu_scheduler.scheduler.status.writer import StatusWriter
from gpu_scheduler.scheduler.watcher import ClusterWatcher

SYNC_TIMEOUT = 120.0
"""How long a new leader may take to list everything, in seconds."""

MIN_CYCLE_INTERVAL = 0.005
"""The shortest time between two cycles, in seconds: changes in quick succession are decided together."""

PUBLISH_PERIOD = 1.0
"""How often what only the leader knows is put into words for the commands, in seconds."""

CLEANUP_PERIOD = 60.0
"""How often the leader deletes void Placements, in seconds."""

_log = structlog.get_logger(__name__)


class SteadyClock:
    """Seconds since 1970 that never jump: reads the wall clock once and then adds the monotonic time that passed."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Returns the current time."""
        return self._offset + time.monotonic()


@dataclass(frozen=True, slots=True)
class Clients:
    """Separate clients for commits, binds and status: a 429 for Events or binds does not delay the Lease."""

    commits: Client
    binds: Client
    status: Client

    @classmethod
    @asynccontextmanager
    async def open(cls, connection: Connection, in_flight: int) -> AsyncIterator[Self]:
        """Opens the clients, and closes them when the block ends."""
        async with (
            Client(connection, in_flight=8) as commits,
            Client(connection, in_flight=in_flight) as binds,
            Client(connection, in_flight=Limits().workers + RECORDERS + 1) as status,  # one writes the status of queues
        ):
            yield cls(commits, binds, status)


async def run_scheduler(
    connection: Connection, settings: Settings, stop: asyncio.Event, check_requested: asyncio.Event
) -> None:
    """Runs a replica until `stop` is set; compares its caches with the API whenever `check_requested` is set."""
    async with Clients.open(connection, settings.in_flight) as clients:
        scheduler = Scheduler(clients, settings)
        try:
            await run_until(stop, scheduler.run(check_requested), scheduler.end)
        finally:
            await scheduler.step_down()


class Scheduler:
    """One replica: always watches, and decides while it holds the leader Lease."""

    def __init__(self, clients: Clients, settings: Settings) -> None:
        self._clients = clients
        self._settings = settings
        self._now = SteadyClock()
        self._ending = False
        self._wake = asyncio.Event()
        self._engine = Engine(settings.core)
        self._watcher = ClusterWatcher(clients.binds, settings, self._wake.set)
        self._outcomes: list[Event] = []
        self._metrics = SchedulerMetrics(self._engine.state, self._watcher.lags, self._now)
        candidate = Candidate(
            settings.namespace,
            settings.lease_name,
            settings.identity,
            settings.lease_duration,
            settings.renew,
        )
        self._commit_log = CommitLog(
            clients.commits,
            candidate,
            settings.scheduler_names,
            self._metrics.count_swap,
            self._publish,
        )
        self._publish_after = 0.0
        self._published: dict[str, str] = {}
        self._intents = Intents(clients.commits, settings.namespace, self._commit_log.prove)
        self._committer = Committer(self._commit_log, self._intents, self._on_outcome, self._is_busy)
        self._binder = Binder(clients.binds, self._watcher, self._on_outcome, settings.in_flight)
        limits = Limits(settings.status_writes, settings.events, busy=self._is_busy)
        self._status_writer = StatusWriter(
            clients.status, self._watcher.registry, self._engine.report_to_namespace, self._now, self._metrics, limits
        )

    async def run(self, check_requested: asyncio.Event) -> None:
        """Watches, and leads whenever it acquires the Lease, until it is cancelled or meets a fatal error."""
        health = Health("gpu-scheduler", ready=lambda: self._watcher.synced, metrics=self._metrics.text)
        async with asyncio.TaskGroup() as group, health.serving(self._settings.listen):
            # Without another leader, the lists that follow show everything. A standby has to catch up instead.
            leads = await self._commit_log.try_acquire()
            newest = await retry_forever(self._watcher.newest_revision)
            group.create_task(self._watcher.run())
            group.create_task(self._cycle_forever())
            group.create_task(self._run_self_checks(check_requested))
            while True:
                if not leads:
                    await self._watcher.wait_synced()
                    await self._commit_log.acquire()
                    newest = await retry_forever(self._watcher.newest_revision)
                leads = False
                _log.info("leader lease acquired", epoch=self._commit_log.epoch, identity=self._settings.identity)
                try:
                    await self._lead(newest)
                except* FencedError as fenced:
                    _log.warning("leader lease lost", why=str(innermost(fenced)))
                    self._metrics.fences.inc()
                finally:
                    self._engine.handle(Fenced(), self._now())
                    self._outcomes.clear()  # they concern commits of the former ledger
                    self._status_writer.clear()
                if self._ending:
                    # Cancelled while it was fenced: before Python 3.13 a task group raises the failure only.
                    raise asyncio.CancelledError

    def end(self) -> None:
        """Prevents another term: the replica is about to be cancelled."""
        self._ending = True

    async def step_down(self) -> None:
        """Releases the Lease, so that the next leader can start at once."""
        await self._commit_log.release()

    # -- deciding

    async def _cycle_forever(self) -> None:
        """Runs a cycle whenever something changed or a timer is due."""
        while True:
            due = self._engine.next_timer()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._now())):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self._cycle()
            await asyncio.sleep(MIN_CYCLE_INTERVAL)

    def _cycle(self) -> None:
        begun = time.perf_counter()
        now = self._now()
        outcomes, self._outcomes = self._outcomes, []
        effects: list[Effect] = []
        for event in (*self._watcher.take_events(), *outcomes):
            effects += self._engine.handle(event, now)
        effects += self._engine.run_cycle(now)
        self._perform(effects)
        for pod in self._watcher.translator.take_bound_pods():
            if self._engine.leading:
                self._status_writer.report_bound(pod)
        if self._engine.has_changes:
            self._wake.set()
        self._metrics.cycle.observe(time.perf_counter() - begun)

    def _on_outcome(self, event: Event) -> None:
        """Queues the outcome of a commit, bind or delete for the next cycle."""
        self._outcomes.append(event)
        self._wake.set()

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendBind() | RaiseAttempt():
                    self._binder.send(effect)
                case SendDelete():
                    self._status_writer.report_deleted(effect.delete, self._engine.winner_over(effect.delete.uid))
                    if not effect.failures:
                        self._metrics.count_eviction(effect.delete)
                    self._binder.send(effect)
                case Commit():
                    self._committer.commit(effect)
                case Release():
                    self._committer.release(effect.sequence)
                case Report():
                    self._status_writer.report_status(effect)

    async def _run_self_checks(self, requested: asyncio.Event) -> None:
        while True:
            await requested.wait()
            requested.clear()
            try:
                await self._watcher.catch_up()
                self._cycle()  # the engine sees everything before it is compared
                differences = await compare(self._clients.binds, self._watcher, self._engine)
            except ApiError as error:
                _log.warning("self-check failed", error=error.message)
                continue
            for line in differences:
                _log.error("self-check found a difference", what=line)
            _log.info("self-check finished", differences=len(differences), pods=len(self._watcher.translator.pods))

    # -- leading

    def _publish(self) -> dict[str, str]:
        """The annotations of the Lease that tell the commands what only the leader knows.

        A busy leader writes the Lease many times a second; this is computed once a second.
        """
        if (now := self._now()) >= self._publish_after:
            self._publish_after = now + PUBLISH_PERIOD
            self._published = {
                QUARANTINED: encode_quarantines(self._engine.quarantines()),
                SETBACKS: encode_setbacks(self._engine.setbacks(now)),
            }
        return self._published

    def _is_busy(self) -> bool:
        """Whether binds are waiting to be sent: less urgent writes then make way."""
        return self._binder.has_backlog

    async def _lead(self, newest: int) -> None:
        """Takes over what is committed, then decides, until the Lease is lost. The caches must reach `newest` first."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._commit_log.keep_renewed())
            await self._sync_caches(newest)
            committed = self._commit_log.committed
            commits = await self._read_committed(committed)
            self._committer = Committer(self._commit_log, self._intents, self._on_outcome, self._is_busy)
            self._committer.adopt(committed)
            self._binder = Binder(self._clients.binds, self._watcher, self._on_outcome, self._settings.in_flight)
            self._binder.observe_bind = self._metrics.observe_bind
            self._cycle()  # the engine sees everything before its first decision
            self._perform(self._engine.handle(TookOver(commits), self._now()))
            self._wake.set()
            group.create_task(self._committer.run())
            group.create_task(self._binder.run())
            group.create_task(self._status_writer.run())
            queues = self._watcher.queues
            group.create_task(report_queues(self._clients.status, queues, self._engine, self._settings))
            group.create_task(self._delete_void_placements())

    async def _sync_caches(self, newest: int) -> None:
        """Waits for the caches; a leader that cannot fill them releases the Lease."""
        try:
            async with asyncio.timeout(SYNC_TIMEOUT):
                await self._watcher.wait_for_revision(newest)
        except TimeoutError:
            await self._commit_log.release()
            raise FencedError(f"the caches were not synced within {SYNC_TIMEOUT:g} s") from None

    async def _read_committed(self, committed: Mapping[str, str]) -> tuple[Commit, ...]:
        """Reads the committed intents. A missing one was deleted by hand, unless a later leader has finished it."""
        try:
            return await retry_forever(lambda: self._intents.read(committed))
        except MissingIntentError:
            await self._commit_log.prove()
            raise

    async def _delete_void_placements(self) -> None:
        """Deletes void Placements of former leaders, also those that a stalled former leader writes late."""
        while True:
            await retry_forever(lambda: self._intents.delete_void(self._commit_log.epoch, self._commit_log.committed))
            await asyncio.sleep(CLEANUP_PERIOD)
