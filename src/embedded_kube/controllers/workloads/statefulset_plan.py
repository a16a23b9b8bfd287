"""Plans the next steps of a StatefulSet: pods to create and delete. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from embedded_kube.controllers.machinery.objects import PodView

REVISION_LABEL = "controller-revision-hash"


class StatefulSetGoal(NamedTuple):
    """Desired state of a StatefulSet, from its spec."""

    replicas: int
    start: int = 0
    parallel: bool = False
    partition: int = 0
    on_delete: bool = False
    current: str = ""
    update: str = ""
    minimum_ready: float = 0.0

    @property
    def ordinals(self) -> range:
        """The ordinals of its pods."""
        return range(self.start, self.start + self.replicas)

    def revision_for(self, ordinal: int) -> str:
        """Returns the revision for the pod of an ordinal."""
        held_back = not self.on_delete and ordinal < self.start + self.partition
        return self.current if held_back else self.update


class CreateReplica(NamedTuple):
    """Create the pod of an ordinal."""

    ordinal: int
    revision: str


class DeleteReplica(NamedTuple):
    """Delete a pod because it is surplus, ended or outdated."""

    pod: PodView
    ended: bool = False


def plan_statefulset(
    goal: StatefulSetGoal, pods: Mapping[int, PodView], now: float
) -> list[CreateReplica | DeleteReplica]:
    """Returns the next steps: one at a time for OrderedReady, all possible ones for Parallel."""
    actions: list[CreateReplica | DeleteReplica] = []
    for ordinal in goal.ordinals:
        step, settled = _plan_ordinal(goal, ordinal, pods.get(ordinal), now)
        if step is not None:
            actions.append(step)
        if not settled and not goal.parallel:
            return actions
    surplus = [pods[ordinal] for ordinal in sorted(pods, reverse=True) if ordinal not in goal.ordinals]
    if goal.parallel:
        actions += [DeleteReplica(pod) for pod in surplus if not pod.meta.deleting]
    elif surplus:
        return [*actions, *_scale_down_one(surplus)]
    if actions or goal.on_delete:
        return actions
    return _update_one(goal, pods, now)


def _plan_ordinal(
    goal: StatefulSetGoal, ordinal: int, pod: PodView | None, now: float
) -> tuple[CreateReplica | DeleteReplica | None, bool]:
    """Returns the step for an ordinal, and whether the next ordinal may proceed."""
    if pod is None:
        return CreateReplica(ordinal, goal.revision_for(ordinal)), False
    if pod.meta.deleting:
        return None, False
    if pod.ended:
        return DeleteReplica(pod, ended=True), False
    return None, pod.phase == "Running" and pod.available(goal.minimum_ready, now)


def _scale_down_one(surplus: list[PodView]) -> list[CreateReplica | DeleteReplica]:
    """Deletes the highest surplus pod, unless one is being deleted, or both it and a lower one are not ready."""
    if any(pod.meta.deleting for pod in surplus):
        return []
    unready = [pod for pod in surplus if not pod.ready]
    if not surplus[0].ready and unready[-1] is not surplus[0]:
        return []
    return [DeleteReplica(surplus[0])]


def _update_one(goal: StatefulSetGoal, pods: Mapping[int, PodView], now: float) -> list[CreateReplica | DeleteReplica]:
    """Replaces the highest outdated pod once all pods above it are available."""
    for ordinal in reversed(goal.ordinals):
        if ordinal < goal.start + goal.partition:
            return []
        pod = pods.get(ordinal)
        if pod is None or pod.meta.deleting:
            return []
        if pod.meta.labels.get(REVISION_LABEL) != goal.update:
            return [DeleteReplica(pod)]
        if pod.phase != "Running" or not pod.available(goal.minimum_ready, now):
            return []
    return []
