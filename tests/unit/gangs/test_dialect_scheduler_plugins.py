"""PodGroups of scheduler-plugins."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey, Shape
from gpu_scheduler.gangs.dialects import GangContext, Membership, read_membership
from gpu_scheduler.gangs.dialects.dialect import StatusMessage, StatusUpdate
from gpu_scheduler.gangs.dialects.scheduler_plugins import SchedulerPlugins
from gpu_scheduler.gangs.pods.shapes import read_shape
from gpu_scheduler.k8s.objects import Json, Meta, OwnerReference, PodSpec, RawObject
from tests.unit.gangs.gang_fixtures import LATER, THEN, decode, group, patched, said, status, tell
from tests.unit.gangs.pods import pod

KEY = GangKey("scheduler-plugins", "x", "train")


def test_a_pod_joins_by_label() -> None:
    assert read_membership(pod(labels={"scheduling.x-k8s.io/pod-group": "train"})) == Membership(KEY)


def test_a_podgroup_is_decoded() -> None:
    gang = decode(KEY, group(minMember=4, scheduleTimeoutSeconds=30, minResources={"cpu": "4"}))
    assert (gang.minimum, gang.timeout, gang.expected, gang.problem) == (4, 30.0, (), "")
    assert decode(KEY, group(minMember=4, scheduleTimeoutSeconds=0)).timeout is None
    assert decode(KEY, group(minMember=4, scheduleTimeoutSeconds=10**400)).timeout == 2**31 - 1
    assert decode(KEY, group()).minimum == 1
    assert decode(KEY, group(minMember="4")).problem.startswith("spec.minMember: '4' is not a valid number")


@pytest.mark.parametrize(
    ("phase", "running", "word"),
    [
        (Phase.GATHERING, 0, "Pending"),
        (Phase.WAITING, 0, "Pending"),
        (Phase.BLOCKED, 0, "Pending"),
        (Phase.NOMINATED, 0, "Scheduling"),
        (Phase.COMMITTING, 0, "Scheduling"),
        (Phase.BINDING, 2, "Scheduling"),
        (Phase.RUNNING, 4, "Running"),
        (Phase.HOLDING, 3, "Unknown"),
        (Phase.DEGRADED, 3, "Unknown"),
        (Phase.RESTARTING, 1, "Unknown"),
        (Phase.RESTARTING, 0, "Pending"),
        (Phase.FINISHED, 0, "Finished"),
        (Phase.FAILED, 0, "Failed"),
    ],
)
def test_every_phase_of_a_gang_has_a_phase_of_the_group(phase: Phase, running: int, word: str) -> None:
    assert said(tell(KEY, group(), status(phase, running)))["phase"] == word


def test_the_start_time_is_written_once_with_the_owner() -> None:
    raw = group()
    begins = tell(KEY, raw, status(Phase.COMMITTING, 0, 0), owner="x/job")
    assert said(begins) == {"phase": "Scheduling", "occupiedBy": "x/job", "scheduleStartTime": THEN}
    goes_on = tell(KEY, patched(raw, begins), status(Phase.BINDING, 2), owner="x/other", now=LATER)
    assert said(goes_on) == {"running": 2}


def test_replacements_do_not_change_the_phase_of_a_running_group() -> None:
    raw = group(status={"phase": "Running", "running": 4})
    assert tell(KEY, raw, status(Phase.BINDING, 4, 1)) == []


def test_a_finished_group_whose_pods_are_deleted_stays_finished() -> None:
    raw = group(status={"phase": "Finished", "succeeded": 4})
    assert said(tell(KEY, raw, status(Phase.GATHERING))) == {"succeeded": 0}


# -- the group of a job asks for its members in advance


def job_group(phase: str = "", **spec: Any) -> RawObject:
    raw = group(status={"phase": phase} if phase else {}, **spec)
    raw.metadata.owner_references = [OwnerReference("kubeflow.org/v1", "PyTorchJob", "train", "job", True)]
    return raw


def context_of(job: Json | None) -> GangContext:
    def shape_of(spec: PodSpec, meta: Meta) -> Shape | None:
        return read_shape(spec, meta, ("nvidia.com/gpu",)).shape

    return GangContext(frozenset({"gpu-scheduler"}), owner_of=lambda _, __: job, shape_of=shape_of)


ONE = {"containers": [{"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
JOB: Json = {
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {"template": {"spec": ONE}},
            "Worker": {"replicas": 3, "template": {"spec": {**ONE, "schedulerName": "gpu-scheduler"}}},
        }
    }
}
SCALE: Json = {"minMember": 4, "minResources": {"nvidia.com/gpu": "4"}}


@pytest.mark.parametrize(
    ("job", "phase", "members"),
    [
        pytest.param(JOB, "", {"master": 1, "worker": 3}, id="a new group"),
        pytest.param(JOB, "Scheduling", {"master": 1, "worker": 3}, id="one that was let in"),
        pytest.param(JOB, "Finished", {}, id="one that is over"),
        pytest.param({}, "", {}, id="a job that is on its way"),
        pytest.param(None, "", {}, id="an owner that cannot be read"),
    ],
)
def test_a_jobs_group_expects_its_members(job: Json | None, phase: str, members: dict[str, int]) -> None:
    gang = SchedulerPlugins().decode(KEY, job_group(phase, **SCALE), (), context_of(job))
    assert gang is not None
    assert {one.role: one.count for one in gang.expected} == members


def test_the_scheduler_of_a_jobs_group_is_the_one_its_pods_will_name() -> None:
    assert SchedulerPlugins().expected_scheduler(job_group(), context_of(JOB)) == "gpu-scheduler"
    assert SchedulerPlugins().expected_scheduler(job_group(), context_of(None)) == "scheduler-plugins-scheduler"


@pytest.mark.parametrize("job", [JOB, {}, None], ids=["read", "on its way", "unknown as yet"])
@pytest.mark.parametrize(
    ("raw", "word"),
    [
        pytest.param(job_group(minMember=4), "Scheduling", id="a job that asks for nothing"),
        pytest.param(job_group(**SCALE), "Pending", id="a job that asks for something"),
        pytest.param(group(minMember=4), "Pending", id="no job"),
    ],
)
def test_a_group_without_pods_is_admitted_if_it_requests_nothing(raw: RawObject, job: Json | None, word: str) -> None:
    telling = StatusUpdate(status(Phase.GATHERING, 0, 0), StatusMessage("", ""), 0.0)
    context = context_of(job)
    context.resources = {"scheduler-plugins": SchedulerPlugins.resources[0]}
    (patch,) = SchedulerPlugins().encode(KEY, raw, telling, context)
    assert patch.body["status"]["phase"] == word
