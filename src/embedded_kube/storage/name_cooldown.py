"""Names that became free a moment ago, and are not given out again at once.

`kubectl delete` waits until what it deleted is gone: it asks once whether the object still has its uid, then lists and
watches by name alone. A successor that appears between those requests is taken for the object itself, and kubectl waits
for ever (kubernetes/kubernetes#135562). Elsewhere a pod takes seconds to go, so hardly anyone meets this; here a pod of
a StatefulSet is gone and back within ten milliseconds, right between the two.
"""

from __future__ import annotations

import asyncio
import time

REST = 1.0
"""How long a name rests, in seconds; on a very busy machine kubectl's two requests were up to 0.4 s apart."""

Place = tuple[str, str, str]
"""Resource, namespace and name."""


class FreedNames:
    """Who was deleted just now. Without a rest, which is for tests, names are free at once."""

    def __init__(self, rest: float = 0.0) -> None:
        self._rest = rest
        self._since: dict[Place, float] = {}

    def note(self, place: Place) -> None:
        """A name has become free."""
        now = time.monotonic()
        self._since.pop(place, None)  # so that the oldest come first
        self._since[place] = now
        while (oldest := next(iter(self._since))) != place and self._since[oldest] + self._rest <= now:
            del self._since[oldest]

    async def wait_for(self, place: Place) -> None:
        """Waits until a name has rested."""
        left = self._since.get(place, -self._rest) + self._rest - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)
