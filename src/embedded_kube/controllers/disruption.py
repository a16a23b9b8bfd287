"""PodDisruptionBudgets: how many pods may be evicted right now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from embedded_kube.controllers.machinery.conditions import condition, set_condition
from embedded_kube.controllers.machinery.controller import Controller, Shared, copy_json, own_key
from embedded_kube.controllers.machinery.informer import Informer
from embedded_kube.controllers.machinery.objects import Key, Pod, Whole, seconds
from embedded_kube.controllers.machinery.recorder import About
from embedded_kube.controllers.workloads.rollout import resolve
from embedded_kube.storage.labels import matches
from embedded_kube.storage.store import Json

BUDGETS = "poddisruptionbudgets.policy"
_EVICTION_LASTS = 120.0
"""How long an eviction that was allowed counts although the pod has not begun to go."""

_SCALED = {"ReplicaSet": "replicasets.apps", "StatefulSet": "statefulsets.apps", "Deployment": "deployments.apps"}


class Allowance(NamedTuple):
    """What a budget allows."""

    expected: int
    desired: int
    healthy: int

    @property
    def allowed(self) -> int:
        """How many more pods may go."""
        return max(0, self.healthy - self.desired) if self.expected > 0 else 0


def weigh_budget(spec: Json, pods: Sequence[Pod], scale: int | None, disrupted: Iterable[str]) -> Allowance | None:
    """What a budget allows; None when it needs to know how many pods are wanted and nobody can say.

    `scale` is how many pods the controllers of these pods want; `disrupted` are pods whose eviction was just allowed.
    """
    leaving = set(disrupted)
    healthy = sum(pod.ready and not pod.meta.deleting and pod.meta.name not in leaving for pod in pods)
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    if most is None and isinstance(least, int):
        return Allowance(len(pods), least, healthy)
    if scale is None:
        return None
    if most is not None:
        return Allowance(scale, max(0, scale - resolve(most, scale, up=True)), healthy)
    return Allowance(scale, resolve(least, scale, up=True) if least is not None else 0, healthy)


def still_disrupted(status: Json, pods: Iterable[Pod], now: float) -> tuple[dict[str, str], float | None]:
    """The evictions that were allowed and have not shown yet, and when the first of them stops counting."""
    left: dict[str, str] = {}
    waits: list[float] = []
    names = {pod.meta.name for pod in pods if not pod.meta.deleting}
    for name, since in (status.get("disruptedPods") or {}).items():
        wait = seconds(since) + _EVICTION_LASTS - now
        if name in names and wait > 0:
            left[name] = since
            waits.append(wait)
    return left, min(waits, default=None)


class Disruption(Controller[Key]):
    """Keeps the status of every budget."""

    name = "disruption-controller"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._budgets = self.informers.whole(BUDGETS)
        self._by_namespace = self._budgets.index(lambda found: (found.meta.namespace,))
        self._scaled: dict[str, Informer[Whole]] = {
            kind: self.informers.whole(resource) for kind, resource in _SCALED.items()
        }
        self.follow(self._budgets, own_key)
        self.needs += [self.informers.pods, *self._scaled.values()]
        self.informers.pods.handle(self._pod_changed)
        for informer in self._scaled.values():
            informer.handle(self._scale_changed)

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        some: Any = after or before
        for budget in self._by_namespace.get(some.meta.namespace):
            selector = budget.spec.get("selector")
            if any(pod is not None and matches(selector, pod.meta.labels) for pod in (before, after)):
                self.queue.add_after(budget.meta.key, 0.05)

    def _scale_changed(self, before: Whole | None, after: Whole | None) -> None:
        some: Any = after or before
        if before is None or after is None or before.spec.get("replicas") != after.spec.get("replicas"):
            for budget in self._by_namespace.get(some.meta.namespace):
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
        disrupted, again = still_disrupted(budget.status, pods, time.time())
        allowance = weigh_budget(budget.spec, pods, self._scale(pods), disrupted)
        if allowance is None:
            text = "cannot tell how many pods are wanted: some have no controller with replicas"
            self.warn(About("policy/v1", "PodDisruptionBudget", budget.meta), "CalculateExpectedPodCountFailed", text)
        status = self._status(budget, allowance, disrupted)
        if status != budget.status:
            # An eviction that was allowed meanwhile wrote to this status too, and must not be forgotten.
            await self.shared.set_status(BUDGETS, budget, status, pinned=True)
        return again

    def _status(self, budget: Whole, allowance: Allowance | None, disrupted: dict[str, str]) -> Json:
        status = copy_json(budget.status)
        status.pop("disruptedPods", None)
        if allowance is None:
            status["disruptionsAllowed"] = 0
            for name in ("currentHealthy", "desiredHealthy", "expectedPods"):
                status.setdefault(name, 0)
            text = "the number of wanted pods is unknown"
            set_condition(status, condition("DisruptionAllowed", False, "SyncFailed", text))
        else:
            status |= {
                "currentHealthy": allowance.healthy,
                "desiredHealthy": allowance.desired,
                "expectedPods": allowance.expected,
                "disruptionsAllowed": allowance.allowed,
            }
            reason = "SufficientPods" if allowance.allowed else "InsufficientPods"
            set_condition(status, condition("DisruptionAllowed", bool(allowance.allowed), reason, ""))
        for one in status["conditions"]:
            one["observedGeneration"] = budget.meta.generation
        if disrupted:
            status["disruptedPods"] = disrupted
        status["observedGeneration"] = budget.meta.generation
        return status

    def _scale(self, pods: Iterable[Pod]) -> int | None:
        """How many pods the controllers of these want; None when one of them cannot say."""
        totals: dict[str, int] = {}
        for pod in pods:
            found = self._scaling_owner(pod)
            if found is None:
                return None
            totals[found.meta.uid] = found.spec.get("replicas", 1)
        return sum(totals.values())

    def _scaling_owner(self, pod: Pod) -> Whole | None:
        owner = pod.meta.controller
        found: Whole | None = None
        while owner is not None and owner.kind in self._scaled:
            above = self._scaled[owner.kind].get((pod.meta.namespace, owner.name))
            if above is None or above.meta.uid != owner.uid:
                break
            found, owner = above, above.meta.controller
        return found
