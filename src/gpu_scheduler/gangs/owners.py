"""Owners: a cache of the jobs that own gang objects, fetched on first use."""

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

_RETRY_INTERVAL = 5.0

_log = structlog.get_logger(__name__)


class Owners:
    """Answers from the cache; fetches what is missing, and calls `arrived` when the fetch has ended."""

    def __init__(self, client: Client, arrived: Callable[[], None]) -> None:
        self.served = Served(())
        self._client = client
        self._arrived = arrived
        self._found: dict[str, Json | None] = {}
        self._used: set[str] = set()
        self._fetching: dict[str, asyncio.Task[None]] = {}

    def find(self, namespace: str, owner: OwnerReference) -> Json | None:
        """Returns the object of an owner reference: {} while it is being fetched, None if it cannot be read."""
        self._used.add(owner.uid)
        if owner.uid not in self._found and owner.uid not in self._fetching:
            resource = self._resource_of(owner)
            if resource is None:
                return None
            task = asyncio.ensure_future(self._fetch(resource, namespace, owner))
            self._fetching[owner.uid] = task
            task.add_done_callback(lambda _: self._fetching.pop(owner.uid, None))
        return self._found.get(owner.uid, {})

    def forget_unused(self) -> None:
        """Drops the objects that were not used since the last call."""
        self._found = {uid: found for uid, found in self._found.items() if uid in self._used}
        self._used.clear()

    def close(self) -> None:
        """Cancels the fetches."""
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
                    "reading an owner failed", owner=f"{owner.kind} {namespace}/{owner.name}", error=error.message
                )
                found = None
                break
            except ApiError:
                await asyncio.sleep(_RETRY_INTERVAL)
        self._found[owner.uid] = found
        self._arrived()
