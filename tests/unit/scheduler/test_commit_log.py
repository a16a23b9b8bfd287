"""The commit log: leader election and the committed set, with lost requests and responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_scheduler.core.events import Bind, Commit
from gpu_scheduler.gangs.contract import FINALIZER
from gpu_scheduler.k8s import leader_election
from gpu_scheduler.k8s.client import Client
from gpu_scheduler.k8s.errors import NotFound
from gpu_scheduler.k8s.leader_election import Candidate, FencedError
from gpu_scheduler.k8s.resources import LEASES
from gpu_scheduler.scheduler.commit.commit_log import CommitLease, CommitLog
from gpu_scheduler.scheduler.commit.intents import Intents
from tests.unit.k8s.live_api import (
    Forward,
    Proxy,
    RequestHandler,
    after,
    answer_with,
    lose_request,
    lose_response,
    proxied,
    running,
)
from tests.unit.scheduler.reporting import until

WHERE = ("leader", "default")
PUT = ("PUT", "leases/leader")


class FakeClock:
    """The clock of a candidate."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Replaces the clock by one that the test sets, and makes candidates poll often."""
    made = FakeClock()
    monkeypatch.setattr(leader_election, "time", made)
    monkeypatch.setattr(leader_election, "POLL", 0.01)
    return made


def candidate(name: str, renew: float = 2.0) -> Candidate:
    return Candidate(WHERE[1], WHERE[0], name, renew=renew)


async def take(client: Client, name: str = "a", **about: Any) -> CommitLog:
    lease = CommitLog(client, candidate(name, **about), ("gpu-scheduler", "volcano"))
    async with asyncio.timeout(5):
        await lease.acquire()
    return lease


async def read(client: Client) -> CommitLease:
    return await client.get(LEASES, *WHERE, type=CommitLease)


async def edit(client: Client, **spec: Any) -> None:
    await client.patch(LEASES, WHERE[0], {"spec": spec}, WHERE[1])


async def annotate(client: Client, **annotations: str) -> None:
    await client.patch(LEASES, WHERE[0], {"metadata": {"annotations": annotations}}, WHERE[1])


async def force_delete(client: Client) -> None:
    await client.patch(LEASES, WHERE[0], {"metadata": {"finalizers": None}}, WHERE[1])
    await client.delete(LEASES, *WHERE)


async def polled(proxy: Proxy) -> None:
    """Waits until a standby has read the Lease again and handled it."""
    before = proxy.count("GET")
    await until(lambda: proxy.count("GET") >= before + 3)


# -- acquire


async def test_first_candidate_creates_the_lease_and_leads() -> None:
    async with proxied() as (client, _, _):
        lease = await take(client)
        found = await read(client)
        assert (lease.held, lease.epoch, lease.committed) == (True, 1, {})
        assert (found.spec.holder_identity, found.spec.lease_duration_seconds, found.epoch) == ("a", 15, 1)
        assert found.serves == ("gpu-scheduler", "volcano")
        assert found.metadata.finalizers == [FINALIZER]
        assert found.spec.acquire_time == found.spec.renew_time is not None


@pytest.mark.parametrize("year", [1970, 2999])
async def test_expiry_is_judged_by_observed_changes_and_not_by_the_leaders_clock(clock: FakeClock, year: int) -> None:
    async with proxied() as (client, proxy, bystander):
        await take(bystander)
        standby = CommitLog(client, candidate("b"))
        async with running(standby.acquire()) as trying:
            await polled(proxy)
            for second in range(3):
                clock.now += 14
                await edit(bystander, renewTime=f"{year}-01-01T00:00:0{second}.000000Z")
                await polled(proxy)
            assert not trying.done()
            clock.now += 16
            await until(trying.done)
        assert (standby.held, (await read(client)).spec.holder_identity) == (True, "b")


async def test_new_leader_has_a_higher_epoch_and_the_same_committed_set(clock: FakeClock) -> None:
    async with proxied() as (client, proxy, bystander):
        first = await take(bystander)
        await first.swap({"1-0-0": "u"}, ())
        await annotate(bystander, note="of a person")
        second = CommitLog(client, candidate("b"))
        async with running(second.acquire()) as trying:
            await polled(proxy)
            clock.now += 16
            await until(trying.done)
        found = await read(client)
        assert (found.epoch, found.spec.lease_transitions, found.committed) == (2, 2, {"1-0-0": "u"})
        assert (second.epoch, second.committed) == (2, {"1-0-0": "u"})
        assert (found.metadata.annotations or {})["note"] == "of a person"
        with pytest.raises(FencedError, match="b holds the Lease, epoch 2"):
            await first.swap({"1-1-0": "v"}, ())
        assert (await read(client)).committed == {"1-0-0": "u"}


async def test_of_many_candidates_one_leads() -> None:
    async with proxied() as (client, proxy, _):
        all_of_them = [CommitLog(client, candidate(name)) for name in "abcde"]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(lease.acquire()) for lease in all_of_them]
            await until(lambda: any(lease.held for lease in all_of_them))
            await polled(proxy)
            (winner,) = [lease for lease in all_of_them if lease.held]
            assert (winner.epoch, (await read(client)).epoch) == (1, 1)
            for task in tasks:
                task.cancel()


@pytest.mark.parametrize(
    ("acts", "writes"),
    [((lose_response,), 1), ((lose_request,), 2), ((answer_with(500), answer_with(403), answer_with(409)), 4)],
    ids=["response lost", "request lost", "refused"],
)
async def test_candidate_knows_whether_it_leads_although_responses_are_lost(
    acts: tuple[RequestHandler, ...], writes: int
) -> None:
    async with proxied() as (client, proxy, _):
        proxy.plan(*PUT, *acts)
        lease = await take(client)
        found = await read(client)
        assert (lease.held, lease.epoch, found.epoch, found.spec.holder_identity) == (True, 1, 1, "a")
        assert proxy.count(*PUT) == writes


async def test_restarted_process_acquires_its_own_lease_at_once_and_the_old_process_is_fenced() -> None:
    async with proxied() as (client, proxy, bystander):
        old = await take(bystander)
        proxy.plan(*PUT, lose_request)  # the Lease that is read then has the same identity, but the old epoch
        new = await take(client)
        assert (new.epoch, (await read(client)).epoch) == (2, 2)
        with pytest.raises(FencedError, match="a holds the Lease, epoch 2"):
            await old.swap({}, ())


async def test_epochs_continue_after_a_lost_lease_while_placements_of_it_are_left() -> None:
    async with proxied() as (client, _, bystander):
        intents = Intents(client, "default")
        written = await intents.write(9, Commit(0, (Bind("u", "x", "p", 0, "n0", ()),)))
        lease = await take(client)
        assert lease.epoch == 10
        await force_delete(bystander)
        await intents.delete(written)
        assert (await take(client, "b")).epoch == 1


async def test_a_deleted_lease_with_nothing_committed_is_replaced_by_a_new_one(clock: FakeClock) -> None:
    async with proxied() as (client, _, bystander):
        await take(bystander)
        await bystander.delete(LEASES, *WHERE)
        deleted = (await read(bystander)).metadata
        lease = CommitLog(client, candidate("b"))
        assert not await lease.try_acquire()
        clock.now += 16
        assert not await lease.try_acquire()  # the write removed the last finalizer
        assert await lease.try_acquire()
        found = (await read(bystander)).metadata
        assert deleted.deletion_timestamp is not None
        assert (found.deletion_timestamp, found.uid == deleted.uid) == (None, False)


async def test_candidate_that_loses_the_race_for_the_lease_does_not_lead() -> None:
    async with proxied() as (client, proxy, bystander):

        async def be_slower(_forward: object) -> None:
            await take(bystander, "b")

        proxy.plan(*PUT, be_slower)
        lease = CommitLog(client, candidate("a"))
        async with running(lease.acquire()) as trying:
            await polled(proxy)
            assert (trying.done(), lease.held) == (False, False)


async def test_lease_that_another_candidate_creates_at_the_same_time_is_used() -> None:
    async with proxied() as (client, proxy, bystander):
        proxy.plan("POST", "/leases", after(lambda: take(bystander, "b")))
        lease = CommitLog(client, candidate("a"))
        async with running(lease.acquire()) as trying:
            await polled(proxy)
            assert not trying.done()
        assert (await read(client)).spec.holder_identity == "b"


# -- swap and renew


async def test_swap_survives_and_keeps_an_edit_by_another_writer() -> None:
    async with proxied() as (client, proxy, bystander):
        lease = await take(client)
        proxy.plan(*PUT, after(lambda: annotate(bystander, note="of a person")))
        await lease.swap({"1-0-0": "u"}, ())
        found = await read(client)
        assert found.committed == lease.committed == {"1-0-0": "u"}
        assert (found.metadata.annotations or {})["note"] == "of a person"
        assert proxy.count(*PUT) == 3


@pytest.mark.parametrize(
    ("acts", "writes"),
    [
        ((lose_response,), 1),
        ((lose_request,), 2),
        ((lose_request, lose_response), 2),
        ((answer_with(500), answer_with(403), answer_with(409)), 4),
    ],
    ids=["landed", "not landed", "once each", "refused"],
)
async def test_swap_happens_once_although_requests_or_responses_are_lost(
    acts: tuple[RequestHandler, ...], writes: int
) -> None:
    async with proxied() as (client, proxy, bystander):
        lease = await take(client)
        await lease.swap({"1-0-0": "u", "1-1-0": "v"}, ())
        before = proxy.count(*PUT)
        proxy.plan(*PUT, *acts)
        await lease.swap({"1-2-0": "w"}, ["1-0-0", "unknown"])
        assert (await read(bystander)).committed == lease.committed == {"1-1-0": "v", "1-2-0": "w"}
        assert proxy.count(*PUT) - before == writes
        await lease.swap({}, ["1-1-0"])
        assert (await read(bystander)).committed == {"1-2-0": "w"}


async def test_delayed_swap_lands_once() -> None:
    async with proxied() as (client, proxy, _):
        lease = await take(client)
        late: list[Callable[[], Awaitable[Any]]] = []

        async def keep_for_later(forward: Callable[[], Awaitable[Any]]) -> None:
            late.append(forward)

        async def let_it_land() -> None:
            assert (await late.pop()()).status == 200

        proxy.plan(*PUT, keep_for_later, after(let_it_land))
        await lease.swap({"1-0-0": "u"}, ())
        assert (await read(client)).committed == {"1-0-0": "u"}
        await lease.swap({}, ["1-0-0"])
        assert (await read(client)).committed == lease.committed == {}


async def test_concurrent_swaps_lose_nothing() -> None:
    async with proxied() as (client, proxy, _):
        lease = await take(client)
        proxy.plan(*PUT, lose_response, lose_request)
        await asyncio.gather(*[lease.swap({f"1-{i}-0": "u"}, [f"1-{i - 1}-0"]) for i in range(8)])
        assert (await read(client)).committed == {"1-7-0": "u"}


@pytest.mark.parametrize("lost", [lose_request, None], ids=["after a timeout", "at once"])
async def test_leader_is_fenced_when_another_holds_the_lease_and_writes_nothing(lost: RequestHandler | None) -> None:
    async with proxied() as (client, proxy, bystander):
        lease = await take(client)
        await edit(bystander, holderIdentity="b")
        before = await read(client)
        if lost is not None:
            proxy.plan(*PUT, lost)
        with pytest.raises(FencedError, match="b holds the Lease, epoch 1"):
            await lease.swap({"1-0-0": "u"}, ())
        assert await read(client) == before


@pytest.mark.parametrize("by", ["", "b", "a"], ids=["", "created again by another", "created again with our identity"])
async def test_leader_is_fenced_when_the_lease_was_deleted(by: str) -> None:
    async with proxied() as (client, _, bystander):
        lease = await take(client)
        await force_delete(bystander)
        if by:
            await take(bystander, by)
        with pytest.raises(FencedError, match=f"{by} holds" if by else "deleted"):
            await lease.swap({"1-0-0": "u"}, ())


async def test_deleted_lease_stays_until_nothing_is_committed() -> None:
    async with proxied() as (client, _, bystander):
        lease = await take(client)
        await lease.swap({"1-0-0": "u"}, ())
        await bystander.delete(LEASES, *WHERE)
        await lease.swap({"1-1-0": "v"}, ())
        found = await read(client)
        assert found.metadata.deletion_timestamp is not None
        assert found.committed == {"1-0-0": "u", "1-1-0": "v"}
        assert found.metadata.finalizers == [FINALIZER]
        await lease.swap({}, ["1-0-0", "1-1-0"])
        with pytest.raises(NotFound):
            await read(client)
        with pytest.raises(FencedError, match="deleted"):
            await lease.swap({}, ())


async def test_removed_finalizer_is_restored() -> None:
    async with proxied() as (client, _, bystander):
        lease = await take(client)
        await bystander.patch(LEASES, WHERE[0], {"metadata": {"finalizers": None}}, WHERE[1])
        for _ in range(2):  # the first one only finds that the committed set is unchanged
            await lease.swap({}, ())
        assert (await read(client)).metadata.finalizers == [FINALIZER]


async def test_lease_is_renewed_until_it_is_lost() -> None:
    async with proxied() as (client, _, bystander):
        lease = await take(client, renew=0.01)
        taken = (await read(client)).spec
        keeping = asyncio.ensure_future(lease.keep_renewed())

        async def renewed() -> bool:
            return (await read(client)).spec.renew_time != taken.renew_time

        await until(renewed)
        assert (await read(client)).spec.acquire_time == taken.acquire_time
        await edit(bystander, holderIdentity="b")
        async with asyncio.timeout(10):
            with pytest.raises(FencedError):
                await keeping


# -- release


async def test_released_lease_is_acquired_at_once_with_its_committed_set() -> None:
    async with proxied() as (client, _, bystander):
        lease = await take(client)
        await lease.swap({"1-0-0": "u"}, ())
        await lease.release()
        found = await read(client)
        assert (found.spec.holder_identity, found.metadata.finalizers, lease.held) == ("", [FINALIZER], False)
        second = await take(bystander, "b")
        assert (second.epoch, second.committed) == (2, {"1-0-0": "u"})


async def test_released_lease_with_nothing_committed_can_be_deleted() -> None:
    async with proxied() as (client, _, bystander):
        lease = await take(client)
        await lease.release()
        await bystander.delete(LEASES, *WHERE)
        with pytest.raises(NotFound):
            await read(client)


def plan_to_hang(proxy: Proxy) -> asyncio.Event:
    """Lets the next write of the Lease land without a response; returns an event that is set when it has landed."""
    landed = asyncio.Event()

    async def land_and_hang(forward: Callable[[], Awaitable[Any]]) -> None:
        await forward()
        landed.set()
        await asyncio.sleep(10)

    proxy.plan(*PUT, land_and_hang)
    return landed


async def test_release_keeps_what_a_cancelled_swap_committed() -> None:
    async with proxied() as (client, proxy, _):
        lease = await take(client)
        landed = plan_to_hang(proxy)
        swapping = asyncio.ensure_future(lease.swap({"1-0-0": "u"}, ()))
        await landed.wait()
        swapping.cancel()
        await asyncio.gather(swapping, return_exceptions=True)
        await lease.release()
        found = await read(client)
        assert (found.spec.holder_identity, found.committed) == ("", {"1-0-0": "u"})


async def test_release_after_a_cancelled_acquisition_releases_the_lease() -> None:
    async with proxied() as (client, proxy, bystander):
        await (await take(bystander, "b")).release()
        landed = plan_to_hang(proxy)
        lease = CommitLog(client, candidate("a"))
        taking = asyncio.ensure_future(lease.acquire())
        await landed.wait()
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        assert (await read(client)).spec.holder_identity == "a"
        await lease.release()
        assert (await read(client)).spec.holder_identity == ""


async def test_release_after_an_acquisition_of_unknown_outcome_releases_the_lease() -> None:
    async with proxied() as (client, proxy, bystander):
        await (await take(bystander, "b")).release()
        lease = CommitLog(client, candidate("a"))

        async def land(forward: Forward) -> None:
            await forward()
            proxy.plan("GET", "/leases/", answer_with(403))  # the read that would show whether it landed

        proxy.plan(*PUT, land)
        assert not await lease.try_acquire()
        assert (await read(bystander)).spec.holder_identity == "a"
        await lease.release()
        assert (await read(bystander)).spec.holder_identity == ""


async def test_release_of_a_lease_that_was_never_held_sends_nothing() -> None:
    async with proxied() as (client, proxy, _):
        await CommitLog(client, candidate("a")).release()
        assert not proxy.sent


async def test_release_of_a_lost_lease_leaves_it_to_its_holder() -> None:
    async with proxied() as (client, _, bystander):
        lease = await take(client)
        await edit(bystander, holderIdentity="b")
        await lease.release()
        assert (await read(client)).spec.holder_identity == "b"


async def test_failed_release_raises_nothing() -> None:
    async with proxied() as (client, proxy, _):
        lease = await take(client)
        proxy.plan(*PUT, answer_with(500))
        await lease.release()
        assert not lease.held


@pytest.mark.parametrize(
    "notes",
    [
        {"gpu-scheduler.io/epoch": "x"},
        {"gpu-scheduler.io/epoch": "9" * 5000},
        {"gpu-scheduler.io/committed": "[]"},
        {"gpu-scheduler.io/committed": '{"1-1-0":1}'},
        {"gpu-scheduler.io/committed": "{"},
    ],
    ids=["epoch", "long epoch", "list", "number", "cut"],
)
async def test_lease_with_an_unreadable_committed_set_is_not_acquired(notes: dict[str, str]) -> None:
    async with proxied() as (client, _, _):
        first = await take(client)
        await first.release()
        await client.patch(LEASES, WHERE[0], {"metadata": {"annotations": notes}}, WHERE[1])
        second = CommitLog(client, candidate("b"))
        with capture_logs() as logs:
            assert not await second.try_acquire()
        assert next(iter(notes)) in logs[-1]["error"]
        await client.patch(LEASES, WHERE[0], {"metadata": {"annotations": dict.fromkeys(notes)}}, WHERE[1])
        assert await second.try_acquire()
