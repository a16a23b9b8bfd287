"""Columns of `kubectl get pods`: ready containers, status, restarts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from embedded_kube.printing.durations import human_duration, parse_time
from gpu_scheduler.k8s.objects import Json


class PodSummary(NamedTuple):
    """The values of the first columns."""

    ready: int
    total: int
    status: str
    restarts: int
    restarted: datetime | None


def summarise(obj: Json) -> PodSummary:
    """Computes the columns of a pod, as kubectl's printer does."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    sidecars = {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
    text = status.get("reason") or status.get("phase") or ""
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    if (conditions.get("PodScheduled") or {}).get("reason") == "SchedulingGated":
        text = "SchedulingGated"
    started, ready, initialising = _init_status(spec, status, sidecars)
    states = status.get("containerStatuses") or []
    counted = status.get("initContainerStatuses") or []
    initialised = (conditions.get("Initialized") or {}).get("status") == "True"
    if not initialising or initialised:
        counted = [state for state in counted if state.get("name") in sidecars] + states
        container_text, running = _container_statuses(states)
        text = container_text or text
        ready += running
        if text == "Completed" and running:
            text = "Running" if (conditions.get("Ready") or {}).get("status") == "True" else "NotReady"
    else:
        text = started
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            text = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            text = "Terminating"
    restarts = sum(state.get("restartCount") or 0 for state in counted)
    total = len(spec.get("containers") or []) + len(sidecars)
    return PodSummary(ready, total, text, restarts, _last_restart(counted))


def _init_status(spec: Json, status: Json, sidecars: set[str]) -> tuple[str, int, bool]:
    """The state of init containers: status text, number of ready sidecars, whether the pod is still initializing."""
    ready = 0
    for index, state in enumerate(status.get("initContainerStatuses") or []):
        now = state.get("state") or {}
        ended, waiting = now.get("terminated"), (now.get("waiting") or {}).get("reason") or ""
        if ended and not ended.get("exitCode"):
            continue
        if state.get("name") in sidecars and state.get("started"):
            ready += bool(state.get("ready"))
            continue
        if ended:
            return "Init:" + _terminated_text(ended), ready, True
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}", ready, True
        return f"Init:{index}/{len(spec.get('initContainers') or [])}", ready, True
    return "", ready, False


def _container_statuses(states: list[Json]) -> tuple[str, int]:
    """The status text from the containers, and the number of ready ones. The first container has precedence."""
    text, running = "", 0
    for state in reversed(states):
        now = state.get("state") or {}
        waiting, ended = (now.get("waiting") or {}).get("reason"), now.get("terminated")
        if waiting:
            text = waiting
        elif ended:
            text = _terminated_text(ended)
        elif state.get("ready") and now.get("running") is not None:
            running += 1
    return text, running


def _terminated_text(ended: Json) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _last_restart(states: list[Json]) -> datetime | None:
    ends = [((state.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for state in states]
    return max(filter(None, (parse_time(end) for end in ends if end)), default=None)


def _ready(obj: Json, _now: datetime) -> str:
    summary = summarise(obj)
    return f"{summary.ready}/{summary.total}"


def _restarts(obj: Json, now: datetime) -> str:
    summary = summarise(obj)
    if summary.restarts and summary.restarted is not None:
        return f"{summary.restarts} ({human_duration((now - summary.restarted).total_seconds())} ago)"
    return str(summary.restarts)


def _readiness_gates(obj: Json, _now: datetime) -> str:
    gates = (obj.get("spec") or {}).get("readinessGates") or []
    if not gates:
        return "<none>"
    conditions = (obj.get("status") or {}).get("conditions") or []
    true_conditions = {c.get("type") for c in conditions if c.get("status") == "True"}
    return f"{sum(gate.get('conditionType') in true_conditions for gate in gates)}/{len(gates)}"


POD_CELL_FUNCTIONS: dict[str, Callable[[Json, datetime], Any]] = {
    "pod_ready": _ready,
    "pod_status": lambda obj, _: summarise(obj).status,
    "pod_restarts": _restarts,
    "readiness_gates": _readiness_gates,
}
