"""What is watched: jobs, the pods and Services they own, PodGroups, and whether somebody else does this work here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.informer import ChangeKind, HasMetadata, Informer, ObjectChange
from gpu_scheduler.k8s.objects import Meta, Object, RawObject
from gpu_scheduler.k8s.resources import DEPLOYMENTS, PODS, SERVICES, Resource
from gpu_scheduler.operator.frameworks import JOB_CONTROLLERS, JobController
from gpu_scheduler.operator.pod_groups import PodGroupApi
from gpu_scheduler.operator.reconcile import Observed

T = TypeVar("T", bound=HasMetadata)


class JobKey(NamedTuple):
    """A job."""

    resource: Resource
    namespace: str
    name: str


class _Owned(Generic[T]):
    """Objects by the uid of the job that controls them."""

    def __init__(self, wake: Callable[[Meta], None]) -> None:
        self._wake = wake
        self._found: dict[str, dict[str, T]] = {}

    def take(self, changes: Sequence[ObjectChange[T]]) -> None:
        for change in changes:
            meta = change.object.metadata
            for old in (change.old, change.object if change.kind is ChangeKind.DELETED else None):
                if old is not None:
                    self._drop(old.metadata)
            if change.kind is not ChangeKind.DELETED:
                self._found.setdefault(_controller(meta), {})[meta.name] = change.object
            self._wake(meta)

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
    """Keeps copies of all that matters in some namespaces, and says which job has to be looked at."""

    def __init__(
        self, client: Client, namespaces: Sequence[str], gang: PodGroupApi | None, wake: Callable[[JobKey], None]
    ) -> None:
        self._client = client
        self._namespaces = tuple(namespaces) or ("",)
        self._gang = gang
        self._wake = wake
        self._jobs: dict[Resource, list[Informer[RawObject]]] = {}
        self._groups: list[Informer[RawObject]] = []
        self._rivals: dict[str, Informer[RawObject]] = {}
        self._kinds: dict[tuple[str, str], Resource] = {}
        self._pods: _Owned[RawObject] = _Owned(self._wake_owner)
        self._services: _Owned[Object] = _Owned(self._wake_owner)

    def follow_common(self) -> list[Informer[Any]]:
        """Informers for what all kinds of jobs share."""
        found: list[Informer[Any]] = []
        for namespace in self._namespaces:
            for label in dict.fromkeys(kind.label for kind in JOB_CONTROLLERS):
                pods, services = self._pods.take, self._services.take
                found.append(Informer(self._client, PODS, RawObject, pods, namespace=namespace, labels=label))
                found.append(Informer(self._client, SERVICES, Object, services, namespace=namespace, labels=label))
            if self._gang is not None:
                groups = Informer(self._client, self._gang.resource, RawObject, self._take_groups, namespace=namespace)
                self._groups.append(groups)
                found.append(groups)
        return found

    def follow_rivals(self, kind: JobController) -> list[Informer[Any]]:
        """Informers for those who would do the work of a kind."""
        found: list[Informer[Any]] = []
        for name in kind.competitors:
            if name not in self._rivals:
                self._rivals[name] = Informer(
                    self._client, DEPLOYMENTS, RawObject, self._take_rivals, fields=f"metadata.name={name}"
                )
                found.append(self._rivals[name])
        return found

    def follow_jobs(self, resource: Resource) -> list[Informer[Any]]:
        """Informers for a kind of job."""
        self._kinds[resource.group, resource.kind] = resource

        def take(changes: Sequence[ObjectChange[RawObject]]) -> None:
            for change in changes:
                self._wake(JobKey(resource, change.object.metadata.namespace, change.object.metadata.name))

        self._jobs[resource] = [
            Informer(self._client, resource, RawObject, take, namespace=namespace) for namespace in self._namespaces
        ]
        return list(self._jobs[resource])

    def job(self, key: JobKey) -> RawObject | None:
        """A job, as it was last seen."""
        return _find(self._jobs.get(key.resource, ()), key.namespace, key.name)

    def observe(self, uid: str, key: JobKey) -> Observed:
        """What is there for a job."""
        group = _find(self._groups, key.namespace, key.name)
        return Observed(self._pods.of(uid), self._services.of(uid), group, self._gang)

    def rival_of(self, kind: JobController) -> str:
        """The Deployment that does the work of a kind here, as namespace/name; "" for none."""
        for name in kind.competitors:
            for found in self._rivals[name].objects.values() if name in self._rivals else ():
                if found.spec.get("replicas") != 0 and found.metadata.deletion_timestamp is None:
                    return f"{found.metadata.namespace}/{name}"
        return ""

    async def wait_for_revision(self, key: JobKey, revision: str) -> None:
        """Returns once what was written to a job has been seen."""
        if revision.isdecimal():
            followed = zip(self._namespaces, self._jobs.get(key.resource, ()), strict=False)
            here = (one for namespace, one in followed if namespace in ("", key.namespace))
            await asyncio.gather(*(one.wait_for_revision(int(revision)) for one in here))

    def _wake_owner(self, meta: Meta) -> None:
        for owner in meta.owner_references or ():
            resource = self._kinds.get((owner.api_version.partition("/")[0], owner.kind))
            if resource is not None:
                self._wake(JobKey(resource, meta.namespace, owner.name))

    def _take_groups(self, changes: Sequence[ObjectChange[RawObject]]) -> None:
        """Wakes the jobs of a group's name, whoever owns it: what is in the way of one belongs to another."""
        for change in changes:
            meta = change.object.metadata
            for resource in self._jobs:
                key = JobKey(resource, meta.namespace, meta.name)
                if self.job(key) is not None:
                    self._wake(key)

    def _take_rivals(self, _changes: object) -> None:
        for resource, informers in self._jobs.items():
            for namespace, name in _names(informers):
                self._wake(JobKey(resource, namespace, name))


def _names(informers: Iterable[Informer[RawObject]]) -> list[tuple[str, str]]:
    return [key for informer in informers for key in informer.objects]


def _find(informers: Iterable[Informer[RawObject]], namespace: str, name: str) -> RawObject | None:
    return next((one.objects[namespace, name] for one in informers if (namespace, name) in one.objects), None)
