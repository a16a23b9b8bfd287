"""The comparison and the report of `validate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.cli.render.validation import draw_report, report_as_json, say_verdict
from gpu_scheduler.cli.validation.comparison import (
    NAMESPACE,
    ExpectedPlacement,
    ObservedCluster,
    ObservedNode,
    ObservedPod,
    ObservedScheduler,
    Validation,
    find_advice,
    find_differences,
    load_manifest,
    read_printed,
    read_trouble,
    read_values,
    read_wanted,
)

EXAMPLE = Path(__file__).parents[3] / "examples/08-gpu-map/pods.yaml"
WANTED = (ExpectedPlacement("webhook-test-0", "node1", "0,1"), ExpectedPlacement("webhook-test-1", "node2", "2"))
CLUSTER = ObservedCluster(
    "https://192.0.2.1:6443",
    "v1.35.0",
    (ObservedNode("node1", gpus=8), ObservedNode("worker-b", "node2", gpus=8), ObservedNode("worker-c", ready=False)),
    0.0,
)
SCHEDULER = ObservedScheduler("gpu-scheduler-1, renewed 1s ago", webhook="at Service a/b:443/mutate, 1 ready endpoint")


def good(number: int, **more: Any) -> ObservedPod:
    """A pod that matches the map, except for the given fields."""
    wanted = WANTED[number]
    node = CLUSTER.find(wanted.node)[0].name
    seen = ObservedPod(wanted, "Running", node, {"main": wanted.devices}, printed=wanted.devices)
    return replace(seen, **more)


GOOD = Validation(CLUSTER, SCHEDULER, (good(0), good(1)))


# -- the pods themselves


def test_the_command_starts_the_pods_of_the_example() -> None:
    assert list(yaml.safe_load_all(EXAMPLE.read_text())) == load_manifest()


def test_the_three_test_pods_share_one_map() -> None:
    namespace, *pods = load_manifest()
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", NAMESPACE)
    assert {pod["metadata"]["namespace"] for pod in pods} == {NAMESPACE}
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"gpu-scheduler"}
    assert [read_wanted(pod) for pod in pods] == [*WANTED, ExpectedPlacement("webhook-test-2", "node3", "0,1,2")]


def test_the_pods_are_allowed_where_pod_security_is_restricted() -> None:
    for pod in load_manifest()[1:]:
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


# -- what is read from them


def env(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"name": "main", "env": list(entries)}


OURS = {"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}
FIELD = {"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
SPECS: dict[str, tuple[dict[str, Any], dict[str, str | None]]] = {
    "a literal": ({"containers": [env({"name": "A"}, OURS)]}, {"main": "0,1"}),
    "nothing": ({"containers": [{"name": "main"}]}, {"main": None}),
    "an empty value": ({"containers": [env({"name": "CUDA_VISIBLE_DEVICES"})]}, {"main": ""}),
    "a field": ({"containers": [env(FIELD)]}, {"main": "(not a literal value)"}),
    "two": ({"containers": [env(OURS, OURS)]}, {"main": "0,1 and 0,1"}),
    "init containers, too": (
        {"initContainers": [{"name": "first"}], "containers": [env(OURS)]},
        {"first": None, "main": "0,1"},
    ),
}


@pytest.mark.parametrize(("spec", "values"), SPECS.values(), ids=list(SPECS))
def test_variable_is_read_from_a_pod_with(spec: dict[str, Any], values: dict[str, str | None]) -> None:
    assert read_values({"spec": spec}) == values


TEXTS = {
    "the line alone": ("CUDA_VISIBLE_DEVICES=0,1\n", "0,1"),
    "other lines around": ("hello\nCUDA_VISIBLE_DEVICES=2\nCUDA_VISIBLE_DEVICES=3\n", "2"),
    "an empty value": ("CUDA_VISIBLE_DEVICES=\n", ""),
    "nothing": ("", None),
    "another variable": ("MY_CUDA_VISIBLE_DEVICES=1", None),
}


@pytest.mark.parametrize(("text", "printed"), TEXTS.values(), ids=list(TEXTS))
def test_log_is_read_with(text: str, printed: str | None) -> None:
    assert read_printed(text) == printed


def waiting(**state: Any) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [{"name": "main", "state": state}]}


UNSCHEDULED = {"type": "PodScheduled", "status": "False", "message": "no node\ncan take it"}
STATES: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "runs": ({"phase": "Running", "containerStatuses": [{"name": "m", "state": {"running": {}}}]}, ("Running", "")),
    "is new": ({}, ("Pending", "")),
    "has no node": ({"phase": "Pending", "conditions": [UNSCHEDULED]}, ("Pending", "no node can take it")),
    "is being started": (waiting(waiting={"reason": "ContainerCreating"}), ("Pending", "")),
    "has no image": (
        waiting(waiting={"reason": "ErrImagePull", "message": "not found"}),
        ("ErrImagePull", "container main: ErrImagePull not found"),
    ),
    "ended badly": (waiting(terminated={"reason": "Error", "exitCode": 1}), ("Error", "container main: Error")),
    "was turned away": ({"phase": "Failed", "message": "Node had no room"}, ("Failed", "Node had no room")),
}


@pytest.mark.parametrize(("status", "told"), STATES.values(), ids=list(STATES))
def test_the_problem_is_read_from_a_pod_that(status: dict[str, Any], told: tuple[str, str]) -> None:
    assert read_trouble({"status": status}) == told


# -- differences

TWINS = replace(CLUSTER, nodes=(ObservedNode("a", "node1"), ObservedNode("b", "node1")))
STRANGE = replace(CLUSTER, nodes=(ObservedNode("a", "b"),))
DIFFERENCES: dict[str, tuple[ObservedPod, ObservedCluster, list[str]]] = {
    "none": (good(0), CLUSTER, []),
    "none on a node with a label": (good(1), CLUSTER, []),
    "none where the log cannot be read": (good(0, printed=None, log_problem="forbidden"), CLUSTER, []),
    "another node": (good(0, node="worker-b"), CLUSTER, ["expected on node1, actual: on node2 (worker-b)"]),
    "no variable": (
        good(0, values={"main": None, "side": "0,1"}, printed=""),
        CLUSTER,
        ["expected CUDA_VISIBLE_DEVICES=0,1 in container main, actual: CUDA_VISIBLE_DEVICES is not set"],
    ),
    "another value in every container": (
        good(0, values={"main": "2", "side": ""}),
        CLUSTER,
        [
            "expected CUDA_VISIBLE_DEVICES=0,1 in container main, actual: CUDA_VISIBLE_DEVICES=2",
            "expected CUDA_VISIBLE_DEVICES=0,1 in container side, actual: CUDA_VISIBLE_DEVICES=",
        ],
    ),
    "another value in the log": (
        good(0, printed="0"),
        CLUSTER,
        ["expected CUDA_VISIBLE_DEVICES=0,1 in its log, actual: CUDA_VISIBLE_DEVICES=0"],
    ),
    "a pod that waits": (
        good(0, status="Pending", node="", trouble="GPU 0 is taken", printed=None),
        CLUSTER,
        ["expected on node1, actual: not scheduled: GPU 0 is taken"],
    ),
    "a pod that waits in silence": (
        good(0, status="Pending", node="", printed=None),
        CLUSTER,
        ["expected on node1, actual: not scheduled"],
    ),
    "a node that is not there": (
        good(0, status="Pending", node="", printed=None),
        STRANGE,
        [
            "expected on node1, actual: not scheduled: no node is called node1; "
            "run kubectl label node <node> gpu-node-name=node1"
        ],
    ),
    "two nodes of one name": (
        good(0, status="Pending", node="", printed=None),
        TWINS,
        [
            "expected on node1, actual: not scheduled: several nodes are called node1: a, b; "
            "give all but one of them another gpu-node-name"
        ],
    ),
    "a pod that does not start": (
        good(0, status="ErrImagePull", trouble="container main: ErrImagePull", printed=None),
        CLUSTER,
        ["expected Running, actual: ErrImagePull: container main: ErrImagePull"],
    ),
    "a pod that was refused": (
        ObservedPod(WANTED[0], "refused", trouble="the webhook does not answer"),
        CLUSTER,
        ["expected the pod to exist, actual: refused: the webhook does not answer"],
    ),
}


@pytest.mark.parametrize(("pod", "cluster", "found"), DIFFERENCES.values(), ids=list(DIFFERENCES))
def test_differences_are(pod: ObservedPod, cluster: ObservedCluster, found: list[str]) -> None:
    assert find_differences(pod, cluster) == found


UNSET = good(0, values={"main": None}, printed="")
WAITING = good(0, status="Pending", node="", printed=None)
NO_LEADER = ObservedScheduler(leader_problem="No scheduler has ever run in this cluster.")
ADVICE: dict[str, tuple[ObservedPod, ObservedScheduler, list[str]]] = {
    "all is well": (good(0), SCHEDULER, []),
    "there is no webhook": (
        UNSET,
        ObservedScheduler("me"),
        [
            "The webhook configuration gpu-scheduler-webhook is not installed, so nothing sets CUDA_VISIBLE_DEVICES; "
            "see docs/troubleshooting.md."
        ],
    ),
    "the webhook did nothing": (
        UNSET,
        SCHEDULER,
        ["The webhook did not set CUDA_VISIBLE_DEVICES; see its log and docs/troubleshooting.md."],
    ),
    "no scheduler leads": (
        WAITING,
        NO_LEADER,
        [
            "No scheduler has ever run in this cluster. "
            "Nothing starts until a scheduler runs; see docs/troubleshooting.md."
        ],
    ),
    "no scheduler leads but the pod runs": (good(0), NO_LEADER, []),
    "it was refused": (
        ObservedPod(WANTED[0], "refused", trouble="no"),
        SCHEDULER,
        ["The API server refused pods; see docs/troubleshooting.md."],
    ),
}


@pytest.mark.parametrize(("pod", "scheduler", "advice"), ADVICE.values(), ids=list(ADVICE))
def test_advice_when(pod: ObservedPod, scheduler: ObservedScheduler, advice: list[str]) -> None:
    assert find_advice(Validation(CLUSTER, scheduler, (pod,))) == advice


# -- the report

PASSED = """\
=== GPU Scheduler Validation Report ===
1970-01-01T00:00:00Z  https://192.0.2.1:6443

=== Cluster Status ===
Kubernetes v1.35.0, 2 of 3 nodes ready
NODE      READY  GPU-NODE-NAME  GPUS
node1     yes                      8
worker-b  yes    node2             8
worker-c  no

=== Scheduler Status ===
Leader: gpu-scheduler-1, renewed 1s ago
Webhook: at Service a/b:443/mutate, 1 ready endpoint

=== Test Pods Status ===
POD             STATUS   NODE              EXPECTED
webhook-test-0  Running  node1             node1
webhook-test-1  Running  node2 (worker-b)  node2

=== Environment Variable Validation ===
webhook-test-0: CUDA_VISIBLE_DEVICES=0,1    ✅ (Scheduled to node1)
webhook-test-1: CUDA_VISIBLE_DEVICES=2    ✅ (Scheduled to node2)

Validation passed: all 2 pods run on the nodes and with the GPUs of the map.
"""
FAILED = """\
=== GPU Scheduler Validation Report ===
1970-01-01T00:00:00Z  https://192.0.2.1:6443

=== Cluster Status ===
Kubernetes v1.35.0, 2 of 3 nodes ready
NODE      READY  GPU-NODE-NAME  GPUS
node1     yes                      8
worker-b  yes    node2             8
worker-c  no

=== Scheduler Status ===
Leader: No scheduler has ever run in this cluster.
Webhook: not installed

=== Test Pods Status ===
POD             STATUS   EXPECTED
webhook-test-0  Pending  node1
webhook-test-1  refused  node2

=== Environment Variable Validation ===
webhook-test-0: CUDA_VISIBLE_DEVICES=0,1    ❌ (Not scheduled)
    expected on node1, actual: not scheduled
webhook-test-1: refused    ❌ (Not scheduled)
    expected the pod to exist, actual: refused: no

Not removed: pod x: forbidden

The API server refused pods; see docs/troubleshooting.md.
No scheduler has ever run in this cluster. Nothing starts until a scheduler runs; see docs/troubleshooting.md.

Validation failed: 2 of 2 pods do not match the map.
"""
BAD = Validation(CLUSTER, NO_LEADER, (WAITING, ObservedPod(WANTED[1], "refused", trouble="no")), ("pod x: forbidden",))


@pytest.mark.parametrize(("found", "text"), [(GOOD, PASSED), (BAD, FAILED)], ids=["passed", "failed"])
def test_report_of_a_validation_that(found: Validation, text: str) -> None:
    assert draw_report(found) == text


def test_report_says_when_a_log_was_not_compared() -> None:
    found = Validation(CLUSTER, SCHEDULER, (good(0, printed=None, log_problem="it is empty"),))
    assert "    its log was not compared: it is empty\n" in draw_report(found)
    assert found.passed


def test_report_counts_nodes_that_are_too_many_to_show() -> None:
    nodes = tuple(ObservedNode(f"n{number:03}") for number in range(25))
    text = draw_report(replace(GOOD, cluster=replace(CLUSTER, nodes=nodes)))
    assert "n019  yes\nand 5 more\n" in text
    assert "n020" not in text


VERDICTS: dict[str, tuple[Validation, bool, str]] = {
    "all are right": (GOOD, True, "Validation passed: all 2 pods run on the nodes and with the GPUs of the map."),
    "one is wrong": (
        replace(GOOD, pods=(WAITING, good(1))),
        False,
        "Validation failed: 1 of 2 pods does not match the map.",
    ),
    "something is left": (
        replace(GOOD, left_behind=("pod x",)),
        False,
        "Validation failed: all 2 pods match the map, but not everything could be removed.",
    ),
}


@pytest.mark.parametrize(("found", "passed", "verdict"), VERDICTS.values(), ids=list(VERDICTS))
def test_verdict_when(found: Validation, passed: bool, verdict: str) -> None:
    assert (found.passed, say_verdict(found)) == (passed, verdict)


def test_json_has_the_content_of_the_report() -> None:
    found = json.loads(json.dumps(report_as_json(BAD)))
    assert found["passed"] is False
    assert found["verdict"] in FAILED
    assert found["scheduler"] == {
        "leader": None,
        "leader_problem": "No scheduler has ever run in this cluster.",
        "webhook": None,
        "webhook_problem": None,
    }
    assert found["pods"][0]["expected"] == {"node": "node1", "cuda_visible_devices": "0,1"}
    assert found["pods"][0]["actual"] == {"node": None, "cuda_visible_devices": {"main": "0,1"}, "printed": None}
    assert [pod["passed"] for pod in found["pods"]] == [False, False]
    assert found["left_behind"] == ["pod x: forbidden"]
    assert all(line in FAILED for line in found["advice"])
