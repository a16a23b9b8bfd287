"""The faults between a program and the API by name, and the fault injector, which decides when each one happens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `most` is the highest rate at which it happens."""

    name: str
    most: float
    meaning: str


REQUESTS = (
    Fault("slow", 0.2, "a request or its reply takes up to five seconds longer"),
    Fault("lost-request", 0.08, "a request never arrives; the client times out or its connection is cut"),
    Fault("lost-reply", 0.08, "a request is processed, and its reply never arrives"),
    Fault("late-request", 0.1, "the connection is cut, and the request arrives up to two minutes later"),
    Fault("too-many", 0.1, "429 with Retry-After; the request is not processed"),
    Fault("server-error", 0.08, "500; the request is not processed"),
    Fault("server-error-after", 0.05, "500, after the request was processed"),
    Fault("conflict", 0.05, "409 for a write that is not processed"),
    Fault("conflict-after", 0.05, "409 for a write that was processed: the server retried and conflicted with itself"),
)
WATCHES = (
    Fault("watch-delay", 0.2, "a watch delivers up to twenty seconds late"),
    Fault("watch-drop", 0.1, "a watch is cut, and events in transit are lost"),
    Fault("watch-duplicate", 0.2, "a watch delivers an event twice"),
    Fault("watch-reorder", 0.3, "events that a watch delivers together arrive in another order"),
    Fault("watch-stall", 0.02, "a watch stays open and delivers nothing more"),
    Fault("watch-gone", 0.05, "a watch ends with 410; the client has to list again"),
)
KINDS = {fault.name: fault for fault in (*REQUESTS, *WATCHES)}


class FaultInjector:
    """Decides which faults happen. Each kind has its own random stream, so leaving one out does not change the
    others."""

    def __init__(self, seed: int, without: Collection[str] = ()) -> None:
        self.occurred: Counter[str] = Counter()
        """How often each fault and each kind of action has had an effect."""
        self.disabled = False
        """Once set, no more faults happen."""
        self._rates: dict[str, float] = {}
        self._streams = {name: random.Random(f"{seed} {name}") for name in KINDS}
        for name, fault in KINDS.items():
            stream = self._streams[name]
            used, share = stream.random() < 0.4, stream.random() ** 2
            if used and name not in without:
                self._rates[name] = fault.most * share
        self._background = random.Random(f"{seed} latency")

    @property
    def used(self) -> list[str]:
        """The faults that may happen in this world."""
        return list(self._rates)

    def happens(self, name: str) -> bool:
        """Whether this fault happens now."""
        rate = self._rates.get(name, 0.0)
        if not rate or self.disabled or self._streams[name].random() >= rate:
            return False
        self.count(name)
        return True

    def count(self, name: str) -> None:
        """Counts a fault or an action that had an effect."""
        self.occurred[name] += 1

    def amount(self, name: str, most: float) -> float:
        """How much of a fault happens; small amounts are more likely."""
        return most * self._streams[name].random() ** 2

    def stream(self, name: str) -> random.Random:
        """The random stream of a fault, for further choices."""
        return self._streams[name]

    def staleness(self) -> int:
        """By how many revisions the answer to a request with resourceVersion=0 is stale."""
        return 0 if self.disabled else int(200 * self._background.random() ** 2)

    def latency(self) -> float:
        """How long a message takes without a fault, in seconds."""
        return 0.0005 + 0.004 * self._background.random() ** 3
