"""The cost of a call as a count that is the same on every machine, whatever its load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def effort_of(call: Callable[[], object]) -> int:
    """The number of trace events (mostly lines of Python) of a call."""
    count = 0

    def trace(_frame: FrameType, _event: str, _arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
