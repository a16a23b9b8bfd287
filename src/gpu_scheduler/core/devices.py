"""Which GPU indices on a chosen node: neighbours together, large free blocks kept whole."""

from __future__ import annotations

from functools import lru_cache

MAX_DEVICES = 128
"""Indices from here on are refused: no machine has them, and a map may name anything."""


@lru_cache(maxsize=65536)
def choose_whole(free: int, count: int) -> tuple[int, ...] | None:
    """The best `count` devices out of the bit set `free`, or None when there are too few.

    A buddy block (an aligned run of 1, 2, 4, ... indices: an NVLink pair, a NUMA half) that can serve alone is
    preferred, the smallest first, then the one left with least free; otherwise blocks are emptied fullest first, so
    alignment never refuses.
    """
    if free.bit_count() < count:
        return None
    if count == 0:
        return ()
    width = 1
    while width < count:
        width *= 2
    while True:
        blocks = [free & (((1 << width) - 1) << start) for start in range(0, free.bit_length(), width)]
        serving = [block for block in blocks if block.bit_count() >= count]
        if serving:
            block = min(serving, key=lambda bits: (bits.bit_count(), bits))
            return _take(block, count, width)
        width *= 2


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
