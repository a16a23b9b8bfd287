"""How all tests are run."""

from __future__ import annotations

import os

import pytest


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers a processor: most tests wait for a cluster for most of their time."""
    return 2 * (os.cpu_count() or 1)
