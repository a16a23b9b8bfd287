"""Carries out what has to be done about a job, through the API."""

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
    RecordRestarts,
    Tell,
    UpdateStatus,
)
from gpu_scheduler.operator.pod_groups import PodGroupApi

AT_ONCE = 8
_TOGETHER = (CreatePod, CreateService, DeletePod, DeleteService)


class TakenError(Exception):
    """There is an object of this name already, and it is not the job's."""


class ActionExecutor:
    """Carries out the actions of one look at a job. Pods and Services go out several at once, all else one by one."""

    def __init__(
        self, client: Client, resource: Resource, meta: Meta, gang: PodGroupApi | None, recorder: EventRecorder
    ) -> None:
        self._client = client
        self._resource = resource
        self._meta = meta
        self._gang = gang
        self._recorder = recorder
        self.revision = meta.resource_version
        """The job's version after what has been written to it."""

    async def carry(self, actions: Sequence[Action]) -> None:
        """Carries the actions out in their order; what the first that fails raises, is raised."""
        for batch in _batches(actions):
            outcomes = await asyncio.gather(*map(self._carry_one, batch), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _carry_one(self, action: Action) -> None:
        name, namespace = self._meta.name, self._meta.namespace
        match action:
            case CreatePod(body):
                await self._create(PODS, body)
            case CreateService(body):
                await self._create(SERVICES, body)
            case CreateConfigMap(body):
                await self._create(CONFIG_MAPS, body)
            case CreateGroup(body):
                await self._create(self._groups, body)
            case DeletePod(other, uid):
                await self._delete(PODS, other, uid)
            case DeleteService(other, uid):
                await self._delete(SERVICES, other, uid)
            case DeleteGroup(other, uid):
                await self._delete(self._groups, other, uid)
            case PatchGroup(other, body):
                await self._client.patch(self._groups, other, body, namespace)
            case RecordRestarts(annotations):
                await self._write({"metadata": {"annotations": annotations}})
            case UpdateStatus(status):
                await self._write({"status": status}, "status")
            case DeleteJob():
                await self._client.delete(self._resource, name, namespace, uid=self._meta.uid)
            case Tell(kind, reason, message):
                self._tell(kind, reason, message)

    @property
    def _groups(self) -> Resource:
        assert self._gang is not None
        return self._gang.resource

    async def _write(self, body: Json, subresource: str = "") -> None:
        """Changes the job, if it still is what has been looked at."""
        meta = {**body.get("metadata", {}), "uid": self._meta.uid, "resourceVersion": self.revision}
        changed = await self._client.patch(
            self._resource, self._meta.name, {**body, "metadata": meta}, self._meta.namespace, subresource, type=Object
        )
        self.revision = changed.metadata.resource_version

    async def _create(self, resource: Resource, body: Json) -> None:
        """Makes an object of the job's; that it has been made before is as good."""
        name = body["metadata"]["name"]
        try:
            await self._client.create(resource, body, self._meta.namespace, type=Object)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise  # a quota that others write to, for one: it has not been made
            if await self._is_own(resource, name):
                return
            what = f"there is a {resource.kind} {name} already, and it is not the job's; delete one of them"
            self._tell("Warning", f"FailedCreate{resource.kind}", what)
            raise TakenError(what) from None
        except ApiError as error:
            self._tell("Warning", f"FailedCreate{resource.kind}", f"Error creating: {error.message}")
            raise
        self._tell("Normal", f"SuccessfulCreate{resource.kind}", f"Created {_word(resource)}: {name}")

    async def _is_own(self, resource: Resource, name: str) -> bool:
        """Whether the object of a name is the job's; Conflict if it is gone just now, or will be."""
        try:
            found = await self._client.get(resource, name, self._meta.namespace, type=Object)
        except NotFound:
            raise Conflict(409, "Conflict", f"{resource.kind} {name} has gone meanwhile") from None
        owners = found.metadata.owner_references or ()
        if any(owner.uid == self._meta.uid for owner in owners):
            return True
        if any((owner.kind, owner.name) == (self._resource.kind, self._meta.name) for owner in owners):
            raise Conflict(409, "Conflict", f"{resource.kind} {name} of an earlier job is still there")
        return False

    async def _delete(self, resource: Resource, name: str, uid: str) -> None:
        try:
            await self._client.delete(resource, name, self._meta.namespace, uid=uid)
        except (NotFound, Conflict):
            return  # it is gone, and what has its name now is another's
        self._tell("Normal", f"SuccessfulDelete{resource.kind}", f"Deleted {_word(resource)}: {name}")

    def _tell(self, kind: EventType, reason: str, message: str) -> None:
        self._recorder.record(reference_to(self._resource, self._meta), kind, reason, message)


def _word(resource: Resource) -> str:
    return resource.kind if resource.kind == "PodGroup" else resource.kind.lower()


def _batches(actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """Runs of actions that may go out together."""
    for kind, run in groupby(actions, type):
        found = list(run)
        size = AT_ONCE if kind in _TOGETHER else 1
        yield from (found[i : i + size] for i in range(0, len(found), size))
