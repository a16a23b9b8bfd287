"""PodGroups of scheduler-plugins."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.kube.dialects import Membership, read_membership
from tests.unit.kube.gang_parts import LATER, THEN, decode, group, patched, said, status, tell
from tests.unit.kube.pods import pod

KEY = GangKey("scheduler-plugins", "x", "train")


def test_a_pod_joins_by_label() -> None:
    assert read_membership(pod(labels={"scheduling.x-k8s.io/pod-group": "train"})) == Membership(KEY)


def test_a_podgroup_is_read() -> None:
    gang = decode(KEY, group(minMember=4, scheduleTimeoutSeconds=30, minResources={"cpu": "4"}))
    assert (gang.minimum, gang.timeout, gang.expected, gang.problem) == (4, 30.0, (), "")
    assert decode(KEY, group(minMember=4, scheduleTimeoutSeconds=0)).timeout is None
    assert decode(KEY, group()).minimum == 1
    assert decode(KEY, group(minMember="4")).problem.startswith("spec.minMember: '4' is no such number")


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
def test_every_phase_has_its_word(phase: Phase, running: int, word: str) -> None:
    assert said(tell(KEY, group(), status(phase, running)))["phase"] == word


def test_scheduling_begins_once_and_the_owner_is_named() -> None:
    raw = group()
    begins = tell(KEY, raw, status(Phase.COMMITTING, 0, 0), owner="x/job")
    assert said(begins) == {"phase": "Scheduling", "occupiedBy": "x/job", "scheduleStartTime": THEN}
    goes_on = tell(KEY, patched(raw, begins), status(Phase.BINDING, 2), owner="x/other", now=LATER)
    assert said(goes_on) == {"running": 2}


def test_replacements_do_not_make_a_running_group_look_new() -> None:
    raw = group(status={"phase": "Running", "running": 4})
    assert tell(KEY, raw, status(Phase.BINDING, 4, 1)) == []


def test_a_finished_group_whose_pods_are_cleared_away_stays_finished() -> None:
    raw = group(status={"phase": "Finished", "succeeded": 4})
    assert said(tell(KEY, raw, status(Phase.GATHERING))) == {"succeeded": 0}
