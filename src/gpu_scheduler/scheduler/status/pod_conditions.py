"""What a pod says about its own scheduling: the condition PodScheduled."""

from __future__ import annotations

from gpu_scheduler.core.model import PodPhase
from gpu_scheduler.k8s.objects import Json, PodObject
from gpu_scheduler.k8s.times import format_time


def may_run(pod: PodObject) -> bool:
    """Whether a pod has not ended and is not being deleted."""
    ended = pod.status.phase in (PodPhase.SUCCEEDED.value, PodPhase.FAILED.value)
    return not ended and pod.metadata.deletion_timestamp is None


def is_waiting(pod: PodObject) -> bool:
    """Whether a pod could still be put on a node."""
    return may_run(pod) and not pod.spec.node_name


def patch_condition(pod: PodObject, message: str, now: float) -> Json | None:
    """What makes a pod say that it waits; None when it says so, or when its gates, which others watch, say more.

    It holds for this version of the pod only: one that has been bound since must not say that it waits.
    """
    if pod.spec.scheduling_gates:
        return None
    old = next((c for c in pod.status.conditions or () if c.type == "PodScheduled"), None)
    since = format_time(now)
    if old is not None and old.status == "False":
        if (old.reason, old.message) == ("Unschedulable", message):
            return None
        since = old.last_transition_time or since
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": since,
    }
    meta = pod.metadata
    return {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"conditions": [condition]},
    }
