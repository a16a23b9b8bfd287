"""The training jobs of kubeflow.org: a template for each replica type."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.gangs.jobs.job_kind import DeclaredMinimum, DeclaredPriority, JobKind, RoleTemplate, read_count
from gpu_scheduler.gangs.options import as_dict
from gpu_scheduler.k8s.objects import Json

REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
_LONGEST = 60


class KubeflowJobs(JobKind):
    """One of the kinds of kubeflow.org. Their replica specs differ in the name of the field only."""

    group = "kubeflow.org"
    templates_at = "spec.*ReplicaSpecs{}.template"
    scheduler_at = "spec.schedulerName"
    owns_pod_groups = True
    role_label = REPLICA_TYPE
    index_label = REPLICA_INDEX

    def __init__(self, plural: str, kind: str) -> None:
        self.plural = plural
        self.kind = kind

    def templates(self, job: Json) -> Iterator[RoleTemplate]:
        """Yields the template of each replica type. The training operator labels pods with the type in lower case."""
        for field, replica_specs in as_dict(job.get("spec")).items():
            if field.endswith("ReplicaSpecs"):
                for name, found in as_dict(replica_specs).items():
                    replica, where = as_dict(found), f"spec.{field[:_LONGEST]}.{name[:_LONGEST]}.template"
                    template = as_dict(replica.get("template"))
                    yield RoleTemplate(where, name.lower(), read_count(replica.get("replicas")), template)

    def minimums(self, job: Json) -> Iterator[DeclaredMinimum]:
        """Yields `minAvailable` of the scheduling policy."""
        total = sum(template.replicas for template in self.templates(job))
        minimum = _scheduling_policy(job).get("minAvailable")
        yield DeclaredMinimum("spec.runPolicy.schedulingPolicy.minAvailable", minimum, total)

    def priority_class(self, job: Json) -> DeclaredPriority:
        """Returns the priority class of the scheduling policy."""
        name = str(_scheduling_policy(job).get("priorityClass") or "")
        return DeclaredPriority("spec.runPolicy.schedulingPolicy.priorityClass", name)


def _scheduling_policy(job: Json) -> Json:
    return as_dict(as_dict(as_dict(job.get("spec")).get("runPolicy")).get("schedulingPolicy"))
