"""What has to be done about a job. Every action may be carried out twice, and nothing is done twice by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpu_scheduler.k8s.objects import Json


class CreateGroup(NamedTuple):
    """Makes the job's PodGroup."""

    body: Json


class PatchGroup(NamedTuple):
    """Brings the job's PodGroup up to date, by a merge patch."""

    name: str
    body: Json


class DeleteGroup(NamedTuple):
    """Deletes the job's PodGroup, that one only."""

    name: str
    uid: str


class CreateService(NamedTuple):
    """Makes the headless Service of a replica."""

    body: Json


class DeleteService(NamedTuple):
    """Deletes the Service of a replica, that one only."""

    name: str
    uid: str


class CreateConfigMap(NamedTuple):
    """Makes a ConfigMap of the job's."""

    body: Json


class CreatePod(NamedTuple):
    """Makes the pod of a replica."""

    body: Json


class DeletePod(NamedTuple):
    """Deletes the pod of a replica, that one only."""

    name: str
    uid: str


class RecordRestarts(NamedTuple):
    """Writes on the job how often its pods have been made anew, before any of them is deleted."""

    annotations: dict[str, str]


class UpdateStatus(NamedTuple):
    """Changes the job's status, by a merge patch; refused when the job has changed meanwhile."""

    status: Json


class DeleteJob(NamedTuple):
    """Deletes the job, that one only."""


class Tell(NamedTuple):
    """Writes an Event about the job."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = (
    CreateGroup
    | PatchGroup
    | DeleteGroup
    | CreateService
    | DeleteService
    | CreateConfigMap
    | CreatePod
    | DeletePod
    | RecordRestarts
    | UpdateStatus
    | DeleteJob
    | Tell
)


@dataclass(slots=True)
class Plan:
    """What to do now, in this order, and when to look again though nothing has changed."""

    actions: list[Action] = field(default_factory=list)
    again: float | None = None
