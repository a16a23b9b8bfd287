"""The nodes' agent: one watch of pods for all nodes, every pod handed to the runtime of its node."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from embedded_kube.client import SYNCED
from embedded_kube.node.fleet import RUNTIME, NodeSpec, node_resources, unhealthy_devices
from embedded_kube.node.node_admission import NodeAdmission, PodRejection, read_allocation
from embedded_kube.node.pods.containers import PodState, read_containers
from embedded_kube.node.pods.process import ProcessPod
from embedded_kube.node.pods.sandbox import Shared
from embedded_kube.node.simulated import SimulatedPod, SimulatedTools
from embedded_kube.storage.store import Json
from gpu_scheduler.k8s.requests import read_amounts

_ENDED = ("Succeeded", "Failed")
_FORCED_GRACE = 1.0
"""How long a pod may take to stop whose object is gone already."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Node:
    """A node as the agent knows it."""

    spec: NodeSpec
    admission: NodeAdmission
    annotations: dict[str, str] = field(default_factory=dict)
    waiting: list[Json] = field(default_factory=list)
    """Pods that will be looked at again when one that is being killed has let go."""

    killed: set[str] = field(default_factory=set)
    """Pods whose objects are gone and whose processes are still being stopped."""


def make_node(spec: NodeSpec) -> Node:
    """A node without pods."""
    node = Node(spec, NodeAdmission({}))
    note_annotations(node, dict(spec.group.annotations))
    return node


def note_annotations(node: Node, annotations: dict[str, str]) -> None:
    """Takes over what a node's annotations say about its devices."""
    node.annotations = annotations
    node.admission.allocatable = read_amounts(node_resources(node.spec, annotations)[1], "allocatable")
    node.admission.gpus = node.spec.group.gpus
    node.admission.unhealthy = unhealthy_devices(annotations)


class Agent:
    """Runs the pods of all nodes."""

    def __init__(self, nodes: dict[str, Node], shared: Shared, tools: SimulatedTools) -> None:
        self.nodes = nodes
        self._shared = shared
        self._tools = tools
        self.processes: dict[str, ProcessPod] = {}
        self.simulated: dict[str, SimulatedPod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._known: dict[str, str] = {}
        self._said_images = False

    # -- watches

    async def watch_pods(self) -> None:
        """Follows all pods. Those that ran before a restart of the cluster get their room first."""
        first: list[Json] | None = []
        async for event, pod in self._shared.client.watch("pods"):
            if event == SYNCED:
                uids = {item["metadata"]["uid"] for item in first or ()}
                for uid in self._known.keys() - uids:  # an earlier watch broke off, and did not see them go
                    self._gone(self.nodes[self._known[uid]], uid)
                self._clean_folders(uids | self.processes.keys())
                for item in sorted(first or (), key=_seniority):
                    self._handle("ADDED", item)
                first = None
            elif first is not None:
                first.append(pod)
            else:
                self._handle(event, pod)

    async def watch_services(self) -> None:
        """Follows Services, for names."""
        async for event, service in self._shared.client.watch("services"):
            if event == "DELETED":
                self._shared.names.remove_service(service)
            elif event != SYNCED:
                self._shared.names.put_service(service)

    def _clean_folders(self, uids: set[str]) -> None:
        """Deletes what pods left behind that no longer exist."""
        folder = self._shared.settings.folder
        for name in os.listdir(folder):
            if name not in uids and name != "hosts":
                shutil.rmtree(folder / name, ignore_errors=True)

    def _handle(self, event: str, pod: Json) -> None:
        node = self.nodes.get(pod["spec"].get("nodeName") or "")
        if node is None:
            return
        uid = pod["metadata"]["uid"]
        try:
            if event == "DELETED":
                self._gone(node, uid)
            elif uid in self._known:
                self._changed(uid, pod)
            else:
                self._appeared(node, pod)
        except Exception:  # one odd pod must not stop the others
            _log.exception("pod %s/%s", pod["metadata"].get("namespace"), pod["metadata"]["name"])

    # -- what happens to a pod

    def _appeared(self, node: Node, pod: Json) -> None:
        meta = pod["metadata"]
        uid = meta["uid"]
        status = pod.get("status") or {}
        node.waiting = [other for other in node.waiting if other["metadata"]["uid"] != uid]
        if status.get("phase") in _ENDED:
            self._known[uid] = node.spec.name
            if _is_deleted(pod):
                self._spawn(uid, self._shared.reports.remove(meta))
            return
        if _is_deleted(pod) and not status.get("startTime"):
            self._known[uid] = node.spec.name
            self._spawn(uid, self._end_unstarted(node, pod, None))
            return
        allocation = read_allocation(pod, self._shared.settings.read_device_claim)
        rejection = node.admission.reject(allocation)
        if rejection is not None and node.killed:
            node.waiting.append(pod)
            return
        self._known[uid] = node.spec.name
        if rejection is not None and not status.get("startTime"):
            self._spawn(uid, self._end_unstarted(node, pod, rejection))
            return
        node.admission.allocate(allocation)
        if self._is_simulated(node, pod):
            self.simulated[uid] = SimulatedPod(pod, node.spec.address, self._tools, lambda: self._ended(node, uid))
        else:
            self._start_process(node, pod)
        if _is_deleted(pod):
            self._changed(uid, pod)

    def _is_simulated(self, node: Node, pod: Json) -> bool:
        told = (pod["metadata"].get("annotations") or {}).get(RUNTIME) or node.annotations.get(RUNTIME)
        return (told or node.spec.group.runtime) == "simulated"

    def _start_process(self, node: Node, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if not self._said_images:
            self._said_images = True
            text = "Images are not pulled: containers run as processes of this machine, with its programs."
            _log.info(text)
            self._shared.reports.node_event(node.spec.name, "ImagesIgnored", text)
        allocatable = node_resources(node.spec, node.annotations)[1]
        found = self.processes[uid] = ProcessPod(self._shared, pod, node.spec.address, allocatable)
        self._spawn(uid, self._run_process(node, found))

    async def _run_process(self, node: Node, found: ProcessPod) -> None:
        try:
            await found.run()
        finally:
            self._ended(node, found.sandbox.uid)

    def _changed(self, uid: str, pod: Json) -> None:
        process, simulated, task = self.processes.get(uid), self.simulated.get(uid), self._tasks.get(uid)
        busy = task is not None and not task.done()
        if process is not None and busy:
            process.update(pod)
        elif simulated is not None:
            if _is_deleted(pod):
                simulated.stop(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
        elif _is_deleted(pod) and not busy and not self._is_ending(uid, pod):
            # It has ended; somebody's finalizer or a late delete is all that is left.
            self._spawn(uid, self._shared.reports.remove(pod["metadata"]))

    def _is_ending(self, uid: str, pod: Json) -> bool:
        """Whether a pod that only pretended to run has ended, and its object will say so soon and then go."""
        node = self.nodes.get(self._known[uid])
        simulated = node is not None and self._is_simulated(node, pod)
        return simulated and pod["status"].get("phase") not in _ENDED

    def _gone(self, node: Node, uid: str) -> None:
        """The object was removed; usually by us, else everything it had is ended now."""
        self._known.pop(uid, None)
        node.waiting = [pod for pod in node.waiting if pod["metadata"]["uid"] != uid]
        process = self.processes.get(uid)
        simulated = self.simulated.pop(uid, None)
        if simulated is not None:
            simulated.forget()
        task = self._tasks.get(uid)
        if process is not None and task is not None and not task.done():
            node.killed.add(uid)
            process.stop(_FORCED_GRACE)
            task.add_done_callback(lambda _: self._remove(node, uid))
        else:
            self._remove(node, uid)

    def _remove(self, node: Node, uid: str) -> None:
        self._ended(node, uid)  # also one that never began, because something was odd about it
        self.processes.pop(uid, None)
        shutil.rmtree(self._shared.folder(uid), ignore_errors=True)

    def _ended(self, node: Node, uid: str) -> None:
        """A pod holds nothing any more; those that waited for it are looked at again."""
        node.admission.release(uid)
        node.killed.discard(uid)
        self.simulated.pop(uid, None)
        waiting, node.waiting = node.waiting, []
        for pod in waiting:
            self._handle("ADDED", pod)

    async def _end_unstarted(self, node: Node, pod: Json, rejection: PodRejection | None) -> None:
        """Fails a pod that never ran here."""
        # A pod that was refused never had containers: its reason is what `kubectl get` should show.
        containers = read_containers(pod) if rejection is None else []
        state = PodState(containers, host=node.spec.address, phase="Failed")
        if rejection is not None:
            state.reason, state.message = rejection.reason, rejection.message
            self._shared.reports.event(pod, rejection.reason, rejection.message, warning=True)
        # Whether it is deleted is for the answer to say: our copy of the pod may be older than that.
        if await self._shared.reports.write(pod["metadata"], state.status()) or _is_deleted(pod):
            await self._shared.reports.remove(pod["metadata"])

    # -- tasks

    def _spawn(self, uid: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[uid] = task
        task.add_done_callback(self._finished(uid))

    def _finished(self, uid: str) -> Callable[[asyncio.Task[None]], None]:
        def note(task: asyncio.Task[None]) -> None:
            if self._tasks.get(uid) is task:
                del self._tasks[uid]
            if not task.cancelled() and task.exception() is not None:
                _log.error("a pod's work failed", exc_info=task.exception())

        return note

    async def close(self) -> None:
        """Abandons all pods where they are; their processes are for the launcher to end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_deleted(pod: Json) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _seniority(pod: Json) -> tuple[bool, str, str]:
    begun = (pod.get("status") or {}).get("startTime") or ""
    return (not begun, begun, pod["metadata"].get("creationTimestamp", ""))
