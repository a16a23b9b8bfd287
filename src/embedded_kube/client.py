"""How the cluster's own parts (controllers, nodes) use the API: the same verbs and checks as over HTTP, without it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from embedded_kube.api import Api, DeleteOptions, Options
from embedded_kube.errors import ApiError
from embedded_kube.storage.kinds import Kind
from embedded_kube.storage.store import Json

SYNCED = "SYNCED"
"""The event of a watch that says: all that existed when it began has been told."""


class Client(Protocol):
    """Resources are named as in `kubectl api-resources`: "pods", "deployments.apps". Errors are ApiError."""

    async def get(self, resource: str, namespace: str, name: str) -> Json:
        """One object."""

    async def list(self, resource: str, namespace: str = "") -> list[Json]:
        """All objects, of one namespace if given."""

    async def create(self, resource: str, found: Json) -> Json:
        """A new object, in the namespace it names."""

    async def update(self, resource: str, found: Json, subresource: str = "") -> Json:
        """A new version; fails with a conflict when the object has changed since it was read."""

    async def edit(
        self, resource: str, namespace: str, name: str, change: Callable[[Json], Json], subresource: str = ""
    ) -> Json:
        """What `change` makes of the latest version; it is called again when somebody else was faster."""

    async def delete(
        self, resource: str, namespace: str, name: str, *, uid: str | None = None, grace: int | None = None
    ) -> None:
        """Deletes an object; one that is gone already is fine."""

    def watch(self, resource: str) -> AsyncIterator[tuple[str, Json]]:
        """Everything there is as ADDED, then SYNCED, then every change as it happens."""


class LocalClient:
    """The client inside the API server's own process."""

    def __init__(self, api: Api, user: str) -> None:
        self._api = api
        self._user = user

    def _kind(self, resource: str) -> Kind:
        plural, _, group = resource.partition(".")
        return self._api.find(plural, group)

    async def get(self, resource: str, namespace: str, name: str) -> Json:
        return self._api.get(self._kind(resource), namespace, name)

    async def list(self, resource: str, namespace: str = "") -> list[Json]:
        return [entry.object() for entry in self._api.store.entries(resource, namespace)]

    async def create(self, resource: str, found: Json) -> Json:
        namespace = found["metadata"].get("namespace", "")
        return (await self._api.create(self._kind(resource), namespace, found, Options(self._user)))[0]

    async def update(self, resource: str, found: Json, subresource: str = "") -> Json:
        meta = found["metadata"]
        options = Options(self._user, subresource=subresource)
        kind = self._kind(resource)
        return (await self._api.update(kind, meta.get("namespace", ""), meta["name"], found, options))[0]

    async def edit(
        self, resource: str, namespace: str, name: str, change: Callable[[Json], Json], subresource: str = ""
    ) -> Json:
        def unpinned(found: Json) -> Json:
            changed = change(found)
            changed["metadata"].pop("resourceVersion", None)
            return changed

        options = Options(self._user, subresource=subresource)
        return (await self._api.change(self._kind(resource), namespace, name, unpinned, options))[0]

    async def delete(
        self, resource: str, namespace: str, name: str, *, uid: str | None = None, grace: int | None = None
    ) -> None:
        kind = self._kind(resource)
        try:
            await self._api.delete(kind, namespace, name, DeleteOptions(grace, uid), Options(self._user))
        except ApiError as error:
            if error.code != 404:
                raise

    async def watch(self, resource: str) -> AsyncIterator[tuple[str, Json]]:
        store = self._api.store
        subscription = store.subscribe(resource)
        try:
            for entry in list(store.entries(resource)):
                yield "ADDED", entry.object()
            yield SYNCED, {}
            while True:
                await subscription.wait()
                if subscription.overrun:
                    raise RuntimeError(f"a watch of {resource} fell behind")
                while subscription.pending:
                    change = subscription.pending.popleft()
                    yield change.kind, change.entry.object()
        finally:
            subscription.close()
