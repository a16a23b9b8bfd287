"""Cluster state: the free capacity of every node, the owner of every GPU, and trials that can be undone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu_scheduler.core.cluster.device_table import MAX_DEVICES, DeviceTable
from gpu_scheduler.core.cluster.node_table import Ints, NodeTable, extend
from gpu_scheduler.core.cluster.pod_counts import PodCounts
from gpu_scheduler.core.cluster.topology import DEFAULT_LEVELS, Levels, Topology
from gpu_scheduler.core.model import NODE_ALIAS, Node, Pod, Shape

PODS = "pods"
_MISSING = object()
_ABSENT = ""
"""The name of the row that all resources share which no node has."""
_MAX_QUANTITY = 1 << 55
"""Larger quantities (Kubernetes allows up to 2^63-1) are cut to this, so that sums stay within 64 bits."""


class Usage(NamedTuple):
    """A pod on a node. `unrecorded` means that it uses GPUs there whose indices are not recorded."""

    pod: Pod
    node: str
    devices: tuple[int, ...]
    unrecorded: bool


class Demand:
    """A shape's request as rows of the resource table, with their `names`; `gpu_row` is the row of whole GPUs, or -1.

    Resources that no node has share one row, in which nothing is ever free; the first of them stands for all.
    """

    __slots__ = ("amounts", "asked", "gpu_row", "names", "plain", "pods_row", "rows")

    def __init__(self, shape: Shape, row_of: dict[str, int]) -> None:
        absent, self.pods_row = row_of[_ABSENT], row_of[PODS]
        request = [(name, amount) for name, amount in shape.request if amount > 0]
        missing = next((name for name, _ in request if name not in row_of), None)
        request = [(name, amount) for name, amount in request if name in row_of or name == missing]
        asked = [(row_of.get(name, absent), min(amount, _MAX_QUANTITY)) for name, amount in request]
        asked.append((self.pods_row, 1))
        self.asked = asked
        self.names = (*(name for name, _ in request), PODS)
        self.gpu_row = row_of.get(shape.gpu_resource, absent) if shape.gpus else -1
        self.plain = [(row, amount) for row, amount in asked if row != self.gpu_row]
        self.rows = np.array([row for row, _ in asked])
        self.amounts = np.array([amount for _, amount in asked], np.int64)


class Trial:
    """A context in which changes are undone at the end unless they are kept."""

    __slots__ = ("_cluster", "_kept", "_mark")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept = False

    def __enter__(self) -> Trial:
        self._mark = self._cluster.begin()
        return self

    def keep(self) -> None:
        """Keeps the changes."""
        self._kept = True

    def __exit__(self, *_: object) -> None:
        self._cluster.end(self._mark, self._kept)


class Cluster:
    """Nodes, the usage of pods on them, and the GPU table. The only writer of all three.

    A device in use counts once against the GPU row of its node, however many shares it carries; a pod with unrecorded
    devices counts by its request. So a row is never overcommitted. `capacity_cache` belongs to placement/capacity.py
    and holds up to `cached_shapes`.
    """

    def __init__(self, levels: Levels = DEFAULT_LEVELS, cached_shapes: int = 2048) -> None:
        self.table = NodeTable()
        self.topology = Topology(self.table, levels)
        self.capacity_cache: dict[Shape, Any] = {}
        self.cached_shapes = cached_shapes
        self._journal: list[tuple[Any, Any, Any]] = []
        self._depth = 0
        size = self.table.size
        self.row_of: dict[str, int] = {}
        self.allocatable: Ints = np.zeros((0, size), np.int64)
        self.free: Ints = np.zeros((0, size), np.int64)
        self.gpu_row: Ints = np.full(size, -1, np.int64)
        self.devices = DeviceTable(size, self._save, self._replace)
        self.ports: dict[tuple[int, str, int, str], int] = {}
        self.usage: dict[str, Usage] = {}
        self.pod_counts = PodCounts(size, self._save, self.placed)
        self.changes: list[int] = []
        self.dropped_changes = 0
        self.work = 0
        self.max_work = 1 << 62
        self._on_node: dict[str, dict[str, Usage]] = {}
        self._aliases: dict[str, set[str]] = {}
        self._demands: dict[Shape, Demand] = {}
        for name in ("cpu", "memory", "ephemeral-storage", PODS, _ABSENT):
            self._add_row(name)

    # -- nodes

    def put_node(self, node: Node) -> bool:
        """Adds or updates a node; False when nothing changed."""
        slot = self.table.slots.get(node.name)
        old = self.table.nodes[slot] if slot is not None else None
        if old == node:
            return False
        assert self._depth == 0, "nodes change between decisions, never within one"
        for name in (*node.allocatable, node.gpu_resource):
            if name not in self.row_of:
                self._add_row(name)
        if old is not None:
            self._uncount_pods(old.name)
        slot = self.table.put(node)
        self._grow_arrays()
        self.allocatable[:, slot] = 0
        for name, amount in node.allocatable.items():
            self.allocatable[self.row_of[name], slot] = min(amount, _MAX_QUANTITY // 2)
        self.free[:, slot] = self.allocatable[:, slot]
        self.gpu_row[slot] = self.row_of[node.gpu_resource] if node.gpu_resource else -1
        self.devices.put(slot, node)
        alias = node.labels.get(NODE_ALIAS)
        if alias is not None:
            self._aliases.setdefault(alias, set()).add(node.name)
        for usage in self.pods_on(node.name):
            seen = usage._replace(unrecorded=self._is_unrecorded(usage.pod, usage.devices, slot))
            self._enter(node.name, {usage.pod.uid: seen})
            self._count(seen, slot, +1)
        return True

    def remove_node(self, name: str) -> None:
        """Removes a node. Its pods stay recorded and count again if the node returns."""
        if name not in self.table.slots:
            return
        assert self._depth == 0, "nodes change between decisions, never within one"
        self._uncount_pods(name)
        slot = self.table.remove(name)
        self.allocatable[:, slot] = 0
        self.free[:, slot] = 0
        self.gpu_row[slot] = -1
        self.devices.put(slot, None)

    def named_by_map(self, name: str) -> list[str]:
        """The nodes that a gpu-scheduling-map can mean by a name: by label, otherwise by the node's own name."""
        labelled = self._aliases.get(name)
        if labelled:
            return sorted(labelled)
        return [name] if name in self.table.slots else []

    # -- pods

    def add(self, pod: Pod, node: str, devices: tuple[int, ...] | None) -> None:
        """Records a pod on a node, observed or decided; an earlier record of the pod is replaced."""
        if pod.uid in self.usage:
            self.forget(pod.uid)
        self.work += self._depth > 0
        slot = self.table.slots.get(node)
        known = tuple(device for device in devices or () if device < MAX_DEVICES)
        usage = Usage(pod, node, known, slot is not None and self._is_unrecorded(pod, known, slot))
        self._enter(node, {pod.uid: usage})
        if slot is not None:
            self._count(usage, slot, +1)
            self._touch(slot)

    def assume(self, pods: Sequence[Pod], slot: int) -> list[tuple[int, ...]]:
        """Assumes pods of one shape on a node and returns the devices of each; the caller has checked that they fit."""
        shape = pods[0].shape
        node = self.table.name(slot)
        self._count_request(shape, slot, len(pods), recorded=self.devices.records(shape, slot))
        self._count_ports(shape, slot, len(pods))
        picks, touched = self.devices.choose(shape, slot, len(pods))
        row = self.gpu_row.item(slot)
        if row >= 0:
            self.free[row, slot] -= touched
        self._enter(node, {p.uid: Usage(p, node, devices, False) for p, devices in zip(pods, picks, strict=True)})
        if self.pod_counts.counts(shape):
            for pod in pods:
                self.pod_counts.add(pod, slot, +1)
        self._touch(slot)
        return picks

    def forget(self, uid: str) -> bool:
        """Removes a pod from its node; False when it was on no node."""
        usage = self.usage.get(uid)
        if usage is None:
            return False
        self.work += self._depth > 0
        self._save(self.usage, uid)
        del self.usage[uid]
        on_node = self._on_node[usage.node]
        self._save(on_node, uid)
        del on_node[uid]
        if not on_node and not self._depth:
            del self._on_node[usage.node]
        slot = self.table.slots.get(usage.node)
        if slot is not None:
            self._count(usage, slot, -1)
            self._touch(slot)
        return True

    def pods_on(self, node: str) -> list[Usage]:
        """The pods on a node."""
        return list(self._on_node.get(node, {}).values())

    def withhold(self, slots: Ints, amounts: Ints) -> None:
        """Takes amounts of every resource off the free capacity of nodes; negative amounts give it back."""
        self._save(self.free, (slice(0, len(self.free)), slots))
        self.free[: len(amounts), slots] -= amounts
        for slot in slots.tolist():
            self._touch(slot)

    def demand(self, shape: Shape) -> Demand:
        """The shape's request as rows of the resource table."""
        found = self._demands.get(shape)
        if found is None:
            if len(self._demands) > 8192:
                self._demands.clear()
            found = self._demands[shape] = Demand(shape, self.row_of)
        return found

    def _add_row(self, name: str) -> None:
        """Adds the row of a resource that a node has. Pods only request resources: they add no rows."""
        slots = self.table.slots
        users = [usage for usage in self.usage.values() if usage.node in slots and _asks_for(usage.pod.shape, name)]
        for usage in users:
            self._count(usage, slots[usage.node], -1)
        row = self.row_of[name] = len(self.row_of)
        if row >= len(self.free):
            more = np.zeros((max(8, row), self.table.size), np.int64)
            self.free, self.allocatable = np.concatenate((self.free, more)), np.concatenate((self.allocatable, more))
        self._demands.clear()
        for usage in users:
            self._count(usage, slots[usage.node], +1)

    def note_work(self, looks: int = 1) -> None:
        """Counts looks at all nodes. A member that is placed is one step, and so is a pod that a trial moves; a step
        takes about ten microseconds."""
        self.work += looks * (2 + self.table.size // 2048)

    def limit_work(self, steps: int) -> None:
        """Gives the placement that begins now at most so many steps."""
        self.max_work = self.work + steps

    @property
    def has_work_left(self) -> bool:
        """Whether the current placement may try further."""
        return self.work < self.max_work

    # -- trials

    def trial(self) -> Trial:
        """Opens a trial: its changes are undone at the end unless they are kept."""
        return Trial(self)

    def begin(self) -> int:
        """Starts to record changes; returns the position in the journal to roll back to."""
        self._depth += 1
        return len(self._journal)

    def end(self, mark: int, keep: bool) -> None:
        """Ends a trial: keeps its changes, or restores every cell it wrote."""
        if not keep:
            journal = self._journal
            while len(journal) > mark:
                container, key, old = journal.pop()
                if container is None:
                    self.changes.append(key)
                elif old is _MISSING:
                    container.pop(key, None)
                else:
                    container[key] = old
        self._depth -= 1
        if self._depth == 0:
            self._journal.clear()
            self._trim_changes()

    def _save(self, container: Any, key: Any) -> None:
        if self._depth:
            if isinstance(container, dict):
                old = container.get(key, _MISSING)
            else:
                old = container[key]
                if isinstance(old, np.ndarray):
                    old = old.copy()
            self._journal.append((container, key, old))

    def _touch(self, slot: int) -> None:
        self.changes.append(slot)
        if self._depth:
            self._journal.append((None, slot, None))
        else:
            self._trim_changes()

    def _trim_changes(self) -> None:
        if len(self.changes) > 4 * self.table.size + 4096:
            self.dropped_changes += len(self.changes)
            self.changes.clear()

    # -- counting

    def _enter(self, node: str, usages: dict[str, Usage]) -> None:
        on_node = self._on_node.setdefault(node, {})
        if self._depth:
            for uid in usages:
                self._save(self.usage, uid)
                self._save(on_node, uid)
        self.usage.update(usages)
        on_node.update(usages)

    def _count(self, usage: Usage, slot: int, sign: int) -> None:
        pod = usage.pod
        shape = pod.shape
        self._count_request(shape, slot, sign, bool(usage.devices))
        self._count_ports(shape, slot, sign)
        touched = self.devices.take(shape, slot, usage.devices, sign)
        row = self.gpu_row.item(slot)
        if row >= 0:
            self.free[row, slot] -= touched
        self.pod_counts.add(pod, slot, sign)
        if usage.unrecorded:
            self.devices.note_unrecorded(slot, sign)

    def _count_request(self, shape: Shape, slot: int, change: int, recorded: bool) -> None:
        demand = self.demand(shape)
        free = self.free
        self._save(free, (slice(0, len(free)), slot))
        for row, amount in demand.plain:
            free[row, slot] -= amount * change
        if demand.gpu_row >= 0 and not recorded:
            free[demand.gpu_row, slot] -= shape.gpus * change

    def _count_ports(self, shape: Shape, slot: int, change: int) -> None:
        for port in shape.host_ports:
            key = (slot, port.protocol, port.port, port.ip)
            self._save(self.ports, key)
            left = self.ports.pop(key, 0) + change
            if left:
                self.ports[key] = left

    def _is_unrecorded(self, pod: Pod, devices: tuple[int, ...], slot: int) -> bool:
        return bool(self.devices.assigned[slot]) and not devices and pod.shape.wants_devices

    def _uncount_pods(self, name: str) -> None:
        """Subtracts the pods of a node before it changes or is removed; the pods stay recorded."""
        slot = self.table.slots[name]
        for usage in self._on_node.get(name, {}).values():
            self._count(usage, slot, -1)
        old = self.table.nodes[slot]
        assert old is not None
        alias = old.labels.get(NODE_ALIAS)
        if alias is not None:
            self._aliases[alias].discard(name)

    def placed(self) -> Iterator[tuple[Pod, int]]:
        """Every pod on a node that exists, with the node's slot."""
        self.work += len(self.usage) // 16
        for usage in self.usage.values():
            slot = self.table.slots.get(usage.node)
            if slot is not None:
                yield usage.pod, slot

    def _grow_arrays(self) -> None:
        size = self.table.size
        if len(self.gpu_row) == size:
            return
        self.allocatable, self.free = extend(self.allocatable, size), extend(self.free, size)
        self.gpu_row = extend(self.gpu_row, size, fill=-1)
        self.devices.grow(size)
        self.pod_counts.grow(size)

    def _replace(self, old: Any, new: Any) -> None:
        """Redirects the journal entries of an array that was replaced by a larger one."""
        self._journal = [(new if array is old else array, key, was) for array, key, was in self._journal]


def _asks_for(shape: Shape, resource: str) -> bool:
    return any(name == resource for name, _ in shape.request)
