"""The GPUs of every node and their holders, for the grid of `nodes`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.cli.render.text import draw_moment
from gpu_scheduler.core.cycle.inventory import DeviceUse, Hold, NodeReport
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.model import MILLI
from gpu_scheduler.scheduler.status.names import name_of_gang


@dataclass(frozen=True)
class DeviceShare:
    """A holder's share of a GPU, in thousandths; `until` is the end of a quarantine."""

    holder: str
    milli: int
    hold: Hold
    until: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The share as JSON."""
        found = {"holder": self.holder, "milli": self.milli, "hold": self.hold.value}
        return found if self.until is None else {**found, "until": draw_moment(self.until)}


@dataclass(frozen=True)
class NodeLine:
    """One row: the shares of each device, and the GPUs per holder where devices are only counted."""

    name: str
    ready: bool
    schedulable: bool
    gpus: int
    assigns_devices: bool
    unhealthy: tuple[int, ...] = ()
    drained_for: str = ""
    devices: tuple[tuple[DeviceShare, ...], ...] = ()
    counted: Mapping[str, int] = field(default_factory=dict)

    @property
    def quarantined(self) -> dict[int, float]:
        """The devices of pods that disappeared, each with the end of its quarantine."""
        ends = {
            index: [part.until for part in parts if part.until is not None] for index, parts in enumerate(self.devices)
        }
        return {index: max(until) for index, until in ends.items() if until}

    @property
    def used(self) -> int:
        """The number of GPUs that are held, wholly or in part."""
        return sum(bool(parts) for parts in self.devices) + sum(self.counted.values())

    def as_json(self) -> dict[str, Any]:
        """The row as JSON."""
        found: dict[str, Any] = {
            "name": self.name,
            "ready": self.ready,
            "schedulable": self.schedulable,
            "gpus": self.gpus,
            "used": self.used,
            "assigns_devices": self.assigns_devices,
            "drained_for": self.drained_for or None,
        }
        if self.assigns_devices:
            found["devices"] = [self._device_json(index) for index in range(len(self.devices))]
        found["holders"] = [{"holder": holder, "gpus": number} for holder, number in self.counted.items()]
        return found

    def _device_json(self, index: int) -> dict[str, Any]:
        parts = self.devices[index]
        return {
            "index": index,
            "healthy": index not in self.unhealthy,
            "held": [part.as_json() for part in parts],
        }


def list_nodes(engine: Engine) -> list[NodeLine]:
    """Every node with the holders of its GPUs, sorted by name."""
    return sorted((_line_of(report) for report in engine.nodes()), key=lambda line: natural(line.name))


def holder_of(use: DeviceUse) -> str:
    """The name of a holder: its gang, or the pod itself."""
    return name_of_gang(use.gang) if use.gang is not None else f"{use.pod.namespace}/{use.pod.name}"


def _line_of(report: NodeReport) -> NodeLine:
    node = report.node
    devices: list[list[DeviceShare]] = [[] for _ in range(node.gpus)]
    counted: dict[str, int] = {}
    for use in report.uses:
        shape, holder = use.pod.shape, holder_of(use)
        known = [device for device in use.devices if device < node.gpus]
        if not node.assigns_devices or not known:
            number = shape.gpus or len(use.devices) or 1
            counted[holder] = counted.get(holder, 0) + number
            continue
        for device in known:
            devices[device].append(DeviceShare(holder, shape.gpu_milli or MILLI, use.hold, use.until))
    return NodeLine(
        name=node.name,
        ready=node.ready,
        schedulable=not node.unschedulable,
        gpus=node.gpus,
        assigns_devices=node.assigns_devices,
        unhealthy=tuple(sorted(node.unhealthy)),
        drained_for=name_of_gang(report.drained_for) if report.drained_for is not None else "",
        devices=tuple(tuple(parts) for parts in devices) if node.assigns_devices else (),
        counted=counted,
    )


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts node2 before node10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]+)", name) if part]
