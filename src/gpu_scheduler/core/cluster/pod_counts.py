"""Pod counts per node for affinity, anti-affinity and topology spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpu_scheduler.core.cluster.node_table import Ints, extend
from gpu_scheduler.core.model import Pod, PodTerm, Shape
from gpu_scheduler.core.selectors import PodMatch

Save = Callable[[Any, Any], None]
"""Records the value of a container under a key, so that a trial can be undone."""

MAX_POD_TERMS = 64
"""The most terms about other pods that count of one pod: each takes time whenever any pod is placed."""

_CACHE_SIZE = 64
"""How many matches are kept up to date; an evicted one is counted again when it is needed."""


class PodCounts:
    """For every node, the number of pods that a match selects, and of pods that carry an anti-affinity term."""

    def __init__(self, size: int, save: Save, placed: Callable[[], Iterable[tuple[Pod, int]]]) -> None:
        self._size = size
        self._save = save
        self._placed = placed
        self._matching: dict[tuple[PodMatch, bool], Ints] = {}
        self._carriers: dict[PodTerm, Ints] = {}

    def matching(self, match: PodMatch, *, exclude_deleting: bool = False) -> Ints:
        """The number of matched pods on each node; `exclude_deleting` leaves out pods that are being deleted."""
        key = (match, exclude_deleting)
        found = self._matching.pop(key, None)
        if found is None:
            found = np.zeros(self._size, np.int64)
            for pod, slot in self._placed():
                if _is_counted(match, pod, exclude_deleting):
                    found[slot] += 1
            if len(self._matching) >= _CACHE_SIZE:
                del self._matching[next(iter(self._matching))]
            # Within a trial the count includes the trial's pods: undoing the trial must drop it.
            self._save(self._matching, key)
        self._matching[key] = found
        return found

    def anti_affinity_against(self, pod: Pod) -> Iterable[tuple[PodTerm, Ints]]:
        """The anti-affinity terms of placed pods that match this pod, with the number of their carriers per node."""
        for term, carriers in self._carriers.items():
            if term.match.matches(pod.labels, pod.namespace, pod.namespace_labels):
                yield term, carriers

    @property
    def carried(self) -> int:
        """How many different anti-affinity terms placed pods have."""
        return len(self._carriers)

    def counts(self, shape: Shape) -> bool:
        """Whether pods of a shape have to be counted at all."""
        return bool(self._matching or shape.anti_affinity)

    def anti_affinity_matches(self) -> list[PodMatch]:
        """The pod selectors of the anti-affinity terms of placed pods."""
        return [term.match for term in self._carriers]

    def add(self, pod: Pod, slot: int, change: int) -> None:
        """Adds (+1) or subtracts (-1) a pod."""
        for (match, exclude_deleting), counts in self._matching.items():
            if _is_counted(match, pod, exclude_deleting):
                self._save(counts, slot)
                counts[slot] += change
        for term in pod.shape.anti_affinity[:MAX_POD_TERMS]:
            carriers = self._carriers.get(term)
            if carriers is None:
                self._save(self._carriers, term)
                carriers = self._carriers[term] = np.zeros(self._size, np.int64)
            self._save(carriers, slot)
            carriers[slot] += change
            if change < 0 and not carriers.any():
                self._save(self._carriers, term)
                del self._carriers[term]

    def grow(self, size: int) -> None:
        """Extends the counts to `size` nodes."""
        self._size = size
        for table in (self._matching, self._carriers):
            for key, counts in table.items():
                table[key] = extend(counts, size)  # type: ignore[index]


def _is_counted(match: PodMatch, pod: Pod, exclude_deleting: bool) -> bool:
    if exclude_deleting and pod.deleting:
        return False
    return match.matches(pod.labels, pod.namespace, pod.namespace_labels)
