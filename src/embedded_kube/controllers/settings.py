"""What can be chosen about the controllers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from embedded_kube.registry.kinds import ServedKind


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times are in seconds. The defaults are those of a Kubernetes control plane."""

    kinds: Iterable[ServedKind]
    """The kinds that are served; those of CRDs are found as they appear and need not be in here."""

    volumes: Path | None = None
    """The folder below which claims get their folders; without one nothing is provisioned."""

    root_ca: str = ""
    """The PEM text that every namespace finds in the ConfigMap kube-root-ca.crt."""

    node_grace: float = 40.0
    """How long a node may be silent before it counts as lost."""

    node_check: float = 5.0
    """How often the nodes are looked at."""

    orphan_grace: float = 40.0
    """How long a node must have been gone before the pods on it are deleted."""

    cleanup_period: float = 20.0
    """How often ended pods and old Events are looked for."""

    terminated_pods: int = 12_500
    """How many ended pods are kept."""

    event_ttl: float = 3600.0
    """How long an Event is kept after it last happened."""

    job_backoff: float = 10.0
    """How long a job waits after its first failed pod; twice as long after each further one."""

    job_backoff_limit: float = 600.0
    """The longest such wait."""
