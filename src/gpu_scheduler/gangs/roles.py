"""The role of a pod in its gang, and which roles are bound first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpu_scheduler.core.model import Role
from gpu_scheduler.gangs.contract import ROLE
from gpu_scheduler.gangs.jobs import ROLE_LABELS
from gpu_scheduler.gangs.options import label
from gpu_scheduler.k8s.objects import PodObject

SPARK_ROLE = "spark-role"
_ANNOTATIONS = (ROLE, *ROLE_LABELS)
_LABELS = (*ROLE_LABELS, SPARK_ROLE)

LEADERS = frozenset({"master", "chief", "driver", "launcher"})
"""Roles that the other members connect to when they start: their pods are bound first."""
LEADER_RANK = -1


def role_of(pod: PodObject) -> str:
    """Returns the role of a pod: our annotation first, then the annotation or label of each kind of job."""
    meta = pod.metadata
    if meta.annotations:
        for name in _ANNOTATIONS:
            if role := meta.annotations.get(name):
                return role
    return next((role for name in _LABELS if (role := label(meta, name))), "")


def leader_role(pod: PodObject) -> str:
    """Returns the pod's role if it is a leader's, else ""."""
    role = role_of(pod)
    return role if role.lower() in LEADERS else ""


def rank_roles(roles: Iterable[Role], pods: Iterable[PodObject]) -> tuple[Role, ...]:
    """Returns the roles, and those of leader pods, with ranks by name."""
    found = {role.name: role for role in roles}
    for leader in sorted({leader_role(pod) for pod in pods} - {""}):
        found.setdefault(leader, Role(leader))
    return tuple(replace(r, rank=LEADER_RANK) if r.name.lower() in LEADERS else r for r in found.values())
