"""How much a call does, counted: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def effort_of(call: Callable[[], object]) -> int:
    """The lines of Python that it runs, each as often as it is run."""
    count = 0

    def see(_frame: FrameType, _event: str, _arg: Any) -> Any:
        nonlocal count
        count += 1
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
