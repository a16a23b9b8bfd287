"""Jobs of Volcano (batch.volcano.sh): a template for each task."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.gangs.jobs.job_kind import DeclaredMinimum, DeclaredPriority, JobKind, RoleTemplate, read_count
from gpu_scheduler.gangs.options import as_dict, quote
from gpu_scheduler.k8s.objects import Json

TASK = "volcano.sh/task-spec"


class VolcanoJobs(JobKind):
    """Jobs of batch.volcano.sh."""

    group, plural, kind = "batch.volcano.sh", "jobs", "Job"
    templates_at = "spec.tasks[].template"
    scheduler_at = "spec.schedulerName"
    owns_pod_groups = True
    role_label = TASK

    def templates(self, job: Json) -> Iterator[RoleTemplate]:
        """Yields the template of each task; the task's name is the role."""
        for number, task in _tasks(job):
            role, replicas = str(task.get("name") or ""), read_count(task.get("replicas"))
            field = f"spec.tasks[{quote(role) if role else number}].template"
            yield RoleTemplate(field, role, replicas, as_dict(task.get("template")))

    def minimums(self, job: Json) -> Iterator[DeclaredMinimum]:
        """Yields `minAvailable` of the job and of each task."""
        total = sum(template.replicas for template in self.templates(job))
        yield DeclaredMinimum("spec.minAvailable", as_dict(job.get("spec")).get("minAvailable"), total)
        for number, task in _tasks(job):
            field, replicas = f"spec.tasks[{number}].minAvailable", read_count(task.get("replicas"))
            yield DeclaredMinimum(field, task.get("minAvailable"), replicas)

    def priority_class(self, job: Json) -> DeclaredPriority:
        """Returns the job's `priorityClassName`."""
        return DeclaredPriority("spec.priorityClassName", str(as_dict(job.get("spec")).get("priorityClassName") or ""))


def _tasks(job: Json) -> Iterator[tuple[int, Json]]:
    tasks = as_dict(job.get("spec")).get("tasks")
    for number, task in enumerate(tasks if isinstance(tasks, list) else ()):
        if isinstance(task, dict):
            yield number, task
