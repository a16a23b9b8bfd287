"""Snapshots of a cluster: contents, dry run, and no writes."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.events import Bind, Commit
from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.gangs.contract import QUEUES
from gpu_scheduler.gangs.dialects.volcano import Volcano
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import Refused
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.k8s.objects import Json, PodObject
from gpu_scheduler.k8s.resources import NODES, PODS, Resource
from gpu_scheduler.scheduler.commit.commit_log import CommitLog
from gpu_scheduler.scheduler.commit.intents import Intents
from gpu_scheduler.scheduler.settings import Settings
from gpu_scheduler.scheduler.snapshot import ClusterSnapshot, take_snapshot
from tests.unit.k8s.live_api import answer_with, gpu_node, gpu_pod, proxied
from tests.unit.k8s.scripted_api import written
from tests.unit.scheduler.reporting import DIALECT, GROUPS, group_kind

SETTINGS = Settings(namespace="default", lease_name="leader")
BOTH_NAMES = Settings(namespace="default", lease_name="leader", scheduler_names=("gpu-scheduler", "volcano"))
MEMBER = {"labels": {"scheduling.x-k8s.io/pod-group": "train"}}
KEY = GangKey(DIALECT, "default", "train")


async def fill(client: Client, members: int = 2, **spec: Any) -> list[str]:
    """A node of four GPUs and a gang; returns its pods' uids."""
    await client.create(NODES, gpu_node("n0", 4))
    await client.create(GROUPS, written(GROUPS, "train", spec={"minMember": members}), "default")
    pods = [gpu_pod(f"p{number}", meta=dict(MEMBER), **spec) for number in range(members)]
    return [(await client.create(PODS, pod, "default", type=PodObject)).metadata.uid for pod in pods]


def phase(view: ClusterSnapshot) -> Phase:
    return view.engine.state.records[KEY].phase


async def test_snapshot_shows_the_next_decisions_and_writes_nothing() -> None:
    async with proxied(group_kind()) as (client, proxy, bystander):
        uids = await fill(bystander)
        await bystander.create(QUEUES, written(QUEUES, "blue", spec={"weight": 3}))
        view = await take_snapshot(client, SETTINGS)
        assert {sent.method for sent in proxy.sent} == {"GET"}
    assert phase(view) is Phase.COMMITTING
    assert (set(view.nodes), set(view.pods)) == ({"n0"}, set(uids))
    assert (view.lease, view.served.has(GROUPS)) == (None, True)
    assert {pod.metadata.name for pod in view.registry.members_of(KEY)} == {"p0", "p1"}
    assert view.engine.state.quota.queues["blue"].weight == 3


async def test_gang_that_does_not_fit_is_explained() -> None:
    async with proxied(group_kind()) as (client, _, bystander):
        await fill(bystander, 5)
        view = await take_snapshot(client, SETTINGS)
    told = view.engine.report(KEY, view.now)
    assert told is not None
    assert told.refusal is not None
    assert Reason.RESOURCE in {refusal.reason for refusal in told.refusal.refusals}
    assert (told.phase, told.refusal.fitting) == (Phase.WAITING, 4)


async def test_snapshot_shows_the_leader_and_counts_its_committed_binds() -> None:
    async with proxied(group_kind()) as (client, _, bystander):
        uids = await fill(bystander)
        await bystander.create(NODES, gpu_node("n1", 4))
        lease = CommitLog(bystander, Candidate("default", "leader", "a"), ("gpu-scheduler",))
        await lease.acquire()
        binds = tuple(Bind(uid, "default", f"p{i}", 0, "n1", (3 - i,)) for i, uid in enumerate(uids))
        intents = Intents(bystander, "default")
        written = await intents.write(1, Commit(0, binds))
        await lease.swap(written, ())
        view = await take_snapshot(client, SETTINGS)
        assert view.lease is not None
        assert (view.lease.holder, view.lease.epoch, view.lease.committed) == ("a", 1, 1)
        assert abs((view.lease.renewed or 0.0) - view.now) < 60
        assert phase(view) is Phase.BINDING
        used = view.engine.state.cluster.usage
        assert [(used[uid].node, used[uid].devices) for uid in uids] == [("n1", (3,)), ("n1", (2,))]
        await intents.delete(written)  # finished between reading the Lease and reading its intents
        assert phase(await take_snapshot(client, SETTINGS)) is Phase.COMMITTING


@pytest.mark.parametrize(("serves", "ours"), [(("other",), True), ((), False)])
async def test_snapshot_uses_the_scheduler_names_of_the_leader(serves: tuple[str, ...], ours: bool) -> None:
    async with proxied(group_kind()) as (client, _, bystander):
        await fill(bystander, schedulerName="other")
        await CommitLog(bystander, Candidate("default", "leader", "a"), serves).acquire()
        view = await take_snapshot(client, SETTINGS)
    assert (KEY in view.engine.state.records) is ours


PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
VOLCANO_GROUPS = Volcano.resources[0]


def replica(gpus: int) -> Json:
    container = {"name": "pytorch", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"replicas": 1, "template": {"spec": {"schedulerName": "gpu-scheduler", "containers": [container]}}}


async def test_members_that_do_not_exist_yet_request_what_the_templates_of_their_job_say() -> None:
    async with proxied(group_kind(VOLCANO_GROUPS), group_kind(PYTORCH_JOBS)) as (client, proxy, bystander):
        await bystander.create(NODES, gpu_node("n0", 4))
        spec = {"pytorchReplicaSpecs": {"Master": replica(1), "Worker": replica(8)}}
        job = await bystander.create(PYTORCH_JOBS, written(PYTORCH_JOBS, "train", spec=spec), "default")
        group = written(VOLCANO_GROUPS, "train", spec={"minMember": 2, "minResources": {"nvidia.com/gpu": "9"}})
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train", "controller": True}
        group["metadata"]["ownerReferences"] = [{**owner, "uid": job["metadata"]["uid"]}]
        await bystander.create(VOLCANO_GROUPS, group, "default")
        assert await expected_gpus(client) == [1, 8]
        proxy.plan("GET", "/pytorchjobs", answer_with(403))
        assert await expected_gpus(client) == [5, 5]  # equal parts of minResources


async def expected_gpus(client: Client) -> list[int]:
    view = await take_snapshot(client, BOTH_NAMES)
    report = view.engine.report(GangKey(Volcano.name, "default", "train"), view.now)
    assert report is not None
    assert report.gang is not None
    return [one.shape.gpus for one in report.gang.expected for _ in range(one.count)]


async def test_forbidden_kinds_are_skipped_unless_they_are_required() -> None:
    async with proxied(group_kind()) as (client, proxy, bystander):
        await fill(bystander)
        for part in ("/queues", "/leases", "/persistentvolumes", "/namespaces"):
            proxy.plan("GET", part, answer_with(403))
        view = await take_snapshot(client, SETTINGS)
        assert (phase(view), view.lease) == (Phase.COMMITTING, None)
        proxy.drop_plans()
        for part in ("/pods", "/nodes"):
            proxy.plan("GET", part, answer_with(403))
            with pytest.raises(Refused):
                await take_snapshot(client, SETTINGS)
            proxy.drop_plans()
