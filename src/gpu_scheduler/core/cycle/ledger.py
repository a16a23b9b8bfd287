"""The ledger: commits that are not over yet, with their open binds and deletes."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.core.events import Bind, Commit, Delete


@dataclass(slots=True)
class OpenBind:
    """A decided bind. It is over when its pod is observed bound, ended, gone or at a higher attempt; never on a reply.

    `since` is when it was decided, or taken over from an earlier leader.
    """

    bind: Bind
    sequence: int
    since: float
    failing_since: float | None = None
    refused_since: float | None = None
    given_up: bool = False
    tries: int = 0


@dataclass(slots=True)
class OpenDelete:
    """A decided delete. It is over when its pod is observed deleting, ended or gone."""

    delete: Delete
    sequence: int
    tries: int = 0

    @property
    def keeps_failing(self) -> bool:
        """Whether the delete has failed so often that no gang should count on it."""
        return self.tries > 5


class Ledger:
    """Open entries by pod uid. `committed` says whether an open bind is committed; `retries` holds the time of the next
    retry; `deleting` holds the pods with an open delete that gangs can count on.
    """

    def __init__(self) -> None:
        self.binds: dict[str, OpenBind] = {}
        self.deletes: dict[str, OpenDelete] = {}
        self.committed: dict[str, bool] = {}
        self.deleting: set[str] = set()
        self.retries: dict[str, float] = {}
        self.next_sequence = 0
        self._commits: dict[int, Commit] = {}
        self._open_entries: dict[int, int] = {}
        self._committed_sequences: set[int] = set()
        self._maybe_finished: set[int] = set()

    @property
    def open_commits(self) -> int:
        """The number of commits that the Lease names, or will name."""
        return len(self._open_entries)

    @property
    def refused_deletes(self) -> set[str]:
        """Pods whose delete is open and keeps failing."""
        return self.deletes.keys() - self.deleting

    @property
    def uncommitted(self) -> int:
        """The number of commits that are not in the Lease yet."""
        return len(self._open_entries) - len(self._committed_sequences)

    def write(self, binds: tuple[Bind, ...], deletes: tuple[Delete, ...], now: float) -> Commit:
        """Enters a new commit that is not in the Lease yet."""
        commit = Commit(self.next_sequence, binds, deletes)
        self.next_sequence += 1
        self._enter(commit, now, committed=False)
        return commit

    def adopt(self, commit: Commit, now: float) -> None:
        """Enters a commit that an earlier leader left open."""
        self._committed_sequences.add(commit.sequence)
        self._maybe_finished.add(commit.sequence)
        self._enter(commit, now, committed=True)

    def mark_committed(self, sequence: int) -> tuple[list[OpenBind], list[OpenDelete]]:
        """Marks a commit as named by the Lease; returns its open entries, which may be carried out now."""
        commit = self._commits.get(sequence)
        if commit is None:
            return [], []
        self._committed_sequences.add(sequence)
        self._maybe_finished.add(sequence)
        binds = [self.binds[bind.uid] for bind in commit.binds if bind.uid in self.binds]
        deletes = [self.deletes[delete.uid] for delete in commit.deletes if delete.uid in self.deletes]
        for entry in binds:
            self.committed[entry.bind.uid] = True
        return binds, deletes

    def is_committed(self, sequence: int) -> bool:
        """Whether the Lease names the commit."""
        return sequence in self._committed_sequences

    def end_bind(self, uid: str) -> None:
        """Removes a bind that is over."""
        entry = self.binds.pop(uid, None)
        if entry is not None:
            del self.committed[uid]
            self._end(uid, entry.sequence)

    def end_delete(self, uid: str) -> None:
        """Removes a delete that is over."""
        entry = self.deletes.pop(uid, None)
        if entry is not None:
            self.deleting.discard(uid)
            self._end(uid, entry.sequence)

    def enter_delete(self, delete: Delete, sequence: int) -> None:
        """Enters a decided delete, which gangs can count on."""
        self.deletes[delete.uid] = OpenDelete(delete, sequence)
        self.deleting.add(delete.uid)

    def _end(self, uid: str, sequence: int) -> None:
        self.retries.pop(uid, None)
        self._open_entries[sequence] -= 1
        self._maybe_finished.add(sequence)

    def finished(self) -> list[int]:
        """Removes and returns the commits whose entries are all over."""
        done = sorted(s for s in self._maybe_finished if s in self._committed_sequences and not self._open_entries[s])
        self._maybe_finished.clear()
        for sequence in done:
            del self._open_entries[sequence]
            del self._commits[sequence]
            self._committed_sequences.discard(sequence)
        return done

    def due(self, now: float) -> list[OpenBind | OpenDelete]:
        """Returns the committed entries whose retry is due, and clears their retry times."""
        found: list[OpenBind | OpenDelete] = []
        for uid in [uid for uid, when in self.retries.items() if when <= now]:
            entry = self.binds.get(uid) or self.deletes[uid]
            if entry.sequence in self._committed_sequences:
                del self.retries[uid]
                found.append(entry)
        return found

    def _enter(self, commit: Commit, now: float, *, committed: bool) -> None:
        self._commits[commit.sequence] = commit
        self._open_entries[commit.sequence] = len(commit.binds) + len(commit.deletes)
        for bind in commit.binds:
            self.end_bind(bind.uid)  # an earlier bind of the pod is over; only its release was lost
            self.binds[bind.uid] = OpenBind(bind, commit.sequence, now)
            self.committed[bind.uid] = committed
        for delete in commit.deletes:
            self.enter_delete(delete, commit.sequence)
