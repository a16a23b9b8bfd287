"""Jobs that have succeeded, as the operators leave them: `doctor` does not warn of them, and `queues` counts none."""

from __future__ import annotations

import pytest

from gpu_scheduler.cli.checks import cluster
from gpu_scheduler.cli.checks.cluster import CheckLevel
from gpu_scheduler.cli.render.gangs import list_gangs
from gpu_scheduler.cli.render.queues import list_queues
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.gangs.contract import QUEUES
from gpu_scheduler.gangs.dialects.volcano import Volcano
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import NODES, PODS
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.snapshot import take_snapshot
from tests.unit.k8s.live_api import gpu_node, gpu_pod, proxied
from tests.unit.k8s.scripted_api import written
from tests.unit.scheduler.reporting import group_kind

GROUPS = Volcano.resources[0]
SETTINGS = Settings(namespace="default", lease_name="leader", scheduler_names=("gpu-scheduler", "volcano"))
LONG_AGO = "2020-01-01T00:00:00Z"


async def add_ended_pods(client: Client, owner: Json) -> None:
    """A node, a queue, and four succeeded pods of a job in it."""
    await client.create(NODES, gpu_node("n0", 8))
    await client.create(QUEUES, written(QUEUES, "research", spec={}))
    annotations = {"scheduling.k8s.io/group-name": "train", "gpu-scheduler.io/queue": "research"}
    meta = {"annotations": annotations, "ownerReferences": [{**owner, "name": "train", "uid": "u", "controller": True}]}
    for number in range(4):
        await client.create(PODS, gpu_pod(f"train-{number}", nodeName="n0", meta=meta), "default")
        ended = {"status": {"phase": "Succeeded", "startTime": LONG_AGO}}
        await client.patch(PODS, f"train-{number}", ended, "default", "status")


@pytest.mark.parametrize(
    ("api_version", "kind", "keeps_group"),
    [("kubeflow.org/v1", "PyTorchJob", False), ("batch.volcano.sh/v1alpha1", "Job", True)],
    ids=["PyTorchJob, which removes its PodGroup", "Volcano Job, which keeps it"],
)
async def test_a_job_that_succeeded_is_finished(api_version: str, kind: str, keeps_group: bool) -> None:
    async with proxied(group_kind(GROUPS)) as (client, _, bystander):
        await add_ended_pods(bystander, {"apiVersion": api_version, "kind": kind})
        if keeps_group:
            spec = {"minMember": 4, "queue": "research", "minResources": {"nvidia.com/gpu": "4"}}
            await bystander.create(GROUPS, written(GROUPS, "train", spec=spec), "default")
            await bystander.patch(GROUPS, "train", {"status": {"phase": "Completed"}}, "default", "status")
        view = await take_snapshot(client, SETTINGS)
    later = view.now + 86_400
    (line,) = list_gangs(view.engine, later, None).gangs
    assert (line.name, line.phase, line.succeeded, line.waiting_since) == ("train", Phase.FINISHED, 4, None)
    assert [check.level for check in cluster.check_gangs(view.engine, later)] == [CheckLevel.OK, CheckLevel.OK]
    assert [(queue.name, queue.running, queue.waiting) for queue in list_queues(view.engine)][-1] == ("research", 0, 0)
