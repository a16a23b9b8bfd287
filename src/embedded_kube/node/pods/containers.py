"""State of a pod's containers, and the pod status computed from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from embedded_kube.registry.timestamps import timestamp
from gpu_scheduler.k8s.objects import Json

INIT, SIDECAR, MAIN = "init", "sidecar", "main"


@dataclass(slots=True)
class LocalContainerState:
    """The state of one container, as in its status."""

    spec: Json
    role: str
    state: Json
    last: Json = field(default_factory=dict)
    restarts: int = 0
    ready: bool = False
    started: bool = False
    identity: str = ""

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    @property
    def running(self) -> bool:
        """Whether the container is running."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """The exit code, if the container has terminated."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def succeeded(self) -> bool:
        """Whether the container terminated with exit code 0."""
        return self.exit_code == 0

    def run(self, identity: str) -> None:
        """Sets the state to running."""
        self.identity = identity
        self.state = {"running": {"startedAt": timestamp()}}

    def wait(self, reason: str, message: str = "") -> None:
        """Sets the state to waiting; a terminated state becomes the last state."""
        if "terminated" in self.state:
            self.last = self.state
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def end(self, code: int, reason: str = "", message: str = "", signal: int = 0) -> None:
        """Sets the state to terminated."""
        started = self.state.get("running", {}).get("startedAt") or timestamp()
        ended: Json = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error")}
        ended |= {"startedAt": started, "finishedAt": timestamp(), "containerID": self.identity}
        if message:
            ended["message"] = message
        if signal:
            ended["signal"] = signal
        self.state = {"terminated": ended}
        self.ready = self.started = False

    def status(self) -> Json:
        """Returns the container's entry in the pod status."""
        found: Json = {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "state": self.state,
            "lastState": self.last,
            "ready": self.ready,
            "restartCount": self.restarts,
            "started": self.started,
        }
        if self.identity:
            found["containerID"] = self.identity
        return found


def read_containers(pod: Json) -> list[LocalContainerState]:
    """Returns a pod's containers in start order, all waiting."""
    spec = pod["spec"]
    inits = spec.get("initContainers") or []
    found = [
        LocalContainerState(item, SIDECAR if item.get("restartPolicy") == "Always" else INIT, {}) for item in inits
    ]
    found += [LocalContainerState(item, MAIN, {}) for item in spec["containers"]]
    waiting = "PodInitializing" if inits else "ContainerCreating"
    for container in found:
        container.wait(waiting)
    return found


def restore_containers(containers: Iterable[LocalContainerState], status: Json) -> bool:
    """Restores the containers' states from a status written before the node agent restarted.

    Returns whether any container had been started. Processes do not survive a restart: a container that was running
    counts as terminated with exit code 255.
    """
    written = {item["name"]: item for key in _LISTS for item in status.get(key) or ()}
    before = False
    for container in containers:
        old = written.get(container.name)
        if old is None:
            continue
        container.restarts = old.get("restartCount", 0)
        container.identity = old.get("containerID", "")
        container.last = old.get("lastState") or {}
        state = old.get("state") or {}
        before = before or "waiting" not in state or bool(container.last)
        if "waiting" in state and "terminated" in container.last:
            container.restarts += 1  # it was in back-off; the restart happens now
        elif "terminated" in state:
            container.state = state
        elif "running" in state:
            container.state = state
            container.end(255, "Unknown", "the node was restarted while the container was running")
    return before


_LISTS = ("initContainerStatuses", "containerStatuses")


@dataclass(slots=True)
class LocalPodState:
    """The state of one pod on its node."""

    containers: list[LocalContainerState]
    address: str = ""
    host: str = ""
    started: str = field(default_factory=timestamp)
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    sandbox: bool = False

    def status(self, gates: Iterable[str] = ()) -> Json:
        """Returns the pod's status; a None value removes the field. `gates` are the unmet readiness gates."""
        inits = [item for item in self.containers if item.role != MAIN]
        mains = [item for item in self.containers if item.role == MAIN]
        terminated = self.phase in ("Succeeded", "Failed")
        found: Json = {
            "phase": self.phase,
            "startTime": self.started,
            "reason": self.reason or None,
            "message": self.message or None,
            "conditions": self._conditions(inits, mains, list(gates)),
            "containerStatuses": [item.status() for item in mains],
            "initContainerStatuses": [item.status() for item in inits] or None,
            "hostIP": self.host,
            "hostIPs": [{"ip": self.host}],
        }
        if self.address and (self.sandbox or not terminated):
            found |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        return found

    def _conditions(
        self, inits: list[LocalContainerState], mains: list[LocalContainerState], gates: list[str]
    ) -> list[Json]:
        done = self.phase == "Succeeded"
        initialized = all(item.succeeded or (item.role == SIDECAR and item.started) for item in inits)
        initialized = initialized or any(item.identity for item in mains) or done
        unready = [item.name for item in self.containers if item.role != INIT and not item.ready]
        not_ready: tuple[str, str] | None = None
        if self.phase in ("Succeeded", "Failed"):
            not_ready = ("PodCompleted" if done else "PodFailed", "")
        elif unready:
            not_ready = ("ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
        gated = not_ready or (("ReadinessGatesNotReady", f"conditions not met: {', '.join(gates)}") if gates else None)
        incomplete = [item.name for item in inits if not item.succeeded]
        why = ("ContainersNotInitialized", f"containers with incomplete status: [{' '.join(incomplete)}]")
        return [
            _condition("PodReadyToStartContainers", self.sandbox and not done and self.phase != "Failed"),
            _condition("Initialized", initialized, ("PodCompleted", "") if done else None if initialized else why),
            _condition("Ready", gated is None, gated),
            _condition("ContainersReady", not_ready is None, not_ready),
            _condition("PodScheduled", True),
        ]


def _condition(kind: str, met: bool, why: tuple[str, str] | None = None) -> Json:
    found: Json = {"type": kind, "status": "True" if met else "False", "lastProbeTime": None}
    if why is not None:
        found["reason"] = why[0]
        if why[1]:
            found["message"] = why[1]
    return found


def merge_status(old: Json, new: Json) -> Json:
    """Merges a node's report into a pod's status. Other conditions stay; lastTransitionTime changes with the status."""
    before: dict[str, Any] = {item["type"]: item for item in old.get("conditions") or ()}
    conditions = []
    for condition in new["conditions"]:
        known = before.pop(condition["type"], None)
        same = known is not None and known.get("status") == condition["status"]
        since = (known or {}).get("lastTransitionTime") if same else None
        conditions.append({**condition, "lastTransitionTime": since or timestamp()})
    merged = {**old, **new, "conditions": [*conditions, *before.values()]}
    return {name: value for name, value in merged.items() if value is not None}
