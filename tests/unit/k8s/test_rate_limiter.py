"""The rate limiter: a burst, a steady rate, and a slower one while something more important is in progress."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpu_scheduler.k8s import rate_limiter
from gpu_scheduler.k8s.rate_limiter import RateLimiter


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays of a rate limiter whose clock stands still, in seconds."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(round(seconds, 6))

    monkeypatch.setattr(rate_limiter, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    monkeypatch.setattr(rate_limiter, "asyncio", SimpleNamespace(sleep=sleep))
    return found


async def test_a_burst_passes_at_once_and_then_a_steady_rate(slept: list[float]) -> None:
    limiter = RateLimiter(rate=50, burst=5)
    for _ in range(5):
        await limiter.take()
    assert slept == []
    for _ in range(4):
        await limiter.take()
    assert slept == [0.02, 0.04, 0.06, 0.08]


async def test_while_busy_only_urgent_requests_keep_the_rate(slept: list[float]) -> None:
    limiter = RateLimiter(rate=100, burst=10, busy=lambda: True)
    await limiter.take()  # takes the whole burst
    assert slept == []
    await limiter.take()
    assert slept == [0.1]
    other = RateLimiter(rate=100, burst=10, busy=lambda: True)
    for _ in range(10):
        await other.take(urgent=True)
    assert slept == [0.1]
