"""The running operator: whatever happens to a job or what it owns, somebody looks and does what has to be done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpu_scheduler.base.text import without_amounts
from gpu_scheduler.gangs.options import as_dict
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.discovery import find_served
from gpu_scheduler.k8s.errors import ApiError, Conflict, Undecided
from gpu_scheduler.k8s.event_recorder import WORKERS as TELLERS
from gpu_scheduler.k8s.event_recorder import EventRecorder, reference_to
from gpu_scheduler.k8s.health import Health
from gpu_scheduler.k8s.informer import Informer
from gpu_scheduler.k8s.leader_election import Candidate, FencedError, LeaderElection, LeaseObject
from gpu_scheduler.k8s.objects import RawObject
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.k8s.tasks import run_until
from gpu_scheduler.k8s.workqueue import WorkQueue
from gpu_scheduler.operator.actions import Plan, Tell
from gpu_scheduler.operator.carry import AT_ONCE, ActionExecutor, TakenError
from gpu_scheduler.operator.definitions import install_definitions
from gpu_scheduler.operator.frameworks import JOB_CONTROLLERS, JobController
from gpu_scheduler.operator.jobs import OURS, BadSpecError
from gpu_scheduler.operator.metrics import Metrics
from gpu_scheduler.operator.pod_groups import PodGroupApi
from gpu_scheduler.operator.sight import JobCache, JobKey

LEASE = "gpu-scheduler-operator"
DISCOVER_EVERY = 10.0
"""How soon a kind that was installed meanwhile is noticed, in seconds."""

_CATCH_UP = 30.0
_WORKERS = 8
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How an operator is set up."""

    candidate: Candidate
    gang: PodGroupApi | None
    """How gangs are made; None for not at all."""
    namespaces: tuple[str, ...] = ()
    """Where jobs are looked for; everywhere if none is named."""
    elect: bool = True
    install: bool = False
    listen: str = ":8080"


async def run_operator(connection: Connection, options: Options, stop: asyncio.Event) -> None:
    """Operates until it is told to stop."""
    async with (
        Client(connection, in_flight=_WORKERS * AT_ONCE) as client,
        Client(connection, in_flight=TELLERS + 1) as words,  # one keeps the Lease, whatever Events wait for
    ):
        election = LeaderElection(words, options.candidate, LeaseObject)
        candidacy = _Candidacy(client, words, options, election)
        # It says that it is not ready from the first moment of its end to the last.
        health = Health(LEASE, ready=lambda: candidacy.ready and not stop.is_set(), metrics=candidacy.metrics.text)
        async with health.serving(options.listen) as port:
            _log_start(options, port)
            try:
                await run_until(stop, candidacy.run(), candidacy.end)
            finally:
                await election.release()


def _log_start(options: Options, port: int) -> None:
    gang = options.gang
    _log.info(
        "the operator is up",
        port=port,
        gangs=f"PodGroups of {gang.resource.api_version}" if gang is not None else "none",
        scheduler=gang.scheduler if gang is not None else "as pods say",
        namespaces=",".join(options.namespaces) or "all",
    )


class _Candidacy:
    """One replica: follows everything, works once it leads, and begins anew when it no longer does."""

    def __init__(self, client: Client, words: Client, options: Options, election: LeaderElection[LeaseObject]) -> None:
        self._client = client
        self._words = words
        self._options = options
        self._election = election
        self._operator: Operator | None = None
        self.metrics = Metrics()
        self._ending = False

    @property
    def ready(self) -> bool:
        """Whether it works, or could take over at once."""
        return self._operator is not None and self._operator.synced

    def end(self) -> None:
        """It is about to be cancelled, and does not stand for the Lease again."""
        self._ending = True

    async def run(self) -> None:
        if self._options.install:
            await install_definitions(self._client, self._options.gang)
        while True:
            await self._stand()

    async def _stand(self) -> None:
        self._operator = operator = Operator(self._client, self._words, self._options, self.metrics)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(operator.run())
                if self._options.elect:
                    lease = await self._election.acquire()
                    _log.info("leader lease acquired", lease=self._options.candidate.name, epoch=lease.epoch)
                    tasks.create_task(self._election.keep_renewed(deadline=self._options.candidate.duration))
                    operator.begin(lease.metadata.resource_version)
                else:
                    operator.begin("")
        except* FencedError as fenced:
            _log.warning("leader lease lost", why=str(fenced.exceptions[0]))
        if self._ending:
            # Cancelled while it lost the Lease: a task group tells of the failure alone, before Python 3.13.
            raise asyncio.CancelledError


class Operator:
    """Watches, and works from when it is told to begin."""

    def __init__(self, client: Client, words: Client, options: Options, metrics: Metrics) -> None:
        self._client = client
        self._options = options
        self._metrics = metrics
        self._queue: WorkQueue[JobKey] = WorkQueue(_WORKERS, lambda key: key.namespace)
        self._sight = JobCache(client, options.namespaces, options.gang, self._queue.add)
        self._recorder = EventRecorder(
            words, time.time, metrics, instance=options.candidate.identity, aggregate_by=without_amounts
        )
        self._kinds: dict[Resource, JobController] = {}
        self._left: set[str] = set()
        self._informers: list[Informer[Any]] = []
        self._begun = asyncio.Event()
        self._behind = ""
        self.synced = False
        """Whether everything that was served at the start has been seen."""

    async def run(self) -> None:
        """Follows what there is until it is cancelled, and works from when it may."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._recorder.run())
                await self._wait_for_groups()
                await self._start(tasks, self._sight.follow_common())
                tasks.create_task(self._work())
                while True:
                    self.synced = await self._discover(tasks) or self.synced
                    await asyncio.sleep(DISCOVER_EVERY)
        finally:
            self._queue.clear()

    def begin(self, revision: str) -> None:
        """Lets it work, once it has seen whatever was written up to a revision; at once if there is none."""
        self._behind = revision
        self._begun.set()

    async def _work(self) -> None:
        await self._begun.wait()
        if self._behind.isdecimal():
            await self._catch_up(int(self._behind))
        await self._queue.run(self._process)

    async def _catch_up(self, revision: int) -> None:
        """What the last leader did must not be done again because it has not been seen yet."""
        try:
            async with asyncio.timeout(_CATCH_UP):
                await asyncio.gather(*(informer.wait_for_revision(revision) for informer in self._informers))
        except TimeoutError:
            # One kind that cannot be read, such as one whose definition is gone, must not keep all others waiting.
            silent = {one.resource.plural for one in self._informers if one.revision < revision}
            _log.warning("begins without having seen everything", resources=",".join(sorted(silent)))

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
        self._informers += informers
        for informer in informers:
            tasks.create_task(informer.run())
        # What a job owns has been seen before the job is: else it would be made again.
        await asyncio.gather(*(informer.wait_synced() for informer in informers))

    async def _discover(self, tasks: asyncio.TaskGroup) -> bool:
        """Follows the kinds of jobs that are served and not followed yet; whether it could be asked which those are."""
        try:
            served = await find_served(self._client)
        except ApiError as error:
            _log.warning("cannot ask what is served", error=error.message)
            return False
        for kind in JOB_CONTROLLERS:
            resource = kind.choose_version(served)
            if resource is not None and kind not in self._kinds.values():
                self._kinds[resource] = kind
                _log.info("follows", kind=resource.kind, version=resource.api_version)
                # Whoever else does this work has been seen before the first job is.
                await self._start(tasks, self._sight.follow_rivals(kind))
                await self._start(tasks, self._sight.follow_jobs(resource))
        return True

    # -- one look at one job

    async def _process(self, key: JobKey) -> None:
        try:
            outcome = await self._look(key)
            self._queue.forget(key)
        except Conflict as error:
            outcome = "conflict"  # it has changed meanwhile: what is new will be seen
            _log.debug("a job has changed meanwhile", job=f"{key.namespace}/{key.name}", error=error.message)
            self._queue.add_rate_limited(key)
        except (ApiError, TakenError) as error:
            outcome = "failed"
            _log.warning("a job has to wait", kind=key.resource.kind, job=f"{key.namespace}/{key.name}",
                         error=str(error))  # fmt: skip
            self._queue.add_rate_limited(key)
        except Exception:
            outcome = "broken"
            _log.exception("a job cannot be looked at", kind=key.resource.kind, job=f"{key.namespace}/{key.name}")
            self._queue.add_rate_limited(key)
        self._metrics.count_look(outcome)

    async def _look(self, key: JobKey) -> str:
        raw = self._sight.job(key)
        if raw is None:
            self._queue.discard(key)
            return "gone"
        if self._is_for_others(key, raw):
            return "left alone"
        now = time.time()
        plan = self._plan(key, raw, now)
        carrier = ActionExecutor(self._client, key.resource, raw.metadata, self._options.gang, self._recorder)
        for action in plan.actions:
            if not isinstance(action, Tell):
                self._metrics.count_action(type(action).__name__)
        await carrier.carry(plan.actions)
        if plan.again is not None:
            self._queue.add_after(key, plan.again - now)
        if carrier.revision != raw.metadata.resource_version:
            await self._wait_seen(key, carrier.revision)
        return "acted" if plan.actions else "quiet"

    async def _wait_seen(self, key: JobKey, revision: str) -> None:
        """A job is not looked at again before what was written to it is seen; nor is that waited for without end."""
        try:
            async with asyncio.timeout(_CATCH_UP):
                await self._sight.wait_for_revision(key, revision)
        except TimeoutError:
            raise Undecided(0, "", f"what was written to it was not seen within {_CATCH_UP:g} s") from None

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
            self._recorder.record(reference_to(key.resource, raw.metadata), "Normal", "ManagedElsewhere", why)
        return True
