"""Snapshot of a cluster: lists everything once and makes a dry run of the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, TookOver
from gpu_scheduler.gangs.jobs import readable_jobs
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.discovery import Served, find_served
from gpu_scheduler.k8s.errors import ApiError, NotFound, Refused
from gpu_scheduler.k8s.informer import ChangeKind, ObjectChange
from gpu_scheduler.k8s.objects import Json, NodeObject, PodObject, RawObject
from gpu_scheduler.k8s.resources import LEASES, NODES, Resource
from gpu_scheduler.k8s.times import parse_time
from gpu_scheduler.scheduler.commit.commit_log import CommitLease
from gpu_scheduler.scheduler.commit.intents import Intents, MissingIntentError
from gpu_scheduler.scheduler.commit.quarantines import decode_quarantines
from gpu_scheduler.scheduler.commit.setbacks import decode_setbacks
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.watcher import Handler, make_translator, optional_kinds, required_kinds

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The leader Lease: holder, epoch, last renewal, and the number of committed intents."""

    holder: str
    epoch: int
    renewed: float | None
    committed: int


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster at one moment. The engine has made one dry run, whose decisions are not carried out."""

    engine: Engine
    now: float
    nodes: Mapping[str, NodeObject]
    pods: Mapping[str, PodObject]
    registry: GangRegistry
    lease: LeaseView | None
    served: Served


async def take_snapshot(client: Client, settings: Settings) -> ClusterSnapshot:
    """Lists everything that decisions depend on, and runs one cycle of a new engine."""
    served, lease = await asyncio.gather(find_served(client), _read_lease(client, settings))
    if lease is not None and lease.serves:
        # The scheduler names of the running scheduler count, not those of our settings.
        settings = msgspec.structs.replace(settings, scheduler_names=lease.serves)
    translator = make_translator(settings)
    kinds = [*optional_kinds(translator, served), *required_kinds(translator)]
    listed = await asyncio.gather(*[_list(client, resource, form) for resource, form, _ in kinds])
    jobs = await _list_jobs(client, served, [obj for objs in listed for obj in objs if isinstance(obj, RawObject)])
    translator.registry.context.owner_of = lambda namespace, owner: jobs.get(owner.uid)
    nodes: dict[str, NodeObject] = {}
    for (resource, _, handler), found in zip(kinds, listed, strict=True):
        _handle_added(handler, found)
        if resource == NODES:
            nodes = {node.metadata.name: node for node in found}
    whole_queue = replace(settings.core, max_cycle_work=_NO_LIMIT, max_podless_shapes=_NO_LIMIT)
    engine, now = Engine(whole_queue, dry_run=True), time.time()
    for event in translator.take_events():
        engine.handle(event, now)
    for quarantined in decode_quarantines(lease.quarantined if lease is not None else ""):
        engine.handle(quarantined, now)
    engine.handle(TookOver(await _read_open(client, settings, lease)), now)
    engine.handle(decode_setbacks(lease.setbacks if lease is not None else ""), now)
    engine.run_cycle(now)
    shown = None
    if lease is not None:
        renewed = parse_time(lease.spec.renew_time)
        shown = LeaseView(lease.spec.holder_identity, lease.epoch, renewed, len(lease.committed))
    return ClusterSnapshot(engine, now, nodes, translator.pods, translator.registry, shown, served)


def _handle_added(handler: Handler, found: Sequence[Any]) -> None:
    if found:
        handler([ObjectChange(ChangeKind.ADDED, item, None) for item in found])


async def _list(client: Client, resource: Resource, form: type[Any]) -> Sequence[Any]:
    """Lists all objects of a kind; none if access is refused, except for pods and nodes, which are required."""
    try:
        return (await client.list(resource, type=form)).items
    except (NotFound, Refused):
        if form in (PodObject, NodeObject):
            raise
        return []


async def _list_jobs(client: Client, served: Served, groups: Iterable[RawObject]) -> dict[str, Json]:
    """Lists the jobs that own groups, by uid: their templates say what members that do not exist yet will request."""
    owners = {(owner.api_version, owner.kind) for group in groups for owner in group.metadata.owner_references or ()}
    kinds = [job for job in readable_jobs(served) if (job.api_version, job.kind) in owners]
    listed = await asyncio.gather(*[_list(client, kind, Json) for kind in kinds])
    return {job["metadata"]["uid"]: job for found in listed for job in found}


async def _read_lease(client: Client, settings: Settings) -> CommitLease | None:
    try:
        return await client.get(LEASES, settings.lease_name, settings.namespace, type=CommitLease)
    except (NotFound, Refused):
        return None


async def _read_open(client: Client, settings: Settings, lease: CommitLease | None) -> tuple[Commit, ...]:
    """Reads the open commits. One that is missing has ended since the Lease was read."""
    intents = Intents(client, settings.namespace)
    found: list[Commit] = []
    for name, uid in (lease.committed if lease is not None else {}).items():
        try:
            found += await intents.read({name: uid})
        except (MissingIntentError, ApiError):
            continue
    return tuple(found)
