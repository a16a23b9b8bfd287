"""One scheduler leads and others are on standby: takeover, fencing, and commits that survive both."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from gpu_scheduler.k8s.objects import Json
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
    patient_pair,
    placements,
    strike,
    wait_settled,
    where_pods_are,
)
from tests.integration.fault_proxy import Seen, answer, before
from tests.integration.gangs import gang
from tests.integration.live import DeviceGuard, Live
from tests.integration.running import TIMEOUT, eventually

MERGE = "application/merge-patch+json"


def deeds(frozen: Freeze, step: Step) -> list[Seen]:
    """What a leader did to pods and to the committed set after it was resumed, as far as the API accepted it. Status
    writes do not count, nor intents that it never committed, nor requests that were in flight when it was suspended:
    the proxy, which is suspended with it, records their replies only afterwards."""
    deed = re.compile(r"POST .*/(binding|eviction)$|DELETE .*|PUT .*/leases/gpu-scheduler$")
    return [
        one
        for one in frozen.leader.proxy.writes
        if one.arrived >= frozen.thawed_at
        and one.status in range(200, 300)
        and deed.search(f"{one.method} {one.path}")
        and (one.method != "PUT" or re.search(COMMIT.body.encode(), one.body))
        and not re.search(step.path, one.path)
    ]


# -- one leader


def test_one_scheduler_leads_and_the_other_is_ready(pair: Pair, home: Live) -> None:
    with patient_pair(pair) as (leader, standby):
        before_it = len(standby.proxy.writes)
        Start(home).provoke()
        Start(home).finish()
        wait_settled(pair.system)
        assert pair.holder() == leader.identity
        assert standby.proxy.writes[before_it:] == []
        assert all(replica.scheduler.is_ready() for replica in (leader, standby))


def test_a_leader_that_is_stopped_hands_over_at_once(
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
def test_a_leader_that_is_stopped_during_a_bind_leaves_the_gang_to_the_next(pair: Pair, home: Live, step: Step) -> None:
    with patient_pair(pair) as (first, _), DeviceGuard(pair.cluster):
        process = first.scheduler.process
        assert process is not None
        strike(first.proxy, step, before(process.terminate))
        Start(home).provoke()
        assert process.wait(TIMEOUT) == 0
        Start(home).finish()
        wait_settled(pair.system)


# -- a suspended leader


class Freeze:
    """Suspends the leader at a step, together with the request that it has just sent. `meanwhile` ends before
    another scheduler can lead."""

    def __init__(self, pair: Pair, step: Step, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._pair = pair
        self._meanwhile = meanwhile
        self._lock = threading.Lock()
        self._thawed = threading.Event()
        self._frozen: list[Replica] = []
        self._said = 0
        self.thawed_at = 0.0
        for replica in pair.replicas:
            strike(replica.proxy, step, before(partial(self._hold, replica)))

    def _hold(self, replica: Replica) -> None:
        with self._lock:
            if self._frozen:
                return
            for one in self._pair.replicas:
                one.scheduler.pause()
            self._pair.clear()
            self._meanwhile()
            for other in self._pair.replicas:
                if other is not replica:
                    other.scheduler.resume()
            self._frozen.append(replica)
        self._thawed.wait(2 * TIMEOUT)

    @property
    def leader(self) -> Replica:
        """The suspended scheduler."""
        return self._frozen[0]

    def wait(self) -> Replica:
        """Waits until it is suspended and the other one leads; returns the new leader."""
        eventually(lambda: self._frozen, "the leader to come to that step")
        standby = next(one for one in self._pair.replicas if one is not self.leader)
        eventually(lambda: self._pair.holder() == standby.identity, "the standby to lead")
        return standby

    def thaw(self) -> None:
        """Resumes it, once."""
        if self._frozen and not self._thawed.is_set():
            self._said = len(self.leader.scheduler.text())
            self.thawed_at = time.monotonic()
            self._thawed.set()
            self.leader.scheduler.resume()

    def wait_fallen(self) -> None:
        """Waits until the formerly suspended scheduler knows that it no longer leads."""
        fallen = "leader lease lost"
        eventually(lambda: fallen in self.leader.scheduler.text()[self._said :], "the old leader to know")

    def __enter__(self) -> Freeze:
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()


@pytest.mark.parametrize("step", [CREATE, COMMIT], ids=["create", "commit"])
def test_a_leader_that_resumes_too_late_commits_nothing(pair: Pair, home: Live, step: Step) -> None:
    """Before it could commit, the next leader assigned the same GPUs to another gang."""
    elder = gang("annotation", "elder", 2, gpus=8)
    home.create(elder[0])

    def complete_elder() -> None:
        wire = Live(home.cluster, home.namespace)
        wire.create(elder[1])
        wire.http.close()

    with DeviceGuard(pair.cluster), Freeze(pair, step, complete_elder) as frozen:
        home.create(*gang("annotation", "train", 4, gpus=4))
        standby = frozen.wait()
        home.wait_bound("elder-0", "elder-1")
        frozen.thaw()
        frozen.wait_fallen()
        home.stays_unbound(*names_of("train"))
        assert deeds(frozen, step) == []
        assert pair.holder() == standby.identity
    # It may lead again, and then deletes what it wrote too late.
    standby.scheduler.stop()
    eventually(lambda: pair.holder() == frozen.leader.identity, "the old leader to lead again")
    for name in ("elder-0", "elder-1"):
        home.delete("Pod", name, grace=0)
    home.wait_bound(*names_of("train"))
    wait_settled(pair.system)


def test_the_next_leader_has_made_the_bind_of_a_leader_that_resumes_too_late(pair: Pair, home: Live) -> None:
    marks = pair.marks()
    with DeviceGuard(pair.cluster), Freeze(pair, BINDS[1]) as frozen:
        home.create(*gang("annotation", "train", 4, gpus=4))
        frozen.wait()
        home.wait_bound(*names_of("train"))
        wait_settled(pair.system)
        frozen.thaw()
        frozen.wait_fallen()
        assert deeds(frozen, BINDS[1]) == []
    assert where_pods_are(home) == intended(pair.since(marks))


def test_the_next_leader_has_made_the_evictions_of_a_leader_that_resumes_too_late(pair: Pair, home: Live) -> None:
    play = Preempt(home)
    play.prepare()
    with DeviceGuard(pair.cluster), Freeze(pair, EVICTIONS[1]) as frozen:
        play.provoke()
        frozen.wait()
        play.finish()
        frozen.thaw()
        frozen.wait_fallen()
        assert deeds(frozen, EVICTIONS[1]) == []
        play.finish()
        wait_settled(pair.system)


# -- the Lease


def hold_open(pair: Pair, home: Live) -> Json:
    """A gang of four of which one cannot be bound, so that its commit stays open; returns the Placements in the
    Lease."""
    pair.inject(answer(500), method="POST", path="/pods/train-3/binding$")
    Start(home).provoke()
    home.wait_bound(*names_of("train", 3))
    return committed(pair.system)


def read_lease(pair: Pair) -> Json:
    """The Lease; {} if there is none."""
    status, found = pair.system.http.ask("GET", LEASE)
    return found if status == 200 else {}


def test_a_deleted_lease_stays_while_anything_is_committed(pair: Pair, home: Live) -> None:
    marks = pair.marks()
    promised = hold_open(pair, home)
    assert promised
    pair.system.ask("DELETE", LEASE)
    assert pair.system.ask("GET", LEASE)["metadata"]["deletionTimestamp"]
    with DeviceGuard(pair.cluster):
        leader = pair.leader()
        leader.kill()
        eventually(lambda: pair.holder() not in ("", leader.identity), "the standby to lead")
        assert committed(pair.system) == promised
        pair.clear()
        Start(home).finish()
        assert where_pods_are(home) == intended(pair.since(marks))
        wait_settled(pair.system)
    # Then it may be deleted, and the leader creates a new one.
    eventually(lambda: "deletionTimestamp" not in read_lease(pair).get("metadata", "deletionTimestamp"), "a new Lease")
    home.create(*gang("annotation", "next", 2))
    home.wait_bound("next-0", "next-1")


def test_an_unreadable_commit_stops_every_leader_with_a_clear_log_line(pair: Pair, home: Live) -> None:
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
    assert process.wait(TIMEOUT) != 0
    last = first.scheduler.text().strip().splitlines()[-1]
    assert f"Placement gpu-scheduler-system/{name}" in last
    assert "does not exist" in last
    assert "Traceback" not in first.scheduler.text()
    assert committed(pair.system) == promised
    # The advice of the log line works.
    note = {"metadata": {"annotations": {COMMITTED: "{}"}}}
    pair.system.ask("PATCH", LEASE, note, content_type=MERGE)
    pair.clear()
    second.start()
    Start(home).finish()
    wait_settled(pair.system)
    assert not placements(pair.system)
