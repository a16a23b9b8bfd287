"""What a kind is to the API server: one row of a table, whether built in or defined by a CRD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`: a name, where its value is found (a JSONPath, or the name of a function in tables.py
    after "="), its type, and whether it is only shown with -o wide."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One version of a resource that is served. `schema` names its type in schemas.py; a CRD brings its own."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    schema: str = ""
    singular: str = ""
    stored_as: str = ""
    """The resource whose objects these are, where two groups show the same ones (events)."""
    selectable: tuple[str, ...] = ()
    """Paths (".spec.color") that field selectors may name besides the object's own name and namespace."""
    scale: dict[str, str] = field(default_factory=dict, compare=False)
    crd_schema: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def resource(self) -> str:
        """The name objects are stored under: all versions of a resource share it."""
        return self.stored_as or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def api_version(self) -> str:
        """As objects write it."""
        return f"{self.group}/{self.version}" if self.group else self.version


class Kinds:
    """Every kind that is served now, in the order in which discovery lists them."""

    def __init__(self, built_in: tuple[Kind, ...]) -> None:
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self.edition = 0
        """Another number whenever anything has changed."""
        for kind in built_in:
            self.put(kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds.values())

    def put(self, kind: Kind) -> None:
        """Adds or replaces a kind."""
        self._kinds[kind.group, kind.version, kind.plural] = kind
        self.edition += 1

    def remove(self, group: str, plural: str) -> None:
        """Takes every version of a resource away."""
        for key in [key for key in self._kinds if key[0] == group and key[2] == plural]:
            del self._kinds[key]
            self.edition += 1

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind behind a path of the API."""
        return self._kinds.get((group, version, plural))

    def of_resource(self, resource: str) -> Kind | None:
        """The first version served of a stored resource."""
        return next((k for k in self if k.resource == resource), None)
