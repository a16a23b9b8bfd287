"""Ceilings: what pods and groups of a namespace may say, in every dialect, and what the scheduler does otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.core.events import GangSeen
from gpu_scheduler.core.model import Gang, GangKey, Gate, GateKind, Pod
from gpu_scheduler.gangs.ceilings import Ceilings
from gpu_scheduler.gangs.contract import GROUP
from gpu_scheduler.gangs.dialects import Membership
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.objects import PodObject, RawObject
from gpu_scheduler.scheduler.decoding.decode import decode_pod
from gpu_scheduler.scheduler.decoding.volumes import VolumeClaims
from tests.unit.gangs.gang_fixtures import context, decode, group
from tests.unit.gangs.pods import READING, pod

ONLY_LOW = Ceilings(priority_classes={"x": frozenset({"low"}), "*": frozenset()})
CLASSES = {"low": 1, "high": 1000, "system-node-critical": 2_000_001_000}
FORBIDDEN = "spec.priorityClassName: 'high' may not be used in this namespace; write low, or leave it out"
NUMBER = "spec.priority: '{}' without a class may not be used in this namespace; write low, or leave it out"
LONG = "spec.terminationGracePeriodSeconds: '{}' is longer than pods may take to end here; write at most 3600"
VOLCANO, NATIVE = GangKey("volcano", "x", "train"), GangKey("podgroup", "x", "train")
MINIMUM: dict[GangKey, dict[str, Any]] = {
    VOLCANO: {"minMember": 2},
    NATIVE: {"schedulingPolicy": {"gang": {"minCount": 2}}},
}
each_dialect = pytest.mark.parametrize("key", [VOLCANO, NATIVE], ids=lambda key: key.dialect)


def seen(raw: PodObject, ceilings: Ceilings = ONLY_LOW) -> Pod:
    """A pod as the core sees it under ceilings."""
    return decode_pod(raw, Membership(), VolumeClaims(), {}, replace(READING, ceilings=ceilings))


# -- priority classes


def test_a_namespace_may_use_the_classes_of_its_own_list_else_those_for_all_others() -> None:
    assert ONLY_LOW.classes_of("x") == frozenset({"low"})
    assert ONLY_LOW.classes_of("y") == frozenset()
    assert Ceilings(priority_classes={"x": frozenset()}).classes_of("y") is None
    assert Ceilings().classes_of("x") is None


@each_dialect
def test_a_class_that_the_namespace_may_not_use_makes_the_group_invalid_and_does_not_count(key: GangKey) -> None:
    raw = group(priorityClassName="high", **MINIMUM[key])
    gang = decode(key, raw, around=context(priority_classes=CLASSES, ceilings=ONLY_LOW))
    assert (gang.priority, gang.problem) == (None, FORBIDDEN)
    free = decode(key, raw, around=context(priority_classes=CLASSES))
    assert (free.priority, free.problem) == (1000, "")


@each_dialect
def test_system_classes_are_classes_like_any_other(key: GangKey) -> None:
    raw = group(priorityClassName="system-node-critical", **MINIMUM[key])
    assert decode(key, raw, around=context(priority_classes=CLASSES, ceilings=ONLY_LOW)).priority is None


@each_dialect
def test_a_class_that_the_namespace_may_use_counts(key: GangKey) -> None:
    raw = group(priorityClassName="low", **MINIMUM[key])
    gang = decode(key, raw, around=context(priority_classes=CLASSES, ceilings=ONLY_LOW))
    assert (gang.priority, gang.problem) == (1, "")


@pytest.mark.parametrize(
    ("spec", "priority", "problem"),
    [
        ({"priority": 5}, None, NUMBER.format(5)),
        ({"priority": -5}, -5, ""),
        ({"priority": 0}, 0, ""),
        ({"priority": 1000, "priorityClassName": "low"}, 1, ""),
        ({"priority": 1, "priorityClassName": "low"}, 1, ""),
        ({"priority": 1000, "priorityClassName": "high"}, None, FORBIDDEN),
    ],
)  # fmt: skip
def test_the_number_of_a_native_group_is_worth_no_more_than_its_class(
    spec: dict[str, Any], priority: int | None, problem: str
) -> None:
    gang = decode(NATIVE, group(**MINIMUM[NATIVE], **spec), around=context(priority_classes=CLASSES, ceilings=ONLY_LOW))
    assert (gang.priority, gang.problem) == (priority, problem)


def test_an_earlier_problem_of_a_group_is_reported_first() -> None:
    raw = group(minMember=-1, priorityClassName="high")
    gang = decode(VOLCANO, raw, around=context(priority_classes=CLASSES, ceilings=ONLY_LOW))
    assert gang.problem.startswith("spec.minMember: ")
    assert gang.priority is None


def test_a_pod_of_a_forbidden_class_is_gated_and_has_no_priority() -> None:
    found = seen(pod(priorityClassName="high", priority=1000))
    assert (found.gates, found.priority) == ((Gate(GateKind.NOT_ALLOWED, FORBIDDEN),), 0)
    running = seen(pod(priorityClassName="high", priority=1000, nodeName="node1"))
    assert (running.gates, running.priority) == ((), 0)


def test_a_negative_class_that_is_not_allowed_raises_no_pod() -> None:
    assert seen(pod(priorityClassName="negative", priority=-10)).priority == -10


def test_a_pod_of_an_allowed_class_or_of_none_is_not_gated() -> None:
    assert seen(pod(priorityClassName="low", priority=1)).priority == 1
    assert seen(pod(priorityClassName="low", priority=1)).gates == ()
    assert seen(pod()).gates == ()


def test_a_priority_without_a_class_is_gated() -> None:
    found = seen(pod(priority=1000))
    assert [gate.subject for gate in found.gates] == [NUMBER.format(1000)]
    assert found.priority == 0


def test_pods_of_other_schedulers_are_not_judged() -> None:
    found = seen(pod(schedulerName="default-scheduler", priorityClassName="high", priority=1000))
    assert (found.gates, found.priority) == ((), 1000)


def test_where_no_class_is_allowed_the_line_says_to_leave_it_out() -> None:
    nothing = Ceilings(priority_classes={"*": frozenset()})
    assert nothing.find_class_problem("x", "high", "f") == "f: 'high' may not be used in this namespace; leave it out"


# -- grace periods


def test_a_pod_with_a_grace_period_above_the_ceiling_is_gated() -> None:
    found = seen(pod(terminationGracePeriodSeconds=1_000_000_000))
    assert found.gates == (Gate(GateKind.NOT_ALLOWED, LONG.format(1_000_000_000)),)
    assert seen(pod(terminationGracePeriodSeconds=3600)).gates == ()
    assert seen(pod(terminationGracePeriodSeconds=10), Ceilings(max_grace=5)).gates != ()


def test_a_longer_grace_period_of_the_deletion_counts() -> None:
    meta = {"deletionTimestamp": "2025-01-02T03:04:05Z", "deletionGracePeriodSeconds": 600}
    assert seen(pod(meta=meta, terminationGracePeriodSeconds=5)).grace == 600.0
    assert seen(pod(meta=meta | {"deletionGracePeriodSeconds": 0}, terminationGracePeriodSeconds=5)).grace == 5.0
    assert seen(pod(meta=meta)).grace == 600.0
    assert seen(pod()).grace == 30.0


@pytest.mark.parametrize(("asked", "leaving"), [(None, True), (0, True), (3600, True), (3601, False), (10**9, False)])
def test_a_pod_whose_deletion_takes_longer_than_the_ceiling_runs_on(asked: int | None, leaving: bool) -> None:
    meta = {"deletionTimestamp": "2025-01-02T03:04:05Z", "deletionGracePeriodSeconds": asked}
    assert seen(pod(meta=meta, nodeName="node1")).deleting is leaving
    assert seen(pod(meta=meta, nodeName="node1", schedulerName="default-scheduler")).deleting is leaving
    assert not seen(pod(nodeName="node1")).deleting


def test_a_pod_that_runs_on_still_declares_its_gang() -> None:
    named = {f"{GROUP}/gang": "train", f"{GROUP}/gang-min": "2"}
    asked = {"deletionTimestamp": "2025-01-02T03:04:05Z", "deletionGracePeriodSeconds": 10**9}
    registry = GangRegistry(context())
    registry.on_pod_changed(pod(name="a", meta={"annotations": named, **asked}, nodeName="node1"))
    (event,) = registry.on_pod_changed(pod(name="b", meta={"annotations": {**named, f"{GROUP}/gang-min": "3"}}))
    assert isinstance(event, GangSeen)
    assert event.gang.problem  # the two disagree


@pytest.mark.parametrize(
    ("own", "ceiling", "sent"),
    [(None, 3600, 30), (5, 3600, 5), (7200, 3600, 3600), (0, 3600, 1), (-1, 3600, 1), (60, 2.5, 2), (60, 0.0, 1)],
)
def test_pods_are_deleted_with_their_own_grace_period_up_to_the_ceiling(
    own: int | None, ceiling: float, sent: int
) -> None:
    ceilings = Ceilings(max_grace=ceiling)
    assert ceilings.deletion_grace(pod(terminationGracePeriodSeconds=own).spec) == sent
    meta = {"deletionTimestamp": "2025-01-02T03:04:05Z", "deletionGracePeriodSeconds": sent}
    assert seen(pod(meta=meta, nodeName="node1"), ceilings).deleting


# -- durations and numbers of gangs

HOLD = f"{GROUP}/hold-seconds"
LONG_HOLD = {HOLD: "1e9", f"{GROUP}/timeout-seconds": "1e300", f"{GROUP}/expected-runtime-seconds": "1e300"}
TEN_YEARS = 315_360_000.0


@each_dialect
def test_durations_above_the_ceiling_are_cut(key: GangKey) -> None:
    registry = GangRegistry(context())
    (event,) = registry.on_object_changed(key.dialect, group(annotations=LONG_HOLD, **MINIMUM[key]))
    assert isinstance(event, GangSeen)
    gang = event.gang
    assert (gang.hold, gang.timeout, gang.expected_runtime, gang.problem) == (3600.0, TEN_YEARS, TEN_YEARS, "")


def test_durations_of_a_pod_without_a_gang_are_cut() -> None:
    registry = GangRegistry(context(ceilings=Ceilings(max_hold=7.0)))
    (event,) = registry.on_pod_changed(pod(meta={"annotations": {HOLD: "8"}}))
    assert isinstance(event, GangSeen)
    assert event.gang.hold == 7.0


def test_durations_within_the_ceiling_stay() -> None:
    gang = Gang(VOLCANO, hold=0.0, timeout=5.0)
    assert Ceilings().limit(gang) is gang
    assert list(Ceilings().find_option_problems({HOLD: "3600"})) == []


def test_every_duration_that_is_too_long_has_a_line_with_what_would_be_right() -> None:
    assert list(Ceilings().find_option_problems(LONG_HOLD)) == [
        f"{HOLD}: '1e9' is longer than slots are held here; write at most 3600",
        f"{GROUP}/timeout-seconds: '1e300' is longer than ten years; write at most 315360000",
        f"{GROUP}/expected-runtime-seconds: '1e300' is longer than ten years; write at most 315360000",
    ]


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        (VOLCANO, group(minMember=11)),
        (VOLCANO, group(minMember=1, minTaskMember={"worker": 11})),
        (NATIVE, group(schedulingPolicy={"gang": {"minCount": 11}})),
        (GangKey("scheduler-plugins", "x", "train"), group(minMember=11)),
        (
            GangKey("workload", "x", "train/workers"),
            group(podGroups=[{"name": "workers", "policy": {"gang": {"minCount": 11}}}]),
        ),
    ],
    ids=["volcano", "task", "podgroup", "scheduler-plugins", "workload"],
)
def test_a_minimum_above_the_ceiling_makes_the_group_invalid(key: GangKey, raw: RawObject) -> None:
    small = decode(key, raw, around=context(ceilings=Ceilings(max_members=10)))
    assert "is not a valid number; write how many pods must start together, from 1 to 10" in small.problem
    assert decode(key, raw, around=context(ceilings=Ceilings(max_members=11))).problem == ""


def test_a_minimum_that_pods_declare_has_the_same_ceiling() -> None:
    member = pod(meta={"annotations": {f"{GROUP}/gang": "train", f"{GROUP}/gang-min": "30000"}})
    key = GangKey("annotation", "x", "train")
    assert "from 1 to 20000" in decode(key, None, member).problem
    assert decode(key, None, member, around=context(ceilings=Ceilings(max_members=30_000))).minimum == 30_000


def test_executors_are_no_more_than_members() -> None:
    raw = group(minMember=1, minResources={"cpu": "8"}, annotations={f"{GROUP}/executors": "11"})
    gang = decode(VOLCANO, raw, around=context(ceilings=Ceilings(max_members=10)))
    assert gang.problem == f"{GROUP}/executors: '11' is not a number of executors from 1 to 10"
    assert decode(VOLCANO, raw).problem == ""
