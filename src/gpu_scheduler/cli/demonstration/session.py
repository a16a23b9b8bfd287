"""Where the acts are played: a cluster, what is seen of it, the screen, and the claims that must hold."""

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
"""Seconds between two looks at what the watch has told."""

STALL_TIMEOUT = 30.0
"""When nothing has moved for so many seconds, what is waited for does not come."""

WAIT_TIMEOUT = 120.0
"""Nothing is waited for longer, in seconds."""


class ClaimError(Exception):
    """What was shown to be false."""


@dataclass
class DemoSession:
    """One cluster, watched from `begin` on."""

    client: Client
    screen: DemoScreen
    folder: Path
    """Where the ranks of jobs meet."""
    capacity: dict[str, int] = field(default_factory=dict)
    """How many GPUs every node has."""
    record: Observations = field(default_factory=Observations)
    _began: float = 0.0

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def gpus(self) -> int:
        """How many GPUs there are."""
        return sum(self.capacity.values())

    def begin(self) -> None:
        """Begins a run: what was seen before is forgotten, and time starts at zero."""
        self.record, self._began = Observations(), time.monotonic()

    def take(self, changes: Sequence[ObjectChange[PodObject]]) -> None:
        """Takes down what the watch tells."""
        for change in changes:
            self.record.add(observe_pod(change.object, self.now, gone=change.kind is ChangeKind.DELETED))

    def claim(self, holds: bool, claim: str, seen: str = "") -> None:
        """Says something that was seen to be true, or ends the demonstration because it is not."""
        if not holds:
            raise ClaimError(f"{claim.rstrip('.:')}: " + (seen or "this was not seen"))
        self.screen.claim(claim)

    async def until(self, happened: Callable[[], bool], jobs: Sequence[DemoJob] = ()) -> bool:
        """Waits for something, drawing meanwhile what there is; False when it does not come."""
        begin = self.now
        while not happened():
            if self.now - max(self.record.moved, begin) > STALL_TIMEOUT or self.now - begin > WAIT_TIMEOUT:
                return False
            self.draw(jobs)
            await asyncio.sleep(POLL_INTERVAL)
        self.draw(jobs)
        return True

    async def stays(self, so: Callable[[], bool], seconds: float, jobs: Sequence[DemoJob] = ()) -> bool:
        """Whether something stays as it is for so long."""
        end = self.now + seconds
        while so() and self.now < end:
            self.draw(jobs)
            await asyncio.sleep(POLL_INTERVAL)
        return so()

    def draw(self, jobs: Sequence[DemoJob]) -> None:
        """Shows how it stands with these jobs."""
        if jobs:
            self.screen.follow(self.record, jobs, self.capacity, self.now)

    # -- requests

    async def look(self) -> None:
        """Asks for the pods as they are now: a watch that tells nothing may also have broken."""
        for pod in (await self.client.list(PODS, NAMESPACE, type=PodObject)).items:
            self.record.add(observe_pod(pod, self.now))

    async def create(self, pods: Iterable[Json]) -> None:
        """Creates pods, one after the other."""
        for pod in pods:
            await self.client.create(PODS, pod, NAMESPACE)

    async def delete(self, *jobs: str) -> None:
        """Deletes the pods of jobs, and waits until they are gone."""
        for seen in [seen for job in jobs for seen in self.record.members(job)]:
            await self.delete_pod(seen)
        await self.until(lambda: not any(self.record.members(job) for job in jobs))

    async def delete_pod(self, seen: PodObservation) -> None:
        """Deletes a pod."""
        with suppress(NotFound):
            await self.client.delete(PODS, seen.pod, NAMESPACE, uid=seen.uid)

    async def read_log(self, pod: str) -> str:
        """What a pod has printed, as `kubectl logs` reads it."""
        return (await self.client.request("GET", PODS.path(NAMESPACE, pod, "log"))).decode(errors="replace")

    def is_running(self, pod: str) -> bool:
        """Whether a pod of this name runs."""
        seen = self.record.find(pod)
        return seen is not None and seen.state is PodState.RUNNING


@asynccontextmanager
async def watched(connection: Connection, screen: DemoScreen, folder: Path) -> AsyncIterator[DemoSession]:
    """A stage in this cluster, with its nodes known and its pods watched."""
    async with Client(connection, agent="gpu-scheduler-demo") as client:
        session = DemoSession(client, screen, folder)
        for node in (await client.list(NODES)).items:
            if gpus := int(node["status"].get("allocatable", {}).get(GPU, 0)):
                session.capacity[node["metadata"]["name"]] = gpus
        folder.mkdir()  # noqa: ASYNC240 - takes no time
        session.begin()
        informer = Informer(client, PODS, PodObject, session.take, namespace=NAMESPACE)
        watch = asyncio.create_task(informer.run())
        try:
            await informer.wait_synced()
            yield session
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
