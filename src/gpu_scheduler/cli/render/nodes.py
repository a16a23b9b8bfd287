"""The GPUs of every node and their holders, for the grid of `nodes`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from gpu_scheduler.cli.dry_run import keeps_slots, name_of
from gpu_scheduler.core.cluster.cluster import Usage
from gpu_scheduler.core.model import MILLI, GangKey, Node
from gpu_scheduler.core.state import State
from gpu_scheduler.gangs.dialects import display_name


class HoldKind(Enum):
    """Why a GPU is not free."""

    USED = "used"
    BINDING = "binding"
    KEPT = "kept"
    QUARANTINED = "quarantined"


@dataclass(frozen=True)
class DeviceShare:
    """A holder's share of a GPU, in thousandths."""

    holder: str
    milli: int
    hold: HoldKind


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
        held = [{"holder": part.holder, "milli": part.milli, "hold": part.hold.value} for part in parts]
        return {"index": index, "healthy": index not in self.unhealthy, "held": held}


def list_nodes(state: State) -> list[NodeLine]:
    """Every node with the holders of its GPUs, sorted by name."""
    kept = {uid: record for record in state.records.values() for uid in record.reserved}
    drained: dict[str, str] = {}
    for record in state.records.values():
        if (
            record.gang is not None
        ):  # as noted on the gang: the dry run's own drain targets are no decision of the scheduler
            drained |= dict.fromkeys(record.gang.notes.target, f"{record.key.namespace}/{name_of(record)}")
    lines = []
    for node in state.cluster.table.nodes:
        if node is not None:
            uses = [use for usage in state.cluster.pods_on(node.name) if (use := _use_of(state, usage, kept))]
            lines.append(replace(_line_of(node, uses), drained_for=drained.get(node.name, "")))
    return sorted(lines, key=lambda line: natural(line.name))


@dataclass(frozen=True)
class _GpuUse:
    """The GPUs of a node that a pod, or a kept slot, holds."""

    holder: str
    usage: Usage
    hold: HoldKind


def _use_of(state: State, usage: Usage, kept: Mapping[str, Any]) -> _GpuUse | None:
    """The holder of a usage; None when it needs no GPU or only the dry run placed it."""
    pod, uid = usage.pod, usage.pod.uid
    if not pod.shape.wants_devices or state.ledger.committed.get(uid) is False:
        return None
    record = kept.get(uid)
    if record is not None:
        name = f"{record.key.namespace}/{name_of(record)}"
        return _GpuUse(name, usage, HoldKind.KEPT) if keeps_slots(state, record) else None
    hold = HoldKind.QUARANTINED if uid in state.quarantined else HoldKind.BINDING if pod.node is None else HoldKind.USED
    return _GpuUse(holder_of(pod.gang if pod.ours else None, pod.namespace, pod.name), usage, hold)


def holder_of(gang: GangKey | None, namespace: str, name: str) -> str:
    """The name of a holder: its gang, or the pod itself."""
    return display_name(gang) if gang is not None else f"{namespace}/{name}"


def _line_of(node: Node, uses: Sequence[_GpuUse]) -> NodeLine:
    devices: list[list[DeviceShare]] = [[] for _ in range(node.gpus)]
    counted: dict[str, int] = {}
    for use in uses:
        shape = use.usage.pod.shape
        known = [device for device in use.usage.devices if device < node.gpus]
        if not node.assigns_devices or not known:
            number = shape.gpus or len(use.usage.devices) or 1
            counted[use.holder] = counted.get(use.holder, 0) + number
            continue
        for device in known:
            devices[device].append(DeviceShare(use.holder, shape.gpu_milli or MILLI, use.hold))
    return NodeLine(
        name=node.name,
        ready=node.ready,
        schedulable=not node.unschedulable,
        gpus=node.gpus,
        assigns_devices=node.assigns_devices,
        unhealthy=tuple(sorted(node.unhealthy)),
        devices=tuple(tuple(parts) for parts in devices) if node.assigns_devices else (),
        counted=counted,
    )


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts node2 before node10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]+)", name) if part]
