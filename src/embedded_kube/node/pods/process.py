"""A pod whose containers are processes of this machine: started in order, watched over, restarted, stopped.

What only a container runtime could do is left out: images are not pulled, securityContext is not applied (a container
is the user who started the cluster), cpu and memory are counted but not limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from embedded_kube.node.pods.containers import INIT, MAIN, SIDECAR, Container, PodState, read_containers, recall
from embedded_kube.node.pods.environment import ConfigError
from embedded_kube.node.pods.logs import log_path, tail_text
from embedded_kube.node.pods.probes import ProbeError, Prober, Target, probe_once
from embedded_kube.node.pods.sandbox import Sandbox, Shared
from embedded_kube.node.processes.launch import Exit, Process, StartError
from embedded_kube.storage.store import Json

_RETRY = 1.0
_FORGIVEN = 600.0
"""After running this long a container's next failure counts as its first."""

_log = logging.getLogger(__name__)


class ProcessPod:
    """One pod. `run` returns when it has ended and everything it started is gone."""

    def __init__(self, shared: Shared, pod: Json, host: str, allocatable: Mapping[str, str]) -> None:
        self._shared = shared
        self.pod = pod
        self.sandbox = Sandbox(shared, pod, host, allocatable)
        self.state = PodState(read_containers(pod), self.sandbox.address, host)
        old = pod.get("status") or {}
        self._recalled = recall(self.state.containers, old)
        if old.get("startTime"):
            self.state.started = old["startTime"]
        self.processes: dict[str, Process] = {}
        self._attempts: dict[str, int] = {item.name: item.restarts for item in self.state.containers}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._progress = asyncio.Event()
        self._deadline = float("inf")
        self._grace = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        self._why_killed: dict[str, str] = {}
        self._failed_init = False

    # -- what the agent tells

    def update(self, pod: Json) -> None:
        """A newer version of the object; a deletion begins the end, a shorter one hurries it."""
        self.pod = self.sandbox.pod = pod
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            self.stop(float(meta.get("deletionGracePeriodSeconds") or 0))
        elif self.state.sandbox:
            self._tell_names()

    def stop(self, grace: float) -> None:
        """Ends the pod within so many seconds."""
        deadline = asyncio.get_running_loop().time() + grace
        if deadline < self._deadline:
            self._deadline, self._grace = deadline, grace
            self._hurry.set()
        self._stop.set()

    # -- the pod's life

    async def run(self) -> None:
        """From the first container to the last status."""
        living = asyncio.ensure_future(self._live())
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            done, _ = await asyncio.wait(
                {living, stopping}, timeout=self._time_left(), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self.state.reason = "DeadlineExceeded"
                self.state.message = "Pod was active on the node longer than the specified deadline"
            elif living in done and (failure := living.exception()) is not None:
                self._note_failure(failure)
        finally:
            living.cancel()
            stopping.cancel()
            await asyncio.gather(living, stopping, return_exceptions=True)
        try:
            await self._stop_containers()
        except Exception as error:  # whatever it was: an object that nobody lets go would stay for ever
            self._note_failure(error)
        self.sandbox.clean()
        self._shared.names.remove_pod(self.sandbox.uid)
        await self._finish()

    def _note_failure(self, error: BaseException) -> None:
        _log.error("pod %s failed", self.pod["metadata"]["name"], exc_info=error)
        self.state.reason, self.state.message = "InternalError", str(error)

    def _time_left(self) -> float | None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return None
        begun = datetime.fromisoformat(self.state.started).timestamp()
        return max(0.0, begun + float(seconds) - datetime.now(UTC).timestamp())

    async def _live(self) -> None:
        if self._recalled and not any(self._restarts(item) for item in self._of(MAIN)):
            return  # ended while nobody was looking, and not to be started again
        await self._prepare()
        sidecars: list[asyncio.Task[None]] = []
        try:
            for container in self._of(INIT, SIDECAR):
                if container.role == SIDECAR:
                    sidecars.append(asyncio.create_task(self._supervise(container)))
                    await self._until_started(container)
                elif not container.succeeded or self._recalled:
                    await self._supervise(container)
                    if not container.succeeded:
                        self._failed_init = True
                        return
            for container in self._of(MAIN):
                if "waiting" in container.state:
                    container.wait("ContainerCreating")
            mains = [item for item in self._of(MAIN) if item.exit_code is None or self._restarts(item)]
            async with asyncio.TaskGroup() as group:
                for container in mains:
                    group.create_task(self._supervise(container))
        finally:
            for task in sidecars:
                task.cancel()
            await asyncio.gather(*sidecars, return_exceptions=True)

    async def _until_started(self, container: Container) -> None:
        while not container.started:
            self._progress.clear()
            await self._progress.wait()

    async def _prepare(self) -> None:
        self._tell_names()
        while True:
            try:
                await self.sandbox.prepare()
                break
            except (StartError, OSError) as error:
                self._event("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}", warning=True)
                await asyncio.sleep(_RETRY)
        self.state.sandbox = True
        self.report()

    def _of(self, *roles: str) -> list[Container]:
        return [item for item in self.state.containers if item.role in roles]

    # -- one container

    async def _supervise(self, container: Container) -> None:
        """Runs a container until it has ended for good."""
        delay = 0.0
        if container.exit_code is not None:
            container.restarts += 1  # it ran in an earlier life of the node
            container.wait("ContainerCreating")
        while True:
            begun = asyncio.get_running_loop().time()
            process = await self._start(container)
            if process is not None:
                await self._watch(container, process)
            self.report()
            if not self._restarts(container):
                return
            if asyncio.get_running_loop().time() - begun > _FORGIVEN:
                delay = 0.0
            if delay:
                await self._back_off(container, delay)
            # The first restart is immediate, as a kubelet's is; the waits begin with the second.
            settings = self._shared.settings
            delay = min(delay * 2, settings.back_off_limit) if delay else settings.back_off
            container.restarts += 1
            container.wait("ContainerCreating")

    def _restarts(self, container: Container) -> bool:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if self._stop.is_set():
            return False
        if container.role == SIDECAR:
            return True
        if container.role == INIT:
            return not container.succeeded and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and not container.succeeded)

    async def _back_off(self, container: Container, delay: float) -> None:
        meta = self.pod["metadata"]
        where = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
        text = f"back-off {delay:g}s restarting failed container={container.name} pod={where}"
        container.wait("CrashLoopBackOff", text)
        self._event("BackOff", f"Back-off restarting failed container {container.name} in pod {where}", warning=True)
        self.report()
        await asyncio.sleep(delay)

    async def _start(self, container: Container) -> Process | None:
        """Starts a container, waiting for what it needs; None when it could not be run, which is then its end."""
        self._attempts[container.name] = container.restarts
        while True:
            try:
                process = await self._launch(container)
            except (ConfigError, OSError) as error:
                container.wait("CreateContainerConfigError", str(error))
                self._event("FailedToStart", f"container {container.name}: {error}", warning=True)
                self.report()
                await asyncio.sleep(_RETRY)
            except StartError as error:
                container.identity = self._identify(container)
                container.end(128, "StartError", str(error))
                self._event("FailedToStart", f"Error: container {container.name}: {error}", warning=True)
                return None
            else:
                self._event("Started", f"Started container {container.name}")
                return process

    async def _launch(self, container: Container) -> Process:
        """Starts a process, also if the pod is stopped meanwhile: what has begun must be known to be ended."""
        starting = asyncio.ensure_future(self.sandbox.start(container.spec, self._attempts[container.name]))
        try:
            return self._note_start(container, await asyncio.shield(starting))
        except asyncio.CancelledError:
            with contextlib.suppress(ConfigError, StartError, OSError):
                self._note_start(container, await starting)
            raise

    def _note_start(self, container: Container, process: Process) -> Process:
        self.processes[container.name] = process
        container.run(self._identify(container))
        return process

    def _identify(self, container: Container) -> str:
        return f"process://{self.sandbox.uid}/{container.name}/{self._attempts[container.name]}"

    async def _watch(self, container: Container, process: Process) -> None:
        """Everything between a container's start and its end."""
        spec = container.spec
        container.started = "startupProbe" not in spec
        container.ready = container.started and "readinessProbe" not in spec
        self.report()
        probing = asyncio.create_task(self._probe(container, process))
        try:
            ended = await asyncio.shield(process.exited)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        self._end(container, ended)

    def _end(self, container: Container, ended: Exit) -> None:
        self.processes.pop(container.name, None)
        message = self._why_killed.pop(container.name, "") or self.sandbox.termination_message(container.spec)
        if not message and ended.code and container.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = tail_text(log_path(self.sandbox.folder, container.name, self._attempts[container.name]))
        container.end(ended.code, message=message, signal=ended.signal)

    async def _probe(self, container: Container, process: Process) -> None:
        """The hook after the start, then the probes: startup first, the others once that has passed."""
        spec = container.spec
        hook = (spec.get("lifecycle") or {}).get("postStart")
        if hook is not None and not await self._run_hook(container, hook, "PostStartHook"):
            await self._kill(container, process, "FailedPostStartHook")
            return
        if "startupProbe" in spec:
            passed = asyncio.Event()
            startup = asyncio.create_task(self._keep_probing(container, process, "startupProbe", passed.set))
            try:
                await passed.wait()
            finally:
                startup.cancel()
            container.started = True
            container.ready = "readinessProbe" not in spec
            self.report()
        async with asyncio.TaskGroup() as group:
            for kind in ("livenessProbe", "readinessProbe"):
                if kind in spec:
                    group.create_task(self._keep_probing(container, process, kind))

    async def _keep_probing(
        self, container: Container, process: Process, kind: str, passed: Callable[[], None] | None = None
    ) -> None:
        title = kind.removesuffix("Probe").capitalize()
        if "grpc" in container.spec[kind]:
            self._event("ProbeIgnored", f"{title} probe: grpc is not spoken here; it counts as passed", warning=True)
            container.ready = True
            if passed is not None:
                passed()
            return

        async def changed(good: bool) -> None:
            if passed is not None and good:
                passed()
            elif kind == "readinessProbe" and container.ready != good:
                container.ready = good
                self.report()
            elif kind != "readinessProbe" and not good:
                text = f"Container {container.name} failed {title.lower()} probe, will be restarted"
                self._event("Killing", text)
                # Outside of this task: the end of the container cancels it.
                stopping = asyncio.ensure_future(self._kill(container, process, ""))
                stopping.add_done_callback(lambda _: None)

        def failed(why: str) -> None:
            self._event("Unhealthy", f"{title} probe failed: {why}", warning=True)

        await Prober(container.spec[kind], self._target(container), changed, failed).run()

    def _target(self, container: Container) -> Target:
        ports = {item["name"]: item["containerPort"] for item in container.spec.get("ports") or () if "name" in item}
        execute = partial(self.sandbox.execute, container.name, self._attempts[container.name])
        return Target(self.sandbox.address, ports, execute, self.sandbox.connect)

    async def _run_hook(self, container: Container, hook: Json, name: str) -> bool:
        """Runs a lifecycle hook; False when it failed."""
        try:
            if "sleep" in hook:
                await asyncio.sleep(hook["sleep"]["seconds"])
            elif "exec" in hook or "httpGet" in hook or "tcpSocket" in hook:
                await probe_once({**hook, "timeoutSeconds": 3600}, self._target(container))
        except ProbeError as error:
            self._event(f"Failed{name}", f"{name} of container {container.name} failed: {error}", warning=True)
            return False
        return True

    async def _kill(self, container: Container, process: Process, why: str) -> None:
        if why:
            self._why_killed[container.name] = why
        grace = (container.spec.get("livenessProbe") or {}).get("terminationGracePeriodSeconds", self._grace)
        await process.stop(float(grace))

    # -- the end

    async def _stop_containers(self) -> None:
        """Main containers first, sidecars last and in reverse; together they have the grace period."""
        if self._deadline == float("inf"):
            self._deadline = asyncio.get_running_loop().time() + self._grace
        await asyncio.gather(*(self._stop_container(item) for item in self._of(MAIN, INIT)))
        for container in reversed(self._of(SIDECAR)):
            await self._stop_container(container)

    async def _stop_container(self, container: Container) -> None:
        process = self.processes.get(container.name)
        if process is None:
            return
        self._event("Killing", f"Stopping container {container.name}")
        loop = asyncio.get_running_loop()
        hook = (container.spec.get("lifecycle") or {}).get("preStop")
        if hook is not None and not process.exited.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._run_hook(container, hook, "PreStopHook"), self._deadline - loop.time())
        if self._deadline > loop.time():
            process.signal(signal.SIGTERM)
        while not process.exited.done():
            left = self._deadline - loop.time()
            if left <= 0:
                process.signal(signal.SIGKILL)
                await asyncio.shield(process.exited)
                break
            self._hurry.clear()
            waited: set[asyncio.Future[Any]] = {process.exited, asyncio.ensure_future(self._hurry.wait())}
            _, pending = await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for other in pending - {process.exited}:
                other.cancel()
        self._end(container, process.exited.result())

    async def _finish(self) -> None:
        """Writes the last status, and lets a deleted pod's object go only after that."""
        mains = self._of(MAIN)
        for container in mains:
            if container.exit_code is None and not container.identity and not self._failed_init and self._stop.is_set():
                container.wait("ContainerCreating")
        good = all(item.succeeded for item in mains) and not self.state.reason and not self._failed_init
        self.state.phase = "Succeeded" if good else "Failed"
        # Whether it is deleted is for the answer to say: one that ended before it was deleted goes without us.
        doomed = await self._shared.reports.write(self.pod["metadata"], self.state.status())
        if doomed or self.pod["metadata"].get("deletionTimestamp"):
            await self._shared.reports.remove(self.pod["metadata"])

    # -- reports

    def report(self) -> None:
        """Tells how things are."""
        self._progress.set()
        if any(item.identity for item in self._of(MAIN)):
            self.state.phase = "Running"
        self._tell_names()
        self._shared.reports.put(self.pod["metadata"], self.state.status(self._open_gates()))

    def _tell_names(self) -> None:
        if not self.pod["spec"].get("hostNetwork"):
            ready = all(item.ready for item in self._of(MAIN, SIDECAR)) and not self._stop.is_set()
            self._shared.names.put_pod(self.pod, self.sandbox.address, ready)

    def _open_gates(self) -> list[str]:
        gates = [item["conditionType"] for item in self.pod["spec"].get("readinessGates") or ()]
        conditions = (self.pod.get("status") or {}).get("conditions") or ()
        met = {item["type"] for item in conditions if item.get("status") == "True"}
        return [gate for gate in gates if gate not in met]

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        self._shared.reports.event(self.pod, reason, message, warning=warning)
