"""Actions on a job. Each is idempotent: executing it twice has the same effect as once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpu_scheduler.k8s.objects import Json


class CreateGroup(NamedTuple):
    """Creates the job's PodGroup."""

    body: Json


class PatchGroup(NamedTuple):
    """Updates the job's PodGroup by a merge patch."""

    name: str
    body: Json


class DeleteGroup(NamedTuple):
    """Deletes the job's PodGroup, if it still has this uid."""

    name: str
    uid: str


class CreateService(NamedTuple):
    """Creates a headless Service."""

    body: Json


class DeleteService(NamedTuple):
    """Deletes a Service, if it still has this uid."""

    name: str
    uid: str


class CreateConfigMap(NamedTuple):
    """Creates a ConfigMap of the job."""

    body: Json


class CreatePod(NamedTuple):
    """Creates the pod of a replica."""

    body: Json


class DeletePod(NamedTuple):
    """Deletes the pod of a replica, if it still has this uid."""

    name: str
    uid: str


class RecordRestarts(NamedTuple):
    """Writes the restart counts on the job, before any of the pods is deleted."""

    annotations: dict[str, str]


class UpdateStatus(NamedTuple):
    """Updates the job's status by a merge patch; a conflict if the job has changed."""

    status: Json


class DeleteJob(NamedTuple):
    """Deletes the job, if it still has the same uid."""


class RecordEvent(NamedTuple):
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
    | RecordEvent
)


@dataclass(slots=True)
class JobPlan:
    """The actions of one reconciliation, in this order, and when to reconcile again without a change."""

    actions: list[Action] = field(default_factory=list)
    requeue_at: float | None = None
