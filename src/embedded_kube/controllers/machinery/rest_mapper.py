"""Which resources exist now: the built-in ones, and those of CRDs as they come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from embedded_kube.controllers.machinery.controller import ControllerContext
from embedded_kube.controllers.machinery.objects import FullObject

CRDS = "customresourcedefinitions.apiextensions.k8s.io"


class RestMapping(NamedTuple):
    """A resource as owner references and namespaces know it."""

    name: str
    group: str
    kind: str
    namespaced: bool


class RestMapper:
    """The resources that hold objects. Listeners hear of every one, also of those that come later."""

    def __init__(self, context: ControllerContext) -> None:
        self._found: dict[str, RestMapping] = {}
        self._by_kind: dict[tuple[str, str], RestMapping] = {}
        self._listeners: list[Callable[[RestMapping, bool], None]] = []
        for kind in context.settings.kinds:
            self._add(RestMapping(kind.resource, kind.group, kind.kind, kind.namespaced))
        self.crds = context.informers.full(CRDS)
        self.crds.add_event_handler(self._crd_changed)

    def __iter__(self) -> Iterator[RestMapping]:
        return iter(list(self._found.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def add_listener(self, listener: Callable[[RestMapping, bool], None]) -> None:
        """Tells of every resource with True, and with False when it goes."""
        for resource in self:
            listener(resource, True)
        self._listeners.append(listener)

    def mapping_for(self, api_version: str, kind: str) -> RestMapping | None:
        """The resource that an owner reference means."""
        return self._by_kind.get((api_version.rpartition("/")[0], kind))

    def _crd_changed(self, before: FullObject | None, after: FullObject | None) -> None:
        if after is not None:
            self._add(mapping_of(after))
        elif before is not None:
            gone = mapping_of(before)
            if self._found.pop(gone.name, None) is not None:
                self._by_kind.pop((gone.group, gone.kind), None)
                for listener in self._listeners:
                    listener(gone, False)

    def _add(self, resource: RestMapping) -> None:
        # Two groups may show the same objects (events): the first name stands for both.
        self._by_kind[resource.group, resource.kind] = resource
        if resource.name in self._found:
            return
        self._found[resource.name] = resource
        for listener in self._listeners:
            listener(resource, True)


def mapping_of(crd: FullObject) -> RestMapping:
    """The resource that a CRD defines."""
    names, group = crd.spec["names"], crd.spec["group"]
    return RestMapping(f"{names['plural']}.{group}", group, names["kind"], crd.spec.get("scope") != "Cluster")
