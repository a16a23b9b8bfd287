"""What was seen of the pods, and what follows from it: who holds what, who is locked, who computed when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from gpu_scheduler.cli.demonstration.jobs import JOB, DemoJob
from gpu_scheduler.gangs.contract import DEVICES
from gpu_scheduler.k8s.objects import PodObject

GpuId = tuple[str, int]
"""A node and the index of a GPU on it."""


class PodState(Enum):
    """How far a pod is."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"


_PHASES = {"Running": PodState.RUNNING, "Succeeded": PodState.SUCCEEDED, "Failed": PodState.FAILED}


@dataclass(frozen=True, slots=True)
class PodObservation:
    """A pod as the API showed it at some moment, in seconds since the run began."""

    when: float
    uid: str
    pod: str
    job: str
    state: PodState
    gpus: tuple[GpuId, ...] = ()
    node: str = ""
    said: str = ""
    """What the scheduler says about why it waits."""

    @property
    def holds(self) -> bool:
        """Whether its GPUs are nobody else's."""
        return self.state in (PodState.STARTING, PodState.RUNNING)

    def is_like(self, other: PodObservation) -> bool:
        """Whether the pod has not moved in between; new words are no movement."""
        return (self.state, self.gpus, self.node) == (other.state, other.gpus, other.node)


def observe_pod(pod: PodObject, when: float, *, gone: bool = False) -> PodObservation:
    """A sighting out of what the API tells of a pod."""
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
    """Everything that was seen in one run, in order."""

    history: list[PodObservation] = field(default_factory=list)
    latest: dict[str, PodObservation] = field(default_factory=dict)
    """Every pod by its uid, since when it is as it is."""
    moved: float = 0.0
    """When a pod moved last."""

    def add(self, seen: PodObservation) -> None:
        """Takes a sighting down."""
        before = self.latest.get(seen.uid)
        if before is not None and before.is_like(seen):
            self.latest[seen.uid] = replace(seen, when=before.when)
            return
        self.latest[seen.uid] = seen
        self.history.append(seen)
        self.moved = seen.when

    def members(self, job: str) -> list[PodObservation]:
        """The pods of a job that are still there, as they were seen last."""
        return [seen for seen in self.latest.values() if seen.job == job and seen.state is not PodState.GONE]

    def find(self, pod: str) -> PodObservation | None:
        """A pod by its name; of several that had it, the last one."""
        return next((seen for seen in reversed(self.latest.values()) if seen.pod == pod), None)

    def held(self) -> dict[GpuId, PodObservation]:
        """Every GPU that is held, and by whom."""
        return {gpu: seen for seen in self.latest.values() if seen.holds for gpu in seen.gpus}

    def is_whole(self, job: DemoJob) -> bool:
        """Whether all members run, so that they can compute, or have done so."""
        done = (PodState.RUNNING, PodState.SUCCEEDED)
        return sum(seen.state in done for seen in self.members(job.name)) == job.pods

    def is_finished(self, job: DemoJob) -> bool:
        """Whether all members succeeded."""
        return sum(seen.state is PodState.SUCCEEDED for seen in self.members(job.name)) == job.pods


# -- the lock


@dataclass(frozen=True, slots=True)
class DeadlockedJob:
    """A job that holds GPUs and cannot compute: how many of its pods have theirs, and who holds what it waits for."""

    job: DemoJob
    placed: int
    rivals: Mapping[str, int]

    @property
    def holds(self) -> int:
        """Its GPUs."""
        return self.placed * self.job.gpus

    @property
    def lacks(self) -> int:
        """The GPUs that it waits for."""
        return self.job.total - self.holds


def find_deadlock(
    record: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int]
) -> tuple[DeadlockedJob, ...]:
    """Those who wait for each other for ever; nobody, as long as any pod could still start or any job could end."""
    if any(record.is_whole(job) for job in jobs if not record.is_finished(job)):
        return ()
    held = record.held()
    free = [gpus - sum(node == name for node, _ in held) for name, gpus in capacity.items()]
    waiting = [job for job in jobs if any(seen.state is PodState.WAITING for seen in record.members(job.name))]
    if any(job.gpus <= room for job in waiting for room in free):
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
    """A GPU that was held by a pod from `start` to `end`, computing or waiting for the pod's siblings."""

    gpu: GpuId
    job: str
    pod: str
    start: float
    end: float
    computing: bool

    @property
    def length(self) -> float:
        """In seconds."""
        return self.end - self.start


def find_spans(history: Iterable[PodObservation], jobs: Sequence[DemoJob], end: float) -> list[GpuSpan]:
    """Who held every GPU from when to when, until `end`."""
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
    """When the last member came and the job could compute."""
    running: set[str] = set()
    for seen in history:
        if seen.job == job.name and seen.state is PodState.RUNNING:
            running.add(seen.uid)
            if len(running) == job.pods:
                return seen.when
    return None


def _split(first: PodObservation, end: float, began: Mapping[str, float | None]) -> list[GpuSpan]:
    """The spans of one pod: until its job began, and from then on."""
    turn = began.get(first.job)
    middle = end if turn is None else min(max(turn, first.when), end)
    parts = ((first.when, middle, False), (middle, end, True))
    return [
        GpuSpan(gpu, first.job, first.pod, start, stop, computing)
        for gpu in first.gpus
        for start, stop, computing in parts
        if stop > start
    ]


def find_double_allocation(spans: Iterable[GpuSpan]) -> tuple[GpuSpan, GpuSpan] | None:
    """Two pods that held the same GPU at the same time, if there are any."""
    ordered = sorted(spans, key=lambda span: (span.gpu, span.start))
    for one, next_ in pairwise(ordered):
        if one.gpu == next_.gpu and next_.start < one.end:
            return one, next_
    return None


# -- a whole run


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One run of the jobs: what every GPU did, when each job finished, and since when nothing moves if it is locked."""

    title: str
    jobs: tuple[DemoJob, ...]
    capacity: Mapping[str, int]
    spans: tuple[GpuSpan, ...]
    finished: Mapping[str, float]
    length: float
    submitted: float = 0.0
    """When the last pod came."""
    deadlocked_at: float | None = None

    @property
    def computed(self) -> float:
        """GPU-seconds in which something was computed."""
        return sum(span.length for span in self.spans if span.computing)

    @property
    def idle(self) -> float:
        """GPU-seconds in which a GPU was held by a pod that waited for its siblings."""
        return sum(span.length for span in self.spans if not span.computing)


def summarize_run(
    title: str, record: Observations, jobs: Sequence[DemoJob], capacity: Mapping[str, int], end: float
) -> DemoRun:
    """A run out of what was seen until `end`."""
    ends = {job.name: [s.when for s in record.members(job.name) if s.state is PodState.SUCCEEDED] for job in jobs}
    finished = {job.name: max(ends[job.name]) for job in jobs if record.is_finished(job)}
    deadlocked_at = record.moved if find_deadlock(record, jobs, capacity) else None
    spans = tuple(find_spans(record.history, jobs, end))
    submitted = max((seen.when for seen in record.history if seen.state is PodState.WAITING), default=0.0)
    return DemoRun(title, tuple(jobs), dict(capacity), spans, finished, end, submitted, deadlocked_at)
