"""ActionExecutor: sends the actions on a job to the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound
from gpu_scheduler.k8s.event_recorder import EventRecorder, EventType, reference_to
from gpu_scheduler.k8s.objects import Json, Meta, Object
from gpu_scheduler.k8s.resources import CONFIG_MAPS, PODS, SERVICES, Resource
from gpu_scheduler.operator.actions import (
    Action,
    CreateConfigMap,
    CreateGroup,
    CreatePod,
    CreateService,
    DeleteGroup,
    DeleteJob,
    DeletePod,
    DeleteService,
    PatchGroup,
    RecordEvent,
    RecordRestarts,
    UpdateStatus,
)
from gpu_scheduler.operator.pod_groups import PodGroupApi

MAX_CONCURRENT = 8
"""How many requests for one job are in flight at a time."""
_CONCURRENT = (CreatePod, CreateService, DeletePod, DeleteService)


class NameTakenError(Exception):
    """An object with the name that the job needs exists and belongs to another owner."""


class ActionExecutor:
    """Executes the actions of one reconciliation: pods and Services concurrently, everything else one by one."""

    def __init__(
        self, client: Client, resource: Resource, meta: Meta, groups: PodGroupApi | None, recorder: EventRecorder
    ) -> None:
        self._client = client
        self._resource = resource
        self._meta = meta
        self._groups = groups
        self._recorder = recorder
        self.resource_version = meta.resource_version
        """The job's version after the last write to it."""

    async def execute(self, actions: Sequence[Action]) -> None:
        """Executes the actions in their order; raises what the first failing action raises."""
        for batch in _batches(actions):
            outcomes = await asyncio.gather(*map(self._execute_one, batch), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _execute_one(self, action: Action) -> None:
        name, namespace = self._meta.name, self._meta.namespace
        match action:
            case CreatePod(body):
                await self._create(PODS, body)
            case CreateService(body):
                await self._create(SERVICES, body)
            case CreateConfigMap(body):
                await self._create(CONFIG_MAPS, body)
            case CreateGroup(body):
                await self._create(self._group_resource, body)
            case DeletePod(other, uid):
                await self._delete(PODS, other, uid)
            case DeleteService(other, uid):
                await self._delete(SERVICES, other, uid)
            case DeleteGroup(other, uid):
                await self._delete(self._group_resource, other, uid)
            case PatchGroup(other, body):
                await self._client.patch(self._group_resource, other, body, namespace)
            case RecordRestarts(annotations):
                await self._patch_job({"metadata": {"annotations": annotations}})
            case UpdateStatus(status):
                await self._patch_job({"status": status}, "status")
            case DeleteJob():
                await self._client.delete(self._resource, name, namespace, uid=self._meta.uid)
            case RecordEvent(kind, reason, message):
                self._record(kind, reason, message)

    @property
    def _group_resource(self) -> Resource:
        assert self._groups is not None
        return self._groups.resource

    async def _patch_job(self, body: Json, subresource: str = "") -> None:
        """Patches the job with the precondition that it has not changed since it was read."""
        meta = {**body.get("metadata", {}), "uid": self._meta.uid, "resourceVersion": self.resource_version}
        changed = await self._client.patch(
            self._resource, self._meta.name, {**body, "metadata": meta}, self._meta.namespace, subresource, type=Object
        )
        self.resource_version = changed.metadata.resource_version

    async def _create(self, resource: Resource, body: Json) -> None:
        """Creates an object of the job, unless an earlier attempt has."""
        name = body["metadata"]["name"]
        try:
            await self._client.create(resource, body, self._meta.namespace, type=Object)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise  # such as a ResourceQuota that other writers update: the object was not created
            if await self._is_own(resource, name):
                return
            what = f"a {resource.kind} {name} exists and is not owned by this job; delete it, or rename the job"
            self._record("Warning", f"FailedCreate{resource.kind}", what)
            raise NameTakenError(what) from None
        except ApiError as error:
            self._record("Warning", f"FailedCreate{resource.kind}", f"Error creating: {error.message}")
            raise
        self._record("Normal", f"SuccessfulCreate{resource.kind}", f"Created {_noun(resource)}: {name}")

    async def _is_own(self, resource: Resource, name: str) -> bool:
        """Returns whether the job owns the object with this name; raises Conflict if it is gone, or about to be."""
        try:
            found = await self._client.get(resource, name, self._meta.namespace, type=Object)
        except NotFound:
            raise Conflict(409, "Conflict", f"{resource.kind} {name} was deleted meanwhile") from None
        owners = found.metadata.owner_references or ()
        if any(owner.uid == self._meta.uid for owner in owners):
            return True
        if any((owner.kind, owner.name) == (self._resource.kind, self._meta.name) for owner in owners):
            raise Conflict(409, "Conflict", f"{resource.kind} {name} of an earlier job still exists")
        return False

    async def _delete(self, resource: Resource, name: str, uid: str) -> None:
        try:
            await self._client.delete(resource, name, self._meta.namespace, uid=uid)
        except (NotFound, Conflict):
            return  # it is gone, and an object that has its name now is another one
        self._record("Normal", f"SuccessfulDelete{resource.kind}", f"Deleted {_noun(resource)}: {name}")

    def _record(self, kind: EventType, reason: str, message: str) -> None:
        self._recorder.record(reference_to(self._resource, self._meta), kind, reason, message)


def _noun(resource: Resource) -> str:
    return resource.kind if resource.kind == "PodGroup" else resource.kind.lower()


def _batches(actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """Yields runs of actions that may be executed concurrently."""
    for kind, run in groupby(actions, type):
        found = list(run)
        size = MAX_CONCURRENT if kind in _CONCURRENT else 1
        yield from (found[i : i + size] for i in range(0, len(found), size))
