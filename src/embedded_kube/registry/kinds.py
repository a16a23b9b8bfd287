"""The table of the kinds that are served, built in or defined by a CRD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column of `kubectl get`. `path` is a JSONPath, or "=" and the name of a function in printing/columns.py.
    `wide` columns are shown with -o wide only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class ServedKind:
    """One served version of a resource (compare metav1.APIResource). `schema` names its type in schemas.json;
    a custom kind has `crd_schema` instead."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    columns: tuple[PrinterColumn, ...] = ()
    schema: str = ""
    singular: str = ""
    stored_as: str = ""
    """The resource that stores the objects, if two groups serve the same ones (events)."""
    selectable: tuple[str, ...] = ()
    """Paths (".spec.color") that field selectors may use besides metadata.name and metadata.namespace."""
    scale: dict[str, str] = field(default_factory=dict, compare=False)
    crd_schema: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def resource(self) -> str:
        """The name in the store, shared by all versions of a resource: "pods", "deployments.apps"."""
        return self.stored_as or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def api_version(self) -> str:
        """The apiVersion of objects of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version


class KindTable:
    """All served kinds, in the order in which discovery lists them."""

    def __init__(self, built_in: tuple[ServedKind, ...]) -> None:
        self._kinds: dict[tuple[str, str, str], ServedKind] = {}
        self.edition = 0
        """Increases with every change of the table; caches compare it."""
        for kind in built_in:
            self.put(kind)

    def __iter__(self) -> Iterator[ServedKind]:
        return iter(self._kinds.values())

    def put(self, kind: ServedKind) -> None:
        """Adds or replaces a kind."""
        self._kinds[kind.group, kind.version, kind.plural] = kind
        self.edition += 1

    def remove(self, group: str, plural: str) -> None:
        """Removes all versions of a resource."""
        for key in [key for key in self._kinds if key[0] == group and key[2] == plural]:
            del self._kinds[key]
            self.edition += 1

    def find(self, group: str, version: str, plural: str) -> ServedKind | None:
        """The kind of a group, version and plural, or None."""
        return self._kinds.get((group, version, plural))

    def of_resource(self, resource: str) -> ServedKind | None:
        """The first served version of a stored resource, or None."""
        return next((k for k in self if k.resource == resource), None)
