"""One scheduler leads and others stand by: they hand over, fence each other off, and never forget what was promised."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.integration.commits import (
    BINDS,
    COMMIT,
    COMMITTED,
    CREATE,
    EVICTIONS,
    LEASE,
    PLACEMENTS,
    Pair,
    Preempt,
    Replica,
    Start,
    Step,
    committed,
    intended,
    names_of,
    placements,
    strike,
    wait_settled,
    where_pods_are,
)
from tests.integration.fault_proxy import Seen, answer, before
from tests.integration.gangs import gang
from tests.integration.live import DeviceGuard, Live
from tests.integration.running import PATIENCE, Json, eventually

MERGE = "application/merge-patch+json"


def deeds(replica: Replica, since: int, frozen_at: Step) -> list[Seen]:
    """What a scheduler did to pods and to the committed set, as far as the API let it. Words do not count, nor intents
    that it never committed, nor what went out together with the request at which it froze: that was under way before.
    """
    deed = re.compile(r"POST .*/(binding|eviction)$|DELETE .*|PUT .*/leases/gpu-scheduler$")
    return [
        one
        for one in replica.proxy.writes[since:]
        if one.status in range(200, 300)
        and deed.search(f"{one.method} {one.path}")
        and (one.method != "PUT" or re.search(COMMIT.body.encode(), one.body))
        and not re.search(frozen_at.path, one.path)
    ]


# -- one leads


def test_only_one_leads_and_the_other_is_ready(pair: Pair, home: Live) -> None:
    leader, standby = pair.leader(), pair.standby()
    before_it = len(standby.proxy.writes)
    Start(home).provoke()
    Start(home).finish()
    wait_settled(pair.system)
    assert pair.leader() is leader
    assert standby.proxy.writes[before_it:] == []
    assert all(replica.scheduler.is_ready() for replica in pair.replicas)


@contextmanager
def patient_pair(pair: Pair) -> Iterator[tuple[Replica, Replica]]:
    """A leader and a standby that would wait for a silent leader for longer than any test."""
    for replica in pair.replicas:
        replica.end()
    with ExitStack() as stack:
        slow: Json = {"leaseDurationSeconds": 300, "renewSeconds": 1}
        first, second = (Replica(pair.cluster, stack, slow) for _ in range(2))
        first.start()
        eventually(lambda: pair.holder() == first.identity, "the first to lead")
        yield first, second.start()
        for replica in (first, second):
            if replica.scheduler.is_alive():
                replica.scheduler.stop()


def test_leader_that_is_told_to_stop_hands_over_at_once(
    pair: Pair, record_property: Callable[[str, object], None]
) -> None:
    with patient_pair(pair) as (first, second):
        begun = time.monotonic()
        assert first.scheduler.stop() == 0
        stopped = time.monotonic() - begun
        eventually(lambda: pair.holder() == second.identity, "the standby to lead")
        record_property("seconds to stop", round(stopped, 2))
        record_property("seconds to hand over", round(time.monotonic() - begun, 2))


@pytest.mark.parametrize("step", [CREATE, COMMIT, BINDS[1]], ids=["create", "commit", "bind"])
def test_leader_that_is_told_to_stop_in_the_middle_of_a_gang_leaves_it_to_the_next(
    pair: Pair, home: Live, step: Step
) -> None:
    with patient_pair(pair) as (first, _), DeviceGuard(pair.cluster):
        process = first.scheduler.process
        assert process is not None
        strike(first.proxy, step, before(process.terminate))
        Start(home).provoke()
        assert process.wait(PATIENCE) == 0
        Start(home).finish()
        wait_settled(pair.system)


# -- a leader that is out of breath


class Freeze:
    """Holds whoever leads still at a step, together with the request that it has just sent."""

    def __init__(self, pair: Pair, step: Step) -> None:
        self._thawed = threading.Event()
        self._frozen = threading.Event()
        self.leader = pair.leader()
        strike(self.leader.proxy, step, before(self._hold))

    def _hold(self) -> None:
        self.leader.scheduler.pause()
        self._frozen.set()
        self._thawed.wait(2 * PATIENCE)

    def wait(self) -> None:
        assert self._frozen.wait(PATIENCE), "the leader never came to that step"

    def thaw(self) -> None:
        self._thawed.set()
        self.leader.scheduler.resume()

    def __enter__(self) -> Freeze:
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()


@pytest.mark.parametrize("step", [CREATE, COMMIT], ids=["create", "commit"])
def test_leader_that_wakes_too_late_gives_nothing_away(pair: Pair, home: Live, step: Step) -> None:
    """Before it could commit another gang was given the same GPUs by the next leader."""
    elder = gang("annotation", "elder", 2, gpus=8)
    home.create(elder[0])
    standby = pair.standby()
    with DeviceGuard(pair.cluster), Freeze(pair, step) as frozen:
        home.create(*gang("annotation", "train", 4, gpus=4))
        frozen.wait()
        home.create(elder[1])
        eventually(lambda: pair.holder() == standby.identity, "the standby to lead")
        home.wait_bound("elder-0", "elder-1")
        mark = len(frozen.leader.proxy.writes)
        frozen.thaw()
        said = frozen.leader.scheduler
        eventually(lambda: "no longer leading" in said.text(), "the old leader to know")
        home.stays_unbound(*names_of("train"))
        assert deeds(frozen.leader, mark, step) == []
        assert pair.holder() == standby.identity
    # It may lead again, and then clears away what it wrote too late.
    standby.scheduler.stop()
    eventually(lambda: pair.holder() == frozen.leader.identity, "the old leader to lead again")
    for name in ("elder-0", "elder-1"):
        home.delete("Pod", name, grace=0)
    home.wait_bound(*names_of("train"))
    wait_settled(pair.system)


def test_bind_of_a_leader_that_wakes_too_late_was_made_by_the_next(pair: Pair, home: Live) -> None:
    standby = pair.standby()
    marks = pair.marks()
    with DeviceGuard(pair.cluster), Freeze(pair, BINDS[1]) as frozen:
        home.create(*gang("annotation", "train", 4, gpus=4))
        frozen.wait()
        eventually(lambda: pair.holder() == standby.identity, "the standby to lead")
        home.wait_bound(*names_of("train"))
        wait_settled(pair.system)
        mark = len(frozen.leader.proxy.writes)
        frozen.thaw()
        eventually(lambda: "no longer leading" in frozen.leader.scheduler.text(), "the old leader to know")
        assert deeds(frozen.leader, mark, BINDS[1]) == []
    assert where_pods_are(home) == intended(frozen.leader.proxy, marks[frozen.leader.proxy])


def test_evictions_of_a_leader_that_wakes_too_late_were_made_by_the_next(pair: Pair, home: Live) -> None:
    play = Preempt(home)
    play.prepare()
    standby = pair.standby()
    with DeviceGuard(pair.cluster), Freeze(pair, EVICTIONS[1]) as frozen:
        play.provoke()
        frozen.wait()
        eventually(lambda: pair.holder() == standby.identity, "the standby to lead")
        play.finish()
        mark = len(frozen.leader.proxy.writes)
        frozen.thaw()
        eventually(lambda: "no longer leading" in frozen.leader.scheduler.text(), "the old leader to know")
        assert deeds(frozen.leader, mark, EVICTIONS[1]) == []
        play.finish()
        wait_settled(pair.system)


# -- the Lease


def hold_open(pair: Pair, home: Live) -> Json:
    """A gang of four of which one cannot be bound, so that its commit stays open; the names that the Lease carries."""
    for replica in pair.replicas:
        replica.proxy.inject(answer(500), method="POST", path="/pods/train-3/binding$")
    Start(home).provoke()
    home.wait_bound(*names_of("train", 3))
    return committed(pair.system)


def read_lease(pair: Pair) -> Json:
    """The Lease; {} while there is none."""
    status, found = pair.system.http.ask("GET", LEASE)
    return found if status == 200 else {}


def test_lease_that_someone_deletes_stays_while_it_promises_anything(pair: Pair, home: Live) -> None:
    marks = pair.marks()
    leader = pair.leader()
    promised = hold_open(pair, home)
    assert promised
    pair.system.ask("DELETE", LEASE)
    assert pair.system.ask("GET", LEASE)["metadata"]["deletionTimestamp"]
    with DeviceGuard(pair.cluster):
        leader.kill()
        eventually(lambda: pair.holder() not in ("", leader.identity), "the standby to lead")
        assert committed(pair.system) == promised
        for replica in pair.replicas:
            replica.proxy.clear()
        Start(home).finish()
        assert where_pods_are(home) == intended(leader.proxy, marks[leader.proxy])
        wait_settled(pair.system)
    # Then it may go, and a new one is made: whoever leads goes on.
    eventually(lambda: "deletionTimestamp" not in read_lease(pair).get("metadata", "deletionTimestamp"), "a new Lease")
    home.create(*gang("annotation", "next", 2))
    home.wait_bound("next-0", "next-1")


def test_promise_that_nobody_can_read_stops_every_leader_with_a_clear_line(pair: Pair, home: Live) -> None:
    promised = hold_open(pair, home)
    first, second = pair.replicas
    for replica in pair.replicas:
        replica.kill()
    (name,) = promised
    pair.system.ask("PATCH", f"{PLACEMENTS}/{name}", {"metadata": {"finalizers": None}}, content_type=MERGE)
    pair.system.ask("DELETE", f"{PLACEMENTS}/{name}")
    first.launch()
    process = first.scheduler.process
    assert process is not None
    assert process.wait(PATIENCE) != 0
    last = first.scheduler.text().strip().splitlines()[-1]
    assert f"Placement gpu-scheduler-system/{name}" in last
    assert "does not exist" in last
    assert "Traceback" not in first.scheduler.text()
    assert committed(pair.system) == promised
    # What the line says helps.
    note = {"metadata": {"annotations": {COMMITTED: "{}"}}}
    pair.system.ask("PATCH", LEASE, note, content_type=MERGE)
    for replica in pair.replicas:
        replica.proxy.clear()
    second.start()
    Start(home).finish()
    wait_settled(pair.system)
    assert not placements(pair.system)
