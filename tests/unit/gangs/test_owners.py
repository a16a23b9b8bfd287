"""The cache of jobs that own gang objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gpu_scheduler.gangs import owners as owners_module
from gpu_scheduler.gangs.owners import Owners
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.objects import Json, OwnerReference
from gpu_scheduler.k8s.resources import Resource
from tests.unit.k8s.scripted_api import client_of, refuse, thing
from tests.unit.scheduler.reporting import until

JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")
JOB = OwnerReference("batch.volcano.sh/v1alpha1", "Job", "job", "uid-job")


class OwnersFixture:
    """The cache of owners, and the responses of the API server; the last one repeats."""

    def __init__(self, *answers: Json | int) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.arrived = 0
        self.owners: Owners

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return refuse(found) if isinstance(found, int) else web.json_response(found)

    def _arrive(self) -> None:
        self.arrived += 1


@asynccontextmanager
async def cached_owners(*answers: Json | int) -> AsyncIterator[OwnersFixture]:
    made = OwnersFixture(*answers)
    async with client_of(made.answer) as client:
        made.owners = Owners(client, made._arrive)
        made.owners.served = Served((JOBS,))
        yield made
        made.owners.close()
        await asyncio.sleep(0)


async def wait_until_fetched(cache: OwnersFixture) -> None:
    await until(lambda: not cache.owners._fetching)


async def test_an_owner_is_fetched_once_and_its_arrival_reported() -> None:
    async with cached_owners(thing("job", 1)) as cache:
        assert cache.owners.find("ns", JOB) == {}
        assert cache.owners.find("ns", JOB) == {}
        await until(lambda: cache.arrived)
        assert cache.owners.find("ns", JOB) == thing("job", 1)
        await wait_until_fetched(cache)
        assert (cache.asked, cache.arrived) == (["/apis/batch.volcano.sh/v1alpha1/namespaces/ns/jobs/job"], 1)


@pytest.mark.parametrize("answer", [404, 403, thing("job", 1, "uid-of-a-later-job")], ids=["gone", "forbidden", "new"])
async def test_an_unreadable_owner_is_not_fetched_again(answer: Json | int) -> None:
    async with cached_owners(answer) as cache:
        cache.owners.find("ns", JOB)
        await wait_until_fetched(cache)
        assert cache.owners.find("ns", JOB) is None
        await wait_until_fetched(cache)
        assert (len(cache.asked), cache.arrived) == (1, 1)  # reported, so that the gang does not wait for it


async def test_an_owner_is_fetched_once_its_kind_is_served() -> None:
    async with cached_owners(thing("job", 1)) as cache:
        cache.owners.served = Served(())
        assert cache.owners.find("ns", JOB) is None
        assert not cache.owners._fetching
        cache.owners.served = Served((JOBS,))
        cache.owners.find("ns", JOB)
        await until(lambda: cache.arrived)
        assert cache.owners.find("ns", JOB) is not None


async def test_fetching_an_owner_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_module, "_RETRY_INTERVAL", 0.01)
    async with cached_owners(*[500] * 5, thing("job", 1)) as cache:
        cache.owners.find("ns", JOB)
        await until(lambda: cache.arrived)
        assert cache.owners.find("ns", JOB) == thing("job", 1)


async def test_unused_owners_are_forgotten() -> None:
    async with cached_owners(thing("job", 1)) as cache:
        cache.owners.find("ns", JOB)
        await until(lambda: cache.arrived)
        await wait_until_fetched(cache)
        cache.owners.forget_unused()
        assert cache.owners.find("ns", JOB) is not None
        cache.owners.forget_unused()
        assert cache.owners.find("ns", JOB) is not None
        cache.owners.forget_unused()
        cache.owners.forget_unused()
        assert cache.owners.find("ns", JOB) == {}
        await until(lambda: cache.arrived == 2)


async def test_an_owner_of_an_unknown_kind_is_not_fetched() -> None:
    plain = Resource("apps", "v1", "statefulsets", "StatefulSet")
    async with cached_owners(thing("set", 1)) as cache:
        cache.owners.served = Served((plain,))
        assert cache.owners.find("ns", OwnerReference("apps/v1", "StatefulSet", "set", "uid-set")) is None
        assert not cache.owners._fetching
