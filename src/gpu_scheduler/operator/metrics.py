"""The operator's metrics for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest

PREFIX = "gpu_scheduler_operator"


class OperatorMetrics:
    """Counters, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reconciles = self._counter("looks", "Reconciliations of a job, by outcome.", "outcome")
        self._actions = self._counter("actions", "Requests that change an object, by action.", "action")
        self._dropped = self._counter("events_dropped", "Events that were not written, by reason.", "why")
        ProcessCollector(registry=self._registry)

    def count_reconcile(self, outcome: str) -> None:
        """Counts a reconciliation of a job."""
        self._reconciles.labels(outcome).inc()

    def count_action(self, action: str) -> None:
        """Counts a request that changes an object."""
        self._actions.labels(action).inc()

    def count_dropped_event(self, why: str) -> None:
        """Counts an Event that was not written."""
        self._dropped.labels(why).inc()

    def text(self) -> bytes:
        """Returns all metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, label: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", about, [label], registry=self._registry)
