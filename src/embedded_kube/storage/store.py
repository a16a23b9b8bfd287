"""Objects by resource, namespace and name; durable in SQLite, with the recent history that watches need."""

from __future__ import annotations

import asyncio
import sqlite3
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from embedded_kube.errors import gone

Json = dict[str, Any]
Name = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""

HISTORY = 20_000
"""How many changes of one resource a watch may look back."""

BACKLOG = 50_000
"""How far a watcher may fall behind before it is cut off and has to list again."""

_SCHEMA = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA wal_autocheckpoint=4000",
    "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, revision INTEGER, data BLOB)",
    "CREATE UNIQUE INDEX IF NOT EXISTS by_name ON objects (resource, namespace, name)",
    "CREATE TABLE IF NOT EXISTS last_delete (one INTEGER PRIMARY KEY, revision INTEGER)",
    "INSERT OR IGNORE INTO last_delete VALUES (1, 1)",
)
_LATEST = "SELECT max(revision) FROM (SELECT revision FROM objects UNION ALL SELECT revision FROM last_delete)"
_EVERYTHING = "SELECT resource, namespace, name, revision, data FROM objects"
_PUT = (
    "INSERT INTO objects VALUES (?, ?, ?, ?, ?) ON CONFLICT (resource, namespace, name) "
    "DO UPDATE SET revision = excluded.revision, data = excluded.data"
)
_DROP = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"
_NOTE = "UPDATE last_delete SET revision = ?"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Entry:
    """One version of an object, as the bytes that are sent. Never changed: an update makes a new entry."""

    __slots__ = ("data", "labels", "name", "namespace", "revision")

    def __init__(self, name: Name, revision: int, data: bytes, labels: dict[str, str]) -> None:
        self.namespace, self.name = name
        self.revision = revision
        self.data = data
        self.labels = labels

    def object(self) -> Json:
        """A fresh copy of the object, to read or to change."""
        found: Json = _decode(self.data)
        return found


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to an object: ADDED, MODIFIED or DELETED; a deleted one carries its last state."""

    kind: str
    entry: Entry
    before: Entry | None


class Subscription:
    """A watcher's view of one resource: changes in order, none left out. Close it when done."""

    def __init__(self, close: Callable[[Subscription], None]) -> None:
        self.pending: deque[Change] = deque()
        self.overrun = False
        self._wake = asyncio.Event()
        self._close = close

    def push(self, change: Change) -> None:
        """Adds a change; a watcher that does not read is cut off."""
        if len(self.pending) >= BACKLOG:
            self.overrun = True
        else:
            self.pending.append(change)
        self._wake.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits until there is something to read; False when the time ran out."""
        if not self.pending and not self.overrun:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), seconds)
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """Stops the watch."""
        self._close(self)


class _Resource:
    """All objects of one resource, sorted by name, and their latest changes."""

    def __init__(self, forgotten: int) -> None:
        self.entries: dict[Name, Entry] = {}
        self.names: list[Name] = []
        self.history: deque[Change] = deque(maxlen=HISTORY)
        self.watchers: list[Subscription] = []
        self.forgotten = forgotten


class Store:
    """The truth. Every write is in SQLite before it returns, so what was acknowledged survives a kill; without a path
    nothing is to survive, and nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self.revision = 1
        self._database = _open_database(path) if path is not None else None
        if self._database is not None:
            self.revision = self._database.execute(_LATEST).fetchone()[0]
        # Nobody can watch from before the start: what was deleted until then is not known any more.
        self._started = self.revision
        self._resources: dict[str, _Resource] = {}
        for resource, namespace, name, revision, data in self._database.execute(_EVERYTHING) if self._database else ():
            labels = _labels(_decode(data))
            self._remember(resource, Entry((namespace, name), revision, data, labels))

    def close(self) -> None:
        """Lets go of the database."""
        if self._database is not None:
            self._database.close()

    def get(self, resource: str, namespace: str, name: str) -> Entry | None:
        """One object."""
        held = self._resources.get(resource)
        return held.entries.get((namespace, name)) if held is not None else None

    def entries(self, resource: str, namespace: str = "") -> Iterator[Entry]:
        """All objects of a resource, of one namespace if given, sorted by namespace and name."""
        held = self._resources.get(resource)
        if held is None:
            return
        names = held.names
        if namespace:
            names = names[bisect_left(names, (namespace, "")) : bisect_left(names, (namespace + "\0", ""))]
        for name in list(names):
            yield held.entries[name]

    def entries_at(self, resource: str, namespace: str, revision: int) -> list[Entry]:
        """All objects as they were at a revision that has been, in the same order; 410 when that is too long ago."""
        held = self._resources.get(resource)
        if held is None or revision >= self.revision:
            return list(self.entries(resource, namespace))
        if revision < held.forgotten:
            raise gone(f"too old resource version: {revision} ({held.forgotten})")
        was: dict[Name, Entry | None] = {}
        for change in reversed(held.history):
            if change.entry.revision <= revision:
                break
            was[change.entry.namespace, change.entry.name] = change.before
        if not was:
            return list(self.entries(resource, namespace))
        then = {**held.entries, **was}
        return [entry for name in sorted(then) if (entry := then[name]) and namespace in ("", entry.namespace)]

    def count(self, resource: str) -> int:
        """How many objects a resource has."""
        held = self._resources.get(resource)
        return len(held.entries) if held is not None else 0

    def watchers(self, resource: str) -> int:
        """How many watches a resource has."""
        held = self._resources.get(resource)
        return len(held.watchers) if held is not None else 0

    def write(self, resource: str, found: Json) -> Entry:
        """Creates or replaces an object; gives it the next resourceVersion."""
        meta = found["metadata"]
        name = (meta.get("namespace", ""), meta["name"])
        revision = self.revision + 1
        meta["resourceVersion"] = str(revision)
        # What an object is comes first, so that lists can leave it out without reading the rest.
        typed = {word: found[word] for word in ("apiVersion", "kind") if word in found}
        entry = Entry(name, revision, _encode({**typed, **found}), _labels(found))
        if self._database is not None:
            self._database.execute(_PUT, (resource, *name, revision, entry.data))  # one statement commits by itself
        self.revision = revision
        before = self._remember(resource, entry)
        self._publish(resource, Change("ADDED" if before is None else "MODIFIED", entry, before))
        return entry

    def remove(self, resource: str, namespace: str, name: str) -> Entry:
        """Deletes an object; its last state carries the resourceVersion of the deletion."""
        held = self._resources[resource]
        before = held.entries[namespace, name]
        last = before.object()
        revision = self.revision + 1
        last["metadata"]["resourceVersion"] = str(revision)
        entry = Entry((namespace, name), revision, _encode(last), before.labels)
        if self._database is not None:
            _delete(self._database, (resource, namespace, name), revision)
        self.revision = revision
        del held.entries[namespace, name]
        del held.names[bisect_left(held.names, (namespace, name))]
        self._publish(resource, Change("DELETED", entry, before))
        return entry

    def subscribe(self, resource: str, since: int | None = None) -> Subscription:
        """Every change after a resourceVersion (None: from now on); 410 when that is too long ago."""
        held = self._resources.setdefault(resource, _Resource(self._started))
        subscription = Subscription(held.watchers.remove)
        if since is not None:
            if since < held.forgotten:
                raise gone(f"too old resource version: {since} ({held.forgotten})")
            for change in held.history:
                if change.entry.revision > since:
                    subscription.push(change)
        held.watchers.append(subscription)
        return subscription

    def _remember(self, resource: str, entry: Entry) -> Entry | None:
        held = self._resources.setdefault(resource, _Resource(self._started))
        name = (entry.namespace, entry.name)
        before = held.entries.get(name)
        held.entries[name] = entry
        if before is None:
            insort(held.names, name)
        return before

    def _publish(self, resource: str, change: Change) -> None:
        held = self._resources[resource]
        if len(held.history) == HISTORY:
            held.forgotten = held.history[0].entry.revision
        held.history.append(change)
        for watcher in held.watchers:
            watcher.push(change)


def _open_database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(str(path), isolation_level=None)
    for statement in _SCHEMA:
        database.execute(statement)
    return database


def _delete(database: sqlite3.Connection, row: tuple[str, str, str], revision: int) -> None:
    """Deletes a row and, in the same transaction, notes the revision that no row is left to tell."""
    database.execute("BEGIN")
    try:
        database.execute(_DROP, row)
        database.execute(_NOTE, (revision,))
        database.execute("COMMIT")
    except sqlite3.Error:
        database.execute("ROLLBACK")
        raise


def _labels(found: Json) -> dict[str, str]:
    return found["metadata"].get("labels") or {}
