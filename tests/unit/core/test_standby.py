"""An engine that does not lead decides nothing and removes what is gone; changes of leadership."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import (
    Bind,
    BindFailed,
    BindFailure,
    Commit,
    Committed,
    Delete,
    DeleteCause,
    DeleteFailed,
    Fenced,
    GangGone,
    GangSeen,
    NodeSeen,
    PodGone,
    PodSeen,
    Release,
    Report,
    SendBind,
    SendDelete,
    TookOver,
)
from gpu_scheduler.core.model import Gang, Notes, PodPhase, Slot
from gpu_scheduler.core.state import Config
from tests.unit.core.test_reserve import expecting
from tests.unit.core.world import a_key, a_node, a_pod, binds_in, members, sent

NOW = 1000.0


def watching(*gpus: int) -> Engine:
    engine = Engine()
    for number, count in enumerate(gpus or (4,)):
        engine.handle(NodeSeen(a_node(f"n{number}", count)), NOW)
    return engine


def test_standby_cycle_clears_the_list_of_changed_gangs() -> None:
    engine = watching()
    engine.handle(PodSeen(a_pod("p", version="1")), NOW)
    assert engine.run_cycle(NOW) == []
    assert not engine.state.dirty
    assert engine.next_timer() is None


def test_standby_removes_empty_gangs() -> None:
    engine = watching()
    key = a_key("a")
    engine.handle(GangSeen(Gang(key, minimum=2)), NOW)
    for pod in (*members(key, 2), a_pod("alone")):
        engine.handle(PodSeen(pod), NOW)
    engine.run_cycle(NOW)
    assert len(engine.state.records) == 2
    engine.handle(GangGone(key), NOW)
    for uid in ("a-0", "a-1", "alone"):
        engine.handle(PodGone(uid), NOW)
    engine.run_cycle(NOW)
    assert not engine.state.records


def test_standby_ends_quarantines_and_has_no_timer_left() -> None:
    engine = watching()
    engine.handle(PodSeen(a_pod("p", node="n0", devices=(0,), phase=PodPhase.RUNNING, grace=0.0)), NOW)
    engine.handle(PodGone("p"), NOW)
    due = engine.next_timer()
    assert due is not None
    assert due > NOW
    engine.run_cycle(due)
    assert engine.next_timer() is None
    assert not engine.state.cluster.usage


def test_leader_that_is_fenced_has_no_timers_in_the_past() -> None:
    engine = watching(1)
    engine.handle(TookOver(), NOW)
    for name in ("p", "q"):
        engine.handle(PodSeen(a_pod(name, version="1", created=NOW)), NOW)
    engine.run_cycle(NOW)
    engine.handle(Fenced(), NOW)
    later = NOW + 10_000
    engine.run_cycle(later)
    due = engine.next_timer()
    assert due is None or due > later


def test_decisions_without_a_note_are_dropped_with_the_leadership() -> None:
    engine = watching(2)
    engine.handle(TookOver(), NOW)
    low, high = a_key("low"), a_key("high")
    engine.handle(GangSeen(Gang(low, minimum=2)), NOW)
    for i, pod in enumerate(members(low, 2)):
        engine.handle(PodSeen(replace(pod, node="n0", devices=(i,), phase=PodPhase.RUNNING)), NOW)
    engine.handle(GangSeen(Gang(high, minimum=2, priority=9)), NOW)
    for pod in members(high, 2, priority=9):
        engine.handle(PodSeen(pod), NOW)
    engine.run_cycle(NOW)
    assert engine.state.records[high].notes.nomination
    engine.handle(Fenced(), NOW)
    # The leader in between did not evict, and the nomination was never written.
    engine.handle(TookOver(), NOW + 20)
    assert not engine.state.records[high].notes.nomination
    assert not engine.state.nominated


def test_notes_are_restored_when_leadership_returns() -> None:
    engine = watching(2)
    engine.handle(TookOver(), NOW)
    key = a_key("a")
    noted = Gang(key, minimum=1, notes=Notes(nomination=(Slot("n0", (0,)),), nominated_at=NOW))
    engine.handle(GangSeen(noted), NOW)
    engine.handle(PodSeen(members(key, 1)[0]), NOW)
    engine.handle(Fenced(), NOW)
    assert engine.state.records[key].notes.nomination == noted.notes.nomination


def test_nomination_whose_evictions_were_never_committed_is_decided_again() -> None:
    engine = watching(2)
    low, high = a_key("low"), a_key("high")
    engine.handle(GangSeen(Gang(low, minimum=2)), NOW)
    for i, pod in enumerate(members(low, 2)):
        engine.handle(PodSeen(replace(pod, node="n0", devices=(i,), phase=PodPhase.RUNNING)), NOW)
    slots = (Slot("n0", (0,)), Slot("n0", (1,)))
    engine.handle(GangSeen(Gang(high, minimum=2, priority=9, notes=Notes(nomination=slots, nominated_at=NOW))), NOW)
    for pod in members(high, 2, priority=9):
        engine.handle(PodSeen(pod), NOW)
    engine.handle(TookOver(), NOW + 5)
    commits = [effect for effect in engine.run_cycle(NOW + 5) if isinstance(effect, Commit)]
    assert [delete.name for commit in commits for delete in commit.deletes] == ["low-0", "low-1"]


def test_nomination_whose_victims_are_being_deleted_is_kept() -> None:
    engine = watching(2)
    high = a_key("high")
    victims = [a_pod(f"low-{i}", node="n0", devices=(i,), phase=PodPhase.RUNNING, deleting=i == 0) for i in range(2)]
    for pod in victims:
        engine.handle(PodSeen(pod), NOW)
    slots = (Slot("n0", (0,)), Slot("n0", (1,)))
    engine.handle(GangSeen(Gang(high, minimum=2, priority=9, notes=Notes(nomination=slots, nominated_at=NOW))), NOW)
    for pod in members(high, 2, priority=9):
        engine.handle(PodSeen(pod), NOW)
    left = Commit(3, deletes=(Delete("low-1", "default", "low-1", DeleteCause.PREEMPTED),))
    engine.handle(TookOver((left,)), NOW + 5)
    assert not [effect for effect in engine.run_cycle(NOW + 5) if isinstance(effect, Commit)]
    assert engine.state.records[high].notes.nomination == slots


def test_late_answer_to_an_earlier_bind_does_not_trigger_the_next_one() -> None:
    engine = watching()
    engine.handle(TookOver(), NOW)
    engine.handle(PodSeen(a_pod("p", version="1", created=NOW)), NOW)
    assert any(isinstance(effect, Commit) for effect in engine.run_cycle(NOW))
    engine.handle(BindFailed("p", BindFailure.REFUSED), NOW)  # for an earlier attempt
    later = NOW + 5
    engine.run_cycle(later)
    due = engine.next_timer()
    assert due is None or due > later


def test_bind_is_not_sent_with_a_pod_version_of_another_attempt() -> None:
    engine = watching()
    engine.handle(PodSeen(a_pod("p", version="1")), NOW)
    raised = Commit(3, binds=(Bind("p", "team", "p", 1, "n0", (0,)),))
    assert not [effect for effect in engine.handle(TookOver((raised,)), NOW) if isinstance(effect, SendBind)]


def test_empty_commit_is_over_for_the_next_leader() -> None:
    engine = watching()
    assert engine.handle(TookOver((Commit(3),)), NOW) == []
    assert engine.run_cycle(NOW) == [Release(3)]


def test_commit_of_pods_that_are_gone_is_over_for_the_next_leader() -> None:
    engine = watching()
    left = Commit(3, binds=(Bind("gone", "team", "gone", 0, "n0", (0,)),))
    assert engine.handle(TookOver((left,)), NOW) == []
    assert engine.run_cycle(NOW) == [Release(3)]
    assert not engine.state.cluster.usage


@pytest.mark.parametrize(
    "change", [{"deleting": True}, {"phase": PodPhase.SUCCEEDED}], ids=["is being deleted", "has ended"]
)
def test_delete_of_a_pod_that_is_deleting_already_is_over_for_the_next_leader(change: dict[str, Any]) -> None:
    engine = watching()
    engine.handle(PodSeen(a_pod("p", node="n0", devices=(0,), **change)), NOW)
    left = Commit(3, deletes=(Delete("p", "team", "p", DeleteCause.PREEMPTED),))
    assert engine.handle(TookOver((left,)), NOW) == []
    assert Release(3) in engine.run_cycle(NOW)


def test_leader_that_steps_down_releases_all_reserved_slots() -> None:
    engine = watching()
    key = a_key("a")
    engine.handle(GangSeen(Gang(key, minimum=2)), NOW)
    for i, pod in enumerate(members(key, 2)):
        engine.handle(PodSeen(replace(pod, node="n0", devices=(i,), phase=PodPhase.RUNNING)), NOW)
    engine.handle(TookOver(), NOW)
    engine.run_cycle(NOW)
    engine.handle(PodSeen(replace(engine.state.pods["a-1"], phase=PodPhase.FAILED)), NOW)
    engine.handle(PodGone("a-1"), NOW)
    engine.run_cycle(NOW)
    assert len(engine.state.cluster.usage) == 2, "one runs, and the slot of the other is held"
    engine.handle(Fenced(), NOW)
    assert list(engine.state.cluster.usage) == ["a-0"]


def test_slots_reserved_for_one_gang_can_go_to_another_after_leadership_returns() -> None:
    engine = watching(2)
    engine.handle(TookOver(), NOW)
    waited_for = expecting("a", 2)
    engine.handle(GangSeen(waited_for), NOW)
    engine.run_cycle(NOW)
    key = a_key("b")
    engine.handle(GangSeen(Gang(key)), NOW)
    engine.handle(PodSeen(members(key, 1)[0]), NOW)
    assert not binds_in(engine.run_cycle(NOW))
    engine.handle(Fenced(), NOW)
    engine.handle(GangSeen(replace(waited_for, paused=True)), NOW + 1)
    engine.run_cycle(NOW + 1)
    engine.handle(TookOver(), NOW + 10)
    assert binds_in(engine.run_cycle(NOW + 10))


@pytest.mark.parametrize("fenced", [NOW, NOW + 700])
def test_waiting_time_restarts_for_a_gang_that_ran_under_another_leader(fenced: float) -> None:
    engine = watching(1)
    engine.handle(PodSeen(a_pod("other", node="n0", devices=(0,))), NOW)
    engine.handle(TookOver(), NOW)
    key = a_key("a")
    pod = members(key, 1, created=NOW)[0]
    engine.handle(GangSeen(Gang(key, timeout=600.0)), NOW)
    engine.handle(PodSeen(pod), NOW)
    engine.run_cycle(NOW)
    engine.run_cycle(fenced)
    engine.handle(Fenced(), fenced)
    engine.handle(PodSeen(replace(pod, node="n0", devices=(0,))), NOW + 1000)
    engine.handle(PodGone(pod.uid), NOW + 4000)
    engine.run_cycle(NOW + 4000)
    engine.handle(PodSeen(replace(pod, uid="again", created=NOW + 5000)), NOW + 5000)
    engine.handle(TookOver(), NOW + 5000)
    (status,) = [report.status for report in sent(engine.run_cycle(NOW + 5000), Report) if report.key == key]
    assert (status.timed_out, status.notes.target) == (False, ())


def test_time_between_two_attempts_doubles() -> None:
    engine = watching()
    engine.handle(TookOver(), NOW)
    engine.handle(PodSeen(a_pod("p", version="1", created=NOW)), NOW)
    engine.run_cycle(NOW)
    engine.handle(Committed(0), NOW)
    waits, now = [], NOW
    for _ in range(6):
        engine.handle(BindFailed("p", BindFailure.UNKNOWN), now)
        due = engine.next_timer()
        assert due is not None
        waits.append(due - now)
        now = due
        engine.run_cycle(now)
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_bind_without_an_answer_is_sent_with_growing_backoff() -> None:
    engine = watching()
    engine.handle(TookOver(), NOW)
    engine.handle(PodSeen(a_pod("p", version="1", created=NOW)), NOW)
    engine.run_cycle(NOW)
    engine.handle(Committed(0), NOW)
    sends, now = 0, NOW
    while now < NOW + 600:
        engine.handle(BindFailed("p", BindFailure.UNKNOWN), now)
        now = engine.next_timer() or NOW + 600
        sends += sum(isinstance(effect, SendBind) for effect in engine.run_cycle(now))
    assert 60 <= sends <= 90


def test_delete_refused_by_a_disruption_budget_is_sent_with_growing_backoff() -> None:
    engine = watching(1)
    engine.handle(TookOver(), NOW)
    engine.handle(PodSeen(a_pod("low", version="1", node="n0", devices=(0,), phase=PodPhase.RUNNING)), NOW)
    engine.handle(PodSeen(a_pod("high", version="1", priority=9)), NOW)
    engine.run_cycle(NOW)
    engine.handle(Committed(0), NOW)
    engine.handle(DeleteFailed("low"), NOW)
    sends, now = 0, NOW
    while now < NOW + 500:
        now = engine.next_timer() or NOW + 500
        for effect in [effect for effect in engine.run_cycle(now) if isinstance(effect, SendDelete)]:
            sends += 1
            assert effect.failures == sends
            engine.handle(DeleteFailed("low"), now)
    assert 50 <= sends <= 80


def test_open_bind_of_a_pod_that_is_no_longer_ours_is_rolled_forward_and_then_left_alone() -> None:
    engine = watching()
    pod = a_pod("p", version="1", ours=False)
    engine.handle(PodSeen(pod), NOW)
    left = Commit(7, (Bind("p", pod.namespace, "p", 0, "n0", (0,)),))
    assert any(isinstance(effect, SendBind) for effect in engine.handle(TookOver((left,)), NOW))
    bound = replace(pod, version="2", node="n0", devices=(0,))
    engine.handle(PodSeen(bound), NOW)
    assert Release(7) in engine.run_cycle(NOW)
    assert not engine.state.records


def test_open_bind_ends_with_its_pod_even_if_that_is_no_longer_ours() -> None:
    engine = watching()
    engine.handle(TookOver(), NOW)
    pod = a_pod("p", version="1", created=NOW)
    engine.handle(PodSeen(pod), NOW)
    engine.run_cycle(NOW)
    engine.handle(PodSeen(replace(pod, version="2", permanent=True)), NOW)
    engine.handle(PodGone("p"), NOW)
    engine.handle(Committed(0), NOW)
    assert Release(0) in engine.run_cycle(NOW)
    assert not engine.state.ledger.binds


def test_deciding_pauses_while_the_lease_names_the_maximum_of_commits() -> None:
    engine = Engine(Config(max_open_commits=2))
    engine.handle(NodeSeen(a_node("n0", 8)), NOW)
    engine.handle(TookOver(), NOW)
    commits = []
    for number in range(4):
        engine.handle(PodSeen(a_pod(f"p{number}", version="1")), NOW)
        for commit in [effect for effect in engine.run_cycle(NOW) if isinstance(effect, Commit)]:
            engine.handle(Committed(commit.sequence), NOW)
            commits.append(commit)
    assert [commit.sequence for commit in commits] == [0, 1]
    bound = a_pod("p0", version="2", node="n0", devices=(0,))
    engine.handle(PodSeen(bound), NOW)
    engine.run_cycle(NOW)
    assert any(isinstance(effect, Commit) for effect in engine.run_cycle(NOW))
