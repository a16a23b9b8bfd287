"""The nodes of the local cluster. Loaded lazily: the launcher imports this package too and has to stay small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedded_kube.node.fleet import FleetError, FleetSettings
    from embedded_kube.node.runner import Fleet

__all__ = ["Fleet", "FleetError", "FleetSettings"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from embedded_kube.node import fleet, runner

    return runner.Fleet if name == "Fleet" else getattr(fleet, name)
