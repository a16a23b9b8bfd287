"""From a name that a person typed to the gang that is meant."""

from __future__ import annotations

from difflib import get_close_matches

from gpu_scheduler.cli.dry_run import name_of
from gpu_scheduler.core.lifecycle import GangRecord
from gpu_scheduler.core.model import GangKey
from gpu_scheduler.core.state import State


def find_keys(state: State, namespace: str, name: str) -> list[GangKey]:
    """The gangs a name may mean: the gang's own name, else that of a member, else that of the object it comes from."""
    near = [record for record in state.records.values() if record.key.namespace == namespace]
    named = [record.key for record in near if name_of(record) == name]
    if not named:
        named = [record.key for record in near if any(pod.name == name for pod in record.members.values())]
    return sorted(named or (record.key for record in near if name in _origin(record)))


def _origin(record: GangRecord) -> tuple[str, ...]:
    """What the object is called that a gang is part of, or that makes its pods."""
    first, _, rest = name_of(record).partition("/")
    return first, rest, f"{first.lower()}/{rest}"


def nearest_names(state: State, namespace: str, name: str) -> list[str]:
    """Up to three names that look like it, those of the namespace as they are, others with theirs."""
    known: dict[str, str] = {}
    for record in state.records.values():
        prefix = "" if record.key.namespace == namespace else f"{record.key.namespace}/"
        for own in (name_of(record), *(pod.name for pod in record.members.values())):
            known.setdefault(prefix + own, own)
    exact = [shown for shown, own in known.items() if own == name]
    return (exact + [near for near in get_close_matches(name, known, n=3) if near not in exact])[:3]
