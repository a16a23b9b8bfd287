"""Runs one container of a pod as a process: starts, probes and restarts it, and stops it when the pod terminates."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from embedded_kube.node.pods.containers import INIT, SIDECAR, LocalContainerState
from embedded_kube.node.pods.environment import ContainerConfigError
from embedded_kube.node.pods.logs import log_path, tail_text
from embedded_kube.node.pods.probes import ProbeError, Prober, ProbeTarget, probe_once
from embedded_kube.node.pods.sandbox import AgentContext, Sandbox
from embedded_kube.node.processes.launcher_client import LaunchedProcess, ProcessExit, ProcessStartError
from gpu_scheduler.base import backoff
from gpu_scheduler.k8s.objects import Json

_CONFIG_RETRY_INTERVAL = 1.0
_BACKOFF_RESET = 600.0
"""After running this long a container's next failure counts as its first."""


class PodTermination:
    """Whether a pod is terminating, and by when its containers must have stopped."""

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.deadline = float("inf")
        self.requested = asyncio.Event()
        self._shortened = asyncio.Event()

    def request(self, grace: float) -> None:
        """Terminates the pod within the grace period; a shorter one than before takes effect at once."""
        deadline = asyncio.get_running_loop().time() + grace
        if deadline < self.deadline:
            self.deadline, self.grace = deadline, grace
            self._shortened.set()
        self.requested.set()

    def begin(self) -> None:
        """Starts the grace period of a pod that ends by itself."""
        if self.deadline == float("inf"):
            self.deadline = asyncio.get_running_loop().time() + self.grace

    def time_left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()

    async def wait_for(self, exited: asyncio.Future[Any]) -> None:
        """Waits until the process exits, the deadline passes or the grace period is shortened."""
        self._shortened.clear()
        shortened = asyncio.ensure_future(self._shortened.wait())
        await asyncio.wait({exited, shortened}, timeout=self.time_left(), return_when=asyncio.FIRST_COMPLETED)
        shortened.cancel()


class ContainerWorker:
    """Runs one container. `report` is called after every change of its state."""

    def __init__(
        self,
        container: LocalContainerState,
        context: AgentContext,
        sandbox: Sandbox,
        termination: PodTermination,
        report: Callable[[], None],
    ) -> None:
        self.container = container
        self.attempt = container.restarts
        self.process: LaunchedProcess | None = None
        self._context = context
        self._sandbox = sandbox
        self._termination = termination
        self._report = report
        self._kill_message = ""
        self._killing: asyncio.Future[None] | None = None

    # -- start and restart

    async def supervise(self) -> None:
        """Runs the container until it has ended and its restart policy does not restart it."""
        failures = 0
        container, settings = self.container, self._context.settings
        if container.exit_code is not None:
            container.restarts += 1  # it ran before the node agent was restarted
            container.wait("ContainerCreating")
        while True:
            begun = asyncio.get_running_loop().time()
            process = await self._start()
            if process is not None:
                await self._watch(process)
            self._report()
            if not self.restarts():
                return
            if asyncio.get_running_loop().time() - begun > _BACKOFF_RESET:
                failures = 0
            if failures:  # the first restart is immediate, as a kubelet's is
                await self._back_off(backoff.exponential(failures - 1, settings.back_off_limit, settings.back_off))
            failures += 1
            container.restarts += 1
            container.wait("ContainerCreating")

    def restarts(self) -> bool:
        """Whether the container is started again after it has ended."""
        policy = self._sandbox.pod["spec"].get("restartPolicy", "Always")
        if self._termination.requested.is_set():
            return False
        if self.container.role == SIDECAR:
            return True
        if self.container.role == INIT:
            return not self.container.succeeded and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and not self.container.succeeded)

    async def _back_off(self, delay: float) -> None:
        meta, name = self._sandbox.pod["metadata"], self.container.name
        where = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
        self.container.wait("CrashLoopBackOff", f"back-off {delay:g}s restarting failed container={name} pod={where}")
        self._event("BackOff", f"Back-off restarting failed container {name} in pod {where}", warning=True)
        self._report()
        await asyncio.sleep(delay)

    async def _start(self) -> LaunchedProcess | None:
        """Starts the process once its configuration is complete; None if it cannot be executed, which ends it."""
        container = self.container
        self.attempt = container.restarts
        while True:
            try:
                process = await self._launch()
            except (ContainerConfigError, OSError) as error:
                container.wait("CreateContainerConfigError", str(error))
                self._event("FailedToStart", f"container {container.name}: {error}", warning=True)
                self._report()
                await asyncio.sleep(_CONFIG_RETRY_INTERVAL)
            except ProcessStartError as error:
                container.identity = self._container_id()
                container.end(128, "StartError", str(error))
                self._event("FailedToStart", f"Error: container {container.name}: {error}", warning=True)
                return None
            else:
                self._event("Started", f"Started container {container.name}")
                return process

    async def _launch(self) -> LaunchedProcess:
        """Starts the process. If the pod is stopped meanwhile, waits for the start: the process must be stopped too."""
        starting = asyncio.ensure_future(self._sandbox.start(self.container.spec, self.attempt))
        try:
            return self._on_started(await asyncio.shield(starting))
        except asyncio.CancelledError:
            with contextlib.suppress(ContainerConfigError, ProcessStartError, OSError):
                self._on_started(await starting)
            raise

    def _on_started(self, process: LaunchedProcess) -> LaunchedProcess:
        self.process = process
        self.container.run(self._container_id())
        return process

    def _container_id(self) -> str:
        return f"process://{self._sandbox.uid}/{self.container.name}/{self.attempt}"

    async def _watch(self, process: LaunchedProcess) -> None:
        """Runs hooks and probes until the process exits."""
        spec = self.container.spec
        self.container.started = "startupProbe" not in spec
        self.container.ready = self.container.started and "readinessProbe" not in spec
        self._report()
        probing = asyncio.create_task(self._probe(process))
        try:
            exit_ = await asyncio.shield(process.exited)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        self._on_exited(exit_)

    def _on_exited(self, exit_: ProcessExit) -> None:
        spec = self.container.spec
        self.process = None
        message = self._kill_message or self._sandbox.termination_message(spec)
        self._kill_message = ""
        if not message and exit_.code and spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = tail_text(log_path(self._sandbox.folder, self.container.name, self.attempt))
        self.container.end(exit_.code, message=message, signal=exit_.signal)

    # -- hooks and probes

    async def _probe(self, process: LaunchedProcess) -> None:
        """Runs the postStart hook, then the startup probe, then the liveness and readiness probes."""
        container, spec = self.container, self.container.spec
        hook = (spec.get("lifecycle") or {}).get("postStart")
        if hook is not None and not await self._run_hook(hook, "PostStartHook"):
            self._kill_message = "FailedPostStartHook"
            await self._kill(process)
            return
        if "startupProbe" in spec:
            passed = asyncio.Event()
            startup = asyncio.create_task(self._run_probe(process, "startupProbe", passed.set))
            try:
                await passed.wait()
            finally:
                startup.cancel()
            container.started = True
            container.ready = "readinessProbe" not in spec
            self._report()
        async with asyncio.TaskGroup() as group:
            for kind in ("livenessProbe", "readinessProbe"):
                if kind in spec:
                    group.create_task(self._run_probe(process, kind))

    async def _run_probe(self, process: LaunchedProcess, kind: str, passed: Callable[[], None] | None = None) -> None:
        container = self.container
        title = kind.removesuffix("Probe").capitalize()
        if "grpc" in container.spec[kind]:
            text = f"{title} probe: grpc probes are not supported here; the probe counts as passed"
            self._event("ProbeIgnored", text, warning=True)
            container.ready = True
            if passed is not None:
                passed()
            return

        async def on_result(good: bool) -> None:
            if passed is not None and good:
                passed()
            elif kind == "readinessProbe" and container.ready != good:
                container.ready = good
                self._report()
            elif kind != "readinessProbe" and not good:
                text = f"Container {container.name} failed {title.lower()} probe, will be restarted"
                self._event("Killing", text)
                # In a task of its own: the end of the container cancels this one.
                self._killing = asyncio.ensure_future(self._kill(process))

        def on_failure(why: str) -> None:
            self._event("Unhealthy", f"{title} probe failed: {why}", warning=True)

        await Prober(container.spec[kind], self._target(), on_result, on_failure).run()

    def _target(self) -> ProbeTarget:
        spec = self.container.spec
        ports = {item["name"]: item["containerPort"] for item in spec.get("ports") or () if "name" in item}
        execute = partial(self._sandbox.execute, self.container.name, self.attempt)
        return ProbeTarget(self._sandbox.address, ports, execute, self._sandbox.connect)

    async def _run_hook(self, hook: Json, name: str) -> bool:
        """Runs a lifecycle hook; False when it failed."""
        try:
            if "sleep" in hook:
                await asyncio.sleep(hook["sleep"]["seconds"])
            elif "exec" in hook or "httpGet" in hook or "tcpSocket" in hook:
                await probe_once({**hook, "timeoutSeconds": 3600}, self._target())
        except ProbeError as error:
            text = f"{name} of container {self.container.name} failed: {error}"
            self._event(f"Failed{name}", text, warning=True)
            return False
        return True

    # -- stop

    async def _kill(self, process: LaunchedProcess) -> None:
        probe = self.container.spec.get("livenessProbe") or {}
        await process.stop(float(probe.get("terminationGracePeriodSeconds", self._termination.grace)))

    async def stop(self) -> None:
        """Runs the preStop hook, sends SIGTERM, and at the deadline SIGKILL; returns when the process has exited."""
        process, termination = self.process, self._termination
        if process is None:
            return
        self._event("Killing", f"Stopping container {self.container.name}")
        hook = (self.container.spec.get("lifecycle") or {}).get("preStop")
        if hook is not None and not process.exited.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._run_hook(hook, "PreStopHook"), termination.time_left())
        if termination.time_left() > 0:
            process.signal(signal.SIGTERM)
        while not process.exited.done():
            if termination.time_left() <= 0:
                process.signal(signal.SIGKILL)
                await asyncio.shield(process.exited)
                break
            await termination.wait_for(process.exited)
        self._on_exited(process.exited.result())

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._context.status_manager.event(self._sandbox.pod, reason, message, warning=warning)
