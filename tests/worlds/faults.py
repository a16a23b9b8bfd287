"""Faults by name: what may go wrong between a program and the API, and how likely each of it is in one world."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which things go wrong. `most` is its highest rate: how often it strikes when it could."""

    name: str
    most: float
    meaning: str


REQUESTS = (
    Fault("slow", 0.2, "a request or its answer takes up to five seconds"),
    Fault("lost-request", 0.08, "a request never arrives; the client waits until its time is up, or is cut off"),
    Fault("lost-reply", 0.08, "a request is done, its answer never arrives"),
    Fault("late-request", 0.1, "a client is cut off, and its request arrives up to two minutes later"),
    Fault("too-many", 0.1, "429 with Retry-After, and nothing was done"),
    Fault("server-error", 0.08, "500, and nothing was done"),
    Fault("server-error-after", 0.05, "500, and all was done"),
    Fault("conflict", 0.05, "409 for a write that was not done"),
    Fault("conflict-after", 0.05, "409 for a write that was done: the server tried twice and met itself"),
)
WATCHES = (
    Fault("watch-delay", 0.2, "a watch tells up to twenty seconds late"),
    Fault("watch-drop", 0.1, "a watch is cut off, and what was on its way is lost"),
    Fault("watch-duplicate", 0.2, "a watch tells something twice"),
    Fault("watch-reorder", 0.3, "what a watch tells at once comes in another order"),
    Fault("watch-stall", 0.02, "a watch stays open and says nothing any more"),
    Fault("watch-gone", 0.05, "a watch ends with 410: all has to be listed anew"),
)
KINDS = {fault.name: fault for fault in (*REQUESTS, *WATCHES)}


class Chances:
    """Which faults strike. Each has a stream of its own, so that without one the others stay as they were."""

    def __init__(self, seed: int, without: Collection[str] = ()) -> None:
        self.struck: Counter[str] = Counter()
        """How often each fault, and each kind of action, has had an effect."""
        self.quiet = False
        """Once set, nothing goes wrong any more."""
        self._rates: dict[str, float] = {}
        self._streams = {name: random.Random(f"{seed} {name}") for name in KINDS}
        for name, fault in KINDS.items():
            stream = self._streams[name]
            used, share = stream.random() < 0.4, stream.random() ** 2
            if used and name not in without:
                self._rates[name] = fault.most * share
        self._plain = random.Random(f"{seed} latency")

    @property
    def used(self) -> list[str]:
        """The faults that may strike in this world."""
        return list(self._rates)

    def strikes(self, name: str) -> bool:
        """Whether a fault happens now."""
        rate = self._rates.get(name, 0.0)
        if not rate or self.quiet or self._streams[name].random() >= rate:
            return False
        self.note(name)
        return True

    def note(self, name: str) -> None:
        """Something has had an effect."""
        self.struck[name] += 1

    def amount(self, name: str, most: float) -> float:
        """How much of it: small amounts are more likely."""
        return most * self._streams[name].random() ** 2

    def choice(self, name: str) -> random.Random:
        """A fault's own stream, for whatever else has to be chosen."""
        return self._streams[name]

    def past(self) -> int:
        """How many revisions behind a server is that is asked by somebody who allows it."""
        return 0 if self.quiet else int(200 * self._plain.random() ** 2)

    def latency(self) -> float:
        """How long a message takes when nothing is wrong."""
        return 0.0005 + 0.004 * self._plain.random() ** 3
