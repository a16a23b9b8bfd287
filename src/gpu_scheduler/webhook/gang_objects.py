"""Objects that are gangs (PodGroups, Workloads): their options, and who writes the scheduler's notes on them."""

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
"""In a Workload. Kubernetes takes 8; each is looked for among all, and a review could bring 50,000."""


def find_dialect(group: str, plural: str, version: str) -> Dialect | None:
    """The dialect whose objects are of this kind."""
    wanted = (group, plural, version)
    for dialect in DIALECTS:
        if any((one.group, one.plural, one.version) == wanted for one in dialect.resources):
            return dialect
    return None


def check_gang_object(dialect: Dialect, raw: RawObject, policy: AdmissionPolicy) -> Findings:
    """What there is to say about a gang object that carries annotations of ours; nothing about others."""
    found = Findings()
    notes = raw.metadata.annotations or {}
    if not any(name.startswith(f"{GROUP}/") for name in notes):
        return found
    groups = len(as_list(raw.spec.get("podGroups")))
    if groups > _MAX_POD_GROUPS:
        found.refuse(f"spec.podGroups: {groups} are too many; write at most {_MAX_POD_GROUPS}")
        return found
    context = GangContext(policy.scheduler_names)
    for key in _gang_keys(dialect, raw):
        gang = None if dialect.stands_alone(key, raw) else dialect.decode(key, raw, (), context)
        if gang is not None and gang.problem:
            found.refuse(gang.problem)
    found.refuse(*find_bad_options(notes))
    found.warn(*find_unknown_keys(notes))
    return found


def _gang_keys(dialect: Dialect, raw: RawObject) -> Iterator[GangKey]:
    """The gangs of an object: itself, or each of its pod groups."""
    yield from dialect.keys_of(raw)
    for group in as_list(raw.spec.get("podGroups")):
        yield GangKey(dialect.name, raw.metadata.namespace, f"{raw.metadata.name}/{group.get('name')}")
