"""The observer of the demonstration: holders, deadlocks, spans."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpu_scheduler.cli.demonstration.jobs import JOBS, DemoJob, idle_pod, interleave, mapped_pod, train_pod
from gpu_scheduler.cli.demonstration.observer import (
    GpuSpan,
    Observations,
    PodObservation,
    PodState,
    find_deadlock,
    find_double_allocation,
    find_spans,
    observe_pod,
    summarize_run,
)
from gpu_scheduler.k8s.objects import PodObject
from tests.unit.cli.demonstration import NODE, ONE, PAIR, TWO, deadlocked_at, finished, observation, record, run_of


def make_pod(phase: str, node: str = "", devices: str = "", why: str = "") -> PodObject:
    """A pod as the API shows it."""
    conditions = [{"type": "PodScheduled", "status": "False" if why else "True", "message": why or None}]
    annotations = {"gpu-scheduler.io/devices": devices} if devices else {}
    return msgspec.convert(
        {
            "metadata": {"name": "one-0", "uid": "u", "labels": {"demo/job": "one"}, "annotations": annotations},
            "spec": {"nodeName": node},
            "status": {"phase": phase, "conditions": conditions},
        },
        PodObject,
    )


@pytest.mark.parametrize(
    ("pod", "state", "gpus"),
    [
        pytest.param(make_pod("Pending"), PodState.WAITING, (), id="without a node"),
        pytest.param(make_pod("Pending", "n", "3,1"), PodState.STARTING, (("n", 3), ("n", 1)), id="placed"),
        pytest.param(make_pod("Running", "n", "0"), PodState.RUNNING, (("n", 0),), id="running"),
        pytest.param(make_pod("Running", "n"), PodState.RUNNING, (), id="running without GPUs"),
        pytest.param(make_pod("Succeeded", "n", "0"), PodState.SUCCEEDED, (("n", 0),), id="succeeded"),
        pytest.param(make_pod("Failed", "n", "0"), PodState.FAILED, (("n", 0),), id="failed"),
    ],
)
def test_a_pod_is_read_as_the_api_shows_it(pod: PodObject, state: PodState, gpus: tuple[tuple[str, int], ...]) -> None:
    seen = observe_pod(pod, 1.5)
    assert (seen.when, seen.pod, seen.job, seen.state, seen.gpus) == (1.5, "one-0", "one", state, gpus)


def test_a_deleted_pod_is_gone_in_any_phase() -> None:
    assert observe_pod(make_pod("Running", "n", "0"), 1.0, gone=True).state is PodState.GONE


def test_the_message_of_the_scheduler_is_kept_while_a_pod_waits() -> None:
    assert observe_pod(make_pod("Pending", why="no room"), 0.0).message == "no room"
    assert observe_pod(make_pod("Running", "n"), 0.0).message == ""


def test_a_new_message_is_no_change_of_state() -> None:
    found = record(observation(1.0, "one-0", PodState.WAITING))
    found.add(PodObservation(2.0, "one-0", "one-0", "one", PodState.WAITING, message="because"))
    assert (found.last_change, len(found.history)) == (1.0, 1)
    assert found.latest["one-0"].message == "because"
    assert found.latest["one-0"].when == 1.0


def test_a_gpu_is_held_from_the_bind_to_the_end() -> None:
    found = record(observation(0.0, "one-0", PodState.WAITING))
    assert found.held() == {}
    for state, holders in ((PodState.STARTING, 1), (PodState.RUNNING, 1), (PodState.SUCCEEDED, 0)):
        found.add(observation(1.0, "one-0", state, 0))
        assert len(found.held()) == holders


def test_the_latest_of_several_pods_with_one_name_is_found() -> None:
    found = record(
        PodObservation(0.0, "first", "one-0", "one", PodState.GONE),
        PodObservation(1.0, "next", "one-0", "one", PodState.WAITING),
    )
    last = found.find("one-0")
    assert last is not None
    assert last.uid == "next"
    assert [seen.uid for seen in found.members("one")] == ["next"]


# -- the lock


def test_jobs_that_wait_for_each_other_are_deadlocked() -> None:
    first, second = find_deadlock(deadlocked_at(), PAIR, NODE)
    assert (first.job, first.placed, first.holds, first.lacks, first.rivals) == (ONE, 1, 1, 1, {"two": 1})
    assert (second.job, second.rivals) == (TWO, {"one": 1})


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([observation(3.0, "two-0", PodState.SUCCEEDED, 1)], id="a GPU is free again"),
        pytest.param(
            [observation(3.0, "two-0", PodState.GONE, 1), observation(3.0, "one-1", PodState.RUNNING, 1)],
            id="a job has all of its pods",
        ),
    ],
)
def test_jobs_are_not_deadlocked_while_a_pod_can_start_or_a_job_can_finish(more: list[PodObservation]) -> None:
    found = deadlocked_at()
    for seen in more:
        found.add(seen)
    assert find_deadlock(found, PAIR, NODE) == ()


def test_a_free_gpu_that_no_job_can_use_does_not_end_a_deadlock() -> None:
    wide = (DemoJob("one", 2, 2), DemoJob("two", 2, 2))
    found = record(
        observation(1.0, "one-0", PodState.RUNNING, 0, 1),
        observation(1.0, "two-0", PodState.RUNNING, 2, 3),
        observation(1.0, "one-1", PodState.WAITING),
        observation(1.0, "two-1", PodState.WAITING),
    )
    assert len(find_deadlock(found, wide, {"node1": 5})) == 2
    assert find_deadlock(found, wide, {"node1": 6}) == ()
    assert len(find_deadlock(found, wide, {"node1": 5, "node2": 1})) == 2, "one here and one there are not two"


def test_no_observations_are_no_deadlock() -> None:
    assert find_deadlock(Observations(), PAIR, NODE) == ()
    assert find_deadlock(finished(), PAIR, NODE) == ()


# -- spans


def test_a_pod_waits_until_all_pods_of_its_job_run() -> None:
    history = [
        observation(1.0, "one-0", PodState.STARTING, 0),
        observation(1.2, "one-0", PodState.RUNNING, 0),
        observation(2.0, "one-1", PodState.STARTING, 1),
        observation(3.0, "one-1", PodState.RUNNING, 1),
        observation(5.0, "one-0", PodState.SUCCEEDED, 0),
    ]
    assert find_spans(history, (ONE,), 6.0) == [
        GpuSpan(("node1", 0), "one", "one-0", 1.0, 3.0, False),
        GpuSpan(("node1", 0), "one", "one-0", 3.0, 5.0, True),
        GpuSpan(("node1", 1), "one", "one-1", 2.0, 3.0, False),
        GpuSpan(("node1", 1), "one", "one-1", 3.0, 6.0, True),
    ]


def test_every_gpu_of_a_pod_has_a_span() -> None:
    spans = find_spans([observation(1.0, "one-0", PodState.RUNNING, 0, 5)], (ONE,), 2.0)
    assert [(span.gpu, span.computing) for span in spans] == [(("node1", 0), False), (("node1", 5), False)]


def test_consecutive_spans_of_a_gpu_do_not_overlap() -> None:
    assert find_double_allocation(find_spans(finished().history, PAIR, 8.0)) is None


def test_two_holders_of_one_gpu_are_found() -> None:
    both = record(*run_of("one", 1.0, 1.5, 4.0, (0, 1)), observation(3.0, "two-0", PodState.RUNNING, 1))
    double = find_double_allocation(find_spans(both.history, PAIR, 8.0))
    assert double is not None
    assert [span.pod for span in double] == ["one-1", "two-0"]


def test_a_deadlocked_run_has_computed_nothing() -> None:
    run = summarize_run("pod by pod", deadlocked_at(), PAIR, NODE, 10.0)
    assert (run.finished, run.computed, run.idle, run.deadlocked_at, run.submitted) == ({}, 0.0, 18.0, 2.5, 1.5)


def test_a_finished_run_has_the_end_of_each_job() -> None:
    run = summarize_run("with gangs", finished(), PAIR, NODE, 7.5)
    assert (run.finished, run.computed, run.idle, run.deadlocked_at) == ({"one": 4.0, "two": 7.0}, 10.0, 2.0, None)


# -- the jobs


def test_pods_of_jobs_are_interleaved() -> None:
    rounds = [
        [(job.name, rank) for job, rank in arrivals]
        for arrivals in interleave((DemoJob("a", 2, 1), DemoJob("b", 1, 1)))
    ]
    assert rounds == [[("a", 0), ("b", 0)], [("a", 1)]]


def test_the_jobs_deadlock_on_32_gpus_and_fit_as_gangs() -> None:
    left = 32
    placed = dict.fromkeys(JOBS, 0)
    for job, _ in (one for arrivals in interleave(JOBS) for one in arrivals):
        if job.gpus <= left:
            left -= job.gpus
            placed[job] += 1
    assert left == 0
    assert all(0 < placed[job] < job.pods for job in JOBS)
    assert all(job.total <= 32 for job in JOBS)


def test_jobs_that_are_drawn_together_have_different_letters() -> None:
    assert len({job.name[0] for job in JOBS}) == len(JOBS)


def test_the_pods_are_the_same_with_and_without_gangs() -> None:
    pod = train_pod(JOBS[2], 3, Path("meet"))
    assert pod["metadata"]["name"] == "text-3"
    assert pod["metadata"]["annotations"] == {"gpu-scheduler.io/gang": "text", "gpu-scheduler.io/gang-min": "8"}
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert {entry["name"]: entry["value"] for entry in container["env"]}["WORLD_SIZE"] == "8"
    assert {entry["name"]: entry["value"] for entry in container["env"]}["RENDEZVOUS"] == "meet"


def test_a_single_pod_is_no_gang_and_a_pod_with_a_map_requests_no_gpus() -> None:
    assert idle_pod(DemoJob("rival", 1, 8), 0)["metadata"]["annotations"] == {}
    mapped = mapped_pod("mapped", 1, "1=node2:2")
    assert mapped["metadata"]["annotations"] == {"gpu-scheduling-map": "1=node2:2"}
    assert "resources" not in mapped["spec"]["containers"][0]
