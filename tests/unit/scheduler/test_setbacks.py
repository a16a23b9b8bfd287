"""Setbacks that the leader publishes on its Lease, and that the commands take in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Backoff, BindFailed, BindFailure, GangSeen, PodSeen, Setbacks, TookOver
from gpu_scheduler.core.lifecycle import FailedMember, Setback
from gpu_scheduler.core.model import NO_NOTES, Expected, Failure, Gang
from gpu_scheduler.core.reasons import Reason
from gpu_scheduler.gangs.contract import SETBACKS
from gpu_scheduler.k8s.leader_election import Candidate
from gpu_scheduler.scheduler.commit.commit_log import CommitLog
from gpu_scheduler.scheduler.commit.setbacks import MAX_PUBLISHED, decode_setbacks, encode_setbacks
from gpu_scheduler.scheduler.snapshot import take_snapshot
from tests.unit.core.world import a_key, a_pod, a_world, shape_of
from tests.unit.k8s.live_api import proxied
from tests.unit.scheduler.reporting import group_kind
from tests.unit.scheduler.test_snapshot import KEY, SETTINGS, fill

NOW = 1_700_000_000.0
FAILED = FailedMember("team", "train-0", Failure("exit code 1", "main"))
ALL = Setbacks(
    (Backoff(a_key("train"), NOW + 2.5, Setback.MEMBER_FAILED, True, "denied", FAILED),), ("uid-1",), (a_key("late"),)
)


def test_setbacks_are_read_as_they_were_written() -> None:
    assert decode_setbacks(encode_setbacks(ALL)) == ALL
    assert encode_setbacks(Setbacks()) == ""


@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", '{"backoffs": 1}', "[" * 100_000, encode_setbacks(ALL).replace("member failed", "bad luck")],
)
def test_text_that_is_not_valid_is_no_setback(text: str) -> None:
    assert decode_setbacks(text) == Setbacks()


def test_the_longest_backoffs_are_published_where_there_are_many() -> None:
    many = MAX_PUBLISHED + 50
    found = Setbacks(
        tuple(Backoff(a_key(f"g{i:03}"), NOW + i) for i in range(many)),
        tuple(f"u{i}" for i in range(many)),
        tuple(a_key(f"g{i}") for i in range(many)),
    )
    kept = decode_setbacks(encode_setbacks(found))
    assert [one.key.name for one in kept.backoffs] == [f"g{i:03}" for i in range(many - 1, 49, -1)]
    assert len(kept.refused_evictions) == len(kept.unused_reservations) == MAX_PUBLISHED


def test_a_dry_run_takes_in_no_backoff_longer_than_the_longest_and_nothing_about_unknown_gangs() -> None:
    engine, key = Engine(dry_run=True), a_key("train")
    engine.handle(GangSeen(Gang(key)), NOW)
    engine.handle(PodSeen(a_pod("train-0", gang=key)), NOW)
    engine.handle(TookOver(), NOW)
    engine.handle(Setbacks((Backoff(key, 1e300), Backoff(a_key("gone"), 1e300)), ("gone",), (a_key("gone"),)), NOW)
    engine.run_cycle(NOW)
    report = engine.report(key, NOW)
    assert report is not None
    assert report.retry_left == 60.0
    assert a_key("gone") not in engine.state.records


def test_gangs_with_unused_reservations_take_the_same_turns_in_a_dry_run() -> None:
    world = a_world(2)
    for name in "ab":
        world.submit(Gang(a_key(name), created=world.now, expected=(Expected(shape_of(2), 1),)))
        world.pass_time(1)
    world.pass_time(300 + 300 + 300)
    assert world.engine.setbacks(world.now).unused_reservations == (a_key("b"), a_key("a"))
    engine = Engine(dry_run=True)
    for gang in world.gangs.values():
        engine.handle(GangSeen(replace(gang, notes=NO_NOTES)), world.now)
    engine.handle(TookOver(), world.now)
    engine.handle(world.engine.setbacks(world.now), world.now)
    engine.run_cycle(world.now)
    assert engine.state.queue.in_order(engine.state.queue_order) == [a_key("b"), a_key("a")]


def test_a_long_answer_to_a_bind_is_cut() -> None:
    world = a_world(4)
    key = world.start("train", 1)
    world.deliver_all()
    world.run_cycle()
    world.carry_out_all()
    world.deliver_all()
    world.handle(BindFailed("train-0", BindFailure.REFUSED, "x\n" * 10_000))
    (backoff,) = world.engine.setbacks(world.now).backoffs
    assert (backoff.key, len(backoff.bind_refused)) == (key, 300)


async def test_the_lease_carries_setbacks_to_the_commands() -> None:
    async with proxied(group_kind()) as (client, _, bystander):
        await fill(bystander)
        published = [encode_setbacks(Setbacks((Backoff(KEY, 4e9, Setback.BIND_FAILED, bind_refused="denied"),)))]
        log = CommitLog(bystander, Candidate("default", "leader", "a"), published=lambda: {SETBACKS: published[0]})
        await log.acquire()
        view = await take_snapshot(client, SETTINGS)
        report = view.engine.report(KEY, view.now)
        assert report is not None
        assert report.refusal is not None
        assert {refusal.reason for refusal in report.refusal.refusals} == {Reason.BACK_OFF}
        assert report.status.bind_refused == "denied"
        published[0] = ""
        await log.renew()
        view = await take_snapshot(client, SETTINGS)
        report = view.engine.report(KEY, view.now)
        assert report is not None
        assert (report.starts, report.refusal) == (True, None)
