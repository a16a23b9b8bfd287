"""How all tests are run."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail an example. The examples are the same in every run; EXPLORE=1 looks for new ones.
settings.register_profile(
    "unhurried",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="EXPLORE" not in os.environ,
)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """On which clusters the integration tests run."""
    group = parser.getgroup("clusters")
    group.addoption(
        "--cluster",
        choices=("local", "kubernetes"),
        default="local",
        help="the local cluster, or a control plane built from Kubernetes' own sources",
    )
    group.addoption("--kubernetes", default="1.35", metavar="VERSION", help="the version of that control plane")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers a processor: most tests wait for a cluster for most of their time."""
    return 2 * (os.cpu_count() or 1)
