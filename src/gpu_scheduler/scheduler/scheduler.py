"""The live scheduler: what the API shows goes into the engine, what the engine decides goes out to the API."""

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
from gpu_scheduler.scheduler.metrics import SchedulerMetrics
from gpu_scheduler.scheduler.self_check import compare
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.status.limits import Limits
from gpu_scheduler.scheduler.status.names import name_of_gang
from gpu_scheduler.scheduler.status.queue_status import report_queues
from gpu_scheduler.scheduler.status.writer import StatusWriter
from gpu_scheduler.scheduler.watcher import ClusterWatcher

SYNC_TIMEOUT = 120.0
"""How long a new leader may take to list everything, in seconds."""

MIN_CYCLE_INTERVAL = 0.005
"""The shortest time between two cycles: what comes in quick succession is decided together."""

_log = structlog.get_logger(__name__)

CLEANUP_PERIOD = 60.0
"""How often the leader looks for Placements that nobody will carry out, in seconds."""


class SteadyClock:
    """Seconds since 1970 that never jump: the wall clock is read once, from then on only time that passes counts."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return self._offset + time.monotonic()


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients whose writes do not wait for each other: a server that has enough of Events, or of binds, may say so
    without the Lease being lost."""

    commits: Client
    binds: Client
    status: Client

    @classmethod
    @asynccontextmanager
    async def open(cls, connection: Connection, in_flight: int) -> AsyncIterator[Self]:
        """Clients that are closed when the block ends."""
        async with (
            Client(connection, in_flight=8) as commits,
            Client(connection, in_flight=in_flight) as binds,
            Client(connection, in_flight=Limits().workers + RECORDERS + 1) as status,  # one tells queues
        ):
            yield cls(commits, binds, status)


async def run_scheduler(
    connection: Connection, settings: Settings, stop: asyncio.Event, asked_to_compare: asyncio.Event
) -> None:
    """Schedules until it is told to stop; when asked, compares what it goes by with what the API has."""
    async with Clients.open(connection, settings.in_flight) as clients:
        scheduler = Scheduler(clients, settings)
        try:
            await run_until(stop, scheduler.run(asked_to_compare), scheduler.end)
        finally:
            await scheduler.step_down()


class Scheduler:
    """One replica: it always watches, and decides while it holds the Lease."""

    def __init__(self, clients: Clients, settings: Settings) -> None:
        self._clients = clients
        self._settings = settings
        self._now = SteadyClock()
        self._ending = False
        self._wake = asyncio.Event()
        self._engine = Engine(settings.core)
        self._watcher = ClusterWatcher(clients.binds, settings, self._wake.set)
        self._heard: list[Event] = []
        self._metrics = SchedulerMetrics(self._engine.state, self._watcher.lags, self._now)
        candidate = Candidate(
            settings.namespace,
            settings.lease_name,
            settings.identity,
            settings.lease_duration,
            settings.renew,
        )
        self._commit_log = CommitLog(clients.commits, candidate, settings.scheduler_names, self._metrics.count_swap)
        self._intents = Intents(clients.commits, settings.namespace, self._commit_log.prove)
        self._committer = Committer(self._commit_log, self._intents, self._hear, self._is_busy)
        self._carrier = Binder(clients.binds, self._watcher.sight, self._hear, settings.in_flight)
        limits = Limits(settings.status_writes, settings.events, busy=self._is_busy)
        self._status_writer = StatusWriter(
            clients.status, self._watcher.book, self._engine.report, self._now, self._metrics, limits
        )

    async def run(self, asked_to_compare: asyncio.Event) -> None:
        """Watches, takes its turn at leading, and tells; until it is cancelled or something is wrong beyond repair."""
        health = Health("gpu-scheduler", ready=lambda: self._watcher.synced, metrics=self._metrics.text)
        async with asyncio.TaskGroup() as group, health.serving(self._settings.listen):
            # Where nobody leads, what is listed from now on is all there is to know; a standby has to catch up instead.
            leads = await self._commit_log.try_acquire()
            seen = await retry_forever(self._watcher.find_newest)
            group.create_task(self._watcher.run())
            group.create_task(self._cycle_forever())
            group.create_task(self._compare_when_asked(asked_to_compare))
            while True:
                if not leads:
                    await self._watcher.wait_synced()
                    await self._commit_log.acquire()
                    seen = await retry_forever(self._watcher.find_newest)
                leads = False
                _log.info("leader lease acquired", epoch=self._commit_log.epoch, identity=self._settings.identity)
                try:
                    await self._lead(seen)
                except* FencedError as fenced:
                    _log.warning("leader lease lost", why=str(innermost(fenced)))
                    self._metrics.fences.inc()
                finally:
                    self._engine.handle(Fenced(), self._now())
                    self._heard.clear()  # about commits of a ledger that is forgotten
                    self._status_writer.clear()
                if self._ending:
                    # Cancelled while it was fenced: a task group tells of the failure alone, before Python 3.13.
                    raise asyncio.CancelledError

    def end(self) -> None:
        """It is about to be cancelled, and does not take another turn at leading."""
        self._ending = True

    async def step_down(self) -> None:
        """Lets the next leader begin at once."""
        await self._commit_log.release()

    # -- deciding

    async def _cycle_forever(self) -> None:
        """A cycle whenever something happened or is due."""
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
        heard, self._heard = self._heard, []
        effects: list[Effect] = []
        for event in (*self._watcher.take(), *heard):
            effects += self._engine.handle(event, now)
        effects += self._engine.run_cycle(now)
        self._perform(effects)
        for pod in self._watcher.translator.take_bound():
            if self._engine.state.leading:
                self._status_writer.report_bound(pod)
        if self._engine.state.dirty:
            self._wake.set()
        self._metrics.cycle.observe(time.perf_counter() - begun)

    def _hear(self, event: Event) -> None:
        """Takes in what became of something that was sent."""
        self._heard.append(event)
        self._wake.set()

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendBind() | RaiseAttempt():
                    self._carrier.send(effect)
                case SendDelete():
                    self._status_writer.report_deleted(effect.delete, self._winner_over(effect.delete.uid))
                    self._carrier.send(effect)
                case Commit():
                    self._committer.commit(effect)
                case Release():
                    self._committer.release(effect.sequence)
                case Report():
                    self._status_writer.tell(effect)

    def _winner_over(self, uid: str) -> str:
        """The gang that a pod makes room for, if it does."""
        winner = self._engine.winner_over(uid)
        return name_of_gang(winner) if winner is not None else ""

    async def _compare_when_asked(self, asked: asyncio.Event) -> None:
        while True:
            await asked.wait()
            asked.clear()
            try:
                await self._watcher.catch_up()
                self._cycle()  # everything that was seen goes in before it is compared
                differences = await compare(self._clients.binds, self._watcher, self._engine.state)
            except ApiError as error:
                _log.warning("cannot compare", error=error.message)
                continue
            for line in differences:
                _log.error("remembered wrongly", what=line)
            _log.info("compared", differences=len(differences), pods=len(self._watcher.translator.pods))

    # -- leading

    def _is_busy(self) -> bool:
        """Whether more is to be bound than can be sent at once: what can wait makes way for it."""
        return self._carrier.behind

    async def _lead(self, newest: int) -> None:
        """Carries on what was committed, then decides, until the Lease is lost. `newest` must have been seen first."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._commit_log.keep_renewed())
            await self._see_everything(newest)
            committed = self._commit_log.committed
            commits = await self._read_promises(committed)
            self._committer = Committer(self._commit_log, self._intents, self._hear, self._is_busy)
            self._committer.adopt(committed)
            self._carrier = Binder(self._clients.binds, self._watcher.sight, self._hear, self._settings.in_flight)
            self._carrier.sent = self._metrics.observe_bind
            self._cycle()  # everything that was seen goes in before the first decision
            self._perform(self._engine.handle(TookOver(commits), self._now()))
            self._wake.set()
            group.create_task(self._committer.run())
            group.create_task(self._carrier.run())
            group.create_task(self._status_writer.run())
            state, system = self._engine.state, self._settings.namespace
            group.create_task(report_queues(self._clients.status, self._watcher.queues, state, system))
            group.create_task(self._clear_up())

    async def _see_everything(self, newest: int) -> None:
        """Waits for the caches; a leader that cannot fill them makes way for one that can."""
        try:
            async with asyncio.timeout(SYNC_TIMEOUT):
                await self._watcher.wait_passed(newest)
        except TimeoutError:
            await self._commit_log.release()
            raise FencedError(f"not everything could be listed within {SYNC_TIMEOUT:g} s") from None

    async def _read_promises(self, committed: Mapping[str, str]) -> tuple[Commit, ...]:
        """What the Lease names; what is missing was deleted by hand, unless another leads since and is done with it."""
        try:
            return await retry_forever(lambda: self._intents.read(committed))
        except MissingIntentError:
            await self._commit_log.prove()
            raise

    async def _clear_up(self) -> None:
        """Deletes what earlier leaders left, also what one that was out of breath writes only now."""
        while True:
            await retry_forever(lambda: self._intents.delete_void(self._commit_log.epoch, self._commit_log.committed))
            await asyncio.sleep(CLEANUP_PERIOD)
