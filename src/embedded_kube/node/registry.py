"""Node objects and their heartbeats."""

from __future__ import annotations

import asyncio
import itertools
import platform
from collections.abc import Callable
from datetime import UTC, datetime

from embedded_kube.api import timestamp
from embedded_kube.client import SYNCED, Client
from embedded_kube.errors import ApiError
from embedded_kube.node.agent import Node, note_annotations
from embedded_kube.node.fleet import OURS, node_labels, node_object, node_resources
from embedded_kube.storage.store import Json

LEASES = "leases.coordination.k8s.io"
HOME = "kube-node-lease"
OUTAGE = "gpu-scheduler.io/simulate-outage"
"""An annotation on a node: while it is "true" the node is not heard of, as if its network were down."""

_PERIOD = 10.0
_LONGEST = 20.0
_PER_SECOND = 100
_AT_ONCE = 50


class Registry:
    """Keeps the Node objects of the fleet in the API."""

    def __init__(self, client: Client, nodes: dict[str, Node], kubernetes: str) -> None:
        self._client = client
        self._nodes = nodes
        self._version = f"v{kubernetes}.0"
        # Half of the time after which a node counts as lost, if there are so many that 10 s would be a burden.
        self._period = min(_LONGEST, max(_PERIOD, len(nodes) / _PER_SECOND))
        self._leases: dict[str, Json] = {}

    async def register(self) -> None:
        """Makes or corrects every node, and removes those that an earlier fleet had and this one has not."""
        known = {found["metadata"]["name"]: found for found in await self._client.list("nodes")}
        for name, found in known.items():
            if name not in self._nodes and (found["metadata"].get("labels") or {}).get(OURS):
                await self._client.delete("nodes", "", name)
        for batch in _batches(list(self._nodes.values())):
            await asyncio.gather(*(self._register(node, known.get(node.spec.name)) for node in batch))
            await asyncio.sleep(0)

    async def _register(self, node: Node, known: Json | None) -> None:
        name = node.spec.name
        if known is None:
            known = await self._client.create("nodes", node_object(node.spec))
        else:
            known = await self._client.edit("nodes", "", name, lambda found: _relabel(found, node))
        note_annotations(node, known["metadata"].get("annotations") or {})
        await self._client.edit("nodes", "", name, lambda found: self._report(found, node), "status")
        await self._renew(name)

    def _report(self, found: Json, node: Node) -> Json:
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

    def _info(self, node: Node, uid: str) -> Json:
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

    async def beat(self) -> None:
        """Renews every node's lease in turn, evenly over the period."""
        slices = int(self._period)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for turn in itertools.count(1):
            await asyncio.sleep(max(0.0, begun + turn * self._period / slices - loop.time()))
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
        except ApiError:
            pass  # somebody changed or deleted it: begin anew
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": int(self._period * 4),
            "acquireTime": moment,
            "renewTime": moment,
        }
        made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": HOME}}
        try:
            self._leases[name] = await self._client.create(LEASES, {**made, "spec": spec})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            self._leases[name] = await self._client.edit(LEASES, HOME, name, lambda found: {**found, "spec": spec})

    # -- changes by others

    async def watch(self) -> None:
        """Follows the nodes: broken devices, a node that was marked as lost, one that somebody deleted."""
        missing = set(self._nodes)
        async for event, found in self._client.watch("nodes"):
            if event == SYNCED:
                for name in missing:  # deleted while nobody was watching
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
                note_annotations(node, annotations)
            conditions = (found.get("status") or {}).get("conditions") or ()
            ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
            if annotations.get(OUTAGE) != "true" and (stale or not ready):
                await self._client.edit("nodes", "", node.spec.name, _reporter(self._report, node), "status")


def _reporter(report: Callable[[Json, Node], Json], node: Node) -> Callable[[Json], Json]:
    return lambda found: report(found, node)


def _relabel(found: Json, node: Node) -> Json:
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


def _batches(nodes: list[Node]) -> list[list[Node]]:
    return [nodes[start : start + _AT_ONCE] for start in range(0, len(nodes), _AT_ONCE)]
