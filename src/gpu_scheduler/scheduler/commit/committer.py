"""Committer: writes intents, then makes them binding and releases finished ones by one swap of the Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpu_scheduler.core.events import Commit, Committed
from gpu_scheduler.k8s.tasks import gather_or_cancel
from gpu_scheduler.scheduler.commit.commit_log import CommitLog
from gpu_scheduler.scheduler.commit.intents import Intents

RELEASE_DELAY = 1.0
"""How long finished commits wait for another swap to take them along, in seconds."""

RELEASE_BATCH = 100
"""So many finished commits are released without delay."""

MAX_DELETE_DELAY = 10.0
"""How long the deletion of finished intents is put off while binds are waiting, in seconds."""

_BUSY_POLL = 0.1


class Committer:
    """Makes one swap at a time; commits that gather meanwhile go into the next one. Deletes intents when not `busy`."""

    def __init__(
        self,
        commit_log: CommitLog,
        intents: Intents,
        on_committed: Callable[[Committed], None],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._commit_log = commit_log
        self._intents = intents
        self._on_committed = on_committed
        self._busy = busy
        self._commits: list[Commit] = []
        self._finished: list[int] = []
        self._names: dict[int, dict[str, str]] = {}
        self._wake = asyncio.Event()

    def adopt(self, committed: dict[str, str]) -> None:
        """Takes over the committed set of the Lease."""
        for name, uid in committed.items():
            self._names.setdefault(int(name.split("-")[1]), {})[name] = uid

    def commit(self, commit: Commit) -> None:
        """Queues a commit, to be written and swapped into the Lease."""
        self._commits.append(commit)
        self._wake.set()

    def release(self, sequence: int) -> None:
        """Queues a finished commit, to be taken out of the Lease."""
        self._finished.append(sequence)
        if len(self._finished) == 1 or len(self._finished) >= RELEASE_BATCH:
            self._wake.set()

    async def run(self) -> None:
        """Commits until the Lease is lost."""
        async with asyncio.TaskGroup() as deleting:
            while True:
                await self._wait()
                commits, self._commits = self._commits, []
                finished, self._finished = self._finished, []
                written = await gather_or_cancel(self._intents.write(self._commit_log.epoch, c) for c in commits)
                over = {name: uid for s in finished for name, uid in self._names.pop(s, {}).items()}
                await self._commit_log.swap(
                    {name: uid for names in written for name, uid in names.items()}, over.keys()
                )
                for commit, names in zip(commits, written, strict=True):
                    self._names[commit.sequence] = names
                    self._on_committed(Committed(commit.sequence))
                if over:
                    deleting.create_task(self._delete(over))

    async def _delete(self, over: dict[str, str]) -> None:
        """Deletes finished intents once no binds wait: a large one costs an API server as much as many binds."""
        for _ in range(round(MAX_DELETE_DELAY / _BUSY_POLL)):
            if not self._busy():
                break
            await asyncio.sleep(_BUSY_POLL)
        await self._intents.delete(over)

    async def _wait(self) -> None:
        """Waits for work. Finished commits alone wait a little longer, for a commit or for more of them."""
        while not self._commits and not self._finished:
            self._wake.clear()
            await self._wake.wait()
        if self._commits or len(self._finished) >= RELEASE_BATCH:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(RELEASE_DELAY):
                await self._wake.wait()
        except TimeoutError:
            pass
