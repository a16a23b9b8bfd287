"""The object store: current objects and recent changes in memory, durable in SQLite (compare etcd3.store)."""

from __future__ import annotations

import asyncio
import sqlite3
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from embedded_kube.errors import expired
from gpu_scheduler.k8s.objects import Json

NamespacedName = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""

HISTORY_SIZE = 20_000
"""The number of changes of one resource that are kept for watches."""

MAX_PENDING = 50_000
"""The number of unread changes after which a subscription is overrun and its watcher must list again."""

_SCHEMA = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA wal_autocheckpoint=4000",
    "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, revision INTEGER, data BLOB)",
    "CREATE UNIQUE INDEX IF NOT EXISTS by_name ON objects (resource, namespace, name)",
    "CREATE TABLE IF NOT EXISTS last_delete (one INTEGER PRIMARY KEY, revision INTEGER)",
    "INSERT OR IGNORE INTO last_delete VALUES (1, 1)",
)
_SELECT_REVISION = "SELECT max(revision) FROM (SELECT revision FROM objects UNION ALL SELECT revision FROM last_delete)"
_SELECT_ALL = "SELECT resource, namespace, name, revision, data FROM objects"
_UPSERT = (
    "INSERT INTO objects VALUES (?, ?, ?, ?, ?) ON CONFLICT (resource, namespace, name) "
    "DO UPDATE SET revision = excluded.revision, data = excluded.data"
)
_DELETE = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"
_UPDATE_LAST_DELETE = "UPDATE last_delete SET revision = ?"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class StoreEntry:
    """One version of an object, encoded as JSON. Immutable: an update makes a new entry."""

    __slots__ = ("data", "labels", "name", "namespace", "revision")

    def __init__(self, name: NamespacedName, revision: int, data: bytes, labels: dict[str, str]) -> None:
        self.namespace, self.name = name
        self.revision = revision
        self.data = data
        self.labels = labels

    def object(self) -> Json:
        """Decodes the object: a new copy that the caller may change."""
        found: Json = _decode(self.data)
        return found


@dataclass(frozen=True, slots=True)
class StoreChange:
    """A change of an object: ADDED, MODIFIED or DELETED. The entry of a deletion is the last state."""

    kind: str
    entry: StoreEntry
    before: StoreEntry | None


class Subscription:
    """The changes of one resource, in order and complete, for one watcher. Close it when done."""

    def __init__(self, close: Callable[[Subscription], None]) -> None:
        self.pending: deque[StoreChange] = deque()
        self.overrun = False
        self._wake = asyncio.Event()
        self._close = close

    def push(self, change: StoreChange) -> None:
        """Adds a change, or marks the subscription as overrun."""
        if len(self.pending) >= MAX_PENDING:
            self.overrun = True
        else:
            self.pending.append(change)
        self._wake.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits until there is a change to read; False on timeout."""
        if not self.pending and not self.overrun:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), seconds)
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """Unsubscribes."""
        self._close(self)


class _ResourceTable:
    """The objects of one resource, sorted by name, and their latest changes."""

    def __init__(self, compacted: int) -> None:
        self.entries: dict[NamespacedName, StoreEntry] = {}
        self.names: list[NamespacedName] = []
        self.history: deque[StoreChange] = deque(maxlen=HISTORY_SIZE)
        self.watchers: list[Subscription] = []
        self.compacted = compacted


class Store:
    """All objects. Every write is in SQLite before it returns, so acknowledged writes survive a kill.

    Without a path nothing is written to disk.
    """

    def __init__(self, path: Path | None) -> None:
        self.revision = 1
        self._database = _open_database(path) if path is not None else None
        if self._database is not None:
            self.revision = self._database.execute(_SELECT_REVISION).fetchone()[0]
        # A watch cannot start from an earlier revision: deletions before the start are not stored.
        self._started = self.revision
        self._resources: dict[str, _ResourceTable] = {}
        for resource, namespace, name, revision, data in self._database.execute(_SELECT_ALL) if self._database else ():
            labels = _labels(_decode(data))
            self._put(resource, StoreEntry((namespace, name), revision, data, labels))

    def close(self) -> None:
        """Closes the database."""
        if self._database is not None:
            self._database.close()

    def get(self, resource: str, namespace: str, name: str) -> StoreEntry | None:
        """One object."""
        table = self._resources.get(resource)
        return table.entries.get((namespace, name)) if table is not None else None

    def entries(self, resource: str, namespace: str = "") -> Iterator[StoreEntry]:
        """All objects of a resource, of one namespace if given, sorted by namespace and name."""
        table = self._resources.get(resource)
        if table is None:
            return
        names = table.names
        if namespace:
            names = names[bisect_left(names, (namespace, "")) : bisect_left(names, (namespace + "\0", ""))]
        for name in list(names):
            yield table.entries[name]

    def entries_at(self, resource: str, namespace: str, revision: int) -> list[StoreEntry]:
        """All objects as they were at a past revision, in the same order; 410 if its history is no longer kept."""
        table = self._resources.get(resource)
        if table is None or revision >= self.revision:
            return list(self.entries(resource, namespace))
        if revision < table.compacted:
            raise expired(f"too old resource version: {revision} ({table.compacted})")
        previous: dict[NamespacedName, StoreEntry | None] = {}
        for change in reversed(table.history):
            if change.entry.revision <= revision:
                break
            previous[change.entry.namespace, change.entry.name] = change.before
        if not previous:
            return list(self.entries(resource, namespace))
        past = {**table.entries, **previous}
        return [entry for name in sorted(past) if (entry := past[name]) and namespace in ("", entry.namespace)]

    def count(self, resource: str) -> int:
        """The number of objects of a resource."""
        table = self._resources.get(resource)
        return len(table.entries) if table is not None else 0

    def watchers(self, resource: str) -> int:
        """The number of subscriptions to a resource."""
        table = self._resources.get(resource)
        return len(table.watchers) if table is not None else 0

    def write(self, resource: str, obj: Json) -> StoreEntry:
        """Creates or replaces an object; gives it the next resourceVersion."""
        meta = obj["metadata"]
        name = (meta.get("namespace", ""), meta["name"])
        revision = self.revision + 1
        meta["resourceVersion"] = str(revision)
        # apiVersion and kind first, so that lists can cut them off without decoding the object.
        type_meta = {word: obj[word] for word in ("apiVersion", "kind") if word in obj}
        entry = StoreEntry(name, revision, _encode({**type_meta, **obj}), _labels(obj))
        if self._database is not None:
            self._database.execute(_UPSERT, (resource, *name, revision, entry.data))  # one statement commits by itself
        self.revision = revision
        before = self._put(resource, entry)
        self._publish(resource, StoreChange("ADDED" if before is None else "MODIFIED", entry, before))
        return entry

    def remove(self, resource: str, namespace: str, name: str) -> StoreEntry:
        """Deletes an object; its last state carries the resourceVersion of the deletion."""
        table = self._resources[resource]
        before = table.entries[namespace, name]
        last = before.object()
        revision = self.revision + 1
        last["metadata"]["resourceVersion"] = str(revision)
        entry = StoreEntry((namespace, name), revision, _encode(last), before.labels)
        if self._database is not None:
            _delete(self._database, (resource, namespace, name), revision)
        self.revision = revision
        del table.entries[namespace, name]
        del table.names[bisect_left(table.names, (namespace, name))]
        self._publish(resource, StoreChange("DELETED", entry, before))
        return entry

    def subscribe(self, resource: str, since: int | None = None) -> Subscription:
        """Subscribes to every change after a revision (None: from now on); 410 if its history is no longer kept."""
        table = self._resources.setdefault(resource, _ResourceTable(self._started))
        subscription = Subscription(table.watchers.remove)
        if since is not None:
            if since < table.compacted:
                raise expired(f"too old resource version: {since} ({table.compacted})")
            for change in table.history:
                if change.entry.revision > since:
                    subscription.push(change)
        table.watchers.append(subscription)
        return subscription

    def _put(self, resource: str, entry: StoreEntry) -> StoreEntry | None:
        table = self._resources.setdefault(resource, _ResourceTable(self._started))
        name = (entry.namespace, entry.name)
        before = table.entries.get(name)
        table.entries[name] = entry
        if before is None:
            insort(table.names, name)
        return before

    def _publish(self, resource: str, change: StoreChange) -> None:
        table = self._resources[resource]
        if len(table.history) == HISTORY_SIZE:
            table.compacted = table.history[0].entry.revision
        table.history.append(change)
        for watcher in table.watchers:
            watcher.push(change)


def _open_database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(str(path), isolation_level=None)
    for statement in _SCHEMA:
        database.execute(statement)
    return database


def _delete(database: sqlite3.Connection, row: tuple[str, str, str], revision: int) -> None:
    """Deletes a row and, in the same transaction, stores the revision of the deletion, which no row has."""
    database.execute("BEGIN")
    try:
        database.execute(_DELETE, row)
        database.execute(_UPDATE_LAST_DELETE, (revision,))
        database.execute("COMMIT")
    except sqlite3.Error:
        database.execute("ROLLBACK")
        raise


def _labels(obj: Json) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}
