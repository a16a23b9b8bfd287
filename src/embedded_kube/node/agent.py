"""Node agent, the kubelet of all nodes: one watch of pods, and a pod worker for every pod that is bound to a node."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from embedded_kube.client import SYNCED
from embedded_kube.node.fleet import RUNTIME, FleetNode, node_resources, unhealthy_devices
from embedded_kube.node.node_admission import NodeAdmission, PodRejection, read_allocation
from embedded_kube.node.pods.containers import LocalPodState, read_containers
from embedded_kube.node.pods.process_pod import ProcessPod
from embedded_kube.node.pods.sandbox import AgentContext
from embedded_kube.node.simulated import SimulatedPod, SimulationContext
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.requests import read_amounts

_TERMINAL_PHASES = ("Succeeded", "Failed")
_ORPHAN_GRACE = 1.0
"""Seconds to stop a pod whose object is already gone."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class NodeState:
    """A node as the agent knows it."""

    spec: FleetNode
    admission: NodeAdmission
    annotations: dict[str, str] = field(default_factory=dict)
    waiting: list[Json] = field(default_factory=list)
    """Pods that do not fit until an orphaned pod has stopped; they are admitted again then."""

    orphaned: set[str] = field(default_factory=set)
    """Pods whose objects are gone and whose processes are still being stopped."""


def make_node(spec: FleetNode) -> NodeState:
    """A node without pods."""
    node = NodeState(spec, NodeAdmission({}))
    apply_annotations(node, dict(spec.group.annotations))
    return node


def apply_annotations(node: NodeState, annotations: dict[str, str]) -> None:
    """Updates the node's allocatable resources and unhealthy devices from its annotations."""
    node.annotations = annotations
    node.admission.allocatable = read_amounts(node_resources(node.spec, annotations)[1], "allocatable")
    node.admission.gpus = node.spec.group.gpus
    node.admission.unhealthy = unhealthy_devices(annotations)


class NodeAgent:
    """Runs the pods of all nodes."""

    def __init__(self, nodes: dict[str, NodeState], context: AgentContext, simulation: SimulationContext) -> None:
        self.nodes = nodes
        self._context = context
        self._simulation = simulation
        self.process_pods: dict[str, ProcessPod] = {}
        self.simulated_pods: dict[str, SimulatedPod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._known: dict[str, str] = {}
        """The node of every known pod, by uid."""
        self._images_reported = False

    # -- watches

    async def watch_pods(self) -> None:
        """Follows all pods. After a restart of the cluster, pods that were running are admitted first."""
        initial: list[Json] | None = []
        async for event, pod in self._context.client.watch("pods"):
            if event == SYNCED:
                uids = {item["metadata"]["uid"] for item in initial or ()}
                for uid in self._known.keys() - uids:  # deleted while the watch was broken
                    self._on_deleted(self.nodes[self._known[uid]], uid)
                self._remove_stale_folders(uids | self.process_pods.keys())
                for item in sorted(initial or (), key=_admission_order):
                    self._sync("ADDED", item)
                initial = None
            elif initial is not None:
                initial.append(pod)
            else:
                self._sync(event, pod)

    async def watch_services(self) -> None:
        """Follows Services, which give pods host names."""
        async for event, service in self._context.client.watch("services"):
            if event == "DELETED":
                self._context.host_names.remove_service(service)
            elif event != SYNCED:
                self._context.host_names.put_service(service)

    def _remove_stale_folders(self, uids: set[str]) -> None:
        """Deletes the folders of pods that no longer exist."""
        folder = self._context.settings.folder
        for name in os.listdir(folder):
            if name not in uids and name != "hosts":
                shutil.rmtree(folder / name, ignore_errors=True)

    def _sync(self, event: str, pod: Json) -> None:
        node = self.nodes.get(pod["spec"].get("nodeName") or "")
        if node is None:
            return
        uid = pod["metadata"]["uid"]
        try:
            if event == "DELETED":
                self._on_deleted(node, uid)
            elif uid in self._known:
                self._on_changed(uid, pod)
            else:
                self._on_added(node, pod)
        except Exception:  # one malformed pod must not stop the others
            _log.exception("pod sync failed: %s/%s", pod["metadata"].get("namespace"), pod["metadata"]["name"])

    # -- pods

    def _on_added(self, node: NodeState, pod: Json) -> None:
        meta = pod["metadata"]
        uid = meta["uid"]
        status = pod.get("status") or {}
        node.waiting = [other for other in node.waiting if other["metadata"]["uid"] != uid]
        if status.get("phase") in _TERMINAL_PHASES:
            self._known[uid] = node.spec.name
            if _is_deleted(pod):
                self._spawn(uid, self._context.status_manager.remove_pod(meta))
            return
        if _is_deleted(pod) and not status.get("startTime"):
            self._known[uid] = node.spec.name
            self._spawn(uid, self._fail_unstarted(node, pod, None))
            return
        allocation = read_allocation(pod, self._context.settings.read_device_claim)
        rejection = node.admission.reject(allocation)
        if rejection is not None and node.orphaned:
            node.waiting.append(pod)
            return
        self._known[uid] = node.spec.name
        if rejection is not None and not status.get("startTime"):
            self._spawn(uid, self._fail_unstarted(node, pod, rejection))
            return
        node.admission.allocate(allocation)
        if self._is_simulated(node, pod):
            address = node.spec.address
            self.simulated_pods[uid] = SimulatedPod(
                pod, address, self._simulation, lambda: self._on_terminated(node, uid)
            )
        else:
            self._start_process_pod(node, pod)
        if _is_deleted(pod):
            self._on_changed(uid, pod)

    def _is_simulated(self, node: NodeState, pod: Json) -> bool:
        runtime = (pod["metadata"].get("annotations") or {}).get(RUNTIME) or node.annotations.get(RUNTIME)
        return (runtime or node.spec.group.runtime) == "simulated"

    def _start_process_pod(self, node: NodeState, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if not self._images_reported:
            self._images_reported = True
            text = "Images are not pulled: containers run as processes of this machine, with its programs."
            _log.info(text)
            self._context.status_manager.node_event(node.spec.name, "ImagesIgnored", text)
        allocatable = node_resources(node.spec, node.annotations)[1]
        worker = self.process_pods[uid] = ProcessPod(self._context, pod, node.spec.address, allocatable)
        self._spawn(uid, self._run_process_pod(node, worker))

    async def _run_process_pod(self, node: NodeState, worker: ProcessPod) -> None:
        try:
            await worker.run()
        finally:
            self._on_terminated(node, worker.sandbox.uid)

    def _on_changed(self, uid: str, pod: Json) -> None:
        process, simulated, task = self.process_pods.get(uid), self.simulated_pods.get(uid), self._tasks.get(uid)
        busy = task is not None and not task.done()
        if process is not None and busy:
            process.update(pod)
        elif simulated is not None:
            if _is_deleted(pod):
                simulated.stop(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
        elif _is_deleted(pod) and not busy and not self._is_ending(uid, pod):
            # The pod has terminated: a finalizer kept its object, or it was deleted afterwards.
            self._spawn(uid, self._context.status_manager.remove_pod(pod["metadata"]))

    def _is_ending(self, uid: str, pod: Json) -> bool:
        """Whether a simulated pod has terminated, but its last status is not written yet."""
        node = self.nodes.get(self._known[uid])
        simulated = node is not None and self._is_simulated(node, pod)
        return simulated and pod["status"].get("phase") not in _TERMINAL_PHASES

    def _on_deleted(self, node: NodeState, uid: str) -> None:
        """Stops what is left of a pod whose object was removed; usually the agent removed it after the pod ended."""
        self._known.pop(uid, None)
        node.waiting = [pod for pod in node.waiting if pod["metadata"]["uid"] != uid]
        process = self.process_pods.get(uid)
        simulated = self.simulated_pods.pop(uid, None)
        if simulated is not None:
            simulated.discard()
        task = self._tasks.get(uid)
        if process is not None and task is not None and not task.done():
            node.orphaned.add(uid)
            process.stop(_ORPHAN_GRACE)
            task.add_done_callback(lambda _: self._forget(node, uid))
        else:
            self._forget(node, uid)

    def _forget(self, node: NodeState, uid: str) -> None:
        self._on_terminated(node, uid)  # also for a pod whose worker never started because of an error
        self.process_pods.pop(uid, None)
        shutil.rmtree(self._context.folder(uid), ignore_errors=True)

    def _on_terminated(self, node: NodeState, uid: str) -> None:
        """Releases what a pod held, and retries the admission of waiting pods."""
        node.admission.release(uid)
        node.orphaned.discard(uid)
        self.simulated_pods.pop(uid, None)
        waiting, node.waiting = node.waiting, []
        for pod in waiting:
            self._sync("ADDED", pod)

    async def _fail_unstarted(self, node: NodeState, pod: Json, rejection: PodRejection | None) -> None:
        """Writes phase Failed for a pod that never ran here."""
        # A rejected pod has no container statuses, so `kubectl get` shows its reason.
        containers = read_containers(pod) if rejection is None else []
        state = LocalPodState(containers, host=node.spec.address, phase="Failed")
        manager = self._context.status_manager
        if rejection is not None:
            state.reason, state.message = rejection.reason, rejection.message
            manager.event(pod, rejection.reason, rejection.message, warning=True)
        # The API's answer says whether the pod is deleted: the agent's copy may be older than that.
        if await manager.write_status(pod["metadata"], state.status()) or _is_deleted(pod):
            await manager.remove_pod(pod["metadata"])

    # -- tasks

    def _spawn(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[uid] = task
        task.add_done_callback(self._on_done(uid))

    def _on_done(self, uid: str) -> Callable[[asyncio.Task[None]], None]:
        def on_done(task: asyncio.Task[None]) -> None:
            if self._tasks.get(uid) is task:
                del self._tasks[uid]
            if not task.cancelled() and task.exception() is not None:
                _log.error("pod worker failed", exc_info=task.exception())

        return on_done

    async def close(self) -> None:
        """Cancels all pod workers; the launcher ends their processes."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_deleted(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _admission_order(pod: Json) -> tuple[bool, str, str]:
    """Pods that have started come first, by start time; the others follow by creation time."""
    started = (pod.get("status") or {}).get("startTime") or ""
    return (not started, started, pod["metadata"].get("creationTimestamp", ""))
