"""A cache of what reviews need to know of the nodes, kept current by an informer."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.core.model import NODE_ALIAS
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.informer import ChangeKind, Informer, ObjectChange
from gpu_scheduler.k8s.objects import NodeObject
from gpu_scheduler.k8s.resources import NODES
from gpu_scheduler.webhook.pods import KnownNodes


class NodeCache:
    """The names and gpu-node-name labels of all nodes, and the resources that they offer."""

    def __init__(self, client: Client) -> None:
        self._informer = Informer(client, NODES, NodeObject, self._on_changes)
        self._known: KnownNodes | None = None

    async def run(self) -> None:
        """Follows the API server until cancelled."""
        await self._informer.run()

    def known(self) -> KnownNodes | None:
        """What is known of the nodes, or None before the first list has arrived."""
        if self._known is None and self._informer.revision:
            nodes = self._informer.objects.values()
            names = frozenset(name for node in nodes for name in _names(node))
            self._known = KnownNodes(names, frozenset(name for node in nodes for name in _resources(node)))
        return self._known

    def _on_changes(self, changes: Sequence[ObjectChange[NodeObject]]) -> None:
        """Discards the summary when a change affects it; most updates of a node do not."""
        if any(change.kind is not ChangeKind.MODIFIED or _differs(change) for change in changes):
            self._known = None


def _differs(change: ObjectChange[NodeObject]) -> bool:
    old, new = change.old, change.object
    return old is None or (_names(old), _resources(old)) != (_names(new), _resources(new))


def _names(node: NodeObject) -> list[str]:
    alias = (node.metadata.labels or {}).get(NODE_ALIAS, "")
    return [node.metadata.name, alias] if alias else [node.metadata.name]


def _resources(node: NodeObject) -> list[str]:
    return list(node.status.allocatable or ())
