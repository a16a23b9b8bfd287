"""What holds for all unit tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# An example takes as long as the machine has other things to do: time is no reason to fail. The examples are the same
# in every run, so that nobody's change is refused for what luck found elsewhere; EXPLORE=1 looks for new ones.
settings.register_profile(
    "unhurried",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="EXPLORE" not in os.environ,
)
settings.load_profile("unhurried")
