"""StatefulSets: pods numbered from `spec.ordinals.start`."""

from __future__ import annotations

from gpu_scheduler.gangs.jobs.job_kind import SingleTemplateKind, read_count
from gpu_scheduler.gangs.options import as_dict
from gpu_scheduler.k8s.objects import Json


class StatefulSets(SingleTemplateKind):
    """StatefulSets of apps/v1."""

    group, plural, kind = "apps", "statefulsets", "StatefulSet"
    index_label = "apps.kubernetes.io/pod-index"

    def pod_indices(self, spec: Json) -> range:
        """Returns the ordinals."""
        start = max(0, read_count(as_dict(spec.get("ordinals")).get("start"), 0))
        return range(start, start + max(0, read_count(spec.get("replicas"))))
