"""Queues of both kinds."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.events import QueueGone, QueueSeen
from gpu_scheduler.core.model import AcrossQueues, Queue
from gpu_scheduler.gangs.contract import QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.queues import QueueRegistry, QueueUse, format_amount
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.resources import Resource
from tests.unit.gangs.gang_fixtures import group, patched, said
from tests.unit.gangs.pods import GPU, GPUS


def test_our_queue_is_decoded() -> None:
    raw = group(
        "blue",
        weight=3,
        quota={GPU: 8, "cpu": "1500m"},
        limit={GPU: "16"},
        borrowing=False,
        lending=False,
        reclaimable=False,
        parent="colours",
        priority=-2,
        minRuntimeSeconds=600,
        preemption={"withinQueue": "Never", "acrossQueues": "Any"},
        allowedNamespaces=["x", "y"],
        closed=True,
    )
    assert QueueRegistry().on_changed(QUEUES, raw) == [
        QueueSeen(
            Queue(
                "blue",
                weight=3,
                parent="colours",
                priority=-2,
                quota={GPU: 8, "cpu": 1500},
                limit={GPU: 16},
                borrowing=False,
                lending=False,
                reclaimable=False,
                min_runtime=600.0,
                preempts_within=False,
                across=AcrossQueues.ANY,
                open=False,
                namespaces=("x", "y"),
            )
        )
    ]
    assert QueueRegistry().on_changed(QUEUES, group("blue")) == [QueueSeen(Queue("blue"))]


def test_volcanos_queue_is_decoded() -> None:
    raw = group(
        "blue",
        weight=2,
        capability={GPU: "16"},
        deserved={GPU: "8"},
        parent="colours",
        priority=7,
        reclaimable=False,
        status={"state": "Open"},
    )
    assert QueueRegistry().on_changed(VOLCANO_QUEUES, raw) == [
        QueueSeen(Queue("blue", 2, parent="colours", priority=7, quota={GPU: 8}, limit={GPU: 16}, reclaimable=False))
    ]
    closed = group("blue", status={"state": "Closing"})
    assert QueueRegistry().on_changed(VOLCANO_QUEUES, closed) == [QueueSeen(Queue("blue", open=False))]


@pytest.mark.parametrize(
    ("spec", "quota", "lending"),
    [
        pytest.param({"guarantee": {"resource": {GPU: 4}}}, {GPU: 4}, False, id="guarantee"),
        pytest.param({"deserved": {GPU: 8}}, {GPU: 8}, True, id="deserved"),
        pytest.param(
            {"deserved": {GPU: 8}, "guarantee": {"resource": {GPU: 4, "cpu": 2}}},
            {GPU: 8, "cpu": 2000},
            False,
            id="both",
        ),
        pytest.param({"deserved": {GPU: 2}, "guarantee": {"resource": {GPU: 4}}}, {GPU: 4}, False, id="less-deserved"),
        pytest.param({"deserved": {GPU: 8}, "guarantee": {"resource": {GPU: 0}}}, {GPU: 8}, True, id="no-guarantee"),
        pytest.param({"deserved": {GPU: 8}, "guarantee": {}}, {GPU: 8}, True, id="empty-guarantee"),
    ],
)
def test_what_a_queue_of_volcano_guarantees_is_quota_that_is_not_lent(spec: Json, quota: Json, lending: bool) -> None:
    (event,) = QueueRegistry().on_changed(VOLCANO_QUEUES, group("blue", **spec))
    assert event == QueueSeen(Queue("blue", quota=quota, lending=lending))


@pytest.mark.parametrize(
    ("resource", "parent", "found"),
    [
        (VOLCANO_QUEUES, "root", None),
        (VOLCANO_QUEUES, "", None),
        (VOLCANO_QUEUES, "default", ""),
        (QUEUES, "", None),
        (QUEUES, "default", ""),
    ],
)
def test_a_queue_without_a_parent_is_at_the_top_level(resource: Resource, parent: str, found: str | None) -> None:
    assert QueueRegistry().on_changed(resource, group("blue", parent=parent)) == [
        QueueSeen(Queue("blue", parent=found))
    ]


def test_of_two_queues_of_one_name_ours_counts() -> None:
    registry = QueueRegistry()
    registry.on_changed(VOLCANO_QUEUES, group("blue", weight=2))
    assert registry.on_changed(QUEUES, group("blue", weight=3)) == [QueueSeen(Queue("blue", 3))]
    assert registry.on_changed(VOLCANO_QUEUES, group("blue", weight=4)) == []
    assert registry.on_deleted(QUEUES, group("blue")) == [QueueSeen(Queue("blue", 4))]
    assert registry.on_deleted(VOLCANO_QUEUES, group("blue")) == [QueueGone("blue")]
    assert registry.on_deleted(VOLCANO_QUEUES, group("blue")) == []


def test_the_default_queue_has_no_name_in_the_core() -> None:
    registry = QueueRegistry()
    assert registry.on_changed(VOLCANO_QUEUES, group("default", weight=2)) == [QueueSeen(Queue("", 2))]
    assert registry.names() == {""}
    (patch,) = registry.encode("", QueueUse(running=1), GPUS)
    assert patch.name == "default"
    assert registry.on_deleted(VOLCANO_QUEUES, group("default")) == [QueueGone("")]


def test_a_change_without_effect_gives_no_event() -> None:
    registry = QueueRegistry()
    registry.on_changed(QUEUES, group("blue", quota={GPU: "8"}))
    assert registry.on_changed(QUEUES, group("blue", quota={GPU: 8}, status={"pending": 3})) == []


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"weight": 0}, "spec.weight: 0 is not a whole number of 1 or more"),
        ({"quota": {GPU: "-1"}}, f"spec.quota['{GPU}']: quantity '-1' is negative; write 0 or more"),
        ({"priority": 1.5}, "spec.priority: 1.5 is not a whole number"),
        ({"lending": "no"}, "spec.lending: 'no' is neither true nor false"),
        ({"minRuntimeSeconds": -1}, "spec.minRuntimeSeconds: '-1' is not a number of seconds from 0 to 315360000"),
        (
            {"minRuntimeSeconds": "10m"},
            "spec.minRuntimeSeconds: '10m' is not a number of seconds from 0 to 315360000",
        ),
        (
            {"preemption": {"withinQueue": "Always"}},
            "spec.preemption.withinQueue: 'Always' is not one of LowerPriority, Never",
        ),
        (
            {"preemption": {"acrossQueues": "fair"}},
            "spec.preemption.acrossQueues: 'fair' is not one of Fair, Any, Never",
        ),
        (
            {"parent": "blue"},
            "spec.parent: a queue cannot be its own parent; name another queue, or leave the field out",
        ),
        (
            {"parent": "root"},
            "spec.parent: 'root' is not a queue; leave the field out for a queue at the top level",
        ),
        ({"parent": 7}, "spec.parent: '7' is not the name of a queue"),
    ],
)
def test_an_invalid_queue_is_closed_and_its_status_says_why(spec: Json, problem: str) -> None:
    registry = QueueRegistry()
    raw = group("blue", **spec)
    assert registry.on_changed(QUEUES, raw) == [QueueSeen(Queue("blue", open=False))]
    patches = registry.encode("blue", QueueUse(), GPUS)
    assert said(patches) == {"problem": problem}
    registry.on_changed(QUEUES, patched(group("blue"), patches))
    assert said(registry.encode("blue", QueueUse(), GPUS)) == {"problem": None}


def test_the_name_of_the_top_of_the_tree_is_reserved() -> None:
    registry = QueueRegistry()
    assert registry.on_changed(QUEUES, group("root")) == [QueueSeen(Queue("root", open=False))]
    problem = "metadata.name: 'root' is reserved for the top of the tree; choose another name"
    assert said(registry.encode("root", QueueUse(), GPUS)) == {"problem": problem}


def test_an_invalid_queue_keeps_its_parent() -> None:
    raw = group("blue", parent="colours", weight=0)
    assert QueueRegistry().on_changed(QUEUES, raw) == [QueueSeen(Queue("blue", parent="colours", open=False))]


def test_the_status_says_what_is_wrong_with_the_place_of_a_queue_in_the_tree() -> None:
    registry = QueueRegistry()
    raw = group("blue", parent="colours")
    registry.on_changed(QUEUES, raw)
    patches = registry.encode("blue", QueueUse(), GPUS)
    problem = "spec.parent: there is no queue 'colours'; create it first, or leave the field out"
    assert said(patches) == {"problem": problem}
    registry.on_changed(QUEUES, patched(raw, patches))
    registry.on_changed(VOLCANO_QUEUES, group("colours"))
    assert said(registry.encode("blue", QueueUse(), GPUS)) == {"problem": None}


def test_the_status_of_our_queue_has_its_use_and_what_it_borrowed() -> None:
    registry = QueueRegistry()
    raw = group("blue", quota={GPU: 2, "cpu": "4"})
    registry.on_changed(QUEUES, raw)
    patches = registry.encode("blue", QueueUse(2, 1, 3, 9, {GPU: 2300, "cpu": 4000, "memory": 1024, "pods": 0}), GPUS)
    assert (patches[0].resource, patches[0].subresource) == (QUEUES, "status")
    assert said(patches) == {
        "pending": 3,
        "running": 3,
        "allocated": {GPU: "2300m", "cpu": "4", "memory": "1024"},
        "borrowed": {GPU: "300m", "memory": "1024"},  # no quota is a quota of 0
    }
    registry.on_changed(QUEUES, patched(raw, patches))
    assert registry.encode("blue", QueueUse(2, 1, 3, 9, {GPU: 2300, "cpu": 4000, "memory": 1024}), GPUS) == []
    assert said(registry.encode("blue", QueueUse(2, 1, 3, 9, {GPU: 2000}), GPUS)) == {
        "allocated": {GPU: "2", "cpu": None, "memory": None},
        "borrowed": {GPU: None, "memory": None},
    }


def test_the_status_of_volcanos_queue_has_volcanos_fields() -> None:
    registry = QueueRegistry()
    raw = group("blue")
    registry.on_changed(VOLCANO_QUEUES, raw)
    patches = registry.encode("blue", QueueUse(1, 2, 3, 0, {GPU: 3000}), GPUS)
    assert said(patches) == {"pending": 1, "inqueue": 2, "running": 3, "state": "Open", "allocated": {GPU: "3"}}
    registry.on_changed(VOLCANO_QUEUES, patched(raw, patches))
    assert registry.encode("blue", QueueUse(1, 2, 3, 0, {GPU: 3000}), GPUS) == []
    assert registry.encode("red", QueueUse(), GPUS) == []


@pytest.mark.parametrize(
    ("name", "amount", "text"),
    [("cpu", 1500, "1500m"), ("cpu", 2000, "2"), (GPU, 300, "300m"), ("memory", 1500, "1500")],
)
def test_amounts_are_formatted_as_quantities(name: str, amount: int, text: str) -> None:
    assert format_amount(name, amount, GPUS) == text
