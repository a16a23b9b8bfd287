"""What a StatefulSet does next: its pods by number in, creations and deletions out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from embedded_kube.controllers.machinery.objects import PodView

REVISION_LABEL = "controller-revision-hash"


class StatefulSetGoal(NamedTuple):
    """What a StatefulSet wants."""

    replicas: int
    start: int = 0
    parallel: bool = False
    partition: int = 0
    on_delete: bool = False
    current: str = ""
    update: str = ""
    minimum_ready: float = 0.0

    @property
    def numbers(self) -> range:
        """The numbers its pods have."""
        return range(self.start, self.start + self.replicas)

    def revision_for(self, number: int) -> str:
        """Which template a pod of this number is made from."""
        held_back = not self.on_delete and number < self.start + self.partition
        return self.current if held_back else self.update


class CreateReplica(NamedTuple):
    """Make the pod of a number."""

    number: int
    revision: str


class DeleteReplica(NamedTuple):
    """Delete a pod, because it is one too many, ended or outdated."""

    pod: PodView
    ended: bool = False


def plan_statefulset(
    goal: StatefulSetGoal, pods: Mapping[int, PodView], now: float
) -> list[CreateReplica | DeleteReplica]:
    """The next steps; in order one at a time, in parallel all that can be done at once."""
    actions: list[CreateReplica | DeleteReplica] = []
    for number in goal.numbers:
        step, settled = _tend(goal, number, pods.get(number), now)
        if step is not None:
            actions.append(step)
        if not settled and not goal.parallel:
            return actions
    surplus = [pods[number] for number in sorted(pods, reverse=True) if number not in goal.numbers]
    if goal.parallel:
        actions += [DeleteReplica(pod) for pod in surplus if not pod.meta.deleting]
    elif surplus:
        return [*actions, *_lose_one(surplus)]
    if actions or goal.on_delete:
        return actions
    return _update_one(goal, pods, now)


def _tend(
    goal: StatefulSetGoal, number: int, pod: PodView | None, now: float
) -> tuple[CreateReplica | DeleteReplica | None, bool]:
    """What a number needs, and whether the next one may go ahead."""
    if pod is None:
        return CreateReplica(number, goal.revision_for(number)), False
    if pod.meta.deleting:
        return None, False
    if pod.ended:
        return DeleteReplica(pod, ended=True), False
    return None, pod.phase == "Running" and pod.available(goal.minimum_ready, now)


def _lose_one(surplus: list[PodView]) -> list[CreateReplica | DeleteReplica]:
    """The highest goes first, and nothing else until it is gone or while a lower one is ill."""
    if any(pod.meta.deleting for pod in surplus):
        return []
    ill = [pod for pod in surplus if not pod.ready]
    if not surplus[0].ready and ill[-1] is not surplus[0]:
        return []
    return [DeleteReplica(surplus[0])]


def _update_one(goal: StatefulSetGoal, pods: Mapping[int, PodView], now: float) -> list[CreateReplica | DeleteReplica]:
    """From the top: the first outdated pod is replaced once all above it are well."""
    for number in reversed(goal.numbers):
        if number < goal.start + goal.partition:
            return []
        pod = pods.get(number)
        if pod is None or pod.meta.deleting:
            return []
        if pod.meta.labels.get(REVISION_LABEL) != goal.update:
            return [DeleteReplica(pod)]
        if pod.phase != "Running" or not pod.available(goal.minimum_ready, now):
            return []
    return []
