"""The self-check finds every planted difference, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from embedded_kube.subresources.binding import bind
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, Committed, SendBind, TookOver
from gpu_scheduler.core.state import State
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.objects import PodObject
from gpu_scheduler.k8s.resources import NODES, PODS
from gpu_scheduler.scheduler.self_check import compare
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.watcher import ClusterWatcher
from tests.embedded_kube.servers import ApiClient
from tests.unit.k8s.live_api import Proxy, after, gpu_node, gpu_pod, proxied, running


class Watched:
    """An engine that handles all events of a watcher at once."""

    def __init__(self, client: Client, proxy: Proxy, direct: Client) -> None:
        self.client = direct
        self.proxy = proxy
        self._asking = client
        self.engine = Engine()
        self.watcher = ClusterWatcher(direct, Settings(), self._handle_events)

    @property
    def state(self) -> State:
        return self.engine.state

    @property
    def server(self) -> ApiClient:
        return self.proxy.server

    def _handle_events(self) -> None:
        for event in self.watcher.take_events():
            self.engine.handle(event, 0.0)

    async def create_pod(self, name: str, node: str = "", gpus: int = 1) -> str:
        made = await self.client.create(PODS, gpu_pod(name, gpus), "default", type=PodObject)
        if node:
            bind(self.server.registry, "default", name, {"target": {"kind": "Node", "name": node}})
        return made.metadata.uid

    async def compare(self) -> list[str]:
        await self.watcher.catch_up()
        async with asyncio.timeout(60):
            return await compare(self._asking, self.watcher, self.engine)


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    async with proxied() as (client, proxy, direct):
        made = Watched(client, proxy, direct)
        for name in ("n0", "n1"):
            await direct.create(NODES, gpu_node(name))
        async with running(made.watcher.run()):
            await made.watcher.wait_synced()
            yield made


async def test_correct_caches_show_no_difference() -> None:
    async with watched() as here:
        for number in range(6):
            await here.create_pod(f"p{number}", "n0" if number % 2 else "")
        assert await here.compare() == []
        await here.client.delete(PODS, "p0", "default", grace=0)
        await here.client.delete(PODS, "p1", "default", grace=0)
        await here.client.patch(PODS, "p2", {"metadata": {"labels": {"a": "b"}}}, "default")
        await here.client.patch(PODS, "p3", {"status": {"phase": "Succeeded"}}, "default", "status")
        await here.client.delete(NODES, "n1")
        await here.create_pod("late", "gone")
        assert await here.compare() == []


async def test_open_decisions_are_no_difference() -> None:
    async with watched() as here:
        await here.create_pod("a")
        await here.watcher.catch_up()
        here.engine.handle(TookOver(), 0.0)
        decided = [effect for effect in here.engine.run_cycle(1.0) if isinstance(effect, Commit)]
        (sent,) = here.engine.handle(Committed(decided[0].sequence), 1.0)
        assert isinstance(sent, SendBind)
        assert sent.bind.uid in here.state.cluster.usage
        assert await here.compare() == []


def _forget_pod(state: State, uid: str) -> None:
    del state.pods[uid]
    state.cluster.forget(uid)


def _age_pod(state: State, uid: str) -> None:
    state.pods[uid] = replace(state.pods[uid], version="1")


def _forget_usage(state: State, uid: str) -> None:
    state.cluster.forget(uid)


def _count_ghost(state: State, uid: str) -> None:
    state.cluster.add(replace(state.pods[uid], uid="ghost", name="ghost"), "n0", None)


def _count_ended(state: State, uid: str) -> None:
    state.pods[uid] = replace(state.pods[uid], node=None)


def _forget_node(state: State, _uid: str) -> None:
    state.remove_node("n1")


def _invent_node(state: State, _uid: str) -> None:
    found = next(node for node in state.cluster.table.nodes if node is not None and node.name == "n1")
    state.put_node(replace(found, name="n2"))


@pytest.mark.parametrize(
    ("plant", "line"),
    [
        (_forget_pod, "pod default/a is not known"),
        (_age_pod, "pod default/a is known at version 1, not "),
        (_forget_usage, "pod default/a runs on n0 and is not counted there"),
        (_count_ghost, "pod default/ghost is counted on n0 and does not run there"),
        (_count_ended, "pod default/a is counted on n0 and does not run there"),
        (_forget_node, "node n1 is not known"),
        (_invent_node, "node n2 does not exist"),
    ],
)
async def test_planted_difference_is_found(plant: Callable[[State, str], None], line: str) -> None:
    async with watched() as here:
        uid = await here.create_pod("a", "n0")
        assert await here.compare() == []
        plant(here.state, uid)
        (found,) = await here.compare()
        assert found.startswith(line)


async def test_objects_that_change_during_the_comparison_are_skipped() -> None:
    async with watched() as here:
        for name in ("a", "b"):
            await here.create_pod(name, "n0")

        async def change_everything() -> None:
            await here.create_pod("late", "n0")
            await here.client.patch(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
            await here.client.delete(PODS, "b", "default", grace=0)
            await here.client.create(NODES, gpu_node("late"))
            await here.client.delete(NODES, "n1")
            await here.watcher.catch_up()

        for path in ("/api/v1/nodes", "/api/v1/pods"):
            here.proxy.plan("GET", path, _then(change_everything))
            assert await here.compare() == []
            await here.client.delete(PODS, "late", "default", grace=0)
            await here.client.delete(NODES, "late")
            await here.create_pod("b", "n0")
            await here.client.create(NODES, gpu_node("n1"))
        here.proxy.plan("GET", "/api/v1/nodes", after(change_everything))
        assert await here.compare() == []


def _then(last: Callable[[], Any]) -> Any:
    async def act(forward: Callable[[], Any]) -> Any:
        found = await forward()
        await last()
        return found

    return act
