"""Queues of both kinds."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.events import QueueGone, QueueSeen
from gpu_scheduler.core.model import Queue
from gpu_scheduler.gangs.contract import QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.queues import QueueRegistry, QueueUse, format_amount
from gpu_scheduler.k8s.objects import Json
from tests.unit.gangs.gang_fixtures import group, patched, said
from tests.unit.gangs.pods import GPU, GPUS


def test_our_queue_is_decoded() -> None:
    raw = group(
        "blue",
        weight=3,
        quota={GPU: 8, "cpu": "1500m"},
        limit={GPU: "16"},
        borrowing=False,
        reclaimable=False,
        allowedNamespaces=["x", "y"],
        closed=True,
    )
    assert QueueRegistry().on_changed(QUEUES, raw) == [
        QueueSeen(Queue("blue", 3, {GPU: 8, "cpu": 1500}, {GPU: 16}, False, False, False, ("x", "y")))
    ]
    assert QueueRegistry().on_changed(QUEUES, group("blue")) == [QueueSeen(Queue("blue"))]


def test_volcanos_queue_is_decoded() -> None:
    raw = group(
        "blue",
        weight=2,
        capability={GPU: "16"},
        deserved={GPU: "8"},
        guarantee={"resource": {GPU: "4", "cpu": "2"}},
        reclaimable=False,
        status={"state": "Open"},
    )
    assert QueueRegistry().on_changed(VOLCANO_QUEUES, raw) == [
        QueueSeen(Queue("blue", 2, {GPU: 8, "cpu": 2000}, {GPU: 16}, reclaimable=False))
    ]
    closed = group("blue", status={"state": "Closing"})
    assert QueueRegistry().on_changed(VOLCANO_QUEUES, closed) == [QueueSeen(Queue("blue", open=False))]


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
        "borrowed": {GPU: "300m"},
    }
    registry.on_changed(QUEUES, patched(raw, patches))
    assert registry.encode("blue", QueueUse(2, 1, 3, 9, {GPU: 2300, "cpu": 4000, "memory": 1024}), GPUS) == []
    assert said(registry.encode("blue", QueueUse(2, 1, 3, 9, {GPU: 2000}), GPUS)) == {
        "allocated": {GPU: "2", "cpu": None, "memory": None},
        "borrowed": {GPU: None},
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
