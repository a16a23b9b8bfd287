"""Controllers that are killed, have stale caches or fail: the result is always the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from embedded_kube.client import InProcessClient
from embedded_kube.controllers import run_controllers
from embedded_kube.controllers.workloads import replicaset
from embedded_kube.errors import internal_error
from embedded_kube.registry.options import SYSTEM
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.world import World, deployment, job, running_world, stateful_set

INDEX = "batch.kubernetes.io/job-completion-index"


class SlowWatchClient(InProcessClient):
    """A client whose watches deliver events late."""

    async def watch(self, resource: str) -> AsyncIterator[tuple[str, Json]]:
        async for event in super().watch(resource):
            await asyncio.sleep(random.uniform(0.0, 0.02))
            yield event


async def start_work(world: World) -> None:
    """Creates a Deployment, a StatefulSet and a Job whose odd indexes fail once."""
    failed: set[str] = set()

    def outcome(pod: Json) -> str | None:
        index = pod["metadata"].get("annotations", {}).get(INDEX)
        if index is None:
            return None
        if int(index) % 2 and index not in failed:
            failed.add(index)
            return "Failed"
        return "Succeeded"

    world.outcome = outcome
    await world.create("deployments.apps", deployment("web", 6))
    await world.create("statefulsets.apps", stateful_set("db", 3))
    await world.create("jobs.batch", job("train", completions=12, parallelism=5, completionMode="Indexed"))


def conditions(world: World, resource: str, name: str) -> set[str]:
    found = world.get(resource, name) or {}
    return {c["type"] for c in found.get("status", {}).get("conditions", ()) if c["status"] == "True"}


def update_image(found: Json) -> None:
    found["spec"]["template"]["spec"]["containers"][0]["image"] = "two"


def is_done(world: World) -> bool:
    web, db, train = (
        (world.get(resource, name) or {}).get("status", {})
        for resource, name in (("deployments.apps", "web"), ("statefulsets.apps", "db"), ("jobs.batch", "train"))
    )
    images = Counter(pod["spec"]["containers"][0]["image"] for pod in world.pods())
    return (
        web.get("updatedReplicas") == web.get("availableReplicas") == web.get("replicas") == 6
        and db.get("readyReplicas") == db.get("updatedReplicas") == 3
        and any(c["type"] == "Complete" for c in train.get("conditions", ()))
        and images == {"two": 9}
    )


def check_result(world: World) -> None:
    """Checks what must hold in every run."""
    train: Any = world.get("jobs.batch", "train")
    assert (train["status"]["succeeded"], train["status"]["failed"]) == (12, 6)
    assert train["status"]["completedIndexes"] == "0-11"
    pods = world.pods(alive=False)
    succeeded = Counter(
        pod["metadata"]["annotations"][INDEX] for pod in pods if pod["status"].get("phase") == "Succeeded"
    )
    assert succeeded == {str(index): 1 for index in range(12)}
    assert Counter(pod["metadata"]["ownerReferences"][0]["kind"] for pod in pods) == {
        "ReplicaSet": 6,
        "StatefulSet": 3,
        "Job": 18,
    }
    assert len(world.all("replicasets.apps")) == 2
    assert len(world.all("controllerrevisions.apps")) == 2


@pytest.mark.parametrize("seed", range(4))
async def test_controllers_killed_at_random_moments_reach_the_same_result(seed: int) -> None:
    rng = random.Random(seed)
    async with running_world() as world:
        await start_work(world)
        for number in range(12):
            await asyncio.sleep(rng.uniform(0.0, 0.08))
            await world.kill_controllers()
            await asyncio.sleep(rng.uniform(0.0, 0.02))
            world.start_controllers()
            if number == 4:
                await world.edit("deployments.apps", "web", update_image)
                await world.edit("statefulsets.apps", "db", update_image)
        await world.until(lambda: is_done(world), "the result")
        await world.settle()
        check_result(world)


async def test_slow_watches_never_cause_duplicates() -> None:
    async with running_world() as world:
        await world.kill_controllers()
        world.controllers_client = SlowWatchClient(world.api, SYSTEM)
        world.start_controllers()
        await start_work(world)
        seen: set[str] = set()

        def done() -> bool:
            seen.update(pod["metadata"]["uid"] for pod in world.pods(alive=False))
            web, db = world.get("deployments.apps", "web") or {}, world.get("statefulsets.apps", "db") or {}
            counts = web.get("status", {}).get("availableReplicas"), db.get("status", {}).get("readyReplicas")
            return counts == (6, 3)

        await world.until(done, "first rollout")
        await world.edit("deployments.apps", "web", update_image)
        await world.edit("statefulsets.apps", "db", update_image)
        await world.until(lambda: is_done(world), "the result")
        await world.settle()
        check_result(world)
        created = sum(event["count"] for event in world.all("events") if event["reason"] == "SuccessfulCreate")
        # 6 + 6 of the deployment, 3 + 3 of the set, 18 of the job.
        assert created == 36


async def test_cancelling_the_controllers_leaves_no_task() -> None:
    async with running_world() as world:
        await world.kill_controllers()
        before = asyncio.all_tasks()
        task = asyncio.create_task(run_controllers(world.client, world.settings))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before


async def test_a_bug_in_one_controller_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_world() as world:

        def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(replicaset, "plan_replicas", broken)
        await world.create("deployments.apps", deployment())
        world.outcome = lambda pod: "Succeeded" if pod["spec"]["restartPolicy"] == "Never" else None
        await world.create("jobs.batch", job())
        await world.until(lambda: "Complete" in conditions(world, "jobs.batch", "train"), "the job is done")
        assert any("a bug" in text for text in world.error_log.found)
        monkeypatch.undo()
        await world.until(lambda: len(world.pods()) == 3, "and it recovers")
        world.error_log.found.clear()


async def test_failed_creations_are_retried_and_reported_in_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_world() as world:
        create = world.client.create
        broken = True

        async def failing(resource: str, found: Json) -> Json:
            if resource == "pods" and broken:
                raise internal_error("disk full")
            return await create(resource, found)

        monkeypatch.setattr(world.client, "create", failing)
        await world.create("deployments.apps", deployment())

        def repeats() -> int:
            return max((e["count"] for e in world.all("events") if e["reason"] == "FailedCreate"), default=0)

        await world.until(lambda: repeats() >= 3, "event")
        await world.until(lambda: "ReplicaFailure" in conditions(world, "deployments.apps", "web"), "condition")
        assert len([e for e in world.all("events") if e["reason"] == "FailedCreate"]) == 1
        broken = False
        await world.until(lambda: len(world.pods()) == 3, "created")
