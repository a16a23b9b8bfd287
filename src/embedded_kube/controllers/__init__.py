"""Controllers of the local cluster, the kube-controller-manager: all run in one process."""

from __future__ import annotations

import asyncio
from typing import Any

from embedded_kube.client import ClusterClient
from embedded_kube.controllers.crd_finalizer import CrdFinalizer
from embedded_kube.controllers.disruption import DisruptionController
from embedded_kube.controllers.endpoints import EndpointsController
from embedded_kube.controllers.garbage_collector import GarbageCollector
from embedded_kube.controllers.machinery.controller import Controller, ControllerContext, keep_running
from embedded_kube.controllers.machinery.informer import InformerFactory, LocalInformer
from embedded_kube.controllers.machinery.rest_mapper import RestMapper
from embedded_kube.controllers.namespaces import NamespaceController
from embedded_kube.controllers.node_lifecycle import NodeLifecycleController
from embedded_kube.controllers.persistent_volumes import PersistentVolumeController, VolumeClaimController
from embedded_kube.controllers.pod_garbage_collector import PodGarbageCollector
from embedded_kube.controllers.service_accounts import ServiceAccountController
from embedded_kube.controllers.settings import ControllerSettings
from embedded_kube.controllers.taint_eviction import TaintEvictionController
from embedded_kube.controllers.workloads.daemonset import DaemonSetController
from embedded_kube.controllers.workloads.deployment import DeploymentController
from embedded_kube.controllers.workloads.job import BatchJobController
from embedded_kube.controllers.workloads.replicaset import ReplicaSetController
from embedded_kube.controllers.workloads.statefulset import StatefulSetController

__all__ = ["ControllerSettings", "run_controllers"]


def _controllers(context: ControllerContext) -> list[Controller[Any]]:
    """Returns all controllers. Those that need full objects come before those that need only metadata."""
    kinds = (
        DeploymentController,
        ReplicaSetController,
        StatefulSetController,
        DaemonSetController,
        BatchJobController,
        NodeLifecycleController,
        TaintEvictionController,
        EndpointsController,
        DisruptionController,
        VolumeClaimController,
        PersistentVolumeController,
        PodGarbageCollector,
        ServiceAccountController,
        CrdFinalizer,
    )
    made: list[Controller[Any]] = [controller(context) for controller in kinds]
    mapper = RestMapper(context)
    return [*made, NamespaceController(context, mapper), GarbageCollector(context, mapper)]


async def run_controllers(client: ClusterClient, settings: ControllerSettings) -> None:
    """Runs all controllers until cancelled. A controller that fails is logged and restarted."""
    async with asyncio.TaskGroup() as group:

        def start(informer: LocalInformer[Any]) -> asyncio.Task[None]:
            return group.create_task(keep_running(f"the watch of {informer.resource}", informer.run))

        context = ControllerContext(client, settings, InformerFactory(client, start))
        controllers = _controllers(context)
        group.create_task(keep_running("the event recorder", context.recorder.run))
        for controller in controllers:
            group.create_task(keep_running(controller.name, controller.run))
        try:
            await asyncio.Event().wait()
        finally:
            for controller in controllers:
                controller.queue.clear()
