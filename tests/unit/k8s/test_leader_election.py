"""Who of several operators works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.leader_election import Candidate, Election, LostError
from gpu_scheduler.k8s.resources import LEASES
from tests.embedded_kube.servers import speaker


@asynccontextmanager
async def api() -> AsyncIterator[Client]:
    async with speaker() as found, Client(Connection(str(found.client.make_url("")))) as client:
        yield client


def election(client: Client, name: str, duration: float = 1.0) -> Election:
    return Election(client, Candidate("default", "work", name, duration=duration, renew=0.05))


async def holder(client: Client) -> str:
    return str((await client.get(LEASES, "work", "default"))["spec"].get("holderIdentity", ""))


async def test_one_leads_and_the_next_when_it_steps_down() -> None:
    async with api() as client, asyncio.timeout(30):
        first, second = election(client, "first", 60.0), election(client, "second", 60.0)
        await first.acquire()
        waiting = asyncio.ensure_future(second.acquire())
        assert await holder(client) == "first"
        await first.release()
        await waiting
        assert await holder(client) == "second"
        assert (first.held, second.held) == (False, True)


async def test_a_leader_that_is_silent_for_too_long_is_succeeded() -> None:
    async with api() as client, asyncio.timeout(30):
        first, second = election(client, "first"), election(client, "second")
        await first.acquire()
        await second.acquire()
        assert await holder(client) == "second"
        with pytest.raises(LostError, match="second holds the Lease"):
            await first.keep()


async def test_who_is_started_again_under_its_name_does_not_wait_for_itself() -> None:
    async with api() as client, asyncio.timeout(30):
        await election(client, "first", 3600.0).acquire()
        await election(client, "first", 3600.0).acquire()


async def test_a_lease_that_is_deleted_is_lost() -> None:
    async with api() as client, asyncio.timeout(30):
        first = election(client, "first", 60.0)
        await first.acquire()
        await client.delete(LEASES, "work", "default")
        with pytest.raises(LostError, match="deleted"):
            await first.keep()


async def test_who_is_told_to_stop_while_it_takes_the_lease_gives_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api() as client, asyncio.timeout(30):
        first, landed, replace = election(client, "first", 60.0), asyncio.Event(), client.replace

        async def land_and_hang(*told: Any, **more: Any) -> None:
            await replace(*told, **more)
            landed.set()
            await asyncio.sleep(10)

        with monkeypatch.context() as patch:
            patch.setattr(client, "replace", land_and_hang)
            taking = asyncio.ensure_future(first.acquire())
            await landed.wait()
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        assert await holder(client) == "first"
        await first.release()
        assert await holder(client) == ""


async def test_who_never_led_gives_nothing_up() -> None:
    async with api() as client, asyncio.timeout(30):
        await election(client, "first", 60.0).acquire()
        await election(client, "second", 60.0).release()
        assert await holder(client) == "first"
