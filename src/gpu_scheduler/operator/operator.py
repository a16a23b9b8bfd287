"""JobOperator: watches jobs and what they own, and reconciles a job whenever one of them changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gpu_scheduler.base.text import without_amounts
from gpu_scheduler.gangs.contract import SERVES
from gpu_scheduler.gangs.options import as_dict
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.discovery import find_served
from gpu_scheduler.k8s.errors import ApiError, Conflict, Undecided
from gpu_scheduler.k8s.event_recorder import WORKERS as EVENT_WORKERS
from gpu_scheduler.k8s.event_recorder import EventRecorder, reference_to
from gpu_scheduler.k8s.health import Health
from gpu_scheduler.k8s.informer import Informer
from gpu_scheduler.k8s.leader_election import Candidate, FencedError, LeaderElection, LeaseObject
from gpu_scheduler.k8s.objects import Object, RawObject
from gpu_scheduler.k8s.resources import LEASES, Resource
from gpu_scheduler.k8s.tasks import run_until
from gpu_scheduler.k8s.workqueue import WorkQueue
from gpu_scheduler.operator.actions import JobPlan, RecordEvent
from gpu_scheduler.operator.definitions import install_definitions
from gpu_scheduler.operator.executor import MAX_CONCURRENT, ActionExecutor, NameTakenError
from gpu_scheduler.operator.frameworks import FRAMEWORKS, JobFramework
from gpu_scheduler.operator.job_cache import JobCache, JobKey
from gpu_scheduler.operator.managed_job import MANAGED_BY, BadSpecError
from gpu_scheduler.operator.metrics import OperatorMetrics
from gpu_scheduler.operator.pod_groups import PodGroupApi

LEASE = "gpu-scheduler-operator"
DISCOVERY_PERIOD = 10.0
"""How often the operator looks for newly installed kinds, in seconds."""

_CATCH_UP_TIMEOUT = 30.0
_WORKERS = 8
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """The configuration of an operator."""

    candidate: Candidate
    groups: PodGroupApi | None
    """How PodGroups are created; None if the operator creates none."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose jobs it runs; all if none is named."""
    elect: bool = True
    """Whether replicas elect a leader."""
    install: bool = False
    """Whether missing CustomResourceDefinitions are installed."""
    listen: str = ":8080"
    """The address of health checks and metrics."""
    scheduler_lease: str = ""
    """The Lease of our scheduler, in the same namespace: it lists the scheduler names that are served."""


async def run_operator(connection: Connection, options: OperatorOptions, stop: asyncio.Event) -> None:
    """Runs the operator until `stop` is set."""
    async with (
        Client(connection, in_flight=_WORKERS * MAX_CONCURRENT) as client,
        Client(connection, in_flight=EVENT_WORKERS + 1) as event_client,  # one more for the Lease
    ):
        election = LeaderElection(event_client, options.candidate, LeaseObject)
        replica = _Replica(client, event_client, options, election)
        # Not ready from the beginning of the shutdown to its end.
        health = Health(LEASE, ready=lambda: replica.ready and not stop.is_set(), metrics=replica.metrics.text)
        async with health.serving(options.listen) as port:
            _log_start(options, port)
            try:
                await run_until(stop, replica.run(), replica.end)
            finally:
                await election.release()


def _log_start(options: OperatorOptions, port: int) -> None:
    groups = options.groups
    _log.info(
        "operator started",
        port=port,
        gangs=f"PodGroups of {groups.resource.api_version}" if groups is not None else "none",
        scheduler=groups.scheduler if groups is not None else "as in the templates",
        namespaces=",".join(options.namespaces) or "all",
    )


class _Replica:
    """One replica: watches everything, reconciles while it is the leader, and starts afresh when it loses the Lease."""

    def __init__(
        self, client: Client, event_client: Client, options: OperatorOptions, election: LeaderElection[LeaseObject]
    ) -> None:
        self._client = client
        self._event_client = event_client
        self._options = options
        self._election = election
        self._operator: JobOperator | None = None
        self.metrics = OperatorMetrics()
        self._ending = False

    @property
    def ready(self) -> bool:
        """Whether it is the leader, or could take over at once."""
        return self._operator is not None and self._operator.synced

    def end(self) -> None:
        """Marks that it is about to be cancelled and must not run for leader again."""
        self._ending = True

    async def run(self) -> None:
        if self._options.install:
            await install_definitions(self._client, self._options.groups)
        while True:
            await self._run_term()

    async def _run_term(self) -> None:
        self._operator = operator = JobOperator(self._client, self._event_client, self._options, self.metrics)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(operator.run())
                if self._options.elect:
                    lease = await self._election.acquire()
                    _log.info("leader lease acquired", lease=self._options.candidate.name, epoch=lease.epoch)
                    tasks.create_task(self._election.keep_renewed(deadline=self._options.candidate.duration))
                    operator.start_reconciling(lease.metadata.resource_version)
                else:
                    operator.start_reconciling("")
        except* FencedError as fenced:
            _log.warning("leader lease lost", why=str(fenced.exceptions[0]))
        if self._ending:
            # Cancelled while it lost the Lease: before Python 3.13 a task group reports the failure only.
            raise asyncio.CancelledError


class JobOperator:
    """Watches from the start, and reconciles once `start_reconciling` has been called."""

    def __init__(
        self, client: Client, event_client: Client, options: OperatorOptions, metrics: OperatorMetrics
    ) -> None:
        self._client = client
        self._options = options
        self._metrics = metrics
        self._queue: WorkQueue[JobKey] = WorkQueue(_WORKERS, lambda key: key.namespace)
        self._cache = JobCache(client, options.namespaces, options.groups, self._queue.add)
        self._recorder = EventRecorder(
            event_client, time.time, metrics, instance=options.candidate.identity, aggregate_by=without_amounts
        )
        self._frameworks: dict[Resource, JobFramework] = {}
        self._managed_elsewhere: set[str] = set()
        self._informers: list[Informer[Any]] = []
        self._started = asyncio.Event()
        self._revision = ""
        self.synced = False
        """Whether the caches of all kinds that were served at the start are filled."""

    async def run(self) -> None:
        """Watches until it is cancelled, and reconciles once it may."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._recorder.run())
                await self._wait_for_groups()
                await self._start(tasks, self._cache.watch_common())
                tasks.create_task(self._reconcile_jobs())
                while True:
                    await self._read_served_names()
                    self.synced = await self._discover(tasks) or self.synced
                    await asyncio.sleep(DISCOVERY_PERIOD)
        finally:
            self._queue.clear()

    def start_reconciling(self, revision: str) -> None:
        """Allows reconciliation once the caches have reached a revision; at once for ""."""
        self._revision = revision
        self._started.set()

    async def _reconcile_jobs(self) -> None:
        await self._started.wait()
        if self._revision.isdecimal():
            await self._catch_up(int(self._revision))
        await self._queue.run(self._process)

    async def _catch_up(self, revision: int) -> None:
        """Waits until the caches contain all writes of the previous leader."""
        try:
            async with asyncio.timeout(_CATCH_UP_TIMEOUT):
                await asyncio.gather(*(informer.wait_for_revision(revision) for informer in self._informers))
        except TimeoutError:
            # One kind that cannot be read, such as one whose definition was deleted, must not block all others.
            behind = {one.resource.plural for one in self._informers if one.revision < revision}
            _log.warning("reconciling with stale caches", resources=",".join(sorted(behind)))

    async def _wait_for_groups(self) -> None:
        """Waits until the API server serves PodGroups."""
        groups, logged = self._options.groups, False
        while groups is not None:
            try:
                if (await find_served(self._client)).has(groups.resource):
                    return
                if not logged:
                    _log.error("PodGroups are not served: install their definition, or set --gang-scheduler-name=none",
                               api=groups.resource.api_version)  # fmt: skip
                logged = True
            except ApiError as error:
                _log.warning("discovery failed, retrying", error=error.message)
            await asyncio.sleep(DISCOVERY_PERIOD if logged else 1.0)

    async def _read_served_names(self) -> None:
        """Reads from the scheduler's Lease which scheduler names it serves; keeps the last ones if that fails."""
        if not self._options.scheduler_lease:
            return
        try:
            lease = await self._client.get(
                LEASES, self._options.scheduler_lease, self._options.candidate.namespace, type=Object
            )
        except ApiError as error:
            _log.debug("reading the scheduler's lease failed", error=error.message)
            return
        names = (lease.metadata.annotations or {}).get(SERVES, "")
        self._cache.served_names = frozenset(names.split(",")) - {""}

    async def _start(self, tasks: asyncio.TaskGroup, informers: Sequence[Informer[Any]]) -> None:
        self._informers += informers
        for informer in informers:
            tasks.create_task(informer.run())
        # The cache of what a job owns is filled before that of jobs: otherwise it would be created again.
        await asyncio.gather(*(informer.wait_synced() for informer in informers))

    async def _discover(self, tasks: asyncio.TaskGroup) -> bool:
        """Starts watching the job kinds that are newly served; returns whether discovery succeeded."""
        try:
            served = await find_served(self._client)
        except ApiError as error:
            _log.warning("discovery failed, retrying", error=error.message)
            return False
        for framework in FRAMEWORKS:
            resource = framework.choose_version(served)
            if resource is not None and framework not in self._frameworks.values():
                self._frameworks[resource] = framework
                _log.info("watching jobs", kind=resource.kind, version=resource.api_version)
                # Competing controllers are known before the first job is.
                await self._start(tasks, self._cache.watch_competitors(framework))
                await self._start(tasks, self._cache.watch_jobs(resource))
        return True

    # -- reconciliation of one job

    async def _process(self, key: JobKey) -> None:
        try:
            outcome = await self._reconcile(key)
            self._queue.forget(key)
        except Conflict as error:
            outcome = "conflict"  # the job has changed: its new version will be reconciled
            _log.debug("conflict, retrying", job=f"{key.namespace}/{key.name}", error=error.message)
            self._queue.add_rate_limited(key)
        except (ApiError, NameTakenError) as error:
            outcome = "failed"
            _log.warning("reconciliation failed, retrying", kind=key.resource.kind, job=f"{key.namespace}/{key.name}",
                         error=str(error))  # fmt: skip
            self._queue.add_rate_limited(key)
        except Exception:
            outcome = "broken"
            _log.exception("reconciliation failed, retrying", kind=key.resource.kind, job=f"{key.namespace}/{key.name}")
            self._queue.add_rate_limited(key)
        self._metrics.count_reconcile(outcome)

    async def _reconcile(self, key: JobKey) -> str:
        raw = self._cache.get_job(key)
        if raw is None:
            self._queue.discard(key)
            return "gone"
        if self._is_managed_elsewhere(key, raw):
            return "left alone"
        now = time.time()
        plan = self._plan(key, raw, now)
        executor = ActionExecutor(self._client, key.resource, raw.metadata, self._options.groups, self._recorder)
        for action in plan.actions:
            if not isinstance(action, RecordEvent):
                self._metrics.count_action(type(action).__name__)
        await executor.execute(plan.actions)
        if plan.requeue_at is not None:
            self._queue.add_after(key, plan.requeue_at - now)
        if executor.resource_version != raw.metadata.resource_version:
            await self._wait_seen(key, executor.resource_version)
        return "acted" if plan.actions else "quiet"

    async def _wait_seen(self, key: JobKey, revision: str) -> None:
        """Waits until the cache contains the last write to the job, up to a timeout."""
        try:
            async with asyncio.timeout(_CATCH_UP_TIMEOUT):
                await self._cache.wait_for_revision(key, revision)
        except TimeoutError:
            raise Undecided(
                0, "", f"the cache did not receive the last write to the job within {_CATCH_UP_TIMEOUT:g} s"
            ) from None

    def _plan(self, key: JobKey, raw: RawObject, now: float) -> JobPlan:
        framework = self._frameworks[key.resource]
        try:
            job = framework.decode(raw, key.resource)
        except BadSpecError as error:
            return framework.reject(key.resource.kind, raw, str(error), now)
        return framework.plan(job, self._cache.observe(raw.metadata.uid, key), now)

    def _is_managed_elsewhere(self, key: JobKey, raw: RawObject) -> bool:
        """Returns whether another controller manages a job; records one Event per job."""
        manager = as_dict(raw.spec.get("runPolicy")).get("managedBy") or ""
        competitor = self._cache.competitor_of(self._frameworks[key.resource])
        if manager == MANAGED_BY or not (manager or competitor):
            self._managed_elsewhere.discard(raw.metadata.uid)
            return False
        if raw.metadata.uid not in self._managed_elsewhere:
            self._managed_elsewhere.add(raw.metadata.uid)
            who = f"{manager} (spec.runPolicy.managedBy)" if manager else f"Deployment {competitor}"
            _log.info(
                "job is managed elsewhere", kind=key.resource.kind, job=f"{key.namespace}/{key.name}", manager=who
            )
            why = f"gpu-scheduler leaves this job to {who}"
            self._recorder.record(reference_to(key.resource, raw.metadata), "Normal", "ManagedElsewhere", why)
        return True
