"""Settings of the controllers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from embedded_kube.registry.kinds import ServedKind


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of all controllers. Times are in seconds. The defaults are those of a Kubernetes control plane."""

    kinds: Iterable[ServedKind]
    """The built-in kinds. Kinds of CRDs are found as they appear."""

    volumes: Path | None = None
    """The folder in which volumes are provisioned; without it nothing is provisioned."""

    root_ca: str = ""
    """The PEM text of the ConfigMap kube-root-ca.crt in every namespace."""

    node_grace: float = 40.0
    """How long a node may send no heartbeat before it becomes Unknown."""

    node_check: float = 5.0
    """How often the nodes are checked."""

    orphan_grace: float = 40.0
    """How long a node must have been missing before its pods are deleted."""

    cleanup_period: float = 20.0
    """How often terminated pods and expired Events are collected."""

    terminated_pods: int = 12_500
    """How many terminated pods are kept."""

    event_ttl: float = 3600.0
    """How long an Event is kept after it last happened."""

    job_backoff: float = 10.0
    """How long a Job waits after its first failed pod; the delay doubles with each further failure."""

    job_backoff_limit: float = 600.0
    """The maximum of that delay."""
