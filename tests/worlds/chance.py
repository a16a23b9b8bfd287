"""Clocks and chance of the interpreter, replaced for one run: what a seed does is done again by the same seed."""

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
"""When every world begins, in seconds since 1970."""


@contextmanager
def replaced(loop: WorldLoop, seed: int) -> Iterator[None]:
    """While the block runs, time is the loop's and chance is the seed's, for all code in this interpreter.

    Programs read clocks and chance where they need them, as they should; a parameter for each of them would be one that
    only a simulation sets. Garbage is collected afterwards: when it is depends on what this interpreter did before.
    """
    bits = random.Random(f"{seed} bits")
    known = random.getstate()
    random.seed(f"{seed} random")
    collects = gc.isenabled()
    gc.disable()

    def wall() -> float:
        return EPOCH + loop.time() + loop.here().jump

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
