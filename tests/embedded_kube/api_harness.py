"""A registry with real admission over a store in memory, for tests without HTTP."""

from __future__ import annotations

from typing import Any

from embedded_kube.admission.admission import Admission
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.registry.options import RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from embedded_kube.storage.store import Store
from gpu_scheduler.k8s.objects import Json


class PassThrough:
    """A strategy that accepts every object unchanged."""

    def decode(self, kind: ServedKind, obj: Json, field_validation: str) -> list[str]:
        return []

    def prepare_for_create(self, _kind: ServedKind, _obj: Json) -> None:
        pass

    def validate(self, kind: ServedKind, obj: Json, old: Json | None) -> None:
        return None


class ApiHarness:
    """A registry with its admission and store. Close it when done."""

    def __init__(self) -> None:
        self.store = Store(None)
        kinds = KindTable(builtin_kinds("1.35"))
        self.admission = Admission(self.store, kinds, PassThrough())
        self.registry = ObjectRegistry(self.store, kinds, PassThrough(), self.admission.admit, self.admission.validate)
        self.store.write("namespaces", {"metadata": {"name": "default", "labels": {"team": "a"}}})

    async def close(self) -> None:
        await self.admission.close()
        self.store.close()

    async def create(self, resource: str, obj: Json, **options: Any) -> Json:
        return (await self.create_with_warnings(resource, obj, **options))[0]

    async def create_with_warnings(self, resource: str, obj: Json, **options: Any) -> tuple[Json, list[str]]:
        plural, _, group = resource.partition(".")
        kind = self.registry.find(plural, group)
        return await self.registry.create(kind, "default" if kind.namespaced else "", obj, RequestOptions(**options))

    def get(self, resource: str, name: str) -> Json:
        plural, _, group = resource.partition(".")
        kind = self.registry.find(plural, group)
        return self.registry.get(kind, "default" if kind.namespaced else "", name)


def make_pod(name: str = "train-0", **spec: Any) -> Json:
    """A pod of one container."""
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "x"}], **spec}}


def find_kind(kinds: KindTable, api_version: str, name: str) -> ServedKind:
    """The kind of an apiVersion and kind name."""
    group, _, version = api_version.rpartition("/")
    return next(kind for kind in kinds if (kind.group, kind.version, kind.kind) == (group, version, name))
