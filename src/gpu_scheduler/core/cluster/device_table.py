"""The table of GPUs, and which indices of a chosen node: neighbours together, large free blocks kept whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from gpu_scheduler.core.cluster.node_table import Bools, Ints, extend
from gpu_scheduler.core.model import MILLI, Node, Shape

MAX_DEVICES = 128
"""Indices from here on are refused: no machine has them, and a map may name anything."""

UNLIMITED = 1 << 55
"""The whole devices of a node where they are not ours to count."""


class DeviceTable:
    """Every GPU of every node: in use by how many milli, fit to be used, and by which maps.

    `idle` counts the whole devices of a node that may be given out. `save` remembers a cell for a trial, `replaced`
    is told when an array grows into another one.
    """

    def __init__(self, size: int, save: Callable[[Any, Any], None], replaced: Callable[[Any, Any], None]) -> None:
        self._save = save
        self._replaced = replaced
        self.used: Ints = np.zeros((8, size), np.int64)
        self.ok: Bools = np.zeros((8, size), bool)
        self.idle: Ints = np.zeros(size, np.int64)
        self.count: Ints = np.zeros(size, np.int64)
        self.assigned: Bools = np.zeros(size, bool)
        self.unrecorded: Ints = np.zeros(size, np.int64)
        self.map_users: dict[tuple[int, int, str], int] = {}

    def put(self, slot: int, node: Node | None) -> None:
        """Takes over what a node says of its devices; None when there is no node any more."""
        self.assigned[slot] = node is not None and node.assigns_devices
        self.count[slot] = 0 if node is None else node.gpus
        self.ok[:, slot] = False
        if node is not None:
            self._lengthen(node.gpus)
            self.ok[: node.gpus, slot] = True
            self.ok[[i for i in node.unhealthy if i < node.gpus], slot] = False
        self._count_idle(slot)

    def records(self, shape: Shape, slot: int) -> bool:
        """Whether we decide which devices a pod of this shape gets on this node."""
        return bool(shape.device_map or shape.gpu_milli or (shape.gpus and self.assigned[slot]))

    def free(self, slot: int) -> int:
        """The healthy untouched devices of a node, as a bit set."""
        idle = self.ok[:, slot] & (self.used[:, slot] == 0)
        return int.from_bytes(np.packbits(idle, bitorder="little").tobytes(), "little")

    def choose(self, shape: Shape, slot: int, count: int) -> tuple[list[tuple[int, ...]], int]:
        """Takes devices for `count` pods, for whom there are enough; returns them and how many are newly touched."""
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
        """Counts a pod's devices in (+1) or out (-1); returns how many more devices are touched than before."""
        if not devices:
            return 0
        self._lengthen(max(devices) + 1)
        self._save(self.used, (slice(0, len(self.used)), slot))
        milli = sign * (shape.gpu_milli or MILLI)
        touched = 0
        for device in devices:
            if shape.device_map is not None and self._join_map(slot, device, shape.device_map.group, sign):
                continue
            before = int(self.used[device, slot])
            self.used[device, slot] = before + milli
            touched += (before + milli != 0) - (before != 0)
        self._count_idle(slot)
        return touched

    def note_unrecorded(self, slot: int, sign: int) -> None:
        """A pod that uses devices nobody recorded came to (+1) or left (-1) a node."""
        self._save(self.unrecorded, slot)
        self.unrecorded[slot] += sign
        self._count_idle(slot)

    def grow(self, size: int) -> None:
        """Makes room for more nodes."""
        self.used, self.ok = extend(self.used, size), extend(self.ok, size)
        self.idle, self.count = extend(self.idle, size), extend(self.count, size)
        self.assigned, self.unrecorded = extend(self.assigned, size), extend(self.unrecorded, size)

    def _take_whole(self, gpus: int, slot: int, count: int) -> tuple[list[tuple[int, ...]], int]:
        picks = []
        free = self.free(slot)
        for _ in range(count):
            chosen = choose_whole(free, gpus)
            assert chosen is not None, "the caller counted these devices as free"
            for device in chosen:
                free ^= 1 << device
            picks.append(chosen)
        self._save(self.used, (slice(0, len(self.used)), slot))
        self._save(self.idle, slot)
        self.used[[device for devices in picks for device in devices], slot] = MILLI
        self.idle[slot] -= gpus * count
        return picks, gpus * count

    def _choose_shares(self, share: int, slot: int, count: int) -> list[tuple[int, ...]]:
        used = zip(self.ok[:, slot], self.used[:, slot], strict=True)
        left = [MILLI - int(milli) if fine else 0 for fine, milli in used]
        picks: list[tuple[int, ...]] = []
        for _ in range(count):
            chosen = choose_share(left, share)
            assert chosen is not None, "the caller counted this share as free"
            left[chosen] -= share
            picks.append((chosen,))
        return picks

    def _join_map(self, slot: int, device: int, group: str, sign: int) -> bool:
        """Counts one more (or fewer) user of a map's device; True when others of its group use it too."""
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
            for name in ("used", "ok"):
                old = getattr(self, name)
                longer = np.concatenate((old, np.zeros((missing, old.shape[1]), old.dtype)))
                setattr(self, name, longer)
                self._replaced(old, longer)


@lru_cache(maxsize=65536)
def choose_whole(free: int, count: int) -> tuple[int, ...] | None:
    """The best `count` devices out of the bit set `free`, or None when there are too few.

    A buddy block (an aligned run of 1, 2, 4, ... indices: an NVLink pair, a NUMA half) that can serve alone is
    preferred, the smallest first, then the one with least free in it and, block by wider block, around it, so that
    wide blocks stay whole; otherwise blocks are emptied fullest first, so alignment never refuses.
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
            start = min(serving, key=lambda start: _surroundings(free, start, width))
            return _take(_block(free, start, width), count, width)
        width *= 2


def _block(free: int, start: int, width: int) -> int:
    """The free devices of the aligned block of a width that `start` is in."""
    return free & (((1 << width) - 1) << (start - start % width))


def _surroundings(free: int, start: int, width: int) -> list[int]:
    """How much is free in a block and in each wider block around it."""
    counts = [_block(free, start, width).bit_count()]
    while width < free.bit_length():
        width *= 2
        counts.append(_block(free, start, width).bit_count())
    return counts


def _take(block: int, count: int, width: int) -> tuple[int, ...]:
    """`count` bits of a block, split so that halves are used up before a new half is opened."""
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
    """The device with least milli left that still has `share`; None when none has. Zero marks one not to be used."""
    best = None
    for index, milli in enumerate(left):
        if milli >= share and (best is None or milli < left[best]):
            best = index
    return best
