"""Replicas of the scheduler: taking over, API errors, and stopping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.k8s.resources import LEASES
from gpu_scheduler.scheduler.commit.commit_log import CommitLease, CommitLog
from gpu_scheduler.scheduler.scheduler import Clients, Scheduler
from gpu_scheduler.scheduler.settings import Settings
from tests.unit.k8s.live_api import Proxy, live_server, running
from tests.unit.k8s.scripted_api import client_of, refuse
from tests.unit.scheduler.reporting import until


def settings(**changes: Any) -> Settings:
    return Settings(**{"namespace": "default", "listen": "127.0.0.1:0", "lease_duration": 3.0, "renew": 0.1, **changes})


@asynccontextmanager
async def replica(client: Client, **changes: Any) -> AsyncIterator[tuple[Scheduler, asyncio.Future[None]]]:
    scheduler = Scheduler(Clients(client, client, client), settings(**changes))
    async with running(scheduler.run(asyncio.Event())) as work:
        yield scheduler, work


# -- taking over


@pytest.mark.parametrize(
    "path",
    ["/api/v1/namespaces", "/apis/gpu-scheduler.io/v1alpha1/namespaces/default/placements"],
    ids=["catching up", "deleting void placements"],
)
async def test_leader_survives_api_errors_while_it_takes_over(path: str) -> None:
    async with live_server() as (_, server):
        proxy, failures = Proxy(server), 0

        async def answer(request: web.Request) -> web.StreamResponse:
            nonlocal failures
            if request.path == path and "watch" not in request.query and proxy.count("PUT", "/leases") and failures < 8:
                failures += 1
                return refuse(500)
            return await proxy(request)

        async with client_of(answer) as client, replica(client) as (scheduler, work):
            await until(lambda: (failures == 8 and scheduler._engine.state.leading) or work.done())
            assert not work.done()


# -- stopping


async def test_leader_stops_soon_although_the_api_server_is_down() -> None:
    async with live_server() as (_, server):
        proxy, gone = Proxy(server), False

        async def answer(request: web.Request) -> web.StreamResponse:
            return refuse(500) if gone else await proxy(request)

        async with client_of(answer) as client:
            lease = CommitLog(client, Candidate("default", "leader", "a"))
            await lease.acquire()
            gone = True
            async with asyncio.timeout(10):
                await lease.release()


async def test_former_leader_does_not_release_the_lease_of_another() -> None:
    async with live_server() as (client, _):
        lease = CommitLog(client, Candidate("default", "leader", "a"))
        await lease.acquire()
        await client.patch(LEASES, "leader", {"spec": {"holderIdentity": "b"}}, "default")
        async with running(lease.acquire()):
            await until(lambda: lease._seen is not None and lease._seen.spec.holder_identity == "b")
        await lease.release()
        found = await client.get(LEASES, "leader", "default", type=CommitLease)
        assert found.spec.holder_identity == "b"
        assert not lease.held
