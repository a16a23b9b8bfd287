"""A cooldown for the names of deleted objects: a create that reuses such a name waits for a moment.

`kubectl delete` waits until the object is gone: it gets the object once to compare the uid, then lists and watches by
name alone. If a successor appears between these requests, kubectl takes it for the deleted object and never returns
(kubernetes/kubernetes#135562). On a real cluster a pod takes seconds to terminate, so this is rare. Here a pod of a
StatefulSet is deleted and recreated within ten milliseconds, between the two requests.
"""

from __future__ import annotations

import asyncio
import time

COOLDOWN = 1.0
"""Seconds; on a very busy machine kubectl's two requests were up to 0.4 s apart."""

ObjectKey = tuple[str, str, str]
"""Resource, namespace and name."""


class NameCooldown:
    """The names of objects deleted recently. The default of 0 seconds is for tests: names are free at once."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._deleted_at: dict[ObjectKey, float] = {}

    def start(self, key: ObjectKey) -> None:
        """Starts the cooldown of a name, after its object was deleted."""
        now = time.monotonic()
        self._deleted_at.pop(key, None)  # insert at the end: the oldest come first
        self._deleted_at[key] = now
        while (oldest := next(iter(self._deleted_at))) != key and self._deleted_at[oldest] + self._seconds <= now:
            del self._deleted_at[oldest]

    async def wait(self, key: ObjectKey) -> None:
        """Waits until the cooldown of a name is over."""
        left = self._deleted_at.get(key, -self._seconds) + self._seconds - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)
