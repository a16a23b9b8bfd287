"""Who of several operators works: a plain Lease. Two at once would be harmless, for everything is done by name."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import msgspec
import structlog

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound
from gpu_scheduler.k8s.objects import Meta
from gpu_scheduler.k8s.resources import LEASES
from gpu_scheduler.k8s.times import format_micro_time

_log = structlog.get_logger(__name__)


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """Who leads, and until when unless they say so again."""

    holder_identity: str = ""
    lease_duration_seconds: int = 15
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class LeaseObject(msgspec.Struct, rename="camel"):
    """The Lease as the API has it."""

    metadata: Meta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who wants to lead, by which Lease, and the scheduler names that it serves."""

    namespace: str
    name: str
    identity: str
    serves: tuple[str, ...] = ()
    duration: float = 15.0
    renew: float = 2.0


class LostError(Exception):
    """The Lease is another's."""


class Election:
    """One candidate. Every write is a compare-and-swap on the Lease's resourceVersion."""

    def __init__(self, client: Client, candidate: Candidate) -> None:
        self._client = client
        self._candidate = candidate
        self._seen: LeaseObject | None = None
        self._seen_at = 0.0
        self._taking = False
        self.held = False

    async def acquire(self) -> str:
        """Waits until the Lease can be taken, and takes it; the revision at which that was done."""
        while True:
            try:
                taken = await self._try_acquire()
                if taken is not None:
                    self.held = True
                    return taken.metadata.resource_version
            except Conflict:
                pass  # another was quicker
            except ApiError as error:
                _log.warning("the Lease cannot be read or written", error=error.message)
            await asyncio.sleep(min(1.0, self._candidate.duration / 5))

    async def keep(self) -> None:
        """Renews the Lease for ever; LostError once another has it, or it could not be renewed in time."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._candidate.renew)
            try:
                assert self._seen is not None
                self._seen = await self._put(self._seen, self._candidate.identity)
                renewed = time.monotonic()
            except ApiError as error:
                await self._look_again(error)
                if time.monotonic() - renewed > self._candidate.duration:
                    raise LostError("the Lease could not be renewed in time") from None

    async def release(self) -> None:
        """Gives the Lease up, so that the next need not wait."""
        if self._seen is None or not (self.held or self._taking):
            return
        self.held = False
        try:
            # What was broken off may have landed: a renewal, and also the write that takes the Lease.
            found = await self._get()
            if found.spec.holder_identity == self._candidate.identity:
                await self._put(found, "")
        except ApiError as error:
            _log.warning("the Lease was not released, it will expire", error=error.message)

    async def _look_again(self, error: ApiError) -> None:
        """After a write that failed: whoever holds the Lease now."""
        _log.warning("the Lease was not renewed", error=error.message)
        try:
            found = await self._get()
        except NotFound:
            raise LostError("the Lease was deleted") from None
        except ApiError:
            return
        if found.spec.holder_identity != self._candidate.identity:
            raise LostError(f"{found.spec.holder_identity or 'nobody'} holds the Lease") from None
        self._seen = found

    async def _try_acquire(self) -> LeaseObject | None:
        lease = await self._get_or_create()
        if self._seen is None or self._seen.metadata.resource_version != lease.metadata.resource_version:
            self._seen, self._seen_at = lease, time.monotonic()
        # The holder's clock is not ours: what counts is how long we have seen nothing new.
        expired = time.monotonic() - self._seen_at > lease.spec.lease_duration_seconds
        if lease.spec.holder_identity not in ("", self._candidate.identity) and not expired:
            return None
        self._taking = True
        self._seen = await self._put(lease, self._candidate.identity, taken=True)
        return self._seen

    async def _get(self) -> LeaseObject:
        return await self._client.get(LEASES, self._candidate.name, self._candidate.namespace, type=LeaseObject)

    async def _get_or_create(self) -> LeaseObject:
        try:
            return await self._get()
        except NotFound:
            fresh = LeaseObject(Meta(name=self._candidate.name, namespace=self._candidate.namespace))
            return await self._client.create(LEASES, _body(fresh), self._candidate.namespace, type=LeaseObject)

    async def _put(self, lease: LeaseObject, holder: str, *, taken: bool = False) -> LeaseObject:
        now = format_micro_time(time.time())
        spec = msgspec.structs.replace(
            lease.spec,
            holder_identity=holder,
            lease_duration_seconds=max(1, round(self._candidate.duration)),
            renew_time=now,
            acquire_time=now if taken else lease.spec.acquire_time,
            lease_transitions=lease.spec.lease_transitions + taken,
        )
        body = _body(LeaseObject(lease.metadata, spec))
        return await self._client.replace(
            LEASES, body, self._candidate.name, self._candidate.namespace, type=LeaseObject
        )


def _body(lease: LeaseObject) -> object:
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": lease.metadata, "spec": lease.spec}
