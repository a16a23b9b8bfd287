"""The controllers of the local cluster: loops that bring the world to what objects say, all in one process."""

from __future__ import annotations

import asyncio
from typing import Any

from gpu_scheduler.local.client import Client
from gpu_scheduler.local.controllers.accounts import Accounts
from gpu_scheduler.local.controllers.cleanup import Cleanup
from gpu_scheduler.local.controllers.daemonset import DaemonSets
from gpu_scheduler.local.controllers.definitions import Definitions
from gpu_scheduler.local.controllers.deployment import Deployments
from gpu_scheduler.local.controllers.disruption import Disruption
from gpu_scheduler.local.controllers.endpoints import Endpoints
from gpu_scheduler.local.controllers.garbage import Garbage
from gpu_scheduler.local.controllers.informer import Informer, Informers
from gpu_scheduler.local.controllers.job import Jobs
from gpu_scheduler.local.controllers.namespaces import Namespaces
from gpu_scheduler.local.controllers.nodes import NodeLifecycle
from gpu_scheduler.local.controllers.replicaset import ReplicaSets
from gpu_scheduler.local.controllers.resources import Resources
from gpu_scheduler.local.controllers.runtime import Controller, Shared, keep_running
from gpu_scheduler.local.controllers.settings import ControllerSettings
from gpu_scheduler.local.controllers.statefulset import StatefulSets
from gpu_scheduler.local.controllers.taints import TaintEviction
from gpu_scheduler.local.controllers.volumes import Claims, Volumes

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
