"""Fifty PyTorchJobs at once on 32 GPUs: all succeed, and no gang ever holds GPUs below its minimum.

`observing.Ledger` says what that means, event by event; the observer gets every event of every pod from its own watch.
The same jobs without gangs show that it sees the difference.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration.jobs import SLEEP, operating, torch_job, wait_for_kinds
from tests.integration.live import Live
from tests.integration.observing import JOB_NAME, REPLICA_TYPE, Ledger, Observer
from tests.integration.running import TIMEOUT, Kube, eventually

GPUS = 32
JOBS = 50
VERSION = "kubeflow.org/v1"


class Size(NamedTuple):
    """A job: its pods, its minimum, the GPUs of each pod, and how long they run."""

    pods: int
    least: int
    gpus: int
    seconds: float


def make_sizes() -> dict[str, Size]:
    """Jobs of all sizes from one pod with one GPU to all GPUs of the cluster, always the same."""
    shapes = [(1, 1), (1, 8), (2, 2), (2, 8), (3, 4), (4, 1), (4, 4), (4, 8), (6, 2), (8, 4), (12, 2)]
    dice = random.Random(7)
    found = {}
    for number in range(JOBS):
        pods, gpus = shapes[number % len(shapes)]
        least = pods - 1 if pods > 4 and number % 2 else pods
        found[f"job{number:02}"] = Size(pods, least, gpus, round(dice.uniform(0.1, 0.6), 2))
    return found


def make_job(name: str, size: Size) -> Json:
    policy = {"cleanPodPolicy": "Running", "schedulingPolicy": {"minAvailable": size.least}}
    job = torch_job(SLEEP, workers=size.pods - 1, gpus=size.gpus, name=name, runPolicy=policy)
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        seconds = {"gpu-scheduler.io/simulate-duration": str(size.seconds)}
        replicas["template"]["metadata"] = {"annotations": seconds}
        replicas["template"]["spec"]["schedulerName"] = "gpu-scheduler"
    return job


def run_all(live: Live, *flags: str) -> Ledger:
    """Submits all jobs at once and waits until all have succeeded; returns the ledger."""
    sizes, kube = make_sizes(), Kube(live.cluster, live.namespace)

    def succeeded() -> bool:
        jobs = live.ask("GET", live.path("PyTorchJob", VERSION))["items"]
        conditions = [one for job in jobs for one in job.get("status", {}).get("conditions", ())]
        return len([one for one in conditions if one["type"] == "Succeeded" and one["status"] == "True"]) == JOBS

    with operating(live.cluster.folder / "kubeconfig", kube, *flags):
        wait_for_kinds(live.cluster)
        with Observer(live, Ledger({name: size.least for name, size in sizes.items()}, GPUS)) as ledger:
            kube.create(*(make_job(name, size) for name, size in sizes.items()))
            eventually(succeeded, "all jobs to succeed", 3 * TIMEOUT)
    return ledger


def test_fifty_jobs_at_once_succeed_and_none_holds_gpus_below_its_minimum(live: Live) -> None:
    ledger = run_all(live)
    assert not any(ledger.breaches.values()), ledger.breaches
    assert ledger.missing == []
    assert ledger.event_count >= sum(3 * size.least for size in make_sizes().values()), "three events of each"


@pytest.mark.local("the observer sees the same wherever it looks")
def test_the_same_jobs_without_gangs_are_seen_to_hold_gpus_below_their_minimum(live: Live) -> None:
    breaches = run_all(live, "--gang-scheduler-name", "none").breaches
    assert breaches["kept"]
    assert breaches["room"]
    assert not breaches["once"], "even without gangs no pod gets a GPU that another has"


# -- the observer itself


def event(kind: str, name: str, *, phase: str = "Pending", at: str = "") -> Json:
    """An event of a pod such as a-master-0 with one GPU, at "node:index" once it is bound."""
    job, role, _ = name.split("-")
    node, _, index = at.partition(":")
    spec: Json = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    meta: Json = {"name": name, "labels": {JOB_NAME: job, REPLICA_TYPE: role}}
    if at:
        spec["nodeName"] = node
        meta["annotations"] = {"gpu-scheduler.io/devices": index}
    return {"type": kind, "object": {"metadata": meta, "spec": spec, "status": {"phase": phase}}}


def made(name: str) -> Json:
    return event("ADDED", name)


def bound(name: str, at: str) -> Json:
    return event("MODIFIED", name, at=at)


def ended(name: str, at: str, phase: str = "Succeeded") -> Json:
    return event("MODIFIED", name, at=at, phase=phase)


A, B = ("a-master-0", "a-worker-0"), ("b-master-0", "b-worker-0")
WHOLE = [*map(made, A), bound(A[0], "n:0"), bound(A[1], "n:1")]
SCENARIOS: dict[str, tuple[list[Json], list[str], list[str]]] = {
    "a gang that runs and ends": ([*WHOLE, ended(A[0], "n:0"), ended(A[1], "n:1")], [], ["b"]),
    "two gangs, each after the other": (
        [*WHOLE, ended(A[1], "n:1"), ended(A[0], "n:0"), *map(made, B), bound(B[0], "n:1"), bound(B[1], "n:0")],
        [],
        [],
    ),
    "workers that are cleaned up after the master": (
        [*WHOLE, ended(A[0], "n:0"), event("DELETED", A[1], at="n:1", phase="Running")],
        [],
        ["b"],
    ),
    "a gang that starts on the remaining GPUs, and waits": (
        [*WHOLE[:3], made(B[0]), bound(B[0], "n:1"), ended(B[0], "n:1"), bound(A[1], "n:1")],
        ["kept", "room"],
        [],
    ),
    "two gangs that wait for each other": (
        [*map(made, (*A, *B)), bound(A[0], "n:0"), bound(B[0], "n:1")],
        ["room"],
        ["a", "b"],
    ),
    "a master that succeeds before its worker is bound": (
        [*WHOLE[:3], ended(A[0], "n:0"), event("DELETED", A[1])],
        [],
        ["b"],
    ),
    "a gang that never becomes complete": ([made(A[0]), bound(A[0], "n:0")], [], ["a", "b"]),
    "a member that is deleted": ([*WHOLE, event("DELETED", A[1], at="n:1", phase="Running")], ["whole"], ["b"]),
    "a member that fails": ([*WHOLE, ended(A[1], "n:1", "Failed")], ["whole"], ["b"]),
    "a GPU of two pods": ([made(A[0]), bound(A[0], "n:0"), made(B[0]), bound(B[0], "n:0")], ["once"], ["a", "b"]),
}


@pytest.mark.local("needs no cluster")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_observer_judges(scenario: str) -> None:
    events, breached, missing = SCENARIOS[scenario]
    ledger = Ledger({"a": 2, "b": 2}, gpus=2)
    for one in events:
        ledger.on_event(one)
    assert [rule for rule, found in ledger.breaches.items() if found] == breached
    assert ledger.missing == missing
