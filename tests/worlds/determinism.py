"""Replaces the clocks and the randomness of the interpreter for one run, so that a seed always does the same."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tests.worlds.loop import WorldLoop

EPOCH = 1_800_000_000.0
"""The time at which every world begins, in seconds since 1970."""


@contextmanager
def deterministic(loop: WorldLoop, seed: int) -> Iterator[None]:
    """Within the block, all code in this interpreter gets its time from the loop and its randomness from the seed.

    Programs read clocks and randomness where they need them; a parameter for each would exist for the simulation only.
    Garbage collection is off within the block, because its timing depends on what the interpreter did before.
    """
    bits = random.Random(f"{seed} bits")
    known = random.getstate()
    random.seed(f"{seed} random")
    collects = gc.isenabled()
    gc.disable()

    def wall() -> float:
        return EPOCH + loop.time() + loop.current_process().clock_offset

    try:
        with (
            patch.object(time, "time", wall),
            patch.object(time, "monotonic", loop.time),
            patch.object(time, "perf_counter", loop.time),
            patch.object(os, "urandom", bits.randbytes),
        ):
            yield
    finally:
        random.setstate(known)
        if collects:
            gc.enable()
