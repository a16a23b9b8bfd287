"""Dialects: one file for each way to define a gang, and the table of all of them.

To add a dialect, write a file like `scheduler_plugins.py` and enter it in DIALECTS.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.gangs.dialects.annotation import Annotations, LonePods, display_name
from gpu_scheduler.gangs.dialects.dialect import (
    Dialect,
    GangContext,
    Membership,
    StatusMessage,
    StatusPatch,
    StatusUpdate,
)
from gpu_scheduler.gangs.dialects.podgroup import PodGroups
from gpu_scheduler.gangs.dialects.scheduler_plugins import SchedulerPlugins
from gpu_scheduler.gangs.dialects.volcano import Volcano
from gpu_scheduler.gangs.dialects.workload import Workloads
from gpu_scheduler.gangs.options import queue_of
from gpu_scheduler.gangs.roles import role_of
from gpu_scheduler.k8s.objects import PodObject
from gpu_scheduler.k8s.resources import Resource

__all__ = [
    "DIALECTS",
    "LONE_PODS",
    "SCHEDULER_PLUGINS",
    "VOLCANO",
    "Dialect",
    "GangContext",
    "Membership",
    "StatusMessage",
    "StatusPatch",
    "StatusUpdate",
    "choose_resources",
    "dialect_named",
    "dialect_of",
    "display_name",
    "read_membership",
]

VOLCANO = Volcano()
SCHEDULER_PLUGINS = SchedulerPlugins()
DIALECTS: tuple[Dialect, ...] = (Annotations(), VOLCANO, SCHEDULER_PLUGINS, PodGroups(), Workloads())
"""The first dialect that a pod uses counts: our own annotations first, then the more specific PodGroups."""

LONE_PODS = LonePods()
_BY_NAME = {dialect.name: dialect for dialect in (*DIALECTS, LONE_PODS)}


def dialect_named(name: str) -> Dialect:
    """Returns a dialect by its name."""
    return _BY_NAME[name]


def dialect_of(key: GangKey) -> Dialect:
    """Returns the dialect of a gang."""
    return _BY_NAME[key.dialect]


def read_membership(pod: PodObject) -> Membership:
    """Returns the membership that a pod declares, regardless of the object that it names."""
    for dialect in DIALECTS:
        found = dialect.membership(pod)
        if found is not None:
            return found
    return Membership(None, role_of(pod), queue_of(pod))


def choose_resources(is_served: Callable[[Resource], bool]) -> dict[str, Resource]:
    """Returns the best served version of each dialect's object, by the name of the dialect."""
    found: dict[str, Resource] = {}
    for dialect in DIALECTS:
        for resource in dialect.resources:
            if is_served(resource):
                found.setdefault(dialect.name, resource)
    return found
