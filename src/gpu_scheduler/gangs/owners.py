"""The jobs behind gang objects, fetched when first asked for: their templates tell what members will need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gpu_scheduler.gangs.jobs import readable_jobs
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.discovery import Served
from gpu_scheduler.k8s.errors import ApiError, NotFound, Refused
from gpu_scheduler.k8s.objects import Json, OwnerReference
from gpu_scheduler.k8s.resources import Resource

_AGAIN = 5.0

_log = structlog.get_logger(__name__)


class Owners:
    """Answers from what it has; what it lacks it fetches, and says so when that has come or cannot be had."""

    def __init__(self, client: Client, arrived: Callable[[], None]) -> None:
        self.served = Served(())
        self._client = client
        self._arrived = arrived
        self._found: dict[str, Json | None] = {}
        self._asked: set[str] = set()
        self._fetching: dict[str, asyncio.Task[None]] = {}

    def find(self, namespace: str, owner: OwnerReference) -> Json | None:
        """The object that an owner reference means: {} while it is on its way, None when it cannot be read."""
        self._asked.add(owner.uid)
        if owner.uid not in self._found and owner.uid not in self._fetching:
            resource = self._resource_of(owner)
            if resource is None:
                return None
            task = asyncio.ensure_future(self._fetch(resource, namespace, owner))
            self._fetching[owner.uid] = task
            task.add_done_callback(lambda _: self._fetching.pop(owner.uid, None))
        return self._found.get(owner.uid, {})

    def forget_unasked(self) -> None:
        """Drops what nobody has asked for since the last call."""
        self._found = {uid: found for uid, found in self._found.items() if uid in self._asked}
        self._asked.clear()

    def close(self) -> None:
        """Stops fetching."""
        for task in self._fetching.values():
            task.cancel()

    def _resource_of(self, owner: OwnerReference) -> Resource | None:
        jobs = readable_jobs(self.served)
        return next((job for job in jobs if (job.api_version, job.kind) == (owner.api_version, owner.kind)), None)

    async def _fetch(self, resource: Resource, namespace: str, owner: OwnerReference) -> None:
        while True:
            try:
                found: Json | None = await self._client.get(resource, owner.name, namespace)
                if found is not None and found["metadata"].get("uid") != owner.uid:
                    found = None
                break
            except (NotFound, Refused) as error:
                _log.info(
                    "an owner cannot be read", owner=f"{owner.kind} {namespace}/{owner.name}", error=error.message
                )
                found = None
                break
            except ApiError:
                await asyncio.sleep(_AGAIN)
        self._found[owner.uid] = found
        self._arrived()
