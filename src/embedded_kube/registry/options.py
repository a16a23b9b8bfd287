"""Options of a request: who sends it, and the parameters that accompany the object."""

from __future__ import annotations

from dataclasses import dataclass

SYSTEM = "system:local-cluster"
"""The user of requests from inside the cluster."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The user of a request and its parameters."""

    user: str = SYSTEM
    groups: tuple[str, ...] = ("system:masters",)
    dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = ""
    subresource: str = ""


@dataclass(slots=True)
class DeleteOptions:
    """The options of a delete (metav1.DeleteOptions)."""

    grace: int | None = None
    uid: str | None = None
    revision: str | None = None
    propagation: str = ""
    """Background, Foreground or Orphan; "" keeps the finalizers of an earlier delete."""
    dry_run: bool = False
    legacy_background: bool = False
    """Background was requested by the deprecated orphanDependents: false."""
