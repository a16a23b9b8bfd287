"""Times as the API writes them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache


def timestamp(later: float = 0.0) -> str:
    """The current time plus `later` seconds, in RFC 3339 as the API writes it."""
    return _write_time(int(time.time() + later))


@lru_cache(maxsize=64)
def _write_time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
