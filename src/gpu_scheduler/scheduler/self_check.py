"""Self-check: compares the engine's state with the API. Every difference is a bug."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_scheduler.core.model import Pod
from gpu_scheduler.core.state import State
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.objects import NodeObject, PodObject
from gpu_scheduler.k8s.resources import NODES, PODS
from gpu_scheduler.scheduler.watcher import ClusterWatcher


async def compare(client: Client, watcher: ClusterWatcher, state: State) -> list[str]:
    """Returns the differences between the API and the engine's state, one line each.

    Objects that change during the comparison are skipped.
    """
    before = {uid: pod.metadata.resource_version for uid, pod in watcher.translator.pods.items()}
    known_before = set(state.cluster.table.slots)
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
    found = list(_compare_pods(state, {uid: there[uid] for uid in still if uid in there}))
    named = {node.metadata.name for node in nodes.items}
    known = set(state.cluster.table.slots)
    found += [f"node {name} is not known" for name in sorted(named - known - known_before)]
    found += [f"node {name} does not exist" for name in sorted((known & known_before) - named)]
    return found


def _version(pods: Mapping[str, PodObject], uid: str) -> str | None:
    pod = pods.get(uid)
    return pod.metadata.resource_version if pod is not None else None


def _compare_pods(state: State, there: Mapping[str, PodObject]) -> Iterator[str]:
    """Compares pods with the engine's pods, and with the usage that it counts on nodes."""
    for uid, raw in there.items():
        name = f"pod {raw.metadata.namespace}/{raw.metadata.name}"
        pod = state.pods.get(uid)
        if pod is None:
            yield f"{name} is not known"
        elif pod.version != raw.metadata.resource_version:
            yield f"{name} is known at version {pod.version}, not {raw.metadata.resource_version}"
        elif pod.live and pod.node in state.cluster.table.slots and uid not in state.cluster.usage:
            yield f"{name} runs on {pod.node} and is not counted there"
    kept = {uid for record in state.records.values() for uid in record.reserved}
    for uid, usage in state.cluster.usage.items():
        counted: Pod | None = state.pods.get(uid)
        explained = uid in state.ledger.binds or uid in state.quarantined or uid in kept
        if explained or (counted is not None and (counted.live or counted.nominated_node)):
            continue
        yield f"pod {usage.pod.namespace}/{usage.pod.name} is counted on {usage.node} and does not run there"
