"""JobCache: informers of jobs, of the pods and Services they own, of PodGroups and of competing controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.informer import ChangeKind, HasMetadata, Informer, ObjectChange
from gpu_scheduler.k8s.objects import Meta, Object, RawObject
from gpu_scheduler.k8s.resources import DEPLOYMENTS, PODS, SERVICES, Resource
from gpu_scheduler.operator.frameworks import FRAMEWORKS, JobFramework
from gpu_scheduler.operator.pod_groups import PodGroupApi
from gpu_scheduler.operator.reconcile import ObservedJob

T = TypeVar("T", bound=HasMetadata)


class JobKey(NamedTuple):
    """The kind, namespace and name of a job."""

    resource: Resource
    namespace: str
    name: str


class _OwnedObjects(Generic[T]):
    """Objects indexed by the uid of their controller."""

    def __init__(self, on_change: Callable[[Meta], None]) -> None:
        self._on_change = on_change
        self._found: dict[str, dict[str, T]] = {}

    def apply(self, changes: Sequence[ObjectChange[T]]) -> None:
        for change in changes:
            meta = change.object.metadata
            for old in (change.old, change.object if change.kind is ChangeKind.DELETED else None):
                if old is not None:
                    self._drop(old.metadata)
            if change.kind is not ChangeKind.DELETED:
                self._found.setdefault(_controller(meta), {})[meta.name] = change.object
            self._on_change(meta)

    def _drop(self, meta: Meta) -> None:
        owned = self._found.get(_controller(meta), {})
        owned.pop(meta.name, None)
        if not owned:
            self._found.pop(_controller(meta), None)

    def of(self, uid: str) -> list[T]:
        return [found for _, found in sorted(self._found.get(uid, {}).items())]


def _controller(meta: Meta) -> str:
    return next((owner.uid for owner in meta.owner_references or () if owner.controller), "")


class JobCache:
    """Caches what reconciliation needs in some namespaces, and enqueues the jobs that a change affects."""

    def __init__(
        self, client: Client, namespaces: Sequence[str], groups: PodGroupApi | None, enqueue: Callable[[JobKey], None]
    ) -> None:
        self._client = client
        self._namespaces = tuple(namespaces) or ("",)
        self._group_api = groups
        self._enqueue = enqueue
        self.served_names: frozenset[str] = frozenset()
        """The scheduler names that our scheduler serves, as far as known."""
        self._jobs: dict[Resource, list[Informer[RawObject]]] = {}
        self._groups: list[Informer[RawObject]] = []
        self._competitors: dict[str, Informer[RawObject]] = {}
        self._resources: dict[tuple[str, str], Resource] = {}
        self._pods: _OwnedObjects[RawObject] = _OwnedObjects(self._enqueue_owners)
        self._services: _OwnedObjects[Object] = _OwnedObjects(self._enqueue_owners)

    def watch_common(self) -> list[Informer[Any]]:
        """Returns new informers for what all job kinds share."""
        found: list[Informer[Any]] = []
        for namespace in self._namespaces:
            for label in dict.fromkeys(framework.label for framework in FRAMEWORKS):
                pods, services = self._pods.apply, self._services.apply
                found.append(Informer(self._client, PODS, RawObject, pods, namespace=namespace, labels=label))
                found.append(Informer(self._client, SERVICES, Object, services, namespace=namespace, labels=label))
            if self._group_api is not None:
                groups = Informer(
                    self._client, self._group_api.resource, RawObject, self._on_groups, namespace=namespace
                )
                self._groups.append(groups)
                found.append(groups)
        return found

    def watch_competitors(self, framework: JobFramework) -> list[Informer[Any]]:
        """Returns new informers for Deployments of other controllers of a job kind."""
        found: list[Informer[Any]] = []
        for name in framework.competitors:
            if name not in self._competitors:
                self._competitors[name] = Informer(
                    self._client, DEPLOYMENTS, RawObject, self._on_competitors, fields=f"metadata.name={name}"
                )
                found.append(self._competitors[name])
        return found

    def watch_jobs(self, resource: Resource) -> list[Informer[Any]]:
        """Returns new informers for a job kind."""
        self._resources[resource.group, resource.kind] = resource

        def on_jobs(changes: Sequence[ObjectChange[RawObject]]) -> None:
            for change in changes:
                self._enqueue(JobKey(resource, change.object.metadata.namespace, change.object.metadata.name))

        self._jobs[resource] = [
            Informer(self._client, resource, RawObject, on_jobs, namespace=namespace) for namespace in self._namespaces
        ]
        return list(self._jobs[resource])

    def get_job(self, key: JobKey) -> RawObject | None:
        """Returns a job."""
        return _find(self._jobs.get(key.resource, ()), key.namespace, key.name)

    def observe(self, uid: str, key: JobKey) -> ObservedJob:
        """Returns what exists for a job."""
        group = _find(self._groups, key.namespace, key.name)
        return ObservedJob(self._pods.of(uid), self._services.of(uid), group, self._group_api, self.served_names)

    def competitor_of(self, framework: JobFramework) -> str:
        """Returns the Deployment of another controller of a job kind, as namespace/name; "" for none."""
        for name in framework.competitors:
            for found in self._competitors[name].objects.values() if name in self._competitors else ():
                if found.spec.get("replicas") != 0 and found.metadata.deletion_timestamp is None:
                    return f"{found.metadata.namespace}/{name}"
        return ""

    async def wait_for_revision(self, key: JobKey, revision: str) -> None:
        """Waits until the cache of a job's kind has reached a revision."""
        if revision.isdecimal():
            informers = zip(self._namespaces, self._jobs.get(key.resource, ()), strict=False)
            here = (one for namespace, one in informers if namespace in ("", key.namespace))
            await asyncio.gather(*(one.wait_for_revision(int(revision)) for one in here))

    def _enqueue_owners(self, meta: Meta) -> None:
        for owner in meta.owner_references or ():
            resource = self._resources.get((owner.api_version.partition("/")[0], owner.kind))
            if resource is not None:
                self._enqueue(JobKey(resource, meta.namespace, owner.name))

    def _on_groups(self, changes: Sequence[ObjectChange[RawObject]]) -> None:
        """Enqueues the jobs with the name of a group, also if the group has another owner and blocks them."""
        for change in changes:
            meta = change.object.metadata
            for resource in self._jobs:
                key = JobKey(resource, meta.namespace, meta.name)
                if self.get_job(key) is not None:
                    self._enqueue(key)

    def _on_competitors(self, _changes: object) -> None:
        for resource, informers in self._jobs.items():
            for namespace, name in _names(informers):
                self._enqueue(JobKey(resource, namespace, name))


def _names(informers: Iterable[Informer[RawObject]]) -> list[tuple[str, str]]:
    return [key for informer in informers for key in informer.objects]


def _find(informers: Iterable[Informer[RawObject]], namespace: str, name: str) -> RawObject | None:
    return next((one.objects[namespace, name] for one in informers if (namespace, name) in one.objects), None)
