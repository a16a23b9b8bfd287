"""Prometheus metrics of the webhook: reviews, their duration, and the expiry of the certificate."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from gpu_scheduler.base.certificates import Certificate, read_period

PREFIX = "gpu_scheduler_webhook"
PATHS = ("mutate", "validate")
OUTCOMES = ("allowed", "denied", "refused", "failed")
"""Refused: the request was invalid, too large or too slow. Failed: an internal error."""

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 2)


class WebhookMetrics:
    """The metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        reviews = Counter(f"{PREFIX}_reviews", "Reviews by outcome.", ("path", "outcome"), registry=self.registry)
        seconds = Histogram(
            f"{PREFIX}_review_seconds",
            "Time to answer a review that has been read.",
            ("path",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._expiry = Gauge(
            f"{PREFIX}_certificate_expiry_timestamp_seconds",
            "When the served certificate expires, in seconds since 1970.",
            registry=self.registry,
        )
        # Looked up once: a lookup costs more than an increment.
        self.reviews = {(path, outcome): reviews.labels(path, outcome) for path in PATHS for outcome in OUTCOMES}
        self.seconds = {path: seconds.labels(path) for path in PATHS}
        ProcessCollector(registry=self.registry)

    def set_certificate(self, pair: Certificate) -> None:
        """Records the expiry of the certificate that is served from now on."""
        self._expiry.set(read_period(pair.certificate).ends)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)
