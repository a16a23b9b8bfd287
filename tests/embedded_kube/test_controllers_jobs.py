"""Job controller against a running API."""

from __future__ import annotations

from typing import Any

import pytest

from embedded_kube.controllers.workloads.job_plan import FINALIZER
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.world import World, job, running_world

JOBS = "jobs.batch"
INDEX = "batch.kubernetes.io/job-completion-index"


def status(world: World, name: str = "train") -> Json:
    found = world.get(JOBS, name) or {}
    result: Json = found.get("status", {})
    return result


def has(world: World, kind: str, reason: str = "") -> bool:
    return any(
        c["type"] == kind and c["status"] == "True" and reason in ("", c["reason"])
        for c in status(world).get("conditions", ())
    )


async def test_a_job_runs_its_pods_to_completion_and_counts_each_once() -> None:
    async with running_world() as world:
        world.outcome = lambda _: "Succeeded"
        await world.create(JOBS, job(completions=7, parallelism=3))
        active = 0

        def done() -> bool:
            nonlocal active
            active = max(active, len(world.pods()))
            return has(world, "Complete", "CompletionsReached")

        await world.until(done, "complete")
        found = status(world)
        assert found["succeeded"] == 7
        assert "active" not in found
        assert found["uncountedTerminatedPods"] == {}
        assert found["completionTime"]
        assert has(world, "SuccessCriteriaMet")
        assert active <= 3
        assert len(world.pods(alive=False)) == 7
        assert not any(FINALIZER in pod["metadata"].get("finalizers", ()) for pod in world.pods(alive=False))
        await world.until(lambda: "Completed" in world.reasons(), "event")


async def test_an_indexed_job_completes_every_index_once() -> None:
    async with running_world() as world:
        world.outcome = lambda _: "Succeeded"
        await world.create(JOBS, job(completions=4, parallelism=4, completionMode="Indexed"))
        await world.until(lambda: has(world, "Complete"), "complete")
        assert status(world)["completedIndexes"] == "0-3"
        pods = sorted(world.pods(alive=False), key=lambda pod: pod["metadata"]["name"])
        assert [pod["metadata"]["annotations"][INDEX] for pod in pods] == ["0", "1", "2", "3"]
        first = pods[0]
        assert first["metadata"]["labels"][INDEX] == "0"
        assert first["metadata"]["name"].startswith("train-0-")
        assert first["spec"]["hostname"] == "train-0"
        (variable,) = first["spec"]["containers"][0]["env"]
        assert variable["name"] == "JOB_COMPLETION_INDEX"
        assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"


async def test_a_failed_index_is_retried() -> None:
    async with running_world() as world:
        failed: set[str] = set()

        def fail_each_once(pod: Json) -> str:
            index = pod["metadata"]["annotations"][INDEX]
            if index in failed:
                return "Succeeded"
            failed.add(index)
            return "Failed"

        world.outcome = fail_each_once
        await world.create(JOBS, job(completions=3, parallelism=3, completionMode="Indexed"))
        await world.until(lambda: has(world, "Complete"), "complete")
        assert (status(world)["succeeded"], status(world)["failed"]) == (3, 3)


async def test_a_job_fails_when_its_backoff_limit_is_exceeded() -> None:
    async with running_world() as world:
        world.outcome = lambda _: "Failed"
        await world.create(JOBS, job(backoffLimit=2))
        await world.until(lambda: has(world, "Failed", "BackoffLimitExceeded"), "failed")
        assert status(world)["failed"] == 3
        assert has(world, "FailureTarget")
        await world.settle()
        assert len(world.pods(alive=False)) == 3
        assert "BackoffLimitExceeded" in world.reasons()


async def test_a_job_fails_at_its_active_deadline() -> None:
    async with running_world() as world:
        await world.create(JOBS, job(parallelism=2, completions=2))
        await world.until(lambda: len(world.pods()) == 2, "two pods")
        await world.edit(JOBS, "train", lambda found: found["spec"].update(activeDeadlineSeconds=1))
        await world.until(lambda: has(world, "Failed", "DeadlineExceeded"), "failed")
        assert world.pods() == []


async def test_a_finished_job_is_deleted_with_its_pods_after_its_ttl() -> None:
    async with running_world() as world:
        world.outcome = lambda _: "Succeeded"
        await world.create(JOBS, job(ttlSecondsAfterFinished=0))
        await world.until(lambda: world.get(JOBS, "train") is None, "job gone")
        await world.until(lambda: world.pods(alive=False) == [], "pods gone")


async def test_a_suspended_job_stops_its_pods_without_counting_them_as_failed() -> None:
    async with running_world() as world:
        await world.create(JOBS, job(parallelism=2, completions=2, suspend=True))
        await world.settle()
        assert world.pods() == []
        assert "startTime" not in status(world)
        await world.edit(JOBS, "train", lambda found: found["spec"].update(suspend=False))
        await world.until(lambda: len(world.pods()) == 2, "resumed")
        await world.edit(JOBS, "train", lambda found: found["spec"].update(suspend=True))
        await world.until(lambda: world.pods(alive=False) == [] and has(world, "Suspended"), "suspended")
        await world.settle()
        assert "failed" not in status(world)
        world.outcome = lambda _: "Succeeded"
        await world.edit(JOBS, "train", lambda found: found["spec"].update(suspend=False))
        await world.until(lambda: has(world, "Complete"), "complete")
        assert {"Suspended", "Resumed"} <= world.reasons()


async def test_a_deleted_pod_of_a_job_counts_as_failed_and_is_replaced() -> None:
    async with running_world() as world:
        await world.create(JOBS, job())
        await world.until(lambda: len(world.pods()) == 1, "a pod")
        first = world.pods()[0]["metadata"]["name"]
        await world.delete("pods", first)
        await world.until(lambda: [p["metadata"]["name"] for p in world.pods()] not in ([], [first]), "a replacement")
        await world.until(lambda: status(world).get("failed") == 1, "counted")


async def test_a_backoff_limit_per_index_fails_only_that_index() -> None:
    async with running_world() as world:
        world.outcome = lambda pod: "Failed" if pod["metadata"]["annotations"][INDEX] == "1" else "Succeeded"
        await world.create(JOBS, job(completions=3, parallelism=3, completionMode="Indexed", backoffLimitPerIndex=1))
        await world.until(lambda: has(world, "Failed", "FailedIndexes"), "failed")
        assert (status(world)["completedIndexes"], status(world)["failedIndexes"]) == ("0,2", "1")
        assert status(world)["failed"] == 2


async def test_a_success_policy_completes_a_job_when_index_0_has_succeeded() -> None:
    async with running_world() as world:
        world.outcome = lambda pod: "Succeeded" if pod["metadata"]["annotations"][INDEX] == "0" else None
        policy = {"rules": [{"succeededIndexes": "0"}]}
        await world.create(JOBS, job(completions=3, parallelism=3, completionMode="Indexed", successPolicy=policy))
        await world.until(lambda: has(world, "Complete", "SuccessPolicy"), "complete")
        assert world.pods() == []
        assert "failed" not in status(world)


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_deleting_a_job_deletes_its_pods(propagation: str) -> None:
    async with running_world() as world:
        await world.create(JOBS, job(parallelism=3, completions=3))
        await world.until(lambda: status(world).get("ready") == 3, "three ready")
        await world.delete(JOBS, "train", propagation)
        await world.until(lambda: world.get(JOBS, "train") is None and world.pods(alive=False) == [], "all gone")


async def test_orphaned_pods_of_a_job_lose_their_finalizer() -> None:
    async with running_world() as world:
        await world.create(JOBS, job())
        await world.until(lambda: len(world.pods()) == 1, "a pod")
        await world.delete(JOBS, "train", "Orphan")
        await world.until(lambda: world.get(JOBS, "train") is None, "job gone")
        await world.until(lambda: not world.pods()[0]["metadata"].get("finalizers"), "no finalizer")
        pod: Any = world.pods()[0]
        assert not pod["metadata"].get("ownerReferences")
