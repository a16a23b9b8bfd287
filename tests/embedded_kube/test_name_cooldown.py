"""The cooldown of names: kubectl must not take the successor for the object whose deletion it waits for."""

from __future__ import annotations

import asyncio

from embedded_kube.errors import StatusError
from embedded_kube.registry.name_cooldown import NameCooldown
from tests.embedded_kube.world import TIMEOUT, running_world, stateful_set

COOLDOWN = 0.3


async def test_the_successor_of_a_stateful_set_pod_waits_for_the_cooldown() -> None:
    async with running_world() as world:
        world.api.name_cooldown = NameCooldown(COOLDOWN)
        await world.create("statefulsets.apps", stateful_set("db", 1))
        await world.until(lambda: len(world.pods()) == 1)
        before = world.pods()[0]["metadata"]["uid"]
        loop = asyncio.get_running_loop()
        start = loop.time()
        await world.delete("pods", "db-0")
        await world.until(lambda: not world.pods(alive=False), "the name to be free")
        await world.until(lambda: world.pods(alive=False), "the successor")
        assert loop.time() - start >= COOLDOWN
        assert world.pods(alive=False)[0]["metadata"]["uid"] != before


async def test_the_cooldown_is_for_one_name_of_one_kind_and_namespace() -> None:
    async with running_world() as world, asyncio.timeout(TIMEOUT):
        world.api.name_cooldown = NameCooldown(3600)
        await world.create("namespaces", {"metadata": {"name": "other"}})
        await world.create("configmaps", {"metadata": {"name": "a"}})
        await world.delete("configmaps", "a")
        await world.create("configmaps", {"metadata": {"name": "b"}})
        await world.create("secrets", {"metadata": {"name": "a"}})
        await world.create("configmaps", {"metadata": {"name": "a", "namespace": "other"}})
        await world.create("configmaps", {"metadata": {"generateName": "a"}})


async def test_a_name_in_cooldown_can_be_taken_by_another_create() -> None:
    async with running_world() as world:
        world.api.name_cooldown = NameCooldown(COOLDOWN)
        await world.create("configmaps", {"metadata": {"name": "a"}})
        await world.delete("configmaps", "a")
        creates = (world.create("configmaps", {"metadata": {"name": "a"}}) for _ in range(2))
        outcomes = await asyncio.gather(*creates, return_exceptions=True)
        refusals = [one.reason for one in outcomes if isinstance(one, StatusError)]
        assert refusals == ["AlreadyExists"]
