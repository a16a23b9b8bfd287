"""What a pod's containers are doing, as values, and the pod status that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from embedded_kube.api import timestamp
from embedded_kube.storage.store import Json

INIT, SIDECAR, MAIN = "init", "sidecar", "main"
OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


@dataclass(slots=True)
class Container:
    """One container's state, as its status shows it."""

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
        """As in the spec."""
        return str(self.spec["name"])

    @property
    def running(self) -> bool:
        """Whether it is running now."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """How it ended, if it has."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def succeeded(self) -> bool:
        """Whether it has ended well."""
        return self.exit_code == 0

    def run(self, identity: str) -> None:
        """It has been started."""
        self.identity = identity
        self.state = {"running": {"startedAt": timestamp()}}

    def wait(self, reason: str, message: str = "") -> None:
        """It waits to be started; what it did before becomes its last state."""
        self._keep()
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def end(self, code: int, reason: str = "", message: str = "", signal: int = 0) -> None:
        """It has ended."""
        begun = self.state.get("running", {}).get("startedAt") or timestamp()
        ended: Json = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error")}
        ended |= {"startedAt": begun, "finishedAt": timestamp(), "containerID": self.identity}
        if message:
            ended["message"] = message
        if signal:
            ended["signal"] = signal
        self.state = {"terminated": ended}
        self.ready = self.started = False

    def _keep(self) -> None:
        if "terminated" in self.state:
            self.last = self.state

    def status(self) -> Json:
        """Its entry in the pod's status."""
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


def read_containers(pod: Json) -> list[Container]:
    """A pod's containers in the order in which they start, before any of them has."""
    spec = pod["spec"]
    inits = spec.get("initContainers") or []
    found = [Container(item, SIDECAR if item.get("restartPolicy") == "Always" else INIT, {}) for item in inits]
    found += [Container(item, MAIN, {}) for item in spec["containers"]]
    waiting = "PodInitializing" if inits else "ContainerCreating"
    for container in found:
        container.wait(waiting)
    return found


def recall(containers: Iterable[Container], status: Json) -> bool:
    """Takes over what an earlier life of the node wrote; True if any had been started.

    Processes did not survive that life: what was running has ended in a way nobody saw.
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
            container.restarts += 1  # it waited to be started again, which happens now
        elif "terminated" in state:
            container.state = state
        elif "running" in state:
            container.state = state
            container.end(255, "Unknown", "the node was restarted while the container was running")
    return before


_LISTS = ("initContainerStatuses", "containerStatuses")


@dataclass(slots=True)
class PodState:
    """What a node knows about one of its pods."""

    containers: list[Container]
    address: str = ""
    host: str = ""
    started: str = field(default_factory=timestamp)
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    sandbox: bool = False

    def status(self, gates: Iterable[str] = ()) -> Json:
        """The pod's status; None values are to be removed. `gates` are readiness gates that are not met."""
        inits = [item for item in self.containers if item.role != MAIN]
        mains = [item for item in self.containers if item.role == MAIN]
        ended = self.phase in ("Succeeded", "Failed")
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
        if self.address and (self.sandbox or not ended):
            found |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        return found

    def _conditions(self, inits: list[Container], mains: list[Container], gates: list[str]) -> list[Json]:
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
    """A pod's status after a node reported: conditions of others stay, unchanged ones keep their time."""
    before: dict[str, Any] = {item["type"]: item for item in old.get("conditions") or ()}
    conditions = []
    for condition in new["conditions"]:
        known = before.pop(condition["type"], None)
        same = known is not None and known.get("status") == condition["status"]
        moment = (known or {}).get("lastTransitionTime") if same else None
        conditions.append({**condition, "lastTransitionTime": moment or timestamp()})
    merged = {**old, **new, "conditions": [*conditions, *before.values()]}
    return {name: value for name, value in merged.items() if value is not None}
