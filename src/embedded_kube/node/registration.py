"""Registers the Node objects of the fleet, renews their leases and keeps their status."""

from __future__ import annotations

import asyncio
import itertools
import platform
from collections.abc import Callable
from datetime import UTC, datetime

from embedded_kube.client import SYNCED, ClusterClient
from embedded_kube.errors import StatusError
from embedded_kube.node.agent import NodeState, apply_annotations
from embedded_kube.node.fleet import FLEET_LABEL, node_labels, node_object, node_resources
from embedded_kube.registry.timestamps import timestamp
from gpu_scheduler.k8s.objects import Json

LEASES = "leases.coordination.k8s.io"
LEASE_NAMESPACE = "kube-node-lease"
OUTAGE = "gpu-scheduler.io/simulate-outage"
"""A node annotation. While it is "true", the node sends no heartbeats, as if its network were down."""

_MIN_HEARTBEAT_PERIOD = 10.0
_MAX_HEARTBEAT_PERIOD = 20.0
_HEARTBEATS_PER_SECOND = 100
_BATCH_SIZE = 50


class NodeRegistrar:
    """Registers the nodes and keeps their Node objects and leases up to date."""

    def __init__(self, client: ClusterClient, nodes: dict[str, NodeState], kubernetes: str) -> None:
        self._client = client
        self._nodes = nodes
        self._version = f"v{kubernetes}.0"
        # Large fleets renew less often, but twice within the time after which a node counts as lost (40 s).
        period = max(_MIN_HEARTBEAT_PERIOD, len(nodes) / _HEARTBEATS_PER_SECOND)
        self._period = min(_MAX_HEARTBEAT_PERIOD, period)
        self._leases: dict[str, Json] = {}

    async def register(self) -> None:
        """Creates or updates every node, and deletes nodes of an earlier fleet that this one does not have."""
        known = {found["metadata"]["name"]: found for found in await self._client.list("nodes")}
        for name, found in known.items():
            if name not in self._nodes and (found["metadata"].get("labels") or {}).get(FLEET_LABEL):
                await self._client.delete("nodes", "", name)
        for batch in _batches(list(self._nodes.values())):
            await asyncio.gather(*(self._register(node, known.get(node.spec.name)) for node in batch))
            await asyncio.sleep(0)

    async def _register(self, node: NodeState, known: Json | None) -> None:
        name = node.spec.name
        if known is None:
            known = await self._client.create("nodes", node_object(node.spec))
        else:
            known = await self._client.edit("nodes", "", name, lambda found: _relabel(found, node))
        apply_annotations(node, known["metadata"].get("annotations") or {})
        await self._client.edit("nodes", "", name, lambda found: self._report(found, node), "status")
        await self._renew(name)

    def _report(self, found: Json, node: NodeState) -> Json:
        old = found.get("status") or {}
        capacity, allocatable = node_resources(node.spec, found["metadata"].get("annotations") or {})
        before = {item["type"]: item for item in old.get("conditions") or ()}
        conditions = [_condition(before.pop(row[0], None), *row) for row in _CONDITIONS]
        found["status"] = {
            **old,
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": [*before.values(), *conditions],
            "addresses": [
                {"type": "InternalIP", "address": node.spec.address},
                {"type": "Hostname", "address": node.spec.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": self._info(node, found["metadata"]["uid"]),
        }
        return found

    def _info(self, node: NodeState, uid: str) -> Json:
        return {
            "machineID": uid,
            "systemUUID": uid,
            "bootID": uid,
            "kernelVersion": platform.release(),
            "osImage": "gpu-scheduler local cluster",
            "containerRuntimeVersion": f"{node.spec.group.runtime}://1",
            "kubeletVersion": self._version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": node_labels(node.spec)["kubernetes.io/arch"],
        }

    # -- heartbeats

    async def send_heartbeats(self) -> None:
        """Renews the nodes' leases, spread evenly over the period."""
        slices = int(self._period)
        loop = asyncio.get_running_loop()
        started = loop.time()
        for turn in itertools.count(1):
            await asyncio.sleep(max(0.0, started + turn * self._period / slices - loop.time()))
            for name in list(self._nodes)[turn % slices :: slices]:
                if self._nodes[name].annotations.get(OUTAGE) != "true":
                    await self._renew(name)
                await asyncio.sleep(0)

    async def _renew(self, name: str) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease = self._leases.get(name)
        try:
            if lease is not None:
                lease["spec"]["renewTime"] = moment
                self._leases[name] = await self._client.update(LEASES, lease)
                return
        except StatusError:
            pass  # the lease was changed or deleted: write it anew
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": int(self._period * 4),
            "acquireTime": moment,
            "renewTime": moment,
        }
        made = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
        }
        try:
            self._leases[name] = await self._client.create(LEASES, {**made, "spec": spec})
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
            self._leases[name] = await self._client.edit(
                LEASES, LEASE_NAMESPACE, name, lambda found: {**found, "spec": spec}
            )

    # -- changes of Node objects

    async def watch(self) -> None:
        """Follows Node objects: applies annotations, corrects a lost Ready condition, recreates deleted nodes."""
        missing = set(self._nodes)
        async for event, found in self._client.watch("nodes"):
            if event == SYNCED:
                for name in missing:  # deleted while there was no watch
                    await self._register(self._nodes[name], None)
                continue
            node = self._nodes.get(found["metadata"]["name"])
            if node is None:
                continue
            missing.discard(node.spec.name)
            if event == "DELETED":
                await self._register(node, None)
                continue
            annotations = found["metadata"].get("annotations") or {}
            stale = annotations != node.annotations
            if stale:
                apply_annotations(node, annotations)
            conditions = (found.get("status") or {}).get("conditions") or ()
            ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
            if annotations.get(OUTAGE) != "true" and (stale or not ready):
                await self._client.edit("nodes", "", node.spec.name, _reporter(self._report, node), "status")


def _reporter(report: Callable[[Json, NodeState], Json], node: NodeState) -> Callable[[Json], Json]:
    return lambda found: report(found, node)


def _relabel(found: Json, node: NodeState) -> Json:
    meta = found["metadata"]
    meta["labels"] = {**(meta.get("labels") or {}), **node_labels(node.spec)}
    return found


_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def _condition(old: Json | None, kind: str, status: str, reason: str, message: str) -> Json:
    now = timestamp()
    same = old is not None and old.get("status") == status
    moment = (old or {}).get("lastTransitionTime") if same else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": moment or now,
    }


def _batches(nodes: list[NodeState]) -> list[list[NodeState]]:
    return [nodes[start : start + _BATCH_SIZE] for start in range(0, len(nodes), _BATCH_SIZE)]
