"""The PodGroup of a job."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.operator.frameworks import pytorch
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER, SCHEDULER_PLUGINS, VOLCANO, PodGroupApi
from tests.unit.operator.job_fixtures import group, raw, replicas, tf, torch


def made(api: PodGroupApi, **spec: Any) -> Json:
    return api.make_group(torch(3, **spec))


def test_the_group_needs_all_replicas_and_the_sum_of_their_requests() -> None:
    assert made(VOLCANO)["spec"] == {
        "minMember": 4,
        "minResources": {"cpu": "2000m", "nvidia.com/gpu": "4"},
        "queue": "default",
    }
    assert made(SCHEDULER_PLUGINS)["spec"] == {"minMember": 4, "minResources": {"cpu": "2000m", "nvidia.com/gpu": "4"}}


def test_a_smaller_minimum_counts_leaders_first() -> None:
    policy = {"schedulingPolicy": {"minAvailable": 2}}
    specs = {"Worker": replicas(3, gpus=1), "Master": replicas(1, gpus=5)}
    job = pytorch.decode(raw({"pytorchReplicaSpecs": specs, "runPolicy": policy}))
    assert VOLCANO.group_spec(job)["minResources"]["nvidia.com/gpu"] == "6"


def test_the_minimum_of_an_elastic_job_is_its_min_replicas() -> None:
    specs = {"Worker": replicas(4)}
    job = pytorch.decode(raw({"pytorchReplicaSpecs": specs, "elasticPolicy": {"minReplicas": 2, "maxReplicas": 8}}))
    assert VOLCANO.group_spec(job)["minMember"] == 2
    assert VOLCANO.group_spec(job)["minResources"]["nvidia.com/gpu"] == "2"


def test_a_scheduling_policy_overrides_the_computed_values() -> None:
    policy = {
        "schedulingPolicy": {
            "minAvailable": 3,
            "queue": "research",
            "priorityClass": "high",
            "minResources": {"nvidia.com/gpu": "9"},
            "scheduleTimeoutSeconds": 60,
        }
    }
    volcano = made(VOLCANO, run=policy)
    assert volcano["spec"] == {
        "minMember": 3,
        "minResources": {"nvidia.com/gpu": "9"},
        "queue": "research",
        "priorityClassName": "high",
    }
    assert volcano["metadata"]["annotations"] == {"gpu-scheduler.io/timeout-seconds": "60"}
    assert made(SCHEDULER_PLUGINS, run=policy)["spec"]["scheduleTimeoutSeconds"] == 60


def test_gang_options_of_a_job_are_copied_to_its_group() -> None:
    notes = {"gpu-scheduler.io/topology": "required:rack", "team": "a"}
    for api in (VOLCANO, SCHEDULER_PLUGINS):
        assert made(api, meta={"annotations": notes})["metadata"]["annotations"] == {
            "gpu-scheduler.io/topology": "required:rack"
        }


@pytest.mark.parametrize(
    ("api", "scheduler", "ours"),
    [
        (GPU_SCHEDULER, "", True),
        (GPU_SCHEDULER, "gpu-scheduler", True),
        (GPU_SCHEDULER, "other", False),
        (VOLCANO, "", False),
    ],
)
def test_a_group_for_our_scheduler_is_annotated(api: PodGroupApi, scheduler: str, ours: bool) -> None:
    notes = made(api, **({"schedulerName": scheduler} if scheduler else {}))["metadata"].get("annotations", {})
    assert ("gpu-scheduler.io/made-by" in notes) is ours


def test_the_job_owns_its_group() -> None:
    (owner,) = made(GPU_SCHEDULER)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("PyTorchJob", "train", True)


@pytest.mark.parametrize(
    ("phase", "opens"),
    [
        ("", False),
        ("Pending", False),
        ("Inqueue", True),
        ("Scheduling", True),
        ("Running", True),
        ("Unknown", True),
        ("Completed", True),
        ("Finished", True),
    ],
)
def test_a_group_is_open_once_the_scheduler_has_admitted_it(phase: str, opens: bool) -> None:
    assert GPU_SCHEDULER.is_open(group(torch(1), phase)) is opens
    assert GPU_SCHEDULER.is_open(None) is False


def test_a_tfjob_is_a_gang_too() -> None:
    assert GPU_SCHEDULER.group_spec(tf(PS=2, Worker=3))["minMember"] == 5
