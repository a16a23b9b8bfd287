"""The committer: writes intents, swaps them into the Lease, then reports them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest

from gpu_scheduler.core.events import Bind, Commit, Committed
from gpu_scheduler.gangs.contract import PLACEMENTS
from gpu_scheduler.k8s.leader_election import Candidate, FencedError
from gpu_scheduler.scheduler.commit import committer as commit_module
from gpu_scheduler.scheduler.commit.commit_log import CommitLog
from gpu_scheduler.scheduler.commit.committer import Committer
from gpu_scheduler.scheduler.commit.intents import Intents
from tests.unit.k8s.live_api import after, proxied, running
from tests.unit.scheduler.reporting import until


class CommitterFixture:
    """A commit log and intents that record calls; a test can delay swaps, or fence."""

    def __init__(self) -> None:
        self.epoch = 4
        self.journal: list[tuple[str, object]] = []
        self.may_swap = asyncio.Event()
        self.may_swap.set()
        self.fenced = False
        self.busy = False
        self.committer = Committer(cast(CommitLog, self), cast(Intents, self), self._on_committed, lambda: self.busy)

    @property
    def reported(self) -> list[int]:
        return [cast(int, what) for step, what in self.journal if step == "reported"]

    @property
    def swaps(self) -> list[object]:
        return [what for step, what in self.journal if step == "swapped"]

    def steps(self) -> list[str]:
        return [step for step, _ in self.journal]

    def _on_committed(self, event: Committed) -> None:
        self.journal.append(("reported", event.sequence))

    async def write(self, epoch: int, commit: Commit) -> dict[str, str]:
        assert epoch == self.epoch
        await asyncio.sleep(0.01 / (1 + commit.sequence))  # later ones are written first
        self.journal.append(("written", commit.sequence))
        return {f"{epoch}-{commit.sequence}-{chunk}": f"u{chunk}" for chunk in range(2)}

    async def swap(self, add: Mapping[str, str], remove: Collection[str]) -> None:
        self.journal.append(("swapping", sorted(add)))
        await self.may_swap.wait()
        if self.fenced:
            raise FencedError("b holds the Lease")
        self.journal.append(("swapped", (sorted(add), sorted(remove))))

    async def delete(self, placements: Mapping[str, str]) -> None:
        self.journal.append(("deleted", sorted(placements.items())))


@asynccontextmanager
async def working(fixture: CommitterFixture) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(fixture.committer.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def a_commit(number: int) -> Commit:
    return Commit(number, (Bind(f"p{number}", "team", f"p{number}", 0, "n0", (0,)),))


def names(*sequences: int) -> list[str]:
    return sorted(f"4-{sequence}-{chunk}" for sequence in sequences for chunk in range(2))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished commits wait for another swap without limit."""
    monkeypatch.setattr(commit_module, "RELEASE_DELAY", 3600.0)
    monkeypatch.setattr(commit_module, "RELEASE_BATCH", 3)


async def test_commit_is_written_then_swapped_in_then_reported() -> None:
    fixture = CommitterFixture()
    async with working(fixture):
        fixture.may_swap.clear()
        fixture.committer.commit(a_commit(0))
        await until(lambda: "swapping" in fixture.steps())
        await asyncio.sleep(0.05)
        assert fixture.steps() == ["written", "swapping"]
        fixture.may_swap.set()
        await until(lambda: fixture.reported)
    assert fixture.journal[2:] == [("swapped", (names(0), [])), ("reported", 0)]


async def test_commits_that_gather_during_a_swap_go_into_the_next_one_in_order() -> None:
    fixture = CommitterFixture()
    async with working(fixture):
        fixture.may_swap.clear()
        fixture.committer.commit(a_commit(0))
        await until(lambda: "swapping" in fixture.steps())
        for number in (1, 2, 3):
            fixture.committer.commit(a_commit(number))
        fixture.may_swap.set()
        await until(lambda: len(fixture.reported) == 4)
    assert fixture.swaps == [(names(0), []), (names(1, 2, 3), [])]
    assert fixture.reported == [0, 1, 2, 3]


@pytest.mark.usefixtures("slow")
async def test_finished_commits_leave_with_the_next_swap_and_are_then_deleted() -> None:
    fixture = CommitterFixture()
    async with working(fixture):
        fixture.committer.commit(a_commit(0))
        await until(lambda: fixture.reported)
        fixture.committer.release(0)
        await asyncio.sleep(0.05)
        assert len(fixture.swaps) == 1
        fixture.may_swap.clear()
        fixture.committer.commit(a_commit(1))
        await until(lambda: fixture.steps().count("swapping") == 2)
        assert "deleted" not in fixture.steps()
        fixture.may_swap.set()
        await until(lambda: "deleted" in fixture.steps())
    assert fixture.swaps[1] == (names(1), names(0))
    assert ("deleted", [("4-0-0", "u0"), ("4-0-1", "u1")]) in fixture.journal
    assert fixture.reported == [0, 1]


@pytest.mark.usefixtures("slow")
async def test_a_batch_of_finished_commits_is_released_at_once() -> None:
    fixture = CommitterFixture()
    async with working(fixture):
        for number in range(3):
            fixture.committer.commit(a_commit(number))
        await until(lambda: len(fixture.reported) == 3)
        for number in range(3):
            fixture.committer.release(number)
        await until(lambda: len(fixture.swaps) == 2)
    assert fixture.swaps[1] == ([], names(0, 1, 2))


@pytest.mark.usefixtures("slow")
async def test_finished_commits_that_grow_to_a_batch_are_released_at_once() -> None:
    fixture = CommitterFixture()
    async with working(fixture):
        for number in range(3):
            fixture.committer.commit(a_commit(number))
        await until(lambda: len(fixture.reported) == 3)
        for number in range(3):
            fixture.committer.release(number)
            await asyncio.sleep(0.05)
        await until(lambda: len(fixture.swaps) == 2)
    assert fixture.swaps[1] == ([], names(0, 1, 2))


async def test_a_single_finished_commit_is_released_after_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "RELEASE_DELAY", 0.05)
    fixture = CommitterFixture()
    async with working(fixture):
        fixture.committer.commit(a_commit(0))
        await until(lambda: fixture.reported)
        fixture.committer.release(0)
        await until(lambda: "deleted" in fixture.steps())
    assert fixture.swaps[1] == ([], names(0))


async def test_commit_of_an_earlier_leader_is_released_by_its_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "RELEASE_DELAY", 0.05)
    fixture = CommitterFixture()
    fixture.committer.adopt({"3-10-0": "a", "3-10-1": "b", "2-1-0": "c"})
    async with working(fixture):
        fixture.committer.release(10)
        await until(lambda: "deleted" in fixture.steps())
    assert fixture.swaps == [([], ["3-10-0", "3-10-1"])]
    assert ("deleted", [("3-10-0", "a"), ("3-10-1", "b")]) in fixture.journal


async def test_fenced_leader_reports_and_deletes_nothing() -> None:
    fixture = CommitterFixture()
    fixture.committer.adopt({"3-10-0": "a"})
    fixture.committer.release(10)
    fixture.committer.commit(a_commit(11))
    fixture.fenced = True
    with pytest.raises(ExceptionGroup) as raised:
        await fixture.committer.run()
    assert raised.group_contains(FencedError)
    assert fixture.steps() == ["written", "swapping"]


async def test_commits_are_in_the_lease_before_they_are_reported_and_intents_are_deleted_after_the_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_module, "RELEASE_DELAY", 0.05)
    reported: list[int] = []
    async with proxied() as (client, proxy, bystander):
        lease = CommitLog(client, Candidate("default", "leader", "a"))
        await lease.acquire()

        async def nothing_told() -> None:
            assert len((await bystander.list(PLACEMENTS, "default")).items) == 2
            assert not reported

        proxy.plan("PUT", "leases/leader", after(nothing_told))
        committer = Committer(lease, Intents(client, "default"), lambda event: reported.append(event.sequence))
        committer.commit(a_commit(0))
        committer.commit(a_commit(1))
        async with running(committer.run()):
            await until(lambda: len(reported) == 2)
            assert lease.committed.keys() == {"1-0-0", "1-1-0"}
            committer.release(0)

            async def only_the_other() -> bool:
                left = (await bystander.list(PLACEMENTS, "default")).items
                return [placement["metadata"]["name"] for placement in left] == ["1-1-0"]

            await until(only_the_other)
            assert lease.committed.keys() == {"1-1-0"}


@pytest.mark.parametrize("how", ["no longer busy", "too late"])
async def test_void_intents_are_deleted_only_when_no_binds_wait(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "RELEASE_DELAY", 0.01)
    monkeypatch.setattr(commit_module, "MAX_DELETE_DELAY", 0.3 if how == "too late" else 60.0)
    fixture = CommitterFixture()
    fixture.busy = True
    async with working(fixture):
        fixture.committer.commit(a_commit(1))
        await until(lambda: fixture.reported == [1])
        fixture.committer.release(1)
        await until(lambda: len(fixture.swaps) == 2)
        await asyncio.sleep(0.15)
        assert "deleted" not in fixture.steps()
        fixture.busy = how == "too late"
        await until(lambda: "deleted" in fixture.steps())
