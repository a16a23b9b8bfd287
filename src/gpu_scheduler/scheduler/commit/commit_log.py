"""The commit log: the leader Lease carries the set of committed intents, which every leader carries out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Self

import msgspec

from gpu_scheduler.gangs.contract import COMMITTED, EPOCH, FINALIZER, PLACEMENTS, QUARANTINED, SERVES, SETBACKS
from gpu_scheduler.gangs.pods.device_map import read_number
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.leader_election import Candidate, LeaderElection, LeaseObject
from gpu_scheduler.k8s.objects import Meta, Object

_DEFAULTS = {EPOCH: "0", COMMITTED: "{}"}


class CommitLease(LeaseObject, rename="camel"):
    """The leader Lease as stored in the API, with the committed set in its annotations."""

    def __post_init__(self) -> None:
        # A Lease with an unreadable committed set must not be acquired: taken for empty, it would give GPUs away twice.
        if read_number(self._annotation(EPOCH)) is None:
            raise ValueError(f"metadata.annotations[{EPOCH}] must be a number, the last epoch, or be left out")
        try:
            _ = self.committed
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            right = "an object of Placements and their uids, as kubectl get placements shows them, or be left out"
            raise ValueError(f"metadata.annotations[{COMMITTED}] must be {right}") from None

    def _annotation(self, name: str) -> str:
        return (self.metadata.annotations or {}).get(name) or _DEFAULTS[name]

    @property
    def epoch(self) -> int:
        """How often the Lease has been acquired, counted on when the Lease is created again."""
        return int(self._annotation(EPOCH))

    @property
    def committed(self) -> dict[str, str]:
        """Names and uids of the committed intents."""
        return msgspec.json.decode(self._annotation(COMMITTED), type=dict[str, str])

    @property
    def serves(self) -> tuple[str, ...]:
        """The scheduler names that the leader serves."""
        text = (self.metadata.annotations or {}).get(SERVES, "")
        return tuple(name for name in text.split(",") if name)

    @property
    def quarantined(self) -> str:
        """The quarantines that the leader publishes, as text."""
        return (self.metadata.annotations or {}).get(QUARANTINED, "")

    @property
    def setbacks(self) -> str:
        """The setbacks that the leader publishes, as text."""
        return (self.metadata.annotations or {}).get(SETBACKS, "")

    def with_committed(self, committed: Mapping[str, str]) -> Self:
        """This Lease with another committed set."""
        annotations = {**(self.metadata.annotations or {}), COMMITTED: _encode(committed)}
        return msgspec.structs.replace(self, metadata=msgspec.structs.replace(self.metadata, annotations=annotations))


class CommitLog(LeaderElection[CommitLease]):
    """Leader election whose Lease carries the committed set: leadership and commits change by the same swap.

    Every write also publishes the annotations that `published` returns, for the commands.
    """

    def __init__(
        self,
        client: Client,
        candidate: Candidate,
        serves: tuple[str, ...] = (),
        count_swap: Callable[[str], None] = lambda outcome: None,
        published: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        super().__init__(client, candidate, CommitLease, count_swap)
        self._serves = serves
        self._published = published

    @property
    def committed(self) -> dict[str, str]:
        """The committed set as it was last written or read."""
        return self._seen.committed if self._seen is not None else {}

    async def swap(self, add: Mapping[str, str], remove: Collection[str]) -> None:
        """Adds to and removes from the committed set, which also renews the Lease; raises FencedError when it is lost.

        The wanted set is written again until the Lease has it: a change by another writer does not survive.
        """
        async with self._lock:
            wanted = {name: uid for name, uid in (self.committed | dict(add)).items() if name not in remove}
            await self._swap(lambda lease: lease.with_committed(wanted), lambda lease: lease.committed == wanted)

    async def renew(self) -> None:
        """Renews the Lease with an unchanged committed set; raises FencedError when it is lost."""
        await self.swap({}, ())

    async def prove(self) -> None:
        """Returns once the Lease was found to be still ours, by renewing it; raises FencedError when it is lost."""
        await self.renew()

    async def _initial_annotations(self) -> dict[str, str]:
        """The last epoch of a Lease that is gone, from the names of its Placements: no such name may be used again."""
        left = await self._client.list(PLACEMENTS, self._candidate.namespace, type=Object)
        epochs = [found.metadata.name.split("-")[0] for found in left.items]
        return {EPOCH: str(max((int(epoch) for epoch in epochs if epoch.isdecimal()), default=0))}

    def _metadata(self, lease: CommitLease, epoch: int, holder: str) -> Meta:
        committed = lease.committed
        annotations = {EPOCH: str(epoch), COMMITTED: _encode(committed), SERVES: ",".join(self._serves)}
        annotations |= {QUARANTINED: "", SETBACKS: "", **self._published()}
        # The finalizer keeps the committed set from being lost. A deleted or released Lease with nothing committed
        # does without. The API server accepts no new finalizer on an object that is being deleted.
        finalizers = [name for name in lease.metadata.finalizers or () if name != FINALIZER]
        deleting = lease.metadata.deletion_timestamp is not None
        if committed or not (deleting or holder == ""):
            finalizers += [FINALIZER] if not deleting or FINALIZER in (lease.metadata.finalizers or ()) else []
        return msgspec.structs.replace(
            lease.metadata, annotations={**(lease.metadata.annotations or {}), **annotations}, finalizers=finalizers
        )


def _encode(committed: Mapping[str, str]) -> str:
    return msgspec.json.encode(committed).decode()
