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


class Office:
    """Owners, and the responses of the server; the last one repeats."""

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
async def office(*answers: Json | int) -> AsyncIterator[Office]:
    made = Office(*answers)
    async with client_of(made.answer) as client:
        made.owners = Owners(client, made._arrive)
        made.owners.served = Served((JOBS,))
        yield made
        made.owners.close()
        await asyncio.sleep(0)


async def settled(here: Office) -> None:
    await until(lambda: not here.owners._fetching)


async def test_an_owner_is_fetched_once_and_its_arrival_reported() -> None:
    async with office(thing("job", 1)) as here:
        assert here.owners.find("ns", JOB) == {}
        assert here.owners.find("ns", JOB) == {}
        await until(lambda: here.arrived)
        assert here.owners.find("ns", JOB) == thing("job", 1)
        await settled(here)
        assert (here.asked, here.arrived) == (["/apis/batch.volcano.sh/v1alpha1/namespaces/ns/jobs/job"], 1)


@pytest.mark.parametrize("answer", [404, 403, thing("job", 1, "uid-of-a-later-job")], ids=["gone", "forbidden", "new"])
async def test_an_unreadable_owner_is_not_fetched_again(answer: Json | int) -> None:
    async with office(answer) as here:
        here.owners.find("ns", JOB)
        await settled(here)
        assert here.owners.find("ns", JOB) is None
        await settled(here)
        assert (len(here.asked), here.arrived) == (1, 1)  # reported, so that the gang does not wait for it


async def test_an_owner_is_fetched_once_its_kind_is_served() -> None:
    async with office(thing("job", 1)) as here:
        here.owners.served = Served(())
        assert here.owners.find("ns", JOB) is None
        assert not here.owners._fetching
        here.owners.served = Served((JOBS,))
        here.owners.find("ns", JOB)
        await until(lambda: here.arrived)
        assert here.owners.find("ns", JOB) is not None


async def test_fetching_an_owner_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_module, "_RETRY_INTERVAL", 0.01)
    async with office(*[500] * 5, thing("job", 1)) as here:
        here.owners.find("ns", JOB)
        await until(lambda: here.arrived)
        assert here.owners.find("ns", JOB) == thing("job", 1)


async def test_unused_owners_are_forgotten() -> None:
    async with office(thing("job", 1)) as here:
        here.owners.find("ns", JOB)
        await until(lambda: here.arrived)
        await settled(here)
        here.owners.forget_unused()
        assert here.owners.find("ns", JOB) is not None
        here.owners.forget_unused()
        assert here.owners.find("ns", JOB) is not None
        here.owners.forget_unused()
        here.owners.forget_unused()
        assert here.owners.find("ns", JOB) == {}
        await until(lambda: here.arrived == 2)


async def test_an_owner_of_an_unknown_kind_is_not_fetched() -> None:
    plain = Resource("apps", "v1", "statefulsets", "StatefulSet")
    async with office(thing("set", 1)) as here:
        here.owners.served = Served((plain,))
        assert here.owners.find("ns", OwnerReference("apps/v1", "StatefulSet", "set", "uid-set")) is None
        assert not here.owners._fetching
