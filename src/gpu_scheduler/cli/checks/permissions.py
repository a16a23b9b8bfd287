"""What the accounts of the scheduler, the webhook and the operator must be allowed to do.

The chart's rules are generated from these tables by scripts/write_chart_files.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpu_scheduler.gangs.contract import PLACEMENTS, QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.definitions import DEFINITIONS
from gpu_scheduler.gangs.dialects import DIALECTS, choose_resources
from gpu_scheduler.gangs.jobs import JOB_KINDS
from gpu_scheduler.gangs.rights import READ, WATCH, Right
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.resources import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    MUTATING,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    SECRETS,
    SERVICES,
    STORAGE_CLASSES,
    VALIDATING,
    VOLUMES,
    Resource,
)
from gpu_scheduler.operator.frameworks import FRAMEWORKS


class Permission(NamedTuple):
    """One verb on one resource; everywhere when no namespace is named, on all objects when no name is."""

    group: str
    resource: str
    verb: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        what = f"{what}.{self.group}" if self.group else what
        what = f"{what} {self.name}" if self.name else what
        return f"{self.verb} {what}" + (f" in {self.namespace}" if self.namespace else "")


def _right(resource: Resource, *verbs: str, subresource: str = "") -> Right:
    return Right(resource.group, resource.plural, verbs, subresource)


SCHEDULER: tuple[Right, ...] = (
    _right(PODS, *WATCH, "patch", "delete"),
    _right(PODS, "create", subresource="binding"),
    _right(PODS, "create", subresource="eviction"),
    _right(PODS, "patch", subresource="status"),
    _right(NODES, *READ),
    _right(NAMESPACES, *READ),
    _right(VOLUMES, *READ),
    _right(CLAIMS, *READ, "patch"),
    _right(STORAGE_CLASSES, *READ),
    _right(PRIORITY_CLASSES, *READ),
    _right(EVENTS, "create", "patch"),
)
SCHEDULER_GANGS = tuple(right for dialect in DIALECTS for right in dialect.rights)
SCHEDULER_JOBS = tuple(right for kind in JOB_KINDS for right in kind.rights)
SCHEDULER_QUEUES = tuple(
    right
    for queue in (QUEUES, VOLCANO_QUEUES)
    for right in (_right(queue, *READ), _right(queue, "patch", subresource="status"))
)
SCHEDULER_OWN = (
    _right(LEASES, "get", "create", "update"),
    _right(PLACEMENTS, "get", "list", "create", "patch", "delete"),
)
"""In the scheduler's own namespace."""

WEBHOOK_EVERYWHERE = (_right(NODES, *READ), _right(QUEUES, "list"), _right(VOLCANO_QUEUES, "list"))
WEBHOOK_CONFIGURATIONS = (_right(MUTATING, "get", "patch"), _right(VALIDATING, "get", "patch"))
"""On the webhook's two configurations only, and only where it renews its own certificate."""
WEBHOOK_SECRETS = (_right(SECRETS, "get", "update"),)
"""On the Secret of that certificate only."""

OPERATOR_EVERYWHERE = (_right(DEPLOYMENTS, *READ),)
"""Whichever namespaces it serves: it looks for other controllers of the same jobs."""
OPERATOR_DEFINITIONS = (_right(DEFINITIONS, "create"),)
OPERATOR_JOBS = (
    *(right for framework in FRAMEWORKS for right in framework.rights),
    _right(PODS, *WATCH, "create", "delete"),
    _right(SERVICES, *WATCH, "create", "delete"),
    _right(CONFIG_MAPS, "get", "create"),
    _right(EVENTS, "create", "patch"),
)
"""In the namespaces that it serves."""
OPERATOR_OWN = (_right(LEASES, "get", "create", "update"),)


def operator_group_rights(groups: Resource) -> tuple[Right, ...]:
    """Returns what the operator does with the PodGroups of jobs."""
    return (_right(groups, *WATCH, "create", "patch", "delete"),)


def needed_permissions(served: Served, system: str) -> list[Permission]:
    """Returns everything the scheduler does, as far as the cluster serves the kinds."""
    read = {(kind.group, kind.plural) for kind in gang_kinds(served)}  # in a version that the scheduler reads
    gangs = [right for right in SCHEDULER_GANGS if (right.group, right.plural) in read]
    custom = [right for right in (*gangs, *SCHEDULER_JOBS, *SCHEDULER_QUEUES) if _is_served(right, served)]
    own = [right for right in SCHEDULER_OWN if right.group != PLACEMENTS.group or _is_served(right, served)]
    return list(dict.fromkeys([*expand((*SCHEDULER, *custom)), *expand(own, system)]))


def gang_kinds(served: Served) -> list[Resource]:
    """Returns the kinds of gangs that the cluster serves, each in its best version."""
    return list(choose_resources(served.has).values())


def expand(rights: Iterable[Right], namespace: str = "") -> Iterator[Permission]:
    """Returns a permission for each verb of the rights."""
    for right in rights:
        for verb in right.verbs:
            yield Permission(right.group, right.plural, verb, right.subresource, namespace)


def _is_served(right: Right, served: Served) -> bool:
    plural = f"{right.plural}/{right.subresource}" if right.subresource else right.plural
    return any((found.group, found.plural) == (right.group, plural) for found in served.resources)
