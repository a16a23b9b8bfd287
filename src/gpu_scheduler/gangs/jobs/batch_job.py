"""Jobs of Kubernetes: pods numbered from 0 with `completionMode: Indexed`."""

from __future__ import annotations

from gpu_scheduler.gangs.jobs.job_kind import SingleTemplateKind, read_count
from gpu_scheduler.k8s.objects import Json

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


class BatchJobs(SingleTemplateKind):
    """Jobs of batch/v1."""

    group, plural, kind = "batch", "jobs", "Job"
    index_label = COMPLETION_INDEX

    def count_pods(self, spec: Json) -> int:
        """Returns the parallelism, or the completions where these are fewer."""
        parallelism = read_count(spec.get("parallelism"))
        return min(parallelism, read_count(spec.get("completions"), parallelism))

    def pod_indices(self, spec: Json) -> range | None:
        """Returns the completion indices of an indexed Job."""
        indexed = spec.get("completionMode") == "Indexed"
        return range(max(0, read_count(spec.get("completions")))) if indexed else None
