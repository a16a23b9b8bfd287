"""Numbers for Prometheus: reviews, how long they take, and when the certificate ends."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from gpu_scheduler.base.certificates import Certificate, read_period

PREFIX = "gpu_scheduler_webhook"
PATHS = ("mutate", "validate")
OUTCOMES = ("allowed", "denied", "refused", "failed")
"""Refused: the request made no sense, or was too large or slow. Failed: an error of ours."""

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 2)


class WebhookMetrics:
    """Everything that is measured, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        reviews = Counter(
            f"{PREFIX}_reviews", "Reviews, by how they ended.", ("path", "outcome"), registry=self.registry
        )
        seconds = Histogram(
            f"{PREFIX}_review_seconds",
            "Time to answer a review that has been read.",
            ("path",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._expiry = Gauge(
            f"{PREFIX}_certificate_expiry_timestamp_seconds",
            "When the certificate ends that is shown, in seconds since 1970.",
            registry=self.registry,
        )
        # Looked up once: a lookup costs more than the counting.
        self.reviews = {(path, outcome): reviews.labels(path, outcome) for path in PATHS for outcome in OUTCOMES}
        self.seconds = {path: seconds.labels(path) for path in PATHS}
        ProcessCollector(registry=self.registry)

    def set_certificate(self, pair: Certificate) -> None:
        """Takes down when the pair ends that is shown from now on."""
        self._expiry.set(read_period(pair.certificate).ends)

    def text(self) -> bytes:
        """Everything, in the format that Prometheus reads."""
        return generate_latest(self.registry)
