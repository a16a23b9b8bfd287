"""Sightings of pods for the tests of the demonstration."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.cli.demonstration.jobs import Job
from gpu_scheduler.cli.demonstration.observer import Record, Sighting, State

ONE, TWO = Job("one", 2, 1), Job("two", 2, 1)
PAIR = (ONE, TWO)
NODE = {"node1": 2}


def see(when: float, pod: str, state: State, *gpus: int, node: str = "node1") -> Sighting:
    """A pod `job-rank`, whose uid is its name."""
    placed = tuple((node, gpu) for gpu in gpus)
    return Sighting(when, pod, pod, pod.rpartition("-")[0], state, placed, node if gpus else "")


def record(*sightings: Sighting) -> Record:
    """A record of them."""
    found = Record()
    for seen in sightings:
        found.add(seen)
    return found


def locked() -> Record:
    """Two jobs of two pods on two GPUs, each with one of them."""
    return record(
        see(0.0, "one-0", State.WAITING),
        see(0.0, "two-0", State.WAITING),
        see(1.0, "one-0", State.STARTING, 0),
        see(1.0, "two-0", State.STARTING, 1),
        see(1.5, "one-1", State.WAITING),
        see(1.5, "two-1", State.WAITING),
        see(2.0, "one-0", State.RUNNING, 0),
        see(2.5, "two-0", State.RUNNING, 1),
    )


def run_of(job: str, start: float, running: float, end: float, gpus: Iterable[int]) -> list[Sighting]:
    """A job of one-GPU pods from its placement to its end."""
    steps = ((start, State.STARTING), (running, State.RUNNING), (end, State.SUCCEEDED))
    return [see(when, f"{job}-{rank}", state, gpu) for when, state in steps for rank, gpu in enumerate(gpus)]


def finished() -> Record:
    """The same jobs one after the other."""
    return record(*run_of("one", 1.0, 1.5, 4.0, (0, 1)), *run_of("two", 4.0, 4.5, 7.0, (0, 1)))
