"""What `kubectl get pods` shows of a pod: its state in one word, as people know it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from embedded_kube.printing.durations import human, parse_time
from embedded_kube.storage.store import Json


class PodSummary(NamedTuple):
    """What the first columns say."""

    ready: int
    total: int
    status: str
    restarts: int
    restarted: datetime | None


def summarise(found: Json) -> PodSummary:
    """A pod in a few words."""
    spec, status = found.get("spec") or {}, found.get("status") or {}
    sidecars = {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
    word = status.get("reason") or status.get("phase") or ""
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    if (conditions.get("PodScheduled") or {}).get("reason") == "SchedulingGated":
        word = "SchedulingGated"
    started, ready, initialising = _initialise(spec, status, sidecars)
    states = status.get("containerStatuses") or []
    counted = status.get("initContainerStatuses") or []
    initialised = (conditions.get("Initialized") or {}).get("status") == "True"
    if not initialising or initialised:
        counted = [state for state in counted if state.get("name") in sidecars] + states
        found_word, running = _run(states)
        word = found_word or word
        ready += running
        if word == "Completed" and running:
            word = "Running" if (conditions.get("Ready") or {}).get("status") == "True" else "NotReady"
    else:
        word = started
    if found["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            word = "Unknown"
        elif status.get("phase") not in ("Succeeded", "Failed"):
            word = "Terminating"
    restarts = sum(state.get("restartCount") or 0 for state in counted)
    total = len(spec.get("containers") or []) + len(sidecars)
    return PodSummary(ready, total, word, restarts, _last_restart(counted))


def _initialise(spec: Json, status: Json, sidecars: set[str]) -> tuple[str, int, bool]:
    """How far init containers are: the word for it, how many sidecars are ready, and whether they hold the pod up."""
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
            return "Init:" + _ended(ended), ready, True
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}", ready, True
        return f"Init:{index}/{len(spec.get('initContainers') or [])}", ready, True
    return "", ready, False


def _run(states: list[Json]) -> tuple[str, int]:
    """What the containers say of the pod, and how many are ready. The first container has the last word."""
    word, running = "", 0
    for state in reversed(states):
        now = state.get("state") or {}
        waiting, ended = (now.get("waiting") or {}).get("reason"), now.get("terminated")
        if waiting:
            word = waiting
        elif ended:
            word = _ended(ended)
        elif state.get("ready") and now.get("running") is not None:
            running += 1
    return word, running


def _ended(ended: Json) -> str:
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _last_restart(states: list[Json]) -> datetime | None:
    ends = [((state.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for state in states]
    return max(filter(None, (parse_time(end) for end in ends if end)), default=None)


def _ready(found: Json, _now: datetime) -> str:
    summary = summarise(found)
    return f"{summary.ready}/{summary.total}"


def _restarts(found: Json, now: datetime) -> str:
    summary = summarise(found)
    if summary.restarts and summary.restarted is not None:
        return f"{summary.restarts} ({human((now - summary.restarted).total_seconds())} ago)"
    return str(summary.restarts)


def _readiness_gates(found: Json, _now: datetime) -> str:
    gates = (found.get("spec") or {}).get("readinessGates") or []
    if not gates:
        return "<none>"
    conditions = (found.get("status") or {}).get("conditions") or []
    held = {c.get("type") for c in conditions if c.get("status") == "True"}
    return f"{sum(gate.get('conditionType') in held for gate in gates)}/{len(gates)}"


POD_FUNCTIONS: dict[str, Callable[[Json, datetime], Any]] = {
    "pod_ready": _ready,
    "pod_status": lambda found, _: summarise(found).status,
    "pod_restarts": _restarts,
    "readiness_gates": _readiness_gates,
}
