"""Observations of pods, and what they show: holders of GPUs, deadlocks, and when each job computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from gpu_scheduler.cli.demonstration.jobs import JOB, DemoJob
from gpu_scheduler.gangs.contract import DEVICES
from gpu_scheduler.k8s.objects import PodObject

GpuId = tuple[str, int]
"""A node and the index of a GPU."""


class PodState(Enum):
    """The state of a pod."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"


_PHASES = {"Running": PodState.RUNNING, "Succeeded": PodState.SUCCEEDED, "Failed": PodState.FAILED}


@dataclass(frozen=True, slots=True)
class PodObservation:
    """A pod as the API showed it at a time, in seconds since the run started."""

    when: float
    uid: str
    pod: str
    job: str
    state: PodState
    gpus: tuple[GpuId, ...] = ()
    node: str = ""
    message: str = ""
    """The scheduler's message about why the pod waits."""

    @property
    def holds(self) -> bool:
        """Whether the pod holds its GPUs."""
        return self.state in (PodState.STARTING, PodState.RUNNING)

    def is_same_state(self, other: PodObservation) -> bool:
        """Whether nothing but the message has changed."""
        return (self.state, self.gpus, self.node) == (other.state, other.gpus, other.node)


def observe_pod(pod: PodObject, when: float, *, gone: bool = False) -> PodObservation:
    """Makes an observation from a pod object."""
    meta, node = pod.metadata, pod.spec.node_name
    state = PodState.GONE if gone else _PHASES.get(pod.status.phase, PodState.STARTING if node else PodState.WAITING)
    devices = (meta.annotations or {}).get(DEVICES, "")
    gpus = tuple((node, int(word)) for word in devices.split(",") if word) if node else ()
    conditions = pod.status.conditions or ()
    waits = [one.message or "" for one in conditions if one.type == "PodScheduled" and one.status == "False"]
    job = (meta.labels or {}).get(JOB, meta.name)
    return PodObservation(when, meta.uid, meta.name, job, state, gpus, node, waits[0] if waits else "")


@dataclass
class Observations:
    """All observations of one run, in order."""

    history: list[PodObservation] = field(default_factory=list)
    latest: dict[str, PodObservation] = field(default_factory=dict)
    """The latest observation of each pod by uid, with the time of its last change."""
    last_change: float = 0.0
    """When a pod last changed."""

    def add(self, seen: PodObservation) -> None:
        """Adds an observation."""
        before = self.latest.get(seen.uid)
        if before is not None and before.is_same_state(seen):
            self.latest[seen.uid] = replace(seen, when=before.when)
            return
        self.latest[seen.uid] = seen
        self.history.append(seen)
        self.last_change = seen.when

    def members(self, job: str) -> list[PodObservation]:
        """The latest observations of the pods of a job that still exist."""
        return [seen for seen in self.latest.values() if seen.job == job and seen.state is not PodState.GONE]

    def find(self, pod: str) -> PodObservation | None:
        """The latest pod with this name."""
        return next((seen for seen in reversed(self.latest.values()) if seen.pod == pod), None)

    def held(self) -> dict[GpuId, PodObservation]:
        """The holder of each GPU that is held."""
        return {gpu: seen for seen in self.latest.values() if seen.holds for gpu in seen.gpus}

    def is_whole(self, job: DemoJob) -> bool:
        """Whether all pods of a job run, so that it can compute, or have succeeded."""
        done = (PodState.RUNNING, PodState.SUCCEEDED)
        return sum(seen.state in done for seen in self.members(job.name)) == job.pods

    def is_finished(self, job: DemoJob) -> bool:
        """Whether all pods of a job have succeeded."""
        return sum(seen.state is PodState.SUCCEEDED for seen in self.members(job.name)) == job.pods


# -- deadlocks


@dataclass(frozen=True, slots=True)
class DeadlockedJob:
    """A job that holds GPUs and cannot compute: its placed pods, and the GPUs of the jobs that it waits for."""

    job: DemoJob
    placed: int
    rivals: Mapping[str, int]

    @property
    def holds(self) -> int:
        """The GPUs that the job holds."""
        return self.placed * self.job.gpus

    @property
    def lacks(self) -> int:
        """The GPUs that the job waits for."""
        return self.job.total - self.holds


def find_deadlock(
    record: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int]
) -> tuple[DeadlockedJob, ...]:
    """The jobs that wait for each other; none as long as a pod can start or a job can finish."""
    if any(record.is_whole(job) for job in jobs if not record.is_finished(job)):
        return ()
    held = record.held()
    free = [gpus - sum(node == name for node, _ in held) for name, gpus in capacity.items()]
    waiting = [job for job in jobs if any(seen.state is PodState.WAITING for seen in record.members(job.name))]
    if any(job.gpus <= gpus_free for job in waiting for gpus_free in free):
        return ()
    placed = {job.name: sum(seen.holds for seen in record.members(job.name)) for job in jobs}
    stuck = [job for job in waiting if placed[job.name]]
    holds = {job.name: placed[job.name] * job.gpus for job in stuck}
    return tuple(
        DeadlockedJob(job, placed[job.name], {name: gpus for name, gpus in holds.items() if name != job.name})
        for job in stuck
    )


# -- spans


@dataclass(frozen=True, slots=True)
class GpuSpan:
    """A GPU that a pod held from `start` to `end`, computing or waiting for other pods of its job."""

    gpu: GpuId
    job: str
    pod: str
    start: float
    end: float
    computing: bool

    @property
    def length(self) -> float:
        """The duration in seconds."""
        return self.end - self.start


def find_spans(history: Iterable[PodObservation], jobs: Sequence[DemoJob], end: float) -> list[GpuSpan]:
    """The holders of every GPU over time, until `end`."""
    history = list(history)
    began = {job.name: _find_beginning(history, job) for job in jobs}
    open_: dict[str, PodObservation] = {}
    spans: list[GpuSpan] = []
    for seen in history:
        first = open_.get(seen.uid)
        if first is None and seen.holds:
            open_[seen.uid] = seen
        elif first is not None and not seen.holds:
            spans += _split(open_.pop(seen.uid), seen.when, began)
    for first in open_.values():
        spans += _split(first, end, began)
    return sorted(spans, key=lambda span: (span.gpu, span.start))


def _find_beginning(history: Sequence[PodObservation], job: DemoJob) -> float | None:
    """When the last pod of a job ran, so that the job could compute."""
    running: set[str] = set()
    for seen in history:
        if seen.job == job.name and seen.state is PodState.RUNNING:
            running.add(seen.uid)
            if len(running) == job.pods:
                return seen.when
    return None


def _split(first: PodObservation, end: float, began: Mapping[str, float | None]) -> list[GpuSpan]:
    """The spans of one pod: before and after its job could compute."""
    job_began = began.get(first.job)
    middle = end if job_began is None else min(max(job_began, first.when), end)
    parts = ((first.when, middle, False), (middle, end, True))
    return [
        GpuSpan(gpu, first.job, first.pod, start, stop, computing)
        for gpu in first.gpus
        for start, stop, computing in parts
        if stop > start
    ]


def find_double_allocation(spans: Iterable[GpuSpan]) -> tuple[GpuSpan, GpuSpan] | None:
    """Two spans of the same GPU that overlap, if any."""
    ordered = sorted(spans, key=lambda span: (span.gpu, span.start))
    for one, next_ in pairwise(ordered):
        if one.gpu == next_.gpu and next_.start < one.end:
            return one, next_
    return None


# -- runs


@dataclass(frozen=True, slots=True)
class DemoRun:
    """The summary of one run: the spans of every GPU, when jobs finished, and since when they are deadlocked."""

    title: str
    jobs: tuple[DemoJob, ...]
    capacity: Mapping[str, int]
    spans: tuple[GpuSpan, ...]
    finished: Mapping[str, float]
    length: float
    submitted: float = 0.0
    """When the last pod was created."""
    deadlocked_at: float | None = None

    @property
    def computed(self) -> float:
        """GPU-seconds in which a job computed."""
        return sum(span.length for span in self.spans if span.computing)

    @property
    def idle(self) -> float:
        """GPU-seconds in which a GPU was held by a pod that waited for other pods of its job."""
        return sum(span.length for span in self.spans if not span.computing)


def summarize_run(
    title: str, record: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int], end: float
) -> DemoRun:
    """Summarizes the observations until `end`."""
    ends = {job.name: [s.when for s in record.members(job.name) if s.state is PodState.SUCCEEDED] for job in jobs}
    finished = {job.name: max(ends[job.name]) for job in jobs if record.is_finished(job)}
    deadlocked_at = record.last_change if find_deadlock(record, jobs, capacity) else None
    spans = tuple(find_spans(record.history, jobs, end))
    submitted = max((seen.when for seen in record.history if seen.state is PodState.WAITING), default=0.0)
    return DemoRun(title, tuple(jobs), dict(capacity), spans, finished, end, submitted, deadlocked_at)
