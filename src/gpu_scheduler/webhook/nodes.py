"""The names that a map may call nodes by, followed as they come and go."""

from __future__ import annotations

from gpu_scheduler.core.model import NODE_ALIAS
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.informer import Informer
from gpu_scheduler.k8s.objects import Object
from gpu_scheduler.k8s.resources import NODES


class NodeNames:
    """Every node's name and its label gpu-node-name. Nothing is known until the API server has been heard."""

    def __init__(self, client: Client) -> None:
        self._informer = Informer(client, NODES, Object, lambda _changes: self._forget())
        self._names: frozenset[str] | None = None

    async def run(self) -> None:
        """Follows the API server for ever."""
        await self._informer.run()

    def known(self) -> frozenset[str] | None:
        """The names; None while the API server has not been heard."""
        if self._names is None and self._informer.revision:
            metas = [node.metadata for node in self._informer.objects.values()]
            aliases = [meta.labels.get(NODE_ALIAS, "") for meta in metas if meta.labels]
            self._names = frozenset([meta.name for meta in metas]).union(filter(None, aliases))
        return self._names

    def _forget(self) -> None:
        self._names = None
