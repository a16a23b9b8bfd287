"""The client of controllers and nodes: the same verbs and checks as over HTTP, in process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from embedded_kube.errors import StatusError
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.registry.options import DeleteOptions, RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from gpu_scheduler.k8s.objects import Json

SYNCED = "SYNCED"
"""The watch event that follows the initial objects."""


class ClusterClient(Protocol):
    """Resources are named as in `kubectl api-resources`: "pods", "deployments.apps". Errors are StatusError."""

    async def get(self, resource: str, namespace: str, name: str) -> Json:
        """One object."""

    async def list(self, resource: str, namespace: str = "") -> list[Json]:
        """All objects, of one namespace if given."""

    async def create(self, resource: str, obj: Json) -> Json:
        """Creates an object in the namespace of its metadata."""

    async def update(self, resource: str, obj: Json, subresource: str = "") -> Json:
        """Updates an object; a conflict if it has changed since it was read."""

    async def edit(
        self, resource: str, namespace: str, name: str, change: Callable[[Json], Json], subresource: str = ""
    ) -> Json:
        """Applies `change` to the latest version; calls it again after a conflict."""

    async def delete(
        self, resource: str, namespace: str, name: str, *, uid: str | None = None, grace: int | None = None
    ) -> None:
        """Deletes an object; a missing object is no error."""

    def watch(self, resource: str) -> AsyncIterator[tuple[str, Json]]:
        """Yields all objects as ADDED, then SYNCED, then every change."""


class InProcessClient:
    """The client inside the API server's process."""

    def __init__(self, registry: ObjectRegistry, user: str) -> None:
        self._registry = registry
        self._user = user

    def _kind(self, resource: str) -> ServedKind:
        plural, _, group = resource.partition(".")
        return self._registry.find(plural, group)

    async def get(self, resource: str, namespace: str, name: str) -> Json:
        return self._registry.get(self._kind(resource), namespace, name)

    async def list(self, resource: str, namespace: str = "") -> list[Json]:
        return [entry.object() for entry in self._registry.store.entries(resource, namespace)]

    async def create(self, resource: str, obj: Json) -> Json:
        namespace = obj["metadata"].get("namespace", "")
        return (await self._registry.create(self._kind(resource), namespace, obj, RequestOptions(self._user)))[0]

    async def update(self, resource: str, obj: Json, subresource: str = "") -> Json:
        meta = obj["metadata"]
        options = RequestOptions(self._user, subresource=subresource)
        kind = self._kind(resource)
        return (await self._registry.update(kind, meta.get("namespace", ""), meta["name"], obj, options))[0]

    async def edit(
        self, resource: str, namespace: str, name: str, change: Callable[[Json], Json], subresource: str = ""
    ) -> Json:
        def unconditional(obj: Json) -> Json:
            changed = change(obj)
            changed["metadata"].pop("resourceVersion", None)
            return changed

        options = RequestOptions(self._user, subresource=subresource)
        return (await self._registry.change(self._kind(resource), namespace, name, unconditional, options))[0]

    async def delete(
        self, resource: str, namespace: str, name: str, *, uid: str | None = None, grace: int | None = None
    ) -> None:
        kind = self._kind(resource)
        try:
            await self._registry.delete(kind, namespace, name, DeleteOptions(grace, uid), RequestOptions(self._user))
        except StatusError as error:
            if error.code != 404:
                raise

    async def watch(self, resource: str) -> AsyncIterator[tuple[str, Json]]:
        store = self._registry.store
        subscription = store.subscribe(resource)
        try:
            for entry in list(store.entries(resource)):
                yield "ADDED", entry.object()
            yield SYNCED, {}
            while True:
                await subscription.wait()
                if subscription.overrun:
                    raise RuntimeError(f"the watch of {resource} fell too far behind")
                while subscription.pending:
                    change = subscription.pending.popleft()
                    yield change.kind, change.entry.object()
        finally:
            subscription.close()
