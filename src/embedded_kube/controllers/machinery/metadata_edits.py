"""Edits of owner references and finalizers; None means that there is nothing to change."""

from __future__ import annotations

from collections.abc import Collection

from gpu_scheduler.k8s.objects import Json


def without_owners(found: Json, uids: Collection[str]) -> Json | None:
    """Removes the references to some owners."""
    owners = found["metadata"].get("ownerReferences") or []
    left = [owner for owner in owners if owner["uid"] not in uids]
    return _put(found, "ownerReferences", left) if len(left) < len(owners) else None


def without_finalizer(found: Json, name: str) -> Json | None:
    """Removes a finalizer."""
    finalizers = found["metadata"].get("finalizers") or []
    return _put(found, "finalizers", [one for one in finalizers if one != name]) if name in finalizers else None


def with_finalizer(found: Json, name: str) -> Json | None:
    """Adds a finalizer, unless the object is being deleted."""
    finalizers = found["metadata"].get("finalizers") or []
    if name in finalizers or found["metadata"].get("deletionTimestamp"):
        return None
    return _put(found, "finalizers", [*finalizers, name])


def _put(found: Json, name: str, values: list[object]) -> Json:
    found["metadata"].pop(name, None)
    if values:
        found["metadata"][name] = values
    return found
