"""Native PodGroups of Kubernetes 1.36 and 1.37."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey, Notes, TopologyRule
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from gpu_scheduler.gangs.contract import GROUP, NOTES
from gpu_scheduler.gangs.dialects import Membership, StatusMessage, dialect_of, read_membership
from gpu_scheduler.gangs.dialects.podgroup import BELOW_MINIMUM, TIMED_OUT
from gpu_scheduler.k8s.objects import Json, RawObject
from tests.unit.gangs.gang_fixtures import LATER, THEN, conditions, context, decode, group, patched, said, status, tell
from tests.unit.gangs.pods import pod

KEY = GangKey("podgroup", "x", "train")
POLICY = {"gang": {"minCount": 4}}


def test_a_pod_joins_by_its_scheduling_group() -> None:
    found = pod(schedulingGroup={"podGroupName": "train"}, annotations={f"{GROUP}/role": "ps"})
    assert read_membership(found) == Membership(KEY, "ps")


def test_a_podgroup_is_decoded() -> None:
    raw = group(
        schedulingPolicy=POLICY,
        schedulingConstraints={"topology": [{"key": "example.com/rack"}]},
        priorityClassName="high",
        annotations={f"{GROUP}/queue": "blue", NOTES: '{"belowSince": 5}'},
    )
    gang = decode(KEY, raw, around=context(priority_classes={"high": 7}))
    assert gang.problem == ""
    assert (gang.minimum, gang.priority, gang.queue, gang.notes.below_since) == (4, 7, "blue", 5.0)
    assert gang.topology == (TopologyRule("example.com/rack"),)
    assert gang.created == 1735787045.0
    assert decode(KEY, group(schedulingPolicy=POLICY, priority=0, priorityClassName="high")).priority == 0


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({}, "spec.schedulingPolicy: missing; write gang: {minCount: n} or basic: {}"),
        (
            {"schedulingPolicy": {"gang": {}}},
            "spec.schedulingPolicy.gang.minCount: missing; write how many pods must start together, from 1 to 20000",
        ),
        (
            {"schedulingPolicy": {"gang": {"minCount": 0}}},
            "spec.schedulingPolicy.gang.minCount: '0' is not a valid number; write how many pods must start together, "
            "from 1 to 20000",
        ),
        (
            {"schedulingPolicy": POLICY, "parentCompositePodGroupName": "all"},
            "spec.parentCompositePodGroupName: 'all': nested groups are not supported; remove the field",
        ),
    ],
)
def test_an_invalid_field_becomes_a_problem_of_one_line(spec: Json, problem: str) -> None:
    assert decode(KEY, group(**spec)).problem == problem


def test_basic_groups_are_not_gangs() -> None:
    dialect = dialect_of(KEY)
    assert dialect.is_individual(KEY, group(schedulingPolicy={"basic": {}}))
    assert not dialect.is_individual(KEY, group(schedulingPolicy=POLICY))


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("v1alpha2", "PodGroupScheduled"),
        ("v1alpha3", "PodGroupInitiallyScheduled"),
        ("v1beta1", "PodGroupInitiallyScheduled"),
    ],
)
def test_the_condition_of_a_waiting_gang_has_the_type_of_the_version_and_says_why(version: str, name: str) -> None:
    patches = tell(
        KEY, group(schedulingPolicy=POLICY), status(Phase.WAITING, waiting=4), around=context(version=version)
    )
    assert len(patches) == 1
    assert patches[0].resource.version == version
    assert (patches[0].namespace, patches[0].name, patches[0].subresource) == ("x", "train", "status")
    assert patches[0].body["metadata"] == {"uid": "uid-train"}
    assert said(patches)["conditions"] == [
        {
            "type": name,
            "status": "False",
            "reason": "Unschedulable",
            "message": "short of 2 GPUs",
            "observedGeneration": 3,
            "lastTransitionTime": THEN,
        }
    ]


def written(raw: RawObject, phase: Phase, running: int = 0, waiting: int = 0, version: str = "v1beta1") -> RawObject:
    """The object after a status update."""
    return patched(raw, tell(KEY, raw, status(phase, running, waiting), around=context(version=version)))


def test_a_condition_keeps_its_time_until_its_status_changes_and_other_conditions_are_kept() -> None:
    other = {
        "type": "Theirs",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z",
    }
    raw = written(group(schedulingPolicy=POLICY, status={"conditions": [other]}), Phase.WAITING, waiting=4)
    patches = tell(KEY, raw, status(Phase.WAITING, waiting=4), told=StatusMessage("X", "short of 1 GPU"), now=LATER)
    assert said(patches)["conditions"][0] == other
    assert said(patches)["conditions"][1]["lastTransitionTime"] == THEN
    turned = said(tell(KEY, raw, status(Phase.RUNNING, 4), now=LATER))["conditions"][1]
    assert turned["status"] == "True"
    assert turned["lastTransitionTime"] != THEN


def test_initially_scheduled_never_becomes_false_again_and_scheduled_does() -> None:
    for version, name, reverts in (
        ("v1beta1", "PodGroupInitiallyScheduled", False),
        ("v1alpha2", "PodGroupScheduled", True),
    ):
        raw = written(group(schedulingPolicy=POLICY), Phase.RUNNING, 4, version=version)
        patches = tell(KEY, raw, status(Phase.WAITING, waiting=4), around=context(version=version))
        assert (conditions(patches).get(name, ("True",))[0] == "False") is reverts


def test_below_minimum_becomes_true_and_false_again() -> None:
    running = written(group(schedulingPolicy=POLICY), Phase.RUNNING, 4)
    assert BELOW_MINIMUM not in {item["type"] for item in running.status["conditions"]}
    held = tell(KEY, running, status(Phase.HOLDING, 3), told=StatusMessage("BelowMinimum", "3 of 4"))
    assert conditions(held)[BELOW_MINIMUM] == ("True", "BelowMinimum", "3 of 4")
    assert conditions(held)["PodGroupInitiallyScheduled"][0] == "True"
    again = patched(running, held)
    assert conditions(tell(KEY, again, status(Phase.RUNNING, 4)))[BELOW_MINIMUM][:2] == ("False", "AtMinimum")
    assert conditions(tell(KEY, again, status(Phase.WAITING, 0, 4)))[BELOW_MINIMUM][:2] == ("False", "NotStarted")


def test_a_shrunken_running_gang_is_below_its_minimum() -> None:
    patches = tell(KEY, group(schedulingPolicy=POLICY), status(Phase.RUNNING, 2), told=StatusMessage("Running", "2"))
    assert conditions(patches)[BELOW_MINIMUM] == ("True", "Running", "2")


def test_a_time_out_is_a_condition_that_ends_when_the_gang_starts() -> None:
    late = tell(
        KEY,
        group(schedulingPolicy=POLICY),
        status(Phase.WAITING, 0, 4, timed_out=True),
        told=StatusMessage("T", "late"),
    )
    assert conditions(late)[TIMED_OUT] == ("True", "TimedOut", "late")
    started = tell(KEY, patched(group(schedulingPolicy=POLICY), late), status(Phase.RUNNING, 4))
    assert conditions(started)[TIMED_OUT][0] == "False"


@pytest.mark.parametrize(
    ("reason", "written_reason"), [("Preempted", "PreemptionByScheduler"), ("Restarting", "Restarting")]
)
def test_a_restart_makes_the_group_a_disruption_target(reason: str, written_reason: str) -> None:
    raw = written(group(schedulingPolicy=POLICY), Phase.RUNNING, 4)
    patches = tell(KEY, raw, status(Phase.RESTARTING, 2), told=StatusMessage(reason, "deleted"))
    assert conditions(patches)["DisruptionTarget"] == ("True", written_reason, "deleted")
    after = tell(KEY, patched(raw, patches), status(Phase.RUNNING, 4))
    assert conditions(after)["DisruptionTarget"][0] == "False"


def test_an_invalid_group_is_a_scheduler_error() -> None:
    refused = Unplaceable((Refusal(Reason.INVALID, "spec"),))
    patches = tell(KEY, group(), status(Phase.BLOCKED, 0, 4, refusal=refused))
    assert conditions(patches)["PodGroupInitiallyScheduled"][:2] == ("False", "SchedulerError")


def test_the_condition_is_kept_while_the_gang_starts_and_without_members() -> None:
    raw = group(schedulingPolicy=POLICY)
    assert tell(KEY, raw, status(Phase.COMMITTING)) == []
    assert tell(KEY, raw, status(Phase.BINDING, 2)) == []
    assert tell(KEY, raw, status(Phase.GATHERING)) == []


def test_notes_are_written_before_the_status() -> None:
    patches = tell(KEY, group(schedulingPolicy=POLICY), status(Phase.HOLDING, 3, notes=Notes(below_since=12.0)))
    assert [patch.subresource for patch in patches] == ["", "status"]
    assert said(patches, "") == {NOTES: '{"belowSince":12.0}'}
