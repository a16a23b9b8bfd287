"""Disruption controller: how many pods a PodDisruptionBudget allows to evict."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from embedded_kube.controllers.machinery.conditions import condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, ControllerContext, copy_json, object_key
from embedded_kube.controllers.machinery.event_recorder import InvolvedObject
from embedded_kube.controllers.machinery.informer import LocalInformer
from embedded_kube.controllers.machinery.objects import FullObject, Key, PodView, seconds
from embedded_kube.controllers.workloads.rollout import scaled_value
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json

BUDGETS = "poddisruptionbudgets.policy"
_EVICTION_TIMEOUT = 120.0
"""Seconds that an allowed eviction counts while the pod is not being deleted yet."""

_SCALED = {"ReplicaSet": "replicasets.apps", "StatefulSet": "statefulsets.apps", "Deployment": "deployments.apps"}


class BudgetCounts(NamedTuple):
    """The counters of a budget."""

    expected: int
    desired: int
    healthy: int

    @property
    def allowed(self) -> int:
        """How many more pods may be evicted."""
        return max(0, self.healthy - self.desired) if self.expected > 0 else 0


def count_budget(
    spec: Json, pods: Sequence[PodView], scale: int | None, disrupted: Iterable[str]
) -> BudgetCounts | None:
    """Counts a budget; None if it depends on the scale and the scale is unknown.

    `scale` is the number of replicas of the pods' controllers, `disrupted` are pods whose eviction was just allowed.
    """
    evicted = set(disrupted)
    healthy = sum(pod.ready and not pod.meta.deleting and pod.meta.name not in evicted for pod in pods)
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    if most is None and isinstance(least, int):
        return BudgetCounts(len(pods), least, healthy)
    if scale is None:
        return None
    if most is not None:
        return BudgetCounts(scale, max(0, scale - scaled_value(most, scale, up=True)), healthy)
    return BudgetCounts(scale, scaled_value(least, scale, up=True) if least is not None else 0, healthy)


def pending_disruptions(status: Json, pods: Iterable[PodView], now: float) -> tuple[dict[str, str], float | None]:
    """Returns the allowed evictions whose pods are not deleting yet, and the seconds until the first one expires."""
    left: dict[str, str] = {}
    waits: list[float] = []
    names = {pod.meta.name for pod in pods if not pod.meta.deleting}
    for name, since in (status.get("disruptedPods") or {}).items():
        wait = seconds(since) + _EVICTION_TIMEOUT - now
        if name in names and wait > 0:
            left[name] = since
            waits.append(wait)
    return left, min(waits, default=None)


class DisruptionController(Controller[Key]):
    """Updates the status of every PodDisruptionBudget."""

    name = "disruption-controller"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._budgets = self.informers.full(BUDGETS)
        self._by_namespace = self._budgets.index(lambda found: (found.meta.namespace,))
        self._scaled: dict[str, LocalInformer[FullObject]] = {
            kind: self.informers.full(resource) for kind, resource in _SCALED.items()
        }
        self.enqueue_on_change(self._budgets, object_key)
        self.cache_syncs += [self.informers.pods, *self._scaled.values()]
        self.informers.pods.add_event_handler(self._pod_changed)
        for informer in self._scaled.values():
            informer.add_event_handler(self._scale_changed)

    def _pod_changed(self, before: PodView | None, after: PodView | None) -> None:
        either: Any = after or before
        for budget in self._by_namespace.get(either.meta.namespace):
            selector = budget.spec.get("selector")
            if any(pod is not None and matches(selector, pod.meta.labels) for pod in (before, after)):
                self.queue.add_after(budget.meta.key, 0.05)

    def _scale_changed(self, before: FullObject | None, after: FullObject | None) -> None:
        either: Any = after or before
        if before is None or after is None or before.spec.get("replicas") != after.spec.get("replicas"):
            for budget in self._by_namespace.get(either.meta.namespace):
                self.queue.add_after(budget.meta.key, 0.05)

    async def reconcile(self, key: Key) -> float | None:
        budget = self._budgets.get(key)
        if budget is None or budget.meta.deleting:
            return None
        selector = budget.spec.get("selector")
        pods = [
            pod
            for pod in self.informers.pods_of_namespace.get(key[0])
            if not pod.ended and matches(selector, pod.meta.labels)
        ]
        disrupted, again = pending_disruptions(budget.status, pods, time.time())
        counts = count_budget(budget.spec, pods, self._scale(pods), disrupted)
        if counts is None:
            text = "the expected number of pods is unknown: some pods have no controller with replicas"
            self.warning(
                InvolvedObject("policy/v1", "PodDisruptionBudget", budget.meta), "CalculateExpectedPodCountFailed", text
            )
        status = self._status(budget, counts, disrupted)
        if status != budget.status:
            # Pinned: an eviction that was allowed meanwhile wrote to this status too.
            await self.context.set_status(BUDGETS, budget, status, pinned=True)
        return again

    def _status(self, budget: FullObject, counts: BudgetCounts | None, disrupted: dict[str, str]) -> Json:
        status = copy_json(budget.status)
        status.pop("disruptedPods", None)
        if counts is None:
            status["disruptionsAllowed"] = 0
            for name in ("currentHealthy", "desiredHealthy", "expectedPods"):
                status.setdefault(name, 0)
            text = "the expected number of pods is unknown"
            set_condition(status, condition("DisruptionAllowed", False, "SyncFailed", text))
        else:
            status |= {
                "currentHealthy": counts.healthy,
                "desiredHealthy": counts.desired,
                "expectedPods": counts.expected,
                "disruptionsAllowed": counts.allowed,
            }
            reason = "SufficientPods" if counts.allowed else "InsufficientPods"
            set_condition(status, condition("DisruptionAllowed", bool(counts.allowed), reason, ""))
        for one in status["conditions"]:
            one["observedGeneration"] = budget.meta.generation
        if disrupted:
            status["disruptedPods"] = disrupted
        status["observedGeneration"] = budget.meta.generation
        return status

    def _scale(self, pods: Iterable[PodView]) -> int | None:
        """Returns the replicas of the pods' controllers; None if one of the pods has no such controller."""
        totals: dict[str, int] = {}
        for pod in pods:
            found = self._scaling_owner(pod)
            if found is None:
                return None
            totals[found.meta.uid] = found.spec.get("replicas", 1)
        return sum(totals.values())

    def _scaling_owner(self, pod: PodView) -> FullObject | None:
        owner = pod.meta.controller
        found: FullObject | None = None
        while owner is not None and owner.kind in self._scaled:
            above = self._scaled[owner.kind].get((pod.meta.namespace, owner.name))
            if above is None or above.meta.uid != owner.uid:
                break
            found, owner = above, above.meta.controller
        return found
