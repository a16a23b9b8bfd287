"""What the scheduler, the webhook and the operator must be allowed to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpu_scheduler.gangs.contract import PLACEMENTS, QUEUES, VOLCANO_QUEUES, WEBHOOK, WEBHOOK_SECRET
from gpu_scheduler.gangs.definitions import DEFINITIONS
from gpu_scheduler.gangs.dialects import choose_resources
from gpu_scheduler.gangs.jobs import VOLCANO_JOBS, readable_jobs
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

READ = ("list", "watch")


class Permission(NamedTuple):
    """One thing that has to be allowed; everywhere when no namespace is named, for all when no name is."""

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


def needed_permissions(served: Served, system: str) -> list[Permission]:
    """Everything the scheduler does, as far as the cluster serves the kinds."""
    found = [permission for resource, verbs in _EVERYWHERE.items() for permission in _allow(resource, verbs)]
    found += _allow(PODS, ("create",), "binding")
    found += _allow(PODS, ("create",), "eviction")
    found += _allow(PODS, ("patch",), "status")
    found += _allow(LEASES, ("get", "create", "update"), namespace=system)
    if served.has(PLACEMENTS):
        found += _allow(PLACEMENTS, ("get", "list", "create", "patch", "delete"), namespace=system)
    for queue in (QUEUES, VOLCANO_QUEUES):
        if served.has(queue):
            found += _allow(queue, READ)
            found += _allow(queue, ("patch",), "status")
    for kind in gang_kinds(served):
        found += _allow(kind, ("get", *READ, "patch"))
        found += _allow(kind, ("patch",), "status") if served.has(kind, "status") else ()
    for job in readable_jobs(served):
        found += _allow(job, ("get",))
    return list(dict.fromkeys(found))


def webhook_permissions(
    system: str, secret: str = WEBHOOK_SECRET, configuration: str = WEBHOOK, *, own_certificate: bool = True
) -> list[Permission]:
    """Everything the webhook does; without a certificate of its own it only looks at nodes."""
    found = list(_allow(NODES, READ))
    if own_certificate:
        found += [Permission("", SECRETS.plural, verb, "", system, secret) for verb in ("get", "update")]
        for kind in (MUTATING, VALIDATING):
            found += [Permission(kind.group, kind.plural, verb, name=configuration) for verb in ("get", "patch")]
    return found


def operator_permissions(
    jobs: Iterable[Resource], groups: Resource | None, system: str, *, install: bool = False
) -> list[Permission]:
    """Everything the operator does with these kinds of jobs, and with PodGroups of a kind where it makes gangs."""
    found = [*_allow(LEASES, ("get", "create", "update"), namespace=system), *_allow(DEPLOYMENTS, READ)]
    found += _allow(EVENTS, ("create", "patch"))
    for made in (PODS, SERVICES):
        found += _allow(made, ("get", *READ, "create", "delete"))
    found += _allow(CONFIG_MAPS, ("get", "create"))
    if groups is not None:
        found += _allow(groups, ("get", *READ, "create", "patch", "delete"))
    for job in jobs:
        # Restarts are counted in an annotation; Volcano has a place for them in the status.
        found += _allow(job, (*READ, "delete") if job.group == VOLCANO_JOBS.group else (*READ, "patch", "delete"))
        found += _allow(job, ("patch",), "status")
        # Who may not set a job's finalizers may not make objects that keep it from going before them.
        found += _allow(job, ("update",), "finalizers")
    if install:
        found += _allow(DEFINITIONS, ("create",))
    return list(dict.fromkeys(found))


_EVERYWHERE: dict[Resource, tuple[str, ...]] = {
    PODS: ("get", *READ, "patch", "delete"),
    NODES: READ,
    NAMESPACES: READ,
    EVENTS: ("create", "patch"),
    CLAIMS: (*READ, "patch"),
    VOLUMES: READ,
    STORAGE_CLASSES: READ,
    PRIORITY_CLASSES: READ,
}


def gang_kinds(served: Served) -> list[Resource]:
    """The kinds of gangs that the cluster serves, each in its best version."""
    return list(choose_resources(served.has).values())


def _allow(
    resource: Resource, verbs: tuple[str, ...], subresource: str = "", namespace: str = ""
) -> Iterator[Permission]:
    for verb in verbs:
        yield Permission(resource.group, resource.plural, verb, subresource, namespace)
