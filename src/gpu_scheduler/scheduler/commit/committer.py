"""Committing: intents are written, then one swap of the Lease makes them binding and lets go of what is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpu_scheduler.core.events import Commit, Committed
from gpu_scheduler.k8s.tasks import gather_or_cancel
from gpu_scheduler.scheduler.commit.commit_log import CommitLog
from gpu_scheduler.scheduler.commit.intents import Intents

RELEASE_DELAY = 1.0
"""How long finished commits wait for a swap that goes out anyway, in seconds."""

RELEASE_BATCH = 100
"""So many finished commits do not wait."""

MAX_DELETE_DELAY = 10.0
"""How long intents that hold no longer may stay, in seconds, while there is something to be bound."""

_BUSY_POLL = 0.1


class Committer:
    """One swap at a time; whatever gathers meanwhile goes into the next one. Nothing is tidied up while `busy`."""

    def __init__(
        self,
        commit_log: CommitLog,
        intents: Intents,
        tell: Callable[[Committed], None],
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._commit_log = commit_log
        self._intents = intents
        self._tell = tell
        self._busy = busy
        self._commits: list[Commit] = []
        self._finished: list[int] = []
        self._names: dict[int, dict[str, str]] = {}
        self._wake = asyncio.Event()

    def adopt(self, committed: dict[str, str]) -> None:
        """Takes over what the Lease names, by sequence."""
        for name, uid in committed.items():
            self._names.setdefault(int(name.split("-")[1]), {})[name] = uid

    def commit(self, commit: Commit) -> None:
        """Will write a commit down and make it binding."""
        self._commits.append(commit)
        self._wake.set()

    def release(self, sequence: int) -> None:
        """Will take a commit, all of whose entries are over, out of the Lease."""
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
                    self._tell(Committed(commit.sequence))
                if over:
                    deleting.create_task(self._delete(over))

    async def _delete(self, over: dict[str, str]) -> None:
        """Deletes intents that are void: of a large one that costs an API server as much as many binds, so later."""
        for _ in range(round(MAX_DELETE_DELAY / _BUSY_POLL)):
            if not self._busy():
                break
            await asyncio.sleep(_BUSY_POLL)
        await self._intents.delete(over)

    async def _wait(self) -> None:
        """Waits for work; finished commits alone are not in a hurry."""
        while not self._commits and not self._finished:
            self._wake.clear()
            await self._wake.wait()
        if self._commits or len(self._finished) >= RELEASE_BATCH:
            return
        self._wake.clear()
        try:
            async with asyncio.timeout(RELEASE_DELAY):
                await self._wake.wait()  # for a commit, or for many that have finished
        except TimeoutError:
            pass
