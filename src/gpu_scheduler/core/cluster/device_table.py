"""The GPU table, and the choice of device indices on a node: neighbours together, large free blocks kept whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gpu_scheduler.core.cluster.node_table import Bools, Ints, extend
from gpu_scheduler.core.model import MILLI, Node, Shape

MAX_DEVICES = 128
"""The first index that is refused. No machine has so many GPUs, but a map may name any number."""

UNLIMITED = 1 << 55
"""The number of idle devices of a node whose devices the scheduler does not assign."""


class DeviceTable:
    """Every GPU of every node: milli in use, health, and the maps that use it.

    `idle` counts the whole devices of a node that can be assigned. `save` records a cell for a trial; `replaced` is
    called when an array is replaced by a larger one.
    """

    def __init__(self, size: int, save: Callable[[Any, Any], None], replaced: Callable[[Any, Any], None]) -> None:
        self._save = save
        self._replaced = replaced
        self.used: Ints = np.zeros((8, size), np.int64)
        self.healthy: Bools = np.zeros((8, size), bool)
        self.idle: Ints = np.zeros(size, np.int64)
        self.count: Ints = np.zeros(size, np.int64)
        self.assigned: Bools = np.zeros(size, bool)
        self.unrecorded: Ints = np.zeros(size, np.int64)
        self.map_users: dict[tuple[int, int, str], int] = {}

    def put(self, slot: int, node: Node | None) -> None:
        """Copies the devices of a node object into the table; None removes them."""
        self.assigned[slot] = node is not None and node.assigns_devices
        self.count[slot] = 0 if node is None else node.gpus
        self.healthy[:, slot] = False
        if node is not None:
            self._lengthen(node.gpus)
            self.healthy[: node.gpus, slot] = True
            self.healthy[[i for i in node.unhealthy if i < node.gpus], slot] = False
        self._count_idle(slot)

    def records(self, shape: Shape, slot: int) -> bool:
        """Whether the scheduler assigns the devices of a pod of this shape on this node."""
        return bool(shape.device_map or shape.gpu_milli or (shape.gpus and self.assigned[slot]))

    def free(self, slot: int) -> int:
        """The healthy devices of a node that no pod uses, as a bit set."""
        idle = self.healthy[:, slot] & (self.used[:, slot] == 0)
        return int.from_bytes(np.packbits(idle, bitorder="little").tobytes(), "little")

    def choose(self, shape: Shape, slot: int, count: int) -> tuple[list[tuple[int, ...]], int]:
        """Assigns devices to `count` pods; returns them and the number of devices that were idle before.

        The caller has checked that there are enough.
        """
        if not self.records(shape, slot):
            return [()] * count, 0
        if shape.device_map is not None:
            picks = [shape.device_map.devices] * count
        elif shape.gpu_milli:
            picks = self._choose_shares(shape.gpu_milli, slot, count)
        else:
            return self._take_whole(shape.gpus, slot, count)
        return picks, sum(self.take(shape, slot, devices, +1) for devices in picks)

    def take(self, shape: Shape, slot: int, devices: tuple[int, ...], sign: int) -> int:
        """Adds (+1) or subtracts (-1) a pod's devices; returns by how much the number of devices in use changed."""
        if not devices:
            return 0
        self._lengthen(max(devices) + 1)
        self._save(self.used, (slice(0, len(self.used)), slot))
        milli = sign * (shape.gpu_milli or MILLI)
        touched = 0
        for device in devices:
            if shape.device_map is not None and self._count_map_user(slot, device, shape.device_map.group, sign):
                continue
            before = int(self.used[device, slot])
            self.used[device, slot] = before + milli
            touched += (before + milli != 0) - (before != 0)
        self._count_idle(slot)
        return touched

    def note_unrecorded(self, slot: int, sign: int) -> None:
        """Adds (+1) or subtracts (-1) a pod that uses unrecorded devices of a node."""
        self._save(self.unrecorded, slot)
        self.unrecorded[slot] += sign
        self._count_idle(slot)

    def grow(self, size: int) -> None:
        """Extends the table to `size` nodes."""
        self.used, self.healthy = extend(self.used, size), extend(self.healthy, size)
        self.idle, self.count = extend(self.idle, size), extend(self.count, size)
        self.assigned, self.unrecorded = extend(self.assigned, size), extend(self.unrecorded, size)

    def _take_whole(self, gpus: int, slot: int, count: int) -> tuple[list[tuple[int, ...]], int]:
        picks = []
        free = self.free(slot)
        for _ in range(count):
            chosen = choose_whole(free, gpus)
            assert chosen is not None, "the caller has checked that the devices are free"
            for device in chosen:
                free ^= 1 << device
            picks.append(chosen)
        self._save(self.used, (slice(0, len(self.used)), slot))
        self._save(self.idle, slot)
        self.used[[device for devices in picks for device in devices], slot] = MILLI
        self.idle[slot] -= gpus * count
        return picks, gpus * count

    def _choose_shares(self, share: int, slot: int, count: int) -> list[tuple[int, ...]]:
        used = zip(self.healthy[:, slot], self.used[:, slot], strict=True)
        left = [MILLI - int(milli) if fine else 0 for fine, milli in used]
        picks: list[tuple[int, ...]] = []
        for _ in range(count):
            chosen = choose_share(left, share)
            assert chosen is not None, "the caller has checked that the share is free"
            left[chosen] -= share
            picks.append((chosen,))
        return picks

    def _count_map_user(self, slot: int, device: int, group: str, sign: int) -> bool:
        """Adds or subtracts a user of a map's device; True when other pods of the group use it too."""
        key = (slot, device, group)
        self._save(self.map_users, key)
        users = self.map_users.pop(key, 0) + sign
        if users:
            self.map_users[key] = users
        return users > 1 if sign > 0 else users > 0

    def _count_idle(self, slot: int) -> None:
        self._save(self.idle, slot)
        if not self.assigned[slot]:
            self.idle[slot] = UNLIMITED
        else:
            self.idle[slot] = 0 if self.unrecorded[slot] else self.free(slot).bit_count()

    def _lengthen(self, rows: int) -> None:
        missing = min(rows, MAX_DEVICES) - len(self.used)
        if missing > 0:
            for name in ("used", "healthy"):
                old = getattr(self, name)
                longer = np.concatenate((old, np.zeros((missing, old.shape[1]), old.dtype)))
                setattr(self, name, longer)
                self._replaced(old, longer)


@lru_cache(maxsize=65536)
def choose_whole(free: int, count: int) -> tuple[int, ...] | None:
    """The best `count` devices of the bit set `free`, or None when there are too few.

    Prefers the smallest buddy block (an aligned run of 1, 2, 4, ... indices: an NVLink pair, a NUMA half) that holds
    all of them; among those, the one with the fewest free devices in it and, block by wider block, around it, so that
    wide blocks stay whole. A block is split by using up its fuller half first, so alignment never refuses a request.
    """
    if free.bit_count() < count:
        return None
    if count == 0:
        return ()
    width = 1
    while width < count:
        width *= 2
    while True:
        starts = range(0, free.bit_length(), width)
        serving = [start for start in starts if _block(free, start, width).bit_count() >= count]
        if serving:
            start = min(serving, key=lambda start: _free_around(free, start, width))
            return _take(_block(free, start, width), count, width)
        width *= 2


def _block(free: int, start: int, width: int) -> int:
    """The free devices of the aligned block of this width that contains `start`."""
    return free & (((1 << width) - 1) << (start - start % width))


def _free_around(free: int, start: int, width: int) -> list[int]:
    """The number of free devices in a block and in each wider block around it."""
    counts = [_block(free, start, width).bit_count()]
    while width < free.bit_length():
        width *= 2
        counts.append(_block(free, start, width).bit_count())
    return counts


def _take(block: int, count: int, width: int) -> tuple[int, ...]:
    """`count` bits of a block; one half is used up before the other is opened."""
    if block.bit_count() == count or width == 1:
        return bits_of(block)[:count]
    half = width // 2
    base = (block & -block).bit_length() - 1
    start = base - base % width
    low = block & (((1 << half) - 1) << start)
    high = block ^ low
    fuller, other = sorted((low, high), key=lambda bits: (-bits.bit_count(), bits))
    if fuller.bit_count() >= count:
        fitting = min(
            (bits for bits in (low, high) if bits.bit_count() >= count), key=lambda bits: (bits.bit_count(), bits)
        )
        return _take(fitting, count, half)
    rest = _take(other, count - fuller.bit_count(), half)
    return tuple(sorted((*bits_of(fuller), *rest)))


def bits_of(bits: int) -> tuple[int, ...]:
    """The positions of the set bits, ascending."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return tuple(found)


def choose_share(left: list[int], share: int) -> int | None:
    """The device with the least milli left that still holds `share`, or None. Zero marks an unusable device."""
    best = None
    for index, milli in enumerate(left):
        if milli >= share and (best is None or milli < left[best]):
            best = index
    return best
