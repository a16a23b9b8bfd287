"""Status of a Deployment: counters, and the conditions Available, Progressing and ReplicaFailure."""

from __future__ import annotations

from collections.abc import Sequence

from embedded_kube.controllers.machinery.conditions import condition, drop_condition, find_condition, set_condition
from embedded_kube.controllers.machinery.objects import FullObject, seconds
from embedded_kube.controllers.workloads.rollout import RolloutBounds
from gpu_scheduler.k8s.objects import Json

_NO_DEADLINE = 2**31 - 1
_COUNTERS = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas")


def deployment_status(
    found: FullObject, new: FullObject | None, old: Sequence[FullObject], bounds: RolloutBounds, now: float
) -> Json:
    """Returns the status of a Deployment, from its ReplicaSets."""
    sets = [*old, new] if new is not None else list(old)
    status = _counters(sets, new)
    if found.status.get("collisionCount"):
        status["collisionCount"] = found.status["collisionCount"]
    status["observedGeneration"] = found.meta.generation
    if found.status.get("conditions"):
        status["conditions"] = [dict(c) for c in found.status["conditions"]]
    _set_available(status, bounds)
    _set_progressing(status, found, new, now)
    failure = next((c for one in sets if (c := find_condition(one.status, "ReplicaFailure"))), None)
    if failure is not None:
        new_one = condition("ReplicaFailure", True, failure.get("reason", ""), failure.get("message", ""))
        set_condition(status, new_one, probed="lastUpdateTime")
    else:
        drop_condition(status, "ReplicaFailure")
    return status


def seconds_to_deadline(found: FullObject, status: Json, now: float) -> float | None:
    """Returns the seconds until a rollout without progress misses its deadline."""
    progress = find_condition(status, "Progressing")
    limit = found.spec.get("progressDeadlineSeconds", 600)
    if limit == _NO_DEADLINE or found.spec.get("paused") or _complete(found, status) or not progress:
        return None
    if progress.get("reason") == "ProgressDeadlineExceeded":
        return None
    due: float = seconds(progress.get("lastUpdateTime")) + limit - now + 1
    return max(0.5, due)


def _counters(sets: Sequence[FullObject], new: FullObject | None) -> Json:
    def total(name: str) -> int:
        return sum(one.status.get(name, 0) for one in sets)

    wanted = sum(one.spec.get("replicas", 1) for one in sets)
    available = total("availableReplicas")
    values = (
        total("replicas"),
        new.status.get("replicas", 0) if new is not None else 0,
        total("readyReplicas"),
        available,
        max(0, wanted - available),
    )
    return {
        **{name: value for name, value in zip(_COUNTERS, values, strict=True) if value},
        "terminatingReplicas": total("terminatingReplicas"),
    }


def _set_available(status: Json, bounds: RolloutBounds) -> None:
    if status.get("availableReplicas", 0) >= bounds.floor:
        new = condition("Available", True, "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        new = condition(
            "Available", False, "MinimumReplicasUnavailable", "Deployment does not have minimum availability."
        )
    set_condition(status, new, probed="lastUpdateTime")


def _complete(found: FullObject, status: Json) -> bool:
    replicas = found.spec.get("replicas", 1)
    names = ("updatedReplicas", "replicas", "availableReplicas")
    return all(status.get(name, 0) == replicas for name in names)


def _set_progressing(status: Json, found: FullObject, new: FullObject | None, now: float) -> None:
    limit = found.spec.get("progressDeadlineSeconds", 600)
    if limit == _NO_DEADLINE:
        drop_condition(status, "Progressing")
        return
    current = find_condition(status, "Progressing")
    if found.spec.get("paused"):
        _set_progress(status, "Unknown", "DeploymentPaused", "Deployment is paused")
        return
    if current.get("reason") == "DeploymentPaused":
        _set_progress(status, "Unknown", "DeploymentResumed", "Deployment is resumed")
    name = f'ReplicaSet "{new.meta.name}"' if new is not None else f'Deployment "{found.meta.name}"'
    done = f"{name} has successfully progressed."
    if _complete(found, status):
        if new is not None:
            _set_progress(status, "True", "NewReplicaSetAvailable", done)
        return
    if not current or (current.get("reason") == "NewReplicaSetAvailable" and current.get("message") != done):
        created = f'Created new replica set "{new.meta.name}"' if new is not None else f"{name} is progressing."
        _set_progress(status, "True", "NewReplicaSetCreated", created, touch=True)
    elif _has_progressed(status, found):
        _set_progress(status, "True", "ReplicaSetUpdated", f"{name} is progressing.", touch=True)
    elif current.get("reason") != "ProgressDeadlineExceeded":
        since = seconds(current.get("lastUpdateTime"))
        # A complete rollout has no deadline until it progresses again.
        if current.get("reason") != "NewReplicaSetAvailable" and now - since > limit:
            _set_progress(status, "False", "ProgressDeadlineExceeded", f"{name} has timed out progressing.")


def _set_progress(status: Json, state: str, reason: str, message: str, *, touch: bool = False) -> None:
    """Sets the condition; `touch` updates lastUpdateTime although nothing else changed."""
    if touch:
        current = find_condition(status, "Progressing")
        current.pop("lastUpdateTime", None)
        current.pop("message", None)
    set_condition(status, condition("Progressing", state, reason, message), probed="lastUpdateTime")


def _has_progressed(status: Json, found: FullObject) -> bool:
    """Whether more pods are updated, ready or available than before, or fewer are old."""
    before = found.status

    def old_replicas(one: Json) -> int:
        return int(one.get("replicas", 0) - one.get("updatedReplicas", 0))

    return (
        status.get("updatedReplicas", 0) > before.get("updatedReplicas", 0)
        or old_replicas(status) < old_replicas(before)
        or status.get("readyReplicas", 0) > before.get("readyReplicas", 0)
        or status.get("availableReplicas", 0) > before.get("availableReplicas", 0)
    )
