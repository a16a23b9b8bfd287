"""What tests of the local API are made of: an Api with real admission over a store in memory, and objects."""

from __future__ import annotations

from typing import Any

from embedded_kube.admission.admission import Admission
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.registry.options import RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.storage.store import Json, Store


class PassThrough:
    """A conversion that believes everything."""

    def decode(self, kind: ServedKind, found: Json, field_validation: str) -> list[str]:
        return []

    def prepare_for_create(self, _kind: ServedKind, _found: Json) -> None:
        pass

    def validate(self, kind: ServedKind, found: Json, old: Json | None) -> None:
        return None


class Parts:
    """An Api, its admission and its store. Close it when done."""

    def __init__(self) -> None:
        self.store = Store(None)
        kinds = KindTable(builtin_kinds("1.35"))
        self.admission = Admission(self.store, kinds, PassThrough())
        self.api = ObjectRegistry(self.store, kinds, PassThrough(), self.admission.admit, self.admission.validate)
        self.store.write("namespaces", {"metadata": {"name": "default", "labels": {"team": "a"}}})

    async def close(self) -> None:
        await self.admission.close()
        self.store.close()

    async def create(self, resource: str, found: Json, **options: Any) -> Json:
        return (await self.create_with_warnings(resource, found, **options))[0]

    async def create_with_warnings(self, resource: str, found: Json, **options: Any) -> tuple[Json, list[str]]:
        plural, _, group = resource.partition(".")
        kind = self.api.find(plural, group)
        return await self.api.create(kind, "default" if kind.namespaced else "", found, RequestOptions(**options))

    def get(self, resource: str, name: str) -> Json:
        plural, _, group = resource.partition(".")
        kind = self.api.find(plural, group)
        return self.api.get(kind, "default" if kind.namespaced else "", name)


def make_pod(name: str = "train-0", **spec: Any) -> Json:
    """A pod of one container."""
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "x"}], **spec}}


def find_kind(kinds: KindTable, api_version: str, name: str) -> ServedKind:
    """The kind that an object says it is."""
    group, _, version = api_version.rpartition("/")
    return next(kind for kind in kinds if (kind.group, kind.version, kind.kind) == (group, version, name))
