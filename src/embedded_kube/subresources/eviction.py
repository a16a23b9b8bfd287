"""Evicting a pod: a delete that asks the disruption budgets first."""

from __future__ import annotations

from embedded_kube import errors
from embedded_kube.api import Api, DeleteOptions, Options, timestamp
from embedded_kube.errors import ApiError
from embedded_kube.server.delete_options import checked, convert
from embedded_kube.storage.identity import check_preconditions
from embedded_kube.storage.labels import matches
from embedded_kube.storage.store import Json
from embedded_kube.subresources.binding import set_condition

BUDGETS = "poddisruptionbudgets.policy"
MOST_DISRUPTED = 2000
"""How many evictions may wait for the budget's controller to see them."""


async def evict(api: Api, namespace: str, name: str, eviction: Json, options: Options) -> Json:
    """Evicts a pod; returns a Status. 429 when its disruption budget has nothing left."""
    kind = api.find("pods")
    deletion = checked(convert(eviction.get("deleteOptions") or {}), kind)
    dry_run = options.dry_run or deletion.dry_run
    pod = api.get(kind, namespace, name)
    meta = pod["metadata"]
    check_preconditions("pods", "", meta, deletion.uid, deletion.revision)
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed", "Pending")
    if not ended and not meta.get("deletionTimestamp"):
        _ask_budget(api, pod, dry_run)
    if not dry_run:
        said = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
        set_condition(pod, {"type": "DisruptionTarget", "status": "True", **said})
        api.store.write("pods", pod)
    # The revision was checked above; the condition that says why the pod goes has changed it since.
    deletion = DeleteOptions(deletion.grace, meta["uid"], None, deletion.propagation, dry_run)
    await api.delete(kind, namespace, name, deletion, options)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _ask_budget(api: Api, pod: Json, dry_run: bool) -> None:
    """Takes one disruption from the pod's budget, if it has one that counts this pod."""
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    budgets = [entry.object() for entry in api.store.entries(BUDGETS, meta["namespace"])]
    budgets = [b for b in budgets if matches(b.get("spec", {}).get("selector"), labels)]
    if not budgets:
        return
    if len(budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise ApiError(500, "InternalError", message)
    budget = budgets[0]
    status = budget.get("status") or {}
    if not _is_ready(pod):
        wanted = status.get("desiredHealthy", 0)
        enough = status.get("currentHealthy", 0) >= wanted > 0
        # A pod that does not work is no loss, unless its budget is short of those that do.
        if enough or budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
            return
    _check_budget(budget, status)
    status["disruptionsAllowed"] -= 1
    status.setdefault("disruptedPods", {})[meta["name"]] = timestamp()
    if not status["disruptionsAllowed"]:
        _say_spent(budget, status)
    if not dry_run:
        api.store.write(BUDGETS, {**budget, "status": status})


def _say_spent(budget: Json, status: Json) -> None:
    """The condition of a budget that has nothing left."""
    kind = {"type": "DisruptionAllowed", "status": "False"}
    conditions = status.get("conditions") or []
    before = next((one for one in conditions if one["type"] == kind["type"] and one["status"] == "False"), None)
    since = before["lastTransitionTime"] if before is not None else timestamp()
    seen = {"observedGeneration": budget["metadata"].get("generation", 0), "lastTransitionTime": since}
    said = {**kind, **seen, "reason": "InsufficientPods", "message": ""}
    status["conditions"] = [*(one for one in conditions if one["type"] != kind["type"]), said]


def _check_budget(budget: Json, status: Json) -> None:
    name = budget["metadata"]["name"]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", 10)
    allowed = status.get("disruptionsAllowed", 0)
    if len(status.get("disruptedPods") or {}) > MOST_DISRUPTED:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise errors.forbidden("poddisruptionbudgets", "policy", name, why)
    if allowed <= 0:
        wanted, held = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        # No Retry-After here, as upstream: clients that see one retry on their own, silently and for minutes.
        raise _too_many(f"The disruption budget {name} needs {wanted} healthy pods and has {held} currently", 0)


def _too_many(cause: str, retry: int) -> ApiError:
    details: Json = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    if retry:
        details["retryAfterSeconds"] = retry
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return ApiError(429, "TooManyRequests", message, details)


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
