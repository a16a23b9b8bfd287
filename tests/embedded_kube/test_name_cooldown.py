"""Names that were somebody's a moment ago: kubectl must not take the successor for the object that it waits for."""

from __future__ import annotations

import asyncio

from embedded_kube.errors import StatusError
from embedded_kube.registry.name_cooldown import NameCooldown
from tests.embedded_kube.world import PATIENCE, running_world, stateful_set

REST = 0.3


async def test_the_successor_of_a_stateful_pod_lets_its_name_rest() -> None:
    async with running_world() as world:
        world.api.name_cooldown = NameCooldown(REST)
        await world.create("statefulsets.apps", stateful_set("db", 1))
        await world.until(lambda: len(world.pods()) == 1)
        before = world.pods()[0]["metadata"]["uid"]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await world.delete("pods", "db-0")
        await world.until(lambda: not world.pods(alive=False), "a moment in which nobody has the name")
        await world.until(lambda: world.pods(alive=False), "the successor")
        assert loop.time() - begun >= REST
        assert world.pods(alive=False)[0]["metadata"]["uid"] != before


async def test_a_name_rests_alone_and_only_for_its_kind_and_namespace() -> None:
    async with running_world() as world, asyncio.timeout(PATIENCE):
        world.api.name_cooldown = NameCooldown(3600)
        await world.create("namespaces", {"metadata": {"name": "other"}})
        await world.create("configmaps", {"metadata": {"name": "a"}})
        await world.delete("configmaps", "a")
        await world.create("configmaps", {"metadata": {"name": "b"}})
        await world.create("secrets", {"metadata": {"name": "a"}})
        await world.create("configmaps", {"metadata": {"name": "a", "namespace": "other"}})
        await world.create("configmaps", {"metadata": {"generateName": "a"}})


async def test_a_name_that_rests_may_be_given_to_somebody_else_meanwhile() -> None:
    async with running_world() as world:
        world.api.name_cooldown = NameCooldown(REST)
        await world.create("configmaps", {"metadata": {"name": "a"}})
        await world.delete("configmaps", "a")
        both = (world.create("configmaps", {"metadata": {"name": "a"}}) for _ in range(2))
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        refusals = [one.reason for one in outcomes if isinstance(one, StatusError)]
        assert refusals == ["AlreadyExists"]
