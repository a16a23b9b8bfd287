"""Leader election by a Lease, in the manner of client-go, with an epoch that fences former leaders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import structlog

from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound, Undecided
from gpu_scheduler.k8s.objects import Meta
from gpu_scheduler.k8s.resources import LEASES
from gpu_scheduler.k8s.times import format_micro_time

POLL = 1.0
"""How often a standby reads the Lease, in seconds."""

_WRITE_RETRY = 0.2
"""Delay before a failed write is looked into and retried, in seconds."""

_log = structlog.get_logger(__name__)


class FencedError(Exception):
    """The Lease belongs to another holder or epoch, or is deleted: this process no longer leads and must stop."""


class LeaseSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """The holder of a Lease, and how long after its last renewal the Lease expires."""

    holder_identity: str = ""
    lease_duration_seconds: int = 15
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class LeaseObject(msgspec.Struct, rename="camel"):
    """A Lease as stored in the API."""

    metadata: Meta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)

    @property
    def epoch(self) -> int:
        """How often the Lease has been acquired."""
        return self.spec.lease_transitions


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate's identity, the Lease it competes for, and its timing in seconds."""

    namespace: str
    name: str
    identity: str
    duration: float = 15.0
    renew: float = 2.0


L = TypeVar("L", bound=LeaseObject)


class LeaderElection(Generic[L]):
    """One candidate for a Lease. Every write is a compare-and-swap on the Lease's resourceVersion.

    A subclass stores more in the Lease by overriding `_initial_annotations` and `_metadata`.
    """

    def __init__(
        self,
        client: Client,
        candidate: Candidate,
        lease_type: type[L],
        count_write: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._client = client
        self._candidate = candidate
        self._type = lease_type
        self._count_write = count_write
        self._lock = asyncio.Lock()
        self._seen: L | None = None
        """The Lease as it was last read or written."""
        self._seen_at = 0.0
        self._acquiring = False
        """Whether a write that acquires the Lease was sent and its outcome is not known."""
        self.held = False

    @property
    def epoch(self) -> int:
        """The epoch of this leader's term."""
        return self._seen.epoch if self._seen is not None else 0

    # -- acquire

    async def acquire(self) -> L:
        """Waits until the Lease is free or expired and acquires it, which raises the epoch; returns the Lease."""
        while not await self.try_acquire():  # noqa: ASYNC110 - the Lease changes on the server
            await asyncio.sleep(min(POLL, self._candidate.duration / 5))
        assert self._seen is not None
        return self._seen

    async def try_acquire(self) -> bool:
        """Acquires the Lease if it is free or expired; returns whether it is held now."""
        self.held = False
        try:
            self.held = await self._try_acquire()
            self._acquiring = False
        except ApiError as error:  # the write may have landed all the same
            _log.warning("leader lease acquisition failed", error=error.message)
        return self.held

    async def _try_acquire(self) -> bool:
        lease = await self._read_or_create()
        self._acquiring = False  # this read shows whether an earlier write landed
        if self._seen is None or self._seen.metadata.resource_version != lease.metadata.resource_version:
            self._seen, self._seen_at = lease, time.monotonic()
        # The holder's clock is not compared with ours: the Lease expires when it has not changed for its duration.
        expired = time.monotonic() - self._seen_at > lease.spec.lease_duration_seconds
        # A holder with our identity is an earlier process of ours. If it still runs, the new epoch fences it.
        if lease.spec.holder_identity not in ("", self._candidate.identity) and not expired:
            return False
        self._acquiring = True
        try:
            self._seen = await self._put(lease, acquire=True)
        except Conflict:
            return False
        except Undecided:
            found = await self._get()
            if found.spec.holder_identity != self._candidate.identity or found.epoch == lease.epoch:
                return False
            self._seen = found  # the write landed, its response was lost
        meta = self._seen.metadata
        # A deleted Lease whose last finalizer this write removed is gone.
        return meta.deletion_timestamp is None or bool(meta.finalizers)

    async def _read_or_create(self) -> L:
        where = self._candidate
        try:
            return await self._get()
        except NotFound:
            meta = Meta(name=where.name, namespace=where.namespace, annotations=await self._initial_annotations())
            try:
                return await self._client.create(LEASES, _body(meta, LeaseSpec()), where.namespace, type=self._type)
            except Conflict:
                return await self._get()

    async def _initial_annotations(self) -> dict[str, str] | None:
        """Annotations of a Lease that is created because there is none."""
        return None

    # -- renew

    async def renew(self) -> None:
        """Renews the Lease, which shows that it is still held; raises FencedError when it is lost."""
        async with self._lock:
            await self._swap(lambda lease: lease, lambda lease: True)

    async def keep_renewed(self, deadline: float | None = None) -> None:
        """Renews the Lease until it is lost, or until a renewal has not succeeded for `deadline` seconds."""
        while True:
            await asyncio.sleep(self._candidate.renew)
            try:
                async with asyncio.timeout(deadline):
                    await self.renew()
            except TimeoutError:
                self.held = False
                raise FencedError("the Lease could not be renewed in time") from None

    async def _swap(self, change: Callable[[L], L], landed: Callable[[L], bool]) -> None:
        """Writes a change of the Lease, which also renews it; raises FencedError when the Lease is lost.

        After a timeout or a conflict it is not known whether the write landed, nor who leads. The Lease is therefore
        read, and the write is retried unless the Lease has changed and has `landed`. The caller holds the lock.
        """
        while True:
            assert self._seen is not None
            try:
                self._seen = await self._put(change(self._seen))
                self._count_write("landed")
                return
            except ApiError as error:
                self._count_write("tried again")
                if not isinstance(error, Conflict):
                    _log.warning("leader lease renewal failed, retrying", error=error.message)
                    await asyncio.sleep(_WRITE_RETRY)
            lease = await self._read()
            changed = lease.metadata.resource_version != self._seen.metadata.resource_version
            self._seen = lease
            if changed and landed(lease):
                return

    # -- release

    async def release(self) -> None:
        """Releases the Lease, so that the next leader need not wait for its expiry."""
        async with self._lock:
            if self._seen is None or not (self.held or self._acquiring):
                return
            # A cancelled write may have landed: a renewal, or the write that acquires the Lease.
            epoch = self.epoch if self.held else self.epoch + 1
            self.held = self._acquiring = False
            try:
                self._seen = await self._read_once(epoch)
                await self._put(self._seen, holder="")
            except (ApiError, FencedError) as error:
                _log.warning("leader lease release failed", error=str(error))

    # -- requests

    async def _read(self) -> L:
        """Reads the Lease, retrying until the server answers; raises FencedError unless it is still ours."""
        while True:
            try:
                return await self._read_once(self.epoch)
            except ApiError as error:
                _log.warning("leader lease read failed, retrying", error=error.message)
                await asyncio.sleep(POLL)

    async def _read_once(self, epoch: int) -> L:
        try:
            found = await self._get()
        except NotFound:
            self.held = False
            raise FencedError("the Lease was deleted") from None
        same = self._seen is not None and found.metadata.uid == self._seen.metadata.uid
        if found.spec.holder_identity != self._candidate.identity or found.epoch != epoch or not same:
            self.held = False
            raise FencedError(f"{found.spec.holder_identity or 'no process'} holds the Lease, epoch {found.epoch}")
        return found

    async def _get(self) -> L:
        return await self._client.get(LEASES, self._candidate.name, self._candidate.namespace, type=self._type)

    async def _put(self, lease: L, *, acquire: bool = False, holder: str | None = None) -> L:
        now = format_micro_time(time.time())
        epoch = lease.epoch + 1 if acquire else lease.epoch
        holder = self._candidate.identity if holder is None else holder
        spec = msgspec.structs.replace(
            lease.spec,
            holder_identity=holder,
            lease_duration_seconds=max(1, round(self._candidate.duration)),
            renew_time=now,
            acquire_time=now if acquire else lease.spec.acquire_time,
            lease_transitions=epoch,
        )
        body = _body(self._metadata(lease, epoch, holder), spec)
        return await self._client.replace(
            LEASES, body, self._candidate.name, self._candidate.namespace, type=self._type
        )

    def _metadata(self, lease: L, epoch: int, holder: str) -> Meta:
        """The metadata to write with an epoch and a holder, which is "" when the Lease is released."""
        return lease.metadata


def _body(meta: Meta, spec: LeaseSpec) -> object:
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": spec}
