"""The whole scheduler against the local API server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from gpu_scheduler.cli.render.explain import make_page
from gpu_scheduler.core.events import Bind, Commit
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.state import LONE_POD
from gpu_scheduler.gangs.contract import DEVICES, PLACEMENTS
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.k8s.objects import Json, PodObject
from gpu_scheduler.k8s.resources import LEASES, NODES, PODS
from gpu_scheduler.scheduler.commit.commit_log import CommitLease, CommitLog
from gpu_scheduler.scheduler.commit.intents import Intents, MissingIntentError
from gpu_scheduler.scheduler.scheduler import SteadyClock, run_scheduler
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.snapshot import take_snapshot
from tests.unit.k8s.live_api import after, answer_with, gpu_node, gpu_pod, proxied, running
from tests.unit.scheduler.reporting import until


def settings(**more: Any) -> Settings:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chosen: dict[str, Any] = {
        "lease_duration": 1.0,
        "renew": 0.1,
        "listen": f"127.0.0.1:{port}",
        "identity": "a",
    } | more
    return Settings(namespace="default", lease_name="leader", **chosen)


class Running:
    """A scheduler that can be stopped."""

    def __init__(self, client: Client, chosen: Settings) -> None:
        self.stop = asyncio.Event()
        self.compare = asyncio.Event()
        self.settings = chosen
        self.work = run_scheduler(client.connection, chosen, self.stop, self.compare)

    async def ask(self, path: str) -> tuple[int, str]:
        """The HTTP status of a health endpoint; 0 before the scheduler listens."""
        try:
            async with aiohttp.request("GET", f"http://{self.settings.listen}{path}") as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""


async def node_of(client: Client, name: str) -> str:
    found = await client.get(PODS, name, "default", type=PodObject)
    return found.spec.node_name


def bound(client: Client, *names: str) -> Callable[[], Awaitable[bool]]:
    async def all_are() -> bool:
        return all([await node_of(client, name) for name in names])

    return all_are


async def read_lease(client: Client) -> CommitLease:
    return await client.get(LEASES, "leader", "default", type=CommitLease)


class Times:
    """The wall clock and the monotonic clock of a machine."""

    def __init__(self) -> None:
        self.wall, self.passed = 1_700_000_000.0, 50.0

    def time(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.passed


def test_steady_clock_ignores_jumps_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times()
    monkeypatch.setattr("gpu_scheduler.scheduler.scheduler.time", times)
    clock = SteadyClock()
    assert clock() == 1_700_000_000.0
    times.wall = 0.0
    times.passed += 7
    assert clock() == 1_700_000_007.0


async def test_pods_are_bound_with_their_devices_and_no_commit_stays_open() -> None:
    async with proxied() as (client, proxy, bystander):
        await bystander.create(NODES, gpu_node("n0", 4))
        scheduler = Running(client, settings())
        async with running(scheduler.work) as work:
            for number in range(4):
                await bystander.create(PODS, gpu_pod(f"p{number}"), "default")
            await until(bound(bystander, "p0", "p1", "p2", "p3"))
            pods = (await bystander.list(PODS, "default", type=PodObject)).items
            devices = [(pod.metadata.annotations or {})[DEVICES] for pod in pods]
            assert sorted(devices) == ["0", "1", "2", "3"]

            async def nothing_open() -> bool:
                left = (await bystander.list(PLACEMENTS, "default")).items
                return not left and not (await read_lease(bystander)).committed

            await until(nothing_open)
            scheduler.stop.set()
            await work
        found = await read_lease(bystander)
        assert (found.spec.holder_identity, found.epoch, found.serves) == ("", 1, ("gpu-scheduler",))
        first_bind = next(i for i, sent in enumerate(proxy.sent) if sent.path.endswith("/binding"))
        assert any(sent.path.endswith("/placements") for sent in proxy.sent[:first_bind])


async def test_explain_says_that_a_bind_was_refused_and_when_the_gang_is_tried_again() -> None:
    async with proxied() as (client, proxy, bystander):
        await bystander.create(NODES, gpu_node("n0", 4))
        pod = await bystander.create(PODS, gpu_pod("p0"), "default", type=PodObject)
        proxy.plan("POST", "/binding", *[answer_with(403)] * 1000)
        key = GangKey(LONE_POD, "default", pod.metadata.uid)
        scheduler = Running(client, settings(refused_for=0.5))
        async with running(scheduler.work):

            async def says_both() -> bool:
                view = await take_snapshot(bystander, scheduler.settings)
                page = make_page(view.engine, key, view.now)
                text = page.message.message if page is not None else ""
                return text.startswith("the last start failed (bind refused: ") and "; the next try follows in " in text

            await until(says_both)


async def test_scheduler_is_ready_once_its_caches_are_synced() -> None:
    async with proxied() as (client, proxy, _):
        may_list = asyncio.Event()
        proxy.plan("GET", "/api/v1/pods", after(may_list.wait))
        scheduler = Running(client, settings())

        async def healthy() -> bool:
            return (await scheduler.ask("/healthz"))[0] == 200

        async def ready() -> bool:
            return (await scheduler.ask("/readyz"))[0] == 200

        async with running(scheduler.work):
            await until(healthy)
            await until(lambda: proxy.count("GET", "/api/v1/pods"))
            assert await scheduler.ask("/readyz") == (503, "not ready")
            assert not proxy.count("POST", "/binding")
            may_list.set()
            await until(ready)
            assert "gpu_scheduler" in (await scheduler.ask("/metrics"))[1]


async def test_next_leader_carries_out_what_was_committed_before_a_stop() -> None:
    async with proxied() as (client, proxy, bystander):
        await bystander.create(NODES, gpu_node("n0", 4))
        await bystander.create(PODS, gpu_pod("p"), "default")
        proxy.plan("POST", "/binding", after(asyncio.Event().wait))
        first = Running(client, settings())
        async with running(first.work) as work:
            await until(lambda: proxy.count("POST", "/binding"))
            first.stop.set()
            async with asyncio.timeout(5):
                await work
        left = await read_lease(bystander)
        assert (left.spec.holder_identity, list(left.committed)) == ("", ["1-0-0"])
        assert not await node_of(bystander, "p")
        # Another node would fit as well, but the committed one is used.
        await bystander.create(NODES, gpu_node("a-better-one", 1))
        second = Running(client, settings(identity="b"))
        async with running(second.work):
            await until(bound(bystander, "p"))
            assert await node_of(bystander, "p") == "n0"

            async def nothing_open() -> bool:
                return not (await read_lease(bystander)).committed

            await until(nothing_open)


async def test_fenced_leader_sends_nothing_more_and_competes_for_the_lease_again() -> None:
    async with proxied() as (client, proxy, bystander):
        await bystander.create(NODES, gpu_node("n0", 4))
        scheduler = Running(client, settings())

        async def leads(epoch: int) -> bool:
            found = await read_lease(bystander)
            return (found.spec.holder_identity, found.epoch) == ("a", epoch)

        async with running(scheduler.work):
            await bystander.create(PODS, gpu_pod("p0"), "default")
            await until(bound(bystander, "p0"))
            taken = {"spec": {"holderIdentity": "b", "leaseDurationSeconds": 60}}
            await bystander.patch(LEASES, "leader", taken, "default")

            async def fenced() -> bool:
                return "gpu_scheduler_fences_total 1.0" in (await scheduler.ask("/metrics"))[1]

            await until(fenced)
            before = proxy.count("POST"), proxy.count("GET", "leases/leader")
            await bystander.create(PODS, gpu_pod("p1"), "default")
            await until(lambda: proxy.count("GET", "leases/leader") >= before[1] + 3)
            assert proxy.count("POST") == before[0]
            await bystander.patch(LEASES, "leader", {"spec": {"holderIdentity": ""}}, "default")
            await until(lambda: leads(2))
            await until(bound(bystander, "p1"))
            promised = [bind["name"] for body in proxy.bodies("POST", "/placements") for bind in body["spec"]["binds"]]
            assert promised == ["p0", "p1"]


async def test_missing_committed_intent_ends_the_scheduler() -> None:
    async with proxied() as (client, _, bystander):
        lease = CommitLog(bystander, Candidate("default", "leader", "before", duration=1.0))
        await lease.acquire()
        await lease.swap({"1-0-0": "lost"}, ())
        await lease.release()
        scheduler = Running(client, settings())
        async with asyncio.timeout(10):
            with pytest.raises(ExceptionGroup) as raised:
                await scheduler.work
        assert raised.group_contains(MissingIntentError)


async def test_intent_that_a_later_leader_has_finished_is_not_reported_as_deleted() -> None:
    async with proxied() as (client, proxy, bystander):
        before = CommitLog(bystander, Candidate("default", "leader", "before"))
        await before.acquire()
        intents = Intents(bystander, "default")
        written = await intents.write(1, Commit(0, (Bind("gone", "default", "p", 0, "n0", (0,)),)))
        await before.swap(written, ())
        await before.release()
        after_us = CommitLog(bystander, Candidate("default", "leader", "after us"))

        async def lead_on() -> None:
            """Another replica leads meanwhile, finds the commit finished and deletes its intent."""
            await bystander.patch(LEASES, "leader", {"spec": {"holderIdentity": ""}}, "default")
            await after_us.acquire()
            await after_us.swap({}, written)
            await intents.delete(written)

        proxy.plan("GET", "placements/1-0-0", after(lead_on))
        scheduler = Running(client, settings(renew=60.0))  # nothing else shows it that it no longer leads
        async with running(scheduler.work) as work:

            async def fenced() -> bool:
                assert not work.done()
                return "gpu_scheduler_fences_total 1.0" in (await scheduler.ask("/metrics"))[1]

            await until(fenced)
            found = await read_lease(bystander)
            assert (found.spec.holder_identity, found.epoch, found.committed) == ("after us", 3, {})
            await after_us.release()
            await bystander.create(NODES, gpu_node("n0", 4))
            await bystander.create(PODS, gpu_pod("p"), "default")
            await until(bound(bystander, "p"))


async def test_scheduler_takes_over_once_the_api_recovers() -> None:
    async with proxied() as (client, proxy, bystander):
        lease = CommitLog(bystander, Candidate("default", "leader", "before", duration=1.0))
        await lease.acquire()
        await bystander.create(NODES, gpu_node("n0", 4))
        pod = await bystander.create(PODS, gpu_pod("p"), "default", type=PodObject)
        commit = Commit(0, (Bind(pod.metadata.uid, "default", "p", 0, "n0", (2,)),))
        await lease.swap(await Intents(bystander, "default").write(1, commit), ())
        await lease.release()
        proxy.plan("GET", "placements/1-0-0", *[answer_with(503)] * 5)
        async with running(Running(client, settings()).work):
            await until(bound(bystander, "p"))
        found: Json = await bystander.get(PODS, "p", "default")
        assert found["metadata"]["annotations"][DEVICES] == "2"


async def test_standby_decides_nothing_until_it_leads() -> None:
    async with proxied() as (client, proxy, bystander):
        leader = CommitLog(bystander, Candidate("default", "leader", "b", duration=5.0, renew=0.05))
        await leader.acquire()
        await bystander.create(NODES, gpu_node("n0", 4))
        await bystander.create(PODS, gpu_pod("p"), "default")
        async with running(Running(client, settings()).work):
            async with running(leader.keep_renewed()):
                await until(lambda: proxy.count("GET", "leases/leader") >= 5)
                assert {sent.method for sent in proxy.sent} == {"GET"}
            await leader.release()
            await until(bound(bystander, "p"))
