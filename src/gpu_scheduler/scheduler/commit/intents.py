"""Intents: decisions written as Placements before they are carried out, in chunks that an API server accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
import structlog

from gpu_scheduler.base import backoff
from gpu_scheduler.core.cluster.device_table import MAX_DEVICES
from gpu_scheduler.core.events import Bind, Commit, Delete, DeleteCause
from gpu_scheduler.gangs.contract import FINALIZER, PLACEMENTS
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import ApiError, Conflict, NotFound
from gpu_scheduler.k8s.objects import Meta, Object
from gpu_scheduler.k8s.tasks import gather_or_cancel

CHUNK = 512 * 1024
"""The largest chunk, in bytes: API servers refuse objects of about 1.5 MB."""

DELETE_ATTEMPTS = 5
"""How often the deletion of an intent is attempted before it is left for later."""

DELETE_BACKOFF = 0.5
"""Delay after the first failed attempt, in seconds; it doubles with each."""

_log = structlog.get_logger(__name__)


class BindEntry(msgspec.Struct):
    """A bind in a Placement."""

    uid: str
    namespace: str
    name: str
    attempt: int
    node: str
    devices: list[Annotated[int, msgspec.Meta(ge=0, lt=MAX_DEVICES)]] = []
    queue: str = ""


class DeleteEntry(msgspec.Struct):
    """A delete in a Placement."""

    uid: str
    namespace: str
    name: str
    cause: DeleteCause


class PlacementSpec(msgspec.Struct):
    """One chunk of a commit."""

    epoch: int
    sequence: int
    chunk: int
    chunks: int
    size: int
    binds: list[BindEntry] = []
    deletes: list[DeleteEntry] = []


class PlacementObject(msgspec.Struct):
    """A Placement as stored in the API."""

    metadata: Meta
    spec: PlacementSpec


class MissingIntentError(Exception):
    """The Lease names an intent that does not exist, so what it committed to is unknown."""


async def _prove_nothing() -> None:
    """The default, for readers: they delete nothing and need not lead."""


class Intents:
    """The Placements of the scheduler's namespace.

    `prove` raises unless this process still leads. A Placement of another leader is deleted only if it was seen before
    a successful `prove`, because a later leader writes after that. Epochs alone are not sufficient: counting starts
    again with a new Lease.
    """

    def __init__(self, client: Client, namespace: str, prove: Callable[[], Awaitable[None]] = _prove_nothing) -> None:
        self._client = client
        self._namespace = namespace
        self._prove = prove
        self._undeleted: dict[str, str] = {}
        """Void intents that could not be deleted yet."""

    async def write(self, epoch: int, commit: Commit) -> dict[str, str]:
        """Writes a commit, retrying until it succeeds; returns the names and uids of its chunks."""
        chunks = list(_split(commit))
        specs = [
            PlacementSpec(epoch, commit.sequence, number, len(chunks), len(binds) + len(deletes), binds, deletes)
            for number, (binds, deletes) in enumerate(chunks)
        ]
        return dict(await gather_or_cancel(self._create(spec) for spec in specs))

    async def _create(self, spec: PlacementSpec) -> tuple[str, str]:
        name = f"{spec.epoch}-{spec.sequence}-{spec.chunk}"
        while True:
            try:
                return name, await self._try_create(name, spec)
            except ApiError as error:
                _log.warning("placement write failed, retrying", placement=name, error=error.message)
                await asyncio.sleep(error.retry_after or 1.0)

    async def _try_create(self, name: str, spec: PlacementSpec) -> str:
        """Creates a chunk, or finds it already created; returns its uid."""
        meta = {"name": name, "namespace": self._namespace, "finalizers": [FINALIZER]}
        body = {"apiVersion": PLACEMENTS.api_version, "kind": PLACEMENTS.kind, "metadata": meta, "spec": spec}
        try:
            return (await self._client.create(PLACEMENTS, body, self._namespace, type=Object)).metadata.uid
        except Conflict:
            found = await self._client.get(PLACEMENTS, name, self._namespace, type=PlacementObject)
            if found.spec == spec:
                return found.metadata.uid  # only the response was lost
            await self._prove()
            await self.delete({name: found.metadata.uid})
            raise

    async def read(self, committed: Mapping[str, str]) -> tuple[Commit, ...]:
        """Reads the commits that the Lease names."""
        found: dict[int, list[PlacementSpec]] = {}
        for name, uid in committed.items():
            try:
                placement = await self._client.get(PLACEMENTS, name, self._namespace, type=PlacementObject)
            except NotFound:
                placement = None
            if placement is None or placement.metadata.uid != uid:
                raise MissingIntentError(
                    f"the Lease names Placement {self._namespace}/{name}, which does not exist: someone deleted it. "
                    "Check that no two pods use one GPU, then take the name out of the Lease's annotation"
                )
            found.setdefault(placement.spec.sequence, []).append(placement.spec)
        return tuple(_join(sequence, specs) for sequence, specs in sorted(found.items()))

    async def delete(self, placements: Mapping[str, str]) -> None:
        """Deletes intents that the Lease no longer names. They are void; a failed deletion is repeated later."""
        self._undeleted |= placements
        for name, uid in placements.items():
            for failures in range(DELETE_ATTEMPTS):
                try:
                    await self._try_delete(name, uid)
                    self._undeleted.pop(name, None)
                    break
                except ApiError as error:
                    _log.info("placement deletion failed", placement=name, error=error.message)
                    await asyncio.sleep(backoff.exponential(failures, 30.0, DELETE_BACKOFF))

    async def _try_delete(self, name: str, uid: str) -> None:
        """Deletes a chunk, unless it is gone or another object has its name."""
        try:
            patch = {"metadata": {"uid": uid, "finalizers": None}}
            await self._client.patch(PLACEMENTS, name, patch, self._namespace)
            await self._client.delete(PLACEMENTS, name, self._namespace, uid=uid)
        except NotFound:
            return
        except Conflict:
            # Either another object has the name, or the server conflicted with itself: read it to find out.
            if await self._exists(name, uid):
                raise

    async def _exists(self, name: str, uid: str) -> bool:
        try:
            return (await self._client.get(PLACEMENTS, name, self._namespace, type=Object)).metadata.uid == uid
        except NotFound:
            return False

    async def delete_void(self, epoch: int, committed: Mapping[str, str]) -> None:
        """Deletes intents of leaders before this epoch that are not in the committed set, and repeats deletions that
        failed: a term may last for months."""
        listed = await self._client.list(PLACEMENTS, self._namespace, type=PlacementObject)
        others = {p.metadata.name: p.metadata.uid for p in listed.items if p.spec.epoch < epoch}
        void = {name: uid for name, uid in others.items() if committed.get(name) != uid}
        if void:
            await self._prove()
        await self.delete(self._undeleted | void)


def _split(commit: Commit) -> Iterator[tuple[list[BindEntry], list[DeleteEntry]]]:
    """Splits the entries into chunks that stay below CHUNK as JSON."""
    binds: list[BindEntry] = []
    deletes: list[DeleteEntry] = []
    size = 0
    for entry in _entries(commit):
        length = len(msgspec.json.encode(entry)) + 1
        if size + length > CHUNK:
            yield binds, deletes
            binds, deletes, size = [], [], 0
        size += length
        if isinstance(entry, BindEntry):
            binds.append(entry)
        else:
            deletes.append(entry)
    yield binds, deletes


def _entries(commit: Commit) -> Iterator[BindEntry | DeleteEntry]:
    for bind in commit.binds:
        yield BindEntry(bind.uid, bind.namespace, bind.name, bind.attempt, bind.node, list(bind.devices), bind.queue)
    for delete in commit.deletes:
        yield DeleteEntry(delete.uid, delete.namespace, delete.name, delete.cause)


def _join(sequence: int, specs: Iterable[PlacementSpec]) -> Commit:
    """Joins the chunks of a commit. One swap names all of them, so none is missing."""
    ordered = sorted(specs, key=lambda spec: spec.chunk)
    binds = [
        Bind(b.uid, b.namespace, b.name, b.attempt, b.node, tuple(b.devices), b.queue)
        for spec in ordered
        for b in spec.binds
    ]
    deletes = [Delete(d.uid, d.namespace, d.name, d.cause) for spec in ordered for d in spec.deletes]
    return Commit(sequence, tuple(binds), tuple(deletes))
