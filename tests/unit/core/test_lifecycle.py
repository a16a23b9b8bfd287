"""The facts about a gang's members, and the phase that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_scheduler.core.lifecycle import GangFacts, GangRecord, Phase, collect_facts, phase_of
from gpu_scheduler.core.model import Expected, Gang, Gate, GateKind, Notes, OnMemberLost, Pod, PodPhase, Role, Slot
from tests.unit.core.world import a_key, a_pod, members, shape_of

KEY = a_key("a")


def some(count: int, role: str = "") -> list[Pod]:
    return members(KEY, count, role=role)


@dataclass(frozen=True)
class PhaseCase:
    id: str
    facts: dict[str, Any]
    phase: Phase


PHASES = [
    PhaseCase("no object", {"exists": False, "live": some(1)}, Phase.ORPHANED),
    PhaseCase("no object, and one waits", {"exists": False, "succeeded": 1, "ready": some(1)}, Phase.ORPHANED),
    PhaseCase("no object, and one is held back", {"exists": False, "succeeded": 1, "gated": some(1)}, Phase.ORPHANED),
    PhaseCase("no object, and one is being bound", {"exists": False, "failed": 1, "binding": 1}, Phase.ORPHANED),
    PhaseCase("no object, and one is being evicted", {"exists": False, "failed": 1, "evicting": 1}, Phase.ORPHANED),
    PhaseCase("no object, and one is being deleted", {"exists": False, "failed": 1, "leaving": 1}, Phase.ORPHANED),
    PhaseCase("no object and no pods", {"exists": False}, Phase.ORPHANED),
    PhaseCase("no object, and all are done", {"exists": False, "succeeded": 4}, Phase.FINISHED),
    PhaseCase("no object, and one has failed", {"exists": False, "succeeded": 3, "failed": 1}, Phase.FAILED),
    PhaseCase("one is being evicted", {"evicting": 1, "live": some(2)}, Phase.RESTARTING),
    PhaseCase("one is being committed", {"committing": 1, "binding": 1, "minimum": 2}, Phase.COMMITTING),
    PhaseCase("one is being bound", {"binding": 1, "live": some(1), "minimum": 2}, Phase.BINDING),
    PhaseCase("enough members run", {"live": some(2), "minimum": 2, "ready": some(1)}, Phase.RUNNING),
    PhaseCase(
        "some members run and the others have succeeded", {"live": some(1), "succeeded": 1, "minimum": 2}, Phase.RUNNING
    ),
    PhaseCase("one member too few runs", {"live": some(1), "minimum": 2}, Phase.HOLDING),
    PhaseCase(
        "one member too few runs, and the hold has expired",
        {"live": some(1), "minimum": 2, "hold_expired": True},
        Phase.DEGRADED,
    ),
    PhaseCase(
        "fewer run, and that is fine", {"live": some(1), "minimum": 2, "policy": OnMemberLost.SHRINK}, Phase.RUNNING
    ),
    PhaseCase("all have succeeded", {"succeeded": 2, "minimum": 2}, Phase.FINISHED),
    PhaseCase("enough have succeeded, but more wait", {"succeeded": 2, "minimum": 2, "ready": some(1)}, Phase.WAITING),
    PhaseCase(
        "enough are done, but more are held back", {"succeeded": 2, "minimum": 2, "gated": some(1)}, Phase.WAITING
    ),
    PhaseCase("all that are left are done", {"succeeded": 1, "minimum": 2}, Phase.FINISHED),
    PhaseCase("one is done and one is being deleted", {"succeeded": 1, "leaving": 1, "minimum": 2}, Phase.GATHERING),
    PhaseCase("one is done and one waits", {"succeeded": 1, "ready": some(1), "minimum": 3}, Phase.GATHERING),
    PhaseCase("too few are done and one has failed", {"succeeded": 1, "failed": 1, "minimum": 2}, Phase.FAILED),
    PhaseCase("enough are done though one has failed", {"succeeded": 2, "failed": 1, "minimum": 2}, Phase.FINISHED),
    PhaseCase("one has failed", {"failed": 1, "minimum": 2}, Phase.FAILED),
    PhaseCase("one has failed and its replacement waits", {"failed": 1, "ready": some(2), "minimum": 2}, Phase.WAITING),
    PhaseCase("paused", {"blocked": True, "ready": some(2), "minimum": 2}, Phase.BLOCKED),
    PhaseCase("victims are being evicted for it", {"nominated": True, "ready": some(2), "minimum": 2}, Phase.NOMINATED),
    PhaseCase("its slots are reserved", {"reserved": True, "minimum": 2}, Phase.RESERVED),
    PhaseCase("one is missing", {"ready": some(1), "minimum": 2}, Phase.GATHERING),
    PhaseCase("all exist", {"ready": some(2), "minimum": 2}, Phase.WAITING),
]


@pytest.mark.parametrize("case", PHASES, ids=[case.id for case in PHASES])
def test_phase_follows_from_the_facts(case: PhaseCase) -> None:
    assert phase_of(GangFacts(**case.facts)) is case.phase


ROLES = (Role("lead", 1), Role("work", 2))


@pytest.mark.parametrize(
    ("facts", "missing", "quorum"),
    [
        ({"minimum": 3}, 3, 3),
        ({"minimum": 3, "committing": 1, "binding": 2}, 0, 0),
        ({"minimum": 3, "live": some(1), "succeeded": 1}, 1, 1),
        ({"minimum": 3, "live": some(1), "ready": some(2)}, 2, 0),
        ({"minimum": 1, "live": some(3)}, 0, 0),
        ({"minimum": 3, "roles": ROLES, "have_by_role": {"work": 3}, "live": some(3, "work")}, 1, 1),
        ({"minimum": 1, "roles": ROLES, "ready": [*some(1, "lead"), *some(2, "work")]}, 3, 0),
        ({"minimum": 1, "roles": ROLES, "ready": some(5, "work")}, 3, 1),
        ({"minimum": 1, "roles": ROLES, "ready": [*some(1, "lead"), *some(1, "work")]}, 3, 1),
    ],
    ids=[
        "none",
        "decided",
        "done",
        "waiting",
        "too many",
        "too many of one role",
        "enough of each",
        "one role waits",
        "one of each",
    ],
)
def test_a_gang_is_short_of_its_minima(facts: dict[str, Any], missing: int, quorum: int) -> None:
    found = GangFacts(**facts)
    assert (found.missing, found.short_of_quorum) == (missing, quorum)


def test_members_are_sorted_by_their_state() -> None:
    pods = {
        "runs": a_pod("runs", node="n0", phase=PodPhase.RUNNING),
        "leaves": a_pod("leaves", node="n0", deleting=True),
        "must go": a_pod("must go", node="n0"),
        "done": a_pod("done", node="n0", phase=PodPhase.SUCCEEDED),
        "failed": a_pod("failed", node="n0", phase=PodPhase.FAILED),
        "decided": a_pod("decided"),
        "on its way": a_pod("on its way"),
        "waits": a_pod("waits"),
        "held back": a_pod("held back", gates=(Gate(GateKind.SCHEDULING_GATE, "gate"),)),
    }
    record = GangRecord(KEY, Gang(KEY, minimum=9), {uid: replace(pod, role="work") for uid, pod in pods.items()})
    facts = collect_facts(record, {"decided": False, "on its way": True}, {"must go"})
    assert [pod.uid for pod in facts.live] == ["runs"]
    assert ([pod.uid for pod in facts.ready], [pod.uid for pod in facts.gated]) == (["waits"], ["held back"])
    assert (facts.succeeded, facts.failed, facts.evicting, facts.leaving) == (1, 1, 1, 1)
    assert (facts.committing, facts.binding, facts.in_flight, facts.have) == (1, 1, 2, 4)
    assert facts.have_by_role == {"work": 4}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (GangRecord(KEY), {"exists": False}),
        (GangRecord(KEY, Gang(KEY)), {"exists": True, "blocked": False, "reserved": False, "nominated": False}),
        (GangRecord(KEY, Gang(KEY, paused=True)), {"blocked": True}),
        (GangRecord(KEY, Gang(KEY, problem="two schedulers")), {"blocked": True}),
        (GangRecord(KEY, Gang(KEY), notes=Notes(admitted_at=5.0)), {"reserved": True}),
        (GangRecord(KEY, Gang(KEY), notes=Notes(nomination=(Slot("n0", ()),))), {"nominated": True}),
    ],
    ids=["gone", "plain", "paused", "wrong", "admitted", "nominated"],
)
def test_the_notes_of_a_gang_are_among_its_facts(record: GangRecord, expected: dict[str, bool]) -> None:
    facts = collect_facts(record, {}, ())
    assert {name: getattr(facts, name) for name in expected} == expected


WORKER = a_pod("w0", role="worker", node="n0", phase=PodPhase.RUNNING)
TWO_KINDS = (Expected(shape_of(1), 1, "worker"), Expected(shape_of(3), 1, "worker"))


@pytest.mark.parametrize(
    ("pods", "binding", "complete"),
    [
        ([], {}, False),
        ([WORKER], {}, False),
        ([WORKER, replace(WORKER, uid="w1")], {}, True),
        ([WORKER, replace(WORKER, uid="w1", phase=PodPhase.SUCCEEDED)], {}, True),
        ([WORKER, replace(WORKER, uid="w1", node=None)], {"w1": True}, False),
        ([WORKER, replace(WORKER, uid="w1", deleting=True)], {}, False),
    ],
    ids=["none", "one of two kinds", "both", "one has succeeded", "one in flight", "one leaves"],
)
def test_a_gang_is_complete_when_all_expected_members_are_on_nodes(
    pods: list[Pod], binding: dict[str, bool], complete: bool
) -> None:
    record = GangRecord(KEY, Gang(KEY, expected=TWO_KINDS), {pod.uid: pod for pod in pods})
    assert collect_facts(record, binding, ()).complete is complete
