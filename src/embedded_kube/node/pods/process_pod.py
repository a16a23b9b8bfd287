"""Pod worker for pods whose containers are processes of this machine: starts, supervises and terminates one pod.

It leaves out what needs a container runtime. Images are not pulled. securityContext is not applied: a container runs as
the user who started the cluster. CPU and memory are counted but not limited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from embedded_kube.node.pods.container_worker import ContainerWorker, PodTermination
from embedded_kube.node.pods.containers import (
    INIT,
    MAIN,
    SIDECAR,
    LocalContainerState,
    LocalPodState,
    read_containers,
    restore_containers,
)
from embedded_kube.node.pods.sandbox import AgentContext, Sandbox
from embedded_kube.node.processes.launcher_client import ProcessStartError
from gpu_scheduler.k8s.objects import Json

_SANDBOX_RETRY_INTERVAL = 1.0

_log = logging.getLogger(__name__)


class ProcessPod:
    """One pod. `run` returns when the pod has ended and everything it started is gone."""

    def __init__(self, context: AgentContext, pod: Json, host: str, allocatable: Mapping[str, str]) -> None:
        self._context = context
        self.pod = pod
        self.sandbox = Sandbox(context, pod, host, allocatable)
        self.state = LocalPodState(read_containers(pod), self.sandbox.address, host)
        old = pod.get("status") or {}
        self._ran_before = restore_containers(self.state.containers, old)
        if old.get("startTime"):
            self.state.started = old["startTime"]
        self._termination = PodTermination(float(pod["spec"].get("terminationGracePeriodSeconds", 30)))
        self.workers: dict[str, ContainerWorker] = {
            item.name: ContainerWorker(item, context, self.sandbox, self._termination, self.report)
            for item in self.state.containers
        }
        self._progress = asyncio.Event()
        self._init_failed = False

    # -- changes of the object

    def update(self, pod: Json) -> None:
        """Takes a newer version of the object. A deletion terminates the pod."""
        self.pod = self.sandbox.pod = pod
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            self.stop(float(meta.get("deletionGracePeriodSeconds") or 0))
        elif self.state.sandbox:
            self._update_host_names()

    def stop(self, grace: float) -> None:
        """Terminates the pod within the grace period."""
        self._termination.request(grace)

    # -- run

    async def run(self) -> None:
        """Runs the pod from its first container to its last status."""
        running = asyncio.ensure_future(self._run_containers())
        stopping = asyncio.ensure_future(self._termination.requested.wait())
        try:
            done, _ = await asyncio.wait(
                {running, stopping}, timeout=self._active_time_left(), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self.state.reason = "DeadlineExceeded"
                self.state.message = "Pod was active on the node longer than the specified deadline"
            elif running in done and (failure := running.exception()) is not None:
                self._on_internal_error(failure)
        finally:
            running.cancel()
            stopping.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)
        try:
            await self._stop_containers()
        except Exception as error:  # the object must be released in any case: only this pod worker removes it
            self._on_internal_error(error)
        self.sandbox.release()
        self._context.host_names.remove_pod(self.sandbox.uid)
        await self._finish()

    def _on_internal_error(self, error: BaseException) -> None:
        _log.error("pod %s failed", self.pod["metadata"]["name"], exc_info=error)
        self.state.reason, self.state.message = "InternalError", str(error)

    def _active_time_left(self) -> float | None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return None
        begun = datetime.fromisoformat(self.state.started).timestamp()
        return max(0.0, begun + float(seconds) - datetime.now(UTC).timestamp())

    async def _run_containers(self) -> None:
        if self._ran_before and not any(worker.restarts() for worker in self._workers(MAIN)):
            return  # the containers ended while the node agent was down, and are not restarted
        await self._create_sandbox()
        sidecars: list[asyncio.Task[None]] = []
        try:
            for worker in self._workers(INIT, SIDECAR):
                if worker.container.role == SIDECAR:
                    sidecars.append(asyncio.create_task(worker.supervise()))
                    await self._until_started(worker.container)
                elif not worker.container.succeeded or self._ran_before:
                    await worker.supervise()
                    if not worker.container.succeeded:
                        self._init_failed = True
                        return
            for container in self._containers(MAIN):
                if "waiting" in container.state:
                    container.wait("ContainerCreating")
            mains = [item for item in self._workers(MAIN) if item.container.exit_code is None or item.restarts()]
            async with asyncio.TaskGroup() as group:
                for worker in mains:
                    group.create_task(worker.supervise())
        finally:
            for task in sidecars:
                task.cancel()
            await asyncio.gather(*sidecars, return_exceptions=True)

    async def _until_started(self, container: LocalContainerState) -> None:
        while not container.started:
            self._progress.clear()
            await self._progress.wait()

    async def _create_sandbox(self) -> None:
        self._update_host_names()
        while True:
            try:
                await self.sandbox.prepare()
                break
            except (ProcessStartError, OSError) as error:
                text = f"Failed to create pod sandbox: {error}"
                self._context.status_manager.event(self.pod, "FailedCreatePodSandBox", text, warning=True)
                await asyncio.sleep(_SANDBOX_RETRY_INTERVAL)
        self.state.sandbox = True
        self.report()

    def _containers(self, *roles: str) -> list[LocalContainerState]:
        return [item for item in self.state.containers if item.role in roles]

    def _workers(self, *roles: str) -> list[ContainerWorker]:
        return [self.workers[item.name] for item in self._containers(*roles)]

    # -- termination

    async def _stop_containers(self) -> None:
        """Stops the main containers, then the sidecars in reverse order, all within one grace period."""
        self._termination.begin()
        await asyncio.gather(*(worker.stop() for worker in self._workers(MAIN, INIT)))
        for worker in reversed(self._workers(SIDECAR)):
            await worker.stop()

    async def _finish(self) -> None:
        """Writes the last status. Only then removes the object of a deleted pod."""
        mains = self._containers(MAIN)
        for container in mains:
            never_ran = container.exit_code is None and not container.identity
            if never_ran and not self._init_failed and self._termination.requested.is_set():
                container.wait("ContainerCreating")
        good = all(item.succeeded for item in mains) and not self.state.reason and not self._init_failed
        self.state.phase = "Succeeded" if good else "Failed"
        # The API's answer says whether the pod is deleted: the agent's copy may be older than that.
        deleted = await self._context.status_manager.write_status(self.pod["metadata"], self.state.status())
        if deleted or self.pod["metadata"].get("deletionTimestamp"):
            await self._context.status_manager.remove_pod(self.pod["metadata"])

    # -- status

    def report(self) -> None:
        """Queues the pod's current status for writing."""
        self._progress.set()
        if any(item.identity for item in self._containers(MAIN)):
            self.state.phase = "Running"
        self._update_host_names()
        self._context.status_manager.set_status(self.pod["metadata"], self.state.status(self._unmet_gates()))

    def _update_host_names(self) -> None:
        if not self.pod["spec"].get("hostNetwork"):
            ready = all(item.ready for item in self._containers(MAIN, SIDECAR))
            ready = ready and not self._termination.requested.is_set()
            self._context.host_names.put_pod(self.pod, self.sandbox.address, ready)

    def _unmet_gates(self) -> list[str]:
        gates = [item["conditionType"] for item in self.pod["spec"].get("readinessGates") or ()]
        conditions = (self.pod.get("status") or {}).get("conditions") or ()
        met = {item["type"] for item in conditions if item.get("status") == "True"}
        return [gate for gate in gates if gate not in met]
