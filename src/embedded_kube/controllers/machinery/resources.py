"""Which resources exist now: the built-in ones, and those of CRDs as they come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import Shared
from embedded_kube.controllers.machinery.objects import Whole

CRDS = "customresourcedefinitions.apiextensions.k8s.io"


class Resource(NamedTuple):
    """A resource as owner references and namespaces know it."""

    name: str
    group: str
    kind: str
    namespaced: bool


class Resources:
    """The resources that hold objects. Listeners hear of every one, also of those that come later."""

    def __init__(self, shared: Shared) -> None:
        self._found: dict[str, Resource] = {}
        self._by_kind: dict[tuple[str, str], Resource] = {}
        self._listeners: list[Callable[[Resource, bool], None]] = []
        for kind in shared.settings.kinds:
            self._add(Resource(kind.resource, kind.group, kind.kind, kind.namespaced))
        self.crds = shared.informers.whole(CRDS)
        self.crds.handle(self._crd_changed)

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._found.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def listen(self, listener: Callable[[Resource, bool], None]) -> None:
        """Tells of every resource with True, and with False when it goes."""
        for resource in self:
            listener(resource, True)
        self._listeners.append(listener)

    def of_kind(self, api_version: str, kind: str) -> Resource | None:
        """The resource that an owner reference means."""
        return self._by_kind.get((api_version.rpartition("/")[0], kind))

    def _crd_changed(self, before: Whole | None, after: Whole | None) -> None:
        if after is not None:
            self._add(resource_of(after))
        elif before is not None:
            gone = resource_of(before)
            if self._found.pop(gone.name, None) is not None:
                self._by_kind.pop((gone.group, gone.kind), None)
                for listener in self._listeners:
                    listener(gone, False)

    def _add(self, resource: Resource) -> None:
        # Two groups may show the same objects (events): the first name stands for both.
        self._by_kind[resource.group, resource.kind] = resource
        if resource.name in self._found:
            return
        self._found[resource.name] = resource
        for listener in self._listeners:
            listener(resource, True)


def resource_of(crd: Whole) -> Resource:
    """The resource that a CRD defines."""
    names, group = crd.spec["names"], crd.spec["group"]
    return Resource(f"{names['plural']}.{group}", group, names["kind"], crd.spec.get("scope") != "Cluster")
