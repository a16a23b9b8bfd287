"""The judge of queues notices what exceeds a limit, and what is taken from a queue within its quota."""

from __future__ import annotations

import pytest

from tests.chaos.queues import QueueJudge, QueueSpec
from tests.worlds.api_mirror import PodState, read_pod


def _pod(name: str, gpus: int, *, queue: str = "red", node: str = "n", phase: str = "Running") -> PodState:
    limits = {"nvidia.com/gpu": str(gpus)}
    meta = {"name": name, "namespace": "default", "uid": name, "annotations": {"gpu-scheduler.io/charged-queue": queue}}
    spec = {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]}
    return read_pod({"metadata": meta, "spec": spec, "status": {"phase": phase}})


@pytest.fixture
def judge() -> QueueJudge:
    return QueueJudge({"red": QueueSpec(2, 4), "blue": QueueSpec(2, 2)})


def test_a_queue_within_its_limit_is_no_breach(judge: QueueJudge) -> None:
    pods = [_pod("a", 4), _pod("b", 2, queue="blue"), _pod("c", 8, queue=""), _pod("d", 1, phase="Succeeded")]
    assert judge.follow([*pods, _pod("e", 1, node="")], 1.0) == ""


def test_a_queue_beyond_its_limit_is_a_breach(judge: QueueJudge) -> None:
    assert judge.follow([_pod("a", 4), _pod("b", 1)], 1.0) == "red uses 5 GPUs, and its limit is 4"


def test_what_a_queue_borrowed_may_be_taken_back(judge: QueueJudge) -> None:
    pods = {"a": _pod("a", 3)}
    judge.follow(pods.values(), 1.0)
    assert judge.find_loss([{"uid": "a", "cause": "reclaimed"}], pods) == ""


@pytest.mark.parametrize("later", [1.0, 40.0])
def test_what_is_within_the_quota_may_not_be_taken(judge: QueueJudge, later: float) -> None:
    if later > 1.0:
        judge.follow([_pod("a", 2), _pod("b", 1)], 1.0)  # long ago
    pods = {"a": _pod("a", 2)}
    judge.follow(pods.values(), later)
    found = judge.find_loss([{"uid": "a", "cause": "reclaimed"}], pods)
    assert found == "red used 2 GPUs at most, within its quota, and loses a"
    assert judge.find_loss([{"uid": "a", "cause": "preempted"}], pods) == ""
