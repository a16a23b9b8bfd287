"""Deployments, and the ReplicaSets that they create."""

from __future__ import annotations

from gpu_scheduler.gangs.jobs.job_kind import SingleTemplateKind


class Deployments(SingleTemplateKind):
    """Deployments of apps/v1."""

    group, plural, kind = "apps", "deployments", "Deployment"


class ReplicaSets(SingleTemplateKind):
    """ReplicaSets of apps/v1."""

    group, plural, kind = "apps", "replicasets", "ReplicaSet"
