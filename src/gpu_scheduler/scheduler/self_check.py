"""Self-check: compares the engine's state with the API. Every difference is a bug."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.objects import NodeObject, PodObject
from gpu_scheduler.k8s.resources import NODES, PODS
from gpu_scheduler.scheduler.watcher import ClusterWatcher


async def compare(client: Client, watcher: ClusterWatcher, engine: Engine) -> list[str]:
    """Returns the differences between the API and the engine's state, one line each.

    Objects that change during the comparison are skipped.
    """
    before = {uid: pod.metadata.resource_version for uid, pod in watcher.translator.pods.items()}
    known_before = _node_names(engine)
    nodes = await client.list(NODES, type=NodeObject)
    pods = await client.list(PODS, type=PodObject)
    await watcher.catch_up()
    after = watcher.translator.pods
    there = {pod.metadata.uid: pod for pod in pods.items}
    still = {
        uid
        for uid in before.keys() | there.keys() | after.keys()
        if before.get(uid) == _version(there, uid) == _version(after, uid)
    }
    found = engine.pod_differences({uid: _identity(there[uid]) for uid in still if uid in there})
    named = {node.metadata.name for node in nodes.items}
    known = _node_names(engine)
    found += [f"node {name} is not known" for name in sorted(named - known - known_before)]
    found += [f"node {name} does not exist" for name in sorted((known & known_before) - named)]
    return found


def _version(pods: Mapping[str, PodObject], uid: str) -> str | None:
    pod = pods.get(uid)
    return pod.metadata.resource_version if pod is not None else None


def _identity(pod: PodObject) -> tuple[str, str]:
    return f"{pod.metadata.namespace}/{pod.metadata.name}", pod.metadata.resource_version


def _node_names(engine: Engine) -> set[str]:
    return {report.node.name for report in engine.nodes()}
