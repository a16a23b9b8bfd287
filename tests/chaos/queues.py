"""The queues of the chaos tests, and the judge of what they admit and lose: promises S6 and S7.

The limits never change, so no moment may show more live pods of a queue than its limit: a replacement is bound only
after the lost member has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpu_scheduler.k8s.objects import Json
from tests.worlds.api_mirror import PodState

MEMORY = 30.0
"""How old the view of a leader may be, in seconds, that takes back what a queue borrowed."""


class QueueSpec(NamedTuple):
    """How many GPUs a queue is guaranteed, and how many it may use."""

    quota: int
    limit: int


QUEUES = {"red": QueueSpec(6, 12), "blue": QueueSpec(8, 16)}


class QueueJudge:
    """Follows what every queue uses, in GPUs."""

    def __init__(self, specs: Mapping[str, QueueSpec] = QUEUES) -> None:
        self._specs = specs
        self._used: dict[str, deque[tuple[float, int]]] = {name: deque() for name in specs}
        self.reclaimed = 0
        """How many pods were evicted to give back what their queue borrowed."""

    def follow(self, pods: Iterable[PodState], at: float) -> str:
        """Counts the live pods of every queue; returns a breach of S6, or ""."""
        used = dict.fromkeys(self._specs, 0)
        for pod in pods:
            if pod.charged in used and pod.node and pod.live:
                used[pod.charged] += pod.gpus
        breach = ""
        for name, history in self._used.items():
            history.append((at, used[name]))
            while history[0][0] < at - MEMORY:
                history.popleft()
            if used[name] > self._specs[name].limit:
                breach = f"{name} uses {used[name]} GPUs, and its limit is {self._specs[name].limit}"
        return breach

    def find_loss(self, deletes: Iterable[Json], pods: Mapping[str, PodState]) -> str:
        """S7: a queue that was at or below its quota all the time and loses GPUs to another one, or ""."""
        for entry in deletes:
            pod = pods.get(entry["uid"])
            if pod is None or entry["cause"] != "reclaimed" or pod.charged not in self._specs:
                continue
            self.reclaimed += 1
            most = max((used for _, used in self._used[pod.charged]), default=0)
            if most <= self._specs[pod.charged].quota:
                return f"{pod.charged} used {most} GPUs at most, within its quota, and loses {pod.name}"
        return ""
