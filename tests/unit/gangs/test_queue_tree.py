"""The tree of queues: contradictions between a queue, its parent and its children."""

from __future__ import annotations

import pytest

from gpu_scheduler.core.model import Queue
from gpu_scheduler.gangs.queue_tree import QueueTree
from tests.unit.gangs.pods import GPU

GI = 2**30
TREE = QueueTree(
    [
        Queue("company", quota={GPU: 16}, limit={GPU: 32, "memory": 64 * GI}),
        Queue("research", parent="company", quota={GPU: 8}, limit={GPU: 16}),
        Queue("vision", parent="research", quota={GPU: 4, "cpu": 2500}, limit={GPU: 12}),
        Queue("speech", parent="research", quota={GPU: 2}),
        Queue("", limit={GPU: 0}),
    ]
)


def problems(queue: Queue, tree: QueueTree = TREE) -> list[str]:
    return [problem.text for problem in tree.find_problems(queue)]


@pytest.mark.parametrize(
    "queue",
    [
        pytest.param(Queue("alone", quota={GPU: 100}, limit={GPU: 100}), id="top-level"),
        pytest.param(Queue("sales", parent="company", quota={GPU: 8}, limit={GPU: 32}), id="as-much-as-is-left"),
        pytest.param(Queue("sales", parent="company", quota={"cpu": 9000}), id="no-quota-of-the-parent"),
        pytest.param(Queue("sales", parent="company", limit={"cpu": 9000}), id="no-limit-of-the-parent"),
        pytest.param(Queue("research", parent="company", quota={GPU: 16}, limit={GPU: 32}), id="itself-does-not-count"),
        pytest.param(Queue("research", parent="company", quota={GPU: 6}, limit={GPU: 12}), id="its-children-fit"),
        pytest.param(Queue("research"), id="no-quota-and-no-limit"),
        pytest.param(Queue("sales", parent="", limit={GPU: 0}), id="below-the-default-queue"),
    ],
)
def test_a_queue_that_fits_the_tree_has_no_problem(queue: Queue) -> None:
    assert problems(queue) == []


@pytest.mark.parametrize(
    ("queue", "problem"),
    [
        pytest.param(
            Queue("sales", parent="finance"),
            "spec.parent: there is no queue 'finance'; create it first, or leave the field out",
            id="unknown",
        ),
        pytest.param(
            Queue("sales", parent="compny"),
            "spec.parent: there is no queue 'compny'; did you mean company?",
            id="misspelt",
        ),
        pytest.param(
            Queue("company", parent="research"),
            "spec.parent: 'research' is itself below queue company; name a queue that is not",
            id="cycle-of-two",
        ),
        pytest.param(
            Queue("company", parent="vision"),
            "spec.parent: 'vision' is itself below queue company; name a queue that is not",
            id="cycle-of-three",
        ),
        pytest.param(
            Queue("sales", parent="company", quota={GPU: 9}),
            f"spec.quota['{GPU}']: with 9 the children of queue company have 17 together, above its quota of 16; "
            "write at most 8",
            id="quota",
        ),
        pytest.param(
            Queue("sales", parent="company", limit={"memory": 96 * GI}),
            "spec.limit['memory']: 96Gi is above the limit of its parent company, 64Gi; write at most 64Gi",
            id="limit",
        ),
        pytest.param(
            Queue("research", quota={GPU: 5}),
            f"spec.quota['{GPU}']: 5 is below the quotas of its children together; write at least 6",
            id="quota-of-children",
        ),
        pytest.param(
            Queue("research", quota={"cpu": 2000}),
            "spec.quota['cpu']: 2 is below the quotas of its children together; write at least 2500m",
            id="cpu-of-children",
        ),
        pytest.param(
            Queue("research", limit={GPU: 8}),
            f"spec.limit['{GPU}']: 8 is below the limit of its child vision; write at least 12",
            id="limit-of-a-child",
        ),
        pytest.param(
            Queue("sales", parent="", limit={GPU: 1}),
            f"spec.limit['{GPU}']: 1 is above the limit of its parent default, 0; write at most 0",
            id="below-the-default-queue",
        ),
    ],
)
def test_a_contradiction_is_one_line_with_the_field_and_what_would_be_right(queue: Queue, problem: str) -> None:
    assert problems(queue) == [problem]


def test_a_cycle_of_other_queues_ends_the_search() -> None:
    tree = QueueTree([Queue("a", parent="b"), Queue("b", parent="a")])
    assert problems(Queue("c", parent="a"), tree) == []
    assert problems(Queue("a", parent="b"), tree) == [
        "spec.parent: 'b' is itself below queue a; name a queue that is not"
    ]


@pytest.mark.parametrize(
    ("quota", "is_worse"),
    [({GPU: 9}, True), ({GPU: 8}, False), ({GPU: 7}, False), ({}, False), ({GPU: 8, "cpu": 1}, True)],
)
def test_an_update_may_not_make_an_old_contradiction_worse(quota: dict[str, int], is_worse: bool) -> None:
    parent = Queue("company", quota={GPU: 8, "cpu": 0})
    old = Queue("a", parent="company", quota={GPU: 8})
    tree = QueueTree([parent, old, Queue("b", parent="company", quota={GPU: 8})])
    new = Queue("a", parent="company", quota=quota)
    assert bool(list(tree.find_new_problems(new, old))) is is_worse
    assert bool(list(tree.find_new_problems(new, None))) is bool(quota)


def test_a_contradiction_with_a_new_parent_is_new() -> None:
    tree = QueueTree([Queue("a", limit={GPU: 8}), Queue("b", limit={GPU: 8})])
    old, new = (Queue("c", parent=parent, limit={GPU: 16}) for parent in ("a", "b"))
    assert list(tree.find_new_problems(old, old)) == []
    assert list(tree.find_new_problems(new, old)) == [
        f"spec.limit['{GPU}']: 16 is above the limit of its parent b, 8; write at most 8"
    ]
