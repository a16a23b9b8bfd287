"""Observations of pods for the tests of the demonstration."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.cli.demonstration.jobs import DemoJob
from gpu_scheduler.cli.demonstration.observer import Observations, PodObservation, PodState

ONE, TWO = DemoJob("one", 2, 1), DemoJob("two", 2, 1)
PAIR = (ONE, TWO)
NODE = {"node1": 2}


def observation(when: float, pod: str, state: PodState, *gpus: int, node: str = "node1") -> PodObservation:
    """A pod `job-rank`, whose uid is its name."""
    placed = tuple((node, gpu) for gpu in gpus)
    return PodObservation(when, pod, pod, pod.rpartition("-")[0], state, placed, node if gpus else "")


def record(*history: PodObservation) -> Observations:
    """The observations as a record."""
    found = Observations()
    for seen in history:
        found.add(seen)
    return found


def deadlocked_at() -> Observations:
    """Two jobs of two pods on two GPUs, each with one pod placed."""
    return record(
        observation(0.0, "one-0", PodState.WAITING),
        observation(0.0, "two-0", PodState.WAITING),
        observation(1.0, "one-0", PodState.STARTING, 0),
        observation(1.0, "two-0", PodState.STARTING, 1),
        observation(1.5, "one-1", PodState.WAITING),
        observation(1.5, "two-1", PodState.WAITING),
        observation(2.0, "one-0", PodState.RUNNING, 0),
        observation(2.5, "two-0", PodState.RUNNING, 1),
    )


def run_of(job: str, start: float, running: float, end: float, gpus: Iterable[int]) -> list[PodObservation]:
    """A job of one-GPU pods from its placement to its end."""
    steps = ((start, PodState.STARTING), (running, PodState.RUNNING), (end, PodState.SUCCEEDED))
    return [observation(when, f"{job}-{rank}", state, gpu) for when, state in steps for rank, gpu in enumerate(gpus)]


def finished() -> Observations:
    """The same jobs one after the other."""
    return record(*run_of("one", 1.0, 1.5, 4.0, (0, 1)), *run_of("two", 4.0, 4.5, 7.0, (0, 1)))
