"""The running operator: whatever happens to a job or what it owns, somebody looks and does what has to be done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpu_scheduler.kube.client import Client
from gpu_scheduler.kube.connection import Connection
from gpu_scheduler.kube.dialects.options import as_dict
from gpu_scheduler.kube.discovery import find_served
from gpu_scheduler.kube.errors import ApiError, Conflict
from gpu_scheduler.kube.health import Health
from gpu_scheduler.kube.informer import Informer
from gpu_scheduler.kube.lease import Candidate
from gpu_scheduler.kube.objects import RawObject
from gpu_scheduler.kube.recorder import Recorder, refer
from gpu_scheduler.kube.resources import Resource
from gpu_scheduler.operator.actions import Plan, Tell
from gpu_scheduler.operator.carry import Carrier, TakenError
from gpu_scheduler.operator.definitions import install_definitions
from gpu_scheduler.operator.election import Election, LostError
from gpu_scheduler.operator.frameworks import KINDS, Kind
from gpu_scheduler.operator.gangs import GangApi
from gpu_scheduler.operator.jobs import OURS, BadSpecError
from gpu_scheduler.operator.metrics import Metrics
from gpu_scheduler.operator.sight import JobKey, Sight
from gpu_scheduler.operator.turns import Turns

LEASE = "gpu-scheduler-operator"
DISCOVER_EVERY = 10.0
"""How soon a kind that was installed meanwhile is noticed, in seconds."""

_WORKERS = 8
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How an operator is set up."""

    candidate: Candidate
    gang: GangApi | None
    """How gangs are made; None for not at all."""
    namespaces: tuple[str, ...] = ()
    """Where jobs are looked for; everywhere if none is named."""
    elect: bool = True
    install: bool = False
    listen: str = ":8080"


async def run_operator(connection: Connection, options: Options, stop: asyncio.Event) -> None:
    """Operates until it is told to stop."""
    async with Client(connection) as client, Client(connection, in_flight=8) as words:
        election = Election(words, options.candidate)
        operator = _Candidacy(client, words, options, election)
        work = asyncio.ensure_future(operator.run())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            operator.ending = True
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await election.release()
        if not work.cancelled():
            work.result()


class _Candidacy:
    """One replica: stands by until it leads, then works until it no longer does."""

    def __init__(self, client: Client, words: Client, options: Options, election: Election) -> None:
        self._client = client
        self._words = words
        self._options = options
        self._election = election
        self._metrics = Metrics()
        self.ending = False
        """It is about to be cancelled, and does not stand for the Lease again."""

    async def run(self) -> None:
        health = Health(LEASE, metrics=self._metrics.text)
        async with health.serving(self._options.listen) as port:
            gang = self._options.gang
            _log.info(
                "the operator is up",
                port=port,
                gangs=f"PodGroups of {gang.resource.api_version}" if gang is not None else "none",
                scheduler=gang.scheduler if gang is not None else "as pods say",
                namespaces=",".join(self._options.namespaces) or "all",
            )
            if self._options.install:
                await install_definitions(self._client)
            while True:
                await self._lead()

    async def _lead(self) -> None:
        if self._options.elect:
            await self._election.acquire()
            _log.info("leads", lease=self._options.candidate.name)
        operator = Operator(self._client, self._words, self._options, self._metrics)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(operator.run())
                if self._options.elect:
                    tasks.create_task(self._election.keep())
        except* LostError as lost:
            self._election.held = False
            _log.warning("leads no more", why=str(lost.exceptions[0]))
        if self.ending:
            # Cancelled while it lost the Lease: a task group tells of the failure alone, before Python 3.13.
            raise asyncio.CancelledError


class Operator:
    """Watches and works, beginning with a fresh look at everything."""

    def __init__(self, client: Client, words: Client, options: Options, metrics: Metrics) -> None:
        self._client = client
        self._options = options
        self._metrics = metrics
        self._turns: Turns[JobKey] = Turns()
        self._sight = Sight(client, options.namespaces, options.gang, self._turns.add)
        self._recorder = Recorder(words, time.time, metrics, instance=options.candidate.identity)
        self._kinds: dict[Resource, Kind] = {}
        self._left: set[str] = set()

    async def run(self) -> None:
        """Works until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._recorder.run())
                await self._wait_for_groups()
                await self._start(tasks, self._sight.follow_common())
                for _ in range(_WORKERS):
                    tasks.create_task(self._turns.work(self._take_turn))
                while True:
                    await self._discover(tasks)
                    await asyncio.sleep(DISCOVER_EVERY)
        finally:
            self._turns.close()

    async def _wait_for_groups(self) -> None:
        """Without PodGroups no gang could be made."""
        gang, told = self._options.gang, False
        while gang is not None:
            try:
                if (await find_served(self._client)).has(gang.resource):
                    return
                if not told:
                    _log.error("no PodGroups: install their definition, or choose --gang-scheduler-name=none",
                               api=gang.resource.api_version)  # fmt: skip
                told = True
            except ApiError as error:
                _log.warning("cannot ask what is served", error=error.message)
            await asyncio.sleep(DISCOVER_EVERY if told else 1.0)

    async def _start(self, tasks: asyncio.TaskGroup, informers: Sequence[Informer[Any]]) -> None:
        for informer in informers:
            tasks.create_task(informer.run())
        # What a job owns has been seen before the job is: else it would be made again.
        await asyncio.gather(*(informer.wait_synced() for informer in informers))

    async def _discover(self, tasks: asyncio.TaskGroup) -> None:
        """Follows the kinds of jobs that are served and not followed yet."""
        try:
            served = await find_served(self._client)
        except ApiError as error:
            _log.warning("cannot ask what is served", error=error.message)
            return
        for kind in KINDS:
            resource = kind.choose(served)
            if resource is not None and kind not in self._kinds.values():
                self._kinds[resource] = kind
                _log.info("follows", kind=resource.kind, version=resource.api_version)
                # Whoever else does this work has been seen before the first job is.
                await self._start(tasks, self._sight.follow_rivals(kind))
                await self._start(tasks, self._sight.follow_jobs(resource))

    # -- one look at one job

    async def _take_turn(self, key: JobKey) -> None:
        try:
            outcome = await self._look(key)
            self._turns.went_well(key)
        except Conflict as error:
            outcome = "conflict"  # it has changed meanwhile: what is new will be seen
            _log.debug("a job has changed meanwhile", job=f"{key.namespace}/{key.name}", error=error.message)
            self._turns.put_off(key)
        except (ApiError, TakenError) as error:
            outcome = "failed"
            _log.warning("a job has to wait", kind=key.resource.kind, job=f"{key.namespace}/{key.name}",
                         error=str(error))  # fmt: skip
            self._turns.put_off(key)
        except Exception:
            outcome = "broken"
            _log.exception("a job cannot be looked at", kind=key.resource.kind, job=f"{key.namespace}/{key.name}")
            self._turns.put_off(key)
        self._metrics.count_look(outcome)

    async def _look(self, key: JobKey) -> str:
        raw = self._sight.job(key)
        if raw is None:
            self._turns.forget(key)
            return "gone"
        if self._is_for_others(key, raw):
            return "left alone"
        now = time.time()
        plan = self._plan(key, raw, now)
        carrier = Carrier(self._client, key.resource, raw.metadata, self._options.gang, self._recorder)
        for action in plan.actions:
            if not isinstance(action, Tell):
                self._metrics.count_action(type(action).__name__)
        await carrier.carry(plan.actions)
        if plan.again is not None:
            self._turns.add_after(key, plan.again - now)
        if carrier.revision != raw.metadata.resource_version:
            await self._sight.wait_passed(key.resource, carrier.revision)
        return "acted" if plan.actions else "quiet"

    def _plan(self, key: JobKey, raw: RawObject, now: float) -> Plan:
        kind = self._kinds[key.resource]
        try:
            job = kind.decode(raw, key.resource)
        except BadSpecError as error:
            return kind.reject(key.resource.kind, raw, str(error), now)
        return kind.plan(job, self._sight.observe(raw.metadata.uid, key), now)

    def _is_for_others(self, key: JobKey, raw: RawObject) -> bool:
        """Whether somebody else manages a job; said once of each."""
        manager = as_dict(raw.spec.get("runPolicy")).get("managedBy") or ""
        rival = self._sight.rival_of(self._kinds[key.resource])
        if manager == OURS or not (manager or rival):
            self._left.discard(raw.metadata.uid)
            return False
        if raw.metadata.uid not in self._left:
            self._left.add(raw.metadata.uid)
            who = f"{manager} by its runPolicy.managedBy" if manager else f"Deployment {rival}"
            _log.info("a job is left alone", kind=key.resource.kind, job=f"{key.namespace}/{key.name}", manager=who)
            why = f"gpu-scheduler leaves this job alone: it is managed by {who}"
            self._recorder.record(refer(key.resource, raw.metadata), "Normal", "ManagedElsewhere", why)
        return True
