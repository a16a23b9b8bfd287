"""The controllers of the local cluster: loops that bring the world to what objects say, all in one process."""

from __future__ import annotations

import asyncio
from typing import Any

from embedded_kube.client import Client
from embedded_kube.controllers.accounts import Accounts
from embedded_kube.controllers.cleanup import Cleanup
from embedded_kube.controllers.definitions import Definitions
from embedded_kube.controllers.disruption import Disruption
from embedded_kube.controllers.endpoints import Endpoints
from embedded_kube.controllers.garbage import Garbage
from embedded_kube.controllers.machinery.controller import Controller, Shared, keep_running
from embedded_kube.controllers.machinery.informer import Informer, Informers
from embedded_kube.controllers.machinery.resources import Resources
from embedded_kube.controllers.namespaces import Namespaces
from embedded_kube.controllers.nodes import NodeLifecycle
from embedded_kube.controllers.settings import ControllerSettings
from embedded_kube.controllers.taints import TaintEviction
from embedded_kube.controllers.volumes import Claims, Volumes
from embedded_kube.controllers.workloads.daemonset import DaemonSets
from embedded_kube.controllers.workloads.deployment import Deployments
from embedded_kube.controllers.workloads.job import Jobs
from embedded_kube.controllers.workloads.replicaset import ReplicaSets
from embedded_kube.controllers.workloads.statefulset import StatefulSets

__all__ = ["ControllerSettings", "run_controllers"]


def _controllers(shared: Shared) -> list[Controller[Any]]:
    """All of them; those that need whole objects come before those that are content with headers."""
    whole = (
        Deployments,
        ReplicaSets,
        StatefulSets,
        DaemonSets,
        Jobs,
        NodeLifecycle,
        TaintEviction,
        Endpoints,
        Disruption,
        Claims,
        Volumes,
        Cleanup,
        Accounts,
        Definitions,
    )
    made: list[Controller[Any]] = [controller(shared) for controller in whole]
    resources = Resources(shared)
    return [*made, Namespaces(shared, resources), Garbage(shared, resources)]


async def run_controllers(client: Client, settings: ControllerSettings) -> None:
    """Runs every controller until cancelled. One that fails is logged and started again, the others go on."""
    async with asyncio.TaskGroup() as group:

        def start(informer: Informer[Any]) -> asyncio.Task[None]:
            return group.create_task(keep_running(f"the watch of {informer.resource}", informer.run))

        shared = Shared(client, settings, Informers(client, start))
        controllers = _controllers(shared)
        group.create_task(keep_running("the recorder of Events", shared.recorder.run))
        for controller in controllers:
            group.create_task(keep_running(controller.name, controller.run))
        try:
            await asyncio.Event().wait()
        finally:
            for controller in controllers:
                controller.queue.close()
