"""Conversion between the stored version of an object and the served one."""

from __future__ import annotations

from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.storage.store import StoreEntry
from gpu_scheduler.k8s.objects import Json

# Two groups serve the same Events with different field names; they are stored in the form of the core group.
_EVENT_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_STORED_NAMES = {shown: stored for stored, shown in _EVENT_NAMES.items()}


def stored_kind(kinds: KindTable, kind: ServedKind) -> ServedKind:
    """The kind as which objects of a kind are stored."""
    return (kinds.of_resource(kind.resource) or kind) if kind.stored_as else kind


def to_stored(stored: ServedKind, kind: ServedKind, obj: Json) -> Json:
    """Converts an object of a request to its stored form."""
    if stored is kind or obj.get("apiVersion", kind.api_version) != kind.api_version:
        return obj
    return _rename(obj, _STORED_NAMES, stored.api_version)


def to_served(kind: ServedKind, obj: Json) -> Json:
    """Converts a stored object to the requested kind."""
    if obj.get("apiVersion") == kind.api_version or obj.get("kind") != kind.kind:
        return obj
    return _rename(obj, _EVENT_NAMES if kind.stored_as else {}, kind.api_version)


def served_bytes(kind: ServedKind, entry: StoreEntry) -> bytes | None:
    """The bytes of an entry if they have the requested version already; None if a conversion is needed."""
    if kind.stored_as:
        return None
    # Custom objects may be stored in another version; built-in kinds have one version only.
    if kind.crd_schema is not None and not entry.data.startswith(b'{"apiVersion":"%s",' % kind.api_version.encode()):
        return None
    return entry.data


def _rename(obj: Json, names: dict[str, str], api_version: str) -> Json:
    renamed = {names.get(name, name): value for name, value in obj.items()}
    return {**renamed, "apiVersion": api_version}
