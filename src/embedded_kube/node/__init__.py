"""Nodes of the local cluster: the fleet, the node agent (kubelet), pods as processes or simulated.

Modules are loaded lazily: the launcher process imports this package too and must stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedded_kube.node.fleet import FleetError, FleetSettings
    from embedded_kube.node.runner import FleetRunner

__all__ = ["FleetError", "FleetRunner", "FleetSettings"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from embedded_kube.node import fleet, runner

    return runner.FleetRunner if name == "FleetRunner" else getattr(fleet, name)
