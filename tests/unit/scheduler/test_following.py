"""What is watched over weeks: nothing is lost on the way in, and nothing that is gone is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiohttp import web

from gpu_scheduler.core.events import PodGone, PodSeen, RaiseAttempt
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.contract import ATTEMPT
from gpu_scheduler.gangs.owners import Owners
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.informer import ChangeKind, Informer, ObjectChange
from gpu_scheduler.k8s.objects import Object, OwnerReference, PodObject
from gpu_scheduler.k8s.resources import PODS, Resource
from gpu_scheduler.scheduler import watcher as watcher_module
from gpu_scheduler.scheduler.commit.binder import Binder
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.watcher import ClusterWatcher, make_translator
from tests.unit.gangs.pods import pod
from tests.unit.k8s.live_api import Wire, gpu_pod, live_server, running
from tests.unit.k8s.scripted_api import client_of, listing, refuse, thing
from tests.unit.scheduler.reporting import desk, status, until

JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")


async def test_changes_beside_one_that_cannot_be_taken_in_are_not_lost() -> None:
    taken: list[str] = []

    def take(changes: Sequence[ObjectChange[Object]]) -> None:
        for change in changes:
            if change.object.metadata.name == "b":
                raise ValueError("b")
            taken.append(change.object.metadata.name)

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(60)
        return listing(9, [thing(name, 9) for name in "abc"])

    async with client_of(answer) as client:
        informer = Informer(client, PODS, Object, take)
        async with running(informer.run()):
            await informer.wait_synced()
    assert set(taken) == {"a", "c"}


def test_claims_of_pods_that_are_gone_are_forgotten() -> None:
    translator = make_translator(Settings())
    one = pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}])
    translator.on_pods_changed([ObjectChange(ChangeKind.ADDED, one, None)])
    translator.on_pods_changed([ObjectChange(ChangeKind.DELETED, one, one)])
    assert [type(event) for event in translator.take_events()] == [PodSeen, PodGone]
    assert not translator._users


# -- owners


def job(number: int) -> OwnerReference:
    return OwnerReference(JOBS.api_version, JOBS.kind, f"j{number}", f"u{number}", controller=True)


async def answer_jobs(request: web.Request) -> web.StreamResponse:
    name = request.path.rsplit("/", 1)[1]
    return web.json_response({"metadata": {"name": name, "uid": f"u{name[1:]}", "managedFields": []}, "spec": {}})


async def test_owners_that_nobody_asks_for_any_more_are_forgotten() -> None:
    async with client_of(answer_jobs) as client:
        owners = Owners(client, lambda: None)
        owners.served = Served((JOBS,))
        for number in range(3):
            owners.find("ns", job(number))
        await until(lambda: len(owners._found) == 3)
        owners.forget_unasked()
        assert len(owners._found) == 3
        assert owners.find("ns", job(1)) is not None
        owners.forget_unasked()
        assert set(owners._found) == {"u1"}


async def test_owners_that_arrive_together_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client_of(answer_jobs) as client:
        watcher = ClusterWatcher(client, Settings(), lambda: None)
        reads = []
        monkeypatch.setattr(watcher.translator, "reread_groups", lambda: reads.append(1))
        watcher._owners.served = Served((JOBS,))
        for number in range(200):
            watcher._owners.find("ns", job(number))
        await until(lambda: not watcher._owners._fetching)
        await until(lambda: reads)
        await asyncio.sleep(2 * watcher_module.OWNER_BATCH_DELAY)
        assert len(reads) < 20


# -- kinds that may not be read


async def test_gang_kind_that_may_not_be_read_keeps_nobody_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "DISCOVERY_PERIOD", 0.05)
    async with live_server() as (_, server):
        wire = Wire(server)
        refusing = True

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path.endswith("/workloads") and refusing:
                return refuse(403, reason="Forbidden", message="workloads is forbidden")
            return await wire(request)

        async with client_of(answer) as client:
            watcher = ClusterWatcher(client, Settings(), lambda: None)
            async with running(watcher.run()):
                await until(lambda: watcher.synced)
                await watcher.catch_up()
                assert "workloads" not in watcher.lags()
                refusing = False
                await until(lambda: "workloads" in watcher.lags())


# -- carrying out


async def raise_attempt(client: Client, seen: PodObject, attempt: int) -> None:
    watcher = ClusterWatcher(client, Settings(), lambda: None)
    watcher.translator.pods[seen.metadata.uid] = seen
    await Binder(client, watcher, lambda event: None)._raise(RaiseAttempt(seen.metadata.uid, attempt))


async def attempt_of(client: Client) -> Any:
    found = await client.get(PODS, "p", "default", type=PodObject)
    return (found.metadata.annotations or {}).get(ATTEMPT)


async def test_attempt_that_a_later_leader_raised_is_never_lowered() -> None:
    async with live_server() as (client, _):
        first = await client.create(PODS, gpu_pod("p"), "default", type=PodObject)
        await raise_attempt(client, first, 1)
        assert await attempt_of(client) == "1"
        second = await client.get(PODS, "p", "default", type=PodObject)
        await raise_attempt(client, second, 2)
        await raise_attempt(client, first, 1)  # a leader of old, who was held up
        third = await client.get(PODS, "p", "default", type=PodObject)
        await raise_attempt(client, third, 1)
        assert await attempt_of(client) == "2"


# -- telling


async def test_gangs_that_are_gone_are_forgotten_by_the_teller() -> None:
    async with desk() as at:
        there = GangKey(LONE_POD, "default", (await at.add_pod("p", "")).metadata.uid)
        at.tell(there, status(Phase.RUNNING))
        for number in range(5000):
            at.tell(GangKey(LONE_POD, "default", f"gone-{number}"), status(Phase.RUNNING))
        assert there in at.writer._entries
        assert len(at.writer._entries) <= 2048
