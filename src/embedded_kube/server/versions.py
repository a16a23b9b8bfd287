"""Objects that are shown in another version than the one they are stored in."""

from __future__ import annotations

from embedded_kube.storage.kinds import Kind, Kinds
from embedded_kube.storage.store import Entry, Json

# Events are one set of objects that two groups show under different field names; stored as the core group's.
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


def stored_kind(kinds: Kinds, kind: Kind) -> Kind:
    """The kind under which the objects of a kind are written."""
    return (kinds.of_resource(kind.resource) or kind) if kind.stored_as else kind


def to_stored(stored: Kind, kind: Kind, found: Json) -> Json:
    """An object of a request, as it is written."""
    if stored is kind or found.get("apiVersion", kind.api_version) != kind.api_version:
        return found
    return _rename(found, _STORED_NAMES, stored.api_version)


def to_served(kind: Kind, found: Json) -> Json:
    """A stored object as the kind that was asked for."""
    if found.get("apiVersion") == kind.api_version or found.get("kind") != kind.kind:
        return found
    return _rename(found, _EVENT_NAMES if kind.stored_as else {}, kind.api_version)


def served_bytes(kind: Kind, entry: Entry) -> bytes | None:
    """An entry's bytes if they are already of the kind that was asked for; None if they must be converted first."""
    if kind.stored_as:
        return None
    # A CRD may have stored the object in another of its versions; the rest have one version only.
    if kind.crd_schema is not None and not entry.data.startswith(b'{"apiVersion":"%s",' % kind.api_version.encode()):
        return None
    return entry.data


def _rename(found: Json, names: dict[str, str], api_version: str) -> Json:
    renamed = {names.get(name, name): value for name, value in found.items()}
    return {**renamed, "apiVersion": api_version}
