"""Checks of gang objects (PodGroups, Workloads): their minimums, priority classes and annotations."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.core.model import GangKey
from gpu_scheduler.gangs.contract import GROUP
from gpu_scheduler.gangs.dialects import DIALECTS, Dialect, GangContext
from gpu_scheduler.gangs.options import as_list, find_bad_options, find_unknown_keys
from gpu_scheduler.k8s.objects import RawObject
from gpu_scheduler.webhook.findings import Findings
from gpu_scheduler.webhook.policy import AdmissionPolicy

_MAX_POD_GROUPS = 100
"""The most pod groups of a Workload. Kubernetes allows 8; decoding takes time quadratic in their number."""


def find_dialect(group: str, plural: str, version: str) -> Dialect | None:
    """The dialect that has objects of this kind."""
    wanted = (group, plural, version)
    for dialect in DIALECTS:
        if any((one.group, one.plural, one.version) == wanted for one in dialect.resources):
            return dialect
    return None


def check_gang_object(dialect: Dialect, raw: RawObject, policy: AdmissionPolicy) -> Findings:
    """Checks a gang object that has gpu-scheduler.io annotations; finds nothing in any other."""
    found = Findings()
    annotations = raw.metadata.annotations or {}
    if not any(name.startswith(f"{GROUP}/") for name in annotations):
        return found
    groups = len(as_list(raw.spec.get("podGroups")))
    if groups > _MAX_POD_GROUPS:
        found.refuse(f"spec.podGroups: {groups} are too many; write at most {_MAX_POD_GROUPS}")
        return found
    context = GangContext(policy.scheduler_names, ceilings=policy.ceilings)
    for key in _gang_keys(dialect, raw):
        gang = None if dialect.is_individual(key, raw) else dialect.decode(key, raw, (), context)
        if gang is not None and gang.problem:
            found.refuse(gang.problem)
    found.refuse(*find_bad_options(annotations), *policy.ceilings.find_option_problems(annotations))
    found.warn(*find_unknown_keys(annotations))
    return found


def _gang_keys(dialect: Dialect, raw: RawObject) -> Iterator[GangKey]:
    """The gangs of an object: the object itself, or each of its pod groups."""
    yield from dialect.keys_of(raw)
    for group in as_list(raw.spec.get("podGroups")):
        yield GangKey(dialect.name, raw.metadata.namespace, f"{raw.metadata.name}/{group.get('name')}")
