"""Preemption with many possible victims: the set stays minimal, and the cost of finding it is bounded."""

from __future__ import annotations

from random import Random

import pytest

from gpu_scheduler.core.cluster.cluster import Cluster
from gpu_scheduler.core.cycle.preemption import find_victims
from gpu_scheduler.core.cycle.victims import Victim, find_candidates
from gpu_scheduler.core.engine import Engine
from gpu_scheduler.core.events import Commit, GangSeen, NodeSeen, PodSeen, TookOver
from gpu_scheduler.core.model import Gang
from gpu_scheduler.core.placement.place import place_gang
from gpu_scheduler.core.queueing.bid import make_bid
from gpu_scheduler.core.state import State
from tests.unit.core.world import a_key, a_node, a_pod, members, sent, shape_of


def a_full_engine(nodes: int, pick: Random, most: int = 1) -> Engine:
    """Nodes of eight GPUs, all in use by gangs of up to this size, whose pods were observed in random order."""
    engine = Engine()
    for number in range(nodes):
        engine.handle(NodeSeen(a_node(f"n{number}", 8)), 0.0)
    slots = [(f"n{number}", device) for number in range(nodes) for device in range(8)]
    pick.shuffle(slots)
    while slots:
        name, size = f"low-{len(slots)}", min(pick.randint(1, most), len(slots))
        gang = Gang(a_key(name), pick.randint(1, size), priority=pick.randint(0, most - 1), created=float(len(slots)))
        engine.handle(GangSeen(gang), 0.0)
        for number in range(size):
            node, device = slots.pop()
            pod = a_pod(f"{name}-{number}", gang=gang.key, node=node, devices=(device,), index=number)
            engine.handle(PodSeen(pod), 0.0)
    engine.handle(TookOver(), 0.0)
    engine.run_cycle(0.0)
    return engine


def ask(engine: Engine, size: int, gpus: int) -> None:
    key = a_key("urgent")
    engine.handle(GangSeen(Gang(key, size, priority=9)), 1.0)
    for pod in members(key, size, shape_of(gpus), priority=9):
        engine.handle(PodSeen(pod), 1.0)


@pytest.mark.parametrize("wanted", [2, 20, 39], ids=["few", "half", "nearly all"])
def test_cost_of_a_preemption_grows_with_its_victims_and_not_with_their_square(
    wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = a_full_engine(40, Random(1))
    ask(engine, wanted, 8)
    forget, forgotten = Cluster.forget, []

    def count(cluster: Cluster, uid: str) -> bool:
        forgotten.append(uid)
        return forget(cluster, uid)

    monkeypatch.setattr(Cluster, "forget", count)
    (commit,) = sent(engine.run_cycle(1.0), Commit)
    assert len(commit.deletes) == wanted * 8
    assert len(forgotten) < 3 * 320


def spare_one_by_one(state: State, key: str) -> set[str] | None:
    """The victims left when each one, the most expensive first, is spared if the bid stays placeable."""
    record = state.records[a_key(key)]
    bid = make_bid(state, record, state.facts_of(record), 1.0)

    def suffices(victims: list[Victim]) -> bool:
        with state.cluster.trial():
            for victim in victims:
                for pod in victim.pods:
                    state.cluster.forget(pod.uid)
            return place_gang(state.cluster, bid) is not None

    candidates = sorted(find_candidates(state, record, 1.0), key=lambda victim: victim.rank)
    for tier in sorted({victim.tier for victim in candidates}):
        for victim in candidates:
            if victim.tier == tier and suffices([victim]):
                return {pod.uid for pod in victim.pods}
        chosen = [victim for victim in candidates if victim.tier <= tier]
        if suffices(chosen):
            for victim in reversed(chosen):
                without = [other for other in chosen if other is not victim]
                chosen = without if suffices(without) else chosen
            return {pod.uid for victim in chosen for pod in victim.pods}
    return None


@pytest.mark.parametrize("seed", range(60))
def test_victims_are_the_same_as_when_spared_one_by_one(seed: int) -> None:
    pick = Random(seed)
    engine = a_full_engine(pick.randint(1, 4), pick, most=5)
    ask(engine, pick.randint(1, 4), pick.choice([1, 2, 4, 8]))
    state = engine.state
    record = state.records[a_key("urgent")]
    found = find_victims(state, record, make_bid(state, record, state.facts_of(record), 1.0), 1.0)
    assert (set(found.pods) if found is not None else None) == spare_one_by_one(state, "urgent")
