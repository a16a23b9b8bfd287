"""Leader election by a Lease: of several candidates one leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.connection import Connection
from gpu_scheduler.k8s.errors import Undecided
from gpu_scheduler.k8s.leader_election import Candidate, FencedError, LeaderElection, LeaseObject
from gpu_scheduler.k8s.resources import LEASES
from tests.embedded_kube.servers import api_server


@asynccontextmanager
async def api() -> AsyncIterator[Client]:
    async with api_server() as found, Client(Connection(str(found.client.make_url("")))) as client:
        yield client


def election(client: Client, name: str, duration: float = 1.0) -> LeaderElection[LeaseObject]:
    return LeaderElection(client, Candidate("default", "work", name, duration, renew=0.05), LeaseObject)


async def holder(client: Client) -> str:
    return str((await client.get(LEASES, "work", "default"))["spec"].get("holderIdentity", ""))


async def test_one_candidate_leads_and_the_next_one_after_a_release() -> None:
    async with api() as client, asyncio.timeout(30):
        first, second = election(client, "first", 60.0), election(client, "second", 60.0)
        await first.acquire()
        waiting = asyncio.ensure_future(second.acquire())
        assert await holder(client) == "first"
        await first.release()
        await waiting
        assert await holder(client) == "second"
        assert (first.held, second.held) == (False, True)


async def test_a_lease_that_is_not_renewed_expires() -> None:
    async with api() as client, asyncio.timeout(30):
        first, second = election(client, "first"), election(client, "second")
        await first.acquire()
        await second.acquire()
        assert await holder(client) == "second"
        with pytest.raises(FencedError, match="second holds the Lease"):
            await first.keep_renewed()


async def test_a_restarted_process_with_the_same_identity_acquires_at_once_and_fences_the_old_one() -> None:
    async with api() as client, asyncio.timeout(30):
        old = election(client, "first", 3600.0)
        assert (await old.acquire()).epoch == 1
        assert (await election(client, "first", 3600.0).acquire()).epoch == 2
        with pytest.raises(FencedError, match="first holds the Lease, epoch 2"):
            await old.renew()
        assert not old.held


async def test_a_deleted_lease_is_lost() -> None:
    async with api() as client, asyncio.timeout(30):
        first = election(client, "first", 60.0)
        await first.acquire()
        await client.delete(LEASES, "work", "default")
        with pytest.raises(FencedError, match="deleted"):
            await first.keep_renewed()


async def test_a_renewal_survives_an_edit_by_another_writer() -> None:
    async with api() as client, asyncio.timeout(30):
        first = election(client, "first", 60.0)
        await first.acquire()
        await client.patch(LEASES, "work", {"metadata": {"labels": {"edited": "yes"}}}, "default")
        await first.renew()
        await first.renew()
        assert (first.held, await holder(client)) == (True, "first")


async def test_a_leader_that_cannot_renew_until_its_deadline_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api() as client, asyncio.timeout(30):
        first = election(client, "first", 60.0)
        await first.acquire()

        async def fail(*args: Any, **kwargs: Any) -> None:
            raise Undecided(500, "", "try later")

        monkeypatch.setattr(client, "replace", fail)
        with pytest.raises(FencedError, match="could not be renewed in time"):
            await first.keep_renewed(deadline=0.5)
        assert not first.held


async def test_a_cancelled_acquisition_that_landed_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with api() as client, asyncio.timeout(30):
        first, landed, replace = election(client, "first", 60.0), asyncio.Event(), client.replace

        async def land_and_hang(*args: Any, **kwargs: Any) -> None:
            await replace(*args, **kwargs)
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


async def test_release_by_a_candidate_that_never_led_changes_nothing() -> None:
    async with api() as client, asyncio.timeout(30):
        await election(client, "first", 60.0).acquire()
        await election(client, "second", 60.0).release()
        assert await holder(client) == "first"
