"""pods/eviction: deletes a pod if its PodDisruptionBudget allows it."""

from __future__ import annotations

from embedded_kube import errors
from embedded_kube.errors import StatusError
from embedded_kube.registry.label_selectors import matches
from embedded_kube.registry.metadata import check_preconditions
from embedded_kube.registry.options import DeleteOptions, RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.registry.timestamps import timestamp
from embedded_kube.server.delete_options import parse_options, validate_options
from embedded_kube.subresources.binding import set_condition
from gpu_scheduler.k8s.objects import Json

BUDGETS = "poddisruptionbudgets.policy"
MAX_DISRUPTED_PODS = 2000
"""The number of evictions that may be unconfirmed by the disruption controller."""


async def evict(registry: ObjectRegistry, namespace: str, name: str, eviction: Json, options: RequestOptions) -> Json:
    """Evicts a pod; returns a Status. TooManyRequests (429) if its budget allows no disruption."""
    kind = registry.find("pods")
    deletion = validate_options(parse_options(eviction.get("deleteOptions") or {}), kind)
    dry_run = options.dry_run or deletion.dry_run
    pod = registry.get(kind, namespace, name)
    meta = pod["metadata"]
    check_preconditions("pods", "", meta, deletion.uid, deletion.revision)
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed", "Pending")
    if not ended and not meta.get("deletionTimestamp"):
        _take_disruption(registry, pod, dry_run)
    if not dry_run:
        condition = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
        set_condition(pod, {"type": "DisruptionTarget", "status": "True", **condition})
        registry.store.write("pods", pod)
    # No resourceVersion precondition: it was checked above, and the DisruptionTarget condition has changed it.
    deletion = DeleteOptions(deletion.grace, meta["uid"], None, deletion.propagation, dry_run)
    await registry.delete(kind, namespace, name, deletion, options)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _take_disruption(registry: ObjectRegistry, pod: Json, dry_run: bool) -> None:
    """Takes one disruption from the pod's budget, if it has a budget that counts this pod."""
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    budgets = [entry.object() for entry in registry.store.entries(BUDGETS, meta["namespace"])]
    budgets = [b for b in budgets if matches(b.get("spec", {}).get("selector"), labels)]
    if not budgets:
        return
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise StatusError(500, "InternalError", message)
    budget = budgets[0]
    status = budget.get("status") or {}
    if not _is_ready(pod):
        wanted = status.get("desiredHealthy", 0)
        enough = status.get("currentHealthy", 0) >= wanted > 0
        # An unhealthy pod may be evicted without budget if enough pods are healthy.
        if enough or budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
            return
    _check_budget(budget, status)
    status["disruptionsAllowed"] -= 1
    status.setdefault("disruptedPods", {})[meta["name"]] = timestamp()
    if not status["disruptionsAllowed"]:
        _set_disruption_not_allowed(budget, status)
    if not dry_run:
        registry.store.write(BUDGETS, {**budget, "status": status})


def _set_disruption_not_allowed(budget: Json, status: Json) -> None:
    """Sets the condition DisruptionAllowed=False of a budget that has no disruptions left."""
    kind = {"type": "DisruptionAllowed", "status": "False"}
    conditions = status.get("conditions") or []
    before = next((one for one in conditions if one["type"] == kind["type"] and one["status"] == "False"), None)
    since = before["lastTransitionTime"] if before is not None else timestamp()
    seen = {"observedGeneration": budget["metadata"].get("generation", 0), "lastTransitionTime": since}
    condition = {**kind, **seen, "reason": "InsufficientPods", "message": ""}
    status["conditions"] = [*(one for one in conditions if one["type"] != kind["type"]), condition]


def _check_budget(budget: Json, status: Json) -> None:
    name = budget["metadata"]["name"]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _too_many_requests(f"The disruption budget {name} is still being processed by the server.", 10)
    allowed = status.get("disruptionsAllowed", 0)
    if len(status.get("disruptedPods") or {}) > MAX_DISRUPTED_PODS:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise errors.forbidden("poddisruptionbudgets", "policy", name, why)
    if allowed <= 0:
        wanted, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        # No Retry-After, as upstream: with it, clients would retry silently for minutes.
        cause = f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
        raise _too_many_requests(cause, 0)


def _too_many_requests(cause: str, retry: int) -> StatusError:
    details: Json = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if retry:
        details["retryAfterSeconds"] = retry
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return StatusError(429, "TooManyRequests", message, details)


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
