"""Simulated pods: no processes; annotations on the pod script its phases. Thousands fit in one process.

| annotation on the pod (seconds, fractions allowed) | |
|---|---|
| gpu-scheduler.io/simulate-start-delay | how long it takes to start |
| gpu-scheduler.io/simulate-ready-delay | how long after that it takes to become ready |
| gpu-scheduler.io/simulate-duration | how long it runs; without it, the pod runs until it is deleted |
| gpu-scheduler.io/simulate-exit-code | the exit code of its containers after that; default 0 |
| gpu-scheduler.io/simulate-fail-after | after how long it fails instead, with exit code 1 or simulate-exit-code |
| gpu-scheduler.io/simulate-stop-delay | how long it takes to stop when deleted; at most its grace period |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from embedded_kube.node.fleet import FleetSettings
from embedded_kube.node.pods.containers import MAIN, LocalPodState, read_containers
from embedded_kube.node.processes.network import AddressPool
from embedded_kube.node.status_manager import StatusManager
from embedded_kube.node.timers import Timers
from gpu_scheduler.base import backoff
from gpu_scheduler.k8s.objects import Json

PREFIX = "gpu-scheduler.io/simulate-"
_FIELDS = ("start-delay", "ready-delay", "duration", "exit-code", "fail-after", "stop-delay")


def read_script(pod: Json) -> tuple[dict[str, float], list[str]]:
    """Returns the values of a pod's simulate-* annotations, and a message for each one that is invalid."""
    script: dict[str, float] = {}
    invalid = []
    for name, value in (pod["metadata"].get("annotations") or {}).items():
        if not name.startswith(PREFIX):
            continue
        field = name.removeprefix(PREFIX)
        if field not in _FIELDS:
            invalid.append(f"annotation {name}: unknown annotation; known are {', '.join(_FIELDS)}")
            continue
        try:
            script[field] = float(value)
            if not 0 <= script[field] < 1e9 or (field == "exit-code" and not value.isdecimal()):
                raise ValueError
        except ValueError:
            script.pop(field, None)
            expected = "a whole number from 0" if field == "exit-code" else "a number of seconds"
            invalid.append(f"annotation {name}: {value!r} is not {expected}; it is ignored")
    return script, invalid


class SimulatedPod:
    """One pod. `done` is called when the pod has terminated and its resources are free."""

    __slots__ = (
        "_addresses",
        "_done",
        "_failures",
        "_meta",
        "_policy",
        "_script",
        "_settings",
        "_status_manager",
        "_stop_delay",
        "_stopping",
        "_timer",
        "_timers",
        "state",
    )

    def __init__(self, pod: Json, host: str, context: SimulationContext, done: Callable[[], None]) -> None:
        meta = pod["metadata"]
        self._meta = {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        self._status_manager, self._timers = context.status_manager, context.timers
        self._addresses, self._settings = context.addresses, context.settings
        self._done = done
        self._policy = pod["spec"].get("restartPolicy", "Always")
        self._script, invalid = read_script(pod)
        self._stopping, self._stop_delay = False, 0.0
        self._failures = 0
        containers = read_containers(pod)
        for container in containers:
            container.spec = {"name": container.name, "image": container.spec.get("image", "")}
        address = host if pod["spec"].get("hostNetwork") else context.addresses.take()
        self.state = LocalPodState(containers, address, host)
        for line in invalid:
            context.status_manager.event(pod, "BadSimulation", line, warning=True)
        self._resume(pod)

    def _resume(self, pod: Json) -> None:
        """Starts the pod, or continues its script after a restart of the cluster."""
        old = pod.get("status") or {}
        deadline = pod["spec"].get("activeDeadlineSeconds")
        started = datetime.now(UTC).timestamp()
        if old.get("startTime"):
            self.state.started = old["startTime"]
            started = datetime.fromisoformat(old["startTime"]).timestamp()
        if deadline is not None:
            self._timers.set(max(0.0, started + deadline - datetime.now(UTC).timestamp()), self._exceed_deadline)
        if old.get("phase") == "Running":
            ran = datetime.now(UTC).timestamp() - started - self._script.get("start-delay", 0.0)
            mains = [item for item in self.state.containers if item.role == MAIN]
            for container, status in zip(mains, old.get("containerStatuses") or (), strict=False):
                container.restarts = status.get("restartCount", 0)
                container.last = status.get("lastState") or {}
            self._timer = self._timers.set(0.0, lambda: self._start(max(0.0, ran)))
        else:
            self._timer = self._timers.set(self._script.get("start-delay", 0.0), self._start)

    # -- phases

    def _start(self, ran: float = 0.0) -> None:
        for container in self.state.containers:
            container.run(f"simulated://{self._meta['uid']}/{container.name}/{container.restarts}")
            if container.role == "init":
                container.end(0)
            else:
                container.started = True
                container.ready = "ready-delay" not in self._script
        self.state.phase, self.state.sandbox = "Running", True
        if "ready-delay" in self._script:
            self._timers.set(max(0.0, self._script["ready-delay"] - ran), self._become_ready)
        self._report()
        ends = [(self._script[name], name) for name in ("duration", "fail-after") if name in self._script]
        if ends:
            seconds, name = min(ends)
            code = int(self._script.get("exit-code", 1 if name == "fail-after" else 0))
            self._timer = self._timers.set(max(0.0, seconds - ran), lambda: self._end(code))

    def _become_ready(self) -> None:
        if self.state.phase == "Running" and not self._stopping:
            for container in self.state.containers:
                container.ready = container.running
            self._report()

    def _end(self, code: int) -> None:
        for container in self.state.containers:
            if container.running:
                container.end(code if container.role == MAIN else 0)
        if not self._stopping and (self._policy == "Always" or (self._policy == "OnFailure" and code)):
            self._restart()
            return
        self.state.phase = "Failed" if code or self.state.reason else "Succeeded"
        self._finish()

    def _restart(self) -> None:
        first, longest = self._settings.back_off, self._settings.back_off_limit
        # The first restart is immediate, as a kubelet's is.
        delay = backoff.exponential(self._failures - 1, longest, first) if self._failures else 0.0
        self._failures += 1
        for container in self.state.containers:
            container.wait("CrashLoopBackOff", f"back-off {delay:g}s restarting container={container.name}")
            container.restarts += 1
        if delay:
            self._report()
        self._timer = self._timers.set(delay, self._start)

    def _exceed_deadline(self) -> None:
        if self.state.phase in ("Pending", "Running") and not self._stopping:
            self._stopping = True
            self._timers.cancel(self._timer)
            self.state.reason = "DeadlineExceeded"
            self.state.message = "Pod was active on the node longer than the specified deadline"
            self._end(137)

    def stop(self, grace: float) -> None:
        """Terminates the pod because it was deleted; a shorter grace period than before takes effect at once."""
        delay = min(grace, self._script.get("stop-delay", 0.0))
        ended = self.state.phase in ("Succeeded", "Failed")
        if not self._stopping or (delay < self._stop_delay and not ended):
            self._stopping, self._stop_delay = True, delay
            self._timers.cancel(self._timer)
            self._timer = self._timers.set(delay, lambda: self._end(143))

    def discard(self) -> None:
        """Drops the pod because its object is gone."""
        self._stopping = True
        self._timers.cancel(self._timer)
        self._addresses.free(self.state.address)

    # -- status

    def _report(self) -> None:
        self._status_manager.set_status(self._meta, self.state.status())

    def _finish(self) -> None:
        self._addresses.free(self.state.address)
        self._done()
        if self._stopping and not self.state.reason:
            _hold(asyncio.ensure_future(self._write_and_remove()))
        else:
            self._report()

    async def _write_and_remove(self) -> None:
        await self._status_manager.write_status(self._meta, self.state.status())
        await self._status_manager.remove_pod(self._meta)


class SimulationContext:
    """Dependencies of all simulated pods."""

    def __init__(
        self, status_manager: StatusManager, timers: Timers, addresses: AddressPool, settings: FleetSettings
    ) -> None:
        self.status_manager = status_manager
        self.timers = timers
        self.addresses = addresses
        self.settings = settings


_tasks: set[asyncio.Future[None]] = set()


def _hold(task: asyncio.Future[None]) -> None:
    """Keeps a reference to a task: the event loop keeps only a weak one."""
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
