"""A demonstration session: a client of one cluster, the observed pods, the screen, and the claims."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpu_scheduler.cli.demonstration.jobs import GPU, NAMESPACE, DemoJob
from gpu_scheduler.cli.demonstration.observer import Observations, PodObservation, PodState, observe_pod
from gpu_scheduler.cli.demonstration.screen import DemoScreen
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.errors import NotFound
from gpu_scheduler.k8s.informer import ChangeKind, Informer, ObjectChange
from gpu_scheduler.k8s.objects import Json, PodObject
from gpu_scheduler.k8s.resources import NODES, PODS

POLL_INTERVAL = 0.1
"""Seconds between two checks of a condition."""

STALL_TIMEOUT = 30.0
"""A condition is given up when no pod has changed for so many seconds."""

WAIT_TIMEOUT = 120.0
"""The longest wait for a condition, in seconds."""


class ClaimError(Exception):
    """A claim of the demonstration does not hold."""


@dataclass
class DemoSession:
    """One cluster, observed from `start_run` on."""

    client: Client
    screen: DemoScreen
    folder: Path
    """The folder in which the ranks of a job register."""
    capacity: dict[str, int] = field(default_factory=dict)
    """The number of GPUs of each node."""
    observed: Observations = field(default_factory=Observations)
    _started: float = 0.0

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    @property
    def gpus(self) -> int:
        """The number of GPUs of the cluster."""
        return sum(self.capacity.values())

    def start_run(self) -> None:
        """Starts a run: discards earlier observations and sets the time to zero."""
        self.observed, self._started = Observations(), time.monotonic()

    def on_changes(self, changes: Sequence[ObjectChange[PodObject]]) -> None:
        """Records changes of pods."""
        for change in changes:
            self.observed.add(observe_pod(change.object, self.now, gone=change.kind is ChangeKind.DELETED))

    def claim(self, holds: bool, claim: str, seen: str = "") -> None:
        """Prints a claim that holds; raises ClaimError for one that does not."""
        if not holds:
            raise ClaimError(f"{claim.rstrip('.:')}: " + (seen or "this was not observed"))
        self.screen.claim(claim)

    async def wait_for(self, condition: Callable[[], bool], jobs: Sequence[DemoJob] = ()) -> bool:
        """Waits for a condition and updates the screen meanwhile; False when it does not become true."""
        started = self.now
        while not condition():
            if self.now - max(self.observed.last_change, started) > STALL_TIMEOUT or self.now - started > WAIT_TIMEOUT:
                return False
            self.draw(jobs)
            await asyncio.sleep(POLL_INTERVAL)
        self.draw(jobs)
        return True

    async def holds_for(self, condition: Callable[[], bool], seconds: float, jobs: Sequence[DemoJob] = ()) -> bool:
        """Whether a condition stays true for so many seconds."""
        end = self.now + seconds
        while condition() and self.now < end:
            self.draw(jobs)
            await asyncio.sleep(POLL_INTERVAL)
        return condition()

    def draw(self, jobs: Sequence[DemoJob]) -> None:
        """Updates the status of these jobs on the screen."""
        if jobs:
            self.screen.update(self.observed, jobs, self.capacity, self.now)

    # -- requests

    async def refresh(self) -> None:
        """Lists the pods: a watch without events may also be broken."""
        for pod in (await self.client.list(PODS, NAMESPACE, type=PodObject)).items:
            self.observed.add(observe_pod(pod, self.now))

    async def create(self, pods: Iterable[Json]) -> None:
        """Creates pods, one after the other."""
        for pod in pods:
            await self.client.create(PODS, pod, NAMESPACE)

    async def delete(self, *jobs: str) -> None:
        """Deletes the pods of jobs, and waits until they no longer exist."""
        for seen in [seen for job in jobs for seen in self.observed.members(job)]:
            await self.delete_pod(seen)
        await self.wait_for(lambda: not any(self.observed.members(job) for job in jobs))

    async def delete_pod(self, seen: PodObservation) -> None:
        """Deletes a pod."""
        with suppress(NotFound):
            await self.client.delete(PODS, seen.pod, NAMESPACE, uid=seen.uid)

    async def read_log(self, pod: str) -> str:
        """The log of a pod."""
        return (await self.client.request("GET", PODS.path(NAMESPACE, pod, "log"))).decode(errors="replace")

    def is_running(self, pod: str) -> bool:
        """Whether the pod with this name runs."""
        seen = self.observed.find(pod)
        return seen is not None and seen.state is PodState.RUNNING


@asynccontextmanager
async def watched(connection: Connection, screen: DemoScreen, folder: Path) -> AsyncIterator[DemoSession]:
    """Opens a session in a cluster: reads its nodes and watches its pods."""
    async with Client(connection, agent="gpu-scheduler-demo") as client:
        session = DemoSession(client, screen, folder)
        for node in (await client.list(NODES)).items:
            if gpus := int(node["status"].get("allocatable", {}).get(GPU, 0)):
                session.capacity[node["metadata"]["name"]] = gpus
        folder.mkdir()  # noqa: ASYNC240 - fast
        session.start_run()
        informer = Informer(client, PODS, PodObject, session.on_changes, namespace=NAMESPACE)
        watch = asyncio.create_task(informer.run())
        try:
            await informer.wait_synced()
            yield session
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
