"""Job kinds: one file for each kind of object that creates pods, and the table of all of them.

The scheduler reads the owners of PodGroups by it, the webhook the templates, the operator the kinds that it runs, and
the chart the rights. What the operator does with a job belongs in `operator`.
"""

from __future__ import annotations

from gpu_scheduler.gangs.jobs.batch_job import BatchJobs
from gpu_scheduler.gangs.jobs.deployment import Deployments, ReplicaSets
from gpu_scheduler.gangs.jobs.job_kind import DeclaredMinimum, JobKind, RoleTemplate, SingleTemplateKind
from gpu_scheduler.gangs.jobs.kubeflow import KubeflowJobs
from gpu_scheduler.gangs.jobs.statefulset import StatefulSets
from gpu_scheduler.gangs.jobs.volcano_job import VolcanoJobs
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.objects import OwnerReference
from gpu_scheduler.k8s.resources import Resource

__all__ = [
    "INDEX_LABELS",
    "JOB_KINDS",
    "PYTORCH_JOBS",
    "ROLE_LABELS",
    "STATEFUL_SETS",
    "TF_JOBS",
    "VOLCANO_JOBS",
    "DeclaredMinimum",
    "JobKind",
    "RoleTemplate",
    "SingleTemplateKind",
    "find_job_kind",
    "find_owner_kind",
    "is_job_group",
    "readable_jobs",
]

STATEFUL_SETS = StatefulSets()
VOLCANO_JOBS = VolcanoJobs()
PYTORCH_JOBS = KubeflowJobs("pytorchjobs", "PyTorchJob")
TF_JOBS = KubeflowJobs("tfjobs", "TFJob")

JOB_KINDS: tuple[JobKind, ...] = (
    BatchJobs(),
    Deployments(),
    ReplicaSets(),
    STATEFUL_SETS,
    VOLCANO_JOBS,
    KubeflowJobs("jaxjobs", "JAXJob"),
    KubeflowJobs("mpijobs", "MPIJob"),
    KubeflowJobs("paddlejobs", "PaddleJob"),
    PYTORCH_JOBS,
    TF_JOBS,
    KubeflowJobs("xgboostjobs", "XGBoostJob"),
)

ROLE_LABELS = tuple(dict.fromkeys(kind.role_label for kind in JOB_KINDS if kind.role_label))
INDEX_LABELS = tuple(dict.fromkeys(kind.index_label for kind in JOB_KINDS if kind.index_label))

_BY_PLURAL = {(kind.group, kind.plural): kind for kind in JOB_KINDS}
_OWNERS = {(kind.group, kind.kind): kind for kind in JOB_KINDS if kind.owns_pod_groups}


def find_job_kind(group: str, plural: str) -> JobKind | None:
    """Returns the kind of an API resource."""
    return _BY_PLURAL.get((group, plural))


def find_owner_kind(owner: OwnerReference) -> JobKind | None:
    """Returns the kind of the job that owns a PodGroup; None where it is not a job that the table has."""
    return _OWNERS.get((owner.api_version.partition("/")[0], owner.kind))


def is_job_group(group: str) -> bool:
    """Returns whether jobs that own PodGroups belong to an API group."""
    return any(group == one for one, _ in _OWNERS)


def readable_jobs(served: Served) -> list[Resource]:
    """Returns the served kinds of jobs that own PodGroups."""
    readable = {(kind.group, kind.plural) for kind in _OWNERS.values()}
    return [found for found in served.resources if (found.group, found.plural) in readable]
