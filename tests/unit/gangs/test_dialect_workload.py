"""Workloads of Kubernetes 1.35."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.gangs.contract import GROUP, NOTES, STATUS
from gpu_scheduler.gangs.dialects import (
    Membership,
    StatusMessage,
    StatusPatch,
    StatusUpdate,
    dialect_of,
    read_membership,
)
from gpu_scheduler.k8s.objects import RawObject
from tests.unit.gangs.gang_fixtures import LATER, NOW, conditions, context, decode, group, patched, said, status, tell
from tests.unit.gangs.pods import pod

FIRST = GangKey("workload", "x", "train/workers/0")
SECOND = GangKey("workload", "x", "train/workers/1")


def workload(policy: object = None, **more: Any) -> RawObject:
    """A Workload with one pod group."""
    return group(podGroups=[{"name": "workers", "policy": policy or {"gang": {"minCount": 4}}}], **more)


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ({"name": "train", "podGroup": "workers"}, "train/workers"),
        ({"name": "train", "podGroup": "workers", "podGroupReplicaKey": "0"}, "train/workers/0"),
    ],
)
def test_every_replica_of_a_pod_group_is_a_gang_of_its_own(reference: dict[str, str], name: str) -> None:
    assert read_membership(pod(workloadRef=reference)) == Membership(GangKey("workload", "x", name))
    assert dialect_of(FIRST).object_name(GangKey("workload", "x", name)) == "train"
    assert dialect_of(FIRST).keys_of(workload()) == ()


def test_a_workload_is_decoded() -> None:
    raw = workload({"gang": {"minCount": 4, "timeout": 60}}, annotations={NOTES: '{"workers/0":{"belowSince":3}}'})
    gang = decode(FIRST, raw)
    assert (gang.minimum, gang.timeout, gang.notes.below_since, gang.problem) == (4, 60.0, 3.0, "")
    assert decode(SECOND, raw).notes.below_since is None
    late = workload({"gang": {"minCount": 4, "timeout": 60}}, annotations={f"{GROUP}/timeout-seconds": "5"})
    assert decode(FIRST, late).timeout == 5.0


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            group(podGroups=[{"name": "ps", "policy": {}}]),
            "spec.workloadRef.podGroup: the Workload has no pod group 'workers'; it has ps",
        ),
        (group(), "spec.workloadRef.podGroup: the Workload has no pod group 'workers'; it has none"),
        (
            group(podGroups=[{"name": "workers"}]),
            "spec.podGroups[workers].policy: missing; write gang: {minCount: n} or basic: {}",
        ),
        (
            workload({"gang": {"minCount": 1, "timeout": -5}}),
            "spec.podGroups[workers].policy.gang.timeout: '-5' is not a number of seconds; write for example 300",
        ),
    ],
)
def test_an_invalid_field_becomes_a_problem_of_one_line(raw: RawObject, problem: str) -> None:
    assert decode(FIRST, raw).problem == problem


def test_basic_groups_are_not_gangs() -> None:
    assert dialect_of(FIRST).is_individual(FIRST, workload({"basic": {}}))
    assert not dialect_of(FIRST).is_individual(FIRST, workload())
    assert not dialect_of(FIRST).is_individual(FIRST, group())


def told_in(patches: list[StatusPatch]) -> Any:
    """The annotation with the status of a Workload."""
    return json.loads(said(patches, "")[STATUS])


def test_without_a_status_subresource_the_annotation_has_the_conditions() -> None:
    patches = tell(FIRST, workload(), status(Phase.WAITING, waiting=4))
    assert [patch.subresource for patch in patches] == [""]
    found = told_in(patches)
    assert {item["type"]: item["status"] for item in found["conditions"]} == {
        "GangScheduled": "False",
        "PodGroupReady": "False",
    }
    assert found["groups"]["workers/0"]["message"] == "short of 2 GPUs"


def test_a_served_status_has_the_conditions_too() -> None:
    patches = tell(FIRST, workload(), status(Phase.RUNNING, 4), around=context(workload_status=True))
    assert [patch.subresource for patch in patches] == ["", "status"]
    assert {name: found[:2] for name, found in conditions(patches).items()} == {
        "GangScheduled": ("True", "Scheduled"),
        "PodGroupReady": ("True", "Ready"),
    }


def test_the_conditions_summarize_all_gangs_of_a_workload() -> None:
    around = context(workload_status=True)
    both: Any = {"alive": (FIRST, SECOND), "around": around}
    raw = workload()
    raw = patched(raw, tell(FIRST, raw, status(Phase.RUNNING, 4), **both))
    waits = tell(SECOND, raw, status(Phase.WAITING, waiting=4), **both)
    assert conditions(waits)["GangScheduled"] == ("False", "NotEnoughResources", "workers/1: short of 2 GPUs")
    raw = patched(raw, waits)
    starts = tell(SECOND, raw, status(Phase.RUNNING, 4), now=LATER, **both)
    assert conditions(starts)["GangScheduled"][0] == "True"
    assert told_in(starts)["groups"] == {
        "workers/0": {"scheduled": True, "ready": True},
        "workers/1": {"scheduled": True, "ready": True},
    }
    gone = tell(FIRST, raw, status(Phase.RUNNING, 4), around=around, alive=(FIRST,))
    assert list(told_in(gone)["groups"]) == ["workers/0"]


def test_lost_members_make_ready_false_but_not_scheduled() -> None:
    around = context(workload_status=True)
    raw = patched(workload(), tell(FIRST, workload(), status(Phase.RUNNING, 4), around=around))
    patches = tell(FIRST, raw, status(Phase.HOLDING, 3), told=StatusMessage("BelowMinimum", "3 of 4"), around=around)
    assert conditions(patches)["GangScheduled"][0] == "True"
    assert conditions(patches)["PodGroupReady"] == ("False", "BelowMinimum", "3 of 4")
    replaced = tell(FIRST, patched(raw, patches), status(Phase.RUNNING, 4), around=around)
    assert conditions(replaced)["PodGroupReady"][0] == "True"


def test_a_time_out_is_a_condition_that_ends_when_the_gang_starts() -> None:
    around = context(workload_status=True)
    late = tell(
        FIRST, workload(), status(Phase.WAITING, 0, 4, timed_out=True), told=StatusMessage("T", "late"), around=around
    )
    assert conditions(late)["SchedulingTimeout"] == ("True", "TimedOut", "late")
    started = tell(FIRST, patched(workload(), late), status(Phase.RUNNING, 4), around=around)
    assert conditions(started)["SchedulingTimeout"][0] == "False"


def test_a_workload_of_many_gangs_stays_within_the_size_of_an_annotation() -> None:
    raw = workload()
    keys = [GangKey("workload", "x", f"train/workers/{i}") for i in range(500)]
    telling = StatusUpdate(status(Phase.WAITING, waiting=4), StatusMessage("NotEnoughResources", "m" * 2000), NOW, keys)
    for key in keys:
        raw = patched(raw, dialect_of(key).encode(key, raw, telling, context()))
    assert len((raw.metadata.annotations or {})[STATUS]) < 100_000


def test_an_invalid_annotation_is_replaced() -> None:
    patches = tell(FIRST, workload(annotations={STATUS: "{", NOTES: "["}), status(Phase.RUNNING, 4))
    assert told_in(patches)["groups"] == {"workers/0": {"scheduled": True, "ready": True}}
    assert said(patches, "")[NOTES] is None
