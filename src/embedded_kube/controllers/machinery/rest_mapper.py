"""RestMapper: the resources that exist now, built-in and of CRDs, by name and by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import ControllerContext
from embedded_kube.controllers.machinery.objects import FullObject

CRDS = "customresourcedefinitions.apiextensions.k8s.io"


class RestMapping(NamedTuple):
    """A resource with its kind and scope."""

    name: str
    group: str
    kind: str
    namespaced: bool


class RestMapper:
    """Knows the existing resources. Listeners are called for each of them, and for resources added or removed later."""

    def __init__(self, context: ControllerContext) -> None:
        self._by_name: dict[str, RestMapping] = {}
        self._by_kind: dict[tuple[str, str], RestMapping] = {}
        self._listeners: list[Callable[[RestMapping, bool], None]] = []
        for kind in context.settings.kinds:
            self._add(RestMapping(kind.resource, kind.group, kind.kind, kind.namespaced))
        self.crds = context.informers.full(CRDS)
        self.crds.add_event_handler(self._crd_changed)

    def __iter__(self) -> Iterator[RestMapping]:
        return iter(list(self._by_name.values()))

    def add_listener(self, listener: Callable[[RestMapping, bool], None]) -> None:
        """Calls the listener with True for every resource, and with False when a resource is removed."""
        for resource in self:
            listener(resource, True)
        self._listeners.append(listener)

    def mapping_for(self, api_version: str, kind: str) -> RestMapping | None:
        """Returns the resource of an owner reference."""
        return self._by_kind.get((api_version.rpartition("/")[0], kind))

    def _crd_changed(self, before: FullObject | None, after: FullObject | None) -> None:
        if after is not None:
            self._add(mapping_of(after))
        elif before is not None:
            removed = mapping_of(before)
            if self._by_name.pop(removed.name, None) is not None:
                self._by_kind.pop((removed.group, removed.kind), None)
                for listener in self._listeners:
                    listener(removed, False)

    def _add(self, resource: RestMapping) -> None:
        # Two groups may serve the same objects (events): the first name stands for both.
        self._by_kind[resource.group, resource.kind] = resource
        if resource.name in self._by_name:
            return
        self._by_name[resource.name] = resource
        for listener in self._listeners:
            listener(resource, True)


def mapping_of(crd: FullObject) -> RestMapping:
    """Returns the resource that a CRD defines."""
    names, group = crd.spec["names"], crd.spec["group"]
    return RestMapping(f"{names['plural']}.{group}", group, names["kind"], crd.spec.get("scope") != "Cluster")
