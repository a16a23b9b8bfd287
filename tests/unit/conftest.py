"""What holds for all unit tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# An example takes as long as the machine has other things to do: time is no reason to fail.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
