"""The leader Lease. It says who leads, and carries the set of commits that will be carried out whoever leads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping

import msgspec
import structlog

from gpu_scheduler.gangs.contract import COMMITTED, EPOCH, FINALIZER, PLACEMENTS, SERVES
from gpu_scheduler.gangs.pods.device_map import read_number
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound
from gpu_scheduler.k8s.leader_election import Candidate, LeaseObject
from gpu_scheduler.k8s.objects import Meta, Object
from gpu_scheduler.k8s.resources import LEASES
from gpu_scheduler.k8s.times import format_micro_time

POLL = 1.0
"""How often a standby looks at the Lease, in seconds."""

_NOTHING = {EPOCH: "0", COMMITTED: "{}"}

_log = structlog.get_logger(__name__)


class FencedError(Exception):
    """The Lease is another's, or of another time: whoever sees this does nothing more."""


class CommitLease(LeaseObject, rename="camel"):
    """The Lease as the API has it, with the commits that it carries."""

    def __post_init__(self) -> None:
        # Nobody may lead by a Lease whose promises cannot be read: to take them for none would give GPUs away twice.
        if read_number(self._note(EPOCH)) is None:
            raise ValueError(f"metadata.annotations[{EPOCH}] must be a number, the last epoch, or be left out")
        try:
            _ = self.committed
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            right = "an object of Placements and their uids, as kubectl get placements shows them, or be left out"
            raise ValueError(f"metadata.annotations[{COMMITTED}] must be {right}") from None

    def _note(self, name: str) -> str:
        return (self.metadata.annotations or {}).get(name) or _NOTHING[name]

    @property
    def epoch(self) -> int:
        """How often it has been acquired."""
        return int(self._note(EPOCH))

    @property
    def committed(self) -> dict[str, str]:
        """The names and uids of the intents that will be carried out."""
        return msgspec.json.decode(self._note(COMMITTED), type=dict[str, str])

    @property
    def serves(self) -> tuple[str, ...]:
        """The scheduler names that the leader serves."""
        text = (self.metadata.annotations or {}).get(SERVES, "")
        return tuple(name for name in text.split(",") if name)


class Lease:
    """One candidate's hold on the Lease. Every write is a compare-and-swap on its resourceVersion."""

    def __init__(
        self, client: Client, candidate: Candidate, count: Callable[[str], None] = lambda outcome: None
    ) -> None:
        self._client = client
        self._candidate = candidate
        self._count = count
        self._lock = asyncio.Lock()
        self._seen: CommitLease | None = None
        self._seen_at = 0.0
        self._taking = False
        self.held = False

    @property
    def epoch(self) -> int:
        """The number of our reign."""
        return self._seen.epoch if self._seen is not None else 0

    @property
    def committed(self) -> dict[str, str]:
        """The set as it was last written or read."""
        return self._seen.committed if self._seen is not None else {}

    # -- to get it

    async def acquire(self) -> None:
        """Waits until the Lease can be taken, and takes it: the epoch rises, the committed set stays."""
        while not await self.acquire_at_once():  # noqa: ASYNC110 - what is waited for happens elsewhere
            await asyncio.sleep(min(POLL, self._candidate.duration / 5))

    async def acquire_at_once(self) -> bool:
        """Takes the Lease if nobody has it, or its holder has been silent for too long; whether it is ours now."""
        self.held = False
        try:
            self.held = await self._try_acquire()
            self._taking = False
        except ApiError as error:  # it may have been taken all the same
            _log.warning("the Lease cannot be read or written", error=error.message)
        return self.held

    async def _try_acquire(self) -> bool:
        lease = await self._read_or_create()
        self._taking = False  # whether an earlier write landed can be seen now
        known = self._seen
        if known is None or known.metadata.resource_version != lease.metadata.resource_version:
            self._seen, self._seen_at = lease, time.monotonic()
        # The holder's clock is not ours: what counts is how long we have seen nothing new.
        expired = time.monotonic() - self._seen_at > lease.spec.lease_duration_seconds
        # A process that finds its own name there has been started anew; the old one, if it lives, is of an older epoch.
        if lease.spec.holder_identity not in ("", self._candidate.identity) and not expired:
            return False
        self._taking = True
        try:
            self._seen = await self._put(lease, lease.committed, acquire=True)
        except Conflict:
            return False
        except ApiError as error:
            if error.status not in (0, 408) and error.status < 500:
                raise
            found = await self._get()
            if found.spec.holder_identity != self._candidate.identity or found.epoch == lease.epoch:
                return False
            self._seen = found  # the answer was lost, the write was not
        meta = self._seen.metadata
        return meta.deletion_timestamp is None or bool(meta.finalizers)  # else that was its end, and nobody leads

    async def _read_or_create(self) -> CommitLease:
        where = self._candidate
        try:
            return await self._get()
        except NotFound:
            notes = {EPOCH: str(await self._last_epoch())}
            fresh = CommitLease(Meta(name=where.name, namespace=where.namespace, annotations=notes))
            try:
                return await self._client.create(LEASES, _body(fresh), where.namespace, type=CommitLease)
            except Conflict:
                return await self._get()

    async def _last_epoch(self) -> int:
        """The last epoch of a Lease that is gone, as Placements tell it: no name that is left may be given again."""
        left = await self._client.list(PLACEMENTS, self._candidate.namespace, type=Object)
        epochs = [found.metadata.name.split("-")[0] for found in left.items]
        return max((int(epoch) for epoch in epochs if epoch.isdecimal()), default=0)

    async def _get(self) -> CommitLease:
        return await self._client.get(LEASES, self._candidate.name, self._candidate.namespace, type=CommitLease)

    # -- to keep and use it

    async def swap(self, add: Mapping[str, str], remove: Collection[str]) -> None:
        """Adds to and takes from the committed set, which also renews the Lease; raises FencedError when it is lost.

        A time-out or a conflict says nothing about who leads, so the Lease is read and the swap tried again.
        """
        async with self._lock:
            assert self._seen is not None
            wanted = {name: uid for name, uid in (self._seen.committed | dict(add)).items() if name not in remove}
            while True:
                try:
                    self._seen = await self._put(self._seen, wanted)
                    self._count("landed")
                    return
                except ApiError as error:
                    self._count("tried again")
                    if not isinstance(error, Conflict):
                        _log.warning("the Lease was not renewed", error=error.message)
                        await asyncio.sleep(0.2)
                lease = await self._read()
                landed = lease.metadata.resource_version != self._seen.metadata.resource_version
                self._seen = lease
                if landed and lease.committed == wanted:
                    return

    async def prove(self) -> None:
        """Returns once the Lease has been found to be still ours; renews it, which nobody else can have done."""
        await self.swap({}, ())

    async def keep(self) -> None:
        """Renews the Lease until it is lost."""
        while True:
            await asyncio.sleep(self._candidate.renew)
            await self.prove()

    async def release(self) -> None:
        """Gives the Lease up at once, so that the next leader need not wait; the committed set stays."""
        async with self._lock:
            if self._seen is None or not (self.held or self._taking):
                return
            # What was broken off may have landed: a swap, and also the write that takes the Lease.
            epoch = self.epoch if self.held else self.epoch + 1
            self.held = self._taking = False
            try:
                self._seen = await self._read_once(epoch)
                await self._put(self._seen, self._seen.committed, holder="")
            except (ApiError, FencedError) as error:
                _log.warning("the Lease was not released", error=str(error))

    async def _read(self) -> CommitLease:
        """The Lease, which must still be ours, however long it takes to hear of it."""
        while True:
            try:
                return await self._read_once(self.epoch)
            except ApiError as error:
                _log.warning("the Lease cannot be read", error=error.message)
                await asyncio.sleep(POLL)

    async def _read_once(self, epoch: int) -> CommitLease:
        try:
            found = await self._get()
        except NotFound:
            raise FencedError("the Lease was deleted") from None
        same = self._seen is not None and found.metadata.uid == self._seen.metadata.uid
        if found.spec.holder_identity != self._candidate.identity or found.epoch != epoch or not same:
            raise FencedError(f"{found.spec.holder_identity or 'nobody'} holds the Lease, epoch {found.epoch}")
        return found

    async def _put(
        self, lease: CommitLease, committed: Mapping[str, str], *, acquire: bool = False, holder: str | None = None
    ) -> CommitLease:
        now = format_micro_time(time.time())
        epoch = lease.epoch + 1 if acquire else lease.epoch
        notes = {EPOCH: str(epoch), COMMITTED: _text(committed), SERVES: ",".join(self._candidate.serves)}
        # What is committed must not be forgotten. A Lease with nothing to remember goes when somebody deletes it.
        kept = [name for name in lease.metadata.finalizers or () if name != FINALIZER]
        deleting = lease.metadata.deletion_timestamp is not None
        if committed or not (deleting or holder == ""):
            kept += [FINALIZER] if not deleting or FINALIZER in (lease.metadata.finalizers or ()) else []
        meta = msgspec.structs.replace(
            lease.metadata,
            annotations={**(lease.metadata.annotations or {}), **notes},
            finalizers=kept,
        )
        spec = msgspec.structs.replace(
            lease.spec,
            holder_identity=self._candidate.identity if holder is None else holder,
            lease_duration_seconds=max(1, round(self._candidate.duration)),
            renew_time=now,
            acquire_time=now if acquire else lease.spec.acquire_time,
            lease_transitions=epoch,
        )
        body = _body(CommitLease(meta, spec))
        return await self._client.replace(
            LEASES, body, self._candidate.name, self._candidate.namespace, type=CommitLease
        )


def _body(lease: CommitLease) -> object:
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": lease.metadata, "spec": lease.spec}


def _text(committed: Mapping[str, str]) -> str:
    return msgspec.json.encode(committed).decode()
