"""Numbers for Prometheus about the operator."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest

PREFIX = "gpu_scheduler_operator"


class Metrics:
    """What is counted, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._looks = self._counter("looks", "Looks at a job, by how they ended.", "outcome")
        self._actions = self._counter("actions", "Requests that change something, by what they do.", "action")
        self._dropped = self._counter("events_dropped", "Events that nobody will see, by why.", "why")
        ProcessCollector(registry=self._registry)

    def count_look(self, outcome: str) -> None:
        """One more look at a job."""
        self._looks.labels(outcome).inc()

    def count_action(self, action: str) -> None:
        """One more request."""
        self._actions.labels(action).inc()

    def count_dropped_event(self, why: str) -> None:
        """One more Event that nobody will see."""
        self._dropped.labels(why).inc()

    def text(self) -> bytes:
        """Everything, in the format that Prometheus reads."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, label: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", about, [label], registry=self._registry)
