"""A writer with a real registry and a real API to write to, for tests that look at what was written."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from embedded_kube.registry.kinds import ServedKind
from embedded_kube.subresources.binding import bind
from gpu_scheduler.core.cycle.report import GangReport
from gpu_scheduler.core.events import Report
from gpu_scheduler.core.lifecycle import Phase, Status
from gpu_scheduler.core.model import Gang, GangKey
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from gpu_scheduler.gangs.dialects import GangContext
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.objects import Json, PodObject, RawObject
from gpu_scheduler.k8s.resources import EVENTS, PODS, Resource
from gpu_scheduler.scheduler.status.limits import Limits
from gpu_scheduler.scheduler.status.writer import StatusWriter
from tests.embedded_kube.servers import ApiClient, api_server, pod
from tests.unit.k8s.scripted_api import written

TIMEOUT = 60.0
GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
DIALECT = "scheduler-plugins"
QUICK = Limits(writes=10_000, events=10_000, settle=0.01, again=30.0, repeat=1800.0)


class Numbers:
    """Counts what the writer does."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self.waits: list[float] = []

    def count_dropped_event(self, why: str) -> None:
        self.dropped[why] += 1

    def count_status_write(self, outcome: str) -> None:
        self.writes[outcome] += 1

    def observe_wait(self, seconds: float) -> None:
        self.waits.append(seconds)


def status(phase: Phase = Phase.WAITING, *refusals: Refusal, **about: Any) -> Status:
    """A status; a waiting gang is paused unless another reason is given."""
    counts = {"minimum": 2, "waiting": 2, "running": 0, "succeeded": 0, "failed": 0} | about
    reasons = refusals or ((Refusal(Reason.PAUSED),) if phase is Phase.WAITING else ())
    return Status(phase, **counts, refusal=Unplaceable(reasons, 2, 0) if reasons else None)


def missing(there: int, minimum: int = 8) -> Status:
    """A gang of which so many pods exist."""
    refusal = Refusal(Reason.MEMBERS_MISSING, short_by=minimum - there)
    return status(Phase.GATHERING, refusal, minimum=minimum, waiting=there)


async def until(holds: Callable[[], Any]) -> Any:
    """Waits until something holds; what has to be awaited is asked again and again."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            answer = holds()
            answer = await answer if asyncio.iscoroutine(answer) else answer
            if answer:
                return answer
            await asyncio.sleep(0.01)


class WriterFixture:
    """A writer at work. Time passes only when the test says so, but for the short time in which things settle."""

    def __init__(
        self,
        client: Client,
        limits: Limits,
        server: ApiClient | None = None,
        dialect: str = DIALECT,
        groups: Resource = GROUPS,
    ) -> None:
        self.client = client
        self.dialect = dialect
        self.groups = groups
        self.server = server
        self.now = 1_700_000_000.0
        self.numbers = Numbers()
        self.refusal: Unplaceable | None = None
        self.reported: dict[GangKey, Status] = {}
        self.report: Callable[[GangKey, float], GangReport | None] = self.last_report
        self.registry = GangRegistry(GangContext(frozenset({"gpu-scheduler"}), {dialect: groups}))
        self.writer = StatusWriter(client, self.registry, self._report, lambda: self.now, self.numbers, limits)

    def _report(self, key: GangKey, now: float) -> GangReport | None:
        return self.report(key, now)

    def last_report(self, key: GangKey, _now: float) -> GangReport | None:
        """The last status that was reported, with the refusal of now where the test sets one."""
        told = self.reported.get(key)
        if told is None:
            return None
        ours = [p for p in self.registry.members_of(key) if p.spec.scheduler_name == "gpu-scheduler"]
        told = replace(told, refusal=self.refusal or told.refusal)
        return GangReport(key, told, Gang(key), waiting_uids=frozenset(p.metadata.uid for p in ours))

    def report_status(self, key: GangKey, told: Status) -> None:
        self.reported[key] = told
        self.writer.report_status(Report(key, told))

    async def add_group(self, name: str = "train") -> GangKey:
        """A PodGroup, in the API and in the registry."""
        body = written(self.groups, name, spec={})
        made = await self.client.create(self.groups, body, "default", type=RawObject)
        self.registry.on_object_changed(self.dialect, made)
        return GangKey(self.dialect, "default", name)

    async def add_pod(self, name: str, group: str = "train", **spec: Any) -> PodObject:
        """A member, in the API and in the registry."""
        body = pod(name, **{"schedulerName": "gpu-scheduler", **spec})
        if group:
            body["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
        made = await self.client.create(PODS, body, "default", type=PodObject)
        self.registry.on_pod_changed(made)
        return made

    def bind(self, name: str, node: str) -> None:
        """Puts a pod on a node, unseen by the registry."""
        assert self.server is not None
        bind(
            self.server.registry,
            "default",
            name,
            {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}},
        )

    async def refresh(self, name: str) -> PodObject:
        """Lets the registry see a pod as it is now."""
        found = await self.client.get(PODS, name, "default", type=PodObject)
        self.registry.on_pod_changed(found)
        return found

    async def condition(self, name: str) -> Json | None:
        """What a pod says about its scheduling."""
        found = await self.client.get(PODS, name, "default")
        conditions = found.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "PodScheduled"), None)

    async def events(self) -> list[tuple[str, str, str, str, int]]:
        """Every Event, in the order of its making."""
        found = await self.client.list(EVENTS, "default")
        rows = sorted(found.items, key=lambda e: str(e["metadata"]["name"]).rpartition(".")[2])
        about = [e["involvedObject"] for e in rows]
        names = [f"{ref['kind']}/{ref['name']}" for ref in about]
        return [(name, e["type"], e["reason"], e["message"], e["count"]) for name, e in zip(names, rows, strict=True)]

    async def pause(self) -> None:
        """Long enough for everything that is due to be written."""
        await asyncio.sleep(0.15)


def group_kind(groups: Resource = GROUPS) -> ServedKind:
    """A PodGroup, by default that of scheduler-plugins, taking any content."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return ServedKind(
        groups.group, groups.version, groups.kind, groups.plural, subresources=("status",), crd_schema=schema
    )


@asynccontextmanager
async def status_writer(
    limits: Limits = QUICK, dialect: str = DIALECT, groups: Resource = GROUPS
) -> AsyncIterator[WriterFixture]:
    """A writer that writes to a local API server."""
    async with (
        api_server(kinds=(group_kind(groups),)) as server,
        Client(Connection(str(server.client.make_url("")))) as client,
        working(WriterFixture(client, limits, server, dialect, groups)) as made,
    ):
        yield made


@asynccontextmanager
async def working(made: WriterFixture) -> AsyncIterator[WriterFixture]:
    """The writer, running."""
    task = asyncio.create_task(made.writer.run())
    try:
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
