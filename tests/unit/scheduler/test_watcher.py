"""The cluster watcher: order of lists, kinds that are installed later, and syncing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from gpu_scheduler.core.events import Bind, Event, GangGone, GangSeen, PodGone, PodSeen, QueueGone, QueueSeen
from gpu_scheduler.core.model import GangKey, Queue
from gpu_scheduler.gangs.contract import DEVICES, QUEUES
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.objects import OwnerReference, PodObject
from gpu_scheduler.k8s.resources import NODES, PODS, PRIORITY_CLASSES, Resource
from gpu_scheduler.scheduler import watcher as watcher_module
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.watcher import ClusterWatcher
from tests.embedded_kube.servers import ApiClient
from tests.unit.k8s.live_api import answer_with, gpu_node, gpu_pod, live_server, proxied, running
from tests.unit.k8s.scripted_api import client_of, listing, written
from tests.unit.scheduler.reporting import DIALECT, GROUPS, group_kind, until

KEY = GangKey(DIALECT, "default", "train")
MEMBER = {"labels": {"scheduling.x-k8s.io/pod-group": "train"}}


@pytest.fixture(autouse=True)
def _discover_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher_module, "DISCOVERY_PERIOD", 0.05)


class Watched:
    """A cluster watcher and its events."""

    def __init__(self, client: Client, server: ApiClient) -> None:
        self.client = client
        self.server = server
        self.wakes = 0
        self.events: list[Event] = []
        self.watcher = ClusterWatcher(client, Settings(), self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def take(self) -> list[Event]:
        """All events so far."""
        self.events += self.watcher.take_events()
        return self.events

    def saw(self, event: Event) -> bool:
        return event in self.take()

    async def create_member(self, name: str) -> None:
        await self.client.create(PODS, gpu_pod(name, meta=dict(MEMBER)), "default")

    async def create_group(self, minimum: int = 2) -> None:
        await self.client.create(GROUPS, written(GROUPS, "train", spec={"minMember": minimum}), "default")


@asynccontextmanager
async def watching(*kinds: Any) -> AsyncIterator[Watched]:
    async with live_server(*kinds) as (client, server):
        made = Watched(client, server)
        async with running(made.watcher.run()):
            yield made


async def test_pods_are_listed_last_and_then_everything_is_watched() -> None:
    async with live_server(group_kind()) as (client, server):
        watched = Watched(client, server)
        await watched.create_member("a")
        await watched.create_group()
        await client.create(NODES, gpu_node())
        await client.create(QUEUES, written(QUEUES, "blue", spec={"weight": 3}))
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 5})
        assert not watched.watcher.synced
        async with running(watched.watcher.run()):
            await watched.watcher.wait_synced()
            assert watched.wakes
            names = [type(event).__name__ for event in watched.take()]
            assert sorted(names) == ["GangSeen", "NodeSeen", "PodSeen", "QueueSeen"]
            assert names[-1] == "PodSeen"  # and its membership is known by then
            (pod,) = [event.pod for event in watched.events if isinstance(event, PodSeen)]
            assert pod.gang == KEY
            wakes = watched.wakes
            await watched.create_member("b")
            await until(lambda: len(watched.take()) == 5)
            assert watched.wakes > wakes
            assert watched.watcher.lags().keys() >= {"pods", "nodes", "queues", "podgroups"}


async def test_pods_are_listed_only_after_all_other_kinds() -> None:
    asked: list[str] = []
    may_answer = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path in ("/api", "/apis"):
            return web.json_response({"items": []})
        if "watch" in request.query:
            await asyncio.sleep(3600)
        asked.append(request.path.rpartition("/")[2])
        if asked[-1] == "persistentvolumes":
            await may_answer.wait()
        return listing(1)

    async with client_of(answer) as client:
        watcher = ClusterWatcher(client, Settings(), lambda: None)
        async with running(watcher.run()):
            await until(lambda: len(asked) == 6)
            await asyncio.sleep(0.1)
            assert "pods" not in asked
            assert not watcher.synced
            may_answer.set()
            await watcher.wait_synced()
            assert asked[6:] == ["pods"]


async def test_a_kind_installed_later_is_watched_until_it_is_removed() -> None:
    async with watching() as watched:
        await watched.create_member("a")
        await watched.watcher.wait_synced()
        assert not any(isinstance(event, GangSeen) for event in watched.take())
        watched.server.registry.kinds.put(group_kind())
        await watched.create_group()
        await until(lambda: any(isinstance(event, GangSeen) and event.gang.key == KEY for event in watched.take()))
        assert watched.watcher.registry.resource_of(KEY) == GROUPS
        assert watched.watcher.served.has(GROUPS)
        watched.server.registry.kinds.remove(GROUPS.group, GROUPS.plural)
        await until(lambda: watched.saw(GangGone(KEY)))
        assert watched.watcher.registry.resource_of(KEY) is None
        assert "podgroups" not in watched.watcher.lags()
        watched.events.clear()
        watched.server.registry.kinds.put(group_kind())
        await until(lambda: any(isinstance(event, GangSeen) for event in watched.take()))


async def test_queues_of_a_removed_kind_are_deleted() -> None:
    async with watching() as watched:
        await watched.watcher.wait_synced()
        await watched.client.create(QUEUES, written(QUEUES, "blue", spec={"weight": 3}))
        await until(lambda: watched.saw(QueueSeen(Queue("blue", 3))))
        watched.server.registry.kinds.remove(QUEUES.group, QUEUES.plural)
        await until(lambda: watched.saw(QueueGone("blue")))


async def test_gangs_of_a_forbidden_kind_wait_and_all_others_go_on() -> None:
    async with proxied(group_kind()) as (client, proxy, bystander):
        watched = Watched(client, proxy.server)
        proxy.plan("GET", "podgroups", *[answer_with(403)] * 1000)
        await bystander.create(GROUPS, written(GROUPS, "train", spec={"minMember": 2}), "default")
        await bystander.create(PODS, gpu_pod("a", meta=dict(MEMBER)), "default")
        async with running(watched.watcher.run()):
            await watched.watcher.wait_synced()
            assert [type(event).__name__ for event in watched.take()] == ["PodSeen"]
            proxy.drop_plans()
            await until(lambda: any(isinstance(event, GangSeen) for event in watched.take()))


async def test_nothing_starts_while_queues_are_forbidden() -> None:
    async with proxied() as (client, proxy, _):
        watched = Watched(client, proxy.server)
        proxy.plan("GET", "/queues", *[answer_with(403)] * 1000)
        async with running(watched.watcher.run()):
            await until(lambda: proxy.count("GET", "/queues") >= 3)
            assert not watched.watcher.synced
            proxy.drop_plans()
            await watched.watcher.wait_synced()


async def test_catch_up_waits_for_everything_that_happened_before() -> None:
    async with watching(group_kind()) as watched:
        await watched.watcher.wait_synced()
        for number in range(5):
            await watched.create_member(f"p{number}")
        found = (await watched.client.list(PODS, "default", type=PodObject)).items
        await watched.client.delete(PODS, "p0", "default", grace=0)
        await watched.create_group()
        async with asyncio.timeout(10):
            await watched.watcher.catch_up()
        assert {event.pod.name for event in watched.take() if isinstance(event, PodSeen)} == {
            f"p{number}" for number in range(5)
        }
        gone = [event.uid for event in watched.events if isinstance(event, PodGone)]
        assert gone == [found[0].metadata.uid]
        assert any(isinstance(event, GangSeen) for event in watched.events)
        assert len(watched.watcher.translator.pods) == 4


async def test_catch_up_returns_although_a_kind_is_removed_meanwhile() -> None:
    async with watching(group_kind()) as watched:
        await watched.watcher.wait_synced()
        watched.server.registry.kinds.remove(GROUPS.group, GROUPS.plural)
        await watched.create_member("a")
        async with asyncio.timeout(10):
            await watched.watcher.catch_up()
        assert any(isinstance(event, PodSeen) for event in watched.take())


async def test_binder_finds_pods_their_unbound_claims_and_their_annotations() -> None:
    async with watching() as watched:
        await watched.watcher.wait_synced()
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
        made = await watched.client.create(PODS, gpu_pod("a", 2, volumes=volumes), "default", type=PodObject)
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        path = "/api/v1/namespaces/default/persistentvolumeclaims"
        await watched.server.create(path, {"metadata": {"name": "data"}, "spec": spec})
        await watched.watcher.catch_up()
        pod = watched.watcher.pod(made.metadata.uid)
        assert pod is not None
        bind = Bind(made.metadata.uid, "default", "a", 0, "n0", (3, 1))
        assert watched.watcher.unbound_claims(pod) == {"data": ""}
        assert watched.watcher.bind_annotations(pod, bind)[DEVICES] == "3,1"
        assert watched.watcher.pod("unknown") is None


async def test_templates_of_an_owner_give_the_expected_members() -> None:
    groups = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
    jobs = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")
    kinds = [replace(group_kind(), **found._asdict()) for found in (groups, jobs)]
    tasks = [{"name": "worker", "replicas": 2, "template": {"spec": gpu_pod("x", 2)["spec"]}}]
    async with watching(*kinds) as watched:
        await watched.watcher.wait_synced()
        made = await watched.server.create(jobs.path("default"), written(jobs, "job", spec={"tasks": tasks}))
        owner = {"apiVersion": jobs.api_version, "kind": "Job", "name": "job", "uid": made["metadata"]["uid"]}
        group = written(groups, "g", spec={"minMember": 2, "minResources": {"nvidia.com/gpu": "4"}})
        group["metadata"]["ownerReferences"] = [owner | {"controller": True}]
        await watched.server.create(groups.path("default"), group)

        def expected() -> list[Any]:
            return [event.gang.expected for event in watched.take() if isinstance(event, GangSeen)]

        await until(lambda: expected() and expected()[-1])
        (members,) = expected()[-1]
        assert (members.count, members.role, members.shape.gpus) == (2, "worker", 2)


async def test_owners_that_arrive_together_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")

    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.path.rsplit("/", 1)[1]
        return web.json_response({"metadata": {"name": name, "uid": f"u{name[1:]}", "managedFields": []}, "spec": {}})

    async with client_of(answer) as client:
        watcher = ClusterWatcher(client, Settings(), lambda: None)
        reads = []
        monkeypatch.setattr(watcher.translator, "reread_groups", lambda: reads.append(1))
        watcher._owners.served = Served((jobs,))
        for number in range(200):
            owner = OwnerReference(jobs.api_version, jobs.kind, f"j{number}", f"u{number}", controller=True)
            watcher._owners.find("ns", owner)
        await until(lambda: not watcher._owners._fetching)
        await until(lambda: reads)
        await asyncio.sleep(2 * watcher_module.OWNER_BATCH_DELAY)
        assert len(reads) < 20
